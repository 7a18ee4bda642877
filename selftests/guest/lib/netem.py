# SPDX-License-Identifier: GPL-2.0
"""A faulty wire: netem on RoCEv2 packets only."""

import contextlib
import re

from harness import require

# Effects on the packets that a host sends, by name.
BAD = {
    "loss-5": "loss 5%",
    "reorder-25": "delay 1ms reorder 25% 50%",
    "duplicate-5": "duplicate 5%",
    "corrupt-1": "corrupt 1%",
    "everything": "delay 1ms reorder 25% 50% loss 1% duplicate 5% corrupt 1%",
}


@contextlib.contextmanager
def wire(hosts, netem, cut=True):
    """Applies netem to the wires of these hosts, for packets to UDP port 4791, within the block.

    TCP, which programs and tests use to communicate, is not affected. A wire affects single
    packets, so tbf cuts chains and GSO packets in front of netem, unless `cut` is false.
    """
    try:
        for host in hosts:
            device = host.netdev
            longest = int(host.machine.read(f"/sys/class/net/{device}/mtu")) + 100 if cut else 1000000
            host.machine.batch(
                "tc",
                f"qdisc replace dev {device} root handle 1: prio",
                f"qdisc replace dev {device} parent 1:3 handle 30: tbf rate 10gbit burst {longest} limit 100000000",
                f"qdisc replace dev {device} parent 30:1 handle 40: netem limit 10000 {netem}",
                f"filter replace dev {device} parent 1: protocol ip prio 1 u32 "
                "match ip protocol 17 0xff match ip dport 4791 0xffff flowid 1:3",
                f"filter replace dev {device} parent 1: protocol all prio 2 u32 match u32 0 0 flowid 1:1",
            )
        yield
        for host in hosts:
            # Without packets through netem nothing was tested.
            shown = host.machine.run(f"tc -s qdisc show dev {host.netdev} parent 30:1")
            seen = re.search(r"Sent \d+ bytes (\d+) pkt \(dropped (\d+)", shown)
            require(seen and any(map(int, seen.groups())), f"netem has seen nothing: {shown}")
    finally:
        for host in hosts:
            host.machine.try_run(f"tc qdisc delete dev {host.netdev} root")


def cut_on_arrival(host):
    """Passes packets received by the host through a queue that segments GSO packets."""
    host.machine.run("ip link add ifb0 up type ifb")
    host.machine.batch(
        "tc",
        "qdisc add dev ifb0 root tbf rate 10gbit burst 4600 limit 10000000",
        f"qdisc add dev {host.netdev} ingress",
        f"filter add dev {host.netdev} parent ffff: matchall action mirred egress redirect dev ifb0",
    )
