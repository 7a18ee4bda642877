# SPDX-License-Identifier: GPL-2.0
"""A bad wire: netem on RoCEv2 packets only."""

import contextlib
import re

from harness import require


@contextlib.contextmanager
def wire(hosts, netem):
    """Applies netem to the wires of these hosts, for packets to UDP port 4791, within the block.

    TCP, which programs and tests use to communicate, is not affected.
    """
    try:
        for host in hosts:
            device = host.netdev
            host.machine.batch(
                "tc",
                f"qdisc replace dev {device} root handle 1: prio",
                f"qdisc replace dev {device} parent 1:3 handle 30: netem limit 10000 {netem}",
                f"filter replace dev {device} parent 1: protocol ip prio 1 u32 "
                "match ip protocol 17 0xff match ip dport 4791 0xffff flowid 1:3",
                f"filter replace dev {device} parent 1: protocol all prio 2 u32 match u32 0 0 flowid 1:1",
            )
        yield
        for host in hosts:
            # Without packets through netem nothing was tested.
            shown = host.machine.run(f"tc -s qdisc show dev {host.netdev} parent 1:3")
            seen = re.search(r"Sent \d+ bytes (\d+) pkt \(dropped (\d+)", shown)
            require(seen and any(map(int, seen.groups())), f"netem has seen nothing: {shown}")
    finally:
        for host in hosts:
            host.machine.try_run(f"tc qdisc delete dev {host.netdev} root")
