# SPDX-License-Identifier: GPL-2.0
"""The cases of the data suites, for any two endpoints."""

import contextlib
import os
import random

import harness
import traffic
from harness import case
from traffic import Batch, Side, boundary_lengths, connect, random_batches

# The operations of each case of `boundaries`.
BOUNDARIES = {
    "send": ("send", "send-imm"),
    "write": ("write", "write-imm"),
    "read": ("read",),
    "atomic": ("cmp-swap", "fetch-add"),
}

KINDS = {"classic": False, "extended": True}


def seeded(name):
    """Returns the random generator of a case.

    RRXE_SEED selects data and requests other than the default.
    """
    seed = f"{os.environ.get('RRXE_SEED', 'rrxe')}/{name}"
    harness.log(f"seed {seed}")
    return random.Random(seed)


class Ends:
    """Two endpoints, each with the result of `Endpoint.open`.

    `make()` creates them on first use, and again after a failed case.
    """

    def __init__(self, make):
        self._make = make
        self._made = None

    def get(self):
        """Returns the endpoints."""
        if self._made is None:
            self._made = self._make()
        return self._made

    def abandon(self):
        """Releases the endpoints, which may be in any state."""
        for end, _ in self._made or ():
            with contextlib.suppress(Exception):
                end.leave()
        self._made = None


def declare(make, core=("classic-mtu-1024", "extended-mtu-4096")):
    """Declares the cases.

    `make()` creates two endpoints; `core` names the mixes that the debug kernel has time for.
    """
    ends = Ends(make)

    def pair(kind, extended):
        # rdma_rxe's provider miscounts the bytes of a list in ibv_wr_set_sge_list and
        # ibv_wr_set_inline_data_list (rdma-core 56.1).
        return [Side(end, info, kind, extended and info["driver"] != "rdma_rxe") for end, info in ends.get()]

    def with_pair(kind, extended, mtu, rng, body):
        try:
            left, right = pair(kind, extended)
            mtu = min(mtu, left.info["mtu"], right.info["mtu"])
            connect(left, right, mtu, rng)
            body(left, right, mtu)
            left.destroy()
            right.destroy()
        except BaseException:
            ends.abandon()
            raise

    @case(timeout=400, each=BOUNDARIES)
    def boundaries(ops):
        rng = seeded(f"boundaries/{ops[0]}")

        def body(left, right, mtu):
            for length in boundary_lengths(mtu):
                for op in ops:
                    batch = Batch(rng, left, right)
                    for side in (left, right):
                        batch.add(side, op, length)
                    batch.run()
                if ops == BOUNDARIES["atomic"] and length > 64:
                    break

        with_pair("rc", False, 1024, rng, body)

    @case(timeout=400, debug=("extended",), each=KINDS)
    def inline(extended):
        """All inline lengths, through both posting interfaces."""
        rng = seeded(f"inline/{extended}")

        def body(left, right, mtu):
            for length in (0, 1, 2, 3, 4, 7, 8, 15, 16, 63, 64, 65, 127, 128, 200, 255, traffic.INLINE):
                batch = Batch(rng, left, right)
                for op in ("send", "write", "send-imm", "write-imm"):
                    batch.add(left, op, length, inline=True)
                    batch.add(right, op, length, inline=True)
                batch.run()

        with_pair("rc", extended, 1024, rng, body)

    @case(timeout=500, debug=False, each={op: op for op in ("send", "write", "read")})
    def longest(op):
        """Messages of 8 MiB, and slightly shorter ones, in both directions at once."""
        rng = seeded(f"longest/{op}")

        def body(left, right, mtu):
            for length in (traffic.LONGEST, traffic.LONGEST - 4097):
                batch = Batch(rng, left, right, large=True)
                batch.add(left, op, length)
                batch.add(right, op, length)
                batch.run()

        with_pair("rc", False, 4096, rng, body)

    @case(
        timeout=600,
        debug=core,
        each={f"{name}-mtu-{mtu}": (extended, mtu) for name, extended in KINDS.items() for mtu in (256, 1024, 4096)},
    )
    def anything(what):
        """Random operations, sizes and scatter lists, several in flight, in both directions."""
        extended, mtu = what
        rng = seeded(f"anything/{extended}/{mtu}")
        count = 20 if harness.debug_kernel() else 60
        with_pair("rc", extended, mtu, rng, lambda left, right, mtu: random_batches(rng, left, right, mtu, count))

    @case(timeout=400, debug=("extended",), each=KINDS)
    def datagrams(extended):
        """Random UD messages (SEND only) of up to one MTU, in both directions."""
        rng = seeded(f"datagrams/{extended}")

        def body(left, right, mtu):
            handles = {
                id(left): left.end.ah(left.pd, right.info["gid"]),
                id(right): right.end.ah(right.pd, left.info["gid"]),
            }
            random_batches(rng, left, right, mtu, 20 if harness.debug_kernel() else 60, handles)
            left.end.drop(handles[id(left)])
            right.end.drop(handles[id(right)])

        with_pair("ud", extended, 4096, rng, body)

    @case(timeout=400)
    def many_queue_pairs():
        """Eight connections in turn, each posting while the requests of the others are in
        flight."""
        rng = seeded("many")
        try:
            pairs = []
            for index in range(8):
                left, right = pair("rc", index % 2 == 1)
                mtu = min((256, 512, 1024, 4096)[index % 4], left.info["mtu"], right.info["mtu"])
                connect(left, right, mtu, rng)
                pairs.append((left, right, mtu))
            for _ in range(4):
                batches = []
                for left, right, mtu in pairs:
                    batch = Batch(rng, left, right)
                    for side in (left, right):
                        for op in rng.sample(traffic.OPS, 3):
                            batch.add(side, op, traffic.some_length(rng, mtu, 24 * 1024))
                    batches.append(batch)
                for batch in batches:
                    batch.post()
                for batch in batches:
                    batch.check()
            for left, right, _ in pairs:
                left.destroy()
                right.destroy()
        except BaseException:
            ends.abandon()
            raise
