# SPDX-License-Identifier: GPL-2.0
"""What the bench runs in the guest, each for one figure: functions of client, server, case and how many runs of that case
there have been. They return the figure, and what the results say of this run besides."""

import functools
import json
import math
import os
import re
import time

import harness
import programs
import testbed

# Programs of our own.
HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# How many times the usual messages.
TIMES = int(os.environ.get("TIMES") or 1)

# How long a run may take by the guest's clock, in seconds: this only catches what never ends.
PATIENCE = 600

TCP_BYTES = "256M"

# So many queue pairs that do nothing, on either device.
IDLE = 10000
# Where the kernel's memory goes, and what a device has pinned of a program's: kinds that idle-queue-pairs prints.
OURS = ("Slab", "VmallocUsed", "PageTables", "KernelStack", "Percpu", "VmPin")

# So many connections at once.
CONNECTIONS = 1000
# Seconds after which nothing is left of them.
TIME_WAIT = 20

# A flood that lasts longer than what is measured beside it: large messages, as many under way as perftest usually has,
# which are 8 MiB. Where perftest is given a time, it can't wait for events. What it says is waited for.
FLOOD = "stdbuf -oL ib_send_bw -e -s 65536 -n 1000000"
# Quarters of a second that two floods are looked at.
FLOODS_LAST = 8


def bandwidth(output):
    """The average in MB/s, which are MiB/s."""
    return float(re.search(r"^\s*\d+\s+\d+\s+\S+\s+(\S+)\s+\S+\s*$", output, re.M).group(1))


def rate(output):
    """Messages a second."""
    return 1e6 * float(re.search(r"^\s*\d+\s+\d+\s+\S+\s+\S+\s+(\S+)\s*$", output, re.M).group(1))


# What perftest prints of a latency, in the order of its columns: half a round trip (of READ a whole one) in microseconds.
LATENCIES = ("least", "most", "median", "mean", "deviation", "99 %", "99.9 %")


def latencies(output):
    """What perftest prints of a latency."""
    columns = re.search(r"^\s*\d+\s+\d+" + r"\s+([\d.]+)" * len(LATENCIES) + r"\s*$", output, re.M)
    return dict(zip(LATENCIES, map(float, columns.groups())))


def command(host, words, port):
    """A program of perftest at a host."""
    # siw has no GIDs of addresses: connections are made by rdma_cm, and not for any address whatever.
    way = f"-R --bind_source_ip {host.address}" if host.driver == "siw" else f"-x {host.gid_index()}"
    return f"{words} -d {host.device} {way} -F -p {port}"


def listens(host):
    """What tells whether perftest is ready at a host."""
    return testbed.cm_listens if host.driver == "siw" else testbed.tcp_listens


def perftest(client, server, case, _):
    """The figure of one run, and for latencies all that perftest says."""
    port = programs.next_port()
    words = f"{case.words} -n {case.messages * TIMES}"
    arguments = (command(server, words, port), f"{command(client, words, port)} {server.address}", listens(client), port, PATIENCE)
    output = programs.run_pair(server, client, *arguments)[1]
    if case.what == "latency":
        all_of_it = latencies(output)
        return all_of_it["mean"], {"latencies": all_of_it}
    return {"bandwidth": bandwidth, "rate": rate}[case.what](output), {}


def iperf(client, server, case, _):
    """TCP's MB/s (MiB/s, as perftest counts)."""
    port = programs.next_port()
    asking = f"iperf3 -J -c {server.address} -p {port} -l {case.words} -n {TCP_BYTES}"
    output = programs.run_pair(server, client, f"iperf3 -s -1 -p {port}", asking, testbed.tcp_listens, port, PATIENCE)[1]
    return json.loads(output)["end"]["sum_received"]["bits_per_second"] / 8 / 2**20, {}


def idle_queue_pairs(host):
    """Make the idle queue pairs of a host, which are there until its jobs end. Returns KiB that one takes, and of what."""
    job = host.machine.start(f"{HERE}/idle-queue-pairs {host.device} {host.address} {IDLE}")
    harness.wait_until("the idle queue pairs are there", lambda: job.output().endswith("}\n") or not job.running(), PATIENCE)
    harness.require(job.running(), f"idle-queue-pairs ended: {job.output()[-400:]}")
    return {kind: round(size / 1024, 3) for kind, size in json.loads(job.output()).items()}


def fill(client, server, *_):
    """Idle queue pairs for both hosts, and what one takes of the kernel's memory with its rings, wherever these are. The
    second host's are counted: by then all that exists once is there."""
    idle_queue_pairs(client)
    parts = idle_queue_pairs(server)
    return sum(parts[kind] for kind in OURS), {"parts": parts}


# Steps of a connection that cmtime tells of, of which the first is from nothing to connected.
MADE = "full connect"
ENDED = ("disconnect", "destroy qp", "destroy id")


def cmtime(client, server, count):
    """What the client prints of so many connections."""
    # The kernel remembers ended connections for a while: those of the run before are not this one's.
    time.sleep(TIME_WAIT)
    port = programs.next_port()
    words = f"-c {count} -n 1 -p {port}"
    ends = (f"cmtime -b {server.address} {words}", f"cmtime -s {server.address} {words}")
    return programs.run_pair(server, client, *ends, testbed.cm_listens, port, PATIENCE)[1]


def connecting(client, server, _, run):
    """Connections a second, made and ended; and microseconds that each step of one takes where all do it at once."""
    if run == 0:
        # What exists once is there after these.
        cmtime(client, server, 100)
    count = CONNECTIONS * TIMES
    # Its last two tables: of connections with queue pairs, and without, which are disturbed by what is left of the others.
    table = cmtime(client, server, count).split("Connect (")[-2]
    found = re.findall(r"^([a-z ]+?)\s+\d+\s+(\d+)(?:\s+\d+){4}\s*$", table, re.M)
    steps = {name: int(total) / count for name, total in found}
    return 1e6 / (steps[MADE] + sum(steps[name] for name in ENDED)), {"steps": steps}


@functools.lru_cache(maxsize=None)
def found_registering(client, server, words, _):
    """All that the program `registering` finds in one run, which has several figures."""
    where = f"{server.device} {server.address}"
    where = f"{client.device} {client.address} {where}" if words.startswith("many") else server.device
    return json.loads(client.machine.run(f"{HERE}/registering {words} {where}", PATIENCE))


def registering(name):
    """One of those figures."""

    def figure(client, server, case, run):
        found = found_registering(client, server, case.words, run)
        return found[name], {"parts": found["parts"]} if name == "memory" else {}

    return figure


def wake_ups(client, _server, case, _):
    """How late a program wakes up that sleeps a millisecond at a time."""
    found = json.loads(client.machine.run(f"{HERE}/wake-ups {case.messages * TIMES}", PATIENCE))
    return found["mean"], {"latencies": found}


def start_flood(client, server, words):
    """Begin to flood a host, and wait until it is well under way. Returns what does it."""
    port = programs.next_port()

    def wait_for(what, job, condition):
        harness.wait_until(what, lambda: condition() or not job.running(), PATIENCE)
        harness.require(job.running(), f"a flood has ended: {job.output()[-400:]}")

    receiving = server.machine.start(command(server, words, port))
    wait_for("the flood's receiver listens", receiving, lambda: listens(server)(server.machine, port))
    sending = client.machine.start(f"{command(client, words, port)} {server.address}")
    # perftest has connected as it prints this.
    wait_for("the flood has begun", sending, lambda: "BW average" in sending.output())
    return receiving, sending


def flooded(measure):
    """The same beside a flood."""

    def figure(client, server, case, run):
        jobs = start_flood(client, server, FLOOD)
        try:
            time.sleep(1)
            found = measure(client, server, case, run)
            harness.require(jobs[1].running(), f"the flood has ended: {jobs[1].output()[-400:]}")
            return found
        finally:
            for job in jobs:
                job.kill()

    return figure


def two_floods(client, server, *_):
    """What the slower of two equal floods has of what both have, in percent."""
    words = f"{client.device} {client.address} {server.device} {server.address}"
    jobs = [client.machine.start(f"{HERE}/flood {words}") for _ in range(2)]

    def quarters(job):
        harness.require(job.running(), f"a flood has ended: {job.output()[-400:]}")
        lines = job.output().rpartition("\n")[0].splitlines()
        return {int(quarter): int(count) for quarter, count in map(str.split, lines)}

    def counted():
        """What each has done in the same quarters, or None as long as both have not counted as many."""
        found = [quarters(job) for job in jobs]
        # The first one of each is not a whole one.
        begin = max(min(flood, default=math.inf) for flood in found) + 1
        if any(max(flood, default=0) < begin + FLOODS_LAST * TIMES for flood in found):
            return None
        return [sum(flood.get(begin + n, 0) for n in range(FLOODS_LAST * TIMES)) for flood in found]

    try:
        counts = harness.wait_until("both floods are under way", counted, PATIENCE)
    finally:
        for job in jobs:
            job.kill()
    return 100 * min(counts) / sum(counts), {"floods": counts}
