# SPDX-License-Identifier: GPL-2.0
"""The borders of a connection, in many topologies.

A stranger that knows the QPNs, PSNs and keys of a connection sends forged packets to one end: as a
program without privileges, from a container, from another segment. None may have an effect. GSO
packets that claim to be tunnelled must not leave the veth pair that joins sender and receiver.
"""

import contextlib
import dataclasses
import errno
import socket

import forging
import gso_trace
import harness
import privilege
import testbed
import topologies
import traffic
from data_cases import seeded
from harness import Skip, case, equal, require
from packets import ROCE_PORT
from trial import Bench, Trial

bed = testbed.Bed()

# The initial PSN of a trial's queue pairs.
FIRST = 5

TOPOLOGIES = {name: name for name in topologies.TOPOLOGIES}

# The values of the sysctl rp_filter: off, loose, strict. It does not exist for IPv6.
RP_FILTERS = (0, 2, 1)


@contextlib.contextmanager
def built(name, **how):
    """Builds a topology by name."""
    if bed.here.driver != "rrxe":
        raise Skip("asks for what rrxe promises")
    with topologies.TOPOLOGIES[name](**how) as topology:
        yield topology


def address(host, version):
    """Returns the address of a host."""
    return host.address if version == 4 else host.address6


class Ends:
    """Endpoints at the two ends of a topology, for trials over each version of IP."""

    def __init__(self, topology):
        self._hosts = topology.hosts
        self._benches = {version: Bench(lambda version=version: self._make(version)) for version in topologies.VERSIONS}

    def _make(self, version):
        import endpoint  # only a guest has verbs

        found = []
        for host in self._hosts:
            end = endpoint.Endpoint()
            found.append((end, end.open(host.device, address(host, version), host.driver)))
        return found

    def trial(self, version):
        """Returns a trial between the ends."""
        return Trial(self._benches[version])

    def close(self):
        """Releases the endpoints."""
        for bench in self._benches.values():
            bench.abandon()


@contextlib.contextmanager
def ends(topology):
    """Yields the endpoints of a topology."""
    found = Ends(topology)
    try:
        yield found
    finally:
        found.close()


def forge(topology, stranger, version, transports):
    """Has a stranger send packets to its victim. Returns {name: errno}."""
    destination = address(topology.hosts[stranger.victim], version)
    return send_as(stranger, version, destination, forging.datagrams(transports, stranger.seen[version], destination))


def send_as(stranger, version, destination, datagrams):
    """Has a stranger send datagrams to an address. Returns {name: errno}."""

    def body():
        return forging.send_all(version, stranger.sources[version], destination, datagrams, stranger.device)

    inside = privilege.aside if stranger.is_root else privilege.unprivileged
    return inside(body, (lambda: forging.enter(stranger.namespace),))


def drops(host):
    """Returns the number of datagrams that the guard of a host has dropped."""
    return host.machine.look("statistics", host.device)["local_guard_drops"]


def check_refusal(topology, name, version, trial, make):
    """Checks that the packets of a stranger have no effect, and that the guards count them.

    `make(victim)` returns the packets.
    """
    stranger = topology.strangers[name]
    victim, guard = (trial.local, trial.remote)[stranger.victim], topology.hosts[1 - stranger.victim]
    before = drops(guard)
    found = forge(topology, stranger, version, make(victim))
    # In a VRF the sender is not told (`vrf_ip_out_direct()`, drivers/net/vrf.c).
    is_told = stranger.is_guarded and not stranger.device
    equal(f"{name}: errors", found, dict.fromkeys(found, errno.EPERM if is_told else 0))
    for side in (trial.local, trial.remote):
        for queue in (side.send_cq, side.recv_cq):
            equal(f"{name}: completions of {side.name}", side.end.poll(queue, 1, 0), [])
        equal(f"{name}: state of {side.name}", side.end.state(side.qp["id"]), "rts")
        equal(f"{name}: memory of {side.name}", side.end.verify(side.small["id"]), "")
    counts = stranger.is_guarded or stranger.is_masqueraded
    equal(f"{name}: dropped by the guard", drops(guard) - before, len(found) if counts else 0)


def exchange(trial):
    """Each side sends to a receive of the other one."""
    for side in (trial.local, trial.remote):
        trial.send("send", side=side, sge=[])
    for side in (trial.local, trial.remote):
        trial.sent("SUCCESS", side=side)
        trial.received("SUCCESS", side=side)


def attack(topology, names, version, trial):
    """Has these strangers forge requests while both sides have a receive, then responses.

    For these, each side has a request outstanding, for which the other one has no receive.
    """
    sides = (trial.local, trial.remote)
    for side in sides:
        trial.receive(side=side)
    for name in names:
        check_refusal(topology, name, version, trial, lambda v: forging.requests(v.qp["qpn"], FIRST, v.small))
    exchange(trial)
    for side in sides:
        trial.send("send", side=side, sge=[])
    for name in names:
        check_refusal(topology, name, version, trial, lambda v: forging.responses(v.qp["qpn"], FIRST + 1))
    for side in sides:
        equal(f"completions of {side.name}", side.end.poll(side.send_cq, 1, 0.3), [])
    for side in sides:
        trial.receive(side=side)
    for side in sides:
        trial.sent("SUCCESS", side=side)
        trial.received("SUCCESS", side=side)
    trial.still_works()


def control(topology, version, trial):
    """Checks that root at the first end can forge its packets: they are made in the same way."""
    root = dataclasses.replace(topology.strangers["program-1"], is_root=True)
    victim = trial.remote
    trial.send("send", side=victim, sge=[])
    trial.receive()
    qpn = victim.qp["qpn"]
    made = forging.requests(qpn, FIRST, victim.small) | forging.responses(qpn, FIRST)
    forge(topology, root, version, made)
    trial.received("SUCCESS")
    trial.sent("SUCCESS", side=victim)
    taken = victim.end.accept(trial.theirs["id"], [[4096, 64]], 64)
    equal("what arrived", taken, forging.PAYLOAD.hex())


@case(timeout=400, debug=("direct",), each=TOPOLOGIES)
def strangers(name):
    """Forged packets of strangers have no effect, while a connection between the ends works.

    As a control, root at an end sends the same packets.
    """
    with built(name) as topology, ends(topology) as bench:
        # The filter of arriving packets does not concern programs at the ends.
        others = [name for name, stranger in topology.strangers.items() if not stranger.is_guarded]
        for version in topologies.VERSIONS:
            for rp_filter in RP_FILTERS if version == 4 else RP_FILTERS[:1]:
                harness.log(f"IPv{version}, rp_filter {rp_filter}")
                topology.filter_reverse_paths(rp_filter)
                names = topology.strangers if rp_filter == 0 else others
                with bench.trial(version) as trial:
                    try:
                        attack(topology, names, version, trial)
                    except harness.Failure as why:
                        raise harness.Failure(f"IPv{version}, rp_filter {rp_filter}: {why}") from why
            with bench.trial(version) as trial:
                control(topology, version, trial)


# Gives the container's packets the host's address without connection tracking, so that fragments
# stay fragments.
STATELESS = """
flush ruleset
table inet mangle {
    chain post {
        type filter hook postrouting priority 0;
        oifname "a0" ip saddr 10.2.0.2 ip saddr set 10.1.0.1
        oifname "a0" ip6 saddr fd02::2 ip6 saddr set fd01::1
    }
}
"""


@case(timeout=200, debug=False)
def fragments():
    """At least the first fragment of a datagram is dropped, so the datagram never arrives.

    With connection tracking, the fragments are reassembled before that.
    """

    def body():
        with socket.socket(socket.AF_INET if version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as sock:
            if version == 4:
                sock.setsockopt(socket.IPPROTO_IP, forging.IP_MTU_DISCOVER, 0)
            return sock.sendto(bytes(6000), (address(peer, version), ROCE_PORT))

    with built("nat") as topology:
        guard, peer = topology.hosts
        for rules in ("", STATELESS):
            guard.machine.run(f"nft -f - <<'END'\n{rules}\nEND")
            for version in topologies.VERSIONS:
                before, arrived = drops(guard), peer.machine.look("statistics", peer.device)
                equal("bytes", privilege.unprivileged(body, (lambda: forging.enter("c"),)), 6000)
                equal("dropped by the guard", drops(guard) - before, 1)
                equal("counted by the peer", peer.machine.look("statistics", peer.device), arrived)


@case(timeout=200, debug=False)
def flow_before_the_link():
    """A flowtable still forwards a connection from before the link, past the guard.

    docs/security.md says so. When the connection has left the flowtable, the guard drops it.
    """
    if bed.here.driver != "rrxe":
        raise Skip("asks for what rrxe promises")
    with built("flowtable", driver=None) as topology, ends(topology) as bench:
        stranger = topology.strangers["masqueraded"]
        for version in topologies.VERSIONS:
            harmless = {str(number): b"x" * 64 for number in range(4)}
            send_as(stranger, version, address(topology.hosts[1], version), harmless)
        for host in topology.hosts:
            testbed.add_link(host.machine, "rrxe", host.device, host.netdev)
            for version in topologies.VERSIONS:
                testbed.wait_for_gid(host.device, address(host, version))
        for is_offloaded in (True, False):
            if not is_offloaded:
                topology.hosts[0].machine.run("nft delete table inet fast")
            for version in topologies.VERSIONS:
                with bench.trial(version) as trial:
                    trial.receive()
                    victim, before = trial.remote, drops(topology.hosts[0])
                    made = {"send": forging.requests(victim.qp["qpn"], FIRST, victim.small)["send"]}
                    forge(topology, stranger, version, made)
                    if is_offloaded:
                        trial.received("SUCCESS")
                        victim.end.accept(trial.theirs["id"], [[4096, 64]], 64)
                    else:
                        trial.quiet()
                    equal("dropped by the guard", drops(topology.hosts[0]) - before, int(not is_offloaded))


def large(rng, sides):
    """Exchanges large messages in both directions."""
    batch = traffic.Batch(rng, *sides)
    for side in sides:
        for op in ("write", "send", "read"):
            batch.add(side, op, 50_000)
    batch.run()


@case(timeout=300, debug=False, each=TOPOLOGIES)
def gso(name):
    """Only devices whose peer is the receiver get GSO packets with the tunnel bit."""
    rng = seeded(f"borders/gso/{name}")
    with built(name) as topology:
        for version in topologies.VERSIONS:
            with traffic.connection(topology.hosts, rng, version=version) as sides, gso_trace.traced() as seen:
                for _ in range(2):
                    large(rng, sides)
                check_gso(topology, seen())


def check_gso(topology, found):
    """Checks the GSO packets that each device was given."""
    wrong = {device: seen for device, seen in found.items() if seen.tunnelled and device not in topology.direct}
    require(not wrong, f"GSO packets with the tunnel bit: {wrong}")
    for device in topology.direct:
        seen = found.get(device)
        require(seen and seen.tunnelled, f"{device} is not given GSO packets that the peer takes whole: {found}")


# The addresses of a host that does not exist, behind a router.
FAR = topologies.addresses(7, 2)

# Changes to the namespace `r` behind the veth `a0`-`r0`, or to the veth, after which packets of `a`
# may leave `r` by the network card `card`; the commands that take them back; and whether `a` still
# sends GSO packets after the change. Rules for packets that leave `a0` see each packet alone.
CHANGES = {
    "address": (
        ["ip -n r addr del {0}/32 dev lo", "ip -n r addr del {1}/128 dev lo"],
        ["ip -n r addr add {0}/32 dev lo", "ip -n r addr add {1}/128 dev lo"],
        True,
    ),
    "bridge": (
        ["ip -n r link add br0 type bridge", "ip -n r link set br0 up", "ip -n r link set r0 master br0"],
        ["ip -n r link set r0 nomaster"],
        True,
    ),
    "macvlan": (["ip -n r link add child link r0 type macvlan"], ["ip -n r link delete child"], True),
    "namespace": (
        ["ip netns add x", "ip -n r link set r0 netns x", "ip -n x link set r0 up"],
        ["ip -n x link set r0 netns r", "ip -n r link set r0 up"],
        True,
    ),
    "tc": (["tc -n r qdisc add dev r0 clsact"], ["tc -n r qdisc delete dev r0 clsact"], True),
    "tc-of-the-sender": (["tc -n a qdisc add dev a0 clsact"], ["tc -n a qdisc delete dev a0 clsact"], False),
    "nftables": (
        [
            "ip netns exec r nft 'add table netdev t; "
            'add chain netdev t in {{ type filter hook ingress device "r0" priority 0; }}\''
        ],
        ["ip netns exec r nft delete table netdev t"],
        True,
    ),
    "nftables-of-the-sender": (
        [
            "ip netns exec a nft 'add table netdev t; "
            'add chain netdev t out {{ type filter hook egress device "a0" priority 0; }}\''
        ],
        ["ip netns exec a nft delete table netdev t"],
        False,
    ),
}


class Datagrams:
    """A datagram queue pair on `dev_a`, and an address handle of the far address.

    Nobody need receive the datagrams, and the path is the same for the whole time.
    """

    def __init__(self, version, own):
        import endpoint  # only a guest has verbs

        self.end = endpoint.Endpoint()
        self.end.open("dev_a", own, "rrxe")
        pd = self.end.pd()
        self.cq = self.end.cq(64, True)
        self.qp = self.end.qp("ud", pd, self.cq, extended=True)
        self.memory = self.end.memory(pd, 4096)
        far = FAR[version]
        self.handle = self.end.ah(pd, far if version == 6 else f"::ffff:{far}")
        self.end.to_init(self.qp["id"], "ud")
        self.end.to_rtr(self.qp["id"], "ud")
        self.end.to_rts(self.qp["id"], "ud")

    def send(self):
        """Sends datagrams that form a GSO packet."""
        piece = [self.memory["address"], 1000, self.memory["lkey"]]
        request = {"op": "send", "sge": [piece], "ah": self.handle, "qpn": 0x1234}
        self.end.post_send(self.qp["id"], [{"id": number, **request} for number in range(8)])
        found = self.end.poll(self.cq, 8)
        equal("completions", [wc["status"] for wc in found], ["SUCCESS"] * 8)


@contextlib.contextmanager
def card():
    """Yields two namespaces: `a` with an RDMA device, and the router `r` with the far address.

    Without the address, the router has a route to it by `card`, which segments packets itself.
    """
    if bed.here.driver != "rrxe":
        raise Skip("asks for what rrxe promises")
    fabric = topologies.Fabric("rrxe", 4200, 0)
    try:
        fabric.add("a", "r")
        fabric.forward("r")
        fabric.join("a", "a0", "r", "r0")
        for name, number in (("a", 1), ("r", 2)):
            fabric.address(name, f"{name}0", topologies.addresses(1, number))
        router = topologies.addresses(1, 2)
        fabric.default_route("a", router)
        for via in router.values():
            fabric.ip("a", f"neigh replace {via} lladdr {fabric.mac('r', 'r0')} dev a0 nud permanent")
        fabric.ip("r", "link add card mtu 4200 type dummy", "link set card up")
        fabric.address("r", "card", topologies.addresses(7, 1))
        for far in FAR.values():
            fabric.ip("r", f"neigh replace {far} lladdr 02:00:00:00:00:02 dev card nud permanent")
        fabric.address("r", "lo", FAR, (32, 128))
        fabric.end("a", "a0", topologies.addresses(1, 1))
        for own in topologies.addresses(1, 1).values():
            testbed.wait_for_gid("dev_a", own)
        yield
    finally:
        fabric.close()
        bed.here.machine.try_run("ip netns delete x")


def sent(seen, senders):
    """Sends datagrams. Returns how many GSO packets `a0` and `card` are given, and how many of them
    have the bit."""
    for sender in senders:
        sender.send()
    found = seen()
    zero = gso_trace.Seen()
    return [dataclasses.astuple(found.get(name, zero)) for name in ("a0", "card")]


@case(timeout=200, debug=False, each=CHANGES)
def invalidated(how):
    """A path loses its tunnel bit when the receiver behind the veth changes, and gets it back."""
    change, undo, is_batched = how
    far = FAR.values()
    with card(), gso_trace.traced() as seen, contextlib.ExitStack() as stack:
        senders = [Datagrams(version, own) for version, own in topologies.addresses(1, 1).items()]
        for sender in senders:
            stack.callback(sender.end.close)
        for turn in range(2):
            (packets, bits), _ = sent(seen, senders)
            require(packets == bits == len(senders), f"turn {turn}: {bits} of {packets} have the bit at first")
            if turn == 0:
                for command in change:
                    bed.here.machine.run(command.format(*far))
                (packets, bits), (_, on_card) = sent(seen, senders)
                equal("GSO packets with the bit after the change", [bits, on_card], [0, 0])
                equal("GSO packets after the change", packets, len(senders) if is_batched else 0)
                for command in undo:
                    bed.here.machine.run(command.format(*far))


@case(timeout=200, debug=False)
def network_card():
    """GSO packets that a router passes to a network card have no tunnel bit."""
    with card(), gso_trace.traced() as seen, contextlib.ExitStack() as stack:
        for command in CHANGES["address"][0]:
            bed.here.machine.run(command.format(*FAR.values()))
        senders = [Datagrams(version, own) for version, own in topologies.addresses(1, 1).items()]
        for sender in senders:
            stack.callback(sender.end.close)
        equal("GSO packets of both devices, and those with the bit", sent(seen, senders), [(2, 0), (2, 0)])


def run():
    """Runs the suite without this machine's own device, which is restored afterwards."""
    return bed.run_without_device()
