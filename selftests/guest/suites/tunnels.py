# SPDX-License-Identifier: GPL-2.0
"""Links over devices without an Ethernet header: tun, WireGuard, GRE, IPIP, SIT.

The tunnels connect two namespaces of one machine through a veth.

The connection manager does not support such devices: for a RoCE device other than rdma_rxe it
accepts only Ethernet (cma_validate_port() in drivers/infiniband/core/cma.c).
"""

import contextlib
import socket

import data_cases
import testbed
import traffic
from harness import case, require, wait_until

bed = testbed.Bed()

# The command that makes each kind at an end; `own` and `peer` are the numbers of this end and of
# the other. The last word lists the versions of IP that it can carry.
KINDS = {
    "gre": ("ip link add t0 type gre local 192.0.2.{own} remote 192.0.2.{peer}", "46"),
    "gre-over-ipv6": ("ip link add t0 type ip6gre local 2001:db8::{own} remote 2001:db8::{peer}", "46"),
    "ipip": ("ip link add t0 type ipip local 192.0.2.{own} remote 192.0.2.{peer}", "4"),
    "sit": ("ip link add t0 type sit local 192.0.2.{own} remote 192.0.2.{peer}", "6"),
    "wireguard": (
        "ip link add t0 type wireguard && wg set t0 listen-port 5182{own} private-key /tmp/key.{own} "
        "peer $(wg pubkey < /tmp/key.{peer}) allowed-ips 0.0.0.0/0,::/0 endpoint 192.0.2.{peer}:5182{peer}",
        "46",
    ),
    "tun": ("modprobe tun && ip tuntap add t0 mode tun", "46"),
}

# Forwards packets between a tun device and the other end, over UDP.
RELAY = """import fcntl, os, select, socket, struct
tun = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(tun, 0x400454ca, struct.pack("16sH", b"t0", 0x1001))
wire = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
wire.bind(("192.0.2.{own}", 9999))
while True:
    for ready in select.select([tun, wire], [], [])[0]:
        if ready is wire:
            os.write(tun, wire.recv(65536))
        else:
            wire.sendto(os.read(tun, 65536), ("192.0.2.{peer}", 9999))
"""


@contextlib.contextmanager
def tunnel(kind):
    """Joins two namespaces by a tunnel with a device at each end; yields the ends."""
    command, _ = KINDS[kind]
    with testbed.namespaces(("tcp", "tcp")) as hosts:
        for number in (1, 2):
            bed.here.machine.run(f"umask 077; head -c 32 /dev/urandom | base64 > /tmp/key.{number}")
        ends = []
        for own, host in enumerate(hosts, 1):
            where = host.machine
            where.run(command.format(own=own, peer=3 - own))
            if kind == "tun":
                with open(f"/tmp/relay.{own}", "w", encoding="ascii") as file:
                    file.write(RELAY.format(own=own, peer=3 - own))
                where.start(f"exec python3 /tmp/relay.{own}")
            where.run("ip link set t0 up")
            address, address6 = f"10.57.0.{own}", f"fd57::{own}"
            where.run(f"ip address add {address6}/64 dev t0 nodad")
            where.run(f"ip address add {address}/24 dev t0")
            testbed.add_link(where, bed.here.driver, host.device, "t0")
            ends.append(testbed.Host(where, host.device, bed.here.driver, address, address6, "t0"))
        for host in ends:
            for address in (host.address, host.address6):
                testbed.wait_for_gid(host.device, address)
        wait_for_tunnel(*ends)
        yield ends


def wait_for_tunnel(one, two):
    """Sends datagrams from one end until the other one receives one.

    If both ends of WireGuard begin a handshake at the same time, neither completes, and they begin
    again 5 seconds later: several such collisions outlast the timeouts of a queue pair.
    """
    with two.machine.inside():
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with one.machine.inside():
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with receiver, sender:
        receiver.bind((two.address, 9998))
        receiver.settimeout(0.2)

        def arrives():
            sender.sendto(b"x", (two.address, 9998))
            try:
                return receiver.recv(1)
            except TimeoutError:
                return None

        wait_until("a datagram has come through the tunnel", arrives, 60)


@case(timeout=240, each={kind: kind for kind in KINDS})
def connections(kind):
    """Messages of every kind over the tunnel, with every byte compared, for each version of IP."""
    rng = data_cases.seeded(f"tunnels/{kind}")
    with tunnel(kind) as (one, two):
        guid = bed.here.machine.read(f"/sys/class/infiniband/{one.device}/node_guid")
        require(guid != "0000:0000:0000:0000", "the node GUID is zero")
        for version in KINDS[kind][1]:
            with traffic.connection([one, two], rng, version=int(version)) as sides:
                batch = traffic.Batch(rng, *sides)
                for side in sides:
                    for op in ("write", "send", "read", "write-imm"):
                        for length in (0, 1, 3000, 50_000):
                            batch.add(side, op, length)
                batch.run()


def run():
    """Runs the suite without this machine's own device, which is restored afterwards."""
    return bed.run_without_device()
