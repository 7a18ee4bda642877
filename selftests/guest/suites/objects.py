# SPDX-License-Identifier: GPL-2.0
"""A program's objects: concurrent calls on them, and the memory that they take."""

import contextlib
import ctypes
import errno
import ipaddress
import json
import mmap
import os
import random
import struct
import tempfile
import threading
import time

import counted
import privilege
import testbed
from control_groups import control_group, statistics
from harness import Failure, Skip, case, equal, log, require, wait_until

bed = testbed.Bed()


@contextlib.contextmanager
def opened():
    """Yields an endpoint, with the result of opening it."""
    import endpoint  # only a guest has verbs

    here, end = bed.here, endpoint.Endpoint()
    info = end.open(here.device, here.address, here.driver)
    try:
        yield end, info
    finally:
        end.leave()


def connect(end, info, kind, *qps, **rtr):
    """Connects queue pairs to each other, from the Reset state."""
    for qp, other in zip(qps, reversed(qps)):
        end.to_init(qp["id"], kind)
        end.to_rtr(qp["id"], kind, gid=info["gid"], qpn=other["qpn"], **rtr)
        end.to_rts(qp["id"], kind)


class Changing(threading.Thread):
    """Cycles a queue pair through these states until a change is refused."""

    def __init__(self, end, qp, *states):
        super().__init__(daemon=True)
        self._end, self._qp, self._states = end, qp, states
        self.began = threading.Event()

    def run(self):
        import verbs_commands  # only a guest has verbs

        turn = 0
        with contextlib.suppress(OSError):
            while turn < 100_000:
                verbs_commands.modify_state(self._end, self._qp, self._states[turn % len(self._states)])
                self.began.set()
                turn += 1
        log(f"{turn} changes")


@case(timeout=240)
def error_while_changing():
    """A queue pair that fails during a modify stays in the Error state.

    The modify is refused, and the receives are flushed.
    """
    if bed.here.driver != "rrxe":
        raise Skip("the other driver is not ours to test")
    rng = random.Random(1)
    with opened() as (end, info):
        pd, cq, receives = end.pd(), end.cq(), end.cq()
        memory = end.memory(pd, 4096)
        sge = [[memory["address"], 8, memory["lkey"]]]
        victim = end.qp("rc", pd, cq, receives)
        peer = end.qp("rc", pd, cq)
        for turn in range(60):
            connect(end, info, "rc", victim, peer)
            end.post_recv(victim["id"], [{"id": 7, "sge": sge}])
            changing = Changing(end, victim["id"], "sqd", "rts")
            changing.start()
            changing.began.wait(60)
            for _ in range(rng.randrange(200)):
                pass
            # The queue pair refuses this request and fails.
            request = {"id": 1, "op": "write", "sge": sge, "rkey": memory["rkey"] ^ 0x5A, "raddr": memory["address"]}
            end.post_send(peer["id"], [request])
            (found,) = end.poll(cq, 1, 60)
            equal("the request", found["status"], "REM_ACCESS_ERR")
            changing.join(120)
            equal(f"state in turn {turn}", end.state(victim["id"]), "error")
            (found,) = end.poll(receives, 1, 60) or [{"status": "nothing"}]
            equal("the receive", found["status"], "WR_FLUSH_ERR")
            for qp in (victim, peer):
                end.modify(qp["id"], ("STATE",), state="reset")
        end.async_events()


# Objects that programs may create in large numbers, with the least kernel memory in bytes of each.
MANY = {
    "windows": (lambda end, info, pd: end.window(pd, 1), 250),
    "address-handles": (lambda end, info, pd: end.ah(pd, info["gid"]), 250),
}


@case(timeout=300, each=MANY)
def charged(what):
    """The memory of objects is charged to the program's control group, and released with them."""
    make, least = what
    count = 3000
    with control_group("memory") as group:

        def kernel():
            return statistics(group, "memory.stat")["kernel"]

        with opened() as (end, info):
            pd = end.pd()
            make(end, info, pd)
            before = kernel()
            for _ in range(count):
                make(end, info, pd)
            # The kernel updates these statistics every two seconds.
            wait_until("the objects are charged", lambda: kernel() - before >= count * least, seconds=20)
            grown = kernel() - before
            log(f"{grown / count} bytes each")
        wait_until("their memory is given back", lambda: kernel() - before < grown / 4, seconds=20)


# Memberships of multicast groups that the module allows (MAX_TOTAL_MCAST_QP_ATTACH).
MEMBERSHIPS = 8192

UD = 4  # IBV_QPT_UD


@contextlib.contextmanager
def members(most):
    """Joins up to `most` queue pairs to groups, in a process of its own.

    There are 16 queue pairs, and each joins the same groups. Yields the number of memberships, the
    last errno or 0, and what the provider says about it.
    """
    from libibverbs import QpCap, QpInit, Verbs  # only a guest has verbs

    os.environ["RRXE_DEBUG"] = "1"
    verbs = Verbs(bed.here.device)
    pd = verbs.make("ibv_alloc_pd", verbs.context)
    cq = verbs.make("ibv_create_cq", verbs.context, 1, None, None, 0)
    init = QpInit(None, cq.value, cq.value, None, QpCap(1, 1, 1, 1, 0), UD, 0)
    qps = [verbs.make("ibv_create_qp", pd, ctypes.byref(init)) for _ in range(16)]
    count, error = 0, 0
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        while count < most and not error:
            group, turn = divmod(count, len(qps))
            gid = ipaddress.ip_address(f"::ffff:239.7.{3 + group // 256}.{group % 256}").packed
            error = verbs.call("ibv_attach_mcast", qps[turn], gid, 0)
            count += not error
        file.seek(0)
        yield count, error, file.read().decode()


def of_user(user, most, *capabilities):
    """Starts a program of this user that joins groups, for the duration of a block."""
    return privilege.beside(lambda: members(most), [lambda: privilege.become(user, *capabilities)])


@case(timeout=400)
def share_of_a_user():
    """A user can have half of what others leave of a limit: tested with multicast memberships.

    The provider explains the refusal. Another user still finds room, and so does a program with
    CAP_SYS_RESOURCE. All of a user's objects are given back when its program is killed.
    """
    if bed.here.driver != "rrxe":
        raise Skip("the other driver has no limit of a user")
    share = MEMBERSHIPS // 2
    with of_user(65534, MEMBERSHIPS) as (count, error, text):
        equal("memberships and error", (count, error), (share, errno.EDQUOT))
        log(text)
        require(text.startswith("librrxe: a multicast membership exceeds the share of this user"), "no explanation")
        for name, user, capabilities, wanted in (
            ("another program of the same user", 65534, (), (0, errno.EDQUOT)),
            ("a privileged program of the same user", 65534, (privilege.CAP_SYS_RESOURCE,), (10, 0)),
            ("another user", 65533, (), (10, 0)),
            ("root", 0, (), (10, 0)),
        ):
            with of_user(user, 10, *capabilities) as (count, error, _):
                equal(f"of {name}", (count, error), wanted)
    # More than half of what the killed program left.
    most = share // 2 + 100
    with of_user(65533, most) as (count, error, _):
        equal("of another user afterwards", (count, error), (most, 0))


# Protection domains that a user may have (MAX_USER_PD).
DOMAINS = 16384


@contextlib.contextmanager
def domains(most):
    """Allocates up to `most` protection domains, in a process of its own.

    Yields their number, the last errno or 0, and what the provider says about it.
    """
    from libibverbs import Verbs  # only a guest has verbs

    os.environ["RRXE_DEBUG"] = "1"
    verbs = Verbs(bed.here.device)
    count, error = 0, 0
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        while count < most and not error:
            _, error = verbs.try_make("ibv_alloc_pd", verbs.context)
            count += not error
        file.seek(0)
        yield count, error, file.read().decode()


@case(timeout=400)
def domains_of_a_user():
    """The number of a user's protection domains is limited, and others are not affected.

    ib_core's part of a domain is charged to no control group, so their number bounds that memory.
    """
    here = bed.here
    if here.driver != "rrxe":
        raise Skip("the other driver has no limit of a user")

    def of(user, most, *capabilities):
        become = [lambda: privilege.become(user, *capabilities)]
        return privilege.beside(lambda: domains(most), become)

    def slabs():
        return int(here.machine.run("awk '/^SUnreclaim/ {print $2}' /proc/meminfo"))

    before = slabs()
    with of(65534, DOMAINS + 100) as (count, error, text):
        log(f"{slabs() - before} KiB of slabs for {count} domains")
        equal("domains and error", (count, error), (DOMAINS, errno.EDQUOT))
        require(text.startswith("librrxe: a protection domain exceeds the share of this user"), "no explanation")
        for name, user, capabilities, wanted in (
            ("another program of the same user", 65534, (), (0, errno.EDQUOT)),
            ("a privileged program of the same user", 65534, (privilege.CAP_SYS_RESOURCE,), (10, 0)),
            ("another user", 65533, (), (10, 0)),
        ):
            with of(user, 10, *capabilities) as (count, error, _):
                equal(f"of {name}", (count, error), wanted)


@case()
def length_of_other_memory():
    """A region that was moved to other memory is listed with its new length."""
    here = bed.here
    if here.driver != "rrxe":
        raise Skip("the other driver gives a region no other memory")
    with opened() as (end, _):
        region = end.memory(end.pd(), 8192)
        end.reregister(region["id"], size=3 * 4096)
        listed = json.loads(here.machine.run("rdma -j resource show mr"))
        equal("lengths", [mr["mrlen"] for mr in listed if mr.get("pid") == os.getpid()], [3 * 4096])


@case(timeout=240)
def resize_keeps_completions():
    """Resizing a queue moves its completions to the new ring, in order."""
    with opened() as (end, info):
        pd = end.pd()
        cq, other = end.cq(4096), end.cq()
        left, right = (end.qp("rc", pd, each, send_wr=64) for each in (cq, other))
        connect(end, info, "rc", left, right)
        memory = end.memory(pd, 4096)
        request = {"op": "write", "sge": [[memory["address"], 8, memory["lkey"]]], "raddr": memory["address"] + 64}
        request["rkey"] = memory["rkey"]
        for turn in range(4):
            for number in range(32):
                end.post_send(left["id"], [{"id": number, **request}])
            end.resize(cq, 1000 << turn)
            found = end.poll(cq, 32, 30)
            equal("completions", [(wc["id"], wc["status"]) for wc in found], [(n, "SUCCESS") for n in range(32)])


@case(timeout=240)
def retries_without_end():
    """Infinite RNR retries with the shortest timer become rare, because softirqs execute them."""
    if bed.here.driver != "rrxe":
        raise Skip("other drivers retry at the rate that the peer asks for")
    seconds = 2
    with opened() as (end, info):
        pd, cq, receives = end.pd(), end.cq(), end.cq()
        left, right = (end.qp("rc", pd, cq, receives) for _ in range(2))
        connect(end, info, "rc", left, right, rnr_timer=1)
        memory = end.memory(pd, 4096)
        sge = [[memory["address"], 8, memory["lkey"]]]
        end.post_send(left["id"], [{"id": 1, "op": "send", "sge": sge}])
        # The first retries follow each other closely.
        time.sleep(seconds)
        before = counted.read(bed.here)["out_of_buffer"]
        time.sleep(seconds)
        retries = counted.read(bed.here)["out_of_buffer"] - before
        log(f"{retries / seconds} retries a second")
        require(0 < retries / seconds < 300, f"{retries / seconds} retries a second")
        end.post_recv(right["id"], [{"id": 2, "sge": sge}])
        for queue in (cq, receives):
            equal("completions", [wc["status"] for wc in end.poll(queue, 1, 10)], ["SUCCESS"])


class ByIoctl:
    """Creates objects by ioctl(), with rings of 16 entries. No program uses them."""

    def __init__(self, end):
        import verbs_commands  # only a guest has verbs

        self._commands, self._end = verbs_commands, end
        self._pd = verbs_commands.alloc_pd(end)
        self._memory = mmap.mmap(-1, 1 << 16)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    def _ring(self, stride, offset=0):
        return struct.pack("=Q2I", self._address + offset, 16, stride)

    def _create(self, kind, rings, attributes):
        return self._commands.create(self._end, kind, {self._commands.DRIVER_INPUT: rings, **attributes})

    def cq(self, more):
        """Creates a completion queue with further attributes."""
        required = {1: number(8), 2: bytes(8), 4: bytes(4), 6: ctypes.c_uint32()}
        return self._create(self._commands.CQ, self._ring(64), {**required, **more})

    def qp(self, more):
        """Creates a queue pair and its completion queue."""
        cq = self.cq({})
        cap = struct.pack("=5I", 8, 8, 1, 1, 0)
        required = {2: self._pd, 4: cq, 5: cq, 7: bytes(8), 8: cap, 9: struct.pack("=Q", 2)}
        outputs = {13: ctypes.create_string_buffer(len(cap)), 14: ctypes.c_uint32()}
        rings = self._ring(80) + self._ring(32, 1 << 15)
        return self._create(self._commands.QP, rings, {**required, **outputs, **more})

    def srq(self, more):
        """Creates a shared receive queue."""
        required = {1: self._pd, 4: bytes(8), 5: number(8), 6: number(1), 7: bytes(4), 9: bytes(8)}
        outputs = {11: ctypes.c_uint32(), 12: ctypes.c_uint32()}
        return self._create(self._commands.SRQ, self._ring(32), {**required, **outputs, **more})


def number(value):
    """Returns an attribute's value of 32 bits."""
    return struct.pack("=I", value)


# The attributes that give a ring other memory: UVERBS_ATTR_CREATE_CQ_BUFFER_* (address, length,
# file and offset) and UVERBS_ATTR_CREATE_*_BUF_UMEM (struct ib_uverbs_buffer_desc).
BUFFERS = {
    "cq-address": (ByIoctl.cq, {8: bytes(8), 9: bytes(8)}),
    "cq-file": (ByIoctl.cq, {10: 0, 11: bytes(8), 9: bytes(8)}),
    "cq-length": (ByIoctl.cq, {9: bytes(8)}),
    "cq": (ByIoctl.cq, {12: bytes(32)}),
    "qp": (ByIoctl.qp, {15: bytes(32)}),
    "qp-receives": (ByIoctl.qp, {16: bytes(32)}),
    "qp-sends": (ByIoctl.qp, {17: bytes(32)}),
    "srq": (ByIoctl.srq, {14: bytes(32)}),
}


@case(each=BUFFERS)
def other_buffer(what):
    """A command is refused if attributes place a ring in other memory than the driver's input."""
    if bed.here.driver != "rrxe":
        raise Skip("other drivers have other input")
    create, attributes = what
    with opened() as (end, _):
        objects = ByIoctl(end)
        create(objects, {})
        try:
            create(objects, attributes)
        except OSError as why:
            # Linux 7.2 knows no such attribute of shared receive queues.
            require(why.errno in (errno.EOPNOTSUPP, errno.EPROTONOSUPPORT), f"errno {why.errno}")
        else:
            raise Failure("the object was created")


# IB_UVERBS_CQ_FLAGS_* and the errno of creating a queue with them.
CQ_FLAGS = {"timestamps": (1, 0), "ignore-overrun": (2, errno.EOPNOTSUPP), "both": (3, errno.EOPNOTSUPP)}


@case(each=CQ_FLAGS)
def completion_queue_flags(what):
    """The kernel refuses to create a completion queue that ignores overruns."""
    if bed.here.driver != "rrxe":
        raise Skip("other drivers may have such queues")
    flags, wanted = what
    with opened() as (end, _):
        objects, found = ByIoctl(end), 0
        try:
            objects.cq({5: number(flags)})
        except OSError as why:
            found = why.errno
        equal(f"errno for flags {flags}", found, wanted)


def run():
    """Runs the suite."""
    return bed.run()
