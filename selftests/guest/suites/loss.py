# SPDX-License-Identifier: GPL-2.0
"""A bad wire between two hosts (netem): no byte is wrong, and no queue pair fails.

docs/transport.md covers speed.
"""

import contextlib

import data_cases
import harness
import kernellog
import netem
import programs
import testbed
import traffic
from harness import Skip, case, equal, require

bed = testbed.Bed()

# netem's effects on the packets that each host sends.
WIRES = {
    "loss-0.1": "loss 0.1%",
    "loss-1": "loss 1%",
    "loss-5": "loss 5%",
    "reorder-25": "delay 1ms reorder 25% 50%",
    "duplicate-5": "duplicate 5%",
    "corrupt-1": "corrupt 1%",
    "everything": "delay 1ms reorder 25% 50% loss 1% duplicate 5% corrupt 1%",
    "everything-loss-5": "delay 1ms reorder 25% 50% loss 5% duplicate 5% corrupt 1%",
}

QUEUE_PAIRS = 16
# Number of times that each queue pair executes every operation.
ROUNDS = 2

# All operations of a reliable connection except SEND with invalidate, which is added with a key for
# each request.
OPS = (*traffic.OPS, "atomic-write", "flush")


def wire(words):
    """Applies netem to the wires of both hosts."""
    return netem.wire((bed.here, bed.peer), words)


@case(timeout=300, debug=("everything",), each=WIRES)
def rping(words):
    """rping, with data compared at both ends."""
    with wire(words):
        programs.rping(bed.peer, bed.here, 30, more="-S 20000", lossy=True)


@contextlib.contextmanager
def endpoints():
    """Yields an endpoint of each host."""
    made = bed.endpoints()
    try:
        yield made
    finally:
        for end, _ in made:
            with contextlib.suppress(Exception):
                end.leave()


@case(timeout=400, debug=("everything",), each=WIRES)
def anything(words):
    """Random operations of any size in both directions, with every byte compared."""
    random_operations(f"loss/{words}", words, 9)


def random_operations(seed, words, batches):
    """Executes batches of random operations over a bad wire, and compares every byte."""
    rng = data_cases.seeded(seed)
    with endpoints() as ends:
        left, right = (traffic.Side(end, info, "rc", False) for end, info in ends)
        mtu = min(1024, left.info["mtu"], right.info["mtu"])
        traffic.connect(left, right, mtu, rng)
        with wire(words):
            traffic.random_batches(rng, left, right, mtu, batches)
        left.destroy()
        right.destroy()


def opened(side, made, turn):
    """Binds the side's window again after its invalidation; returns the new key."""
    key = made["rkey"] & ~0xFF | made["rkey"] + 1 + turn & 0xFF
    side.end.bind(side.qp["id"], made["id"], side.small["id"], 0, 4096, ("remote-write",), key)
    bound = side.end.poll(side.send_cq, 1, 60 * harness.slowness())
    equal(f"{side.name}: binding", [wc["status"] for wc in bound], ["SUCCESS"])
    return key


@case(timeout=600, debug=("everything",), each=WIRES)
def queue_pairs(words):
    """Every operation on sixteen queue pairs in both directions; none fails, every byte is
    compared."""
    rng = data_cases.seeded(f"queue-pairs/{words}")
    with endpoints() as ends:
        # rdma_rxe's provider miscounts the bytes of a list in ibv_wr_set_sge_list (rdma-core 56.1).
        complete = all(info["driver"] != "rdma_rxe" for _, info in ends)
        ops = OPS if complete else traffic.OPS
        pairs = []
        for index in range(QUEUE_PAIRS):
            sides = [traffic.Side(end, info, "rc", complete, complete=complete) for end, info in ends]
            mtu = min((256, 512, 1024, 4096)[index % 4], *(info["mtu"] for _, info in ends))
            traffic.connect(*sides, mtu, rng)
            windows = [side.end.window(side.pd, 2) for side in sides] if complete else []
            pairs.append((sides, mtu, windows))
        with wire(words):
            for turn in range(ROUNDS):
                batches = []
                for sides, mtu, windows in pairs:
                    batch = traffic.Batch(rng, *sides)
                    for side in sides:
                        for op in rng.sample(ops, len(ops)):
                            batch.add(side, op, traffic.some_length(rng, mtu, 16 * 1024))
                    for side, made, other in zip(sides, windows, reversed(sides)):
                        length = traffic.some_length(rng, mtu, 16 * 1024)
                        batch.add(other, "send-inv", length, key=opened(side, made, turn))
                    batches.append(batch)
                for batch in batches:
                    batch.prepare()
                for batch in batches:
                    batch.send()
                for batch in batches:
                    batch.check()
        for sides, _, windows in pairs:
            for side in sides:
                equal(f"state of a queue pair of {side.name}", side.end.state(side.qp["id"]), "rts")
            for side, made in zip(sides, windows):
                side.end.drop(made["id"])
            for side in sides:
                side.destroy()


@case(timeout=400, debug=False)
def strict():
    """One host recovers by plain go-back-N (strict_recovery=1), the other one selectively.

    Random operations in both directions, with every byte compared.
    """
    if bed.here.driver != "rrxe":
        raise Skip("only rrxe has two recovery modes")
    with testbed.parameters_of(bed.here, "strict_recovery=1"):
        random_operations("loss/strict", WIRES["everything"], 5)


@case(debug=False)
def invalid_recovery():
    """The module does not load with an invalid value of `strict_recovery`, and the kernel log names
    the parameter."""
    here = bed.here
    if here.driver != "rrxe":
        raise Skip("only rrxe has two recovery modes")
    testbed.delete_link(here.machine, here.device)
    testbed.unload(here.machine, "rrxe")
    try:
        since = kernellog.place()
        refused = here.machine.try_run("insmod /guest/rrxe/rrxe.ko strict_recovery=quick")
        require(refused.status != 0, "the module was loaded with strict_recovery=quick")
        told = kernellog.lines_since(since)
        require("invalid for parameter `strict_recovery'" in told, f"the kernel log has no reason: {told}")
        found = here.machine.try_run("modinfo /guest/rrxe/rrxe.ko").output
        require("strict_recovery:Recover losses" in found, f"modinfo says {found}")
    finally:
        testbed.bring_up(here)


def run():
    """Runs the suite."""
    return bed.run()
