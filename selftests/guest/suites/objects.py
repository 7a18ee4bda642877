# SPDX-License-Identifier: GPL-2.0
"""A program's objects: what several calls at once make of them, and what they cost whom."""

import contextlib
import random
import threading

import testbed
from harness import Skip, case, equal, log

bed = testbed.Bed()


@contextlib.contextmanager
def opened():
    """An endpoint, with what opening it returned."""
    import endpoint  # only a guest has verbs

    here, end = bed.here, endpoint.Endpoint()
    info = end.open(here.device, here.address, here.driver)
    try:
        yield end, info
    finally:
        end.leave()


def connect(end, info, kind, *qps):
    """Connect queue pairs to each other, from the Reset state."""
    for qp, other in zip(qps, reversed(qps)):
        end.to_init(qp["id"], kind)
        end.to_rtr(qp["id"], kind, gid=info["gid"], qpn=other["qpn"])
        end.to_rts(qp["id"], kind)


class Changing(threading.Thread):
    """Changes the state of a queue pair to one of these after the other, until a change is refused."""

    def __init__(self, end, qp, *states):
        super().__init__(daemon=True)
        self._end, self._qp, self._states = end, qp, states
        self.began = threading.Event()

    def run(self):
        import verbs_commands  # only a guest has verbs

        turn = 0
        with contextlib.suppress(OSError):
            while turn < 100_000:
                verbs_commands.modify_state(self._end, self._qp, self._states[turn % len(self._states)])
                self.began.set()
                turn += 1
        log(f"{turn} changes")


@case(timeout=240)
def error_while_changing():
    """A queue pair that fails while its program changes its state stays in the Error state (J-12): the change is
    refused, and the receives are flushed."""
    if bed.here.driver != "rrxe":
        raise Skip("the other driver is not ours to test")
    rng = random.Random(1)
    with opened() as (end, info):
        pd, cq, receives = end.pd(), end.cq(), end.cq()
        memory = end.memory(pd, 4096)
        sge = [[memory["address"], 8, memory["lkey"]]]
        victim = end.qp("rc", pd, cq, receives)
        peer = end.qp("rc", pd, cq)
        for turn in range(60):
            connect(end, info, "rc", victim, peer)
            end.post_recv(victim["id"], [{"id": 7, "sge": sge}])
            changing = Changing(end, victim["id"], "sqd", "rts")
            changing.start()
            changing.began.wait(60)
            for _ in range(rng.randrange(200)):
                pass
            # It refuses this request, and fails.
            request = {"id": 1, "op": "write", "sge": sge, "rkey": memory["rkey"] ^ 0x5A, "raddr": memory["address"]}
            end.post_send(peer["id"], [request])
            (found,) = end.poll(cq, 1, 60)
            equal("the request", found["status"], "REM_ACCESS_ERR")
            changing.join(120)
            equal(f"state in turn {turn}", end.state(victim["id"]), "error")
            (found,) = end.poll(receives, 1, 60) or [{"status": "nothing"}]
            equal("the receive", found["status"], "WR_FLUSH_ERR")
            for qp in (victim, peer):
                end.modify(qp["id"], ("STATE",), state="reset")
        end.async_events()


def run():
    """Run the suite."""
    return bed.run()
