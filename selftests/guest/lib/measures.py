# SPDX-License-Identifier: GPL-2.0
"""The measurements that the bench runs in the guest, one function per figure.

Each function takes the client, the server, the case and the number of earlier runs of that case. It
returns the figure and further data about this run for the results.
"""

import functools
import json
import math
import os
import re
import time

import harness
import programs
import testbed

# Folder of the project's own programs.
HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Multiplies the number of messages.
TIMES = int(os.environ.get("TIMES") or 1)

# Time limit of a run in seconds of guest time; only catches hangs.
TIMEOUT = 600

# Seconds for which iperf3 transmits.
TCP_SECONDS = 2

# Number of idle queue pairs on each device.
IDLE = 10000
# Kinds of memory printed by idle-queue-pairs that count as a queue pair's cost: the kernel's own
# memory, and program memory pinned by the device.
OURS = ("Slab", "VmallocUsed", "PageTables", "KernelStack", "Percpu", "VmPin")

# Number of concurrent connections.
CONNECTIONS = 1000
# Seconds after which the kernel has forgotten ended connections.
TIME_WAIT = 20

# A flood that outlasts the measurement beside it: large messages, with perftest's usual number in
# flight, which is 8 MiB. perftest cannot wait for events if it is given a duration. Its output is
# line-buffered because start_flood() waits for a line of it.
FLOOD = "stdbuf -oL ib_send_bw -e -s 65536 -n 1000000"
# Quarters of a second over which two floods are compared.
FLOODS_LAST = 8


def reductions(hosts, timeouts_permit):
    """Returns how often rates and windows have been reduced: {(device, counter): number}.

    If timeouts permit to reduce a window, their number is subtracted.
    """
    found = {}
    for host in hosts:
        statistics = host.machine.look("statistics", host.device)
        found[host.device, "rp_rate_reductions"] = statistics["rp_rate_reductions"]
        timeouts = statistics["local_ack_timeout_err"] if timeouts_permit else 0
        found[host.device, "rp_window_reductions"] = statistics["rp_window_reductions"] - timeouts
    return found


def check_reductions(before, after):
    """Raises a Failure if a rate or a window was reduced in between."""
    risen = {where: after[where] - count for where, count in before.items() if after[where] > count}
    words = ", ".join(f"{name} of {device}: {count}" for (device, name), count in risen.items())
    harness.require(not risen, f"reduced without a loss or a mark: {words}")


def bandwidth(output):
    """Returns the average in MB/s as perftest counts, that is, MiB/s."""
    return float(re.search(r"^\s*\d+\s+\d+\s+\S+\s+(\S+)\s+\S+\s*$", output, re.M).group(1))


def rate(output):
    """Returns messages per second."""
    return 1e6 * float(re.search(r"^\s*\d+\s+\d+\s+\S+\s+\S+\s+(\S+)\s*$", output, re.M).group(1))


# Columns of perftest's latencies: half a round trip (for READ a whole one), in microseconds.
LATENCIES = ("least", "most", "median", "mean", "deviation", "99 %", "99.9 %")


def latencies(output):
    """Returns the latencies that perftest printed, by name."""
    columns = re.search(r"^\s*\d+\s+\d+" + r"\s+([\d.]+)" * len(LATENCIES) + r"\s*$", output, re.M)
    return dict(zip(LATENCIES, map(float, columns.groups())))


def command(host, words, port, version=4):
    """Returns the command line of a perftest program on a host, over this version of IP."""
    # siw has no GIDs derived from addresses. rdma_cm connects it and needs a source address.
    way = f"-R --bind_source_ip {host.address}" if host.driver == "siw" else f"-x {host.gid_index(host.address6 if version == 6 else host.address)}"
    return f"{words} -d {host.device} {way} -F -p {port}"


def listens(host):
    """Returns the function that tells whether perftest is ready on a host."""
    return testbed.cm_listens if host.driver == "siw" else testbed.tcp_listens


def run_perftest(client, server, case, messages):
    """Runs perftest with a number of messages and returns the client's output."""
    port = programs.next_port()
    words = f"{case.words} -n {messages}"
    serving, asking = (command(host, words, port, case.version) for host in (server, client))
    # The programs exchange queue pair numbers and GIDs by TCP over IPv4.
    return programs.run_pair(server, client, serving, f"{asking} {server.address}", listens(client), port, TIMEOUT)[1]


def perftest(client, server, case, _):
    """Returns the figure of one run, and for latencies everything that perftest prints."""
    output = run_perftest(client, server, case, case.messages * TIMES)
    if case.what == "latency":
        all_of_it = latencies(output)
        return all_of_it["mean"], {"latencies": all_of_it}
    return {"bandwidth": bandwidth, "rate": rate}[case.what](output), {}


def iperf(client, server, case, _):
    """Returns TCP's throughput in MB/s (MiB/s, as perftest counts)."""
    output = run_iperf(client, server, case, f"-t {TCP_SECONDS * TIMES}")
    return json.loads(output)["end"]["sum_received"]["bits_per_second"] / 8 / 2**20, {}


def run_iperf(client, server, case, amount):
    """Transfers data by TCP and returns the output of iperf3's client.

    `amount` is iperf3's option for the number of bytes or seconds.
    """
    port = programs.next_port()
    asking = f"iperf3 -J -c {server.address} -p {port} -l {case.words} {amount}"
    return programs.run_pair(server, client, f"iperf3 -s -1 -p {port}", asking, testbed.tcp_listens, port, TIMEOUT)[1]


# A short run has this part of the messages of a long one.
SHORT = 20
# Bytes of TCP that count as a message.
TCP_MESSAGE = 65536


def kernel_time(client, server, case, _):
    """Returns the time in nanoseconds that the kernel's code of both hosts runs for a message.

    It is the difference between a long and a short run, so that the start of the programs does not
    count. The guest must have the native kernel.
    """
    if client.driver == "tcp":
        def transfer(messages):
            run_iperf(client, server, case, f"-n {messages * TCP_MESSAGE}")
    else:
        def transfer(messages):
            run_perftest(client, server, case, messages)

    def spent(messages):
        before = kernel_time_so_far()
        transfer(messages)
        return kernel_time_so_far() - before

    few = case.messages // SHORT
    return 1000 * (spent(case.messages) - spent(few)) / (case.messages - few), {}


def kernel_time_so_far():
    """Returns the microseconds that the code of the native kernel has run since its start.

    The launcher of the guest replies (qemu/vm.py, Guest.tell_times()).
    """
    question = f"/guest/times/{os.getpid()}-{time.monotonic_ns()}"
    with open(question, "w", encoding="ascii"):
        pass
    harness.wait_until("the launcher tells the time", lambda: os.path.exists(f"{question}.told"), TIMEOUT)
    with open(f"{question}.told", encoding="ascii") as file:
        return int(file.read())


def idle_queue_pairs(host):
    """Creates the idle queue pairs of a host; they live until the host's jobs end.

    Returns the KiB that one of them takes, by kind of memory.
    """
    job = host.machine.start(f"{HERE}/idle-queue-pairs {host.device} {host.address} {IDLE}")
    harness.wait_until("the idle queue pairs are there", lambda: job.output().endswith("}\n") or not job.running(), TIMEOUT)
    harness.require(job.running(), f"idle-queue-pairs ended: {job.output()[-400:]}")
    return {kind: round(size / 1024, 3) for kind, size in json.loads(job.output()).items()}


def fill(client, server, *_):
    """Creates idle queue pairs on both hosts and measures the memory of one, including its rings.

    Only the second host's are counted, because one-time allocations have been made by then.
    """
    idle_queue_pairs(client)
    parts = idle_queue_pairs(server)
    return sum(parts[kind] for kind in OURS), {"parts": parts}


# Steps of a connection that cmtime reports. The first covers everything up to connected.
MADE = "full connect"
ENDED = ("disconnect", "destroy qp", "destroy id")


def cmtime(client, server, count):
    """Runs cmtime with `count` connections and returns the client's output."""
    # The kernel remembers ended connections for a while; wait until those of the last run are gone.
    time.sleep(TIME_WAIT)
    port = programs.next_port()
    words = f"-c {count} -n 1 -p {port}"
    ends = (f"cmtime -b {server.address} {words}", f"cmtime -s {server.address} {words}")
    return programs.run_pair(server, client, *ends, testbed.cm_listens, port, TIMEOUT)[1]


def connecting(client, server, _, run):
    """Returns connections per second, made and ended, and microseconds per step.

    All connections run concurrently.
    """
    if run == 0:
        # Warm-up, for one-time allocations.
        cmtime(client, server, 100)
    count = CONNECTIONS * TIMES
    # cmtime's last two tables are connections with queue pairs and without. The remains of the
    # former disturb the latter.
    table = cmtime(client, server, count).split("Connect (")[-2]
    found = re.findall(r"^([a-z ]+?)\s+\d+\s+(\d+)(?:\s+\d+){4}\s*$", table, re.M)
    steps = {name: int(total) / count for name, total in found}
    return 1e6 / (steps[MADE] + sum(steps[name] for name in ENDED)), {"steps": steps}


@functools.lru_cache(maxsize=None)
def found_registering(client, server, words, _):
    """Returns all figures of one run of the program `registering`."""
    where = f"{server.device} {server.address}"
    where = f"{client.device} {client.address} {where}" if words.startswith("many") else server.device
    return json.loads(client.machine.run(f"{HERE}/registering {words} {where}", TIMEOUT))


def registering(name):
    """Returns the measurement of one figure of `registering`."""

    def figure(client, server, case, run):
        found = found_registering(client, server, case.words, run)
        return found[name], {"parts": found["parts"]} if name == "memory" else {}

    return figure


def wake_ups(client, _server, case, _):
    """Measures how late a program wakes up that sleeps for a millisecond at a time."""
    found = json.loads(client.machine.run(f"{HERE}/wake-ups {case.messages * TIMES}", TIMEOUT))
    return found["mean"], {"latencies": found}


def start_flood(client, server, words):
    """Starts to flood a host and waits until the flood is under way. Returns its two jobs."""
    port = programs.next_port()

    def wait_for(what, job, condition):
        harness.wait_until(what, lambda: condition() or not job.running(), TIMEOUT)
        harness.require(job.running(), f"a flood has ended: {job.output()[-400:]}")

    receiving = server.machine.start(command(server, words, port))
    wait_for("the flood's receiver listens", receiving, lambda: listens(server)(server.machine, port))
    sending = client.machine.start(f"{command(client, words, port)} {server.address}")
    # perftest prints this once it is connected.
    wait_for("the flood has begun", sending, lambda: "BW average" in sending.output())
    return receiving, sending


def flooded(measure):
    """Returns a measurement that runs `measure` during a flood."""

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
    """Returns the share, in percent, that the slower of two equal floods has of their total."""
    words = f"{client.device} {client.address} {server.device} {server.address}"
    jobs = [client.machine.start(f"{HERE}/flood {words}") for _ in range(2)]

    def quarters(job):
        harness.require(job.running(), f"a flood has ended: {job.output()[-400:]}")
        lines = job.output().rpartition("\n")[0].splitlines()
        return {int(quarter): int(count) for quarter, count in map(str.split, lines)}

    def counted():
        """Returns the counts of both floods over the same quarters of a second.

        Returns None until both have counted enough quarters.
        """
        found = [quarters(job) for job in jobs]
        # The first quarter of each is incomplete.
        begin = max(min(flood, default=math.inf) for flood in found) + 1
        if any(max(flood, default=0) < begin + FLOODS_LAST * TIMES for flood in found):
            return None
        return [sum(flood.get(begin + n, 0) for n in range(FLOODS_LAST * TIMES)) for flood in found]

    try:
        counts = harness.wait_until("both floods are under way", counted, TIMEOUT)
    finally:
        for job in jobs:
            job.kill()
    return 100 * min(counts) / sum(counts), {"floods": counts}
