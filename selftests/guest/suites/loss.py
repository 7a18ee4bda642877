# SPDX-License-Identifier: GPL-2.0
"""A bad wire between two hosts (netem): no byte wrong, no queue pair lost, whatever it does. How fast
is another question: docs/transport.md."""

import contextlib
import re

import data_cases
import programs
import testbed
import traffic
from harness import case, require

bed = testbed.Bed()

# What netem does to the packets that each host sends.
WIRES = {
    "loss-0.1": "loss 0.1%",
    "loss-1": "loss 1%",
    "loss-5": "loss 5%",
    "reorder-25": "delay 1ms reorder 25% 50%",
    "duplicate-5": "duplicate 5%",
    "corrupt-1": "corrupt 1%",
    "everything": "delay 1ms reorder 25% 50% loss 1% duplicate 5% corrupt 1%",
}


@contextlib.contextmanager
def wire(netem):
    """Both hosts' wires as netem makes them. TCP, by which the hosts talk, goes another way."""
    hosts = (bed.here, bed.peer)
    try:
        for host in hosts:
            host.machine.run("tc qdisc replace dev eth0 root handle 1: prio")
            host.machine.run(f"tc qdisc replace dev eth0 parent 1:3 handle 30: netem limit 10000 {netem}")
            host.machine.run(
                "tc filter replace dev eth0 parent 1: protocol ip prio 1 u32 "
                "match ip protocol 17 0xff match ip dport 4791 0xffff flowid 1:3"
            )
            host.machine.run("tc filter replace dev eth0 parent 1: protocol all prio 2 u32 match u32 0 0 flowid 1:1")
        yield
        for host in hosts:
            # Otherwise nothing was tested.
            shown = host.machine.run("tc -s qdisc show dev eth0 parent 1:3")
            sent = re.search(r"Sent \d+ bytes (\d+) pkt", shown)
            require(sent and int(sent.group(1)) > 0, f"netem has seen nothing: {shown}")
    finally:
        for host in hosts:
            host.machine.try_run("tc qdisc delete dev eth0 root")


@case(timeout=300, debug=("everything",), each=WIRES)
def rping(netem):
    """rping, both ends comparing."""
    with wire(netem):
        programs.rping(bed.peer, bed.here, 30, more="-S 20000")


@case(timeout=400, debug=("everything",), each=WIRES)
def anything(netem):
    """Any operations of any sizes, by both sides at once; every byte compared."""
    import endpoint  # only a guest has verbs

    rng = data_cases.seeded(f"loss/{netem}")
    here, peer = bed.here, bed.peer
    mine, theirs = endpoint.Endpoint(), endpoint.Peer(peer.address)
    left = traffic.Side(mine, mine.open(here.device, here.address, here.driver), "rc", False)
    right = traffic.Side(theirs, theirs.open(peer.device, peer.address, peer.driver), "rc", False)
    try:
        mtu = min(1024, left.info["mtu"], right.info["mtu"])
        traffic.connect(left, right, mtu, rng)
        with wire(netem):
            traffic.random_batches(rng, left, right, mtu, 9)
        left.destroy()
        right.destroy()
    finally:
        for end in (mine, theirs):
            with contextlib.suppress(Exception):
                end.leave()


def run():
    """Run the suite."""
    return bed.run()
