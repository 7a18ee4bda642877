# SPDX-License-Identifier: GPL-2.0
"""A bad wire between two hosts (netem): no byte wrong, no queue pair lost, whatever it does. How fast
is another question: docs/transport.md."""

import contextlib
import re

import data_cases
import harness
import programs
import testbed
import traffic
from harness import case, equal, require

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
    "everything-loss-5": "delay 1ms reorder 25% 50% loss 5% duplicate 5% corrupt 1%",
}

QUEUE_PAIRS = 16
# Times that each queue pair does everything.
ROUNDS = 2

# All that a reliable connection does; SEND with invalidate goes beside these, with a key of its own each.
OPS = (*traffic.OPS, "atomic-write", "flush")


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


@contextlib.contextmanager
def endpoints():
    """An endpoint of each host."""
    made = bed.endpoints()
    try:
        yield made
    finally:
        for end, _ in made:
            with contextlib.suppress(Exception):
                end.leave()


@case(timeout=400, debug=("everything",), each=WIRES)
def anything(netem):
    """Any operations of any sizes, by both sides at once; every byte compared."""
    rng = data_cases.seeded(f"loss/{netem}")
    with endpoints() as ends:
        left, right = (traffic.Side(end, info, "rc", False) for end, info in ends)
        mtu = min(1024, left.info["mtu"], right.info["mtu"])
        traffic.connect(left, right, mtu, rng)
        with wire(netem):
            traffic.random_batches(rng, left, right, mtu, 9)
        left.destroy()
        right.destroy()


def window(side):
    """A window on the side's region, for the other to invalidate."""
    return side.end.window(side.pd, 2)


def opened(side, made, turn):
    """Binds the side's window anew, which the invalidation before must have ended; its key."""
    key = made["rkey"] & ~0xFF | made["rkey"] + 1 + turn & 0xFF
    side.end.bind(side.qp["id"], made["id"], side.small["id"], 0, 4096, ("remote-write",), key)
    bound = side.end.poll(side.send_cq, 1, 60 * harness.slowness())
    equal(f"{side.name}: binding", [wc["status"] for wc in bound], ["SUCCESS"])
    return key


@case(timeout=600, debug=("everything",), each=WIRES)
def queue_pairs(netem):
    """Sixteen queue pairs at once, every operation, by both sides; every byte compared, and none is lost."""
    rng = data_cases.seeded(f"queue-pairs/{netem}")
    with endpoints() as ends:
        # rdma_rxe's provider counts the bytes of a list wrong in ibv_wr_set_sge_list (rdma-core 56.1).
        complete = all(info["driver"] != "rdma_rxe" for _, info in ends)
        ops = OPS if complete else traffic.OPS
        pairs = []
        for index in range(QUEUE_PAIRS):
            sides = [traffic.Side(end, info, "rc", complete, complete=complete) for end, info in ends]
            mtu = min((256, 512, 1024, 4096)[index % 4], *(info["mtu"] for _, info in ends))
            traffic.connect(*sides, mtu, rng)
            pairs.append((sides, mtu, [window(side) for side in sides] if complete else []))
        with wire(netem):
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
                    batch.post()
                for batch in batches:
                    batch.check()
        for sides, _, windows in pairs:
            for side in sides:
                equal(f"state of a queue pair of {side.name}", side.end.state(side.qp["id"]), "rts")
            for side, made in zip(sides, windows):
                side.end.drop(made["id"])
            for side in sides:
                side.destroy()


def run():
    """Run the suite."""
    return bed.run()
