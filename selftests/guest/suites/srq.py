# SPDX-License-Identifier: GPL-2.0
"""Shared receive queues (IBA 10.2.9), each used by many queue pairs."""

import ctypes
import errno

import data_cases
import harness
import testbed
from harness import Failure, Skip, case, equal, require, wait_until
from libibverbs import QpCap, QpInit, Verbs
from programs import both_roles
from trial import QUIET, refused

bed = testbed.Bed()

GRH = 40
MTU = 1024
SLOT = 8192  # bytes of a receive
SLOTS = 128
SENDER_BYTES = 1024 * 1024  # bytes of the sender's region
TIMEOUT = 60
# 2.56 ms (IBA 9.7.5.2.8). With less, queue pairs that retry without success take CPU time from the
# program that posts receives.
RNR_TIMER = 16

MAX_WR, LIMIT = 1, 2  # bits of enum ibv_srq_attr_mask
SRQ_RESIZE = 1 << 13  # of the device's capabilities

# The header of a ring and its words, as the driver's ABI has them.
RING_HEADER, PRODUCER, CONSUMER = 256, 0, 64


class Hosts:
    """The endpoints of both hosts, created on first use."""

    def __init__(self):
        self.ends = data_cases.Ends(bed.endpoints)

    def of(self, receiver):
        """Returns the receiver's endpoint and the other one."""
        here, peer = self.ends.get()
        return (here, peer) if receiver is bed.here else (peer, here)


hosts = Hosts()


class Shared:
    """A shared receive queue with `count` queue pairs, each with a sender on the other host.

    Tracks the expected bytes. The queue pairs' receives complete in two queues, alternately.
    """

    def __init__(self, receiver=None, kind="rc", count=4, max_wr=64, ring=None, pd_of_its_own=False, **rts):
        self._where = receiver
        self.kind = kind
        self._count = count
        self._max_wr = max_wr
        self._ring = ring
        self._own = pd_of_its_own
        self._rts = rts
        self._seed = 0

    def __enter__(self):
        (self.end, self.info), (self.remote, self.remote_info) = hosts.of(self._where or bed.here)
        end, remote = self.end, self.remote
        end.async_events()
        self.pd, self.remote_pd = end.pd(), remote.pd()
        self.srq_pd = end.pd() if self._own else self.pd
        self.memory = end.memory(self.srq_pd, SLOTS * SLOT, seed=3)
        self.source = remote.memory(self.remote_pd, SENDER_BYTES, seed=4)
        self.send_cq = remote.cq(1024)
        self.cqs = [end.cq(1024), end.cq(1024)]
        if self._ring:
            self.srq = end.srq_with_ring(self.srq_pd, self._max_wr, self._ring)
        else:
            self.srq = end.srq(self.srq_pd, self._max_wr)
        self.qps, self.senders = [], []
        for index in range(self._count):
            self.qps.append(end.qp(self.kind, self.pd, self.cqs[0], self.cqs[index % 2], srq=self.srq["id"]))
            self.senders.append(remote.qp(self.kind, self.remote_pd, self.send_cq, send_wr=256))
            self.connect(index)
        self.handle = remote.ah(self.remote_pd, self.info["gid"]) if self.kind == "ud" else None
        return self

    def connect(self, index):
        """Brings a pair of queue pairs to Ready to Send."""
        mine, theirs = (self.end, self.qps[index], self.info), (self.remote, self.senders[index], self.remote_info)
        for (end, qp, _), (_, other, info) in ((mine, theirs), (theirs, mine)):
            end.to_init(qp["id"], self.kind)
            end.to_rtr(qp["id"], self.kind, gid=info["gid"], qpn=other["qpn"], psn=7, mtu=MTU, rnr_timer=RNR_TIMER)
            end.to_rts(qp["id"], self.kind, psn=7, **(self._rts if self.kind == "rc" else {}))

    def __exit__(self, kind, value, trace):
        if kind is not None:
            hosts.ends.abandon()
            return
        try:
            equal("memory", self.end.verify(self.memory["id"]), "")
            for cq in self.cqs:
                equal("further receive completions", self.end.poll(cq, 1, 0), [])
            if self.handle:
                self.remote.drop(self.handle)
            self.remote.drop(*(qp["id"] for qp in self.senders), self.send_cq, self.source["id"], self.remote_pd)
            pds = {self.pd, self.srq_pd}
            qps = [qp["id"] for qp in self.qps if qp]
            self.end.drop(*qps, self.srq["id"], *self.cqs, self.memory["id"], *pds)
        except BaseException:
            hosts.ends.abandon()
            raise

    # Posting

    def receive(self, number, length=SLOT, lkey=None):
        """Returns a receive request, with a buffer that depends on its number."""
        at = self.memory["address"] + number % SLOTS * SLOT
        return {"id": number, "sge": [[at, length, self.memory["lkey"] if lkey is None else lkey]]}

    def post(self, *numbers, **more):
        """Posts receives."""
        self.end.post_srq(self.srq["id"], [self.receive(number, **more) for number in numbers])

    def send(self, index, length, at=0, op="send", **more):
        """Sends `length` bytes to a queue pair; returns the seed of their data."""
        self._seed += 1
        request = {"id": index, "op": op, "sge": [[self.source["address"] + at, length, self.source["lkey"]]], **more}
        if self.kind == "ud":
            request.update(ah=self.handle, qpn=self.qps[index]["qpn"])
        self.remote.do(
            [
                ["put", [self.source["id"], [[at, length]], self._seed]],
                ["post_send", [self.senders[index]["id"], [request]]],
            ]
        )
        return self._seed

    # Completions

    def sent(self, *statuses):
        """Checks the senders' completions, in any order."""
        found = self.remote.poll(self.send_cq, len(statuses), TIMEOUT * harness.slowness())
        equal("send completions", sorted(wc["status"] for wc in found), sorted(statuses))

    def one(self, index):
        """Returns the next receive completion of a queue pair."""
        found = self.end.poll(self.cqs[index % 2], 1, TIMEOUT * harness.slowness())
        equal("receive completions", len(found), 1)
        equal("queue pair of the completion", found[0]["qpn"], self.qps[index]["qpn"])
        return found[0]

    def placed(self, wc, seed, length):
        """Checks a successful receive completion and expects its data in memory."""
        header = GRH if self.kind == "ud" else 0
        equal("status", wc["status"], "SUCCESS")
        equal("bytes", wc["len"], length + header)
        at = wc["id"] % SLOTS * SLOT
        if header:
            self.end.accept(self.memory["id"], [[at, header]], header)
        self.end.expect(self.memory["id"], [[at + header, length]], seed, length)

    def arrives(self, index, length, number):
        """Sends a message to a queue pair and checks that it fills this receive."""
        seed = self.send(index, length)
        wc = self.one(index)
        equal("receive", wc["id"], number)
        self.placed(wc, seed, length)
        self.sent("SUCCESS")

    def flow(self, messages, on_receive=None):
        """Sends messages, [queue pair, length] each, and checks that they arrive in order per QP.

        `on_receive(number)` is called after each. Returns the receives in order of completion.
        """
        wanted, at = {}, 0
        for index, length in messages:
            seed = self.send(index, length, at)
            wanted.setdefault(self.qps[index]["qpn"], []).append((seed, length))
            at += length
        taken = []
        numbers = {qp["qpn"]: index for index, qp in enumerate(self.qps)}

        def take_all(side, cq):
            found = self.end.poll(cq, 16, 0)
            for wc in found:
                equal("completion queue", numbers[wc["qpn"]] % 2, side)
                self.placed(wc, *wanted[wc["qpn"]].pop(0))
                taken.append(wc["id"])
                if on_receive:
                    on_receive(wc["id"])
            return len(found)

        def arrived():
            while any([take_all(side, cq) for side, cq in enumerate(self.cqs)]):
                pass
            return len(taken) == len(messages)

        wait_until(f"{len(messages)} messages arrive", arrived, 4 * TIMEOUT)
        self.sent(*["SUCCESS"] * len(messages))
        return taken

    def events(self, *wanted):
        """Checks the asynchronous events, in any order."""
        found = []

        def come():
            found.extend(self.end.async_events(1))
            return len(found) >= len(wanted)

        if wanted:
            wait_until("events", come, TIMEOUT)
        found.extend(self.end.async_events(QUIET))
        equal("events", sorted(found), sorted(wanted))

    def state(self, index, wanted):
        """Waits until a queue pair of the receiver is in this state."""
        wait_until(f"state {wanted}", lambda: self.end.state(self.qps[index]["id"]) == wanted)

    def quiet(self):
        """Checks that no receive completes."""
        for cq in self.cqs:
            equal("receive completions", self.end.poll(cq, 1, QUIET), [])


def rrxe_only():
    """Skips the case for other drivers: it accesses a ring of rrxe."""
    if bed.here.driver != "rrxe":
        raise Skip("the ring is rrxe's")


# Traffic


@both_roles(bed, timeout=300, each={"rc": "rc", "uc": "uc", "ud": "ud"})
def traffic(receiver, sender, kind):
    """Many messages of random size to eight queue pairs at once.

    Each fills one receive and completes in the queue of its queue pair.
    """
    rng = data_cases.seeded(f"srq/{kind}")
    with Shared(receiver, kind, count=8, max_wr=64) as s:
        for _ in range(1 if harness.debug_kernel() else 3):
            s.post(*range(64))
            top = MTU if kind == "ud" else SLOT
            messages = [(rng.randrange(8), rng.choice((0, 1, 63, 64, 1000, top, rng.randrange(top)))) for _ in range(64)]
            taken = s.flow(messages)
            equal("receives used", sorted(taken), list(range(64)))


@both_roles(bed, timeout=300)
def write_with_immediate(receiver, sender):
    """WRITE with immediate consumes a receive, and its completion has the length written."""
    with Shared(receiver) as s:
        target = s.end.memory(s.pd, 4096, seed=9)
        s.post(5)
        seed = s.send(2, 3000, op="write-imm", imm=77, rkey=target["rkey"], raddr=target["address"])
        wc = s.one(2)
        equal("completion", (wc["id"], wc["op"], wc["len"], wc["imm"]), (5, "recv-write-imm", 3000, 77))
        s.sent("SUCCESS")
        s.end.expect(target["id"], [[0, 3000]], seed, 3000)
        equal("target", s.end.verify(target["id"]), "")
        s.end.drop(target["id"])


@both_roles(bed, timeout=600)
def flood(receiver, sender):
    """Thirty-two queue pairs get far more messages than receives are posted; all arrive (E-01)."""
    rng = data_cases.seeded("srq/flood")
    with Shared(receiver, count=32, max_wr=16) as s:
        s.post(*range(16))
        count = 100 if harness.debug_kernel() else 300
        messages = [(rng.randrange(32), rng.randrange(2500)) for _ in range(count)]
        s.flow(messages, on_receive=s.post)


@case()
def order_of_receives():
    """Receives are consumed in the order of posting, by any queue pair."""
    with Shared() as s:
        s.post(*range(10))
        for number in range(10):
            s.arrives(number * 3 % 4, 100 + number, number)


# Limit


@case()
def limit_event():
    """An armed limit raises one event when fewer receives are left, and no second (G-29)."""
    with Shared() as s:
        s.post(*range(10))
        s.end.modify_srq(s.srq["id"], LIMIT, limit=7)
        equal("limit", s.end.query_srq(s.srq["id"])["limit"], 7)
        for number in range(3):
            s.arrives(number, 10, number)
        s.events()
        s.arrives(3, 10, 3)
        s.events("SRQ_LIMIT_REACHED")
        equal("limit", s.end.query_srq(s.srq["id"])["limit"], 0)
        s.arrives(0, 10, 4)
        s.events()
        # A limit above the number of receives posted raises the event with the next message.
        s.end.modify_srq(s.srq["id"], LIMIT, limit=20)
        s.events()
        s.arrives(1, 10, 5)
        s.events("SRQ_LIMIT_REACHED")
        s.end.modify_srq(s.srq["id"], LIMIT, limit=4)
        s.end.modify_srq(s.srq["id"], LIMIT, limit=0)
        s.arrives(1, 10, 6)
        s.events()


@case()
def limit_of_datagrams():
    """The limit event with UD, on several queue pairs."""
    with Shared(kind="ud") as s:
        s.post(*range(6))
        s.end.modify_srq(s.srq["id"], LIMIT, limit=5)
        s.arrives(0, 10, 0)
        s.events()
        s.arrives(1, 10, 1)
        s.events("SRQ_LIMIT_REACHED")


@case()
def limit_refused():
    """A limit above the queue's size, and unknown attributes."""
    with Shared(max_wr=16) as s:
        refused(errno.EINVAL, s.end.modify_srq, s.srq["id"], LIMIT, limit=17)
        refused(errno.EINVAL, s.end.modify_srq, s.srq["id"], 4)
        s.end.modify_srq(s.srq["id"], LIMIT, limit=16)
        refused(errno.EINVAL, s.end.modify_srq, s.srq["id"], MAX_WR | LIMIT, max_wr=8, limit=9)
        refused(errno.EINVAL, s.end.modify_srq, s.srq["id"], MAX_WR, max_wr=8)
        equal("attributes", s.end.query_srq(s.srq["id"]), {"max_wr": 16, "sge": 1, "limit": 16})


# Resizing


@case()
def resize():
    """A queue is resized up and down; posted receives stay, in order (IB_DEVICE_SRQ_RESIZE)."""
    with Shared(max_wr=8) as s:
        require(s.info["caps"] & SRQ_RESIZE, "the device does not say that it can")
        s.post(*range(8))
        for number in range(3):
            s.arrives(number, 2000, number)
        s.end.modify_srq(s.srq["id"], MAX_WR, max_wr=64)
        equal("size", s.end.query_srq(s.srq["id"])["max_wr"], 64)
        s.post(*range(8, 67))
        refused(errno.ENOMEM, s.post, 67)
        for number in range(3, 40):
            s.arrives(number % 4, 300, number)
        refused(errno.EINVAL, s.end.modify_srq, s.srq["id"], MAX_WR, max_wr=16)
        for number in range(40, 55):
            s.arrives(number % 4, 300, number)
        s.end.modify_srq(s.srq["id"], MAX_WR, max_wr=16)
        equal("size", s.end.query_srq(s.srq["id"])["max_wr"], 16)
        s.post(*range(67, 71))
        refused(errno.ENOMEM, s.post, 71)
        for number in range(55, 71):
            s.arrives(number % 4, 300, number)


@case(timeout=300)
def resize_under_traffic():
    """The ring is resized repeatedly under traffic: no message is lost or received twice."""
    rng = data_cases.seeded("srq/resize")
    sizes = (16, 64, 32, 128)
    with Shared(count=8, max_wr=16) as s:
        s.post(*range(10))
        turn = [0]

        def again(number):
            s.post(number)
            turn[0] += 1
            if turn[0] % 5 == 0:
                s.end.modify_srq(s.srq["id"], MAX_WR, max_wr=sizes[turn[0] // 5 % 4])

        # With the debug kernel, each message takes more than half a second.
        count = 60 if harness.debug_kernel() and harness.core_only() else 200
        s.flow([(rng.randrange(8), rng.randrange(3000)) for _ in range(count)], on_receive=again)


@case()
def resize_refused():
    """Resizing to zero or beyond the device's limit is refused and changes nothing."""
    with Shared(max_wr=16) as s:
        s.post(*range(4))
        for size in (0, s.info["max_srq_wr"] + 1, 2**32 - 1):
            refused(errno.EINVAL, s.end.modify_srq, s.srq["id"], MAX_WR, max_wr=size)
        equal("size", s.end.query_srq(s.srq["id"])["max_wr"], 16)
        for number in range(4):
            s.arrives(number, 100, number)


# Limits of the device


@case()
def sizes_refused():
    """Queues of size zero, or larger than the device supports."""
    with Shared() as s:
        wr, sge = s.info["max_srq_wr"], s.info["max_srq_sge"]
        for arguments in ((0, 1), (wr + 1, 1), (16, sge + 1), (2**32 - 1, 1)):
            refused_creation(s, *arguments)
        largest = s.end.srq(s.pd, wr, 1)
        require(largest["max_wr"] >= wr, f"{largest} for {wr}")
        s.end.drop(largest["id"])
        widest = s.end.srq(s.pd, 16, sge)
        equal("segments", widest["sge"], sge)
        s.end.drop(widest["id"])


def refused_creation(s, max_wr, sge):
    """Checks that a creation fails; pyverbs reports its errno only in words."""
    try:
        s.end.srq(s.pd, max_wr, sge)
    except Exception as why:
        require("Failed to create SRQ" in str(why), f"{why}")
        return
    raise Failure(f"a queue of {max_wr} receives of {sge} segments was made")


@case()
def full():
    """Posting to a full queue is refused, and works again once a receive was consumed."""
    with Shared(max_wr=16) as s:
        s.post(*range(16))
        refused(errno.ENOMEM, s.post, 16)
        s.arrives(1, 10, 0)
        s.post(16)
        refused(errno.ENOMEM, s.post, 17)
        for number in range(1, 17):
            s.arrives(number % 4, 50, number)


@case()
def too_many_segments():
    """A receive with more segments than the queue was created for is refused immediately."""
    with Shared() as s:
        piece = s.receive(0)["sge"][0]
        refused(errno.EINVAL, s.end.post_srq, s.srq["id"], [{"id": 1, "sge": [piece, piece]}])
        s.post(2)
        s.arrives(0, 10, 2)


@case()
def scattered():
    """Receives with several segments, some of them empty."""
    with Shared() as s:
        wide = s.end.srq(s.pd, 16, 4)
        qp = s.end.qp("rc", s.pd, s.cqs[0], srq=wide["id"])
        s.end.drop(s.qps[0]["id"])
        s.qps[0] = qp
        s.remote.modify(s.senders[0]["id"], ("STATE",), state="reset")
        s.connect(0)
        base, key = s.memory["address"], s.memory["lkey"]
        pieces = [[base + 8000, 1000, key], [base, 0, key], [base + 4096, 1, key], [base + 10, 900, key]]
        s.end.post_srq(wide["id"], [{"id": 1, "sge": pieces}])
        seed = s.send(0, 1800)
        equal("receive", s.one(0)["id"], 1)
        s.end.expect(s.memory["id"], [[8000, 1000], [4096, 1], [10, 900]], seed, 1800)
        s.sent("SUCCESS")
        s.end.drop(qp["id"], wide["id"])
        s.qps[0] = None


# Empty queues


@case()
def empty():
    """A message without a posted receive is refused until one is posted (E-01)."""
    with Shared() as s:
        seed = s.send(1, 3000)
        s.quiet()
        s.post(4)
        s.placed(s.one(1), seed, 3000)
        s.sent("SUCCESS")


@case()
def empty_for_long():
    """The sender gives up after the allowed number of retries; the receiver keeps working."""
    with Shared(rnr_retry=1) as s:
        s.send(1, 100)
        s.sent("RNR_RETRY_EXC_ERR")
        s.post(0)
        s.arrives(2, 100, 0)


@case(each={"uc": "uc", "ud": "ud"})
def empty_unreliable(kind):
    """A UC or UD message without a posted receive is dropped silently (E-12)."""
    with Shared(kind=kind) as s:
        s.send(0, 100)
        s.sent("SUCCESS")
        s.quiet()
        s.post(3)
        s.arrives(1, 100, 3)


# Errors


@case()
def last_wqe_reached():
    """A queue pair that enters Error raises one event and consumes no receive (J-15)."""
    with Shared() as s:
        s.post(*range(3))
        s.end.modify(s.qps[1]["id"], ("STATE",), state="error")
        s.events("QP_LAST_WQE_REACHED")
        s.end.modify(s.qps[1]["id"], ("STATE",), state="error")
        s.events()
        s.quiet()
        for number, index in enumerate((0, 2, 3)):
            s.arrives(index, 100, number)
        # Back through Reset; the next error raises another event.
        for end, qp in ((s.end, s.qps[1]), (s.remote, s.senders[1])):
            end.modify(qp["id"], ("STATE",), state="reset")
        s.connect(1)
        s.post(3)
        s.arrives(1, 100, 3)
        s.end.modify(s.qps[1]["id"], ("STATE",), state="error")
        s.events("QP_LAST_WQE_REACHED")


@case()
def last_wqe_without_receives():
    """The event is raised even with an empty queue, and without a connection."""
    with Shared() as s:
        fresh = s.end.qp("rc", s.pd, s.cqs[0], srq=s.srq["id"])
        s.end.to_init(fresh["id"])
        s.end.modify(fresh["id"], ("STATE",), state="error")
        s.events("QP_LAST_WQE_REACHED")
        s.end.drop(fresh["id"])


@case()
def half_a_message():
    """A partly filled receive is flushed by the queue pair that consumed it."""
    with Shared() as s:
        s.post(0, 1)
        at, key = s.source["address"], s.source["lkey"]
        wide = s.remote.qp("rc", s.remote_pd, s.send_cq, sge=2)
        s.remote.drop(s.senders[2]["id"])
        s.senders[2] = wide
        s.end.modify(s.qps[2]["id"], ("STATE",), state="reset")
        s.connect(2)
        # Two packets of valid data, followed by a segment with an invalid key.
        s.remote.post_send(wide["id"], [{"id": 1, "op": "send", "sge": [[at, 2 * MTU, key], [at, MTU, 0xDEAD]]}])
        # rdma_rxe reports only that the work request ended.
        s.sent("LOC_PROT_ERR" if bed.peer.driver != "rdma_rxe" else "WR_FLUSH_ERR")
        s.end.modify(s.qps[2]["id"], ("STATE",), state="error")
        wc = s.one(2)
        equal("completion", (wc["id"], wc["status"]), (0, "WR_FLUSH_ERR"))
        s.events("QP_LAST_WQE_REACHED")
        s.end.accept(s.memory["id"], [[0, 2 * MTU]], 2 * MTU)
        s.arrives(0, 100, 1)


def fails_alone(s, status, refusal, number=0):
    """Checks that the first receive's message fails its queue pair, and no other."""
    s.send(1, 500)
    wc = s.one(1)
    equal("completion", (wc["id"], wc["status"]), (number, status))
    s.sent(refusal)
    s.state(1, "error")
    s.events("QP_LAST_WQE_REACHED")
    for index in (0, 2, 3):
        s.state(index, "rts")
    s.post(50, 51, 52)
    for offset, index in enumerate((3, 2, 0)):
        s.arrives(index, 2000, 50 + offset)


@case()
def receive_of_wrong_key():
    """A receive with an invalid key fails the queue pair that consumed it (G-16)."""
    with Shared() as s:
        s.post(0, lkey=0xDEAD00)
        fails_alone(s, "LOC_PROT_ERR", "REM_OP_ERR")


@case()
def receive_too_small():
    """A message longer than the receive that it consumes."""
    with Shared() as s:
        s.post(0, length=499)
        fails_alone(s, "LOC_LEN_ERR", "REM_INV_REQ_ERR")


@case()
def domain():
    """Receives use the protection domain of the shared queue, not that of the queue pair."""
    with Shared(pd_of_its_own=True) as s:
        s.post(*range(2))
        s.arrives(0, 3000, 0)
        s.arrives(3, 3000, 1)
        other = s.end.memory(s.pd, 4096, seed=8)
        segment = [other["address"], 4096, other["lkey"]]
        s.end.post_srq(s.srq["id"], [{"id": 2, "sge": [segment]}])
        fails_alone(s, "LOC_PROT_ERR", "REM_OP_ERR", 2)
        equal("the other domain's memory", s.end.verify(other["id"]), "")
        s.end.drop(other["id"])


# Invalid uses


@case()
def post_to_the_queue_pair():
    """A queue pair with a shared receive queue has no receive queue of its own."""
    with Shared() as s:
        refused(errno.EINVAL, s.end.post_recv, s.qps[0]["id"], [s.receive(1)])
        s.post(2)
        s.arrives(0, 10, 2)


@case()
def destroy_in_use():
    """A shared receive queue that a queue pair uses cannot be destroyed."""
    v = Verbs(bed.here.device)
    pd = v.make("ibv_alloc_pd", v.context)
    cq = v.make("ibv_create_cq", v.context, 16, None, None, 0)
    srq = v.make("ibv_create_srq", pd, (ctypes.c_uint32 * 6)(0, 0, 16, 1, 0, 0))
    init = QpInit(None, cq.value, cq.value, srq.value, QpCap(4, 0, 1, 0, 0), 2, 1)
    qps = [v.make("ibv_create_qp", pd, ctypes.byref(init)) for _ in range(2)]
    equal("destruction in use", v.call("ibv_destroy_srq", srq), errno.EBUSY)
    for qp in qps:
        equal("destruction in use", v.call("ibv_destroy_srq", srq), errno.EBUSY)
        equal("destruction of a queue pair", v.call("ibv_destroy_qp", qp), 0)
    for what, one in (("ibv_destroy_srq", srq), ("ibv_destroy_cq", cq), ("ibv_dealloc_pd", pd)):
        equal(what, v.call(what, one), 0)
    equal("ibv_close_device", v.call("ibv_close_device", v.context), 0)


@case(timeout=300)
def churn():
    """Queues and queue pairs are created and destroyed under traffic."""
    rng = data_cases.seeded("srq/churn")
    with Shared(count=4, max_wr=32) as s:
        s.post(*range(32))

        def again(number):
            s.post(number)
            srq = s.end.srq(s.pd, rng.choice((1, 16, 1000)), rng.choice((1, 3, 8)))
            qps = [s.end.qp(kind, s.pd, s.cqs[0], srq=srq["id"]) for kind in ("rc", "ud")]
            s.end.drop(*(qp["id"] for qp in qps), srq["id"])

        s.flow([(rng.randrange(4), rng.randrange(3000)) for _ in range(100)], on_receive=again)


@case()
def program_killed():
    """A program with a shared receive queue is killed while messages to it are in flight."""
    if bed.peer.driver != bed.here.driver:
        raise Skip("the program to kill is the other host's, and that is of another driver")
    where = bed.peer.machine
    for _ in range(3):
        s = Shared(receiver=bed.peer)
        s.__enter__()
        s.post(*range(8))
        for index in range(4):
            for _ in range(8):
                s.send(index, 8000)
        require(where.look("owners"), "the program's objects are not listed")
        s.end.die()
        hosts.ends.abandon()
        wait_until("nothing is left of it", lambda: not where.look("owners"))


# A malicious program


@case()
def wild_producer():
    """A ring with an invalid producer counter becomes unusable and raises one event.

    Other queues are not affected.
    """
    rrxe_only()
    with Shared(max_wr=1024, ring=64, rnr_retry=1) as s, Shared() as other:
        other.post(*range(4))
        s.post(0)
        s.arrives(0, 100, 0)
        s.end.poke(s.srq["ring"] + PRODUCER, 1_000_000)
        s.send(1, 100)
        s.sent("RNR_RETRY_EXC_ERR")
        s.events("SRQ_ERR")
        s.send(2, 100)
        s.sent("RNR_RETRY_EXC_ERR")
        s.events()
        refused(errno.EINVAL, s.end.modify_srq, s.srq["id"], MAX_WR, max_wr=2048)
        for number in range(4):
            other.arrives(number, 3000, number)


@case()
def wild_consumer():
    """The kernel owns the consumer counter and ignores a program's changes of it."""
    rrxe_only()
    with Shared(max_wr=1024, ring=64) as s:
        s.post(*range(4))
        for number in range(4):
            s.end.poke(s.srq["ring"] + CONSUMER, 0xFFFF_FFF0 + number)
            s.arrives(number, 3000, number)
            equal("consumer", s.end.peek(s.srq["ring"] + CONSUMER), number + 1)


@case(each={"segments": (8, 4), "endless": (8, 0xFFFFFFFF), "reserved": (12, 1)})
def malformed_entry(what):
    """An invalid entry (too long, or unknown to the ABI) fails the queue pair that consumed it."""
    rrxe_only()
    offset, value = what
    with Shared(max_wr=1024, ring=64) as s:
        s.post(0)
        s.end.poke(s.srq["ring"] + RING_HEADER + offset, value)
        fails_alone(s, "LOC_QP_OP_ERR", "REM_OP_ERR")


@case()
def entries_change_while_taken():
    """A program overwrites entries continuously: its messages may fail, but nothing else does."""
    rrxe_only()
    rng = data_cases.seeded("srq/scribble")
    with Shared() as other:
        other.post(*range(4))
        with Shared(max_wr=1024, ring=64, count=8, rnr_retry=1) as s:
            s.post(*range(64))
            for index in 8 * list(range(8)):
                s.send(index, rng.randrange(3000))
                for _ in range(30):
                    entry = s.srq["ring"] + RING_HEADER + 64 * rng.randrange(64)
                    word = rng.choice((0, 1, 3, 2**31, 2**32 - 1, rng.getrandbits(32)))
                    s.end.poke(entry + 4 * rng.randrange(16), word)
            equal("ended", len(s.remote.poll(s.send_cq, 64, TIMEOUT * harness.slowness())), 64)
            s.end.accept(s.memory["id"], [[0, SLOTS * SLOT]], SLOTS * SLOT)
            for cq in s.cqs:
                s.end.poll(cq, 1024, 1)
            s.end.async_events()
        for number in range(4):
            other.arrives(number, 3000, number)


def run():
    """Runs the suite."""
    return bed.run()
