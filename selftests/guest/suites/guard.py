# SPDX-License-Identifier: GPL-2.0
"""Local programs that send UDP datagrams to port 4791 from a device's address.

Without privileges they are refused, and no datagram arrives that could pass for the device's own.
The suite uses two namespaces with a device each.
"""

import contextlib
import ctypes
import errno
import socket
import struct

import counted
import forging
import kernellog
import packets
import privilege
import testbed
from forging import IP_MTU_DISCOVER, PAYLOAD, SOURCE_PORT, attempt, opened, send_all
from harness import Skip, case, equal, require
from packets import ROCE_PORT, aeth, bth
from trial import Bench, Trial

bed = testbed.Bed()

BOTH = {"ipv4": 4, "ipv6": 6}

# The initial PSN of a trial's queue pairs.
FIRST = 5

UDP_SEGMENT = 103  # linux/udp.h
IPV6_RTHDR = 57  # linux/in6.h
CLONE_NEWUSER = 0x10000000  # linux/sched.h


class Lab:
    """Two namespaces that the cases share; programs run in the first one."""

    def __init__(self):
        self._stack = contextlib.ExitStack()
        self._hosts = None
        self._benches = {}

    @property
    def hosts(self):
        """The hosts, created on first use."""
        if bed.here.driver != "rrxe":
            raise Skip("asks for what rrxe promises")
        if self._hosts is None:
            self._hosts = self._stack.enter_context(testbed.namespaces(("rrxe", "rrxe")))
        return self._hosts

    def addresses(self, version):
        """Returns the addresses of both hosts."""
        return [host.address if version == 4 else host.address6 for host in self.hosts]

    def trial(self, version, own=False):
        """Returns a trial between the hosts, or (`own`) of the first one with itself."""
        key = (version, own)
        if key not in self._benches:
            self._benches[key] = Bench(lambda: self._endpoints(version, own))
        return Trial(self._benches[key])

    def _endpoints(self, version, own):
        import endpoint  # only a guest has verbs

        hosts = [self.hosts[0], self.hosts[0]] if own else self.hosts
        found = []
        for host in hosts:
            end = endpoint.Endpoint()
            found.append((end, end.open(host.device, host.address if version == 4 else host.address6, "rrxe")))
        return found

    def close(self):
        """Releases all resources."""
        for bench in self._benches.values():
            bench.abandon()
        self._benches.clear()
        self._hosts = None
        self._stack.close()


lab = Lab()


def enter():
    """Enters the first namespace."""
    forging.enter("a")


def forged(qpn, source, destination):
    """Returns datagrams that a queue pair would accept as its peer's."""
    transports = {
        "send": bth(packets.SEND_ONLY, qpn, FIRST) + PAYLOAD,
        "nak": bth(packets.ACKNOWLEDGE, qpn, FIRST, ack=False) + aeth(packets.NAK_ACCESS),
        "cnp": bth(packets.CNP, qpn, 0, ack=False) + bytes(16),
    }
    return {name: packets.datagram(made, source, destination, SOURCE_PORT) for name, made in transports.items()}


def arrive(version, inside, number=0, **how):
    """Forges packets of a trial's local queue pair, sent by `inside(body, before)`.

    They must fail with the errno `number`, or arrive if that is 0.
    """
    with lab.trial(version, **how) as t:
        local, remote = (side.info["address"] for side in (t.local, t.remote))
        t.receive()
        made = forged(t.remote.qp["qpn"], local, remote)
        before = counted.read(lab.hosts[0])["local_guard_drops"]
        found = inside(lambda: send_all(version, local, remote, made if number else {"send": made["send"]}), (enter,))
        equal("errors", found, dict.fromkeys(found, number))
        if number:
            t.quiet()
            t.states("rts", "rts")
            equal("counted", counted.read(lab.hosts[0])["local_guard_drops"] - before, len(made))
            # The receive is still available to the peer.
            t.send("send", sge=[])
            t.sent("SUCCESS")
            t.received("SUCCESS")
            t.still_works()
        else:
            t.received("SUCCESS")
            equal("what arrived", t.remote.end.accept(t.theirs["id"], [[4096, 64]], 64), PAYLOAD.hex())


@case(debug=("ipv6",), each=BOTH)
def cap_net_raw(version):
    """Control: a correctly forged datagram with CAP_NET_RAW is accepted as the peer's."""
    arrive(version, privilege.aside)


@case(each=BOTH)
def refused(version):
    """A program without privileges cannot forge a request, NAK or CNP of this host."""
    arrive(version, privilege.unprivileged, errno.EPERM)


@case(each=BOTH)
def refused_to_this_host(version):
    """A program without privileges cannot forge datagrams for a queue pair of this host."""
    arrive(version, privilege.unprivileged, errno.EPERM, own=True)


def _ways(version, source, destination):
    """Sends datagrams to the port in several ways. Returns the errno of each: {name: errno}."""
    there = (destination, ROCE_PORT)
    found = {}
    with opened(version) as sock:
        found["unbound"] = attempt(lambda: sock.sendto(b"x" * 64, there))
        found["empty"] = attempt(lambda: sock.sendto(b"", there))
    with opened(version, connected=destination) as sock:
        found["connected"] = attempt(lambda: sock.send(b"x" * 64))
    with opened(version, source) as sock:
        sock.sendto(b"x" * 64, socket.MSG_MORE, there)
        found["corked"] = attempt(lambda: sock.sendto(b"x" * 64, there))
    with opened(version, source) as sock:
        sock.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 100)
        found["segments"] = attempt(lambda: sock.sendto(b"x" * 1000, there))
    with socket.socket(socket.AF_INET if version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        if version == 4:
            sock.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, 0)
        found["fragments"] = attempt(lambda: sock.sendto(b"x" * 20000, there))
    if version == 4:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
            found["mapped"] = attempt(lambda: sock.sendto(b"x" * 64, (f"::ffff:{destination}", ROCE_PORT)))
    else:
        with opened(version, source) as sock:
            # A routing header of type 4 (RFC 8754) whose only segment is the destination.
            segment = socket.inet_pton(socket.AF_INET6, destination)
            sock.setsockopt(socket.IPPROTO_IPV6, IPV6_RTHDR, struct.pack("BBBBBBH", 0, 2, 4, 0, 0, 0, 0) + segment)
            found["routing-header"] = attempt(lambda: sock.sendto(b"x" * 64, there))
    return found


@case(each=BOTH)
def all_send_paths(version):
    """All ways to send are guarded.

    Sockets are connected or corked, or send segments, fragments, to mapped addresses, or with a
    routing header.
    """
    here, peer = lab.addresses(version)
    found = privilege.unprivileged(lambda: _ways(version, here, peer), (enter,))
    equal("errors", found, dict.fromkeys(found, errno.EPERM))
    found = privilege.aside(lambda: _ways(version, here, peer), (enter,))
    equal("errors of a program with privileges", found, dict.fromkeys(found, 0))


def _new_user_namespace():
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUSER):
        raise OSError(ctypes.get_errno(), "unshare")


@case(debug=False)
def user_namespace():
    """A program that is root in its own user namespace has no privileges in the network
    namespace."""

    def body():
        _new_user_namespace()
        return send_all(4, here, peer, {"any": b"x" * 64})

    here, peer = lab.addresses(4)
    equal("errors", privilege.unprivileged(body, (enter,)), {"any": errno.EPERM})


@case(debug=False)
def opener_counts():
    """The privileges of the socket's opener count.

    A socket opened with privileges may send after they are given up. A socket opened without them
    may not, even if a privileged program uses it.
    """
    _, peer = lab.addresses(4)
    kept = []

    def with_privileges():
        kept.append(opened(4))

    def without():
        with privilege.without(privilege.CAP_NET_RAW):
            kept.append(opened(4))

    def body():
        return attempt(lambda: kept[0].sendto(b"x" * 64, (peer, ROCE_PORT)))

    equal("error", privilege.unprivileged(body, (enter, with_privileges)), 0)
    equal("error", privilege.aside(body, (enter, without)), errno.EPERM)


@case(debug=False, each=BOTH)
def other_ports(version):
    """Datagrams to other ports, and TCP to this port, are not affected."""
    here, peer = lab.addresses(version)
    family = socket.AF_INET if version == 4 else socket.AF_INET6

    def body():
        with socket.socket(family, socket.SOCK_DGRAM) as there, socket.socket(family, socket.SOCK_DGRAM) as sock:
            there.bind((here, 0))
            there.settimeout(20)
            sock.bind((here, 0))
            sock.sendto(b"hello", there.getsockname())
            arrived = there.recv(100).decode()
            others = [attempt(lambda: sock.sendto(b"x", (peer, port))) for port in (4789, 4790, 4792, 0xB712)]
        with socket.socket(family) as sock:
            sock.settimeout(20)
            return [arrived, others, attempt(lambda: sock.connect((peer, ROCE_PORT)))]

    equal("results", privilege.unprivileged(body, (enter,)), ["hello", [0] * 4, errno.ECONNREFUSED])


@case()
def log():
    """The kernel log explains the refusal, once for many datagrams."""
    _, peer = lab.addresses(4)
    since = kernellog.place()

    def body():
        with opened(4) as sock:
            return [attempt(lambda: sock.sendto(b"x" * 64, (peer, ROCE_PORT))) for _ in range(200)]

    equal("errors", set(privilege.unprivileged(body, (enter,))), {errno.EPERM})
    said = [line for line in kernellog.lines_since(since).splitlines() if "local_guard" in line]
    require(len(said) <= 1, f"{len(said)} lines")
    # Another case may have caused the message shortly before.
    all_lines = [line for line in bed.here.machine.run("dmesg").splitlines() if "local_guard=0" in line]
    require(all_lines and f"user {privilege.NOBODY} " in all_lines[-1], f"the log says {all_lines}")


@case(timeout=120)
def as_long_as_a_device():
    """The guard ends with the last device of a namespace, and returns with the next one."""
    lab.close()
    here, peer = lab.hosts

    def send():
        def body():
            return send_all(4, here.address, peer.address, {"any": b"x" * 64})["any"]

        return privilege.unprivileged(body, (enter,))

    equal("with a device", send(), errno.EPERM)
    testbed.delete_link(here.machine, here.device)
    equal("without one", send(), 0)
    testbed.add_link(here.machine, "rrxe", here.device, here.netdev)
    equal("with a device again", send(), errno.EPERM)
    lab.close()


@case(debug=False, each=BOTH)
def switched_off(version):
    """With local_guard=0, forged datagrams of a program without privileges arrive."""
    if bed.here.driver != "rrxe":
        raise Skip("a parameter of rrxe's")
    lab.close()
    with testbed.parameters_of(bed.here, "local_guard=0"):
        try:
            arrive(version, privilege.unprivileged)
        finally:
            lab.close()


def run():
    """Runs the suite."""
    return bed.run(lab.close)
