# SPDX-License-Identifier: GPL-2.0
"""The interface and the network namespace that a packet or a path belongs to.

Covers strangers on other interfaces of a device, links above links, VRFs, and containers that share
the device of their host by a macvlan or ipvlan child of its network device.
"""

import contextlib
import errno
import os
import socket

import counted
import data_cases
import kernellog
import packets
import privilege
import testbed
import topologies
import traffic
from harness import Failure, Skip, case, equal, require, wait_until
from machine import Local
from packets import ROCE_PORT, bth
from programs import rping
from topologies import addresses
from trial import Bench, Trial

bed = testbed.Bed()

BOTH = {"ipv4": 4, "ipv6": 6}

# The initial PSN of a trial's queue pairs.
FIRST = 5

PAYLOAD = bytes(range(64))

SOURCE_PORT = 0xC123


@contextlib.contextmanager
def fabric(mtu=4200, rp_filter=0):
    """Yields a fabric of namespaces, which is removed afterwards."""
    if bed.here.driver != "rrxe":
        raise Skip("asks for what rrxe promises")
    made = topologies.Fabric("rrxe", mtu, rp_filter)
    try:
        yield made
    finally:
        made.close()


def address_of(host, version):
    """Returns the address of a host."""
    return host.address if version == 4 else host.address6


@contextlib.contextmanager
def trial(hosts, version, kind="rc"):
    """Yields a trial between two hosts."""
    import endpoint  # only a guest has verbs

    def make():
        ends = [endpoint.Endpoint() for _ in hosts]
        return [(end, end.open(host.device, address_of(host, version), "rrxe")) for end, host in zip(ends, hosts)]

    bench = Bench(make)
    try:
        with Trial(bench, kind) as t:
            yield t
    finally:
        bench.abandon()


def forge(namespace, version, source, destination, transport):
    """Sends a packet from a namespace, which is root of its own machine."""
    with Local(namespace=namespace).inside():
        sock = socket.socket(socket.AF_INET if version == 4 else socket.AF_INET6, socket.SOCK_DGRAM)
    with sock:
        if version == 4:
            sock.setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER, IP_PMTUDISC_DO
        sock.bind((source, SOURCE_PORT))
        made = packets.datagram(transport, source, destination, SOURCE_PORT)
        sock.sendto(made, (destination, ROCE_PORT))


# The other interface, the version of IP, rp_filter, and whether the stack lets the packet through.
STRANGERS = {
    "vlan-ipv4": ("trunk", 4, 0, True),
    "vlan-ipv4-strict": ("trunk", 4, 1, False),
    "vlan-ipv4-loose": ("trunk", 4, 2, True),
    "vlan-ipv6": ("trunk", 6, 0, True),
    "vxlan-ipv4": ("vxlan", 4, 0, True),
    "vxlan-ipv6": ("vxlan", 6, 0, True),
    "macvlan-ipv4": ("macvlan", 4, 0, True),
    "bond-ipv6": ("bond", 6, 0, True),
}


@case(timeout=400, each=STRANGERS)
def stranger(how):
    """A packet with the peer's addresses that comes through another interface is discarded.

    The queue pair that it names counts it.
    """
    name, version, rp_filter, is_let_through = how
    if bed.here.driver != "rrxe":
        raise Skip("asks for what rrxe promises")
    with topologies.TOPOLOGIES[name](rp_filter=rp_filter) as topology:
        topology.filter_reverse_paths(rp_filter)
        (stranger_there,) = [one for one in topology.strangers.values() if one.is_root]
        with trial(topology.hosts, version) as t:
            victim = topology.hosts[0]
            t.receive(side=t.local)
            with counted.rise(victim, rx_roce_discard_pkts=int(is_let_through)):
                transport = bth(packets.SEND_ONLY, t.local.qp["qpn"], FIRST) + PAYLOAD
                forge(
                    stranger_there.namespace,
                    version,
                    stranger_there.sources[version],
                    address_of(victim, version),
                    transport,
                )
                t.quiet(side=t.local)
            # The receive is still available to the peer.
            t.send("send", side=t.remote, sge=[])
            t.sent("SUCCESS", side=t.remote)
            t.received("SUCCESS", side=t.local)
            t.states("rts", "rts")


@case(timeout=400, each=BOTH)
def datagrams(version):
    """A UD queue pair accepts packets only from interfaces in the GID table of its device.

    It counts those of an interface without a device.
    """
    with topologies.TOPOLOGIES["trunk"](rp_filter=0) as topology, fabric() as more:
        host, peer = topology.hosts
        more.add("z")
        more.join("a", "stray0", "z", "z0")
        more.address("a", "stray0", addresses(7, 1))
        more.address("z", "z0", addresses(7, 2))
        destination = address_of(host, version)
        for number in (4, 6):
            more.ip("z", f"route add {address_of(host, number)} via {addresses(7, 1)[number]}")
            more.ip("a", f"route replace {addresses(2, 3)[number]} dev a0.20")
        with trial([host, peer], version, "ud") as t:
            transport = bth(packets.UD | packets.SEND_ONLY, t.local.qp["qpn"], FIRST) + packets.deth(packets.QKEY, 77) + PAYLOAD
            t.receive(side=t.local)
            with counted.rise(host, rx_roce_discard_pkts=1):
                forge("z", version, addresses(7, 2)[version], destination, transport)
                t.quiet(side=t.local)
            # VLAN 20 is in the GID table.
            forge("x", version, addresses(2, 3)[version], destination, transport)
            t.received("SUCCESS", side=t.local)
            written = t.local.end.accept(t.mine["id"], [[4096, 40 + 64]], 40 + 64)
            equal("payload", written[80:], PAYLOAD.hex())


# Commands that build an interface above {dev}, of the end {own} of two.
ABOVE = {
    "macvlan": ["link add top link {dev} type macvlan mode bridge"],
    "vxlan": ["link add top type vxlan id 10 local 10.1.0.{own} remote 10.1.0.{peer} dev {dev} dstport 4789"],
    "macsec": [
        "link add link {dev} top address 02:00:00:00:00:0{own} type macsec sci 000000000000000{own} encrypt on",
        "macsec add top tx sa 0 pn 1 on key 00 0000000000000000000000000000000{own}",
        "macsec add top rx sci 000000000000000{peer}",
        "macsec add top rx sci 000000000000000{peer} sa 0 pn 1 on key 01 0000000000000000000000000000000{peer}",
    ],
    "bridge": ["link add top type bridge", "link set {dev} master top"],
    "bond": ["link add top type bond mode active-backup", "link set {dev} down", "link set {dev} master top", "link set {dev} up"],
}

ORDERS = {f"{kind}-{order}": (kind, order) for kind in ABOVE for order in ("lower-first", "upper-first", "lower-only")}


@case(timeout=400, each=ORDERS)
def above(how):
    """rping by the address of an interface above another one, both with a link.

    The connection manager listens on the first device that has the address.
    """
    kind, order = how
    with fabric() as f:
        f.add("a", "b")
        f.join("a", "a0", "b", "b0")
        for own, name in enumerate("ab", 1):
            f.sysctl(name, **{"ipv4/conf/all/arp_ignore": 1})
            f.address(name, f"{name}0", addresses(1, own))
            made = [command.format(dev=f"{name}0", own=own, peer=3 - own) for command in ABOVE[kind]]
            f.ip(name, *made, "link set top up")
            f.address(name, "top", addresses(3, own))
        hosts = []
        for own, name in enumerate("ab", 1):
            where = f.where(name)
            lower, upper = (f"low_{name}", f"{name}0"), (f"upp_{name}", "top")
            links = {"lower-first": (lower, upper), "upper-first": (upper, lower), "lower-only": (lower,)}[order]
            for device, netdev in links:
                testbed.add_link(where, "rrxe", device, netdev)
            those = addresses(3, own)
            hosts.append(testbed.Host(where, links[0][0], "rrxe", those[4], those[6], "top"))
            for device, _ in links:
                for address in those.values():
                    testbed.wait_for_gid(device, address)
        try:
            one, two = hosts
            for server, client in ((one, two), (two, one)):
                for address in (server.address, server.address6):
                    rping(server, client, 5, address)
        finally:
            for device in ("low_a", "upp_a", "low_b", "upp_b"):
                if testbed.device_exists(device):
                    testbed.delete_link(f.where(device[-1]), device)


@contextlib.contextmanager
def in_vrf(is_in=True):
    """Yields two hosts. The first one's device is in a VRF, or will be."""
    with fabric() as f:
        f.add("a", "b")
        f.join("a", "a0", "b", "b0")
        equal("sysctl", f.run("a", "sysctl -n net.ipv4.udp_l3mdev_accept").strip(), "0")
        f.sysctl("a", **{"ipv6/conf/a0/keep_addr_on_down": 1})
        f.ip("a", "link add vrf0 type vrf table 10", "link set vrf0 up")
        if is_in:
            f.ip("a", "link set a0 master vrf0")
        for number, name in enumerate("ab", 1):
            f.address(name, f"{name}0", addresses(1, number))
            f.end(name, f"{name}0", addresses(1, number))
        for host in f.hosts:
            for address in (host.address, host.address6):
                testbed.wait_for_gid(host.device, address)
        yield f, f.hosts


def exchange(hosts, version, name, rounds=1):
    """Exchanges messages between two hosts, and compares every byte."""
    rng = data_cases.seeded(name)
    with traffic.connection(hosts, rng, version=version) as sides:
        for _ in range(rounds):
            batch = traffic.Batch(rng, *sides)
            for side in sides:
                for op in ("write", "send", "read"):
                    for length in (1, 3000, 50_000):
                        batch.add(side, op, length)
            batch.run()


@case(timeout=400, each=BOTH)
def vrf(version):
    """A device in a VRF, with the default of udp_l3mdev_accept."""
    with in_vrf() as (_, (one, two)):
        exchange([one, two], version, "interfaces/vrf")
        # Packets of the host to itself pass the VRF's device.
        exchange([one, one], version, "interfaces/vrf-itself")
        rping(one, two, 5, address_of(one, version))
        # The source address says which VRF the client is in.
        rping(two, one, 5, address_of(two, version), f"-I {address_of(one, version)}")


@case(timeout=400, each=BOTH)
def vrf_joined_and_left(version):
    """The device joins the VRF and leaves it under traffic; the connection goes on."""
    with in_vrf(is_in=False) as (f, hosts):
        rng = data_cases.seeded("interfaces/vrf-moves")
        with traffic.connection(hosts, rng, version=version) as sides:

            def messages():
                batch = traffic.Batch(rng, *sides)
                for side in sides:
                    for op in ("write", "send", "read"):
                        batch.add(side, op, 50_000)
                batch.run()

            messages()
            for move in ("link set a0 master vrf0", "link set a0 nomaster") * 2:
                job = f.where("a").start(f"sleep 0.3; ip {move}")
                while job.running():
                    messages()
                equal("status", job.wait().status, 0)
                messages()


@case(timeout=400)
def vrf_is_closed():
    """The socket of a VRF ends when its last member leaves; nobody else can share the port."""
    with in_vrf() as (f, _):

        def count():
            return f.run("a", "ss -Huln sport = :4791").count("UNCONN")

        equal("sockets", count(), 4)
        for device in (None, "vrf0"):
            with f.where("a").inside(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if device:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
                try:
                    sock.bind(("", ROCE_PORT))
                except OSError as why:
                    equal("errno", why.errno, errno.EADDRINUSE)
                else:
                    raise Failure(f"a program could share the port (device {device})")
        f.ip("a", "link set a0 nomaster")
        equal("sockets after it left", count(), 2)
        f.ip("a", "link set a0 master vrf0")
        equal("sockets in the VRF again", count(), 4)
        f.ip("a", "link delete vrf0")
        equal("sockets without the VRF", count(), 2)


# The options of the child, and whether it is on the segment of its lower device.
CHILDREN = {
    "macvlan": ("macvlan mode bridge", True),
    "ipvlan-l2": ("ipvlan mode l2", True),
    "ipvlan-l3": ("ipvlan mode l3", False),
    "ipvlan-l3s": ("ipvlan mode l3s", False),
}


def add_child(f, name, kind, number):
    """Adds a child of the host's network device in a new namespace. Returns it as a host."""
    options, is_on_segment = CHILDREN[kind]
    segment = 1 if is_on_segment else 2
    f.add(name)
    # The connection manager does not tell namespaces apart: if devices in two of them have the same
    # index, it takes the neighbours of one for those of the other. In mode l3 these have different
    # Ethernet addresses, and it reports UNREACHABLE (cma.c, cma_netevent_callback()).
    f.ip("h", f"link add {name}0 link h0 netns {name} index {100 + number} type {options}")
    f.ip(name, f"link set {name}0 up")
    those = addresses(segment, number)
    f.address(name, f"{name}0", those)
    if not is_on_segment:
        f.ip(name, f"route add default dev {name}0", f"route add ::/0 dev {name}0")
    return testbed.Host(f.where(name), "dev_h", "rrxe", those[4], those[6], f"{name}0")


@contextlib.contextmanager
def shared(kind):
    """Yields a fabric, a container with a child of the host's device, and the far host."""
    with fabric() as f:
        f.add("h", "b")
        f.join("h", "h0", "b", "b0")
        f.forward("h")
        for number, name in enumerate("hb", 1):
            f.address(name, f"{name}0", addresses(1, number))
            f.end(name, f"{name}0", addresses(1, number))
        for version in (4, 6):
            network = {4: "10.2.0.0/24", 6: "fd02::/64"}[version]
            f.ip("b", f"route add {network} via {addresses(1, 1)[version]}")
        container = add_child(f, "c", kind, 3)
        far = f.hosts[1]
        for host in (container, far):
            for address in (host.address, host.address6):
                testbed.wait_for_gid(host.device, address)
        yield f, container, far


def work(container, far, kind):
    """Connections between a container and a far host, by verbs and by the connection manager."""
    for version in (4, 6):
        exchange([container, far], version, f"interfaces/shared/{kind}")
        rping(container, far, 5, address_of(container, version))
        rping(far, container, 5, address_of(far, version))


@case(timeout=600, each={kind: kind for kind in CHILDREN})
def container(kind):
    """A container uses the host's device by the address of its child."""
    with shared(kind) as (_, inner, far):
        work(inner, far, kind)


@case(timeout=600, each={kind: kind for kind in CHILDREN})
def container_with_link(kind):
    """A container has a link on its child, beside the one on the host's device."""
    with shared(kind) as (f, inner, far):
        testbed.add_link(inner.machine, "rrxe", "dev_c", inner.netdev)
        try:
            own = testbed.Host(inner.machine, "dev_c", "rrxe", inner.address, inner.address6, inner.netdev)
            for address in (own.address, own.address6):
                testbed.wait_for_gid(own.device, address)
            for version in (4, 6):
                exchange([own, far], version, f"interfaces/shared/{kind}")
            work(inner, far, kind)
        finally:
            testbed.delete_link(f.where("c"), "dev_c")


@case(timeout=600, each={kind: kind for kind in CHILDREN})
def container_deleted(kind):
    """A container is deleted under traffic of a program outside. No object of it is left.

    The program has CAP_NET_RAW over the container, so it may use its address.
    """
    import endpoint  # only a guest has verbs

    with shared(kind) as (f, inner, far):
        end, other = endpoint.Endpoint(), endpoint.Endpoint()
        rng = data_cases.seeded("interfaces/deleted")
        sides = []
        for version in (4, 6):
            those = []
            for one, host in ((end, inner), (other, far)):
                info = one.open(host.device, address_of(host, version), "rrxe")
                those.append(traffic.Side(one, info, "rc", False))
            traffic.connect(*those, 1024, rng, timeout=12, retry=2)
            sides.append(those)
        for here, there in sides:
            batch = traffic.Batch(rng, here, there)
            batch.add(here, "write", 50_000)
            batch.add(there, "read", 50_000)
            batch.run()
        f.namespaces.remove("c")
        job = f.where("h").start("sleep 0.2; ip netns delete c")
        for here, there in sides:
            statuses = []
            while not statuses or statuses[-1] == "SUCCESS":
                request = {"id": 1, "op": "write", "sge": [[here.small["address"], 4096, here.small["lkey"]]]}
                here.end.post_send(
                    here.qp["id"], [{**request, "rkey": there.small["rkey"], "raddr": there.small["address"]}]
                )
                statuses += [wc["status"] for wc in here.end.poll(here.send_cq, 1, 60)]
            equal("status at the end", statuses[-1], "RETRY_EXC_ERR")
        equal("status", job.wait().status, 0)
        gid = testbed.gid_of(inner.address)
        wait_until("the container's GID is gone", lambda: gid not in testbed.gids("dev_h"))
        # The device works on.
        exchange([f.hosts[0], far], 4, "interfaces/after")
        end.leave()
        other.leave()


@case(timeout=400, each=BOTH)
def use_of_a_gid(version):
    """A program uses a GID of another namespace only with CAP_NET_RAW over that namespace.

    Programs of that namespace need no privileges.
    """
    with shared("macvlan") as (f, inner, far):
        place = kernellog.place()

        def ready():
            import endpoint  # only a guest has verbs

            end = endpoint.Endpoint()
            info = end.open("dev_h", address_of(inner, version), "rrxe")
            pd, cq = end.pd(), end.cq()
            qp = end.qp("rc", pd, cq)["id"]
            end.to_init(qp)
            found = []
            peer = testbed.gid_of(address_of(far, version))
            for call in (lambda: end.to_rtr(qp, gid=peer, qpn=77), lambda: end.ah(pd, peer)):
                try:
                    call()
                    found.append(0)
                except Exception as why:
                    found.append(getattr(why, "error_code", None) or getattr(why, "errno", str(why)))
            return [info["gid_index"] >= 0, *found]

        def enter():
            with open("/run/netns/c", encoding="ascii") as file:
                os.setns(file.fileno())

        equal("without privileges, elsewhere", privilege.unprivileged(ready), [True, errno.EPERM, errno.EPERM])
        said = [line for line in kernellog.lines_since(place).splitlines() if "to another network namespace" in line]
        require(len(said) <= 1, f"the log says {said}")
        lines = [line for line in bed.here.machine.run("dmesg").splitlines() if "to another network namespace" in line]
        require(lines and f"user {privilege.NOBODY}: " in lines[-1], f"the log says {lines}")
        equal("without privileges, there", privilege.unprivileged(ready, (enter,)), [True, 0, 0])
        equal("root, elsewhere", privilege.aside(ready), [True, 0, 0])


@case(timeout=400, each=BOTH)
def firewall_of_a_container(version):
    """Packets between two containers of one device pass their firewalls."""
    with shared("macvlan") as (f, inner, _):
        other = add_child(f, "d", "macvlan", 4)
        for address in (other.address, other.address6):
            testbed.wait_for_gid("dev_h", address)
        exchange([inner, other], version, "interfaces/firewall")
        f.nft("d", "table inet t { chain i { type filter hook input priority 0; udp dport 4791 counter drop; }; }")
        import endpoint  # only a guest has verbs

        ends = [endpoint.Endpoint(), endpoint.Endpoint()]
        rng = data_cases.seeded("interfaces/firewall")
        sides = []
        for end, host in zip(ends, (inner, other)):
            info = end.open("dev_h", address_of(host, version), "rrxe")
            sides.append(traffic.Side(end, info, "rc", False))
        traffic.connect(*sides, 1024, rng, timeout=10, retry=1)
        here, there = sides
        request = {"id": 1, "op": "write", "sge": [[here.small["address"], 64, here.small["lkey"]]]}
        here.end.post_send(here.qp["id"], [{**request, "rkey": there.small["rkey"], "raddr": there.small["address"]}])
        found = [wc["status"] for wc in here.end.poll(here.send_cq, 1, 60)]
        equal("status", found, ["RETRY_EXC_ERR"])
        for end in ends:
            end.leave()


def clear_away():
    """Unloads the module, which fails if anything of a device is left, and loads it again."""
    if bed.here.driver == "rrxe":
        testbed.unload(bed.here.machine, "rrxe")
        testbed.load(bed.here.machine, "rrxe")


def run():
    """Runs the suite without this machine's own device, which is restored afterwards."""
    return bed.run_without_device(clear_away)
