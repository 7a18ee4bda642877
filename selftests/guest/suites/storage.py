# SPDX-License-Identifier: GPL-2.0
"""NVMe over RDMA between two hosts: kernel consumers, which register memory by work requests."""

import testbed
from harness import Skip, case
from nvme import write_and_read
from programs import both_roles

bed = testbed.Bed()


@both_roles(bed, timeout=900)
def nvme(server, client):
    """Connect, write, read, compare on both hosts, disconnect."""
    write_and_read(server, client)


@case(timeout=900)
def nvme_on_one_device():
    """Connect, write, read, compare, with both kernel consumers on one device."""
    write_and_read(bed.here, bed.here)


@case(timeout=900)
def nvme_with_adaptive_moderation():
    """ib_core moderates the events of the completion queues on both hosts."""
    hosts = [host for host in (bed.here, bed.peer) if host.driver == "rrxe"]
    if not hosts:
        raise Skip("the other driver has no moderation")
    for host in hosts:
        host.machine.run(f"rdma dev set {host.device} adaptive-moderation on")
    try:
        write_and_read(bed.peer, bed.here)
    finally:
        for host in hosts:
            host.machine.run(f"rdma dev set {host.device} adaptive-moderation off")


def run():
    """Runs the suite."""
    return bed.run()
