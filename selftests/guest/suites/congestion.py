# SPDX-License-Identifier: GPL-2.0
"""Congestion management: who is told of marked packets, who slows down, and that counters and packets agree.

Nothing here looks at how fast anything is: a sender that waits for its rate says so in a counter.
"""

import contextlib
import json
import random
import time

import packets
import testbed
from counted import read, rise
from forger import FIRST, PAYLOAD, Forger
from harness import case, equal, require, wait_until
from packets import bth
from traffic import Batch
from trial import Bench

bed = testbed.Bed()
bench = Bench(bed.endpoints)

ECT0, ECT1, CE = 2, 1, 3

# Longer than a queue pair needs to be free of its limit, in seconds of the guest's clock (25 ms).
RECOVERY = 0.5

NAMES = ("np_ecn_marked_roce_packets", "np_cnp_sent", "rp_cnp_handled", "rp_cnp_ignored", "rp_throttled")


def _request(qpn, number=0):
    return bth(packets.SEND_ONLY, qpn, FIRST + number) + PAYLOAD


def _notifications(found):
    """The CNPs among the packets that came from the peer: (queue pair, type of service, all of it)."""
    return [(qpn, tos, whole) for came, opcode, qpn, tos, whole in found if came and opcode == packets.CNP]


def _await_notifications(t, count):
    """So many CNPs (or more, if they come together with these)."""
    found = []

    def enough():
        found.extend(_notifications(t.wire.passing(0.2)))
        return len(found) >= count

    wait_until(f"{count} notifications", enough)
    return found


@contextlib.contextmanager
def loaded_with(host, parameters):
    """The host's module, loaded with these parameters."""

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
    """In the block, RoCE packets that are capable of ECN leave this host marked."""
    run = bed.here.machine.run
    run("tc qdisc add dev eth0 root handle 1: prio")
    try:
        run(
            "tc filter add dev eth0 parent 1: protocol ip u32 match ip dport 4791 0xffff match ip tos 0x02 0x03"
            " action pedit ex munge ip tos set 3 retain 3 pipe csum ip"
        )
        yield
    finally:
        run("tc qdisc del dev eth0 root")


# Bytes of a message that many windows are needed for, so that notifications come while it is sent.
LONG = 2_000_000


def _move(t, op, side, length):
    """A WRITE or READ of a side, compared byte by byte."""
    batch = Batch(random.Random(length), t.near, t.far, large=True)
    batch.add(side, op, length)
    batch.run()


@case()
def marked_request():
    """One marked request, one notification, of the form that hardware sends, and it is handled (L-06)."""
    with Forger(bed, bench) as t:
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
            equal("queue pair, type of service", (qpn, tos), (t.near.qp["qpn"], 48 << 2))
            wanted = bytes([packets.CNP, 0, 0xFF, 0xFF, 0x40]) + qpn.to_bytes(3, "big") + bytes(4 + 16)
            equal("notification", whole[:-4].hex(), wanted.hex())
        t.received("SUCCESS")
        t.far.end.accept(t.theirs["id"], [[4096, 64]], 64)


@case()
def nobody_is_told():
    """L-03: nothing is sent for what is not marked, or wrong, or a notification."""
    with Forger(bed, bench) as t:
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
    """L-02: a notification in each interval, and with none, one for every marked packet."""
    microseconds, wanted = how
    with loaded_with(bed.peer, f"min_time_between_cnps={microseconds}"):
        with Forger(bed, bench) as t:
            t.receive()
            t.wire.forget()
            with rise(bed.peer, np_ecn_marked_roce_packets=10, np_cnp_sent=wanted, duplicate_request=9):
                for _ in range(10):
                    t.wire.send(_request(t.qpn), tos=CE)
                found = _await_notifications(t, wanted)
                equal("notifications", len(found), wanted)
            t.received("SUCCESS")
            t.far.end.accept(t.theirs["id"], [[4096, 64]], 64)


@case()
def switched_off():
    """Without notification and reaction point: no CNP, no ECN, no effect of a CNP."""
    with loaded_with(bed.peer, "roce_np=0 roce_rp=0"):
        with Forger(bed, bench) as t:
            t.receive()
            t.wire.forget()
            with rise(bed.peer, np_ecn_marked_roce_packets=1, rp_cnp_ignored=1):
                t.wire.send(_request(t.qpn), tos=CE)
                t.wire.send(bth(packets.CNP, t.qpn, 0, ack=False) + bytes(16))
                found = t.wire.passing(0.5)
            equal("notifications", _notifications(found), [])
            equal("types of service of answers", {tos for came, _, _, tos, _ in found if came}, {0})
            t.received("SUCCESS")
            t.far.end.accept(t.theirs["id"], [[4096, 64]], 64)


@case()
def capable_packets():
    """Requests, READ responses and acknowledgements leave as ECT(0)."""
    with Forger(bed, bench) as t:
        t.wire.forget()
        _move(t, "write", t.near, 3000)
        t.still_works()
        found = t.wire.passing(0.5)
        numbers = (t.near.qp["qpn"], t.far.qp["qpn"])
        equal("types of service", {tos for _, _, qpn, tos, _ in found if qpn in numbers}, {ECT0})


@case(timeout=300)
def slows_down_and_recovers():
    """L-07, L-04, L-06: what is marked all the way slows its queue pair down; then it is free again."""
    here, peer = bed.here, bed.peer
    with Forger(bed, bench) as t:
        before = [{name: read(host)[name] for name in NAMES} for host in (here, peer)]
        _move(t, "write", t.near, LONG)
        _move(t, "read", t.far, LONG)
        after = [{name: read(host)[name] for name in NAMES} for host in (here, peer)]
        equal("counters without marks", after, before)

        for what, side in (("write", t.near), ("read", t.far)):
            before = read(here), read(peer)
            with every_packet_marked():
                _move(t, what, side, LONG)
            time.sleep(RECOVERY)
            after = read(here), read(peer)
            near, far = ({name: after[i][name] - before[i][name] for name in NAMES} for i in (0, 1))
            sent = after[0]["sent_pkts"] - before[0]["sent_pkts"]
            require(far["np_ecn_marked_roce_packets"] >= LONG // 1024, f"{what}: marked {far}")
            require(far["np_ecn_marked_roce_packets"] <= sent, f"{what}: {far} of {sent} sent")
            require(0 < far["np_cnp_sent"] <= far["np_ecn_marked_roce_packets"], f"{what}: notifications {far}")
            equal(f"{what}: notifications handled", near["rp_cnp_handled"], far["np_cnp_sent"])
            require(near["rp_throttled"] > 0, f"{what}: it never waited: {near}")
            equal(f"{what}: other counters", (near["np_cnp_sent"], far["rp_cnp_handled"], far["rp_throttled"]), (0, 0, 0))

        # Free again, without further notifications.
        with rise(here, among=NAMES), rise(peer, among=NAMES):
            _move(t, "write", t.near, LONG)
            _move(t, "read", t.far, LONG)


@case(timeout=300)
def bottleneck():
    """L-06: behind a slow link with RED, what the queue has marked is what is counted and told of."""
    here, peer = bed.here, bed.peer
    with Forger(bed, bench) as t:
        run = here.machine.run
        before = read(here), read(peer)
        # Only RoCE goes through the bottleneck: what the test itself says to the other host does not.
        run("tc qdisc add dev eth0 root handle 1: prio priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0")
        try:
            run("tc filter add dev eth0 parent 1: protocol ip u32 match ip dport 4791 0xffff flowid 1:3")
            run("tc qdisc add dev eth0 parent 1:3 handle 2: tbf rate 20mbit burst 20kb limit 4mb")
            run(
                # The sender keeps the queue short: some eight packets wait there.
                "tc qdisc add dev eth0 parent 2: handle 3: red limit 4000000 min 2200 max 6600 avpkt 1100"
                " burst 4 probability 0.5 bandwidth 20mbit ecn"
            )
            _move(t, "write", t.near, LONG)
            queues = json.loads(run("tc -s -j qdisc show dev eth0"))
        finally:
            run("tc qdisc del dev eth0 root")
        time.sleep(RECOVERY)
        after = read(here), read(peer)
        near, far = ({name: after[i][name] - before[i][name] for name in before[i]} for i in (0, 1))
        red = next(queue for queue in queues if queue["kind"] == "red")
        marked = red["marked"]
        require(marked > 0, f"RED has marked nothing: {red}")
        equal("packets marked", far["np_ecn_marked_roce_packets"], marked)
        require(0 < far["np_cnp_sent"] <= marked, f"{far}")
        equal("notifications handled", near["rp_cnp_handled"], far["np_cnp_sent"])
        require(near["rp_throttled"] > 0, f"it never waited: {near}")
        equal("packets that RED has dropped", red["drops"], 0)
        # Free again.
        with rise(here, among=NAMES), rise(peer, among=NAMES):
            _move(t, "write", t.near, LONG)


@case()
def that_queue_pair_only():
    """L-07, L-08: a notification slows down the queue pair that it names, and only its peer's counts."""
    with Forger(bed, bench) as t:
        cnp = bth(packets.CNP, t.qpn, 0, ack=False) + bytes(16)
        _move(t, "write", t.far, LONG)
        with rise(bed.peer, rp_cnp_handled=1, rp_cnp_ignored=2):
            t.wire.send(cnp, source="10.77.0.77")
            t.wire.send(bth(packets.CNP, t.qpn ^ 0x10, 0, ack=False) + bytes(16))
            t.wire.send(cnp)
            t.wire.passing(0.2)
        # The witness, a connection of its own, does not wait.
        with rise(bed.peer, among=NAMES):
            bench.check_witness()


def run():
    """Run the suite."""
    return bed.run()
