# SPDX-License-Identifier: GPL-2.0
"""The device's statistics: whatever is wrong with a packet is counted once, under one name."""

import time

import packets
import testbed
from counted import read, rise
from forger import FIRST, PAYLOAD, Forger
from harness import case, equal, require
from packets import QKEY, UD, aeth, bth, deth
from trial import Bench

bed = testbed.Bed()
bench = Bench(bed.endpoints)

TAKEN = ("rx_write_requests", "rx_read_requests", "rx_atomic_requests")

# How often each wrong packet is sent.
TIMES = 3


def _send(t, transport, **how):
    for _ in range(TIMES):
        t.wire.send(transport, **how)


# What to send three times to a queue pair in Ready to Send, and the counter that is to rise by three.
FAULTS = {
    "short": (lambda qpn: bth(packets.WRITE_ONLY, qpn, FIRST) + bytes(8), {}, "rx_roce_error_pkts"),
    "version": (lambda qpn: bth(packets.SEND_ONLY, qpn, FIRST, version=1) + PAYLOAD, {}, "rx_roce_error_pkts"),
    "opcode": (lambda qpn: bth(0xC0, qpn, FIRST) + PAYLOAD, {}, "rx_roce_error_pkts"),
    "number-0": (lambda qpn: bth(packets.SEND_ONLY, 0, FIRST) + PAYLOAD, {}, "rx_roce_error_pkts"),
    "icrc": (lambda qpn: bth(packets.SEND_ONLY, qpn, FIRST) + PAYLOAD, {"corrupt": 200}, "rx_icrc_encapsulated"),
    "icrc-and-pkey": (
        lambda qpn: bth(packets.SEND_ONLY, qpn, FIRST, pkey=0x1234) + PAYLOAD,
        {"corrupt": 200},
        "rx_icrc_encapsulated",
    ),
    "unknown-number": (lambda qpn: bth(packets.SEND_ONLY, qpn ^ 0x10, FIRST) + PAYLOAD, {}, "rx_roce_discard_pkts"),
    "source": (
        lambda qpn: bth(packets.SEND_ONLY, qpn, FIRST) + PAYLOAD,
        {"source": "10.77.0.77"},
        "rx_roce_discard_pkts",
    ),
    "service": (lambda qpn: bth(packets.UC | packets.SEND_ONLY, qpn, FIRST) + PAYLOAD, {}, "rx_roce_discard_pkts"),
    "answer": (
        lambda qpn: bth(packets.ACKNOWLEDGE, qpn, FIRST, ack=False) + aeth(0x1F),
        {},
        "rx_roce_discard_pkts",
    ),
    "pkey": (lambda qpn: bth(packets.SEND_ONLY, qpn, FIRST, pkey=0x1234) + PAYLOAD, {}, "bad_pkey_cntr"),
    "pkey-of-answer": (
        lambda qpn: bth(packets.ACKNOWLEDGE, qpn, FIRST, ack=False, pkey=0x1234) + aeth(0x1F),
        {},
        "bad_pkey_cntr",
    ),
    "cnp-unknown-number": (
        lambda qpn: bth(packets.CNP, qpn ^ 0x10, 0, ack=False) + bytes(16),
        {},
        "rp_cnp_ignored",
    ),
    "cnp-source": (
        lambda qpn: bth(packets.CNP, qpn, 0, ack=False) + bytes(16),
        {"source": "10.77.0.77"},
        "rp_cnp_ignored",
    ),
}


@case(each=FAULTS)
def wrong_packet(fault):
    """A-14, A-28, A-29, L-08: each wrong packet raises its counter by one, and no other counter."""
    make, how, name = fault
    with Forger(bed, bench) as t:
        with rise(bed.peer, **{name: TIMES}):
            _send(t, make(t.qpn), **how)
        t.states("rts", "rts")
        t.still_works()


@case()
def qkey_violation():
    """A-33: a datagram with another Q_Key counts as a violation; with a wrong ICRC it does not (A-29)."""
    with Forger(bed, bench, kind="ud") as t:
        wrong = bth(UD | packets.SEND_ONLY, t.qpn, 0, ack=False) + deth(QKEY ^ 1, 77) + PAYLOAD
        with rise(bed.peer, qkey_viol_cntr=TIMES):
            _send(t, wrong)
        with rise(bed.peer, rx_icrc_encapsulated=TIMES):
            _send(t, wrong, corrupt=300)


@case(timeout=600, debug=False)
def saturation():
    """A-28: both violation counters stop at 0xffff."""
    with Forger(bed, bench, kind="ud") as t:
        for name, make in (
            ("bad_pkey_cntr", lambda: bth(UD | packets.SEND_ONLY, t.qpn, 0, ack=False, pkey=0x1234) + deth(QKEY, 7)),
            ("qkey_viol_cntr", lambda: bth(UD | packets.SEND_ONLY, t.qpn, 0, ack=False) + deth(QKEY ^ 1, 7)),
        ):
            frame = t.wire.frame(make())
            while (left := 0xFFFF - read(bed.peer)[name]) > 0:
                for _ in range(min(left, 2000)):
                    t.wire.put(frame)
                time.sleep(0.05)
            with rise(bed.peer, among=(), rcvd_pkts=100):
                for _ in range(100):
                    t.wire.put(frame)
            equal(name, read(bed.peer)[name], 0xFFFF)


@case()
def sequence():
    """Requests before their time, again, and without a receive are counted by those names."""
    with Forger(bed, bench) as t:
        request = bth(packets.SEND_ONLY, t.qpn, FIRST) + PAYLOAD
        with rise(bed.peer, out_of_buffer=1):
            t.wire.send(request)
        t.receive()
        with rise(bed.peer):
            t.wire.send(request)
            t.received("SUCCESS")
        with rise(bed.peer, duplicate_request=TIMES):
            _send(t, request)
        with rise(bed.peer, out_of_sequence=1):
            t.wire.send(bth(packets.SEND_ONLY, t.qpn, FIRST + 7) + PAYLOAD)
        t.far.end.accept(t.theirs["id"], [[4096, 64]], 64)


@case()
def requests():
    """WRITEs, READs and atomics are counted where they are taken; both ends count the same packets."""
    with Forger(bed, bench) as t:
        before = read(bed.here), read(bed.peer)
        with rise(bed.peer, among=TAKEN, rx_write_requests=1, rx_read_requests=1, rx_atomic_requests=1):
            t.near.end.put(t.mine["id"], [[0, 64]], 7)
            t.far.end.expect(t.theirs["id"], [[0, 64]], 7, 64)
            t.send("write", number=1)
            t.send("read", number=2)
            t.sent("SUCCESS", "SUCCESS")
            t.far.end.put_number(t.theirs["id"], 1024, 5)
            t.send("fetch-add", number=1, sge=[t.segment(1024, 8)], offset=1024, compare=1)
            t.sent("SUCCESS")
            t.near.end.expect_number(t.mine["id"], 1024, 5)
            t.far.end.expect_number(t.theirs["id"], 1024, 6)
        after = read(bed.here), read(bed.peer)
        for one, other in ((0, 1), (1, 0)):
            for ours, theirs in (("sent_pkts", "rcvd_pkts"), ("sent_bytes", "rcvd_bytes")):
                sent = after[one][ours] - before[one][ours]
                require(sent > 0, f"{ours}: {sent}")
                equal(f"{theirs} of the other's {ours}", after[other][theirs] - before[other][theirs], sent)


@case()
def sysfs():
    """The same numbers are in sysfs."""
    where = f"/sys/class/infiniband/{bed.here.device}/ports/1/hw_counters"
    names = set(bed.here.machine.run(f"ls {where}").split()) - {"lifespan"}
    shown = read(bed.here)
    equal("names", names, set(shown) - {"bad_pkey_cntr", "qkey_viol_cntr"})
    time.sleep(0.1)
    for name in names:
        equal(name, int(bed.here.machine.read(f"{where}/{name}")), shown[name])


def run():
    """Run the suite."""
    return bed.run()
