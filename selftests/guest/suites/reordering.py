# SPDX-License-Identifier: GPL-2.0
"""A wire that lets a quarter of the packets overtake the others, between two hosts (netem)."""

import contextlib

import data_cases
import netem
import testbed
import traffic
from harness import case

bed = testbed.Bed()

ATOMICS = ("fetch-add", "cmp-swap")

# How far a packet can overtake.
DELAYS = {"20us": "20us", "50us": "50us", "200us": "200us"}


@case(timeout=400, debug=("50us",), each=DELAYS)
def any_operations(delay):
    """Random operations in both directions, with every byte compared; no queue pair fails."""
    rng = data_cases.seeded(f"reordering/{delay}")
    made = bed.endpoints()
    # rdma_rxe (7.2) takes an acknowledgement that overtakes the response to an atomic operation for
    # that response, and completes the request without a result.
    drivers = [info["driver"] for _, info in made]
    ops = [op for op in traffic.OPS if op not in ATOMICS or "rdma_rxe" not in drivers]
    try:
        left, right = (traffic.Side(end, info, "rc", False) for end, info in made)
        mtu = min(1024, left.info["mtu"], right.info["mtu"])
        traffic.connect(left, right, mtu, rng)
        with netem.wire((bed.here, bed.peer), f"delay {delay} reorder 25% 50%"):
            traffic.random_batches(rng, left, right, mtu, 9, ops=ops)
        left.destroy()
        right.destroy()
    finally:
        for end, _ in made:
            with contextlib.suppress(Exception):
                end.leave()


def run():
    """Runs the suite."""
    return bed.run()
