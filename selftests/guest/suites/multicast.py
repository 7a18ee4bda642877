# SPDX-License-Identifier: GPL-2.0
"""Multicast: which queue pairs receive a datagram that is sent to a group (IBA 10.5)."""

import errno

import harness
import packets
import testbed
from harness import Skip, case, equal, require, wait_until
from packets import QKEY, UD, bth, deth
from programs import both_roles
from trial import refused

bed = testbed.Bed()

# IPv4 and IPv6 groups, and their Ethernet addresses.
GROUPS = {"ipv4": "239.7.1.2", "ipv6": "ff0e::7:1:2"}
MACS = {"ipv4": "01:00:5e:07:01:02", "ipv6": "33:33:00:01:00:02"}
VERSIONS = {name: name for name in GROUPS}

# The destination queue pair number of multicasts.
EVERYBODY = 0xFFFFFF

# Seconds to wait for a datagram that must not come.
SILENCE = 0.5

GRH = 40


def gid(version):
    """Returns the GID of a group."""
    return GROUPS[version] if version == "ipv6" else f"::ffff:{GROUPS[version]}"


def addressed(host, version):
    """Returns the host's own address."""
    return host.address6 if version == "ipv6" else host.address


class Member:
    """A datagram queue pair with memory for its datagrams."""

    def __init__(self, end, pd, qkey=QKEY, **sizes):
        self.end = end
        self.cq = end.cq(16)
        self.memory = end.memory(pd, 8192, seed=3)
        self.qp = end.qp("ud", pd, self.cq, **sizes)
        self.id = self.qp["id"]
        end.to_init(self.id, "ud", qkey=qkey)
        end.to_rtr(self.id, "ud")
        end.to_rts(self.id, "ud")

    def receive(self, number, lkey=None):
        """Posts a receive, with a separate buffer for each number."""
        place = self.memory["address"] + number * 1024
        lkey = self.memory["lkey"] if lkey is None else lkey
        self.end.post_recv(self.id, [{"id": number, "sge": [[place, 1024, lkey]]}])

    def send(self, ah, seed, length=100, number=50):
        """Sends the data of a seed to the multicast queue pair number."""
        self.end.put(self.memory["id"], [[6144, length]], seed)
        segment = [self.memory["address"] + 6144, length, self.memory["lkey"]]
        self.end.post_send(self.id, [{"id": number, "op": "send", "sge": [segment], "ah": ah, "qpn": EVERYBODY}])
        (done,) = self.end.poll(self.cq, 1)
        equal("completion of the send", (done["id"], done["status"]), (number, "SUCCESS"))

    def got(self, number, seed, sender, length=100):
        """Checks that exactly one datagram came, in this receive, with the data of that seed."""
        found = self.end.poll(self.cq, 1, 30 * harness.slowness())
        equal("completions", [(wc["id"], wc["status"], wc["op"]) for wc in found], [(number, "SUCCESS", "recv")])
        equal("sender", found[0]["src_qpn"], sender)
        equal("bytes", found[0]["len"], GRH + length)
        require(found[0]["grh"], "no GRH")
        self.end.accept(self.memory["id"], [[number * 1024, GRH]], GRH)
        self.end.expect(self.memory["id"], [[number * 1024 + GRH, length]], seed, length)
        equal("memory", self.end.verify(self.memory["id"]), "")

    def nothing(self, seconds=0.0):
        """Checks that no datagram came."""
        equal("completions", self.end.poll(self.cq, 1, seconds), [])
        equal("memory", self.end.verify(self.memory["id"]), "")


class Hosts:
    """The devices of both hosts, with a sender on the other host."""

    def __init__(self, version="ipv4"):
        self._version = version
        self.gid = gid(version)

    def __enter__(self):
        import endpoint  # only a guest has verbs

        here, peer = bed.here, bed.peer
        self.end, self.remote = endpoint.Endpoint(), endpoint.Peer(peer.address)
        self.end.open(here.device, addressed(here, self._version), here.driver)
        self.remote.open(peer.device, addressed(peer, self._version), peer.driver)
        self.pd, self.remote_pd = self.end.pd(), self.remote.pd()
        self.sender = Member(self.remote, self.remote_pd)
        self.ah = self.remote.ah(self.remote_pd, self.gid)
        return self

    def __exit__(self, *_):
        self.end.leave()
        self.remote.leave()

    def member(self, attached=True, **how):
        """Creates a queue pair of this host, by default attached to the group."""
        member = Member(self.end, self.pd, **how)
        if attached:
            self.end.attach(member.id, self.gid)
        return member

    def send(self, seed, **how):
        """Sends a datagram from the other host to the group."""
        self.sender.send(self.ah, seed, **how)

    def settle(self):
        """Waits until packets of the group arrive, since network devices update their filters late.

        Afterwards no datagram is in flight, because the last one sent has arrived.
        """
        probe = self.member()
        last = 55
        for _ in range(16):
            probe.receive(0)

        def came():
            self.send(99)
            return probe.end.poll(probe.cq, 1, 0.2)

        wait_until("the group's packets come in", came)
        self.send(98, length=last)
        wait_until("the last of them", lambda: last + GRH in [wc["len"] for wc in probe.end.poll(probe.cq, 1, 0.2)])
        self.end.detach(probe.id, self.gid)


def _only_rrxe_receives():
    if bed.peer.driver != "rrxe":
        raise Skip("rdma_rxe does not join the IP group, and gets nothing unless somebody else joins it")


def joined(host, version):
    """Returns whether the host's network device accepts the group's packets."""
    return MACS[version] in host.machine.run("ip maddr show dev eth0")


# The programs of librdmacm


@both_roles(bed, timeout=240)
def mckey(server, client):
    """mckey: one host joins and listens, the other joins and sends.

    With an IPv6 group, mckey fails before it reaches the device.
    """

    def command(host):
        return f"mckey -m {GROUPS['ipv4']} -b {host.address} -C 10 -S 1000"

    serving = server.machine.start(command(server))
    wait_until("the server has joined", lambda: joined(server, "ipv4"))

    # The first messages may arrive before the server's device accepts the group's packets, and
    # datagrams are not repeated: clients send until the server has received enough messages.
    def served():
        output = client.machine.run(f"{command(client)} -s", 60)
        require("test complete" in output and "return status 0" in output, "the client did not complete")
        return not serving.running()

    wait_until("the server has its messages", served, 120)
    output = serving.wait(10).output
    require("test complete" in output and "return status 0" in output, "the server did not complete")


# Delivery


@case(each=VERSIONS)
def each_member_once(version):
    """Each member with a receive posted gets each datagram once (I-07); others get nothing.

    A member without a receive loses the datagram and keeps working.
    """
    with Hosts(version) as hosts:
        members = [hosts.member() for _ in range(2)]
        late, stranger = hosts.member(), hosts.member(attached=False)
        hosts.settle()
        stranger.receive(0)
        for number, seed in enumerate((11, 12, 13)):
            for member in members:
                member.receive(number)
            hosts.send(seed)
            for member in members:
                member.got(number, seed, hosts.sender.qp["qpn"])
        late.receive(4)
        late.nothing(SILENCE)
        stranger.nothing()
        hosts.send(14)
        late.got(4, 14, hosts.sender.qp["qpn"])
        for member in members:
            member.nothing()


@case()
def failure_of_one():
    """A member's wrong Q_Key, invalid memory or small receive does not affect others (I-07)."""
    with Hosts() as hosts:
        before, after = hosts.member(), None
        strange, broken, small = hosts.member(qkey=QKEY + 1), hosts.member(), hosts.member()
        after = hosts.member()
        hosts.settle()
        strange.receive(0)
        broken.receive(0, lkey=broken.memory["lkey"] ^ 0x5A)
        place = small.memory["address"]
        small.end.post_recv(small.id, [{"id": 0, "sge": [[place, GRH + 99, small.memory["lkey"]]]}])
        for member in (before, after):
            member.receive(0)
        hosts.send(21)
        for member in (before, after):
            member.got(0, 21, hosts.sender.qp["qpn"])
        (failed,) = hosts.end.poll(broken.cq, 1, 30)
        equal("status", failed["status"], "LOC_PROT_ERR")
        strange.nothing(SILENCE)
        for member in (before, after):
            member.receive(1)
        hosts.send(22)
        for member in (before, after):
            member.got(1, 22, hosts.sender.qp["qpn"])


@case(each=VERSIONS)
def own_host(version):
    """A datagram reaches the members on other hosts and on the sender's own, including the
    sender."""
    with Hosts(version) as hosts:
        sender, other = hosts.member(attached=False), hosts.member(attached=False)
        ah = hosts.end.ah(hosts.pd, hosts.gid)
        # Use the path before this host has members; they must still receive what is sent later.
        for member in (sender, other):
            member.receive(0)
        sender.send(ah, 30)
        for member in (sender, other):
            member.nothing(SILENCE)
            hosts.end.attach(member.id, hosts.gid)
        # The stack makes these copies, so there is no device to wait for.
        segment = [sender.memory["address"] + 6144, 100, sender.memory["lkey"]]
        hosts.end.put(sender.memory["id"], [[6144, 100]], 31)
        request = {"id": 50, "op": "send", "sge": [segment], "ah": ah, "qpn": EVERYBODY}
        hosts.end.post_send(sender.id, [request])
        found = hosts.end.poll(sender.cq, 2, 30 * harness.slowness())
        equal("completions", sorted((wc["id"], wc["op"]) for wc in found), [(0, "recv"), (50, "send")])
        other.got(0, 31, sender.qp["qpn"])
        if bed.peer.driver != "rrxe":
            return
        # The other host's device may accept the group late; any datagram that arrives will do.
        hosts.remote.attach(hosts.sender.id, hosts.gid)
        hosts.sender.receive(0)

        def came():
            hosts.end.post_send(sender.id, [request])
            hosts.end.poll(sender.cq, 1, 30)
            return hosts.remote.poll(hosts.sender.cq, 1, 0.2)

        (done,) = wait_until("the other host's member gets one", came)
        equal("completion", (done["id"], done["status"], done["src_qpn"]), (0, "SUCCESS", sender.qp["qpn"]))


# Membership


@case(each=VERSIONS)
def attach_and_detach(version):
    """Attaching twice delivers once, and detaching stops delivery (I-09).

    The host is in the IP group as long as it has a member.
    """
    with Hosts(version) as hosts:
        require(not joined(bed.here, version), "joined before anybody asked")
        one, two = hosts.member(), hosts.member()
        require(joined(bed.here, version), "not joined")
        hosts.settle()
        hosts.end.attach(one.id, hosts.gid)
        for number in (0, 1):
            one.receive(number)
        two.receive(0)
        hosts.send(41)
        one.got(0, 41, hosts.sender.qp["qpn"])
        two.got(0, 41, hosts.sender.qp["qpn"])
        one.nothing(SILENCE)
        hosts.end.detach(one.id, hosts.gid)
        refused(errno.EINVAL, hosts.end.detach, one.id, hosts.gid)
        require(joined(bed.here, version), "left while there is a member")
        two.receive(1)
        hosts.send(42)
        two.got(1, 42, hosts.sender.qp["qpn"])
        one.nothing()
        hosts.end.detach(two.id, hosts.gid)
        require(not joined(bed.here, version), "joined without a member")
        hosts.end.attach(one.id, hosts.gid)

        def came():
            hosts.send(43)
            return one.end.poll(one.cq, 1, 0.2)

        (done,) = wait_until("datagrams come again", came)
        equal("completion", (done["id"], done["status"]), (1, "SUCCESS"))


@case()
def other_groups():
    """Members of many groups receive the datagrams of their own groups."""
    with Hosts() as hosts:
        gids = [f"::ffff:239.7.2.{n}" for n in range(1, 21)]
        members = [hosts.member(attached=False) for _ in range(4)]
        for number, group in enumerate(gids):
            hosts.end.attach(members[number % 4].id, group)
        for number in (7, 2, 19):
            hosts.gid, hosts.ah = gids[number], hosts.remote.ah(hosts.remote_pd, gids[number])
            hosts.settle()
            member = members[number % 4]
            member.receive(0)
            hosts.send(50 + number)
            member.got(0, 50 + number, hosts.sender.qp["qpn"])
        for member in members:
            member.receive(1)
        hosts.sender.send(hosts.remote.ah(hosts.remote_pd, "::ffff:239.7.2.77"), 49)
        members[0].nothing(SILENCE)
        for member in members:
            member.nothing()


@case()
def destroy_refused():
    """An attached queue pair cannot be destroyed (I-08)."""
    with Hosts() as hosts:
        member = hosts.member()
        refused(errno.EBUSY, hosts.end.drop, member.id)
        hosts.settle()
        member.receive(0)
        hosts.send(61)
        member.got(0, 61, hosts.sender.qp["qpn"])
        hosts.end.detach(member.id, hosts.gid)
        hosts.end.drop(member.id)


@case()
def refusals():
    """Attaching is refused for a non-group address, for an RC queue pair, and for one member too
    many."""
    with Hosts() as hosts:
        member = hosts.member(attached=False)
        refused(errno.EINVAL, hosts.end.attach, member.id, "::ffff:10.77.0.9")
        refused(errno.EINVAL, hosts.end.attach, member.id, "fe80::1")
        connected = hosts.end.qp("rc", hosts.pd, member.cq)
        refused(errno.EINVAL, hosts.end.attach, connected["id"], hosts.gid)
        if bed.here.driver != "rrxe":
            return
        cheap = [hosts.end.qp("ud", hosts.pd, member.cq, send_wr=1, recv_wr=1)["id"] for _ in range(256)]
        for qp in cheap:
            hosts.end.attach(qp, hosts.gid)
        refused(errno.ENOMEM, hosts.end.attach, member.id, hosts.gid)
        hosts.end.detach(cheap[0], hosts.gid)
        hosts.end.attach(member.id, hosts.gid)


@case()
def killed():
    """When a program is killed, its device leaves the groups of its members."""
    _only_rrxe_receives()
    with Hosts() as hosts:
        hosts.remote.attach(hosts.sender.id, hosts.gid)
        require(joined(bed.peer, "ipv4"), "not joined")
        hosts.remote.die()
        wait_until("the group was left", lambda: not joined(bed.peer, "ipv4"), 30)


# Packets by hand


@case()
def wrong_destination():
    """Multicast packets must go to the multicast queue pair number, and no other packets may
    (A-05)."""
    _only_rrxe_receives()
    with Hosts() as hosts:
        member = Member(hosts.remote, hosts.remote_pd)
        hosts.remote.attach(member.id, hosts.gid)
        member.receive(0)
        unicast = bed.peer.machine.read("/sys/class/net/eth0/address")

        def send(address, mac, qpn):
            wire = packets.Wire("eth0", bed.here.address, address, mac)
            wire.send(bth(UD | packets.SEND_ONLY, qpn, 0, ack=False) + deth(QKEY, 77) + hosts_data)
            wire.close()

        hosts_data = bytes(range(64))
        group, group_mac = GROUPS["ipv4"], MACS["ipv4"]

        def came():
            send(group, group_mac, EVERYBODY)
            return member.end.poll(member.cq, 1, 0.2)

        # Control, repeated until the device accepts the group: a correct packet arrives.
        (done,) = wait_until("a right one arrives", came)
        equal("completion", (done["status"], done["src_qpn"], done["len"]), ("SUCCESS", 77, GRH + 64))
        harness.log("now the wrong ones")
        member.end.poll(member.cq, 1, SILENCE)
        hosts.remote.accept(member.memory["id"], [[0, 1024]], 1024)
        member.receive(1)
        send(bed.peer.address, unicast, EVERYBODY)
        send(group, group_mac, member.qp["qpn"])
        send(group, group_mac, 1)
        member.nothing(SILENCE)


def run():
    """Runs the suite."""
    return bed.run()
