# SPDX-License-Identifier: GPL-2.0
"""A test bench for invalid requests: a connection that they break, and an unaffected second one.

A `Trial` has a fresh pair of queue pairs, `local` (here) and `remote` (the other host). On exit it
checks that the memory of both ends is as expected and that the witness still transfers data in both
directions. The witness is a separate connection between the same devices that lives through all
trials.
"""

import random

import harness
from harness import Failure, equal, require
from traffic import Batch, Side, connect

# Time limit in seconds for error completions; they normally come immediately.
TIMEOUT = 30

# Seconds to watch for an unexpected event.
QUIET = 1


class Bench:
    """Both endpoints and the witness."""

    def __init__(self, make):
        self._make = make
        self._ends = None
        self._witness = None
        self._rng = random.Random("bench")

    def ends(self):
        """Returns the endpoints, created on first use."""
        if self._ends is None:
            self._ends = self._make()
            sides = [Side(end, info, "rc", False) for end, info in self._ends]
            connect(*sides, 1024, self._rng)
            self._witness = sides
        return self._ends

    def check_witness(self):
        """Checks that the witness still works, from both ends and with all kinds of request."""
        batch = Batch(self._rng, *self._witness)
        for side in self._witness:
            for op in ("send", "write", "read", "fetch-add"):
                batch.add(side, op, 3000)
        try:
            batch.run()
        except Failure as why:
            raise Failure(f"an uninvolved connection was harmed: {why}") from why

    def abandon(self):
        """Releases the endpoints after a failure, so that new ones are created."""
        for end, _ in self._ends or ():
            try:
                end.leave()
            except Exception as why:
                harness.log(f"letting go of an endpoint: {why}")
        self._ends = self._witness = None


class Trial:
    """A pair of queue pairs, brought to Ready to Send if `connected`.

    `flags` are further access flags of both regions.
    """

    def __init__(self, bench, kind="rc", connected=True, rtr=None, rts=None, access=None, extended=False, flags=()):
        self._bench = bench
        self._kind = kind
        self._extended = extended
        self._connected = connected
        self._rtr = rtr or {}
        self._rts = rts or {}
        self._access = access or {}
        self._flags = flags

    def __enter__(self):
        self.ends = self._bench.ends()
        for end, _ in self.ends:
            end.async_events()
        self.local, self.remote = (
            Side(end, info, self._kind, self._extended, flags=self._flags) for end, info in self.ends
        )
        self.mine, self.theirs = self.local.small, self.remote.small
        if self._connected:
            self.connect()
        return self

    def connect(self):
        """Brings both to Ready to Send, with the attributes given to the constructor."""
        for side, other in ((self.local, self.remote), (self.remote, self.local)):
            qp = side.qp["id"]
            side.end.to_init(qp, self._kind, **self._access)
            side.end.to_rtr(qp, self._kind, gid=other.info["gid"], qpn=other.qp["qpn"], psn=5, **self._rtr)
            side.end.to_rts(qp, self._kind, psn=5, **self._rts)

    def __exit__(self, kind, value, trace):
        if kind is not None:
            self._bench.abandon()
            return
        try:
            for side in (self.local, self.remote):
                found = side.end.verify(side.small["id"])
                require(not found, f"memory of {side.name} was touched: {found}")
            self.local.destroy()
            self.remote.destroy()
            self._bench.check_witness()
        except BaseException:
            self._bench.abandon()
            raise

    def segment(self, offset=0, length=64, lkey=None, side=None):
        """Returns a segment of a side's region (by default the local one's)."""
        region = (side or self.local).small
        return [region["address"] + offset, length, region["lkey"] if lkey is None else lkey]

    def send(self, op, side=None, number=1, sge=None, offset=0, rkey=None, raddr=None, **more):
        """Posts a request (by default of the local side); RDMA targets `offset` of the other
        region."""
        side = side or self.local
        other = self.remote if side is self.local else self.local
        request = {"id": number, "op": op, "sge": [self.segment(side=side)] if sge is None else sge, **more}
        if op not in ("send", "send-imm") and "ah" not in more:
            request["rkey"] = other.small["rkey"] if rkey is None else rkey
            request["raddr"] = other.small["address"] + offset if raddr is None else raddr
        side.end.post_send(side.qp["id"], [request])

    def receive(self, number=100, sge=None, side=None):
        """Posts a receive (by default of the remote side)."""
        side = side or self.remote
        sge = [self.segment(4096, 4096, side=side)] if sge is None else sge
        side.end.post_recv(side.qp["id"], [{"id": number, "sge": sge}])

    def completions(self, side, cq, count):
        """Returns `count` completions and any surplus one: [id, status] each."""
        found = side.end.poll(cq, count, TIMEOUT * harness.slowness())
        found += side.end.poll(cq, 1, 0)
        return [[wc["id"], wc["status"]] for wc in found]

    def sent(self, *wanted, side=None):
        """Checks the send completions (by default of the local side): statuses of requests 1, 2,
        …"""
        side = side or self.local
        found = self.completions(side, side.send_cq, len(wanted))
        equal(f"send completions of {side.name}", found, [[i + 1, status] for i, status in enumerate(wanted)])

    def received(self, *wanted, side=None):
        """Checks the receive completions (by default of the remote side): statuses of receives 100,
        101, …"""
        side = side or self.remote
        found = self.completions(side, side.recv_cq, len(wanted))
        equal(f"receive completions of {side.name}", found, [[i + 100, status] for i, status in enumerate(wanted)])

    def quiet(self, side=None):
        """Checks that a side (by default the remote one) gets no receive completion."""
        side = side or self.remote
        equal(f"receive completions of {side.name}", side.end.poll(side.recv_cq, 1, QUIET), [])

    def states(self, local, remote):
        """Waits until both queue pairs are in these states."""
        for side, wanted in ((self.local, local), (self.remote, remote)):
            harness.wait_until(
                f"{side.name} is in state {wanted}", lambda: side.end.state(side.qp["id"]) == wanted, 10
            )

    def events(self, *wanted, side=None):
        """Checks the asynchronous events of a side (by default the remote one)."""
        side = side or self.remote
        equal(f"events of {side.name}", side.end.async_events(5 if wanted else 0), list(wanted))

    def still_works(self):
        """Checks that the trial's own connection still works."""
        batch = Batch(random.Random(1), self.local, self.remote)
        for side in (self.local, self.remote):
            batch.add(side, "send", 2000)
            batch.add(side, "read", 2000)
        batch.run()


def refused(number, what, *arguments, **named):
    """Checks that the call fails with this errno."""
    try:
        what(*arguments, **named)
    except Exception as why:
        code = getattr(why, "error_code", None)
        if code is None:
            raise
        equal("errno", code, number)
        return
    raise Failure("the call succeeded")
