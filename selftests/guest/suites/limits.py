# SPDX-License-Identifier: GPL-2.0
"""The maxima that a device reports: each is kept, and one more is refused.

selftests/guest/lib/capabilities.py names the test of each maximum.
"""

import contextlib
import ctypes
import errno
import ipaddress
import mmap
import os

import privilege
import testbed
import traffic
from harness import Skip, case, debug_kernel, equal, require
from trial import refused

bed = testbed.Bed()

PAGE, MIB = 4096, 1 << 20

# Bytes of inline data of a work request (MAX_INLINE in drivers/rrxe/limits.rs). No query reports
# it: a program learns it by asking.
INLINE = 1024

# Address handles that a user may have (MAX_USER_AH).
HANDLES = 1 << 17


class Pair:
    """Two connected queue pairs of one endpoint, with a completion queue for each kind of work.

    `sizes` are those of the queue pairs.
    """

    def __init__(self, end, info, depth=64, kind="rc", **sizes):
        self.end, self.info, self.kind = end, info, kind
        self.pd, self.sends, self.receives = end.pd(), end.cq(depth), end.cq(depth)
        self.one, self.other = (end.qp(kind, self.pd, self.sends, self.receives, **sizes) for _ in range(2))

    def connect(self, dest_rd_atomic=8, rd_atomic=8):
        """Brings both to Ready to Send."""
        for qp, other in ((self.one, self.other), (self.other, self.one)):
            self.end.to_init(qp["id"])
            self.end.to_rtr(qp["id"], gid=self.info["gid"], qpn=other["qpn"], dest_rd_atomic=dest_rd_atomic)
            self.end.to_rts(qp["id"], rd_atomic=rd_atomic)
        return self

    def post(self, number, op, sge, region=None, offset=0, **more):
        """Posts a request of the first queue pair. It accesses `offset` of the region."""
        request = {"id": number, "op": op, "sge": sge, **more}
        if region:
            request |= {"rkey": region["rkey"], "raddr": region["address"] + offset}
        self.end.post_send(self.one["id"], [request])

    def done(self, *wanted, received=False):
        """Checks the identifiers of successful completions."""
        queue = self.receives if received else self.sends
        found = self.end.poll(queue, len(wanted)) + self.end.poll(queue, 1, 0)
        equal("completions", [(wc["id"], wc["status"]) for wc in found], [(number, "SUCCESS") for number in wanted])


@contextlib.contextmanager
def opened():
    """Yields an endpoint of this host's device, the result of opening it, and its limits."""
    import endpoint  # only a guest has verbs

    here, end = bed.here, endpoint.Endpoint()
    if here.driver != "rrxe":
        raise Skip("the limits are those of rrxe")
    info = end.open(here.device, here.address, here.driver)
    try:
        yield end, info, end.limits()
    finally:
        end.leave()


# Queues


@case()
def queue_sizes():
    """Queue pairs with the longest queues of the largest work requests, and with larger ones."""
    with opened() as (end, info, limits):
        most = {"send_wr": limits["max_qp_wr"], "recv_wr": limits["max_qp_wr"], "sge": limits["max_sge"], "inline": INLINE}
        pd, cq = end.pd(), end.cq()
        qp = end.qp("rc", pd, cq, **most)
        for name, size in most.items():
            require(qp[name] >= size, f"{qp} for {most}")
        for name in most:
            for size in (most[name] + 1, 2**32 - 1):
                refused(errno.EINVAL, end.qp, "rc", pd, cq, **{**most, name: size})
        # The widest shared receive queue, at its longest.
        srq = end.srq(pd, limits["max_srq_wr"], limits["max_srq_sge"])
        equal("sizes", (srq["max_wr"], srq["sge"]), (limits["max_srq_wr"], limits["max_srq_sge"]))


# Almost 100,000 requests, each posted by a call.
@case(timeout=600, debug=False)
def queues_filled():
    """Queues of the maximum length are full after that number of work requests."""
    with opened() as (end, info, limits):
        count = limits["max_qp_wr"]
        pair = Pair(end, info, 2 * count, send_wr=count, recv_wr=count).connect()
        last = [{"id": count, "sge": []}]
        end.post_empty(pair.other["id"], count)
        refused(errno.ENOMEM, end.post_recv, pair.other["id"], last)
        # In this state, the queue pair accepts requests and executes none.
        end.modify(pair.one["id"], ("STATE",), state="sqd")
        end.post_empty(pair.one["id"], count - 1, is_send=True)
        pair.post(count - 1, "send", [])
        refused(errno.ENOMEM, pair.post, count, "send", [])
        end.modify(pair.one["id"], ("STATE",), state="rts")
        pair.done(count - 1)
        pair.done(*range(count), received=True)
        # The queues are empty again.
        end.post_recv(pair.other["id"], last)
        pair.post(count, "send", [])
        pair.done(count)
        pair.done(count, received=True)
        # A shared receive queue.
        srq = end.srq(pair.pd, limits["max_srq_wr"], 1)["id"]
        end.post_empty(srq, limits["max_srq_wr"])
        refused(errno.ENOMEM, end.post_srq, srq, last)


# The ring takes 256 MiB.
@case(timeout=300, debug=False)
def completions():
    """A completion queue of the maximum size, created or resized, and a larger one."""
    with opened() as (end, _, limits):
        most = limits["max_cqe"]
        for size in (most + 1, 2**31 - 1):
            refused(errno.EINVAL, end.cq, size)
        largest = end.cq(most)
        require(end.cq_size(largest) >= most, f"{end.cq_size(largest)} entries")
        end.drop(largest)
        small = end.cq(16)
        refused(errno.EINVAL, end.resize, small, most + 1)
        end.resize(small, most)
        require(end.cq_size(small) >= most, f"{end.cq_size(small)} entries")


# Work requests


@case(each={op: op for op in ("send", "write", "read")})
def segments(op):
    """A work request has the maximum number of segments, and is refused with one more."""
    with opened() as (end, info, limits):
        # max_sge is the smaller one of two limits, which are equal here.
        count = min(limits["max_sge"], limits["max_sge_rd"])
        equal("segments", count, limits["max_sge"])
        pair = Pair(end, info, sge=count).connect()
        mine, theirs = (end.memory(pair.pd, 64 * PAGE, seed=seed) for seed in (1, 2))
        # Of 37 bytes each, with a gap between them.
        ranges = [[101 * number, 37] for number in range(count + 1)]

        def of(region, number):
            return [[region["address"] + at, length, region["lkey"]] for at, length in ranges[:number]]

        length = 37 * count
        source, target = (theirs, mine) if op == "read" else (mine, theirs)
        scattered, whole = ranges[:count], [[8 * PAGE, length]]
        end.put(source["id"], whole if op == "read" else scattered, 9)
        if op == "send":
            # The segments of the receive are of the same number.
            refused(errno.EINVAL, end.post_recv, pair.other["id"], [{"id": 7, "sge": of(theirs, count + 1)}])
            end.post_recv(pair.other["id"], [{"id": 7, "sge": of(theirs, count)}])
        more = {} if op == "send" else {"region": theirs, "offset": 8 * PAGE}
        refused(errno.EINVAL, pair.post, 1, op, of(mine, count + 1), **more)
        pair.post(2, op, of(mine, count), **more)
        pair.done(2)
        if op == "send":
            pair.done(7, received=True)
        end.expect(target["id"], whole if op == "write" else scattered, 9, length)
        for region in (mine, theirs):
            equal("memory", end.verify(region["id"]), "")


@case()
def inline_data():
    """The maximum of inline data is sent, and one byte more is refused."""
    with opened() as (end, info, _):
        pair = Pair(end, info, inline=INLINE).connect()
        most = pair.one["inline"]
        mine, theirs = (end.memory(pair.pd, 2 * PAGE, seed=seed) for seed in (1, 2))
        end.put(mine["id"], [[0, most]], 3)
        flags = ("inline", "signaled")
        refused(errno.EINVAL, pair.post, 1, "write", [[mine["address"], most + 1, 0]], theirs, flags=flags)
        pair.post(2, "write", [[mine["address"], most, 0]], theirs, flags=flags)
        pair.done(2)
        end.expect(theirs["id"], [[0, most]], 3, most)
        equal("memory", end.verify(theirs["id"]), "")


@case()
def reads():
    """Both ends accept the reported numbers of READs under way, and refuse one more."""
    with opened() as (end, info, limits):
        depth, initiated = limits["max_qp_rd_atom"], limits["max_qp_init_rd_atom"]
        require(limits["max_res_rd_atom"] >= depth, f"{limits}")
        pair = Pair(end, info, 256, send_wr=200)
        one = pair.one["id"]
        end.to_init(one)
        address = {"gid": info["gid"], "qpn": pair.other["qpn"]}
        refused(errno.EINVAL, end.to_rtr, one, dest_rd_atomic=depth + 1, **address)
        end.to_rtr(one, dest_rd_atomic=depth, **address)
        refused(errno.EINVAL, end.to_rts, one, rd_atomic=initiated + 1)
        end.to_rts(one, rd_atomic=initiated)
        attributes = end.query(one, "max_rd_atomic", "max_dest_rd_atomic")
        equal("attributes", attributes, {"max_rd_atomic": initiated, "max_dest_rd_atomic": depth})
        end.modify(one, ("STATE",), state="reset")
        pair.connect(dest_rd_atomic=depth, rd_atomic=min(depth, initiated))
        mine, theirs = (end.memory(pair.pd, 64 * PAGE, seed=seed) for seed in (1, 2))
        end.put(theirs["id"], [[0, 200 * 1000]], 5)
        for number in range(200):
            pair.post(number, "read", [[mine["address"] + number * 1000, 1000, mine["lkey"]]], theirs, number * 1000)
        pair.done(*range(200))
        end.expect(mine["id"], [[0, 200 * 1000]], 5, 200 * 1000)
        equal("memory", end.verify(mine["id"]), "")


HUGE, HUGE_PAGES = 2 * MIB, "/proc/sys/vm/nr_hugepages"


def aliases(end, length, pages):
    """Maps `length` bytes that consist of a few huge pages over and over. Returns the address."""
    file = os.memfd_create("limits", os.MFD_HUGETLB)
    try:
        os.ftruncate(file, pages * HUGE)
        space = end.map(length + HUGE)
        address = -(-space // HUGE) * HUGE
        for at in range(address, address + length, pages * HUGE):
            end.map_file(file, 0, pages * HUGE, mmap.PROT_READ | mmap.PROT_WRITE, at)
        return address
    finally:
        os.close(file)


def reserve(pages):
    """Sets the number of huge pages."""
    with open(HUGE_PAGES, "w", encoding="ascii") as file:
        file.write(str(pages))


# User Mode Linux has no huge pages.
@case(timeout=600, debug=False)
def message():
    """A message of the maximum length arrives, and one more byte is refused."""
    if not os.path.exists(HUGE_PAGES):
        raise Skip("the kernel has no huge pages")
    pages = 4
    reserve(2 * pages)
    try:
        with opened() as (end, info, limits):
            most = limits["max_msg_sz"]
            pair = Pair(end, info, sge=2).connect()
            source, target = aliases(end, most, pages), aliases(end, most, pages)
            mine, theirs = (end.over(pair.pd, address, most, traffic.ACCESS) for address in (source, target))
            segment = [source, most, mine["lkey"]]
            end.fill(source, 0x5A, pages * HUGE)
            pair.post(1, "write", [segment], theirs)
            pair.done(1)
            equal("the data", end.checksum(target, pages * HUGE), end.checksum(source, pages * HUGE))
            pair.post(2, "write", [segment, [source, 1, mine["lkey"]]], theirs)
            (found,) = end.poll(pair.sends, 1)
            equal("one more byte", found["status"], "LOC_LEN_ERR")
            end.drop(mine["id"], theirs["id"])
            for address in (source, target):
                end.unmap(address, most)
    finally:
        reserve(0)


# Memory


# The address space of User Mode Linux is smaller than that of other kernels.
@case(debug=False)
def region():
    """A region has the maximum length, and not one byte more.

    It begins at address 0, which pyverbs does not accept.
    """
    import verbs_enums  # only a guest has verbs
    from libibverbs import Verbs

    if debug_kernel():
        raise Skip("the address space is smaller")
    with opened() as (_, _, limits):
        pass
    most, verbs = limits["max_mr_size"], Verbs(bed.here.device)
    pd = verbs.make("ibv_alloc_pd", verbs.context)
    access = verbs_enums.IBV_ACCESS_LOCAL_WRITE | verbs_enums.IBV_ACCESS_ON_DEMAND

    def register(start, length):
        return verbs.try_make("ibv_reg_mr", pd, ctypes.c_void_p(start), ctypes.c_size_t(length), access)

    for length in (most + 1, 2**63, 2**64 - 2):
        equal(f"{length:#x} bytes", register(0, length), (None, errno.EINVAL))
    found, error = register(0, most)
    equal("errno", error, 0)
    equal("errno", verbs.call("ibv_dereg_mr", found), 0)
    equal("errno", verbs.call("ibv_dealloc_pd", pd), 0)
    equal("errno", verbs.call("ibv_close_device", verbs.context), 0)


# Tables


@case()
def partition_keys():
    """The table of P_Keys has the reported length."""
    with opened() as (end, info, limits):
        count = limits["max_pkeys"]
        equal("entries", limits["pkey_tbl_len"], count)
        for index in range(count):
            equal(f"P_Key {index}", end.pkey(index), 0xFFFF)
        equal("an entry after the last", end.pkey(count), None)
        qp = end.qp("rc", end.pd(), end.cq())["id"]
        mask = ("STATE", "PKEY_INDEX", "PORT", "ACCESS_FLAGS")
        how = {"state": "init", "port_num": 1, "access": traffic.ACCESS}
        refused(errno.EINVAL, end.modify, qp, mask, pkey_index=count, **how)
        end.modify(qp, mask, pkey_index=count - 1, **how)


@case()
def gids():
    """The GID table has the reported length: each entry can be read, and none after the last."""
    with opened() as (end, info, limits):
        count = limits["gid_tbl_len"]
        found = [index for index in range(count) if end.gid_at(index)]
        require(info["gid_index"] in found, f"GIDs at {found}")
        equal("an entry after the last", end.gid_at(count), None)
        pd = end.pd()
        # An index has 8 bits.
        if count < 256:
            refused(errno.EINVAL, end.ah, pd, info["gid"], count)
        refused(errno.ENODATA, end.ah, pd, info["gid"], count - 1)


# Groups and address handles


# Its 8448 calls take the debug kernel some minutes.
@case(timeout=600, debug=False)
def multicast_groups():
    """The reported numbers of members and of memberships are reached, and one more is refused.

    The limit of memberships, which pyverbs does not provide, is that of groups.
    """
    with opened() as (end, _, limits):
        size, most = limits["max_mcast_qp_attach"], limits["max_mcast_grp"]
        pd, cq = end.pd(), end.cq()
        *members, further = [end.qp("ud", pd, cq, send_wr=1, recv_wr=1)["id"] for _ in range(size + 1)]
        # Of all devices together. No other program is a member of a group.
        groups = [f"::ffff:239.9.0.{number}" for number in range(most // size + 1)]
        for group in groups[:-1]:
            for member in members:
                end.attach(member, group)
            if group == groups[0]:
                refused(errno.ENOMEM, end.attach, further, group)
        refused(errno.ENOMEM, end.attach, further, groups[-1])
        end.detach(members[0], groups[0])
        end.attach(further, groups[-1])


class AhAttributes(ctypes.Structure):
    """struct ibv_ah_attr."""

    _fields_ = [
        ("gid", ctypes.c_ubyte * 16),
        ("flow_label", ctypes.c_uint32),
        *((name, ctypes.c_uint8) for name in ("gid_index", "hop_limit", "traffic_class", "padding")),
        ("lid", ctypes.c_uint16),
        *((name, ctypes.c_uint8) for name in ("sl", "path_bits", "rate", "is_global", "port", "end")),
    ]


@contextlib.contextmanager
def handles(most):
    """Creates up to `most` address handles, in a process of its own.

    Yields their number and the last errno or 0.
    """
    from libibverbs import Verbs  # only a guest has verbs

    verbs = Verbs(bed.here.device)
    pd = verbs.make("ibv_alloc_pd", verbs.context)
    attributes = AhAttributes()
    # A group needs no resolution of its address.
    attributes.gid[:] = ipaddress.ip_address("::ffff:239.9.0.1").packed
    attributes.gid_index, attributes.is_global, attributes.port = bed.here.gid_index(), 1, 1
    count, error = 0, 0
    while count < most and not error:
        _, error = verbs.try_make("ibv_create_ah", pd, ctypes.byref(attributes))
        count += not error
    yield count, error


# They take 100 MB.
@case(timeout=600, debug=False)
def address_handles():
    """A user reaches its limit of address handles, and others still find some."""
    if bed.here.driver != "rrxe":
        raise Skip("the limits are those of rrxe")

    def of(user, most, *capabilities):
        return privilege.beside(lambda: handles(most), [lambda: privilege.become(user, *capabilities)])

    with of(65534, HANDLES + 100) as found:
        equal("handles and error", found, [HANDLES, errno.EDQUOT])
        for user, capabilities in ((65534, (privilege.CAP_SYS_RESOURCE,)), (65533, ())):
            with of(user, 10, *capabilities) as found:
                equal("handles of others", found, [10, 0])


def run():
    """Runs the suite."""
    return bed.run()
