# SPDX-License-Identifier: GPL-2.0
"""On-demand paging: regions of which no page is pinned."""

import contextlib
import errno
import os
import random
import signal
import time

import testbed
import traffic
from control_groups import control_group, read, statistics, write
from harness import Skip, case, debug_kernel, equal, log, require, wait_until
from traffic import Batch, Side, connect, random_batches
from trial import Bench, Trial, refused

bed = testbed.Bed()
bench = Bench(bed.endpoints)

PAGE = 4096
MIB = 1024 * 1024
ON_DEMAND = ("on-demand",)

# Swap space in memory, so that anonymous pages can be taken from a process.
SWAP = "modprobe -q brd rd_nr=1 rd_size=262144; [ -b /dev/ram0 ] && mkswap /dev/ram0 && swapon /dev/ram0"


class Paged(Trial):
    """A trial whose regions are paged on demand."""

    def __init__(self, bench, **how):
        super().__init__(bench, **{"flags": ON_DEMAND, **how})

    def pages(self, count, side=None):
        """Maps untouched memory of a side, and registers it. Returns the region."""
        side = side or self.remote
        address = side.end.map(count * PAGE)
        return side.end.over(side.pd, address, count * PAGE)


def counters(host):
    """Returns the counters of a host's device."""
    return host.machine.look("statistics", host.device)


@contextlib.contextmanager
def swap_space():
    """Gives both hosts swap space for the block."""
    hosts = (bed.here, bed.peer)
    for host in hosts:
        host.machine.run(SWAP)
    try:
        yield
    finally:
        for host in hosts:
            host.machine.run("swapoff -a")


@contextlib.contextmanager
def program(**sending):
    """Yields the other host's end of a connection, and the end of a new program on this host.

    `sending` are arguments of `to_rts`.
    """
    import endpoint  # only a guest has verbs

    # The program would inherit the open files of an endpoint of this process.
    bench.abandon()
    new = endpoint.Apart()
    try:
        here, (end, info) = bed.here, bench.ends()[1]
        left = Side(end, info, "rc", False)
        right = Side(new, new.open(here.device, here.address, here.driver), "rc", False, flags=ON_DEMAND)
        connect(left, right, 1024, random.Random("program"), **sending)
        yield left, right
        left.destroy()
        bench.check_witness()
    except BaseException:
        bench.abandon()
        raise
    finally:
        with contextlib.suppress(Exception):
            new.leave()


# Operations that work as with pinned memory


@case(timeout=400, debug=("write", "send"), each={op: op for op in traffic.OPS})
def cold(op):
    """A first access of each kind: the regions are registered, and nothing of them is present.

    The peers have no RNR retries, and retry seven times as usual.
    """
    with Paged(bench, rts={"rnr_retry": 0, "retry": 7, "timeout": 18}) as t:
        batch = Batch(random.Random(op), t.local, t.remote)
        for side in (t.local, t.remote):
            for length in (1, 64, 5000, 70_000) if op not in ("cmp-swap", "fetch-add") else (8,):
                batch.add(side, op, length)
        batch.run()


@case(timeout=600, debug=("mtu-1024",), each={f"mtu-{mtu}": mtu for mtu in (256, 1024, 4096)})
def anything(mtu):
    """Random operations, sizes and scatter lists in both directions."""
    with Paged(bench, connected=False) as t:
        rng = random.Random(mtu)
        connect(t.local, t.remote, min(mtu, t.local.info["mtu"], t.remote.info["mtu"]), rng)
        random_batches(rng, t.local, t.remote, mtu, 8 if debug_kernel() else 30)


@case(timeout=600)
def disturbed():
    """Random operations while pages go to swap space, are copied by fork and moved by compaction.

    User Mode Linux loses the contents of pages in swap space, and writes to pages that move, also
    without this driver.
    """
    with contextlib.nullcontext() if debug_kernel() else swap_space(), Paged(bench) as t:
        for side in (t.local, t.remote):
            side.end.disturb(side.small["id"])
        try:
            random_batches(random.Random(3), t.local, t.remote, 1024, 9 if debug_kernel() else 19)
        finally:
            turns = [side.end.stop_disturbing() for side in (t.local, t.remote)]
        log(f"{turns} disturbances")
        require(min(turns) > 3, "hardly anything was disturbed")


HUGE_PAGE, MERGEABLE = 14, 12  # MADV_HUGEPAGE, MADV_MERGEABLE
KSM = "/sys/kernel/mm/ksm"


def _need(feature):
    """Skips the case if the kernels lack this feature of memory management."""
    if not os.path.exists(f"/sys/kernel/mm/{feature}"):
        raise Skip(f"the kernel has no {feature}")


# The debug kernel has neither huge pages nor merging.
@case(timeout=600, debug=False)
def huge_pages():
    """Long messages while the memory becomes huge pages and small ones again."""
    _need("transparent_hugepage")
    with swap_space(), Paged(bench) as t:
        for side in (t.local, t.remote):
            side.end.disturb(side.large["id"], huge=True)
        try:
            for turn in range(4):
                batch = Batch(random.Random(turn), t.local, t.remote, large=True)
                for side in (t.local, t.remote):
                    for op in ("write", "read", "send"):
                        batch.add(side, op, 700_000 + turn)
                    batch.add(side, "fetch-add")
                batch.run()
        finally:
            turns = [side.end.stop_disturbing() for side in (t.local, t.remote)]
        log(f"{turns} huge pages")
        require(min(turns) > 20, "hardly any page was huge")


@case(debug=False)
def huge_page_at_once():
    """The first access brings in a huge page, and a part of it can be unmapped."""
    _need("transparent_hugepage")
    with Paged(bench) as t:
        end = t.remote.end
        space = end.map(4 * MIB)
        address = -(-space // (2 * MIB)) * 2 * MIB
        equal("advice", end.advise_memory(address, 2 * MIB, HUGE_PAGE), 0)
        region = end.over(t.remote.pd, address, 2 * MIB)
        t.local.end.put(t.mine["id"], [[0, 64]], 50)
        sent = t.local.end.bytes_at(t.mine["address"], 64)

        def written(page):
            t.send("write", rkey=region["rkey"], raddr=address + page * PAGE)
            t.sent("SUCCESS")
            equal(f"page {page}", end.bytes_at(address + page * PAGE, 64), sent)

        written(100)
        equal("bytes in huge pages", end.mapped_as(address, "AnonHugePages"), 2 * MIB)
        written(300)
        end.unmap(address + 300 * PAGE, PAGE)
        equal("bytes in huge pages", end.mapped_as(address, "AnonHugePages"), 0)
        written(301)
        equal("another page", end.bytes_at(address + 100 * PAGE, 64), sent)
        t.send("write", rkey=region["rkey"], raddr=address + 300 * PAGE)
        t.sent("REM_ACCESS_ERR")
        end.drop(region["id"])
        end.unmap(space, 4 * MIB)


@case(timeout=300, debug=False)
def merged():
    """Equal pages that the kernel has merged are separate again once a peer writes to one."""
    count = 32
    _need("ksm")
    with Paged(bench) as t:
        end, machine = t.remote.end, bed.peer.machine
        region = t.pages(count)
        address = region["address"]
        equal("advice", end.advise_memory(address, count * PAGE, MERGEABLE), 0)

        def shared():
            return int(machine.read(f"{KSM}/pages_sharing"))

        try:
            for turn in range(3):
                byte = 0x41 + turn
                end.fill(address, byte, count * PAGE)
                # From here on, the device may write to all pages without a fault.
                end.advise(t.remote.pd, [[address, count * PAGE, region["lkey"]]], "prefetch-write")
                machine.run(f"echo 1000 >{KSM}/pages_to_scan; echo 10 >{KSM}/sleep_millisecs; echo 1 >{KSM}/run")
                wait_until("the pages are one", lambda: shared() >= count - 1, 60)
                machine.run(f"echo 0 >{KSM}/run")
                t.local.end.put(t.mine["id"], [[0, 64]], turn)
                sent = t.local.end.bytes_at(t.mine["address"], 64)
                # The device reads the merged page.
                t.local.end.accept(t.mine["id"], [[8192, 64]], 64)
                t.send("read", rkey=region["rkey"], raddr=address + 7 * PAGE, sge=[t.segment(8192, 64)])
                t.sent("SUCCESS")
                equal("bytes read", t.local.end.accept(t.mine["id"], [[8192, 64]], 64), f"{byte:02x}" * 64)
                t.send("write", rkey=region["rkey"], raddr=address + 7 * PAGE)
                t.sent("SUCCESS")
                equal("the data", end.bytes_at(address + 7 * PAGE, 64), sent)
                for page in (*range(7), *range(8, count)):
                    equal(f"page {page}", end.bytes_at(address + page * PAGE, 64), f"{byte:02x}" * 64)
                # The pages are separate again.
                machine.run(f"echo 2 >{KSM}/run")
                wait_until("no page is merged", lambda: shared() == 0)
        finally:
            machine.run(f"echo 2 >{KSM}/run; echo 0 >{KSM}/run")
        end.drop(region["id"])


@case(each={"uc": "uc", "ud": "ud"})
def unreliable(kind):
    """SENDs from absent memory arrive, if the memory of the receive is present."""
    with Paged(bench, kind=kind) as t:
        end, ours = t.remote.end, t.remote
        end.advise(ours.pd, [[t.theirs["address"], t.theirs["size"], t.theirs["lkey"]]], "prefetch-write")
        header, more = 0, {}
        if kind == "ud":
            header = 40
            more = {"ah": t.local.end.ah(t.local.pd, ours.info["gid"]), "qpn": ours.qp["qpn"]}
        for _ in range(5):
            region = t.pages(2, t.local)
            t.receive()
            t.send("send", sge=[[region["address"], 64, region["lkey"]]], **more)
            t.sent("SUCCESS")
            t.received("SUCCESS")
            found = end.accept(t.theirs["id"], [[4096, header + 64]], header + 64)
            equal("the message", found[2 * header :], "00" * 64)
            t.local.end.drop(region["id"])


@case()
def untouched():
    """Memory that the process has never touched: READ finds zeros, WRITE finds its place."""
    with Paged(bench) as t:
        region = t.pages(64)
        end = t.remote.end
        t.local.end.expect(t.mine["id"], [], 0, 0)
        equal("pages before", end.resident(region["address"], 64 * PAGE), 0)
        t.local.end.put(t.mine["id"], [[0, 6000]], 5)
        t.send("write", rkey=region["rkey"], raddr=region["address"] + 10 * PAGE + 100, sge=[t.segment(0, 6000)])
        t.sent("SUCCESS")
        require(2 <= end.resident(region["address"], 64 * PAGE) <= 8, "other pages came in, too")
        sent = t.local.end.bytes_at(t.mine["address"], 6000)
        equal("the data", end.bytes_at(region["address"] + 10 * PAGE + 100, 6000), sent)
        t.local.end.accept(t.mine["id"], [[8192, 64]], 64)
        t.send("read", rkey=region["rkey"], raddr=region["address"] + 50 * PAGE, sge=[t.segment(8192, 64)])
        t.sent("SUCCESS")
        equal("zeros", t.local.end.accept(t.mine["id"], [[8192, 64]], 64), "00" * 64)
        end.drop(region["id"])


@case()
def long_message():
    """A WRITE and a READ of 4 MiB over memory that nobody has touched."""
    with Paged(bench) as t:
        size = 4 * MIB
        there, here = t.pages(size // PAGE), t.pages(size // PAGE, t.local)
        t.local.end.fill(here["address"], 0x5A, size)
        for op in ("write", "read"):
            before = counters(bed.peer)["rx_roce_discard_pkts"]
            t.send(op, rkey=there["rkey"], raddr=there["address"], sge=[[here["address"], size, here["lkey"]]])
            t.sent("SUCCESS")
            dropped = counters(bed.peer)["rx_roce_discard_pkts"] - before
            # One for each 256 KiB of a WRITE, and now and then one that arrives late.
            require(dropped <= 2 * size // (256 * 1024), f"{dropped} packets of the {op} were dropped")
        equal("the last bytes", t.remote.end.bytes_at(there["address"] + size - 8, 8), "5a" * 8)
        t.local.end.drop(here["id"])
        t.remote.end.drop(there["id"])


@case()
def whole_address_space():
    """A region of the whole address space: any memory, mapped before or after the registration."""
    with Trial(bench) as t:
        end = t.remote.end
        region = end.whole_address_space(t.remote.pd)
        address = end.map(8 * PAGE)
        for number, where in enumerate((t.theirs["address"] + 64, address + 2 * PAGE - 8)):
            t.local.end.put(t.mine["id"], [[0, 64]], 40 + number)
            if number == 0:
                end.expect(t.theirs["id"], [[64, 64]], 40, 64)
            t.send("write", rkey=region["rkey"], raddr=where)
            t.sent("SUCCESS")
        sent = t.local.end.bytes_at(t.mine["address"], 64)
        equal("the data", end.bytes_at(address + 2 * PAGE - 8, 64), sent)
        # The first page of the address space is never mapped.
        t.send("write", rkey=region["rkey"], raddr=64)
        t.sent("REM_ACCESS_ERR")
        end.drop(region["id"])


@case()
def remapped():
    """New memory at the same address is what the peer reaches next, not the old pages."""
    with Paged(bench) as t:
        region, end = t.pages(4), t.remote.end
        for seed in range(3):
            t.local.end.put(t.mine["id"], [[0, 64]], seed)
            t.send("write", rkey=region["rkey"], raddr=region["address"] + PAGE)
            t.sent("SUCCESS")
            sent = t.local.end.bytes_at(t.mine["address"], 64)
            equal("the data", end.bytes_at(region["address"] + PAGE, 64), sent)
            end.unmap(region["address"], 4 * PAGE)
            equal("the address", end.map(4 * PAGE, region["address"]), region["address"])
            equal("new memory", end.bytes_at(region["address"] + PAGE, 64), "00" * 64)
        end.drop(region["id"])


@case()
def moved():
    """A peer reaches the memory that is at the region's addresses, wherever it was before."""
    with Paged(bench) as t:
        region, end = t.pages(4), t.remote.end
        address = region["address"]
        found = {}

        def write(seed, status="SUCCESS"):
            t.local.end.put(t.mine["id"], [[0, 64]], seed)
            found[seed] = t.local.end.bytes_at(t.mine["address"], 64)
            t.send("write", rkey=region["rkey"], raddr=address + PAGE)
            t.sent(status)

        write(1)
        other = end.map(4 * PAGE)
        end.fill(other, 0x55, 4 * PAGE)
        first = end.map(4 * PAGE)
        end.remap(address, 4 * PAGE, first)
        equal("the data, moved", end.bytes_at(first + PAGE, 64), found[1])
        end.remap(other, 4 * PAGE, address)
        equal("the other memory", end.bytes_at(address + PAGE, 64), "55" * 64)
        write(2)
        equal("the data", end.bytes_at(address + PAGE, 128), found[2] + "55" * 64)
        equal("the data before", end.bytes_at(first + PAGE, 64), found[1])
        # Back to the first memory.
        end.unmap(address, 4 * PAGE)
        end.remap(first, 4 * PAGE, address)
        write(3)
        equal("the data", end.bytes_at(address + PAGE, 64), found[3])
        end.remap(address, 4 * PAGE, first)
        write(4, "REM_ACCESS_ERR")
        t.states("error", "error")
        end.drop(region["id"])


@case()
def moved_under_traffic():
    """The memory of a region is moved away while a peer writes to it.

    Each WRITE that succeeds has written to the memory, and the others are refused.
    """
    with Paged(bench) as t:
        refusals = turn = 0
        while refusals < 5:
            turn += 1
            require(turn < 100, "no memory was moved while its pages came in")
            region, end = t.pages(64), t.remote.end
            space = end.map(64 * PAGE)
            t.local.end.put(t.mine["id"], [[0, 64]], turn)
            sent = t.local.end.bytes_at(t.mine["address"], 64)
            for number in range(1, 9):
                t.send("write", number=number, rkey=region["rkey"], raddr=region["address"] + number * 5 * PAGE)
            there = end.remap(region["address"], 64 * PAGE, space)
            statuses = [status for _, status in t.completions(t.local, t.local.send_cq, 8)]
            log(f"{turn}: {statuses}")
            done = statuses.count("SUCCESS")
            wanted = ["SUCCESS"] * done + ["REM_ACCESS_ERR"] * (done < 8) + ["WR_FLUSH_ERR"] * (7 - done)
            equal("statuses", statuses, wanted)
            for number in range(1, done + 1):
                equal(f"data of WRITE {number}", end.bytes_at(there + number * 5 * PAGE, 64), sent)
            refusals += done < 8
            end.drop(region["id"])
            end.unmap(there, 64 * PAGE)
            if done < 8:
                for side in (t.local, t.remote):
                    side.end.modify(side.qp["id"], ("STATE",), state="reset")
                t.connect()


@case()
def nothing_is_pinned():
    """A region counts for no limit of locked memory, and leaves none behind."""
    with Paged(bench) as t:
        before = t.local.end.locked()
        address = t.local.end.map(1024 * MIB)
        region = t.local.end.over(t.local.pd, address, 1024 * MIB)
        equal("locked bytes", t.local.end.locked(), before)
        equal("pages", t.local.end.resident(address, 16 * PAGE), 0)
        t.local.end.drop(region["id"])


# Refusals


@case(each={"write": "write", "read": "read", "fetch-add": "fetch-add"})
def unmapped_remotely(op):
    """A page that the process does not have fails like memory that is not registered."""
    with Paged(bench) as t:
        region = t.pages(4)
        t.remote.end.unmap(region["address"] + PAGE, PAGE)
        length, operands = (8, {"compare": 1}) if op == "fetch-add" else (64, {})
        t.send(op, rkey=region["rkey"], raddr=region["address"] + PAGE, sge=[t.segment(0, length)], **operands)
        t.sent("REM_ACCESS_ERR")
        t.states("error", "error")
        t.remote.end.drop(region["id"])


@case(each={"write": "write", "send": "send"})
def unmapped_locally(op):
    """The data of a work request are gone."""
    with Paged(bench) as t:
        region = t.pages(4, t.local)
        t.local.end.unmap(region["address"] + PAGE, PAGE)
        if op == "send":
            t.receive()
        t.send(op, sge=[[region["address"] + PAGE - 32, 64, region["lkey"]]])
        t.sent("LOC_PROT_ERR")
        t.local.end.drop(region["id"])


@case()
def read_only():
    """Memory that the process may only read is not written to by a peer."""
    with Paged(bench) as t:
        address = t.remote.end.map(PAGE, 0, 1)  # PROT_READ
        region = t.remote.end.over(t.remote.pd, address, PAGE)
        t.local.end.accept(t.mine["id"], [[8192, 64]], 64)
        t.send("read", rkey=region["rkey"], raddr=address, sge=[t.segment(8192, 64)])
        t.sent("SUCCESS")
        equal("zeros", t.local.end.accept(t.mine["id"], [[8192, 64]], 64), "00" * 64)
        t.send("write", rkey=region["rkey"], raddr=address)
        t.sent("REM_ACCESS_ERR")
        t.remote.end.drop(region["id"])


@case()
def advice():
    """Prefetched pages are present: the access that follows is not interrupted."""
    with Paged(bench) as t:
        region, end = t.pages(32), t.remote.end
        whole = [[region["address"], 32 * PAGE, region["lkey"]]]
        end.advise(t.remote.pd, whole, "prefetch-no-fault")
        equal("pages without faults", end.resident(region["address"], 32 * PAGE), 0)
        end.advise(t.remote.pd, whole, "prefetch")
        end.advise(t.remote.pd, whole, "prefetch-write", flush=False)
        equal("pages", end.resident(region["address"], 32 * PAGE), 32)
        before = counters(bed.here)
        end.advise(t.remote.pd, whole, "prefetch-write")
        t.send("write", rkey=region["rkey"], raddr=region["address"] + 5 * PAGE)
        t.sent("SUCCESS")
        after = counters(bed.here)
        names = ("packet_seq_err", "local_ack_timeout_err")
        equal("interruptions", [after[name] - before[name] for name in names], [0, 0])
        for why, segment in {
            "key": [region["address"], 64, region["lkey"] ^ 1],
            "range": [region["address"] + 31 * PAGE, 2 * PAGE, region["lkey"]],
        }.items():
            log(why)
            refused(errno.EFAULT, end.advise, t.remote.pd, [segment], "prefetch")
        refused(errno.EOPNOTSUPP, end.advise, t.remote.pd, whole, "unknown")
        end.unmap(region["address"] + PAGE, PAGE)
        refused(errno.EFAULT, end.advise, t.remote.pd, whole, "prefetch")
        end.advise(t.remote.pd, whole, "prefetch", flush=False)
        end.drop(region["id"])
        pinned = end.over(t.remote.pd, end.map(PAGE), PAGE, ("local-write",))
        refused(errno.EINVAL, end.advise, t.remote.pd, [[pinned["address"], 64, pinned["lkey"]]], "prefetch")
        end.drop(pinned["id"])


@case(timeout=200)
def advice_is_limited():
    """Advice about more than can come in, or about nothing, takes little memory of the kernel."""
    with control_group("memory") as group, Paged(bench) as t:
        end, pd = t.local.end, t.local.pd

        def objects():
            # The kernel updates these statistics every two seconds.
            time.sleep(3)
            return statistics(group, "memory.stat")["slab"]

        stuck, whole = t.pages(64, t.local), end.whole_address_space(pd)
        hole = end.map(4096 * MIB)
        end.unmap(hole, 4096 * MIB)
        before = objects()
        end.advise(pd, [[hole, 256 * MIB, whole["lkey"]]], "prefetch-no-fault")
        absent = objects()
        end.without_answer(stuck["address"], 64 * PAGE)
        end.advise(pd, [[stuck["address"], 64, stuck["lkey"]]], "prefetch", flush=False)
        end.wait_for_page(10)
        for _ in range(200):
            end.advise(pd, [[hole, 4095 * MIB, whole["lkey"]]] * 16, "prefetch", flush=False)
        queued = objects()
        log(f"absent pages: {absent - before} bytes, queued advice: {queued - absent} bytes")
        require(max(absent - before, queued - absent) < 400 * 1024, "advice takes too much memory of the kernel")
        end.drop(stuck["id"], whole["id"])


# Pages that the program itself brings


def _withdraw(t):
    """Takes all pages of both ends away. Returns how many each end had brought."""
    return [side.end.withdraw() for side in (t.local, t.remote)]


@contextlib.contextmanager
def serving():
    """Yields a trial of two programs that each bring the pages of their regions themselves.

    The timeout is 8.6 s: on a busy machine, a program may take seconds for the pages of a message.
    """
    with Paged(bench, rts={"rnr_retry": 0, "retry": 7, "timeout": 21}) as t:
        sides = (t.local, t.remote)
        for side in sides:
            side.end.serve(side.small["id"])
        yield t
        for side in sides:
            found = side.end.verify(side.small["id"])
            require(not found, f"{side.name}: {found}")
            side.end.stop_serving()


@case(timeout=300, each={op: op for op in ("send", "write", "read", "fetch-add")})
def brought_by_the_program(op):
    """Pages with data of the program's come in when they are needed, and no others."""
    length = 8 if op == "fetch-add" else 70_000
    here, there = 5 * PAGE + 24, 40 * PAGE + 8 * 37
    with serving() as t:
        (mine, theirs), (end, other) = (t.mine["id"], t.theirs["id"]), (t.local.end, t.remote.end)
        if op == "fetch-add":
            other.put_number(theirs, there, 77)
        else:
            source = (other, theirs, there) if op == "read" else (end, mine, here)
            source[0].put(source[1], [[source[2], length]], 60)
        _withdraw(t)
        if op == "send":
            t.receive(sge=[t.segment(there, length, side=t.remote)])
        operands = {"compare": 5} if op == "fetch-add" else {}
        t.send(op, sge=[t.segment(here, length)], offset=there, **operands)
        t.sent("SUCCESS")
        if op == "send":
            t.received("SUCCESS")
        if op == "fetch-add":
            end.expect_number(mine, here, 77)
            other.expect_number(theirs, there, 82)
        else:
            target = (end, mine, here) if op == "read" else (other, theirs, there)
            target[0].expect(target[1], [[target[2], length]], 60, length)
        wanted = [(at + length - 1) // PAGE - at // PAGE + 1 for at in (here, there)]
        equal("pages brought", [end.served(), other.served()], wanted)
        for side in (t.local, t.remote):
            found = side.end.verify(side.small["id"])
            require(not found, f"{side.name}: {found}")
        pages = traffic.SMALL // PAGE
        equal("pages brought in all", _withdraw(t), [pages, pages])


@case(timeout=600)
def brought_under_traffic():
    """Random operations while both programs bring the pages of their regions themselves."""
    rng = random.Random(12)
    with serving() as t:
        for turn in range(4 if debug_kernel() else 12):
            random_batches(rng, t.local, t.remote, 1024, 1)
            served = _withdraw(t)
            log(f"{turn}: {served} pages")
            equal("pages brought", served, [traffic.SMALL // PAGE] * 2)


# A control group at its limit


SIZE, LIMIT, CHUNK = 24 * MIB, 8 * MIB, 256 * 1024


# User Mode Linux loses the contents of pages in swap space.
@case(timeout=600, debug=False)
def at_the_limit():
    """A program may have a third of the memory that its peer writes: the rest is in swap space.

    All data arrive, and are charged to the program.
    """
    if debug_kernel():
        raise Skip("this kernel loses the contents of swap space")
    with swap_space(), program() as (left, right), contextlib.ExitStack() as groups:
        group = groups.enter_context(control_group("memory", process=right.end.process))
        others = groups.enter_context(control_group("memory", name="rrxe-others"))
        address = right.end.map(SIZE)
        region = right.end.over(right.pd, address, SIZE)
        write(f"{group}/memory.max", str(LIMIT))

        def used(name):
            return int(read(f"{name}/memory.current")) + int(read(f"{name}/memory.swap.current"))

        before = used(group), used(others)
        source = left.end.memory(left.pd, SIZE, traffic.ACCESS, seed=31)
        target = left.end.memory(left.pd, SIZE, traffic.ACCESS, seed=32)
        for op, memory in (("write", source), ("read", target)):
            for offset in range(0, SIZE, CHUNK):
                request = {"id": offset, "op": op, "sge": [[memory["address"] + offset, CHUNK, memory["lkey"]]]}
                request |= {"rkey": region["rkey"], "raddr": address + offset}
                left.end.post_send(left.qp["id"], [request])
                (done,) = left.end.poll(left.send_cq, 1, 60)
                equal(f"{op} at {offset}", done["status"], "SUCCESS")
        left.end.expect(target["id"], [[0, SIZE]], 31, SIZE)
        equal("the data read", left.end.verify(target["id"]), "")
        grown = used(group) - before[0], used(others) - before[1]
        events, peak = statistics(group, "memory.events"), int(read(f"{group}/memory.peak"))
        log(f"charged to the program and to others: {grown}, peak {peak}, {events}")
        require(grown[0] >= SIZE, f"{grown[0]} bytes are charged to the program")
        require(grown[1] < 4 * MIB, f"{grown[1]} bytes are charged to another program")
        require(peak <= LIMIT and events["max"] > 0, f"peak {peak}, {events}")
        equal("programs killed", events["oom_kill"], 0)
        # The program itself sees the data.
        equal("the data", right.end.checksum(address, SIZE), left.end.checksum(source["address"], SIZE))
        left.end.drop(source["id"], target["id"])
        write(f"{group}/memory.max", "max")
        right.end.leave()


@case(timeout=300)
def beyond_the_limit():
    """A program whose memory cannot come in is killed: its peer's requests fail, and no others."""
    with program(timeout=17, retry=3) as (left, right):
        with control_group("memory", process=right.end.process) as group:
            address = right.end.map(SIZE)
            region = right.end.over(right.pd, address, SIZE)
            write(f"{group}/memory.swap.max", "0")
            write(f"{group}/memory.max", str(LIMIT))
            count = SIZE // MIB
            for number in range(count):
                request = {"id": number, "op": "write", "sge": [[left.large["address"], MIB, left.large["lkey"]]]}
                request |= {"rkey": region["rkey"], "raddr": address + number * MIB}
                left.end.post_send(left.qp["id"], [request])
            statuses = [wc["status"] for wc in left.end.poll(left.send_cq, count, 60)]
            log(f"{statuses}")
            equal("how the program ended", os.waitstatus_to_exitcode(os.waitpid(right.end.process, 0)[1]), -signal.SIGKILL)
            events, peak = statistics(group, "memory.events"), int(read(f"{group}/memory.peak"))
            log(f"{events}, peak {peak}")
            equal("programs killed", events["oom_kill"], 1)
        done = statuses.count("SUCCESS")
        require(done <= LIMIT // MIB, f"{done} MiB came in")
        # The program ends before its thread refuses the access, or afterwards.
        require(statuses[done] in ("RETRY_EXC_ERR", "REM_ACCESS_ERR"), f"the request ended with {statuses[done]}")
        equal("the requests after it", statuses[done + 1 :], ["WR_FLUSH_ERR"] * (count - done - 1))


# Pages that never come


def _stuck(t):
    """Has both ends wait for pages that never come. Returns the regions."""
    regions = []
    for side in (t.local, t.remote):
        region = t.pages(64, side)
        side.end.without_answer(region["address"], 64 * PAGE)
        regions.append(region)
    mine, theirs = regions
    t.send("write", rkey=theirs["rkey"], raddr=theirs["address"])
    t.send("write", side=t.local, sge=[[mine["address"] + PAGE, 64, mine["lkey"]]])
    t.send("write", side=t.remote, sge=[[theirs["address"] + PAGE, 64, theirs["lkey"]]])
    for side in (t.local, t.remote):
        side.end.wait_for_page(10)
    return regions


def _destroy(t, regions):
    """Destroys the queue pairs and regions that wait, and replaces the queue pairs."""
    for side, region in zip((t.local, t.remote), regions):
        side.end.drop(side.qp["id"], region["id"])
        side.qp = side.end.qp(
            side.kind, side.pd, side.send_cq, side.recv_cq, send_wr=8, recv_wr=8, sge=traffic.MAX_SGE, inline=traffic.INLINE
        )


@case()
def never_present():
    """A page that never comes holds up neither other connections nor the end of its own.

    After that, the program's other pages come in again.
    """
    with Paged(bench, rts={"timeout": 0}) as t:
        for _ in range(3 if debug_kernel() else 10):
            regions = _stuck(t)
            bench.check_witness()
            began = time.monotonic()
            _destroy(t, regions)
            log(f"destroyed in {time.monotonic() - began:.3f} s")
            t.connect()
            t.still_works()


@case()
def deregistered():
    """Regions are deregistered while their pages come in: each WRITE succeeds or is refused."""
    with Paged(bench) as t:
        refusals = turn = 0
        while refusals < 3:
            turn += 1
            require(turn < 100, "no region was deregistered while its pages came in")
            region = t.pages(64)
            for number in range(1, 9):
                t.send("write", number=number, rkey=region["rkey"], raddr=region["address"] + number * 5 * PAGE)
            t.remote.end.drop(region["id"])
            found = t.completions(t.local, t.local.send_cq, 8)
            statuses = [status for _, status in found]
            log(f"{turn}: {statuses}")
            done = statuses.count("SUCCESS")
            wanted = ["SUCCESS"] * done + ["REM_ACCESS_ERR"] * (done < 8) + ["WR_FLUSH_ERR"] * (7 - done)
            equal("statuses", statuses, wanted)
            refusals += done < 8
            if done < 8:
                for side in (t.local, t.remote):
                    side.end.modify(side.qp["id"], ("STATE",), state="reset")
                t.connect()


def run():
    """Runs the suite."""
    return bed.run()
