# SPDX-License-Identifier: GPL-2.0
"""perftest between two hosts: every program, size and option completes all its iterations.

The bench measures speed, and the data suites verify data.
"""

import itertools
import re

import harness
import testbed
from counted import read
from harness import case, equal, log, require
from programs import ClientFailure, both_roles, next_port, roles, run_pair

bed = testbed.Bed()

# Sizes of the option -a: 2 B to 8 MiB.
ALL_SIZES = [2**n for n in range(1, 24)]

BANDWIDTH = ("ib_send_bw", "ib_write_bw", "ib_read_bw")
# 4.096 us * 2^22 = 17 s. With 4.3 s, a READ of 8 MiB from rdma_rxe failed once on a busy machine.
# Why it made no progress is not known.
QP_TIMEOUT = 22


def perftest(server, client, program, options, sizes, seconds=300):
    """Runs the program and checks its table.

    The table must have a row for each of these sizes with all requested iterations. The results are
    ignored, since they vary widely on a busy machine.
    """
    port = next_port()

    def command(host):
        # With the usual QP timeout (-u) of 67 ms, slow hosts would fail without any loss.
        return f"{program} -d {host.device} -x {host.gid_index()} -F -u {QP_TIMEOUT} -p {port} {options}"

    _, output = run_pair(
        server,
        client,
        command(server),
        f"{command(client)} {server.address}",
        testbed.tcp_listens,
        port,
        seconds,
        LD_PRELOAD="/guest/bin/libquick-clock.so",
    )
    # On a busy machine, perftest's remark about the clock may appear in the middle of any line.
    output = re.sub(r"Correlation coefficient r\^2:.*", "", output)
    rows = {}
    for line in output.splitlines():
        row = re.match(r"\s*(\d+)\s+(\d+)(\s+-?([0-9.]+|nan|inf))+\s*$", line)
        if row:
            rows[int(row.group(1))] = int(row.group(2))
    equal("sizes measured", sorted(rows), sorted(sizes))
    asked = int(re.findall(r"-n (\d+)", options)[-1])
    asked *= int((re.findall(r"-q (\d+)", options) or ["1"])[-1])
    for size, iterations in rows.items():
        require(iterations >= asked, f"{size} bytes: {iterations} iterations of {asked}")


# SEND and READ sleep until a completion comes, which costs a quarter less CPU time. How a program
# waits does not depend on the size, and the cases below poll.
@both_roles(
    bed, timeout=400, debug=False, each={"send-bw": "ib_send_bw -e", "write-bw": "ib_write_bw", "read-bw": "ib_read_bw -e"}
)
def all_sizes(server, client, program):
    """2 B to 8 MiB."""
    perftest(server, client, program, "-a -n 5", ALL_SIZES, 390)


# Between two drivers the long latency runs are omitted: all sizes are tested above in both roles,
# and latency tests follow below.
# SEND sleeps until a completion comes, as above; the cases below poll.
LATENCY = {} if len(roles()) > 1 else {"send": "ib_send_lat -e", "write": "ib_write_lat", "read": "ib_read_lat"}


@case(timeout=400, debug=False, each=LATENCY)
def all_sizes_latency(program):
    """2 B to 8 MiB, one message at a time."""
    perftest(bed.peer, bed.here, program, "-a -n 5", ALL_SIZES, 390)


# perftest has no events for WRITE, whose latency test polls memory.
EVENTS = ("ib_send_bw", "ib_read_bw", "ib_send_lat", "ib_read_lat")


@both_roles(bed, timeout=180, debug=False, each={name[3:].replace("_", "-"): name for name in EVENTS})
def events(server, client, program):
    """Completions by events instead of polling."""
    perftest(server, client, program, "-e -n 50 -s 4096", [4096])


STREAMS = {"send-bw": "ib_send_bw -e", "write-bw": "ib_write_bw", "read-bw": "ib_read_bw -e"}


@both_roles(bed, timeout=240, each=STREAMS)
def streams(server, client, program):
    """Streams of small messages: a program makes at most one call for each.

    The driver fetches messages that are posted without a call.
    """
    _stream(server, client, program)


@both_roles(bed, timeout=240, debug=False, each=STREAMS)
def signaled_streams(server, client, program):
    """Streams of small signaled messages, with completions polled or by events."""
    _stream(server, client, f"{program} -Q 1")


def _stream(server, client, program):
    count = 1000 if harness.debug_kernel() else 5000
    before = read(client).get("sq_doorbells")
    perftest(server, client, program, f"-n {count} -s 64", [64])
    if before is not None:
        rung = read(client)["sq_doorbells"] - before
        log(f"{rung} doorbells for {count} messages")
        # The savings depend on the machine's speed; the bench measures them.
        require(rung <= count, f"{rung} doorbells for {count} messages")


@both_roles(bed, timeout=240, each={name[3:].replace("_", "-"): name for name in BANDWIDTH})
def four_queue_pairs(server, client, program):
    """Four queue pairs in one program."""
    perftest(server, client, program, "-q 4 -n 50 -s 65536", [65536])


@both_roles(bed, timeout=180, debug=False, each={"bw": "ib_send_bw", "lat": "ib_send_lat"})
def shared_receive_queue(server, client, program):
    """One shared receive queue for all queue pairs."""
    pairs = "-q 4" if program == "ib_send_bw" else ""
    perftest(server, client, program, f"--use-srq {pairs} -n 100 -s 8192", [8192])


# Between two drivers, the other one is not under test.
OURS = {} if len(roles()) > 1 else BANDWIDTH


@case(timeout=240, debug=False, each={name[3:].replace("_", "-"): name for name in OURS})
def on_demand(program):
    """Buffers that are paged on demand."""
    perftest(bed.peer, bed.here, program, "--odp -q 2 -n 100 -s 65536", [65536])


@case(timeout=240, debug=False, each={"write-bw": "ib_write_bw", "read-bw": "ib_read_bw"} if OURS else {})
def null_region(program):
    """Data segments in a null region. perftest never deregisters it."""
    perftest(bed.peer, bed.here, program, "--use-null-mr -n 100 -s 65536", [65536])


@both_roles(
    bed,
    timeout=180,
    debug=False,
    each={"send-bw": "ib_send_bw", "write-bw": "ib_write_bw", "send-lat": "ib_send_lat"},
)
def inline(server, client, program):
    """Inline payload."""
    perftest(server, client, program, "-I 64 -s 64 -n 100", [64])


@both_roles(bed, timeout=180, debug=False, each={str(mtu): mtu for mtu in (256, 512, 1024, 2048, 4096)})
def path_mtu(server, client, mtu):
    """Every path MTU, with a size that is not a multiple of any."""
    for program in BANDWIDTH:
        perftest(server, client, program, f"-m {mtu} -s 100001 -n 10", [100001])


@both_roles(bed, timeout=180, debug=False, each={"bw": "ib_send_bw", "lat": "ib_send_lat"})
def bidirectional(server, client, program):
    """Both ends send."""
    options = "-b -s 65536 -n 20" if program == "ib_send_bw" else "-s 65536 -n 20"
    perftest(server, client, program, options, [65536])


ATOMICS = {
    f"{program[10:]}-{name}": (program, kind)
    for program in ("ib_atomic_bw", "ib_atomic_lat")
    for name, kind in (("cmp-swap", "CMP_AND_SWAP"), ("fetch-add", "FETCH_AND_ADD"))
}


@both_roles(bed, timeout=180, debug=("bw-fetch-add",), each=ATOMICS)
def atomic(server, client, what):
    """Both atomic operations."""
    program, kind = what
    perftest(server, client, program, f"-A {kind} -n 100", [8])


@both_roles(bed, timeout=180, debug=False, each={"bw": "ib_send_bw", "lat": "ib_send_lat"})
def datagrams(server, client, program):
    """UD: every size that fits a packet.

    The receiver has room for all messages, since the program would wait forever for a lost one.
    """
    for size in (2, 64, 1024, 4000):
        perftest(server, client, program, f"-c UD -s {size} -n 50 -r 512", [size])


# The client's error if no server listens: the reason is IB_CM_REJ_INVALID_SERVICE_ID.
TOO_EARLY = "RDMA_CM_EVENT_REJECTED; error: 8."
ATTEMPTS = 5


@case(timeout=300, debug=False)
def through_the_cm():
    """Connects through the RDMA CM instead of TCP.

    perftest's server listens for a first connection, over which both ends exchange parameters, and
    then again for the connections of the queue pairs. A client that arrives in between crashes: it
    tries to retry, but uses an event that it has freed. This case then starts again. Messages of
    the kernel about the crash are disabled, since the exit status shows it.
    """
    client = bed.here
    traced = client.machine.run("sysctl -n debug.exception-trace").strip()
    client.machine.run("sysctl -qw debug.exception-trace=0")
    try:
        output = _through_the_cm(bed.peer, client)
    finally:
        client.machine.run(f"sysctl -qw debug.exception-trace={traced}")
    require(re.search(r"^\s*65536\s+\d", output, re.M), "no result line")


def _through_the_cm(server, client):
    for attempt in itertools.count(1):
        port = next_port()
        options = f"-R -F -n 20 -s 65536 -p {port}"
        commands = (f"ib_write_bw -d {server.device} {options}", f"ib_write_bw -d {client.device} {options} {server.address}")
        try:
            return run_pair(server, client, *commands, testbed.cm_listens, port)[1]
        except ClientFailure as failure:
            if TOO_EARLY not in failure.output or attempt == ATTEMPTS:
                raise
            log(f"attempt {attempt}: the client was there before the server listened anew")


def run():
    """Runs the suite."""
    return bed.run()
