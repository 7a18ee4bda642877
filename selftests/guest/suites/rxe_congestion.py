# SPDX-License-Identifier: GPL-2.0
"""Congestion with rdma_rxe at the other end, which does not support congestion management.

Its marked packets still cause CNPs, which must not harm it.
"""

import contextlib
import random

import testbed
from counted import read
from harness import case, equal, require
from traffic import Batch
from trial import Bench, Trial

bed = testbed.Bed()
bench = Bench(bed.endpoints)

# Counters of rdma_rxe for failed connections.
TROUBLES = ("retry_exceeded_err", "retry_rnr_exceeded_err", "link_downed")


@contextlib.contextmanager
def every_packet_marked(where):
    """Marks all RoCE packets that leave this host within the block, even if not ECN-capable."""
    where.run("tc qdisc add dev eth0 root handle 1: prio")
    try:
        where.run(
            "tc filter add dev eth0 parent 1: protocol ip u32 match ip dport 4791 0xffff"
            " action pedit ex munge ip tos set 3 retain 3 pipe csum ip"
        )
        yield
    finally:
        where.run("tc qdisc del dev eth0 root")


def _move(t, seed):
    """Exchanges requests of every kind, many packets each, with every byte compared."""
    batch = Batch(random.Random(seed), t.local, t.remote)
    for side in (t.local, t.remote):
        for op in ("send", "write", "read", "fetch-add"):
            batch.add(side, op, 30_000)
    batch.run()


@case(timeout=300)
def marked_by_the_way():
    """L-02, L-03: rdma_rxe drops received CNPs; all data is correct, and no connection fails."""
    with Trial(bench) as t:
        _move(t, 1)
        before, theirs = read(bed.here), read(bed.peer)
        with every_packet_marked(bed.peer.machine):
            for seed in range(2, 6):
                _move(t, seed)
        after, theirs_after = read(bed.here), read(bed.peer)
        risen = {name: after[name] - before[name] for name in after}
        require(risen["np_ecn_marked_roce_packets"] > 200, f"marked: {risen}")
        require(0 < risen["np_cnp_sent"] <= risen["np_ecn_marked_roce_packets"], f"notifications: {risen}")
        equal("notifications from rdma_rxe", (risen["rp_cnp_handled"], risen["rp_cnp_ignored"]), (0, 0))
        harmed = {name: theirs_after[name] - theirs[name] for name in TROUBLES}
        equal("what rdma_rxe has counted", harmed, dict.fromkeys(TROUBLES, 0))
        equal("states", [side.end.state(side.qp["id"]) for side in (t.local, t.remote)], ["rts", "rts"])


def run():
    """Runs the suite."""
    return bed.run()
