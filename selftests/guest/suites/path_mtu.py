# SPDX-License-Identifier: GPL-2.0
"""A path with a smaller MTU than a queue pair's packets.

The cause is a router's link, a route's MTU, an ICMP message of a router, or a network device whose
MTU changes. RoCE packets are never fragmented (A-13), so larger packets are lost. Requests must
then end with a completion, and the problem must end with its cause.
"""
import contextlib
import random
import re
import time

import harness
import programs
import testbed
from counted import read
from harness import case, equal, require, wait_until
from machine import Local
from traffic import Batch
from trial import Bench, Trial

bed = testbed.Bed()

# MTUs that fit packets with 4096 and with 1024 bytes of payload.
WIDE, NARROW = 4200, 1300

FAMILIES = {"ipv4": 4, "ipv6": 6}

# Sends a datagram that must not be fragmented, from which the host learns the path MTU.
PROBE = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
s = socket.socket(family, socket.SOCK_DGRAM)
level, option = (socket.IPPROTO_IPV6, 23) if ":" in sys.argv[1] else (socket.IPPROTO_IP, 10)
s.setsockopt(level, option, 2)
try:
    s.sendto(bytes(4000), (sys.argv[1], 9))
except OSError as why:
    print(why)
"""


def sh(command):
    """Runs a command on this machine."""
    return bed.here.machine.run(command)


# Namespaces a and b with a device each, and a router between them; all MTUs are wide.
SPACES = """
for name in a r b; do ip netns add $name; ip -n $name link set lo up; done
ip netns exec r sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
join() {
    ip link add v$1 mtu WIDE netns $1 type veth peer name r$1 mtu WIDE netns r
    ip netns exec $1 sysctl -qw net.ipv6.conf.v$1.accept_dad=0
    ip netns exec r sysctl -qw net.ipv6.conf.r$1.accept_dad=0
    ip -n $1 link set v$1 up
    ip -n r link set r$1 up
    ip -n $1 address add $2.$4/24 dev v$1
    ip -n $1 address add $3:$4/64 dev v$1 nodad
    ip -n r address add $2.254/24 dev r$1
    ip -n r address add $3:fe/64 dev r$1 nodad
    ip -n $1 route add default via $2.254
    ip -n $1 -6 route add default via $3:fe
}
join a 192.0.2 2001:db8:1: 1
join b 198.51.100 2001:db8:2: 2
"""
ADDRESSES = {"a": ("192.0.2.1", "2001:db8:1::1"), "b": ("198.51.100.2", "2001:db8:2::2")}


class Path:
    """The path between the two namespaces, over one version of IP."""

    def __init__(self, version):
        self.a, self.b = (_host(name) for name in "ab")
        self._version = version
        self.bench = Bench(self._open)

    def _open(self):
        import endpoint  # only a guest has verbs

        def opened(host):
            end = endpoint.Endpoint()
            return end, end.open(host.device, self.address(host), host.driver)

        return [opened(self.a), opened(self.b)]

    def address(self, host):
        """Returns the host's address of the tested version."""
        return host.address if self._version == 4 else host.address6

    def trial(self, timeout=14):
        """Returns a connection with the largest MTU.

        By default the first retry comes after 67 ms, and the last within two seconds.
        """
        return Trial(self.bench, rtr={"mtu": 4096}, rts={"timeout": timeout})

    @staticmethod
    def router(mtu):
        """Sets the MTU of the router's link to b."""
        sh(f"ip -n r link set rb mtu {mtu}")

    def widen(self):
        """Returns a command that widens the path and makes the sender forget the learned MTU."""
        net, via = ("198.51.100.0/24", "192.0.2.254") if self._version == 4 else ("2001:db8:2::/64", "2001:db8:1::fe")
        # IPv6 forgets a learned MTU when the route is replaced. (`ip -6 route flush cache` would
        # wait half a minute for an entry that stays.)
        forget = "ip -n a route flush cache" if self._version == 4 else "true"
        return (
            f"for name in a b; do ip -n $name link set v$name mtu {WIDE}; done; ip -n r link set rb mtu {WIDE};"
            f" ip -n a -{self._version} route replace {net} via {via}; {forget}"
        )

    def narrow_route(self):
        """Sets a narrow MTU on the route from a to b."""
        net, via = ("198.51.100.0/24", "192.0.2.254") if self._version == 4 else ("2001:db8:2::/64", "2001:db8:1::fe")
        sh(f"ip -n a -{self._version} route replace {net} via {via} mtu {NARROW}")


def _host(name):
    return testbed.Host(Local(f"namespace {name}", name), f"dev_{name}", bed.here.driver, *ADDRESSES[name])


_paths = {}


def _make():
    sh("set -e" + SPACES.replace("WIDE", str(WIDE)))
    for name in "ab":
        host = _host(name)
        testbed.add_link(host.machine, host.driver, host.device, f"v{name}")
        for address in (host.address, host.address6):
            testbed.wait_for_gid(host.device, address)


def _clear_away():
    for one in _paths.values():
        one.bench.abandon()
    if _paths:
        sh("rdma link delete dev_a; rdma link delete dev_b; for name in a b r; do ip netns delete $name; done")


@contextlib.contextmanager
def path(version=4):
    """Yields the path with wide MTUs, which are restored afterwards."""
    if not _paths:
        _make()
    here = _paths.setdefault(version, Path(version))
    try:
        yield here
    except BaseException:
        here.bench.abandon()
        raise
    finally:
        sh(here.widen())


def moves(t, length):
    """Transfers data of this length in both directions by WRITE, SEND and READ."""
    batch = Batch(random.Random(length), t.local, t.remote)
    for side in (t.local, t.remote):
        for op in ("write", "send", "read"):
            batch.add(side, op, length)
    batch.run()


def too_large(t):
    """Checks that a WRITE with packets that are too large fails after its retries."""
    t.send("write", sge=[t.segment(0, 4096)])
    t.sent("RETRY_EXC_ERR")
    wait_until("the queue pair is in Error", lambda: t.local.end.state(t.local.qp["id"]) == "error")


@case(timeout=240, debug=("ipv4",), each=FAMILIES)
def router(version):
    """A router's link becomes too small: packets that fit arrive, and others fail their request.

    Once the link is wide again and the host knows it, large packets pass.
    """
    with path(version) as p:
        with p.trial() as t:
            moves(t, 8192)
            p.router(NARROW)
            moves(t, 1000)
            too_large(t)
        sh(p.widen())
        with p.trial() as t:
            moves(t, 8192)


def _for_a_while(p, t):
    """Checks that too large packets arrive once the path is wide again, if retries are left."""
    batch = Batch(random.Random(7), t.local, t.remote)
    batch.add(t.local, "write", 30000)
    widening = bed.here.machine.start(f"sleep 0.5; {p.widen()}")
    batch.run()
    equal("status of the widening", widening.wait(60).status, 0)
    moves(t, 8192)


@case(timeout=240, debug=("ipv4",), each=FAMILIES)
def router_for_a_while(version):
    """The link recovers before the retries are exhausted: no request fails."""
    with path(version) as p, p.trial(timeout=18) as t:
        p.router(NARROW)
        _for_a_while(p, t)


@case(timeout=240, debug=("ipv4",), each=FAMILIES)
def route(version):
    """The sender's own route has a narrow MTU: the stack refuses larger packets, which is counted.

    A new route takes effect immediately, also for connected queue pairs.
    """
    with path(version) as p:
        with p.trial() as t:
            p.narrow_route()
            refused = read(p.a)["send_err"]
            moves(t, 1000)
            equal("packets refused", read(p.a)["send_err"], refused)
            too_large(t)
            require(read(p.a)["send_err"] > refused, "nothing was counted as not sent")
        with p.trial(timeout=18) as t:
            _for_a_while(p, t)


@case(timeout=240, debug=("ipv4",), each=FAMILIES)
def icmp(version):
    """The stack learns the path MTU from a router's ICMP message, as for other traffic."""
    with path(version) as p, p.trial() as t:
        p.router(NARROW)
        to = p.address(p.b)

        def learnt():
            p.a.machine.run(_probe(to))
            return f"mtu {NARROW}" in p.a.machine.run(f"ip -{version} route get {to}")

        wait_until("the host knows of the router's MTU", learnt)
        moves(t, 1000)
        refused = read(p.a)["send_err"]
        too_large(t)
        require(read(p.a)["send_err"] > refused, "nothing was counted as not sent")


def _probe(to):
    with open("/tmp/probe.py", "w", encoding="ascii") as file:
        file.write(PROBE)
    return f"python3 /tmp/probe.py {to}"


@case(timeout=240, each={"sender": "a", "receiver": "b"})
def netdev(name):
    """The network device's MTU becomes too small at either end, and large again."""
    with path() as p:
        with p.trial(timeout=18) as t:
            sh(f"ip -n {name} link set v{name} mtu 1500")
            _for_a_while(p, t)
        with p.trial() as t:
            sh(f"ip -n {name} link set v{name} mtu 1500")
            too_large(t)
        sh(p.widen())
        with p.trial() as t:
            moves(t, 8192)


@case(timeout=300)
def netdev_under_traffic():
    """The MTU changes repeatedly under traffic: the program continues, and its data is right."""
    with path() as p:
        port = programs.next_port()
        common = f"-a {p.b.address} -p {port} -v -V -S 30000 -C 100"
        serving = p.b.machine.start(f"exec rping -s {common}")
        wait_until("the server listens", lambda: testbed.cm_listens(p.b.machine, port))
        asking = p.a.machine.start(f"exec rping -c {common}")
        wait_until("traffic flows", lambda: asking.running() and asking.output().count("ping data") > 10)
        for name in ("a", "b", "a", "b"):
            sh(f"ip -n {name} link set v{name} mtu 1500")
            time.sleep(0.1)
            sh(f"ip -n {name} link set v{name} mtu {WIDE}")
            time.sleep(0.3)
        for end in (asking, serving):
            result = end.wait(200 * harness.slowness())
            equal("status", result.status, 0)
            require("mismatch" not in result.output, "wrong data")
        # The host must not learn the MTU of its own devices as if it were a router's, and keep it
        # for ten minutes. If a device became narrower while a packet was inside IP, the host does
        # learn it, but raises it with the device's MTU.
        for host in (p.a, p.b):
            learnt = host.machine.run("ip route show cache")
            smallest = min(map(int, re.findall(r"\bmtu (?:lock )?(\d+)", learnt)), default=WIDE)
            require(smallest >= WIDE, f"{host.machine.name} has learnt: {learnt}")


def run():
    """Runs the suite."""
    return bed.run(_clear_away)
