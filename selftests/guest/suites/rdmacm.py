# SPDX-License-Identifier: GPL-2.0
"""rdma-core's example programs between two hosts: connections by the RDMA CM and by hand."""

import re

import testbed
from harness import case, equal, require
from programs import both_roles, despite_stalls, next_port, rping, run_pair

bed = testbed.Bed()


@case(timeout=30, debug=False)
def devinfo():
    """ibv_devinfo shows the attributes of the device."""
    text = bed.here.machine.run(f"ibv_devinfo -v -d {bed.here.device}")
    for name, wanted in (
        ("transport", r"InfiniBand \(0\)"),
        ("phys_port_cnt", "1"),
        ("state", r"PORT_ACTIVE \(4\)"),
        ("active_mtu", r"4096 \(5\)"),
        ("link_layer", "Ethernet"),
        ("phys_state", r"LINK_UP \(5\)"),
        ("node_guid", r"(?!0000:0000:0000:0000)[0-9a-f:]{19}"),
    ):
        require(re.search(rf"^\s*{name}:\s+{wanted}", text, re.M), f"no line '{name}: {wanted}'")
    require(re.search(r"GID\[\s*\d+\]:\s+::ffff:10\.77\.0\.1, RoCE v2", text), "no RoCEv2 GID for the IPv4 address")


@both_roles(bed, timeout=300, each={"ipv4": False, "ipv6": True})
def rping_200(server, client, ipv6):
    """200 rounds, verified at both ends."""
    rping(server, client, 200, server.address6 if ipv6 else server.address)


@both_roles(bed, timeout=240, debug=False, each={"1": 64, "4095": 4095, "65535": 65535})
def rping_size(server, client, size):
    """Message sizes below and above one packet, and the largest that rping supports."""
    rping(server, client, 20, more=f"-S {size}")


@both_roles(bed, timeout=180, debug=False)
def rping_own_qp(server, client):
    """A queue pair that the program itself moves through its states."""
    rping(server, client, 50, more="-q")


# Number of connections, messages per connection, and bytes per message.
LOADS = {"one": (1, 100, 100), "many": (8, 20, 4096), "large": (1, 10, 65536)}


@both_roles(bed, timeout=240, debug=("many",), each=LOADS)
def ucmatose(server, client, load):
    """Connections with messages in both directions, then a clean disconnect."""
    connections, count, size = load
    _cm_pair(server, client, "ucmatose", f"-c {connections} -C {count} -S {size}")


@both_roles(bed, timeout=240, debug=("many",), each={"one": (1, 100, 100), "many": (4, 20, 1024)})
def udaddy(server, client, load):
    """Datagrams in both directions, with addresses resolved by the RDMA CM."""
    connections, count, size = load
    _cm_pair(server, client, "udaddy", f"-c {connections} -C {count} -S {size}")


# The ports of the servers; that of udaddy is fixed.
CM_PORTS = {"ucmatose": 7471, "udaddy": 7174}


def _cm_pair(server, client, program, options):
    ends = run_pair(
        server,
        client,
        f"{program} {options}",
        f"{program} -s {server.address} {options}",
        testbed.cm_listens,
        CM_PORTS[program],
        180,
    )
    for output in ends:
        require("test complete" in output, "the test did not complete")
        require("return status 0" in output, "the status is not 0")


@both_roles(bed, timeout=120)
def rdma_server_client(server, client):
    """The smallest example: one message in each direction."""
    port = next_port()
    outputs = run_pair(
        server,
        client,
        f"rdma_server -s {server.address} -p {port}",
        f"rdma_client -s {server.address} -p {port}",
        testbed.cm_listens,
        port,
    )
    for output, name in zip(outputs, ("server", "client")):
        require(f"rdma_{name}: end 0" in output, f"rdma_{name} did not end with 0")


RC_OPTIONS = {
    "poll": "",
    "events": "-e",
    "new-send": "-N",
    "events-new-send": "-e -N",
    "mtu-256": "-m 256",
    "mtu-4096": "-m 4096 -s 1000000 -n 20",
    "timestamps": "-t",
}


@both_roles(bed, timeout=240, debug=("poll", "events-new-send"), each=RC_OPTIONS)
def rc_pingpong(server, client, options):
    """ibv_rc_pingpong, with validation of the received buffer."""
    _pingpong(server, client, "ibv_rc_pingpong", f"-n 200 -c {options}", 4096 if "-s" not in options else 1000000)


@both_roles(bed, timeout=240, debug=("events",), each={"poll": "", "events": "-e", "small": "-s 1"})
def ud_pingpong(server, client, options):
    """ibv_ud_pingpong, with validation of the received buffer.

    It lacks the new post-send interface.
    """
    _pingpong(server, client, "ibv_ud_pingpong", f"-n 200 -c {options}", 1 if "-s 1" in options else 1024)


def _pingpong(server, client, program, options, size):
    def run():
        port = next_port()

        def command(host):
            # rdma_rxe has no timestamps.
            own = options.replace("-t", "") if host.driver == "rdma_rxe" else options
            return f"{program} -d {host.device} -g {host.gid_index()} -p {port} {own}"

        return run_pair(
            server, client, command(server), f"{command(client)} {server.address}", testbed.tcp_listens, port
        )

    outputs = despite_stalls(server, client, run)
    rounds = int(re.findall(r"-n (\d+)", options)[-1])
    for output in outputs:
        require("invalid data" not in output, "wrong data received")
        found = re.search(r"^(\d+) bytes in", output, re.M)
        require(found, "no result line")
        equal("bytes exchanged", int(found.group(1)), size * rounds * 2)


def run():
    """Runs the suite."""
    return bed.run()
