# SPDX-License-Identifier: GPL-2.0
"""Output of `rdma resource show qp -dd` for queue pairs that do not proceed."""

import contextlib
import json

import netem
import testbed
from harness import Skip, case, equal, log, require, wait_until
from trial import Bench, Trial

bed = testbed.Bed()
bench = Bench(bed.endpoints)

# 4.096 us * 2^14, about 67 ms.
SHORT = {"timeout": 14}


def need_rrxe():
    """Skips the case for other drivers, which show less."""
    if bed.here.driver != "rrxe":
        raise Skip("the other driver shows no details")


def shown(side, host):
    """Returns the fields of a queue pair that the rdma tool shows."""
    command = f"rdma -j -dd resource show qp link {host.device}/1 lqpn {side.qp['qpn']}"
    found = [one for one in json.loads(host.machine.run(command)) if one.get("lqpn") == side.qp["qpn"]]
    require(len(found) == 1, f"the tool shows {len(found)} queue pairs with the number")
    # The tool puts a prefix in front of a driver's fields.
    return {name.removeprefix("drv_"): value for name, value in found[0].items()}


def settle(name, side, host, **wanted):
    """Waits until fields of a queue pair have these values. Returns all fields."""

    def fits():
        found = shown(side, host)
        return all(found.get(field) == value for field, value in wanted.items())

    try:
        wait_until(name, fits)
    finally:
        log(f"{name}: {shown(side, host)}")
    return shown(side, host)


@case()
def working():
    """A queue pair that has transferred data has a round-trip time, and nothing limits it."""
    need_rrxe()
    with Trial(bench) as t:
        for _ in range(5):
            t.send("write")
            t.sent("SUCCESS")
        here = settle("the requester", t.local, bed.here, sq_limited_by="no-request", sq_requests=0)
        require(here["sq_srtt_us"] > 0 and here["sq_min_rtt_us"] <= here["sq_srtt_us"], "no round-trip time")
        equal("PSNs", (here["sq_psn_una"], here["sq_psn_next"]), (10, 10))
        there = settle("the responder", t.remote, bed.peer, rq_limited_by="nothing")
        equal("PSN and messages", (there["rq_psn"], there["rq_msn"]), (10, 5))


@case()
def many():
    """The tool shows each of 256 queue pairs, whose details take many messages of netlink."""
    need_rrxe()
    with Trial(bench) as t:
        end, cq = t.local.end, t.local.send_cq
        made = [end.qp("rc", t.local.pd, cq, send_wr=1, recv_wr=1) for _ in range(256)]
        for qp in made:
            # Before that, it has no port.
            end.to_init(qp["id"])
        found = json.loads(bed.here.machine.run(f"rdma -j -dd resource show qp link {bed.here.device}/1"))
        limits = {one["lqpn"]: one["drv_sq_limited_by"] for one in found if "drv_sq_limited_by" in one}
        equal("limits", [limits.get(qp["qpn"]) for qp in made], ["not-ready"] * 256)
        end.drop(*(qp["id"] for qp in made))


@case()
def no_receive():
    """The peer has posted no receive: both ends say so."""
    need_rrxe()
    with Trial(bench, rts={"rnr_retry": 7}) as t:
        t.send("send", sge=[t.segment()])
        here = settle("the requester", t.local, bed.here, sq_limited_by="rnr", sq_requests=1)
        require(here["sq_rnr_naks"] > 0, "no RNR NAK is counted")
        equal("timeouts", here["sq_timeouts"], 0)
        settle("the responder", t.remote, bed.peer, rq_limited_by="rnr", rq_posted=0)
        t.receive()
        t.sent("SUCCESS")
        t.received("SUCCESS")
        t.remote.end.accept(t.theirs["id"], [[4096, 64]], 64)
        settle("the responder afterwards", t.remote, bed.peer, rq_limited_by="nothing")


@case()
def lost_acknowledgements():
    """The peer's responses are lost: the requester sends again what the responder has received."""
    need_rrxe()
    with Trial(bench, rts={"timeout": 18}) as t:
        with netem.wire([bed.peer], "loss 100%"):
            t.send("write")
            wait_until("the request is sent again", lambda: shown(t.local, bed.here)["sq_retransmitted"] > 0)
            here = settle("the requester", t.local, bed.here, sq_limited_by="ack", sq_in_flight=1)
            there = settle("the responder", t.remote, bed.peer, rq_msn=1, rq_limited_by="nothing")
            require(there["rq_duplicates"] > 0, "the responder counts no duplicate")
            equal("RNR NAKs and last error", (here["sq_rnr_naks"], here.get("sq_last_error")), (0, None))
        t.sent("SUCCESS")


@case()
def peer_gone():
    """The peer's queue pair is gone: timeouts, and at the end the error."""
    need_rrxe()
    with Trial(bench, rts={**SHORT, "retry": 2}) as t:
        t.remote.end.modify(t.remote.qp["id"], ("STATE",), state="reset")
        t.send("write")
        settle("before the end", t.local, bed.here, sq_limited_by="ack")
        here = settle("the requester", t.local, bed.here, state="ERR", sq_last_error="RETRY_EXC_ERR")
        require(here["sq_timeouts"] > 0, "no timeout is counted")
        t.sent("RETRY_EXC_ERR")


@case()
def wrong_key():
    """A request with a wrong key: the error at the requester, and a count at the responder."""
    need_rrxe()
    with Trial(bench) as t:
        t.send("write", rkey=t.theirs["rkey"] ^ 0x5500)
        t.sent("REM_ACCESS_ERR")
        here = settle("the requester", t.local, bed.here, state="ERR", sq_last_error="REM_ACCESS_ERR")
        equal("timeouts", here["sq_timeouts"], 0)
        settle("the responder", t.remote, bed.peer, rq_limited_by="error", rq_access_errors=1)


@case()
def absent_pages():
    """Pages that never come, at the requester and at the responder."""
    need_rrxe()
    with Trial(bench, rts={"timeout": 0}, flags=("on-demand",)) as t:
        regions = []
        for side in (t.local, t.remote):
            address = side.end.map(64 * 4096)
            regions.append(side.end.over(side.pd, address, 64 * 4096))
            side.end.without_answer(address, 64 * 4096)
        mine, theirs = regions
        t.send("write", rkey=theirs["rkey"], raddr=theirs["address"])
        t.send("write", side=t.remote, sge=[[theirs["address"], 64, theirs["lkey"]]])
        here = settle("the requester", t.local, bed.here, sq_limited_by="ack")
        there = settle("the responder", t.remote, bed.peer, rq_limited_by="page-fault", sq_limited_by="page-fault")
        equal("NAKs", (here["sq_rnr_naks"], there["rq_rnr_naks"]), (0, 0))
        for side, region in ((t.local, mine), (t.remote, theirs)):
            side.end.drop(side.qp["id"], region["id"])
            side.qp = side.end.qp(side.kind, side.pd, side.send_cq, side.recv_cq, send_wr=8, recv_wr=8)


@contextlib.contextmanager
def slow_queue():
    """Limits the rate of the RoCE packets that leave this host."""
    run = bed.here.machine.run
    run("tc qdisc add dev eth0 root handle 1: prio priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0")
    try:
        run("tc filter add dev eth0 parent 1: protocol ip u32 match ip dport 4791 0xffff flowid 1:3")
        run("tc qdisc add dev eth0 parent 1:3 tbf rate 500kbit burst 5000 limit 1000000")
        yield
    finally:
        run("tc qdisc del dev eth0 root")


@case()
def local_queue_full():
    """A slow queueing discipline of this host holds the packets."""
    need_rrxe()
    with Trial(bench, rts={"timeout": 0}) as t:
        with slow_queue():
            for number in range(1, 5):
                t.send("write", number=number, sge=[t.segment(0, 4096)] * 8)
            wait_until("packets are queued", lambda: shown(t.local, bed.here)["sq_local_queue"] > 5)
            here = shown(t.local, bed.here)
            log(str(here))
            require(here["sq_limited_by"] in ("window", "local-queue"), "something else limits the queue pair")
            equal("timeouts and RNR NAKs", (here["sq_timeouts"], here["sq_rnr_naks"]), (0, 0))
            t.completions(t.local, t.local.send_cq, 4)
        t.remote.end.accept(t.theirs["id"], [[0, 32768]], 32768)


def run():
    """Runs the suite."""
    return bed.run()
