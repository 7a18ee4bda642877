# SPDX-License-Identifier: GPL-2.0
"""The time after which a queue pair detects a dead peer.

The clock of this guest counts instructions, so that the limits do not depend on the machine.
"""

import contextlib
import time

import testbed
from harness import Skip, case, equal, log, require
from traffic import Side

bed = testbed.Bed()

# The code of the acknowledge timeout, and the number of retries.
TIMES = {"14-7": (14, 7), "16-3": (16, 3), "18-5": (18, 5), "8-7": (8, 7)}
RECOVERIES = {"selective": 0, "strict": 1}

# The shortest acknowledge timeout of rrxe in seconds (MIN_ACK_TIMEOUT in
# drivers/rrxe/core/requester/mod.rs).
SHORTEST = 0.004


@contextlib.contextmanager
def recovering(recovery):
    """Loads rrxe with this recovery mode, and yields two hosts."""
    if bed.here.driver != "rrxe":
        raise Skip("rrxe promises these times")
    with testbed.loaded_with(bed.here.machine, f"strict_recovery={RECOVERIES[recovery]}"):
        with testbed.namespaces(("rrxe", "rrxe")) as hosts:
            yield hosts


@contextlib.contextmanager
def dead_peer(hosts, timeout, retries):
    """Yields the side of a connection whose other side has been destroyed."""
    import endpoint  # only a guest has verbs

    ends = [endpoint.Endpoint() for _ in hosts]
    try:
        infos = [end.open(host.device, host.address, host.driver) for host, end in zip(hosts, ends)]
        sides = [Side(end, info, "rc", False) for end, info in zip(ends, infos)]
        for side, other in (sides, sides[::-1]):
            qp = side.qp["id"]
            side.end.to_init(qp, "rc")
            side.end.to_rtr(qp, "rc", gid=other.info["gid"], qpn=other.qp["qpn"])
            side.end.to_rts(qp, "rc", timeout=timeout, retry=retries)
        target = sides[1].small
        sides[1].destroy()
        yield sides[0], target
        sides[0].destroy()
    finally:
        for end in ends:
            with contextlib.suppress(Exception):
                end.leave()


def write(side, target):
    """Posts a WRITE to the other side's region."""
    piece = [side.small["address"], 64, side.small["lkey"]]
    request = {"id": 1, "op": "write", "sge": [piece], "rkey": target["rkey"], "raddr": target["address"]}
    side.end.post_send(side.qp["id"], [request])


@case(timeout=300, each={f"{recovery}-{name}": (recovery, *times) for recovery in RECOVERIES for name, times in TIMES.items()})
def noticed(how):
    """A WRITE fails between (retries + 1) timeouts and 1.5 times that."""
    recovery, code, retries = how
    timeout = max(SHORTEST, 4.096e-6 * (1 << code))
    with recovering(recovery) as hosts, dead_peer(hosts, code, retries) as (side, target):
        began = time.monotonic()
        write(side, target)
        found = side.end.poll(side.send_cq, 1, 60)
        took = (time.monotonic() - began) / timeout
        log(f"{took:.2f} timeouts of {timeout * 1000:.1f} ms")
        equal("completions", [wc["status"] for wc in found], ["RETRY_EXC_ERR"])
        least = retries + 1
        require(least <= took <= 1.5 * least, f"after {took:.2f} timeouts, and {retries} retries")


@case(timeout=300, each={recovery: recovery for recovery in RECOVERIES})
def never_without_a_timer(recovery):
    """With the timeout code 0 a WRITE does not fail."""
    with recovering(recovery) as hosts, dead_peer(hosts, 0, 7) as (side, target):
        write(side, target)
        equal("completions", side.end.poll(side.send_cq, 1, 5), [])


def run():
    """Runs the suite."""
    return bed.run_without_device()
