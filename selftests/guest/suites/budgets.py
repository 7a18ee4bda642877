# SPDX-License-Identifier: GPL-2.0
"""Work of many queue pairs at one time: no softirq is long, and other programs keep the CPU.

The clock of this guest counts instructions, so that the limits do not depend on the machine. The
guest has one CPU.
"""

import contextlib
import json
import random
import signal
import time

import control_groups
import counted
import measures
import packets
import programs
import softirqs
import testbed
import traffic
from harness import Skip, case, equal, log, require, wait_until
from packets import CNP, WRITE_ONLY, bth, reth

bed = testbed.Bed()

# Seconds that a softirq may take beyond the work of packets that arrive.
LONGEST_SOFTIRQ = 0.002
# Seconds for which a program that needs the CPU may have to wait for it: five ticks. It shares the
# CPU with the work of the flush and with what the guest runs, and each thread may run for a tick.
LONGEST_GAP = 0.020
# Shares of a CPU that another program keeps beside a flush, and beside retries.
FLUSH_SHARE = 0.45
RETRY_SHARE = 0.9

# Work requests of all queue pairs together, of which each has an equal part.
RECEIVES = 1 << 17
MANY = {"1": 1, "64": 64, "256": 256}

# RNR retries a second of all queue pairs of a user (RNR_RETRY_INTERVAL in drivers/rrxe/limits.rs),
# and of one queue pair.
RETRIES, RETRIES_EACH = 1000, 100

# The acknowledge timeout of many-queue-pairs in seconds (code 17), and its retries. A queue pair
# fails after a timeout for each retry and one more, at most 1.5 times that.
TIMEOUT, MAX_RETRIES = 4.096e-6 * (1 << 17), 7


@contextlib.contextmanager
def program(mode, host, *arguments):
    """Runs many-queue-pairs, and yields it and its output once its queue pairs are ready."""
    if bed.here.driver != "rrxe":
        raise Skip("the limits are those of rrxe")
    words = " ".join(map(str, [mode, host.device, host.gid_index(), *arguments]))
    job = host.machine.start(f"ulimit -l unlimited; exec many-queue-pairs {words}")
    try:

        def ready():
            require(job.running(), f"many-queue-pairs: {job.output()}")
            return "ready" in job.output()

        wait_until("the queue pairs are ready", ready, 300)
        yield job, job.output().split()[:-1]
    finally:
        job.kill()
        job.wait()


def spin(seconds):
    """Returns the loops per second of a busy program, and the longest time for which it did not
    run."""
    found = json.loads(bed.here.machine.run(f"many-queue-pairs spin {seconds}"))
    return found["loops"], found["gap"] / 1e6


def share_beside(seconds=2):
    """Returns the loops per second beside the rest, and the longest gap."""
    loops, gap = spin(seconds)
    log(f"{loops} loops a second, longest gap {gap * 1000:.2f} ms")
    return loops, gap


@case(timeout=600, each=MANY)
def flush_together(count):
    """The last timers of many queue pairs expire at one time, and their queues are flushed."""
    each = min(RECEIVES // count, 1 << 15)
    alone, _ = spin(1)

    def flushed():
        return counted.read(bed.here)["resp_cqe_flush_error"]

    before = flushed()
    with softirqs.traced() as longest:
        with program("flush", bed.here, count, each):
            loops, gap = share_beside()
            wait_until("everything is flushed", lambda: flushed() - before == count * each)
    log(f"longest softirqs: {longest}")
    require("HRTIMER" in longest, f"no timer has expired: {longest}")
    for name in ("HRTIMER", "TASKLET"):
        seconds = longest.get(name, 0)
        require(seconds < LONGEST_SOFTIRQ, f"{name} softirq: {seconds * 1000:.2f} ms")
    require(gap < LONGEST_GAP, f"another program did not run for {gap * 1000:.2f} ms")
    require(loops > FLUSH_SHARE * alone, f"another program had {loops / alone:.0%} of the CPU")


@case(timeout=600)
def refused_together():
    """The packets of one NAPI poll each end another queue pair, whose queue is flushed."""
    count, each = 64, 2048
    with testbed.namespaces(("rrxe", "rrxe")) as (victim, sender):
        mac = victim.machine.read(f"/sys/class/net/{victim.netdev}/address")
        # Releases packets ten times a second, all that have accumulated at once.
        sender.machine.run(f"tc qdisc replace dev {sender.netdev} root netem slot 100ms")
        with sender.machine.inside():
            wire = packets.Wire(sender.netdev, sender.address, victim.address, mac)
        times = []
        # A WRITE of no bytes needs no key.
        for length in (0, 8):
            with program("refused", victim, count, each, sender.address) as (_, numbers):
                equal("queue pairs", len(numbers), count)
                before = counted.read(victim)
                with softirqs.traced() as longest:
                    for number in numbers:
                        wire.send(bth(WRITE_ONLY, int(number), 0) + reth(0, 0, length) + bytes(length))
                    wanted = count * each if length else 0

                    def done(before=before, wanted=wanted):
                        now = counted.read(victim)
                        packets_seen = now["rcvd_pkts"] - before["rcvd_pkts"] >= count
                        return packets_seen and now["resp_cqe_flush_error"] - before["resp_cqe_flush_error"] == wanted

                    wait_until("all queues are flushed", done)
                log(f"{length} bytes: longest softirqs: {longest}")
                times.append(longest["NET_RX"])
                require(longest.get("TASKLET", 0) < LONGEST_SOFTIRQ, f"work items: {longest}")
        wire.close()
    require(times[1] - times[0] < LONGEST_SOFTIRQ, f"NET_RX softirqs, without and with errors: {times}")


@contextlib.contextmanager
def running(_job):
    """The process is not restricted."""
    yield


@contextlib.contextmanager
def stopped(job):
    """The process is stopped by a signal."""
    job.kill(signal.SIGSTOP)
    yield


@contextlib.contextmanager
def frozen(job):
    """The process is in a frozen control group."""
    with control_groups.control_group(process=job.process) as group:
        control_groups.write(f"{group}/cgroup.freeze", "1")
        yield
        control_groups.write(f"{group}/cgroup.freeze", "0")


@contextlib.contextmanager
def throttled(job):
    """The process is in a control group with one per cent of a CPU."""
    with control_groups.control_group("cpu", process=job.process) as group:
        control_groups.write(f"{group}/cpu.max", "1000 100000")
        yield


@case(timeout=300)
def timers_end():
    """The acknowledge, probe and gap timers of a stopped program's queue pairs expire, some at a
    reduced rate. The queue pairs fail after the programmed time, and then no timer is left."""
    count, least = 256, TIMEOUT * (MAX_RETRIES + 1)
    with testbed.namespaces(("rrxe", "rrxe")) as (host, absent):
        mac = host.machine.read(f"/sys/class/net/{host.netdev}/address")
        with absent.machine.inside():
            wire = packets.Wire(absent.netdev, absent.address, host.address, mac)
        before = counted.read(host)

        def rise():
            return {name: value - before[name] for name, value in counted.read(host).items()}

        with program("unacknowledged", host, count, 1 << 14, absent.address) as (job, words), stopped(job):
            *numbers, began = words
            equal("queue pairs", len(numbers), count)
            for number in numbers:
                # A request beyond a gap.
                wire.send(bth(WRITE_ONLY, int(number), 2) + reth(0, 0, 0))
            # Some notifications arrive while a queue pair retransmits, which then has a rate.
            while time.monotonic() < float(began) + least / 2:
                for number in numbers:
                    wire.send(bth(CNP, int(number), 0, ack=False) + bytes(16))
            require(softirqs.expirations("rrxe", 1) >= count, "hardly any timer has expired")
            wait_until("all queue pairs have failed", lambda: rise()["req_cqe_error"] == count)
            took = (time.monotonic() - float(began)) / TIMEOUT
            found = rise()
            log(f"{took:.2f} timeouts; {found}")
            require(least <= took * TIMEOUT <= 1.5 * least, f"after {took:.2f} timeouts")
            equal("acknowledge timeouts", found["local_ack_timeout_err"], count * (MAX_RETRIES + 1))
            equal("reported gaps", found["out_of_sequence"], count)
            require(found["rp_rate_reductions"] > 0, "no rate was reduced")
            require(found["retrans_pkts"] > 0, "nothing was sent again")
            # Packets beyond a gap are dropped after half a second.
            time.sleep(1)
            equal("timers that expire later", softirqs.expirations("rrxe", 2), 0)
        wire.close()


# Pages that never come, and messages of 64 KiB of another program.
ABSENT, MESSAGES = 64, 3000
# The share of its goodput that the other program keeps.
GOODPUT_SHARE = 0.95


def goodput(client, server):
    """Returns the throughput of a program in MiB/s."""
    port, words = programs.next_port(), f"ib_send_bw -e -s 65536 -n {MESSAGES}"
    serving, asking = (measures.command(host, words, port) for host in (server, client))
    asking = f"{asking} {server.address}"
    _, output = programs.run_pair(server, client, serving, asking, testbed.tcp_listens, port)
    return measures.bandwidth(output)


@contextlib.contextmanager
def absent_pages(client, server, timeout):
    """Runs a program on each device in the block. All queue pairs of the client's program wait for
    pages that never come: one half of them for data to send, and the other for a place for data."""
    rng = random.Random("absent")
    with traffic.connection((client, server), rng, apart=(0, 1)) as (left, right):
        if left.info["driver"] != "rrxe":
            raise Skip("the other driver has no such pages")
        address = left.end.map(ABSENT * 4096)
        region = left.end.over(left.pd, address, ABSENT * 4096)
        left.end.without_answer(address, ABSENT * 4096)
        waiting = []
        for number in range(ABSENT):
            qps = [side.end.qp("rc", side.pd, side.send_cq, side.recv_cq) for side in (left, right)]
            for side, other, qp, peer in zip((left, right), (right, left), qps, reversed(qps)):
                side.end.to_init(qp["id"])
                side.end.to_rtr(qp["id"], gid=other.info["gid"], qpn=peer["qpn"])
                side.end.to_rts(qp["id"], timeout=timeout)
            page = address + number * 4096
            if number % 2:
                sge, target = [[page, 64, region["lkey"]]], (right.small["rkey"], right.small["address"])
            else:
                sge, target = [[right.small["address"], 64, right.small["lkey"]]], (region["rkey"], page)
            waiting.append((left if number % 2 else right, qps[not number % 2]["id"]))
            request = {"id": number, "op": "write", "sge": sge, "rkey": target[0], "raddr": target[1]}
            waiting[-1][0].end.post_send(waiting[-1][1], [request])
        left.end.wait_for_page(10)
        yield
        for side, qp in waiting:
            equal(f"state of {qp} on {side.name}", side.end.state(qp), "rts")
            equal("completions", side.end.poll(side.send_cq, 1, 0), [])
        left.end.die()


@case(timeout=600, each={"infinite": 0, "1-s": 18})
def beside_absent_pages(timeout):
    """64 pages of a program never come: others keep their goodput, and retransmit nothing."""
    with testbed.namespaces(("rrxe", "rrxe")) as (client, server):
        alone = [goodput(client, server) for _ in range(2)]
        with absent_pages(client, server, timeout):
            before = [counted.read(host) for host in (client, server)]
            beside = [goodput(client, server) for _ in range(2)]
            after = [counted.read(host) for host in (client, server)]
        rises = [{name: new[name] - old[name] for name in new if new[name] != old[name]} for old, new in zip(before, after)]
        log(f"alone {alone} MiB/s, beside absent pages {beside} MiB/s; {rises}")
        require(min(beside) > GOODPUT_SHARE * max(alone), f"{beside} MiB/s, not {alone}")
        for rise in rises:
            names = ("out_of_buffer", "rnr_nak_retry_err", "packet_seq_err", "out_of_sequence")
            equal("interruptions", {name: rise[name] for name in names if name in rise}, {})
            if not timeout:
                equal("retransmissions", rise.get("retrans_pkts", 0), 0)


STATES = {f"{state.__name__}-{count}": (state, count) for state in (running, stopped, frozen, throttled) for count in (1, 64, 256)}


@case(timeout=300, each=STATES)
def retries_without_end(how):
    """Pairs whose receivers are never ready retry without end, whatever their process does."""
    state, count = how
    alone, _ = spin(1)
    with program("rnr", bed.here, count, 64) as (job, _), state(job):
        # The first retries follow each other closely.
        time.sleep(3)
        seconds = 2
        before, began = counted.read(bed.here)["out_of_buffer"], time.monotonic()
        loops, _ = share_beside(seconds)
        retries = counted.read(bed.here)["out_of_buffer"] - before
        rate = retries / (time.monotonic() - began)
        log(f"{rate:.0f} retries a second")
        most = min(RETRIES, RETRIES_EACH * count)
        require(most / 4 < rate < most * 1.1, f"{rate:.0f} retries a second")
        require(loops > RETRY_SHARE * alone, f"another program had {loops / alone:.0%} of the CPU")


def run():
    """Runs the suite."""
    return bed.run()
