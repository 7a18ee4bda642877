# SPDX-License-Identifier: GPL-2.0
"""Congestion management: notification of marked packets, the sender's reaction, and the counters.

No case measures a rate: a counter shows that a sender has been throttled.
"""

import contextlib
import json
import random
import time

import capture
import packets
import testbed
from counted import TRAFFIC, of_queue_pairs, read, rise
from attacker import FIRST, PAYLOAD, Attacker
from harness import case, equal, require, wait_until
from packets import bth
from traffic import Batch
from trial import Bench

bed = testbed.Bed()
bench = Bench(bed.endpoints)

ECT0, ECT1, CE = 2, 1, 3

# Seconds of guest time after which a queue pair is no longer rate-limited (it takes 25 ms).
RECOVERY = 0.5

NAMES = ("np_ecn_marked_roce_packets", "np_cnp_sent", "rp_cnp_handled", "rp_cnp_ignored", "rp_throttled", "rp_rate_reductions")


def _request(qpn, number=0):
    return bth(packets.SEND_ONLY, qpn, FIRST + number) + PAYLOAD


def _notifications(found):
    """Returns the CNPs from the peer: (queue pair, type of service, transport packet)."""
    return [(qpn, tos, whole) for came, opcode, qpn, tos, whole in found if came and opcode == packets.CNP]


def _await_notifications(t, count):
    """Waits for `count` CNPs and returns them, with any that arrive along with the last."""
    found = []

    def enough():
        found.extend(_notifications(t.wire.passing(0.2)))
        return len(found) >= count

    wait_until(f"{count} notifications", enough)
    return found


@contextlib.contextmanager
def loaded_with(host, parameters):
    """Loads the host's module with these parameters for the block."""

    def load(text):
        bench.abandon()
        testbed.delete_link(host.machine, host.device)
        testbed.unload(host.machine, "rrxe")
        testbed.load(host.machine, "rrxe", text)
        testbed.add_link(host.machine, "rrxe", host.device, "eth0")
        gid = f"/guest/bin/gid-index 4 {host.device}"
        wait_until("the device has its GID", lambda: host.machine.try_run(gid).status == 0)

    load(parameters)
    try:
        yield
    finally:
        load("")


@contextlib.contextmanager
def every_packet_marked():
    """Marks ECN-capable RoCE packets that leave this host within the block.

    A capture makes them leave one by one. A queue marks only the first packet of a chain.
    """
    run = bed.here.machine.run
    run("tc qdisc add dev eth0 root handle 1: prio")
    try:
        run(
            "tc filter add dev eth0 parent 1: protocol ip u32 match ip dport 4791 0xffff match ip tos 0x02 0x03"
            " action pedit ex munge ip tos set 3 retain 3 pipe csum ip"
        )
        with capture.capture("eth0"):
            yield
    finally:
        run("tc qdisc del dev eth0 root")


@contextlib.contextmanager
def slow_link():
    """Yields the parent of queueing disciplines for the RoCE packets that leave this host.

    The test's own traffic to the other host does not pass them.
    """
    run = bed.here.machine.run
    run("tc qdisc add dev eth0 root handle 1: prio priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0")
    try:
        run("tc filter add dev eth0 parent 1: protocol ip u32 match ip dport 4791 0xffff flowid 1:3")
        yield "dev eth0 parent 1:3"
    finally:
        run("tc qdisc del dev eth0 root")


# Bytes of a message that takes many windows, so that notifications arrive while it is being sent.
LONG = 2_000_000


def _move(t, op, side, length):
    """Transfers data by a WRITE or READ of a side, and compares every byte."""
    batch = Batch(random.Random(length), t.local, t.remote, large=True)
    batch.add(side, op, length)
    batch.run()


@case()
def marked_request():
    """L-06: one marked request causes one CNP, in the format that hardware sends; it is handled."""
    with Attacker(bed, bench) as t:
        t.receive()
        t.wire.forget()
        with (
            rise(bed.peer, np_ecn_marked_roce_packets=1, np_cnp_sent=1),
            rise(bed.here, rp_cnp_handled=1, rx_roce_discard_pkts=1),
        ):
            t.wire.send(_request(t.qpn), tos=CE)
            found = _await_notifications(t, 1)
            equal("notifications", len(found), 1)
            qpn, tos, whole = found[0]
            equal("queue pair, type of service", (qpn, tos), (t.local.qp["qpn"], 48 << 2))
            wanted = bytes([packets.CNP, 0, 0xFF, 0xFF, 0x40]) + qpn.to_bytes(3, "big") + bytes(4 + 16)
            equal("notification", whole[:-4].hex(), wanted.hex())
        t.received("SUCCESS")
        t.remote.end.accept(t.theirs["id"], [[4096, 64]], 64)


@case()
def no_cnp():
    """L-03: no CNP is sent for unmarked packets, for invalid packets, or for CNPs."""
    with Attacker(bed, bench) as t:
        t.wire.forget()
        with rise(
            bed.peer,
            rx_icrc_encapsulated=1,
            bad_pkey_cntr=1,
            rx_roce_discard_pkts=2,
            rx_unknown_qp_pkts=1,
            rp_cnp_handled=1,
            out_of_buffer=1,
        ):
            t.wire.send(_request(t.qpn), tos=CE, corrupt=200)
            t.wire.send(bth(packets.SEND_ONLY, t.qpn, FIRST, pkey=0x1234) + PAYLOAD, tos=CE)
            t.wire.send(_request(t.qpn), tos=CE, source="10.77.0.77")
            t.wire.send(_request(t.qpn ^ 0x10), tos=CE)
            t.wire.send(bth(packets.UC | packets.SEND_ONLY, t.qpn, FIRST) + PAYLOAD, tos=CE)
            t.wire.send(bth(packets.CNP, t.qpn, 0, ack=False) + bytes(16), tos=CE)
            t.wire.send(_request(t.qpn), tos=ECT0)
            found = _notifications(t.wire.passing(0.5))
        equal("notifications", found, [])
        t.states("rts", "rts")


@case(each={"zero": (0, 10), "an-hour": (3_600_000_000, 1)})
def interval(how):
    """L-02: one CNP is sent per interval, or, with an interval of 0, one per marked packet."""
    microseconds, wanted = how
    with loaded_with(bed.peer, f"min_time_between_cnps={microseconds}"):
        with Attacker(bed, bench) as t:
            t.receive()
            t.wire.forget()
            with rise(bed.peer, np_ecn_marked_roce_packets=10, np_cnp_sent=wanted, duplicate_request=9):
                for _ in range(10):
                    t.wire.send(_request(t.qpn), tos=CE)
                found = _await_notifications(t, wanted)
                equal("notifications", len(found), wanted)
            t.received("SUCCESS")
            t.remote.end.accept(t.theirs["id"], [[4096, 64]], 64)


@case()
def switched_off():
    """Without notification and reaction point: no CNP is sent, no packet has ECT, CNPs are
    ignored."""
    with loaded_with(bed.peer, "roce_np=0 roce_rp=0"):
        with Attacker(bed, bench) as t:
            t.receive()
            t.wire.forget()
            with rise(bed.peer, np_ecn_marked_roce_packets=1, rp_cnp_ignored=1):
                t.wire.send(_request(t.qpn), tos=CE)
                t.wire.send(bth(packets.CNP, t.qpn, 0, ack=False) + bytes(16))
                found = t.wire.passing(0.5)
            equal("notifications", _notifications(found), [])
            equal("types of service of responses", {tos for came, _, _, tos, _ in found if came}, {0})
            t.received("SUCCESS")
            t.remote.end.accept(t.theirs["id"], [[4096, 64]], 64)


@case()
def capable_packets():
    """Requests, READ responses and ACKs are sent as ECT(0)."""
    with Attacker(bed, bench) as t:
        t.wire.forget()
        _move(t, "write", t.local, 3000)
        t.still_works()
        found = t.wire.passing(0.5)
        numbers = (t.local.qp["qpn"], t.remote.qp["qpn"])
        equal("types of service", {tos for _, _, qpn, tos, _ in found if qpn in numbers}, {ECT0})


@case(timeout=300)
def slows_down_and_recovers():
    """L-07, L-04, L-06: a queue pair whose packets are all marked slows down, and then recovers."""
    here, peer = bed.here, bed.peer
    with Attacker(bed, bench) as t:
        before = [{name: read(host)[name] for name in NAMES} for host in (here, peer)]
        _move(t, "write", t.local, LONG)
        _move(t, "read", t.remote, LONG)
        after = [{name: read(host)[name] for name in NAMES} for host in (here, peer)]
        equal("counters without marks", after, before)

        for what, side in (("write", t.local), ("read", t.remote)):
            before = read(here), read(peer)
            with every_packet_marked():
                _move(t, what, side, LONG)
            time.sleep(RECOVERY)
            after = read(here), read(peer)
            local, remote = ({name: after[i][name] - before[i][name] for name in NAMES} for i in (0, 1))
            sent = after[0]["sent_pkts"] - before[0]["sent_pkts"]
            require(remote["np_ecn_marked_roce_packets"] >= LONG // 1024, f"{what}: marked {remote}")
            require(remote["np_ecn_marked_roce_packets"] <= sent, f"{what}: {remote} of {sent} sent")
            require(0 < remote["np_cnp_sent"] <= remote["np_ecn_marked_roce_packets"], f"{what}: notifications {remote}")
            equal(f"{what}: notifications handled", local["rp_cnp_handled"], remote["np_cnp_sent"])
            require(local["rp_throttled"] > 0, f"{what}: it never waited: {local}")
            require(0 < local["rp_rate_reductions"] <= local["rp_cnp_handled"], f"{what}: reductions {local}")
            others = [local["np_cnp_sent"], *(remote[name] for name in ("rp_cnp_handled", "rp_throttled", "rp_rate_reductions"))]
            equal(f"{what}: other counters", others, [0, 0, 0, 0])

        # The queue pair has recovered: no further notifications, and no throttling.
        with rise(here, among=NAMES), rise(peer, among=NAMES):
            _move(t, "write", t.local, LONG)
            _move(t, "read", t.remote, LONG)


@case(timeout=300)
def bottleneck():
    """L-06: behind a slow link with RED, the counters agree with the packets that RED has
    marked."""
    here, peer = bed.here, bed.peer
    with Attacker(bed, bench) as t:
        run = here.machine.run
        before = read(here), read(peer)
        with slow_link() as link:
            marked = dropped = 0
            # A busy machine may not fill a fast link.
            for rate in ("20mbit", "10mbit", "5mbit"):
                run(f"tc qdisc add {link} handle 2: tbf rate {rate} burst 20kb limit 4mb")
                run(
                    # The sender keeps the queue short: about eight packets.
                    "tc qdisc add dev eth0 parent 2: handle 3: red limit 4000000 min 2200 max 6600 avpkt 1100"
                    f" burst 4 probability 0.5 bandwidth {rate} ecn"
                )
                _move(t, "write", t.local, LONG)
                queues = json.loads(run("tc -s -j qdisc show dev eth0"))
                red = next(queue for queue in queues if queue["kind"] == "red")
                marked += red["marked"]
                dropped += red["drops"]
                if read(here)["rp_throttled"] > before[0]["rp_throttled"]:
                    break
                run(f"tc qdisc del {link}")
        time.sleep(RECOVERY)
        after = read(here), read(peer)
        local, remote = ({name: after[i][name] - before[i][name] for name in before[i]} for i in (0, 1))
        require(marked > 0, f"RED has marked nothing: {red}")
        equal("packets marked", remote["np_ecn_marked_roce_packets"], marked)
        require(0 < remote["np_cnp_sent"] <= marked, f"{remote}")
        equal("notifications handled", local["rp_cnp_handled"], remote["np_cnp_sent"])
        require(local["rp_throttled"] > 0, f"it never waited: {local}")
        require(0 < local["rp_rate_reductions"] <= local["rp_cnp_handled"], f"reductions {local}")
        equal("packets that RED has dropped", dropped, 0)
        # The queue pair has recovered.
        with rise(here, among=NAMES), rise(peer, among=NAMES):
            _move(t, "write", t.local, LONG)


@case(timeout=300)
def overflow():
    """A queue that overflows, without ECN, reduces the window of the sender and no rate.

    The sender's queue pair has a counter of its own.
    """
    names = ("rp_window_reductions", "rp_rate_reductions")
    with Attacker(bed, bench) as t:
        bed.here.machine.run(f"rdma statistic qp bind link {bed.here.device}/1 lqpn {t.local.qp['qpn']}")
        before = read(bed.here), read(bed.peer)
        with slow_link() as link:
            # The first flight, 64 KiB, is more than the queue holds.
            bed.here.machine.run(f"tc qdisc add {link} handle 2: tbf rate 10mbit burst 20kb limit 20kb")
            _move(t, "write", t.local, LONG)
        after = read(bed.here), read(bed.peer)
        local, remote = ([after[i][name] - before[i][name] for name in names] for i in (0, 1))
        require(local[0] > 0, "the window was not reduced")
        equal("other reductions", (local[1], *remote), (0, 0, 0))
        (counter,) = of_queue_pairs(bed.here).values()
        equal("reductions of the queue pair", [counter[name] for name in names], local)


@case()
def that_queue_pair_only():
    """L-07, L-08: a CNP slows down only the queue pair that it names, and only if its peer sent
    it."""
    with Attacker(bed, bench) as t:
        cnp = bth(packets.CNP, t.qpn, 0, ack=False) + bytes(16)
        _move(t, "write", t.remote, LONG)
        # The rate is reduced only if the peer was still sending a moment ago.
        others = set(read(bed.peer)) - TRAFFIC - {"rp_rate_reductions"}
        with rise(bed.peer, among=others, rp_cnp_handled=1, rp_cnp_ignored=2):
            t.wire.send(cnp, source="10.77.0.77")
            t.wire.send(bth(packets.CNP, t.qpn ^ 0x10, 0, ack=False) + bytes(16))
            t.wire.send(cnp)
            t.wire.passing(0.2)
        # The witness, on another connection, is not throttled.
        with rise(bed.peer, among=NAMES):
            bench.check_witness()


def run():
    """Runs the suite."""
    return bed.run()
