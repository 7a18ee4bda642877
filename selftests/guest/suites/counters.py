# SPDX-License-Identifier: GPL-2.0
"""The device's statistics, which count invalid packets once, and the counters of queue pairs."""

import contextlib
import os
import random
import time

import mads
import packets
import testbed
from counted import TIMEOUT, Watch, check_monitored, monitored, monitored_from, of_queue_pairs, read, rise
from attacker import FIRST, PAYLOAD, Attacker
from harness import case, equal, require, slowness, wait_until
from packets import QKEY, UD, aeth, bth, deth
from programs import rping
from traffic import Batch
from trial import Bench, Trial

bed = testbed.Bed()
bench = Bench(bed.endpoints)

TAKEN = ("rx_write_requests", "rx_read_requests", "rx_atomic_requests")

# Number of times that each invalid packet is sent.
TIMES = 3


def _send(t, transport, **how):
    for _ in range(TIMES):
        t.wire.send(transport, **how)


# Each wrong packet, for a queue pair in Ready to Send, and the counter that it increments.
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
    "unknown-number": (lambda qpn: bth(packets.SEND_ONLY, qpn ^ 0x10, FIRST) + PAYLOAD, {}, "rx_unknown_qp_pkts"),
    "unknown-number-icrc": (
        lambda qpn: bth(packets.SEND_ONLY, qpn ^ 0x10, FIRST) + PAYLOAD,
        {"corrupt": 200},
        "rx_unknown_qp_pkts",
    ),
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
    """A-14, A-28, A-29, L-08: each invalid packet increments its counter once, and no other."""
    make, how, name = fault
    with Attacker(bed, bench) as t:
        with rise(bed.peer, **{name: TIMES}):
            _send(t, make(t.qpn), **how)
        t.states("rts", "rts")
        t.still_works()


@case()
def qkey_violation():
    """A-33: an invalid Q_Key of a datagram is counted, unless the ICRC is invalid (A-29)."""
    with Attacker(bed, bench, kind="ud") as t:
        wrong = bth(UD | packets.SEND_ONLY, t.qpn, 0, ack=False) + deth(QKEY ^ 1, 77) + PAYLOAD
        with rise(bed.peer, qkey_viol_cntr=TIMES):
            _send(t, wrong)
        with rise(bed.peer, rx_icrc_encapsulated=TIMES):
            _send(t, wrong, corrupt=300)


@case(timeout=600, debug=False)
def saturation():
    """A-28: both violation counters stop at 0xffff."""
    with Attacker(bed, bench, kind="ud") as t:
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
    """Early, duplicate and receiver-not-ready requests have counters of their own."""
    with Attacker(bed, bench) as t:
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
        t.remote.end.accept(t.theirs["id"], [[4096, 64]], 64)


@case()
def requests():
    """The responder counts WRITEs, READs and atomics; both ends count the same packets."""
    with Attacker(bed, bench) as t:
        before = read(bed.here), read(bed.peer)
        with rise(bed.peer, among=TAKEN, rx_write_requests=1, rx_read_requests=1, rx_atomic_requests=1):
            t.local.end.put(t.mine["id"], [[0, 64]], 7)
            t.remote.end.expect(t.theirs["id"], [[0, 64]], 7, 64)
            t.send("write", number=1)
            t.send("read", number=2)
            t.sent("SUCCESS", "SUCCESS")
            t.remote.end.put_number(t.theirs["id"], 1024, 5)
            t.send("fetch-add", number=1, sge=[t.segment(1024, 8)], offset=1024, compare=1)
            t.sent("SUCCESS")
            t.local.end.expect_number(t.mine["id"], 1024, 5)
            t.remote.end.expect_number(t.theirs["id"], 1024, 6)
        after = read(bed.here), read(bed.peer)
        for one, other in ((0, 1), (1, 0)):
            for ours, theirs in (("sent_pkts", "rcvd_pkts"), ("sent_bytes", "rcvd_bytes")):
                sent = after[one][ours] - before[one][ours]
                require(sent > 0, f"{ours}: {sent}")
                equal(f"{theirs} of the other's {ours}", after[other][theirs] - before[other][theirs], sent)


@case()
def sysfs():
    """sysfs shows the counters with the same values."""
    where = f"/sys/class/infiniband/{bed.here.device}/ports/1/hw_counters"
    names = set(bed.here.machine.run(f"ls {where}").split()) - {"lifespan"}
    shown = read(bed.here)
    equal("names", names, set(shown) - {"bad_pkey_cntr", "qkey_viol_cntr"})
    time.sleep(0.1)
    for name in names:
        equal(name, int(bed.here.machine.read(f"{where}/{name}")), shown[name])


# All files in `counters`: those of ib_core's table without the counters of multicasts
# (drivers/infiniband/core/sysfs.c, `pma_attrs_noietf`).
MONITORING = {
    *("symbol_error", "link_error_recovery", "link_downed", "VL15_dropped"),
    *("local_link_integrity_errors", "excessive_buffer_overrun_errors"),
    *("port_rcv_errors", "port_rcv_remote_physical_errors", "port_rcv_switch_relay_errors"),
    *("port_rcv_constraint_errors", "port_rcv_data", "port_rcv_packets"),
    *("port_xmit_discards", "port_xmit_constraint_errors", "port_xmit_wait"),
    *("port_xmit_data", "port_xmit_packets"),
}


@case()
def monitoring():
    """The counters that monitoring reads equal the statistics, also after traffic and errors."""
    with Attacker(bed, bench) as t:
        before = monitored(bed.peer.machine, bed.peer.device)
        equal("counters", set(before), MONITORING)
        for make, how, _ in (FAULTS["short"], FAULTS["icrc"]):
            _send(t, make(t.qpn), **how)
        t.still_works()
        errors = before["port_rcv_errors"] + 2 * TIMES
        wait_until("the errors are counted", lambda: monitored(bed.peer.machine, bed.peer.device)["port_rcv_errors"] == errors)
    for host in (bed.here, bed.peer):
        check_monitored(host)
        require(monitored(host.machine, host.device)["port_xmit_data"] > 0, f"{host.name} has sent nothing")


@case()
def monitoring_sent_and_received():
    """Bytes and packets are the same at both ends, over a veth pair and on one device.

    The kernel's rxe_sent_rcvd_bytes.sh compares the same counters, on one device.
    """
    with testbed.namespaces((bed.here.driver,) * 2) as hosts:

        def now():
            return [monitored(bed.here.machine, host.device) for host in hosts]

        for server, client in ((0, 1), (1, 0), (0, 0)):
            before = now()
            rping(hosts[server], hosts[client], 3)

            def risen(host, name, before=before):
                return now()[host][name] - before[host][name]

            for sender, receiver in {(server, client), (client, server)}:
                for unit in ("data", "packets"):
                    sent, received = f"port_xmit_{unit}", f"port_rcv_{unit}"
                    words = f"{received} of the other's {sent}, server {server}, client {client}"
                    wait_until(words, lambda: risen(receiver, received) == risen(sender, sent) > 0, TIMEOUT)


@case(each={"peer": "peer", "own": "here"})
def management_datagrams(asked):
    """A port responds to requests for its counters, which come from a program on a host."""
    host = getattr(bed, asked)
    with mads.agent(bed.here) as agent:
        status, info = agent.ask(host, mads.CLASS_PORT_INFO)
        equal("status", status, mads.SUCCESS)
        # Versions, CapabilityMask with counters of 64 bits, CapabilityMask2, RespTimeValue.
        equal("ClassPortInfo", info.rstrip(b"\0"), bytes([1, 1, 4, 0, 0, 0, 0, 18]))
        for attribute in (mads.PORT_COUNTERS, mads.PORT_COUNTERS_EXTENDED):
            first = monitored_from(read(host))
            found = agent.counters(host, attribute)
            last = monitored_from(read(host))
            for name, value in found.items():
                require(first[name] <= value <= last[name], f"{name}: {value}, between {first[name]} and {last[name]}")


@case()
def other_management_datagrams():
    """The kernel responds to requests that the port does not support. They reset no counter."""
    with mads.agent(bed.here) as agent:
        before = monitored_from(read(bed.peer))
        for attribute in (mads.PORT_COUNTERS, mads.PORT_COUNTERS_EXTENDED):
            equal("status of Set", agent.ask(bed.peer, attribute, method=mads.SET)[0], mads.UNSUPPORTED)
            status, found = agent.ask(bed.peer, attribute, port=2)
            equal("status for port 2", status, mads.INVALID_FIELD)
            equal("counters of port 2", found.strip(b"\0"), b"")
        status, _ = agent.ask(bed.peer, mads.PORT_SAMPLES_CONTROL)
        equal("status of PortSamplesControl", status, mads.UNSUPPORTED)
        after = monitored_from(read(bed.peer))
        require(all(after[name] >= value for name, value in before.items()), f"from {before} to {after}")
    # Device management, for which no host has an agent.
    with mads.agent(bed.here, management_class=6) as agent:
        status, _ = agent.ask(bed.peer, mads.CLASS_PORT_INFO)
        equal("status for another class", status, mads.UNSUPPORTED)


# Statistics of a port that queue pairs do not have.
PORT_ONLY = {
    "rx_roce_error_pkts",
    "rx_icrc_encapsulated",
    "rx_unknown_qp_pkts",
    "local_guard_drops",
    "bad_pkey_cntr",
    "qkey_viol_cntr",
}

# The fields of a queue pair counter that are not values.
ABOUT = {"ifindex", "ifname", "port", "cntn", "qp-type", "pid", "comm", "lqpn"}


def _command(words):
    """Returns the command `rdma statistic qp WORDS` for this host's device."""
    what, *rest = words.split(" ", 1)
    return " ".join(["rdma statistic qp", what, f"link {bed.here.device}/1", *rest])


def _statistic(words):
    """Runs such a command and returns its output."""
    return bed.here.machine.run(_command(words))


def _refused(words):
    """Checks that such a command fails."""
    require(bed.here.machine.try_run(_command(words)).status, f"{words} was accepted")


@contextlib.contextmanager
def _automatic(criteria):
    """Enables automatic counters of queue pairs for the block."""
    bench.ends()  # the witness has none
    _statistic(f"set auto {criteria} on")
    require(f"auto {criteria} on" in _statistic("mode"), "the mode is not shown")
    try:
        yield
    finally:
        _statistic("set auto off")
        require("auto off" in _statistic("mode"), "the mode is not off")


def _exchange(t, writes):
    """Exchanges requests of both ends, including this number of incoming WRITEs."""
    batch = Batch(random.Random(writes), t.local, t.remote)
    for _ in range(writes):
        batch.add(t.remote, "write", 3000)
    batch.add(t.remote, "read", 3000)
    for side in (t.local, t.remote):
        batch.add(side, "send", 2000)
    batch.run()


def _only():
    """Returns the only bound counter."""
    found = of_queue_pairs(bed.here)
    equal("counters", len(found), 1)
    return next(iter(found.values()))


def _number(t):
    return t.local.qp["qpn"]


def _has_all_of(watch):
    """Checks that the only counter equals the device's counters since the watch began."""

    def differences():
        found, all_of_it = _only(), watch.rise()
        equal("names", set(found) - ABOUT, set(all_of_it) - PORT_ONLY)
        for name in set(found) - ABOUT:
            if found[name] != all_of_it[name]:
                yield f"{name}: {found[name]}, of the device: {all_of_it[name]}"

    end = time.monotonic() + TIMEOUT * slowness()
    while (found := list(differences())) and time.monotonic() < end:
        time.sleep(0.1)
    equal("differences", found, [])
    watch.agree()


@case()
def automatic_by_type():
    """`auto type`: queue pairs of a type share a counter that covers all their packets.

    The device counts each packet once, both before and after the queue pairs are destroyed.
    """
    where = f"/sys/class/infiniband/{bed.here.device}/ports/1/hw_counters/rx_write_requests"
    with _automatic("type"):
        watch = Watch(bed.here, bed.peer)
        with Trial(bench) as one:
            with Trial(bench) as other:
                _exchange(one, 2)
                _exchange(other, 3)
                found = _only()
                equal("type", found["qp-type"], "RC")
                equal("queue pairs", sorted(found["lqpn"]), sorted([_number(one), _number(other)]))
                equal("WRITEs", found["rx_write_requests"], 5)
                require(found["sent_pkts"] > 10 and found["rcvd_pkts"] > 10, f"packets: {found}")
                _has_all_of(watch)
                time.sleep(0.1)
                equal("in sysfs", int(bed.here.machine.read(where)), read(bed.here)["rx_write_requests"])
                with Trial(bench, kind="ud") as datagrams:
                    of_type = {entry["qp-type"]: entry for entry in of_queue_pairs(bed.here).values()}
                    equal("types", set(of_type), {"RC", "UD"})
                    equal("queue pairs", of_type["UD"]["lqpn"], [_number(datagrams)])
            # One trial is over. The witness has counted a WRITE for each completed trial.
            found = _only()
            equal("queue pairs", found["lqpn"], [_number(one)])
            equal("WRITEs", found["rx_write_requests"], 5)
            equal("WRITEs of the device", watch.rise()["rx_write_requests"], 7)
            check_monitored(bed.here)
        equal("counters", of_queue_pairs(bed.here), {})
        check_monitored(bed.here)
        equal("WRITEs of the device", watch.rise()["rx_write_requests"], 8)
        watch.agree()
    with Trial(bench) as t:
        _exchange(t, 1)
        equal("counters", of_queue_pairs(bed.here), {})


@case()
def automatic_by_process():
    """`auto pid`: the queue pairs of a process share a counter, whatever their type."""
    with _automatic("pid"):
        with Trial(bench) as one, Trial(bench, kind="ud") as other:
            _exchange(one, 2)
            found = _only()
            equal("process", found["pid"], os.getpid())
            equal("queue pairs", sorted(found["lqpn"]), sorted([_number(one), _number(other)]))
            equal("WRITEs", found["rx_write_requests"], 2)
    with _automatic("type,pid"):
        with Trial(bench), Trial(bench, kind="ud"):
            types = [entry["qp-type"] for entry in of_queue_pairs(bed.here).values()]
            equal("types", sorted(types), ["RC", "UD"])
            equal("processes", {entry["pid"] for entry in of_queue_pairs(bed.here).values()}, {os.getpid()})


@case()
def automatic_off_stays_bound():
    """After automatic mode ends, existing counters stay bound and can be unbound."""
    watch = Watch(bed.here, bed.peer)
    with contextlib.ExitStack() as trials:
        with _automatic("type"):
            t = trials.enter_context(Trial(bench))
            _exchange(t, 1)
        _exchange(t, 2)
        found = _only()
        equal("WRITEs", found["rx_write_requests"], 3)
        _statistic(f"unbind cntn {found['cntn']} lqpn {_number(t)}")
        equal("counters", of_queue_pairs(bed.here), {})
        _exchange(t, 1)
        equal("WRITEs of the device", watch.rise()["rx_write_requests"], 4)
    watch.agree()


@case()
def bound_by_hand():
    """`bind` and `unbind`: a counter covers its queue pairs' packets while they are bound.

    The device counts each packet once.
    """
    bench.ends()
    watch = Watch(bed.here, bed.peer)
    with Trial(bench) as one, Trial(bench) as other:
        _exchange(one, 1)
        _statistic(f"bind lqpn {_number(one)}")
        found = _only()
        counter = found["cntn"]
        equal("queue pairs", found["lqpn"], [_number(one)])
        equal("WRITEs", found["rx_write_requests"], 0)
        _exchange(one, 2)
        _exchange(other, 3)
        equal("WRITEs", _only()["rx_write_requests"], 2)
        equal("WRITEs of the device", watch.rise()["rx_write_requests"], 6)

        _refused(f"bind lqpn {_number(one)}")
        _refused(f"bind lqpn {_number(one)} cntn {counter}")
        _refused("set auto type on")
        _refused(f"unbind cntn {counter} lqpn {_number(other)}")

        _statistic(f"bind lqpn {_number(other)} cntn {counter}")
        _exchange(other, 1)
        equal("queue pairs", sorted(_only()["lqpn"]), sorted([_number(one), _number(other)]))
        equal("WRITEs", _only()["rx_write_requests"], 3)
        _statistic(f"unbind cntn {counter} lqpn {_number(one)}")
        _exchange(one, 4)
        equal("WRITEs", _only()["rx_write_requests"], 3)
        equal("WRITEs of the device", watch.rise()["rx_write_requests"], 11)
        _statistic(f"bind lqpn {_number(one)}")
        equal("counters", len(of_queue_pairs(bed.here)), 2)
        _statistic(f"unbind cntn {counter}")
        equal("queue pairs", _only()["lqpn"], [_number(one)])
        equal("WRITEs", _only()["rx_write_requests"], 0)
        equal("WRITEs of the device", watch.rise()["rx_write_requests"], 11)
    equal("counters", of_queue_pairs(bed.here), {})
    watch.agree()


@case(timeout=300)
def bound_under_traffic():
    """A queue pair that is bound and unbound repeatedly under traffic counts each packet once."""
    bench.ends()
    watch = Watch(bed.here, bed.peer)
    with Trial(bench) as t:
        qp = f"lqpn {_number(t)}"
        # No other counter exists, so this one gets the lowest number.
        turn = f"{_command(f'bind {qp}')} && {_command(f'unbind cntn 1 {qp}')} || exit 1"
        job = bed.here.machine.start(f"for i in $(seq 50); do {turn}; done")
        writes = 0
        while job.running():
            _exchange(t, 10)
            writes += 10
        equal("status of rdma", job.wait().status, 0)
        equal("counters", of_queue_pairs(bed.here), {})
        equal("WRITEs of the device", watch.rise()["rx_write_requests"], writes)
    watch.agree()


def run():
    """Runs the suite."""
    return bed.run()
