# SPDX-License-Identifier: GPL-2.0
"""NVMe over RDMA: a host's RAM disk as a block device of another, written, read and compared."""

import contextlib

from harness import equal, wait_until

NQN = "nqn.2026-01.test:rrxe"
CONFIG = "/sys/kernel/config/nvmet"
MEGABYTES = 32

# Number of small requests, which reach up to 27 MiB.
SMALL = 32

# The names of a host's block devices.
DISKS = "nvme[0-9]+n[0-9]+"

# Shell commands for the target host.
SERVE = f"""set -e
modprobe nvmet-rdma
mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
modprobe brd rd_nr=1 rd_size={MEGABYTES * 1024}
cd {CONFIG}
mkdir subsystems/{NQN}
echo 1 > subsystems/{NQN}/attr_allow_any_host
mkdir subsystems/{NQN}/namespaces/1
echo /dev/ram0 > subsystems/{NQN}/namespaces/1/device_path
echo 1 > subsystems/{NQN}/namespaces/1/enable
mkdir ports/1
cd ports/1
echo rdma > addr_trtype
echo ipv4 > addr_adrfam
echo ADDRESS > addr_traddr
echo 4420 > addr_trsvcid
ln -s {CONFIG}/subsystems/{NQN} subsystems/
"""
END = f"""set -e
cd {CONFIG}
rm ports/1/subsystems/{NQN}
rmdir ports/1
echo 0 > subsystems/{NQN}/namespaces/1/enable
rmdir subsystems/{NQN}/namespaces/1
rmdir subsystems/{NQN}
rmmod nvmet-rdma
rmmod brd
"""


@contextlib.contextmanager
def disk(server, client):
    """Yields the name of the client's block device, which is a RAM disk of the server."""
    server.machine.run(SERVE.replace("ADDRESS", server.address), 120)
    try:
        client.machine.run("modprobe nvme-rdma", 60)
        options = f"transport=rdma,traddr={server.address},trsvcid=4420,nqn={NQN}"
        client.machine.run(f"echo '{options}' > /dev/nvme-fabrics", 120)
        name = wait_until("the block device", lambda: client.machine.look("listed", "/sys/block", DISKS)).pop()
        wait_until("its node", lambda: client.machine.look("is_block_device", f"/dev/{name}"))
        yield f"/dev/{name}"
        client.machine.run("for c in /sys/class/nvme/nvme*/delete_controller; do echo 1 > $c; done", 120)
        equal("block devices after disconnecting", client.machine.look("listed", "/sys/block", DISKS), [])
        client.machine.run("rmmod nvme-rdma", 60)
    finally:
        server.machine.run(END, 120)


def copy(machine, source, target, more=""):
    """Copies all of `source` to `target` in requests of 1 MiB."""
    machine.run(f"dd if={source} of={target} bs=1M count={MEGABYTES} {more}", 600)


def write_and_read(server, client):
    """Connects, writes, reads, compares on both hosts, and disconnects."""
    with disk(server, client) as node:
        machine = client.machine
        machine.run(f"dd if=/dev/urandom of=/tmp/data bs=1M count={MEGABYTES}", 120)
        wanted = machine.run("sha256sum < /tmp/data", 60).split()[0]
        copy(machine, "/tmp/data", node, "oflag=direct conv=fsync")
        there = server.machine.run(f"head -c {MEGABYTES}M /dev/ram0 | sha256sum", 120).split()[0]
        equal("what the server has", there, wanted)
        machine.look("drop_caches")
        found = machine.run(f"dd if={node} bs=1M iflag=direct status=none | sha256sum", 600).split()[0]
        equal("what the client reads back", found, wanted)
        # Many concurrent small requests at odd offsets, through the page cache.
        machine.look("copy_pieces", "/tmp/data", node, SMALL)
        equal("different pieces", machine.look("different_pieces", "/tmp/data", node, SMALL), [])
        machine.run("rm /tmp/data")
