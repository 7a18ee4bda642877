# SPDX-License-Identifier: GPL-2.0
"""Invalid requests through verbs.

Each must fail with the completion status or errno of hardware, and must not affect others.
"""

import errno

import privilege
import testbed
from harness import case, equal, wait_until
from trial import Bench, Trial, refused

bed = testbed.Bed()
bench = Bench(bed.endpoints)

PAGE = 4096
# The Q_Key of the endpoints' datagram queue pairs (lib/endpoint.py, which only a guest can import).
QKEY = 0x11223344
SIZE = 512 * 1024
RDMA = ("write", "write-imm", "read", "cmp-swap", "fetch-add")

# The access right that each operation needs on its target region.
NEEDS = {
    "write": "remote-write",
    "write-imm": "remote-write",
    "read": "remote-read",
    "cmp-swap": "remote-atomic",
    "fetch-add": "remote-atomic",
}


def by_op(*ops):
    """Returns a case for each operation."""
    return {op: op for op in ops}


def operands(op):
    """Returns the arguments of an operation other than its target."""
    if op in ("cmp-swap", "fetch-add"):
        return {"compare": 1, "swap": 2}
    return {"imm": 7} if op.endswith("imm") else {}


def local_segment(t, op):
    """Returns a local segment of the size that the operation needs."""
    return [t.segment(length=8 if op in ("cmp-swap", "fetch-add") else 64)]


def remote_access_error(t, op, **where):
    """Checks that the remote side refuses a request with an access error (IBA 9.7.4, 9.9)."""
    t.receive()
    t.send(op, sge=local_segment(t, op), **operands(op), **where)
    t.sent("REM_ACCESS_ERR")
    t.states("error", "error")
    if op == "write-imm":
        # The receive that the immediate completes reports the error (IBA 11.6.2).
        t.events()
        t.received("LOC_ACCESS_ERR")
    else:
        t.events("QP_ACCESS_ERR")
        t.received("WR_FLUSH_ERR")


# Keys, domains, ranges, rights


@case(each=by_op(*RDMA))
def wrong_rkey(op):
    """An R_Key that was never allocated."""
    with Trial(bench) as t:
        remote_access_error(t, op, rkey=t.theirs["rkey"] ^ 0x00A50000)


@case(each=by_op(*RDMA))
def wrong_rkey_variant(op):
    """An R_Key with a valid index and wrong low bits."""
    with Trial(bench) as t:
        remote_access_error(t, op, rkey=t.theirs["rkey"] ^ 0x5A)


@case(each=by_op(*RDMA))
def rkey_of_other_domain(op):
    """An R_Key is valid only in its protection domain."""
    with Trial(bench) as t:
        end = t.remote.end
        pd = end.pd()
        other = end.memory(pd, PAGE, seed=5)
        remote_access_error(t, op, rkey=other["rkey"], raddr=other["address"])
        equal("the other domain's memory", end.verify(other["id"]), "")
        end.drop(other["id"], pd)


RANGES = {
    "past-the-end": lambda region: region["address"] + SIZE,
    "over-the-end": lambda region: region["address"] + SIZE - 4,
    "before-the-start": lambda region: region["address"] - 8,
    "zero": lambda region: 0,
    "wrapping": lambda region: 2**64 - 4,
}


@case(each={f"{op}-{name}": (op, where) for op in ("write", "read") for name, where in RANGES.items()})
def out_of_range(what):
    """A range outside the region."""
    op, where = what
    with Trial(bench) as t:
        remote_access_error(t, op, raddr=where(t.theirs))


@case(each=by_op(*RDMA))
def right_missing(op):
    """A region that does not permit the operation."""
    rights = [right for right in ("local-write", *dict.fromkeys(NEEDS.values())) if right != NEEDS[op]]
    with Trial(bench) as t:
        region = t.remote.end.memory(t.remote.pd, PAGE, rights, 6)
        remote_access_error(t, op, rkey=region["rkey"], raddr=region["address"])
        equal("the region", t.remote.end.verify(region["id"]), "")
        t.remote.end.drop(region["id"])


@case(each=by_op(*RDMA))
def stale_rkey(op):
    """An R_Key of a deregistered region."""
    with Trial(bench) as t:
        region = t.remote.end.memory(t.remote.pd, PAGE, seed=7)
        t.remote.end.deregister(region["id"])
        remote_access_error(t, op, rkey=region["rkey"], raddr=region["address"])
        equal("the region", t.remote.end.verify(region["id"]), "")


@case(each=by_op("write", "read"))
def zero_length_without_key(op):
    """A request of zero length is not checked against any region (C9-88)."""
    with Trial(bench) as t:
        t.send(op, sge=[], rkey=0x12345678, raddr=0)
        t.sent("SUCCESS")
        t.still_works()


# Requests that the remote side refuses


@case(each=by_op(*RDMA))
def operation_disabled(op):
    """An operation that the remote queue pair does not permit."""
    allowed = [right for right in ("local-write", "remote-write", "remote-read", "remote-atomic") if right != NEEDS[op]]
    with Trial(bench, access={"access": allowed}) as t:
        t.receive()
        t.send(op, sge=local_segment(t, op), **operands(op))
        t.sent("REM_INV_REQ_ERR")
        t.states("error", "error")
        t.received("WR_FLUSH_ERR")


@case(each={f"{op}-{offset}": (op, offset) for op in ("cmp-swap", "fetch-add") for offset in (1, 4, 7)})
def atomic_not_aligned(what):
    """An atomic on an unaligned address."""
    op, offset = what
    with Trial(bench) as t:
        t.send(op, sge=local_segment(t, op), offset=offset, **operands(op))
        t.sent("REM_INV_REQ_ERR")
        t.states("error", "error")


@case(each=by_op("read", "cmp-swap", "fetch-add"))
def no_responder_resources(op):
    """A READ or atomic to a peer whose dest_rd_atomic is 0."""
    with Trial(bench, rtr={"dest_rd_atomic": 0}) as t:
        t.send(op, sge=local_segment(t, op), **operands(op))
        t.sent("REM_INV_REQ_ERR")
        t.states("error", "error")


@case(each=by_op("send", "send-imm"))
def receive_too_small(op):
    """A message longer than the receive that it consumes."""
    with Trial(bench) as t:
        t.receive(sge=[t.segment(4096, 63, side=t.remote)])
        t.receive(101)
        t.send(op, **operands(op))
        t.sent("REM_INV_REQ_ERR")
        t.received("LOC_LEN_ERR", "WR_FLUSH_ERR")
        t.states("error", "error")


@case()
def receive_too_small_many_packets():
    """A message of several packets that is too long: nothing is written beyond the receive.

    The payload of earlier packets may be.
    """
    with Trial(bench) as t:
        t.receive(sge=[t.segment(4096, 3000, side=t.remote)])
        t.send("send", sge=[t.segment(length=5000)])
        t.sent("REM_INV_REQ_ERR")
        t.received("LOC_LEN_ERR")
        t.states("error", "error")
        t.remote.end.accept(t.theirs["id"], [[4096, 3000]], 3000)


@case(each=by_op("wrong-key", "no-local-write", "other-domain", "out-of-range"))
def receive_protected(how):
    """A receive whose memory the receiver may not write."""
    with Trial(bench) as t:
        drop = []
        if how == "wrong-key":
            sge = [t.segment(4096, 64, t.theirs["lkey"] ^ 0x00A50000, t.remote)]
        elif how == "out-of-range":
            sge = [t.segment(SIZE - 10, 64, side=t.remote)]
        else:
            pd = t.remote.pd
            if how == "other-domain":
                pd = t.remote.end.pd()
            region = t.remote.end.memory(pd, PAGE, () if how == "no-local-write" else ("local-write",), 8)
            sge = [[region["address"], 64, region["lkey"]]]
            drop = [region["id"]] + ([pd] if how == "other-domain" else [])
        t.receive(sge=sge)
        t.send("send")
        t.sent("REM_OP_ERR")
        t.received("LOC_PROT_ERR")
        t.states("error", "error")
        if drop:
            equal("the region", t.remote.end.verify(drop[0]), "")
            t.remote.end.drop(*drop)


# Requests that the local side must refuse


@case(each=by_op("send", "write", "read", "cmp-swap", "fetch-add"))
def wrong_lkey(op):
    """An L_Key that was never allocated."""
    with Trial(bench) as t:
        t.receive()
        t.send(op, sge=[t.segment(0, 8, t.mine["lkey"] ^ 0x00A50000)], **operands(op))
        t.sent("LOC_PROT_ERR")
        t.local.end.poll(t.local.send_cq, 1, 0)
        t.states("error", "rts")
        if op in ("cmp-swap", "fetch-add"):
            # The response could not be stored, but the remote side may have executed the atomic.
            t.remote.end.accept(t.theirs["id"], [[0, 8]], 8)


@case(each=by_op("send", "write", "read"))
def lkey_of_other_domain(op):
    """An L_Key of another protection domain."""
    with Trial(bench) as t:
        pd = t.local.end.pd()
        region = t.local.end.memory(pd, PAGE, seed=9)
        t.receive()
        t.send(op, sge=[[region["address"], 64, region["lkey"]]])
        t.sent("LOC_PROT_ERR")
        t.states("error", "rts")
        equal("the region", t.local.end.verify(region["id"]), "")
        t.local.end.drop(region["id"], pd)


@case(each={f"{op}-{name}": (op, where) for op in ("send", "read") for name, where in RANGES.items()})
def local_out_of_range(what):
    """A local range outside the region."""
    op, where = what
    with Trial(bench) as t:
        t.receive()
        t.send(op, sge=[[where(t.mine), 64, t.mine["lkey"]]])
        t.sent("LOC_PROT_ERR")
        t.states("error", "rts")


@case(each=by_op("read", "fetch-add"))
def local_read_only(op):
    """A response that would be written to a read-only region."""
    with Trial(bench) as t:
        region = t.local.end.memory(t.local.pd, PAGE, (), 10)
        t.send(op, sge=[[region["address"], 8, region["lkey"]]], **operands(op))
        t.sent("LOC_PROT_ERR")
        t.states("error", "rts")
        equal("the region", t.local.end.verify(region["id"]), "")
        if op == "fetch-add":
            t.remote.end.accept(t.theirs["id"], [[0, 8]], 8)
        t.local.end.drop(region["id"])


@case(each=by_op("send", "write", "read"))
def stale_lkey(op):
    """An L_Key of a deregistered region."""
    with Trial(bench) as t:
        region = t.local.end.memory(t.local.pd, PAGE, seed=11)
        t.local.end.deregister(region["id"])
        t.receive()
        t.send(op, sge=[[region["address"], 64, region["lkey"]]])
        t.sent("LOC_PROT_ERR")
        t.states("error", "rts")


@case(each=by_op("send", "write", "read"))
def longer_than_a_message(op):
    """A message longer than max_msg_sz (IBA 11.4.1: local length error)."""
    with Trial(bench) as t:
        half = t.local.info["max_msg"] // 2 + 1
        t.receive()
        t.send(op, sge=[t.segment(length=half), t.segment(length=half)])
        t.sent("LOC_LEN_ERR")
        t.states("error", "rts")


@case(each={f"{op}-{length}": (op, length) for op in ("cmp-swap", "fetch-add") for length in (4, 16)})
def atomic_length(what):
    """An atomic's response has 8 bytes, and no other buffer length is accepted."""
    op, length = what
    with Trial(bench) as t:
        t.send(op, sge=[t.segment(length=length)], **operands(op))
        t.sent("LOC_LEN_ERR")
        t.states("error", "rts")


@case()
def flushed_in_order():
    """Requests after a failed one are flushed once each, in order; earlier ones have completed."""
    with Trial(bench) as t:
        for number in range(100, 104):
            t.receive(number, [t.segment(8192 + (number - 100) * 64, 64, side=t.remote)])
            t.receive(number, [t.segment(8192 + (number - 100) * 64, 64)], side=t.local)
        t.local.end.put(t.mine["id"], [[0, 64]], 77)
        t.remote.end.expect(t.theirs["id"], [[8192, 64]], 77, 64)
        t.send("send", number=1)
        t.send("write", number=2, rkey=1)
        for number in (3, 4, 5):
            t.send("send", number=number)
        t.sent("SUCCESS", "REM_ACCESS_ERR", *["WR_FLUSH_ERR"] * 3)
        t.received("SUCCESS", *["WR_FLUSH_ERR"] * 3)
        t.received(*["WR_FLUSH_ERR"] * 4, side=t.local)
        # In the Error state, posted requests are flushed immediately.
        t.send("send", number=1)
        t.sent("WR_FLUSH_ERR")
        t.receive(100)
        t.received("WR_FLUSH_ERR")


@case()
def failure_without_signal():
    """An unsignaled request generates a completion if it fails."""
    with Trial(bench) as t:
        t.send("write", rkey=1, flags=[])
        t.sent("REM_ACCESS_ERR")


@case()
def back_from_error():
    """From Error to Reset and back to Ready to Send, with the same queue pair number."""
    with Trial(bench) as t:
        t.send("write", rkey=1)
        t.sent("REM_ACCESS_ERR")
        t.states("error", "error")
        for side in (t.local, t.remote):
            side.end.async_events()
            side.end.modify(side.qp["id"], ("STATE",), state="reset")
        t.connect()
        t.still_works()


# No response


@case(timeout=240)
def receiver_not_ready():
    """The receiver never posts a receive: the RNR retries run out."""
    with Trial(bench, rtr={"rnr_timer": 1}, rts={"rnr_retry": 2}) as t:
        t.send("send")
        t.sent("RNR_RETRY_EXC_ERR")
        t.states("error", "rts")


@case(timeout=240)
def receiver_ready_late():
    """The receiver posts a receive late; RNR retries are unlimited."""
    with Trial(bench, rtr={"rnr_timer": 14}, rts={"rnr_retry": 7}) as t:
        t.local.end.put(t.mine["id"], [[0, 64]], 78)
        t.send("send")
        equal("completions before the receive", t.local.end.poll(t.local.send_cq, 1, 2), [])
        t.remote.end.expect(t.theirs["id"], [[4096, 64]], 78, 64)
        t.receive()
        t.sent("SUCCESS")
        t.received("SUCCESS")


@case(timeout=240, each=by_op("send", "write", "read", "fetch-add"))
def peer_gone(op):
    """The remote queue pair was reset: the retries run out."""
    with Trial(bench, rts={"timeout": 12, "retry": 2}) as t:
        t.remote.end.modify(t.remote.qp["id"], ("STATE",), state="reset")
        t.send(op, sge=local_segment(t, op), **operands(op))
        t.sent("RETRY_EXC_ERR")
        t.states("error", "reset")


@case(timeout=240)
def peer_unreachable():
    """No host has the address; the request must not hang forever."""
    with Trial(bench, connected=False) as t:
        end, qp = t.local.end, t.local.qp["id"]
        end.to_init(qp)
        nowhere = "0000:0000:0000:0000:0000:ffff:0a4d:00fe"
        try:
            end.to_rtr(qp, gid=nowhere, qpn=17, psn=5)
        except Exception as why:
            # For drivers that request it, ib_core resolves the neighbour in this transition.
            equal("errno", getattr(why, "error_code", None), errno.ETIMEDOUT)
            return
        end.to_rts(qp, timeout=12, retry=1, psn=5)
        t.send("write")
        t.sent("RETRY_EXC_ERR")


# Datagrams


def datagram(t, number=1, length=64, qpn=None, qkey=None, sge=None):
    """Sends a datagram to the remote side."""
    handle = t.local.end.ah(t.local.pd, t.remote.info["gid"])
    more = {} if qkey is None else {"qkey": qkey}
    target = t.remote.qp["qpn"] if qpn is None else qpn
    t.send("send", number=number, sge=[t.segment(length=length)] if sge is None else sge, ah=handle, qpn=target, **more)
    return handle


def datagram_arrives(t, number=1):
    """Checks that a correct datagram still arrives."""
    t.local.end.put(t.mine["id"], [[0, 64]], 79)
    handle = datagram(t)
    t.sent("SUCCESS")
    t.received("SUCCESS")
    t.remote.end.accept(t.theirs["id"], [[4096, 40]], 40)
    t.remote.end.expect(t.theirs["id"], [[4136, 64]], 79, 64)
    t.local.end.drop(handle)


@case()
def datagram_wrong_qkey():
    """A datagram with an invalid Q_Key is dropped silently (IBA 9.6.1.5)."""
    with Trial(bench, kind="ud") as t:
        t.receive()
        handle = datagram(t, qkey=0x55)
        t.sent("SUCCESS")
        t.quiet()
        t.local.end.drop(handle)
        datagram_arrives(t)


@case()
def datagram_wrong_number():
    """A datagram to a queue pair that does not exist."""
    with Trial(bench, kind="ud") as t:
        t.receive()
        handle = datagram(t, qpn=t.remote.qp["qpn"] ^ 0x5A5A)
        t.sent("SUCCESS")
        t.quiet()
        t.local.end.drop(handle)
        datagram_arrives(t)


@case()
def datagram_to_connected():
    """A datagram to an RC queue pair."""
    with Trial(bench, kind="ud") as t, Trial(bench) as connected:
        connected.receive()
        handle = datagram(t, qpn=connected.remote.qp["qpn"])
        t.sent("SUCCESS")
        connected.quiet()
        t.local.end.drop(handle)
        t.receive()
        datagram_arrives(t)


@case(each={"no-room-for-header": 39, "no-room-for-payload": 103})
def datagram_receive_too_small(room):
    """A datagram longer than its receive is not written beyond it, and never reported as a
    success."""
    with Trial(bench, kind="ud") as t:
        t.receive(sge=[t.segment(4096, room, side=t.remote)])
        handle = datagram(t)
        t.sent("SUCCESS")
        found = t.remote.end.poll(t.remote.recv_cq, 1, 1)
        equal("successes", [wc for wc in found if wc["status"] == "SUCCESS"], [])
        t.remote.end.accept(t.theirs["id"], [[4096, room]], room)
        t.local.end.drop(handle)


@case()
def datagram_without_receive():
    """A datagram without a receive is dropped silently."""
    with Trial(bench, kind="ud") as t:
        handle = datagram(t)
        t.sent("SUCCESS")
        t.local.end.drop(handle)
        t.receive()
        t.quiet()
        datagram_arrives(t)


@case()
def datagram_too_long():
    """A datagram longer than a packet (I-02) is not sent, and completes with success
    (C10-93.1.1)."""
    with Trial(bench, kind="ud") as t:
        t.receive()
        handle = datagram(t, length=4097)
        t.sent("SUCCESS")
        t.states("rts", "rts")
        t.quiet()
        t.local.end.drop(handle)
        # The receive side still works.
        t.receive(100, side=t.local)
        back = t.remote.end.ah(t.remote.pd, t.local.info["gid"])
        t.remote.end.put(t.theirs["id"], [[0, 64]], 80)
        t.send("send", side=t.remote, ah=back, qpn=t.local.qp["qpn"])
        t.sent("SUCCESS", side=t.remote)
        t.received("SUCCESS", side=t.local)
        t.local.end.accept(t.mine["id"], [[4096, 40]], 40)
        t.local.end.expect(t.mine["id"], [[4136, 64]], 80, 64)
        t.remote.end.drop(back)
        # The send side still works, too.
        datagram_arrives(t)


# Calls that fail with an errno


@case()
def post_in_wrong_state():
    """A send before Ready to Send, and a receive in Reset (J-03, IBA 10.3.1)."""
    with Trial(bench, connected=False) as t:
        end, qp = t.local.end, t.local.qp["id"]
        refused(errno.EINVAL, t.send, "send")
        refused(errno.EINVAL, t.receive, side=t.local)
        end.to_init(qp)
        refused(errno.EINVAL, t.send, "send")
        t.receive(side=t.local)
        end.to_rtr(qp, gid=t.remote.info["gid"], qpn=t.remote.qp["qpn"])
        refused(errno.EINVAL, t.send, "send")


@case()
def post_unknown_opcode():
    """Unknown opcodes, and operations that the service does not support."""
    with Trial(bench) as t:
        for op in (15, 77, 255, 2**31 - 1):
            refused(errno.EINVAL, t.send, op)
        t.still_works()
    with Trial(bench, kind="ud") as t:
        handle = t.local.end.ah(t.local.pd, t.remote.info["gid"])
        for op in ("write", "read", "fetch-add"):
            refused(errno.EINVAL, t.send, op, ah=handle, qpn=t.remote.qp["qpn"])
        t.local.end.drop(handle)


@case()
def post_too_much():
    """More segments, inline bytes or requests than the queue was created for."""
    with Trial(bench) as t:
        qp = t.local.qp
        refused(errno.EINVAL, t.send, "send", sge=[t.segment()] * (qp["sge"] + 1))
        refused(errno.EINVAL, t.receive, sge=[t.segment()] * (qp["sge"] + 1), side=t.local)
        refused(errno.EINVAL, t.send, "send", sge=[t.segment(length=qp["inline"] + 1)], flags=["inline"])
        t.still_works()
    with Trial(bench, connected=False) as t:
        qp = t.local.qp
        t.local.end.to_init(qp["id"])
        for number in range(qp["recv_wr"]):
            t.receive(number, side=t.local)
        refused(errno.ENOMEM, t.receive, side=t.local)


@case()
def send_queue_full():
    """A send queue accepts exactly the number of requests that it was created for."""
    with Trial(bench, rtr={"rnr_timer": 14}, rts={"rnr_retry": 7}) as t:
        # The requests wait for a receive that is never posted.
        for number in range(t.local.qp["send_wr"]):
            t.send("send", number=number + 1)
        refused(errno.ENOMEM, t.send, "send")
        t.local.end.modify(t.local.qp["id"], ("STATE",), state="error")
        t.sent(*["WR_FLUSH_ERR"] * t.local.qp["send_wr"])


MODIFY = {
    "reset-to-rts": (("STATE",), {"state": "rts"}),
    "reset-to-rtr": (("STATE",), {"state": "rtr"}),
    "init-without-port": (("STATE", "PKEY_INDEX", "ACCESS_FLAGS"), {"state": "init"}),
    "init-with-address": (("STATE", "PKEY_INDEX", "PORT", "ACCESS_FLAGS", "AV"), {"state": "init", "gid": "self"}),
    "init-port-2": (("STATE", "PKEY_INDEX", "PORT", "ACCESS_FLAGS"), {"state": "init", "port_num": 2}),
    "init-pkey-index-7": (("STATE", "PKEY_INDEX", "PORT", "ACCESS_FLAGS"), {"state": "init", "pkey_index": 7}),
}


@case(each=MODIFY)
def modify_from_reset(what):
    """Transitions and attributes that the modify table lacks are refused without effect.

    See J-01, IBA 11.2.4.2.
    """
    mask, attributes = what
    with Trial(bench, connected=False) as t:
        if attributes.get("gid"):
            attributes = {**attributes, "gid": t.remote.info["gid"]}
        refused(errno.EINVAL, t.local.end.modify, t.local.qp["id"], mask, **attributes)
        equal("state", t.local.end.state(t.local.qp["id"]), "reset")
        t.connect()
        t.still_works()


RTR = ("STATE", "AV", "PATH_MTU", "DEST_QPN", "RQ_PSN", "MAX_DEST_RD_ATOMIC", "MIN_RNR_TIMER")
TO_RTR = {
    "without-mtu": (tuple(name for name in RTR if name != "PATH_MTU"), {}),
    "without-address": (tuple(name for name in RTR if name != "AV"), {}),
    "with-timeout": ((*RTR, "TIMEOUT"), {}),
    "too-many-resources": (RTR, {"max_dest_rd_atomic": 255}),
    "empty-gid-index": (RTR, {"gid_index": 20}, errno.ENODATA),
    "mtu-0": (RTR, {"path_mtu": 0}),
    "mtu-6": (RTR, {"path_mtu": 6}),
}


@case(each=TO_RTR)
def modify_to_rtr(what):
    """Wrong attributes in the transition to Ready to Receive are refused without effect (J-01)."""
    mask, wrong, number = (*what, errno.EINVAL)[:3]
    with Trial(bench, connected=False) as t:
        end, qp = t.local.end, t.local.qp["id"]
        end.to_init(qp)
        good = {"state": "rtr", "gid": t.remote.info["gid"], "mtu": 1024, "dest_qp_num": t.remote.qp["qpn"], "rq_psn": 5}
        good.update(max_dest_rd_atomic=8, min_rnr_timer=12)
        refused(number, end.modify, qp, mask, **{**good, **wrong})
        equal("state", end.state(qp), "init")
        end.modify(qp, RTR, **good)
        end.to_rts(qp, psn=5)
        end, qp = t.remote.end, t.remote.qp["id"]
        end.to_init(qp)
        end.to_rtr(qp, gid=t.local.info["gid"], qpn=t.local.qp["qpn"], psn=5)
        end.to_rts(qp, psn=5)
        t.still_works()


@case()
def modify_mtu_beyond_port():
    """A path MTU larger than the port's."""
    with Trial(bench, connected=False) as t:
        here = bed.here.machine
        here.run("ip link set eth0 mtu 1500")
        try:
            end, qp = t.local.end, t.local.qp["id"]
            end.to_init(qp)
            refused(errno.EINVAL, end.to_rtr, qp, gid=t.remote.info["gid"], qpn=5, mtu=4096)
        finally:
            here.run("ip link set eth0 mtu 4200")


CONTROLLED = 0x80010001  # a Q_Key for privileged consumers: its top bit is set


@case()
def controlled_qkey():
    """A Q_Key with the top bit set requires CAP_NET_RAW (A-36)."""
    with Trial(bench, kind="ud", connected=False) as t:
        end, qp = t.local.end, t.local.qp["id"]
        with privilege.without(privilege.CAP_NET_RAW):
            refused(errno.EPERM, end.to_init, qp, "ud", qkey=CONTROLLED)
            equal("state", end.state(qp), "reset")
            end.to_init(qp, "ud")
            refused(errno.EPERM, end.modify, qp, ("QKEY",), qkey=CONTROLLED)
            equal("Q_Key", end.query(qp, "qkey"), {"qkey": QKEY})


@case()
def controlled_qkey_of_the_privileged():
    """A program with CAP_NET_RAW may set such a Q_Key, and its datagrams arrive (A-33, A-34)."""
    with Trial(bench, kind="ud", access={"qkey": CONTROLLED}) as t:
        equal("Q_Key", t.local.end.query(t.local.qp["id"], "qkey"), {"qkey": CONTROLLED})
        t.receive()
        handle = datagram(t, qkey=CONTROLLED & 0x7FFFFFFF)
        t.sent("SUCCESS")
        t.quiet()
        t.local.end.drop(handle)
        # The top bit selects the Q_Key of the queue pair.
        t.local.end.put(t.mine["id"], [[0, 64]], 79)
        handle = datagram(t, qkey=0xFFFFFFFF)
        t.sent("SUCCESS")
        t.received("SUCCESS")
        t.remote.end.accept(t.theirs["id"], [[4096, 40]], 40)
        t.remote.end.expect(t.theirs["id"], [[4136, 64]], 79, 64)
        t.local.end.drop(handle)


@case()
def create_too_large():
    """Queues larger than the device supports."""
    end, info = bench.ends()[0]
    refused(errno.EINVAL, end.cq, 0)
    refused(errno.EINVAL, end.cq, info["max_cqe"] + 1)
    pd, cq = end.pd(), end.cq()
    for wrong in (
        {"send_wr": info["max_qp_wr"] + 1},
        {"recv_wr": info["max_qp_wr"] + 1},
        {"sge": info["max_sge"] + 1},
        {"inline": 1 << 20},
    ):
        refused(errno.EINVAL, end.qp, "rc", pd, cq, **wrong)
    end.drop(cq, pd)


@case()
def register_wrong():
    """Unmapped memory, read-only memory, and invalid combinations of access rights."""
    end, _ = bench.ends()[0]
    pd = end.pd()
    refused(errno.EFAULT, end.register, pd, 0x10000, PAGE, ("local-write",))
    refused(errno.EFAULT, end.register, pd, end.read_only_page(), PAGE, ("local-write",))
    refused(errno.EINVAL, end.register, pd, 2**64 - PAGE, 2 * PAGE, ())
    good = end.memory(pd, PAGE)
    refused(errno.EINVAL, end.register, pd, good["address"], PAGE, ("remote-write",))
    refused(errno.EINVAL, end.register, pd, good["address"], PAGE, ("remote-atomic",))
    end.drop(good["id"], pd)


@case()
def address_handle_wrong():
    """Address handles with unusable addresses."""
    end, info = bench.ends()[0]
    pd = end.pd()
    refused(errno.ENODATA, end.ah, pd, info["gid"], 20)
    refused(errno.EINVAL, end.ah, pd, info["gid"], None, 2)
    refused(errno.EINVAL, end.ah, pd, None)
    end.drop(pd)


@case(timeout=180)
def peer_killed():
    """The remote program is killed by kill -9: its objects are destroyed, and its device keeps
    working."""
    import endpoint

    peer = bed.peer
    victim = endpoint.Peer(peer.address)
    info = victim.open(peer.device, peer.address, peer.driver)
    # Long enough for a slow host to respond, and short enough to wait for: 1 s and then 2 s.
    attributes = {"timeout": 18, "retry": 1}
    with Trial(bench, connected=False, rts=attributes) as t:
        pd, cq = victim.pd(), victim.cq()
        region = victim.memory(pd, PAGE, seed=3)
        qp = victim.qp("rc", pd, cq)
        victim.to_init(qp["id"])
        victim.to_rtr(qp["id"], gid=t.local.info["gid"], qpn=t.local.qp["qpn"], psn=5)
        victim.to_rts(qp["id"], psn=5)
        end, mine = t.local.end, t.local.qp["id"]
        end.to_init(mine)
        end.to_rtr(mine, gid=info["gid"], qpn=qp["qpn"], psn=5)
        end.to_rts(mine, psn=5, **attributes)
        t.send("write", rkey=region["rkey"], raddr=region["address"])
        t.sent("SUCCESS")
        victim.die()
        # The kernel cleans up after the killed program asynchronously.
        gone = f"rdma resource show qp lqpn {qp['qpn']}"
        wait_until("its queue pair is gone", lambda: not peer.machine.run(gone).strip())
        t.send("write", rkey=region["rkey"], raddr=region["address"])
        t.sent("RETRY_EXC_ERR")


def run():
    """Runs the suite."""
    return bed.run()
