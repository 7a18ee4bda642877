# SPDX-License-Identifier: GPL-2.0
"""Memory of the device (ibv_alloc_dm): copies, regions, mappings, limits."""

import contextlib
import errno
import mmap
import os
import random

import privilege
import testbed
import traffic
from control_groups import control_group, statistics
from harness import Skip, case, equal, log, require, wait_until
from trial import refused

bed = testbed.Bed()

PAGE = 4096
KIB, MIB = 1024, 1024 * 1024
# Of a device.
LIMIT = 16 * MIB
MEMORIES = 512
ACCESS = ("zero-based", "local-write", "remote-write", "remote-read", "remote-atomic")


@contextlib.contextmanager
def opened():
    """Yields an endpoint of this host's device."""
    import endpoint  # only a guest has verbs

    if bed.here.driver != "rrxe":
        raise Skip("the other driver has no memory of its own")
    end = endpoint.Endpoint()
    end.open(bed.here.device, bed.here.address, bed.here.driver)
    try:
        yield end
    finally:
        end.leave()


def random_bytes(seed, length):
    """Returns bytes in hexadecimal digits."""
    return random.Random(seed).randbytes(length).hex()


@case(each={"first-byte": (0, 4), "across-pages": (PAGE - 8, 16), "all": (0, 3 * PAGE), "last-bytes": (3 * PAGE - 4, 4)})
def copies(where):
    """The program writes and reads parts of the memory, which is zero at first."""
    offset, length = where
    with opened() as end:
        memory = end.device_memory(3 * PAGE)
        equal("zeros", end.from_device(memory, offset, length), "00" * length)
        data = random_bytes(offset, length)
        end.to_device(memory, offset, data)
        equal("the data", end.from_device(memory, offset, length), data)
        for bad in ((3 * PAGE - 4, 8), (3 * PAGE, 4), (1, 4), (0, 6), (2**40, 4)):
            refused(errno.EFAULT, end.from_device, memory, *bad)


@case()
def operations():
    """WRITE, READ and atomics of a peer, and the local end of each, by addresses from 0 on."""
    with traffic.connection([bed.here, bed.here], random.Random(1)) as (left, right):
        memory = right.end.device_memory(5 * PAGE)
        region = right.end.device_region(right.pd, memory, PAGE, 3 * PAGE, ACCESS)
        mine = left.small

        def post(side, op, address, lkey, length, rkey, raddr, **more):
            request = {"id": 1, "op": op, "sge": [[address, length, lkey]], "rkey": rkey, "raddr": raddr, **more}
            side.end.post_send(side.qp["id"], [request])
            found = side.end.poll(side.send_cq, 1)
            return [wc["status"] for wc in found]

        sent = left.end.bytes_at(mine["address"], 6000)
        equal("WRITE", post(left, "write", mine["address"], mine["lkey"], 6000, region["rkey"], 100), ["SUCCESS"])
        equal("the memory", right.end.from_device(memory, PAGE + 100, 6000), sent)
        equal("before it", right.end.from_device(memory, PAGE, 100), "00" * 100)
        place = mine["address"] + 100_000
        equal("READ", post(left, "read", place, mine["lkey"], 6000, region["rkey"], 100), ["SUCCESS"])
        equal("what was read", left.end.bytes_at(place, 6000), sent)
        right.end.to_device(memory, PAGE + 8192, (40).to_bytes(8, "little").hex())
        statuses = post(left, "fetch-add", place, mine["lkey"], 8, region["rkey"], 8192, compare=2)
        equal("fetch and add", statuses, ["SUCCESS"])
        equal("the sum", right.end.from_device(memory, PAGE + 8192, 8), (42).to_bytes(8, "little").hex())
        # The memory as the local end: SEND takes its data from there.
        statuses = post(right, "write", 100, region["lkey"], 6000, mine["rkey"], mine["address"] + 200_000)
        equal("WRITE from the memory", statuses, ["SUCCESS"])
        equal("its data", left.end.bytes_at(mine["address"] + 200_000, 6000), sent)
        right.end.deregister_device_region(region["id"])
        equal("without the region", post(left, "write", mine["address"], mine["lkey"], 64, region["rkey"], 100), ["REM_ACCESS_ERR"])
        equal("the memory afterwards", right.end.from_device(memory, PAGE + 100, 6000), sent)


@case()
def refusals():
    """Regions beyond the memory, odd sizes and odd mappings are refused."""
    with opened() as end:
        pd = end.pd()
        memory = end.device_memory(2 * PAGE)
        refused(errno.EINVAL, end.device_region, pd, memory, PAGE, PAGE + 4, ACCESS)
        refused(errno.EINVAL, end.device_region, pd, memory, 0, PAGE, ACCESS[1:])
        refused(errno.EOPNOTSUPP, end.device_region, pd, memory, 0, PAGE, (*ACCESS, "on-demand"))
        refused(errno.EINVAL, end.device_memory, 0)
        refused(errno.ENOMEM, end.device_memory, LIMIT + PAGE)
        refused(errno.EOPNOTSUPP, end.device_memory, PAGE, 13)
        handle, file = end.device_memory_handle(memory), end.command_file()
        for why, handle_of, length, protection in (
            ("another memory", handle + 7, 2 * PAGE, mmap.PROT_READ),
            ("too short", handle, PAGE, mmap.PROT_READ),
            ("too long", handle, 3 * PAGE, mmap.PROT_READ),
            ("executable", handle, 2 * PAGE, mmap.PROT_READ | mmap.PROT_EXEC),
        ):
            log(why)
            equal("errno", end.try_to_map(file, handle_of * PAGE, length, protection), errno.EINVAL)
        equal("errno", end.try_to_map(file, handle * PAGE, 2 * PAGE, mmap.PROT_READ), 0)
        end.free_device_memory(memory)
        equal("after its end", end.try_to_map(file, handle * PAGE, 2 * PAGE, mmap.PROT_READ), errno.EINVAL)


@case()
def limit():
    """All programs together have at most the amount that the device reports."""
    with opened() as end, opened() as other:
        equal("the limit", end.claims().get("max_dm_size"), LIMIT)
        first = end.device_memory(LIMIT - PAGE)
        second = other.device_memory(4)
        refused(errno.ENOMEM, end.device_memory, 4)
        end.free_device_memory(first)
        third = end.device_memory(LIMIT - PAGE)
        end.free_device_memory(third)
        other.free_device_memory(second)
        end.free_device_memory(end.device_memory(LIMIT))


@case()
def many():
    """A device has at most a certain number of memories, however small they are."""
    with opened() as end:
        memories = [end.device_memory(4) for _ in range(MEMORIES)]
        refused(errno.ENOMEM, end.device_memory, 4)
        for memory in memories:
            end.free_device_memory(memory)
        end.free_device_memory(end.device_memory(4))


@case()
def share_of_a_user():
    """A user can have half of what the others leave."""
    share = (LIMIT - 4 * MIB) // 2

    def body():
        with opened() as end:
            refused(errno.EDQUOT, end.device_memory, share + PAGE)
            end.device_memory(share - PAGE)
            end.device_memory(PAGE)
            refused(errno.EDQUOT, end.device_memory, 4)

    with opened() as end:
        memory = end.device_memory(4 * MIB)
        privilege.unprivileged(body)
        end.free_device_memory(memory)
        end.free_device_memory(end.device_memory(LIMIT))


@case(timeout=120)
def charged():
    """The memory is charged to the control group of the program."""
    with control_group("memory") as group, opened() as end:

        def kernel():
            return statistics(group, "memory.stat")["kernel"]

        before = kernel()
        memory = end.device_memory(8 * MIB)
        # The kernel updates these statistics every two seconds.
        wait_until("it is charged", lambda: kernel() - before >= 8 * MIB, seconds=20)
        end.free_device_memory(memory)
        wait_until("it is given back", lambda: kernel() - before < MIB, seconds=20)


@case()
def mapping_outlives_the_memory():
    """A mapping keeps its pages, and finds its data, after the memory has ended."""
    with opened() as end:
        memory = end.device_memory(PAGE)
        end.to_device(memory, 0, random_bytes(1, 64))
        address = end.map_file(end.command_file(), end.device_memory_handle(memory) * PAGE, PAGE)
        end.free_device_memory(memory)
        equal("the data", end.bytes_at(address, 64), random_bytes(1, 64))
        child = os.fork()
        if child == 0:
            os._exit(0 if end.bytes_at(address, 64) == random_bytes(1, 64) else 1)
        require(os.waitpid(child, 0)[1] == 0, "a child sees other data")
        # The mapping counts as long as it exists.
        refused(errno.ENOMEM, end.device_memory, LIMIT)
        end.unmap(address, PAGE)
        end.free_device_memory(end.device_memory(LIMIT))


def run():
    """Runs the suite."""
    return bed.run()
