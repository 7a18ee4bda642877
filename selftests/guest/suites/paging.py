# SPDX-License-Identifier: GPL-2.0
"""On-demand paging: regions of which no page is pinned."""

import errno
import random
import time

import testbed
import traffic
from control_groups import control_group, statistics
from harness import case, debug_kernel, equal, log, require
from traffic import Batch, connect, random_batches
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
    if not debug_kernel():
        for host in (bed.here, bed.peer):
            host.machine.run(SWAP)
    try:
        with Paged(bench) as t:
            for side in (t.local, t.remote):
                side.end.disturb(side.small["id"])
            try:
                random_batches(random.Random(3), t.local, t.remote, 1024, 9 if debug_kernel() else 19)
            finally:
                turns = [side.end.stop_disturbing() for side in (t.local, t.remote)]
            log(f"{turns} disturbances")
            require(min(turns) > 3, "hardly anything was disturbed")
    finally:
        for host in (bed.here, bed.peer):
            host.machine.run("swapoff -a")


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
        in_time = 0
        for turn in range(5 if debug_kernel() else 20):
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
            in_time += done < 8
            if done < 8:
                for side in (t.local, t.remote):
                    side.end.modify(side.qp["id"], ("STATE",), state="reset")
                t.connect()
        require(in_time, "no region was deregistered while its pages came in")


def run():
    """Runs the suite."""
    return bed.run()
