# SPDX-License-Identifier: GPL-2.0
"""qperf, fio, libfabric and rsockets as Debian packages them, between two hosts."""

import contextlib
import re

import testbed
from harness import equal, require, wait_until
from programs import both_roles, next_port, run_pair

bed = testbed.Bed()


@contextlib.contextmanager
def serving(host, command, listens, port):
    """Runs a server that does not exit on its own; yields its job once it listens."""
    job = host.machine.start(command)
    try:
        wait_until(f"'{command}' listens", lambda: listens(host.machine, port))
        yield job
    finally:
        job.kill()
        job.wait()


# qperf's tests that connect through the connection manager, which are RC only.
QPERF = ("rc_bi_bw", "rc_bw", "rc_lat", "rc_rdma_read_bw", "rc_rdma_read_lat", "rc_rdma_write_bw")
QPERF += ("rc_rdma_write_lat", "rc_rdma_write_poll_lat", "ver_rc_compare_swap", "ver_rc_fetch_add")
QPERF_TRIES = 20
# Seconds that a connection may take to set up; qperf's own limit of 5 s is too short for a busy
# machine.
QPERF_TIMEOUT = 60


@both_roles(bed, timeout=120, each={name.replace("_", "-"): name for name in QPERF})
def qperf(server, client, test):
    """A test of qperf. ver_rc_… compare the value in memory after each atomic operation.

    The server's child for the test then calls rdma_destroy_qp() on the listening identifier, which
    has no queue pair, and ends with a segmentation fault. It does so on every device, and nothing
    checks its exit status.
    """
    port = next_port()
    with serving(server, f"qperf -lp {port}", testbed.tcp_listens, port):
        output = _ask_qperf(client, f"qperf -lp {port} -t 1 -to {QPERF_TIMEOUT} -cm1 {server.address} {test}")
        found = re.search(r"^ +(?:bw|latency|msg_rate) += +([\d.]+) ", output, re.M)
        require(found and float(found[1]) > 0, f"no figure: {output}")


def _ask_qperf(client, command):
    """Runs qperf's client and returns its output.

    qperf 0.4.11's server tells the client its port before it calls rdma_listen(). If the client's
    connection request is faster, the connection manager rejects it, on every device. The client
    then tries again.
    """
    for _ in range(QPERF_TRIES):
        result = client.machine.try_run(command, 60)
        if "Event rejected" not in result.output:
            break
    require(result.status == 0, f"'{command}' ended with {result.status}: {result.output}")
    return result.output


@both_roles(bed, timeout=120)
def perftest_multicast(server, client):
    """ib_send_bw over UD to a multicast group.

    Its default group is interface-local and reaches no other host.
    """
    port = next_port()

    def command(host):
        index = host.gid_index(host.address6)
        return f"ib_send_bw -d {host.device} -x {index} -c UD -g -M 255:14:0:0:0:0:0:0:0:0:0:0:0:0:0:1 -n 100 -s 1024 -F -p {port}"

    ends = run_pair(server, client, command(server), f"{command(client)} {server.address}", testbed.tcp_listens, port)
    for output in ends:
        require(re.search(r"^ 1024 +100 ", output, re.M), f"no result: {output}")


# Requests that fio keeps in flight. With the verb "send" the server needs more receives than that,
# since fio connects with an RNR retry count of 0.
FIO_DEPTH = 8
FIO_RECEIVES = 64
FIO_BLOCKS = 64

FIO_JOB = f"[job]\nioengine=rdma\nthread=1\nbs=64k\nsize={FIO_BLOCKS * 64}k\n"


@both_roles(bed, timeout=200, each={name: name for name in ("write", "read", "send")})
def fio(server, client, verb):
    """fio's engine rdma: all blocks are transferred, and both ends exit."""
    port = next_port()
    serve = f"{FIO_JOB}port={port}\nrw=read\niodepth={FIO_RECEIVES}\n"
    ask = f"{FIO_JOB}hostname={server.address}\nport={port}\nrw=write\nverb={verb}\niodepth={FIO_DEPTH}\n"
    for host, job in ((server, serve), (client, ask)):
        host.machine.run(f"printf '{job}' > /tmp/job")
    ends = run_pair(server, client, "fio /tmp/job", "fio /tmp/job", testbed.cm_listens, port)
    require(f"total=0,{FIO_BLOCKS},0,0" in ends[1], "the client did not send all blocks")
    if verb == "send":
        require(f"total={FIO_BLOCKS},0,0,0" in ends[0], "the server did not receive all blocks")


# Endpoints of libfabric's verbs provider, by the layer above it.
FABRIC = {
    "msg": "-p verbs -e msg",
    "dgram": "-p verbs -e dgram",
    "rxm": "-p 'verbs;ofi_rxm' -e rdm",
    "rxd": "-p 'verbs;ofi_rxd' -e rdm",
}


@both_roles(bed, timeout=200, each=FABRIC)
def libfabric(server, client, options):
    """fi_pingpong, with data verification, over connections and datagrams."""
    port = next_port()
    command = f"fi_pingpong {options} -c -I 10 -S 16384"
    if "dgram" in options:
        command = command.replace("16384", "2048")
    ends = run_pair(server, client, f"{command} -B {port}", f"{command} -P {port} {server.address}", testbed.tcp_listens, port)
    for output in ends:
        require(re.search(r"^\w+ +10 +=10 ", output, re.M), f"not all messages came back: {output}")


@both_roles(bed, timeout=120, each={"rstream": "rstream -T v", "riostream": "riostream -T v"})
def rsockets(server, client, command):
    """Streams of rsockets with verified data; riostream maps its peer's buffer."""
    port = next_port()
    common = f"{command} -p {port} -C 20 -S 65536"
    ends = run_pair(server, client, common, f"{common} -s {server.address}", testbed.cm_listens, port)
    for output in ends:
        require(re.search(r"^custom +64k +20 ", output, re.M), f"no result: {output}")


@both_roles(bed, timeout=120)
def rcopy(server, client):
    """rcopy copies a file over rsockets."""
    with serving(server, "rcopy", testbed.cm_listens, 7427) as job:
        client.machine.run("dd if=/dev/urandom of=/tmp/original bs=1M count=4 status=none")
        client.machine.run(f"rcopy /tmp/original {server.address}:/tmp/copy", 60)
        wanted = client.machine.run("sha256sum < /tmp/original")
        wait_until("the copy is closed", lambda: "done" in job.output())
        equal("the copy", server.machine.run("sha256sum < /tmp/copy"), wanted)


def run():
    """Runs the suite."""
    return bed.run()
