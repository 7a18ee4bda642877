# SPDX-License-Identifier: GPL-2.0
"""Extended reliable connections (IBA A14).

A connection reaches all shared receive queues of its domain; each request names one.
"""

import contextlib
import ctypes
import errno
import json
import time

import data_cases
import harness
import testbed
from counted import read
from harness import Skip, case, equal, require, wait_until
from libibverbs import Verbs
from trial import QUIET, refused

bed = testbed.Bed()

MTU = 1024
SLOT = 8192
SLOTS = 64
TIMEOUT = 60
XRC = 1 << 20  # of the device's capabilities


def _make():
    import endpoint  # only a guest has verbs

    here, both = bed.here, [endpoint.Endpoint(), endpoint.Endpoint()]
    return [(end, end.open(here.device, here.address, here.driver)) for end in both]


ends = data_cases.Ends(_make)


class Connection:
    """A sender, and a receiver with two shared receive queues in one XRC domain.

    Each queue has a protection domain, a region and a completion queue of its own. `flags` are
    further access flags of the regions.
    """

    def __init__(self, flags=(), **rts):
        self._flags = flags
        self._rts = rts
        self._seed = 0

    def __enter__(self):
        import endpoint  # only a guest has verbs

        (self.end, self.info), (self.remote, _) = ends.get()
        end, remote = self.end, self.remote
        access = endpoint.ALL_ACCESS + self._flags
        end.async_events()
        self.xrcd = end.xrcd()
        self.pds, self.regions, self.cqs, self.srqs = [], [], [], []
        for index in range(2):
            self.pds.append(end.pd())
            self.regions.append(end.memory(self.pds[index], SLOTS * SLOT, access, seed=10 + index))
            self.cqs.append(end.cq(256))
            self.srqs.append(end.xrc_srq(self.pds[index], self.xrcd, self.cqs[index]))
        self.remote_pd = remote.pd()
        self.source = remote.memory(self.remote_pd, SLOTS * SLOT, access, seed=20)
        self.send_cq = remote.cq(256)
        self.sender = remote.xrc_qp(self.remote_pd, self.send_cq)
        self.target = end.xrc_qp(xrcd=self.xrcd)
        self.connect()
        return self

    def connect(self):
        """Brings both ends to Ready to Send."""
        gid = self.info["gid"]
        path = {"gid": gid, "mtu": MTU, "rq_psn": 0xFFFFF0}
        common = ("STATE", "AV", "PATH_MTU", "DEST_QPN", "RQ_PSN")
        end, qp = self.end, self.target["id"]
        end.to_init(qp)
        end.modify(
            qp,
            (*common, "MAX_DEST_RD_ATOMIC", "MIN_RNR_TIMER"),
            state="rtr",
            dest_qp_num=self.sender["qpn"],
            max_dest_rd_atomic=4,
            min_rnr_timer=5,
            **path,
        )
        end.modify(qp, ("STATE", "SQ_PSN", "TIMEOUT"), state="rts", sq_psn=0xFFFFF0, timeout=18)
        remote, qp = self.remote, self.sender["id"]
        remote.to_init(qp)
        remote.modify(qp, common, state="rtr", dest_qp_num=self.target["qpn"], **path)
        remote.to_rts(qp, psn=0xFFFFF0, rd_atomic=4, **self._rts)

    def __exit__(self, kind, value, trace):
        if kind is not None:
            ends.abandon()
            return
        try:
            for region in self.regions:
                equal("memory", self.end.verify(region["id"]), "")
            equal("memory of the sender", self.remote.verify(self.source["id"]), "")
            for cq in self.cqs:
                equal("further receive completions", self.end.poll(cq, 1, 0), [])
            self.remote.drop(self.sender["id"], self.send_cq, self.source["id"], self.remote_pd)
            self.end.drop(self.target["id"], *(srq["id"] for srq in self.srqs if srq), self.xrcd)
            self.end.drop(*self.cqs, *(region["id"] for region in self.regions), *self.pds)
        except BaseException:
            ends.abandon()
            raise

    def post(self, index, *numbers, length=SLOT):
        """Posts receives to one of the queues."""
        region = self.regions[index]
        requests = [
            {"id": number, "sge": [[region["address"] + number * SLOT, length, region["lkey"]]]} for number in numbers
        ]
        self.end.post_srq(self.srqs[index]["id"], requests)

    def send(self, index, length=100, op="send", srqn=None, number=1, to=None, at=0, **more):
        """Posts a request for one of the queues; RDMA targets its region, or that of queue `to`."""
        self._seed += 1
        source = self.source
        request = {"id": number, "op": op, "sge": [[source["address"], length, source["lkey"]]], **more}
        request["srqn"] = self.srqs[index]["number"] if srqn is None else srqn
        if not op.startswith("send"):
            target = self.regions[index if to is None else to]
            request.update(rkey=target["rkey"], raddr=target["address"] + at)
        if op != "read":
            self.remote.put(source["id"], [[0, length]], self._seed)
        self.remote.post_send(self.sender["id"], [request])
        return self._seed

    def sent(self, status="SUCCESS"):
        """Checks the sender's next completion."""
        found = self.remote.poll(self.send_cq, 1, TIMEOUT * harness.slowness())
        equal("send completion", [wc["status"] for wc in found], [status])

    def received(self, index, number, length, seed):
        """Checks the next receive completion of a queue: its number, length and data.

        It must name the target queue pair. Returns the completion.
        """
        (wc,) = self.end.poll(self.cqs[index], 1, TIMEOUT * harness.slowness()) or [None]
        require(wc, f"nothing was received by queue {index}")
        wanted = (number, "SUCCESS", length, self.target["qpn"])
        equal("receive completion", (wc["id"], wc["status"], wc["len"], wc["qpn"]), wanted)
        self.end.expect(self.regions[index]["id"], [[number * SLOT, length]], seed, length)
        return wc

    def arrives(self, index, number, length=100):
        """Sends a message to one of the queues and checks that it fills this receive."""
        seed = self.send(index, length)
        self.received(index, number, length, seed)
        self.sent()

    def fails(self, status):
        """Checks that the request fails with this status and breaks the target, but not the
        queues."""
        self.sent(status)
        wait_until("the target is in Error", lambda: self.end.state(self.target["id"]) == "error")
        for cq in self.cqs:
            equal("receive completions", self.end.poll(cq, 1, QUIET), [])
        for end, qp in ((self.end, self.target), (self.remote, self.sender)):
            end.modify(qp["id"], ("STATE",), state="reset")
        self.connect()


@case()
def traffic():
    """Messages of many sizes to two queues over one connection."""
    rng = data_cases.seeded("xrc/traffic")
    with Connection() as c:
        require(c.info["caps"] & XRC, "the device does not say that it can")
        next_number = [0, 0]
        for index in range(2):
            c.post(index, *range(40))
        for length in (0, 1, MTU, MTU + 1, 5000, SLOT, *(rng.randrange(SLOT) for _ in range(30))):
            index = rng.randrange(2)
            c.arrives(index, next_number[index], length)
            next_number[index] += 1


@case()
def on_demand():
    """The memory of both ends is paged on demand, and absent at first."""
    if bed.here.driver != "rrxe":
        raise Skip("tests what rrxe claims")
    with Connection(flags=("on-demand",)) as c:
        for index in range(2):
            c.post(index, *range(4))
            for number, length in enumerate((0, 1, MTU + 1, 5000)):
                c.arrives(index, number, length)
            region = c.regions[index]["id"]
            seed = c.send(index, 5000, "write", at=SLOT * 30)
            c.sent()
            c.end.expect(region, [[SLOT * 30, 5000]], seed, 5000)
            c.end.put(region, [[SLOT * 40, 6000]], 77)
            c.send(index, 6000, "read", at=SLOT * 40)
            c.sent()
            c.remote.expect(c.source["id"], [[0, 6000]], 77, 6000)


@case()
def remote_memory():
    """WRITE, READ and atomics, with and without a receive, in the named queue's domain."""
    with Connection() as c:
        for index in range(2):
            region = c.regions[index]["id"]
            seed = c.send(index, 5000, "write", at=7)
            c.sent()
            c.end.expect(region, [[7, 5000]], seed, 5000)
            c.post(index, 20)
            seed = c.send(index, 3000, "write-imm", at=8192, imm=99)
            (wc,) = c.end.poll(c.cqs[index], 1, TIMEOUT)
            equal("completion", (wc["id"], wc["op"], wc["len"], wc["imm"]), (20, "recv-write-imm", 3000, 99))
            c.sent()
            c.end.expect(region, [[8192, 3000]], seed, 3000)
            c.end.put(region, [[16384, 6000]], 77)
            c.send(index, 6000, "read", at=16384)
            c.sent()
            c.remote.expect(c.source["id"], [[0, 6000]], 77, 6000)
            c.end.put_number(region, 32768, 40)
            c.send(index, 8, "fetch-add", at=32768, compare=2)
            c.sent()
            c.remote.expect_number(c.source["id"], 0, 40)
            c.end.expect_number(region, 32768, 42)


@case(each={op: op for op in ("write", "read", "fetch-add")})
def key_of_another_domain(op):
    """A key is valid only for requests that name a queue of its own protection domain."""
    with Connection() as c:
        c.send(0, 8, op, to=1, **({"compare": 1} if op == "fetch-add" else {}))
        c.fails("REM_ACCESS_ERR")
        c.post(0, 0)
        c.arrives(0, 0)


@case(each={"unknown": lambda c: 0xABCDEF, "zero": lambda c: 0, "destroyed": lambda c: _destroyed(c)})
def no_such_queue(number):
    """A request that names a queue that does not exist is refused."""
    with Connection() as c:
        c.send(0, srqn=number(c))
        c.fails("REM_INV_REQ_ERR")
        c.post(0, 0)
        c.arrives(0, 0)


def _destroyed(c):
    number = c.srqs[1]["number"]
    c.end.drop(c.srqs[1]["id"])
    c.srqs[1] = None
    return number


@case()
def queue_of_another_domain():
    """A queue of another XRC domain cannot be reached."""
    with Connection() as c:
        xrcd = c.end.xrcd()
        other = c.end.xrc_srq(c.pds[0], xrcd, c.cqs[0])
        c.end.post_srq(other["id"], [{"id": 9, "sge": []}])
        c.send(0, length=0, srqn=other["number"])
        c.fails("REM_INV_REQ_ERR")
        c.end.drop(other["id"], xrcd)
        c.post(0, 0)
        c.arrives(0, 0)


@case()
def empty():
    """A sender to an empty queue gets RNR NAKs (E-01); the queue has the limit event (G-29)."""
    with Connection() as c:
        c.post(1, 0, 1)
        seed = c.send(0, 2500)
        equal("receive completions", c.end.poll(c.cqs[0], 1, QUIET), [])
        c.post(0, 3)
        c.received(0, 3, 2500, seed)
        c.sent()
        c.end.modify_srq(c.srqs[1]["id"], 2, limit=2)
        c.arrives(1, 0)
        wait_until("the event", lambda: c.end.async_events(1) == ["SRQ_LIMIT_REACHED"])
        c.arrives(1, 1)


@case(timeout=180, each={"write": "write", "read": "read"})
def congestion(op):
    """L-07: a sender of requests and a target that sends READ responses both react to CNPs."""
    names = ("np_cnp_sent", "rp_cnp_handled", "rp_cnp_ignored")
    length = SLOTS * SLOT
    with Connection() as c:
        before = read(bed.here)
        with every_packet_marked():
            for _ in range(4):
                seed = c.send(0, length, op)
                c.sent()
                if op == "write":
                    c.end.expect(c.regions[0]["id"], [[0, length]], seed, length)
                else:
                    c.remote.expect(c.source["id"], [[0, length]], 10, length)
            # The last ones may still be in flight. On a busy machine, a thousand take some seconds.
            arrived, end = -1, 0
            while True:
                after = read(bed.here)
                sent, handled, ignored = (after[name] - before[name] for name in names)
                if handled + ignored > arrived:
                    arrived, end = handled + ignored, time.monotonic() + TIMEOUT
                if arrived >= sent or time.monotonic() > end:
                    break
                time.sleep(0.2)
        require(sent > 0, "nobody was notified")
        equal("notifications handled, ignored", (handled, ignored), (sent, 0))


@contextlib.contextmanager
def every_packet_marked():
    """Marks RoCE packets between this machine's own queue pairs, without losing any.

    On a busy machine, more packets wait at the loopback device than its backlog holds by default,
    and the sender does not notice their loss.
    """
    run = bed.here.machine.run
    room, backlog = 100_000, "/proc/sys/net/core/netdev_max_backlog"
    was = bed.here.machine.read(backlog)

    def lost():
        """Returns the packets dropped after the device: the second figure of each CPU's line."""
        lines = bed.here.machine.read("/proc/net/softnet_stat").splitlines()
        return sum(int(line.split()[1], 16) for line in lines)

    def discipline():
        """Returns the statistics of the device's queueing discipline."""
        (found,) = (entry for entry in json.loads(run("tc -s -j qdisc show dev lo")) if entry["kind"] == "prio")
        return found

    run(f"echo {room} > {backlog}")
    before = lost()
    run("tc qdisc add dev lo root handle 1: prio")
    try:
        for band in (1, 2, 3):
            run(f"tc qdisc add dev lo parent 1:{band} pfifo limit {room}")
        run(
            "tc filter add dev lo parent 1: protocol ip u32 match ip dport 4791 0xffff match ip tos 0x02 0x03"
            " action pedit ex munge ip tos set 3 retain 3 pipe csum ip"
        )
        yield
        # Removing the discipline drops its packets, for example CNPs of a busy host.
        wait_until("the discipline is empty", lambda: discipline()["qlen"] == 0, TIMEOUT)
        equal("packets lost at the device, and behind it", (discipline()["drops"], lost() - before), (0, 0))
    finally:
        run("tc qdisc del dev lo root")
        run(f"echo {was} > {backlog}")


@case()
def receive_too_small():
    """A message longer than its receive completes in the queue of the shared receive queue."""
    with Connection() as c:
        c.post(1, 5, length=99)
        c.send(1, 100)
        (wc,) = c.end.poll(c.cqs[1], 1, TIMEOUT)
        equal("completion", (wc["id"], wc["status"], wc["qpn"]), (5, "LOC_LEN_ERR", c.target["qpn"]))
        c.fails("REM_INV_REQ_ERR")


@case()
def wrong_uses():
    """Neither end has a receive queue, the target has no send queue, and a plain SRQ has no
    number."""
    with Connection() as c:
        receive = {"id": 1, "sge": []}
        refused(errno.EINVAL, c.end.post_recv, c.target["id"], [receive])
        refused(errno.EINVAL, c.remote.post_recv, c.sender["id"], [receive])
        refused(errno.EINVAL, c.end.post_send, c.target["id"], [{"id": 1, "op": "send", "sge": [], "srqn": 5}])
        plain = c.end.srq(c.pds[0])
        refused(errno.EOPNOTSUPP, c.end.srq_number, plain["id"])
        c.end.drop(plain["id"])


# Offsets of the operations before a context (struct verbs_context, in libibverbs' stable ABI).
OPERATIONS = {"open_qp": -64, "create_qp_ex": -56, "open_xrcd": -32, "close_xrcd": -24}


@case()
def another_handle():
    """ibv_open_qp returns a second handle of a target, which outlives the first.

    Both handles have the same effect. A domain in use cannot be closed.
    """
    v = Verbs(bed.here.device)

    def operation(name, result, *kinds):
        address = ctypes.c_void_p.from_address(v.context.value + OPERATIONS[name]).value
        return ctypes.CFUNCTYPE(result, *kinds)(address)

    pointer = ctypes.c_void_p
    xrcd = operation("open_xrcd", pointer, pointer, pointer)(v.context, (ctypes.c_int * 3)(3, -1, 0o100))
    require(xrcd, "no XRC domain")
    init = (ctypes.c_uint64 * 17)()
    words = ctypes.cast(init, ctypes.POINTER(ctypes.c_uint32))
    words[13], words[15] = 10, 2  # qp_type: XRC_RECV; comp_mask: XRCD
    init[9] = xrcd
    first = operation("create_qp_ex", pointer, pointer, pointer)(v.context, init)
    require(first, "no queue pair")
    number = ctypes.c_uint32.from_address(first + 52).value
    ask = (ctypes.c_uint64 * 4)()
    words = ctypes.cast(ask, ctypes.POINTER(ctypes.c_uint32))
    words[0], words[1], words[6] = 11, number, 10  # comp_mask: NUM, XRCD, TYPE; qp_num; qp_type
    ask[1] = xrcd
    open_qp = operation("open_qp", pointer, pointer, pointer)
    second = open_qp(v.context, ask)
    require(second, "no second handle")
    words[1] = number ^ 1
    require(not open_qp(v.context, ask), "a handle of a queue pair that is not there")

    attr = (ctypes.c_uint32 * 36)()
    attr[0], attr[8] = 1, 0  # Init, without access
    port = ctypes.cast(ctypes.addressof(attr), ctypes.POINTER(ctypes.c_uint8))
    port[129] = 1  # port_num
    equal("modify", v.call("ibv_modify_qp", pointer(second), attr, 1 | 1 << 3 | 1 << 4 | 1 << 5), 0)
    attributes, unused = (ctypes.c_uint32 * 36)(), (ctypes.c_uint64 * 8)()
    equal("query", v.call("ibv_query_qp", pointer(first), attributes, 1, unused), 0)
    equal("state by the first handle", attributes[0], 1)

    close = operation("close_xrcd", ctypes.c_int, pointer)
    equal("closing a domain in use", close(xrcd), errno.EBUSY)
    equal("destruction", v.call("ibv_destroy_qp", pointer(first)), 0)
    equal("query", v.call("ibv_query_qp", pointer(second), attributes, 1, unused), 0)
    equal("closing a domain in use", close(xrcd), errno.EBUSY)
    equal("destruction", v.call("ibv_destroy_qp", pointer(second)), 0)
    equal("closing", close(xrcd), 0)
    equal("ibv_close_device", v.call("ibv_close_device", v.context), 0)


def run():
    """Runs the suite."""
    return bed.run()
