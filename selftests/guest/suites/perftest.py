# SPDX-License-Identifier: GPL-2.0
"""perftest between two hosts: that every program, size and option runs to its end, all iterations of
it. How fast is the benchmark's question, and whether the bytes are right the data suite's."""

import itertools
import re

import harness
import testbed
from counted import read
from harness import case, equal, log, require
from programs import ClientFailure, both_roles, next_port, roles, run_pair

bed = testbed.Bed()

# What -a runs through: 2 B to 8 MiB.
ALL_SIZES = [2**n for n in range(1, 24)]

BANDWIDTH = ("ib_send_bw", "ib_write_bw", "ib_read_bw")
QP_TIMEOUT = 20  # 4.096 us * 2^20 = 4.3 s


def perftest(server, client, program, options, sizes, seconds=300):
    """Run the program; its table must have a row for each of these sizes, of as many iterations as were
    asked for. What it measured is not looked at: on a busy machine it may be anything, and is."""
    port = next_port()

    def command(host):
        # A QP timeout (-u) of seconds: with the usual 67 ms, a slow host fails where nothing is lost.
        return f"{program} -d {host.device} -x {host.gid_index()} -F -u {QP_TIMEOUT} -p {port} {options}"

    _, output = run_pair(
        server, client, command(server), f"{command(client)} {server.address}", testbed.tcp_listens, port, seconds
    )
    # What perftest says of the clock, where the machine is busy, comes in the middle of any line.
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


@both_roles(bed, timeout=400, debug=False, each={name[3:].replace("_", "-"): name for name in BANDWIDTH})
def all_sizes(server, client, program):
    """2 B to 8 MiB."""
    perftest(server, client, program, "-a -n 5", ALL_SIZES, 390)


# Between two drivers there are all sizes in both roles above, and latency tests of some below: these take longest.
LATENCY = {} if len(roles()) > 1 else {"send": "ib_send_lat", "write": "ib_write_lat", "read": "ib_read_lat"}


@case(timeout=400, debug=False, each=LATENCY)
def all_sizes_latency(program):
    """2 B to 8 MiB, one message at a time."""
    perftest(bed.peer, bed.here, program, "-a -n 5", ALL_SIZES, 390)


# perftest has no events for WRITE, whose latency test polls memory.
EVENTS = ("ib_send_bw", "ib_read_bw", "ib_send_lat", "ib_read_lat")


@both_roles(bed, timeout=180, debug=False, each={name[3:].replace("_", "-"): name for name in EVENTS})
def events(server, client, program):
    """Completions by events in place of polling."""
    perftest(server, client, program, "-e -n 50 -s 4096", [4096])


STREAMS = {"send-bw": "ib_send_bw -e", "write-bw": "ib_write_bw", "read-bw": "ib_read_bw -e"}


@both_roles(bed, timeout=240, each=STREAMS)
def streams(server, client, program):
    """Small messages one behind the other, which the driver collects: a program need not call for each, and never calls
    more than once."""
    _stream(server, client, program)


@both_roles(bed, timeout=240, debug=False, each=STREAMS)
def signaled_streams(server, client, program):
    """The same where each message has its completion, which the program polls for or has events of."""
    _stream(server, client, f"{program} -Q 1")


def _stream(server, client, program):
    count = 1000 if harness.debug_kernel() else 5000
    before = read(client).get("sq_doorbells")
    perftest(server, client, program, f"-n {count} -s 64", [64])
    if before is not None:
        rung = read(client)["sq_doorbells"] - before
        log(f"{rung} doorbells for {count} messages")
        # How many are saved depends on how fast the machine is: the bench tells.
        require(rung <= count, f"{rung} doorbells for {count} messages")


@both_roles(bed, timeout=240, each={name[3:].replace("_", "-"): name for name in BANDWIDTH})
def four_queue_pairs(server, client, program):
    """Four queue pairs in one program."""
    perftest(server, client, program, "-q 4 -n 50 -s 65536", [65536])


@both_roles(bed, timeout=180, debug=False, each={"bw": "ib_send_bw", "lat": "ib_send_lat"})
def shared_receive_queue(server, client, program):
    """Receives of all queue pairs in one queue."""
    pairs = "-q 4" if program == "ib_send_bw" else ""
    perftest(server, client, program, f"--use-srq {pairs} -n 100 -s 8192", [8192])


@both_roles(
    bed,
    timeout=180,
    debug=False,
    each={"send-bw": "ib_send_bw", "write-bw": "ib_write_bw", "send-lat": "ib_send_lat"},
)
def inline(server, client, program):
    """Payload inside the work request."""
    perftest(server, client, program, "-I 64 -s 64 -n 100", [64])


@both_roles(bed, timeout=180, debug=False, each={str(mtu): mtu for mtu in (256, 512, 1024, 2048, 4096)})
def path_mtu(server, client, mtu):
    """Every path MTU, with a size that no MTU divides."""
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
    """Both atomics."""
    program, kind = what
    perftest(server, client, program, f"-A {kind} -n 100", [8])


@both_roles(bed, timeout=180, debug=False, each={"bw": "ib_send_bw", "lat": "ib_send_lat"})
def datagrams(server, client, program):
    """UD: every size that fits a packet. Fewer messages than the receiver has room for: none may be
    lost, since the program would wait for it for ever."""
    for size in (2, 64, 1024, 4000):
        perftest(server, client, program, f"-c UD -s {size} -n 50 -r 512", [size])


# What the client says whom nobody listens for: the reason is IB_CM_REJ_INVALID_SERVICE_ID.
TOO_EARLY = "RDMA_CM_EVENT_REJECTED; error: 8."
ATTEMPTS = 5


@case(timeout=300, debug=False)
def through_the_cm():
    """Connected by the RDMA CM in place of TCP.

    perftest's server listens for a first connection, over which both agree on what follows, and then anew for the queue pairs'. Nothing
    keeps the client from being there before that, and then it dies: it means to try again, but of an event that it has
    freed. So this is begun anew, and the kernel need not tell of it: a program's end is known by its status.
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
    """Run the suite."""
    return bed.run()
