# SPDX-License-Identifier: GPL-2.0
"""Open MPI over UCX as Debian packages them, on two hosts: collective operations and messages."""

import contextlib
import os

import testbed
from harness import case, require

bed = testbed.Bed()

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Open MPI uses this program instead of ssh to start its daemon on the other host.
REMOTE_SHELL = f"{HERE}/remote-shell"

# The program of all ranks.
EXCHANGE = f"{HERE}/mpi-exchange"

# Transports as in the suite ucx. Ranks on one host use the device, too, not shared memory.
TRANSPORTS = {"ud": "ud_v,self", "rc": "rc_v,self"}

# The largest payload of a packet.
MTU = 4096


@contextlib.contextmanager
def by_rdma(size):
    """Checks that the block sends at least `size` bytes to each host through its RDMA device."""
    hosts = (bed.here, bed.peer)

    def received():
        names = [f"/sys/class/infiniband/{host.device}/ports/1/hw_counters/rcvd_pkts" for host in hosts]
        return [int(host.machine.read(name)) for host, name in zip(hosts, names)]

    before = received()
    yield
    for host, old, new in zip(hosts, before, received()):
        text = f"{host.name} received {new - old} packets by RDMA, and {size} bytes take {size // MTU}"
        require(new - old >= size // MTU, text)


def mpirun(ranks, transport, ipv6=False):
    """Runs the program with this number of ranks, half of them on each host."""
    here, peer = bed.here, bed.peer
    indices = {host.gid_index(host.address6 if ipv6 else host.address) for host in (here, peer)}
    require(len(indices) == 1, f"the GID has another index on each host: {indices}")
    variables = {
        "UCX_TLS": TRANSPORTS[transport],
        "UCX_NET_DEVICES": f"{here.device}:1",
        "UCX_IB_GID_INDEX": indices.pop(),
    }
    words = [
        f"mpirun --allow-run-as-root --prtemca plm_ssh_agent {REMOTE_SHELL}",
        f"-H h1:{ranks // 2},h2:{ranks // 2} -np {ranks}",
        # By default, Open MPI uses UCX only for mlx5 devices.
        "--mca pml ucx --mca opal_common_ucx_tls any --mca opal_common_ucx_devices any",
        *(f"-x {name}={value}" for name, value in variables.items()),
        f"{EXCHANGE} {ranks}",
    ]
    return here.machine.run(" ".join(words), 400)


@case(
    timeout=500,
    each={
        **{f"{ranks}-ranks-{transport}": (ranks, transport, False) for ranks in (2, 4) for transport in TRANSPORTS},
        "2-ranks-rc-ipv6": (2, "rc", True),
    },
)
def exchange(what):
    """Every rank compares the data that it receives with the data sent."""
    with by_rdma(8 << 20):
        output = mpirun(*what)
    ranks = what[0]
    hosts = [line for line in output.splitlines() if line.startswith("rank ")]
    wanted = [f"rank {rank} on h{1 + rank * 2 // ranks}: passed" for rank in range(ranks)]
    require(sorted(hosts) == wanted, f"{sorted(hosts)}, not {wanted}")


def run():
    """Runs the suite."""
    return bed.run()
