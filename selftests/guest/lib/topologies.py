# SPDX-License-Identifier: GPL-2.0
"""Networks of namespaces on this machine, each with two ends and with strangers.

The ends are the namespaces of a connection: the first is usually `a`, the second `b`. Strangers are
places from which packets can be forged. Device names are unique in a topology, so that a trace,
which knows no namespaces, tells the devices apart.

    with topologies.TOPOLOGIES["nat"]() as topology:
        left, right = topology.hosts
"""

import contextlib
import dataclasses
import glob

import machine
import testbed
from harness import wait_until

# The two versions of IP. The addresses of a place are a mapping from these to texts.
VERSIONS = (4, 6)

# Names of the namespaces of a topology.
NAMESPACES = ("a", "b", "c", "r", "w", "x")


def addresses(segment, number):
    """Returns the addresses of a host on a segment. Both numbers are small."""
    return {4: f"10.{segment}.0.{number}", 6: f"fd{segment:02d}::{number}"}


@dataclasses.dataclass(frozen=True)
class Stranger:
    """A program that sends packets with the numbers of a connection, without being one of its ends.

    `sources` are the addresses that its socket is bound to, and `seen` those that the victim sees.
    `victim` is the index of the end that the packets go to.
    """

    namespace: str
    victim: int
    sources: dict
    seen: dict
    # The device that its socket is bound to.
    device: str | None = None
    # It runs as root: it has given itself the peer's address, or may send raw packets.
    is_root: bool = False
    # Its own namespace has a device, whose guard refuses its datagrams (EPERM).
    is_guarded: bool = False
    # The masquerading host drops its packets, and counts them.
    is_masqueraded: bool = False


@dataclasses.dataclass
class Topology:
    """A network: its ends, its strangers by name, and the devices with special rights.

    `direct` has the devices of veth pairs whose other end is the receiver. Only these may send GSO
    packets that a socket takes whole.
    """

    hosts: list
    strangers: dict
    direct: frozenset
    namespaces: list

    def filter_reverse_paths(self, value):
        """Sets the sysctl rp_filter of each device in each namespace."""
        for name in self.namespaces:
            with machine.Local(namespace=name).inside():
                for path in glob.glob("/proc/sys/net/ipv4/conf/*/rp_filter"):
                    with open(path, "w", encoding="ascii") as file:
                        file.write(str(value))


class Fabric:
    """Namespaces being joined to a topology."""

    def __init__(self, driver, mtu, rp_filter):
        self._driver = driver
        self._mtu = mtu
        self._rp_filter = rp_filter
        self._local = machine.Local()
        self.namespaces = []
        self.hosts = []
        self.strangers = {}

    def where(self, namespace):
        """Returns the namespace as a place to run commands in."""
        return machine.Local(f"namespace {namespace}", namespace)

    def add(self, *namespaces):
        """Adds namespaces. Their addresses are valid at once, without duplicate detection."""
        self._local.batch("ip", *(f"netns add {name}" for name in namespaces))
        self.namespaces += namespaces
        for name in namespaces:
            self.ip(name, "link set lo up")
            for setting in ("all", "default"):
                self.sysctl(name, **{f"ipv6/conf/{setting}/accept_dad": 0, f"ipv4/conf/{setting}/rp_filter": self._rp_filter})

    def sysctl(self, namespace, **settings):
        """Sets sysctls, by their paths below /proc/sys/net, in a namespace."""
        with self.where(namespace).inside():
            for path, value in settings.items():
                with open(f"/proc/sys/net/{path}", "w", encoding="ascii") as file:
                    file.write(str(value))

    def forward(self, namespace):
        """Makes a namespace a router."""
        self.sysctl(namespace, **{"ipv4/ip_forward": 1, "ipv6/conf/all/forwarding": 1})

    def ip(self, namespace, *commands):
        """Runs commands of `ip` in a namespace."""
        self._local.batch(f"ip -n {namespace}", *commands)

    def run(self, namespace, command):
        """Runs a command in a namespace; returns its output."""
        return self.where(namespace).run(command)

    def nft(self, namespace, rules):
        """Adds rules to the firewall of a namespace."""
        self.run(namespace, f"nft -f - <<'END'\n{rules}\nEND")

    def join(self, left, left_device, right, right_device):
        """Joins two namespaces by a veth pair, and sets both ends up."""
        size = f"mtu {self._mtu}"
        peer = f"peer name {right_device} {size} netns {right}"
        self._local.batch("ip", f"link add {left_device} {size} netns {left} type veth {peer}")
        self.ip(left, f"link set {left_device} up")
        self.ip(right, f"link set {right_device} up")

    def address(self, namespace, device, those, prefixes=(24, 64)):
        """Gives a device its addresses, one for each version of IP."""
        commands = [f"address add {those[v]}/{prefix} dev {device}" for v, prefix in zip(VERSIONS, prefixes)]
        self.ip(namespace, *commands)

    def default_route(self, namespace, via):
        """Routes everything to a gateway's addresses."""
        self.ip(namespace, *(f"route add default via {via[version]}" for version in VERSIONS))

    def switch(self, namespace, ports, options=""):
        """Makes a namespace a switch: a bridge with these devices as ports."""
        ups = [word for port in ports for word in (f"link set {port} master br0", f"link set {port} up")]
        self.ip(namespace, f"link add br0 mtu {self._mtu} type bridge {options}", "link set br0 up", *ups)

    def mac(self, namespace, device):
        """Returns the Ethernet address of a device."""
        return self.where(namespace).read(f"/sys/class/net/{device}/address")

    def end(self, namespace, device, those, on=None):
        """Makes a namespace an end, with these addresses, which `device` has.

        If the topology has a driver, the end gets an RDMA device over `on`, by default `device`.
        """
        name, netdev = f"dev_{namespace}", on or device
        if self._driver:
            testbed.add_link(self.where(namespace), self._driver, name, netdev)
        self.hosts.append(testbed.Host(self.where(namespace), name, self._driver, those[4], those[6], netdev))

    def stranger(self, name, namespace, victim, sources, seen=None, **more):
        """Adds a stranger, which sends to the addresses of an end."""
        self.strangers[name] = Stranger(namespace, victim, sources, seen or sources, **more)

    def impostor(self, name, namespace, device, mac):
        """Adds a stranger with the addresses of the second end, on another segment of the first.

        `mac` is the address of the first end's device on that segment.
        """
        victim, peer = ({4: host.address, 6: host.address6} for host in self.hosts)
        self.address(namespace, device, peer, (32, 128))
        for version in VERSIONS:
            self.ip(
                namespace,
                f"neigh replace {victim[version]} lladdr {mac} dev {device} nud permanent",
                f"route replace {victim[version]} dev {device} src {peer[version]}",
            )
        self.stranger(name, namespace, 0, peer, is_root=True)

    def other_segment(self):
        """Joins the first end to another host `x`, which has the second end's addresses."""
        namespace = self.namespaces[0]
        self.add("x")
        self.join(namespace, "seg0", "x", "x0")
        self.address(namespace, "seg0", addresses(4, 1))
        self.impostor("other-segment", "x", "x0", self.mac(namespace, "seg0"))

    def programs(self, *devices):
        """Adds programs without privileges in the namespaces of both ends.

        Their sockets are bound to these devices.
        """
        for number, (host, device) in enumerate(zip(self.hosts, devices or (None, None))):
            own = {4: host.address, 6: host.address6}
            where = self.namespaces[number]
            self.stranger(f"program-{number + 1}", where, 1 - number, own, device=device, is_guarded=True)

    def close(self):
        """Removes everything."""
        for host in self.hosts:
            host.machine.end_jobs()
        for host in self.hosts:
            if testbed.device_exists(host.device):
                self._local.try_run(f"rdma link delete {host.device}")
        for name in self.namespaces:
            self._local.try_run(f"ip netns delete {name}")
        wait_until("the devices are gone", lambda: not any(testbed.device_exists(host.device) for host in self.hosts))


# All topologies by name.
TOPOLOGIES = {}


def topology(build):
    """Declares a topology: a function that joins the namespaces of a fabric.

    It returns the devices of veth pairs whose other end is the receiver. The result is a context
    manager, which yields a `Topology`. Without a driver the ends have no RDMA devices.
    """

    @contextlib.contextmanager
    def made(driver="rrxe", mtu=4200, rp_filter=2):
        fabric = Fabric(driver, mtu, rp_filter)
        try:
            direct = build(fabric)
            for host in fabric.hosts if driver else ():
                for address in (host.address, host.address6):
                    testbed.wait_for_gid(host.device, address)
            yield Topology(fabric.hosts, fabric.strangers, frozenset(direct), fabric.namespaces)
        finally:
            fabric.close()

    made.__doc__ = build.__doc__
    TOPOLOGIES[build.__name__.replace("_", "-")] = made
    return made


@topology
def direct(fabric):
    """Two hosts joined by a veth pair, and a third on another segment."""
    fabric.add("a", "b")
    _two_hosts(fabric)
    fabric.programs()
    fabric.other_segment()
    return "a0", "b0"


def _two_hosts(fabric):
    """Joins the hosts `a` and `b`, which are the ends."""
    fabric.join("a", "a0", "b", "b0")
    for number, name in enumerate("ab", 1):
        fabric.address(name, f"{name}0", addresses(1, number))
        fabric.end(name, f"{name}0", addresses(1, number))


@topology
def bridge(fabric):
    """Hosts at the ports of a switch, with a program without privileges on a third."""
    fabric.add("a", "b", "w", "c")
    for number, name in enumerate("abc", 1):
        fabric.join(name, f"{name}0", "w", f"p{name}")
        fabric.address(name, f"{name}0", addresses(1, number))
    fabric.switch("w", ("pa", "pb", "pc"))
    for number, name in enumerate("ab", 1):
        fabric.end(name, f"{name}0", addresses(1, number))
    fabric.programs()
    fabric.stranger("same-segment", "c", 1, addresses(1, 3))
    fabric.other_segment()
    return ()


@topology
def trunk(fabric):
    """Hosts at the ports of a switch, in VLAN 10, with an impostor in VLAN 20.

    The first end's port is a trunk with both VLANs.
    """
    fabric.add("a", "b", "w", "x")
    for name in "abx":
        fabric.join(name, f"{name}0", "w", f"p{name}")
    fabric.switch("w", ("pa", "pb", "px"), "vlan_filtering 1 vlan_default_pvid 0")
    for name, vlan, those in (
        ("a", 10, addresses(1, 1)),
        ("b", 10, addresses(1, 2)),
        ("a", 20, addresses(2, 1)),
        ("x", 20, addresses(2, 3)),
    ):
        device = f"{name}0.{vlan}"
        fabric.run("w", f"bridge vlan add dev p{name} vid {vlan}")
        fabric.ip(name, f"link add {device} link {name}0 type vlan id {vlan}", f"link set {device} up")
        fabric.address(name, device, those)
    for number, name in enumerate("ab", 1):
        fabric.end(name, f"{name}0.10", addresses(1, number), on=f"{name}0")
    fabric.programs()
    fabric.impostor("other-vlan", "x", "x0.20", fabric.mac("a", "a0.20"))
    return ()


@topology
def container(fabric):
    """A container behind a veth of a router, a host at the router's other side, another container.

    The containers have addresses of their own.
    """
    fabric.add("c", "b", "r", "x")
    fabric.forward("r")
    for segment, name in ((1, "b"), (2, "c"), (3, "x")):
        fabric.join(name, f"{name}0", "r", f"r{name}")
        fabric.address(name, f"{name}0", addresses(segment, 2))
        fabric.address("r", f"r{name}", addresses(segment, 1))
        fabric.default_route(name, addresses(segment, 1))
    fabric.end("c", "c0", addresses(2, 2))
    fabric.end("b", "b0", addresses(1, 2))
    fabric.programs()
    fabric.stranger("other-container", "x", 1, addresses(3, 2))
    return ()


MASQUERADE = """
table inet nat {
    chain post {
        type nat hook postrouting priority srcnat;
        oifname "a0" ip saddr 10.2.0.0/24 masquerade
        oifname "a0" ip6 saddr fd02::/64 masquerade
    }
}
"""

FLOWTABLE = """
table inet fast {
    flowtable flows {
        hook ingress priority 0
        devices = { a0, ac }
    }
    chain forward {
        type filter hook forward priority 0;
        meta l4proto udp flow add @flows
    }
}
"""


def _masquerading(fabric):
    """Joins two hosts, the first of which masquerades for the container `c`."""
    fabric.add("a", "b", "c")
    _two_hosts(fabric)
    fabric.join("a", "ac", "c", "c0")
    fabric.address("a", "ac", addresses(2, 1))
    fabric.address("c", "c0", addresses(2, 2))
    fabric.default_route("c", addresses(2, 1))
    fabric.forward("a")
    fabric.nft("a", MASQUERADE)


@topology
def nat(fabric):
    """Two hosts, the first of which masquerades for a container without privileges."""
    _masquerading(fabric)
    fabric.programs()
    fabric.stranger("masqueraded", "c", 1, addresses(2, 2), addresses(1, 1), is_masqueraded=True)
    fabric.other_segment()
    return "a0", "b0"


@topology
def flowtable(fabric):
    """As `nat`, with a flowtable, which forwards packets of known flows past the firewall.

    It may take packets that `a0` receives.
    """
    _masquerading(fabric)
    fabric.nft("a", FLOWTABLE)
    fabric.programs()
    fabric.stranger("masqueraded", "c", 1, addresses(2, 2), addresses(1, 1), is_masqueraded=True)
    fabric.other_segment()
    return ("a0",)


@topology
def bond(fabric):
    """Hosts at the ports of a switch, the first by a bond of two devices."""
    fabric.add("a", "b", "w")
    for name, device in (("a", "a0"), ("a", "a1"), ("b", "b0")):
        fabric.join(name, device, "w", f"p{device}")
    fabric.switch("w", ("pa0", "pa1", "pb0"))
    fabric.ip(
        "a",
        "link add bond0 type bond mode active-backup miimon 100",
        *(f"link set {device} down" for device in ("a0", "a1")),
        *(f"link set {device} master bond0" for device in ("a0", "a1")),
        "link set bond0 up",
    )
    for number, (name, device) in enumerate((("a", "bond0"), ("b", "b0")), 1):
        fabric.address(name, device, addresses(1, number))
        fabric.end(name, device, addresses(1, number))
    fabric.programs()
    fabric.other_segment()
    return ()


def _children(fabric, kind):
    """Two hosts, the first by a child of its network device; another child is in a container."""
    fabric.add("a", "b", "c")
    fabric.join("a", "a0", "b", "b0")
    for name in ("child", "c0"):
        fabric.ip("a", f"link add {name} link a0 type {kind}")
    fabric.ip("a", "link set child up", "link set c0 netns c")
    fabric.ip("c", "link set c0 up")
    fabric.address("a", "child", addresses(1, 1))
    fabric.address("b", "b0", addresses(1, 2))
    fabric.address("c", "c0", addresses(1, 3))
    fabric.end("a", "child", addresses(1, 1), on="a0")
    fabric.end("b", "b0", addresses(1, 2))
    fabric.programs()
    # The address of the child in the container is a GID of the device below.
    fabric.stranger("container", "c", 1, addresses(1, 3), is_guarded=True)
    fabric.other_segment()
    return ()


@topology
def macvlan(fabric):
    """Two hosts, the first by a macvlan child of its device; a container has another child."""
    return _children(fabric, "macvlan mode bridge")


@topology
def ipvlan(fabric):
    """Two hosts, the first by an ipvlan child of its device; a container has another child."""
    return _children(fabric, "ipvlan mode l2")


@topology
def vrf(fabric):
    """Two hosts, the first with its device in a VRF, and a third on a segment outside the VRF.

    Sockets outside a VRF receive its packets.
    """
    fabric.add("a", "b")
    fabric.sysctl("a", **{"ipv4/udp_l3mdev_accept": 1})
    fabric.join("a", "a0", "b", "b0")
    fabric.ip("a", "link add vrf0 type vrf table 10", "link set vrf0 up", "link set a0 master vrf0")
    for number, name in enumerate("ab", 1):
        fabric.address(name, f"{name}0", addresses(1, number))
        fabric.end(name, f"{name}0", addresses(1, number))
    fabric.programs("vrf0", None)
    fabric.other_segment()
    return "a0", "b0"


@topology
def vxlan(fabric):
    """Two hosts joined by a VXLAN, with an impostor in another VXLAN of the same hosts."""
    fabric.add("a", "b", "x")
    fabric.join("a", "a0", "b", "b0")
    for number, name in enumerate("ab", 1):
        own, peer = addresses(5, number)[4], addresses(5, 3 - number)[4]
        fabric.ip(name, f"address add {own}/24 dev {name}0")
        for vni in (10, 20):
            device, ends = f"{name}x{vni}", f"local {own} remote {peer}"
            fabric.ip(name, f"link add {device} type vxlan id {vni} {ends} dev {name}0 dstport 4789")
    fabric.ip("a", "link set ax10 up", "link set ax20 up")
    fabric.ip("b", "link set bx10 up", "link set bx20 netns x")
    fabric.ip("x", "link set bx20 up")
    fabric.address("a", "ax20", addresses(2, 1))
    for number, name in enumerate("ab", 1):
        fabric.address(name, f"{name}x10", addresses(1, number))
        fabric.end(name, f"{name}x10", addresses(1, number))
    fabric.programs()
    fabric.impostor("other-vxlan", "x", "bx20", fabric.mac("a", "ax20"))
    return ()
