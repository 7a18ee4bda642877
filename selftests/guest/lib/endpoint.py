# SPDX-License-Identifier: GPL-2.0
"""One end of a verbs connection, driven by calls whose arguments are plain data.

A test that drives both ends holds two of these: one in its own process, and one on the other host
(`Peer`) or a second of its own for loopback. Objects are named by small numbers.

Every memory region has a shadow with its expected bytes. `put` writes data to both, `expect`
records data that the other side is about to write, and `verify` compares the whole region, so that
a stray byte anywhere in it is found, not only around the target. Data is named by a seed, so that
it need not be sent along beside the connection under test.
"""

import contextlib
import ctypes
import fcntl
import functools
import ipaddress
import mmap
import os
import random
import select
import signal
import socket
import struct
import threading
import time
import zlib

from pyverbs.addr import AH, GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ, CQEX, CompChannel, CqInitAttrEx
from pyverbs.device import DM, AllocDmAttr, Context
from pyverbs.mr import DMMR, MR, MW, MWBind, MWBindInfo
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QP, DataBuffer, QPAttr, QPCap, QPEx, QPInitAttr, QPInitAttrEx
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr, SrqInitAttrEx
from pyverbs.wr import SGE, RecvWR, SendWR
from pyverbs.xrcd import XRCD, XRCDInitAttr

import harness
import machine
import verbs_enums as e
from packets import QKEY

STATES = {
    e.IBV_QPS_RESET: "reset",
    e.IBV_QPS_INIT: "init",
    e.IBV_QPS_RTR: "rtr",
    e.IBV_QPS_RTS: "rts",
    e.IBV_QPS_SQD: "sqd",
    e.IBV_QPS_SQE: "sqe",
    e.IBV_QPS_ERR: "error",
}
STATE_NUMBERS = {name: number for number, name in STATES.items()}

STATUSES = {
    getattr(e, name): name[len("IBV_WC_") :]
    for name in dir(e)
    if name.startswith("IBV_WC_") and name.endswith(("_ERR", "_SUCCESS"))
}

# Each work request by name, with its opcode and the opcode of its completion.
SEND_OPS = {
    "send": (e.IBV_WR_SEND, e.IBV_WC_SEND),
    "send-imm": (e.IBV_WR_SEND_WITH_IMM, e.IBV_WC_SEND),
    "send-inv": (e.IBV_WR_SEND_WITH_INV, e.IBV_WC_SEND),
    "write": (e.IBV_WR_RDMA_WRITE, e.IBV_WC_RDMA_WRITE),
    "write-imm": (e.IBV_WR_RDMA_WRITE_WITH_IMM, e.IBV_WC_RDMA_WRITE),
    "read": (e.IBV_WR_RDMA_READ, e.IBV_WC_RDMA_READ),
    "cmp-swap": (e.IBV_WR_ATOMIC_CMP_AND_SWP, e.IBV_WC_COMP_SWAP),
    "fetch-add": (e.IBV_WR_ATOMIC_FETCH_AND_ADD, e.IBV_WC_FETCH_ADD),
    "flush": (e.IBV_WR_FLUSH, e.IBV_WC_FLUSH),
    "atomic-write": (e.IBV_WR_ATOMIC_WRITE, e.IBV_WC_ATOMIC_WRITE),
    "local-inv": (e.IBV_WR_LOCAL_INV, e.IBV_WC_LOCAL_INV),
}
WC_OPCODES = {
    e.IBV_WC_SEND: "send",
    e.IBV_WC_RDMA_WRITE: "write",
    e.IBV_WC_RDMA_READ: "read",
    e.IBV_WC_COMP_SWAP: "cmp-swap",
    e.IBV_WC_FETCH_ADD: "fetch-add",
    e.IBV_WC_FLUSH: "flush",
    e.IBV_WC_ATOMIC_WRITE: "atomic-write",
    e.IBV_WC_LOCAL_INV: "local-inv",
    e.IBV_WC_BIND_MW: "bind",
    e.IBV_WC_RECV: "recv",
    e.IBV_WC_RECV_RDMA_WITH_IMM: "recv-write-imm",
}

FLAGS = {
    "signaled": e.IBV_SEND_SIGNALED,
    "solicited": e.IBV_SEND_SOLICITED,
    "fence": e.IBV_SEND_FENCE,
    "inline": e.IBV_SEND_INLINE,
}

ACCESS = {
    "local-write": e.IBV_ACCESS_LOCAL_WRITE,
    "remote-write": e.IBV_ACCESS_REMOTE_WRITE,
    "remote-read": e.IBV_ACCESS_REMOTE_READ,
    "remote-atomic": e.IBV_ACCESS_REMOTE_ATOMIC,
    "flush-global": e.IBV_ACCESS_FLUSH_GLOBAL,
    "flush-persistent": e.IBV_ACCESS_FLUSH_PERSISTENT,
}
ALL_ACCESS = ("local-write", "remote-write", "remote-read", "remote-atomic")
ACCESS |= {
    "mw-bind": e.IBV_ACCESS_MW_BIND,
    "zero-based": e.IBV_ACCESS_ZERO_BASED,
    "on-demand": e.IBV_ACCESS_ON_DEMAND,
}

# IBV_ADVISE_MR_* (verbs.h), which pyverbs names differently in each release.
ADVICE = {"prefetch": 0, "prefetch-write": 1, "prefetch-no-fault": 2, "unknown": 77}
ADVISE_FLUSH = 1

HUGE_PAGE = 2 << 20

# Numbers of mman.h, unistd_64.h and userfaultfd.h.
MAP_FIXED, MREMAP_MAYMOVE, MREMAP_FIXED = 0x10, 1, 2
MADV_DONTNEED, MADV_DONTFORK, MADV_DOFORK = 4, 10, 11
MADV_PAGEOUT, MADV_COLLAPSE = 21, 25
USERFAULTFD, UFFDIO_API, UFFDIO_REGISTER, UFFDIO_COPY = 323, 0xC018AA3F, 0xC020AA00, 0xC028AA03
UFFD_EVENT_PAGEFAULT, UFFD_MESSAGE = 0x12, 32

TYPES = {"rc": e.IBV_QPT_RC, "uc": e.IBV_QPT_UC, "ud": e.IBV_QPT_UD}

MTUS = {256: e.IBV_MTU_256, 512: e.IBV_MTU_512, 1024: e.IBV_MTU_1024, 2048: e.IBV_MTU_2048, 4096: e.IBV_MTU_4096}
MTU_BYTES = {number: size for size, number in MTUS.items()}

# The operations that ibv_create_qp_ex enables for each type of queue pair.
_UD_OPS = e.IBV_QP_EX_WITH_SEND | e.IBV_QP_EX_WITH_SEND_WITH_IMM
_RC_OPS = (
    _UD_OPS
    | e.IBV_QP_EX_WITH_RDMA_WRITE
    | e.IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | e.IBV_QP_EX_WITH_RDMA_READ
    | e.IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | e.IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
    | e.IBV_QP_EX_WITH_SEND_WITH_INV
    | e.IBV_QP_EX_WITH_LOCAL_INV
    | e.IBV_QP_EX_WITH_BIND_MW
)

# The operations that it also enables for FLUSH and ATOMIC WRITE.
_PLACEMENT_OPS = e.IBV_QP_EX_WITH_FLUSH | e.IBV_QP_EX_WITH_ATOMIC_WRITE

# Shortest and longest pause after an empty poll. An emulated CPU that polls takes the host's CPU
# from the machine for whose completion it waits.
EMPTY_POLL_SECONDS = 0.001
LONGEST_PAUSE_SECONDS = 0.02

ASYNC_EVENTS = {
    getattr(e, name): name[len("IBV_EVENT_") :] for name in dir(e) if name.startswith("IBV_EVENT_")
}

# IB_USER_VERBS_CMD_* (ib_user_verbs.h).
REQ_NOTIFY_CQ, ATTACH_MCAST, DETACH_MCAST = 23, 30, 31


# Longer data repeats: an emulated CPU takes 0.1 s for a mebibyte of random bytes. The period is a
# prime number, so that data at a wrong offset differs, unless that is a multiple of it.
PERIOD = 65521


@functools.lru_cache(maxsize=64)
def _block(seed, length):
    return random.Random(seed).randbytes(length)


def data(seed, length):
    """Returns `length` bytes that depend only on `seed`."""
    block = _block(seed, min(length, PERIOD))
    if length <= PERIOD:
        return block
    return (block * -(-length // PERIOD))[:length]


_libc = ctypes.CDLL(None, use_errno=True)


def _eight_groups(gid):
    """Returns a GID in the form that pyverbs requires: all eight groups in full."""
    return ipaddress.IPv6Address(gid).packed.hex(":", 2)


@contextlib.contextmanager
def _environment(**variables):
    """Sets these environment variables in the block (None: unset)."""
    before = {name: os.environ.pop(name, None) for name in variables}

    def put(values):
        for name, value in values.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = str(value)

    put(variables)
    try:
        yield
    finally:
        put(before)


def _event_files():
    """Returns the event files of libibverbs open in this process.

    pyverbs does not provide their numbers.
    """
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if "infinibandevent" in os.readlink(f"/proc/self/fd/{name}"):
                found.add(int(name))
    return found


def _mappings(kind=""):
    """Returns the address ranges that this process has mapped, as pairs of start and end.

    `kind` selects lines of /proc/self/maps.
    """
    with open("/proc/self/maps", encoding="ascii") as lines:
        return [tuple(int(end, 16) for end in line.split()[0].split("-")) for line in lines if kind in line]


def _new_mapping(before, size):
    """Returns the start of the only range of this size that was mapped after `before`."""
    found = []
    for start, end in _mappings():
        for old_start, old_end in before:
            if old_start <= start < old_end:
                start = old_end
            if start < old_start < end:
                end = old_start
        if end - start == size:
            found.append(start)
    (start,) = found
    return start


def _readable(fd, seconds):
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(seconds * 1000))


def _bits(table, names):
    value = 0
    for name in names:
        value |= table[name]
    return value


class _Memory:
    """Anonymous memory, the region over it, and the shadow."""

    def __init__(self, pd, size, access, seed):
        self.map, self.address = self._mapped(size, seed)
        self.shadow = bytearray(self.map)
        self.region = MR(pd, size, access, address=self.address)

    @staticmethod
    def _mapped(size, seed):
        found = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        found[:] = data(seed, size)
        return found, ctypes.addressof(ctypes.c_char.from_buffer(found))

    def is_as_expected(self):
        """Returns whether the memory equals the shadow, without copying either."""
        size = len(self.shadow)
        shadow = (ctypes.c_char * size).from_buffer(self.shadow)
        return _libc.memcmp(ctypes.c_void_p(self.address), shadow, ctypes.c_size_t(size)) == 0

    def contents(self, offset, size):
        """Returns a copy of bytes of the memory."""
        copy = ctypes.create_string_buffer(size)
        ctypes.memmove(copy, self.address + offset, size)
        return copy.raw

    def move(self, size, seed, flags, **change):
        """Moves the region to new memory. Returns the old memory and its shadow."""
        there, address = self._mapped(size, seed)
        self.region.rereg(flags | e.IBV_REREG_MR_CHANGE_TRANSLATION, addr=address, length=size, **change)
        left = self.map, self.shadow
        self.map, self.address, self.shadow = there, address, bytearray(there)
        return left


def _userfaultfd(address, length):
    """Registers memory with a userfaultfd, which reports accesses to missing pages."""
    fd = _libc.syscall(USERFAULTFD, os.O_CLOEXEC | os.O_NONBLOCK)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "userfaultfd")
    fcntl.ioctl(fd, UFFDIO_API, struct.pack("QQQ", 0xAA, 0, 0))
    fcntl.ioctl(fd, UFFDIO_REGISTER, struct.pack("QQQQ", address, length, 1, 0))
    return fd


class _Server(threading.Thread):
    """Resolves the faults of missing pages of a region with the bytes of its shadow.

    The thread needs Python's lock. So no other thread of this process may access a missing page
    with the lock held: ctypes.memmove() and functions of `_libc` release it.
    """

    def __init__(self, value):
        super().__init__(daemon=True)
        self._value, self._size = value, len(value.map)
        self._ends = threading.Event()
        self._contents = None
        self.served = set()
        self.withdraw()
        self._fd = _userfaultfd(value.address, self._size)

    def withdraw(self):
        """Takes all pages from the process. Faults are resolved with what the shadow is now."""
        self._contents = ctypes.create_string_buffer(bytes(self._value.shadow), self._size)
        if _libc.madvise(ctypes.c_void_p(self._value.address), ctypes.c_size_t(self._size), MADV_DONTNEED):
            raise OSError(ctypes.get_errno(), "madvise")

    def run(self):
        while not self._ends.is_set():
            if not _readable(self._fd, 0.1):
                continue
            message = os.read(self._fd, UFFD_MESSAGE)
            if message[0] != UFFD_EVENT_PAGEFAULT:
                continue
            page = struct.unpack_from("Q", message, 16)[0] & ~4095
            source = ctypes.addressof(self._contents) + page - self._value.address
            # Before the copy: the thread that waits for the page may look at the set next.
            self.served.add(page)
            # Two threads of the process may have waited for the page.
            with contextlib.suppress(FileExistsError):
                fcntl.ioctl(self._fd, UFFDIO_COPY, struct.pack("QQQQq", page, source, 4096, 0, 0))

    def stop(self):
        """Ends the thread. Missing pages are zero from now on."""
        self._ends.set()
        self.join()
        os.close(self._fd)


class _Disturber(threading.Thread):
    """Takes pages from the process's page tables: to swap space, by fork, by compaction.

    The debug kernel compacts nothing. User Mode Linux changes the mappings of a process only when
    one of its threads returns to user mode (flush_tlb_page() in arch/um), so a thread that runs on
    another CPU meanwhile writes to the old place of a page that moves.

    With `huge`, the thread collapses the memory to huge pages, and splits them again.
    """

    def __init__(self, address, size, huge):
        super().__init__(daemon=True)
        self._range = ctypes.c_void_p(address), ctypes.c_size_t(size)
        self._turn = self._collapse_and_split if huge else self._take
        self._first = -(-address // HUGE_PAGE) * HUGE_PAGE
        self._count = (address + size - self._first) // HUGE_PAGE
        self._ends = threading.Event()
        self._turns = 0

    def _collapse_and_split(self):
        for number in range(self._count):
            page = self._first + number * HUGE_PAGE
            failed = _libc.madvise(ctypes.c_void_p(page), ctypes.c_size_t(HUGE_PAGE), MADV_COLLAPSE)
            # Reclaim of a small page splits the huge one. A boundary of advice splits its mapping.
            small = ctypes.c_void_p(page + self._turns % 512 * 4096), ctypes.c_size_t(4096)
            for advice in (MADV_DONTFORK, MADV_DOFORK, MADV_PAGEOUT):
                _libc.madvise(*small, advice)
            self._turns += not failed
        # As below.
        time.sleep(0.05)

    def run(self):
        while not self._ends.is_set():
            self._turn()

    def _take(self):
        self._turns += 1
        _libc.madvise(*self._range, MADV_PAGEOUT)
        if self._turns % 4 == 1:
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
        if self._turns % 8 == 2 and not harness.debug_kernel():
            with contextlib.suppress(OSError), open("/proc/sys/vm/compact_memory", "w", encoding="ascii") as file:
                file.write("1")
        # Reclaim leaves alone what was just used. Without a pause, a page would go again before
        # the packet that needs it comes again.
        time.sleep(0.01 if harness.debug_kernel() else 0.05)

    def stop(self):
        """Ends the thread. Returns the number of turns."""
        self._ends.set()
        self.join()
        return self._turns


class Endpoint:
    """A context of one device, and the objects created in it."""

    def __init__(self):
        self._context = None
        self._gid_index = None
        self._async_fd = None
        self._event_fds = {}
        self._objects = {}
        self._handles = {}
        self._attached = set()
        self._stamped = set()
        self._disturber = None
        self._missing = None
        self._advisor = None
        self._advised = 0
        self._server = None
        self._received = None
        self._next = 1

    def _keep(self, value):
        number = self._next
        self._next += 1
        self._objects[number] = value
        return number

    def do(self, calls):
        """Makes several calls in one: [method, arguments] each. Returns their results."""
        return [getattr(self, what)(*arguments) for what, arguments in calls]

    # Device

    def open(self, device, address, driver, poll_idle_us=None):
        """Opens `device` of `driver`; traffic will use the RoCEv2 GID of the IP address.

        Returns the properties of the device that tests need. `poll_idle_us` is set in the
        environment of rrxe's provider: see docs/performance.md.
        """
        with _environment(RRXE_POLL_IDLE_US=poll_idle_us):
            return self._opened(device, address, driver, name=device)

    def import_device(self, device, address, driver, file=None):
        """Imports the context with the command file `file` of this process, or the received one.

        Returns the same as `open`. The file is closed with the endpoint.
        """
        return self._opened(device, address, driver, cmd_fd=self._received if file is None else file)

    def receive_file(self, name):
        """Receives a file from the process that listens at a Unix socket with an abstract name."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect("\0" + name)
            _, (self._received,), _, _ = socket.recv_fds(connection, 1, 1)

    def send_file(self, name):
        """Sends the command file to the process that listens at such a socket."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect("\0" + name)
            socket.send_fds(connection, [b"f"], [self.command_file()])

    def _opened(self, device, address, driver, **how):
        before = _event_files()
        self._context = Context(**how)
        (self._async_fd,) = _event_files() - before
        self._gid_index, gid = self._find_gid(ipaddress.ip_address(address))
        attributes = self._context.query_device()
        port = self._context.query_port(1)
        return {
            "device": device,
            "driver": driver,
            "address": address,
            "gid": gid,
            "gid_index": self._gid_index,
            "mtu": MTU_BYTES[port.active_mtu],
            "max_msg": port.max_msg_sz,
            "max_sge": attributes.max_sge,
            "max_qp_wr": attributes.max_qp_wr,
            "max_cqe": attributes.max_cqe,
            "max_rd_atomic": attributes.max_qp_rd_atom,
            "max_srq": attributes.max_srq,
            "max_srq_wr": attributes.max_srq_wr,
            "max_srq_sge": attributes.max_srq_sge,
            "caps": attributes.device_cap_flags,
        }

    def claims(self):
        """Returns the capabilities that the device reports: {name: number}, without zeros.

        Flags appear as `NAME[bit]`.
        """
        found = {}
        context = self._context
        plain, extended, port = context.query_device(), context.query_device_ex(), context.query_port(1)
        flags = plain.device_cap_flags & 0xFFFFFFFF | extended.device_cap_flags_ex
        for name, value in (("device", flags), ("port", port.port_cap_flags), ("port2", port.port_cap_flags2)):
            found.update({f"{name}[{bit}]": 1 for bit in range(64) if value >> bit & 1})
        found["atomic_cap"] = plain.atomic_caps

        other = ("comp_mask", "device_cap_flags_ex", "orig_attr", "phys_port_cnt_ex")

        def take(prefix, thing):
            for name in dir(type(thing)):
                value = None if name.startswith("_") or name in other else getattr(thing, name)
                if isinstance(value, int):
                    found[prefix + name] = value
                elif type(value).__module__.startswith("pyverbs"):
                    take(f"{prefix}{name}.", value)

        take("", extended)
        found.update(self.limits())
        return {name: value for name, value in found.items() if value}

    def limits(self):
        """Returns the maxima that the device and its port report: {name: number}, without zeros."""
        plain, port = self._context.query_device(), self._context.query_port(1)
        found = {name: getattr(plain, name) for name in dir(type(plain)) if name.startswith("max_")}
        found.update({name: getattr(port, name) for name in ("gid_tbl_len", "pkey_tbl_len", "max_msg_sz")})
        return {name: value for name, value in found.items() if value}

    def pkey(self, index):
        """Returns an entry of the P_Key table, or None if it does not exist."""
        try:
            return socket.ntohs(self._context.query_pkey(1, index) & 0xFFFF)
        except PyverbsRDMAError:
            return None

    def gid_at(self, index):
        """Returns an entry of the GID table, or None if the entry is empty or does not exist."""
        try:
            gid = self._context.query_gid(1, index).gid
        except PyverbsRDMAError:
            return None
        return None if ipaddress.ip_address(gid) == ipaddress.ip_address("::") else gid

    def system_image(self):
        """Returns the system image GUID as 16 hexadecimal digits."""
        return self._context.query_device().sys_image_guid.to_bytes(8, "little").hex()

    def _find_gid(self, address):
        if address.version == 4:
            wanted = ipaddress.ip_address(f"::ffff:{address}")
        else:
            wanted = address
        for index in range(self._context.query_port(1).gid_tbl_len):
            try:
                gid = self._context.query_gid(1, index).gid
                version = self._context.query_gid_type(1, index)
            except PyverbsRDMAError:  # an empty entry, as some providers report it
                continue
            if ipaddress.ip_address(gid) == wanted and version == e.IBV_GID_TYPE_SYSFS_ROCE_V2:
                return index, gid
        raise RuntimeError(f"no RoCEv2 GID for {address}")

    def close(self):
        """Closes the device with all objects created in it."""
        if self._server:
            self.stop_serving()
        for qp, gid in list(self._attached):
            self.detach(qp, gid)
        for value in reversed(self._objects.values()):
            if isinstance(value, _Memory):
                value.region.close()
            else:
                value.close()
        self._objects.clear()
        if self._context:
            self._context.close()
            self._context = None

    def kill_self(self):
        """Kills this process by kill -9."""
        os.kill(os.getpid(), signal.SIGKILL)

    def leave(self):
        """Releases the endpoint after a failure."""
        self.close()

    def drop(self, *numbers):
        """Destroys these objects, in this order. If destruction fails, the object is kept."""
        for number in numbers:
            value = self._objects[number]
            if isinstance(value, _Memory):
                value.region.close()
            else:
                value.close()
            del self._objects[number]

    def async_events(self, seconds=0):
        """Returns the names of pending asynchronous events.

        Waits up to `seconds` for the first.
        """
        found = []
        while _readable(self._async_fd, 0 if found else seconds):
            event = self._context.get_async_event()
            found.append(ASYNC_EVENTS.get(event.event_type, event.event_type))
            event.ack()
        return found

    # Protection domains and memory

    def pd(self):
        """Allocates a protection domain."""
        return self._keep(PD(self._context))

    def import_pd(self, handle):
        """Imports a protection domain."""
        return self._keep(PD(self._context, handle=handle))

    def import_region(self, pd, handle):
        """Imports a region. Returns its keys and its length."""
        region = MR(self._objects[pd], handle=handle)
        return {"id": self._keep(region), "lkey": region.lkey, "rkey": region.rkey, "size": region.length}

    def import_device_memory(self, handle):
        """Imports memory of the device."""
        return self._keep(DM(self._context, handle=handle))

    def unimport(self, *numbers):
        """Ends the import of objects, in this order."""
        for number in numbers:
            self._objects.pop(number).unimport()

    def kernel_handle(self, number):
        """Returns the kernel's handle of a protection domain, a region or memory of the device."""
        value = self._objects[number]
        return getattr(value, "region", value).handle

    def memory(self, pd, size, access=ALL_ACCESS, seed=0):
        """Registers a region of `size` bytes filled with the data of `seed`."""
        value = _Memory(self._objects[pd], size, _bits(ACCESS, access), seed)
        return self._region(self._keep(value), value)

    @staticmethod
    def _region(number, value):
        return {
            "id": number,
            "address": value.address,
            "size": len(value.map),
            "lkey": value.region.lkey,
            "rkey": value.region.rkey,
        }

    def reregister(self, memory, pd=None, access=None, size=None, seed=0):
        """Changes a region's domain, access rights or memory.

        New memory has `size` bytes and holds the data of `seed`. Returns the region as it is now,
        and a description of any difference in the old memory.
        """
        value, flags, change = self._objects[memory], 0, {}
        if pd is not None:
            flags |= e.IBV_REREG_MR_CHANGE_PD
            change["pd"] = self._objects[pd]
        if access is not None:
            flags |= e.IBV_REREG_MR_CHANGE_ACCESS
            change["access"] = _bits(ACCESS, access)
        if size is None:
            value.region.rereg(flags, **change)
            return self._region(memory, value), ""
        before, wanted = value.move(size, seed, flags, **change)
        return self._region(memory, value), "" if before[:] == wanted else "the memory before has changed"

    def reregister_at(self, memory, address, length):
        """Moves a region to memory at an arbitrary address. Returns its keys."""
        value = self._objects[memory]
        region = getattr(value, "region", value)  # one of memory_again() has no shadow
        region.rereg(e.IBV_REREG_MR_CHANGE_TRANSLATION, addr=address, length=length)
        return {"lkey": region.lkey, "rkey": region.rkey}

    def memory_again(self, memory, pd, access=ALL_ACCESS, length=None):
        """Registers another region over the same bytes, or the first `length` of them.

        Only the first region has the shadow.
        """
        value = self._objects[memory]
        length = len(value.map) if length is None else length
        region = MR(self._objects[pd], length, _bits(ACCESS, access), address=value.address)
        return {"id": self._keep(region), "lkey": region.lkey, "rkey": region.rkey}

    def register(self, pd, address, length, access):
        """Registers memory at an arbitrary address, and deregisters it if that succeeded."""
        MR(self._objects[pd], length, _bits(ACCESS, access), address=address).close()

    def read_only_page(self):
        """Returns the address of a page that this program may not write to."""
        libc = ctypes.CDLL(None)
        libc.mmap.restype = ctypes.c_void_p
        with open("/proc/self/exe", "rb") as file:
            return libc.mmap(None, 4096, mmap.PROT_READ, mmap.MAP_PRIVATE, file.fileno(), ctypes.c_long(0))

    # Device memory

    def device_memory(self, length, log_alignment=0):
        """Allocates memory of the device."""
        return self._keep(DM(self._context, AllocDmAttr(length, log_alignment)))

    def free_device_memory(self, memory):
        """Frees memory of the device."""
        self._objects[memory].close()
        del self._objects[memory]

    def to_device(self, memory, offset, data):
        """Writes bytes, in hexadecimal digits, to memory of the device."""
        data = bytes.fromhex(data)
        self._objects[memory].copy_to_dm(offset, data, len(data))

    def from_device(self, memory, offset, length):
        """Returns memory of the device in hexadecimal digits."""
        return bytes(self._objects[memory].copy_from_dm(offset, length)).hex()

    def device_memory_handle(self, memory):
        """Returns the kernel's handle of memory of the device."""
        return self._objects[memory].handle

    def device_region(self, pd, memory, offset, length, access):
        """Registers a part of the device's memory. Returns its keys."""
        flags = _bits(ACCESS, access)
        region = DMMR(self._objects[pd], length, flags, self._objects[memory], offset)
        return {"id": self._keep(region), "lkey": region.lkey, "rkey": region.rkey}

    def deregister_device_region(self, region):
        """Deregisters a part of the device's memory."""
        self._objects[region].close()
        del self._objects[region]

    @staticmethod
    def map_file(file, offset, length, protection=mmap.PROT_READ, at=0):
        """Maps a part of a file, at the address `at` if it is not 0. Returns the address."""
        _libc.mmap.restype = ctypes.c_void_p
        where, flags = ctypes.c_void_p(at), mmap.MAP_SHARED | (MAP_FIXED if at else 0)
        found = _libc.mmap(where, ctypes.c_size_t(length), protection, flags, file, ctypes.c_long(offset))
        if found == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), "mmap")
        return found

    def try_to_map(self, file, offset, length, protection):
        """Maps a part of a file, and unmaps it if that succeeded. Returns the errno, or 0."""
        try:
            self.unmap(self.map_file(file, offset, length, protection), length)
        except OSError as why:
            return why.errno
        return 0

    # On-demand paging

    def whole_address_space(self, pd, access=(*ALL_ACCESS, "on-demand")):
        """Registers the whole address space of this process. Returns the keys."""
        region = MR(self._objects[pd], 0, _bits(ACCESS, access), implicit=True)
        return {"id": self._keep(region), "lkey": region.lkey, "rkey": region.rkey}

    def over(self, pd, address, length, access=(*ALL_ACCESS, "on-demand")):
        """Registers memory at an arbitrary address. Returns the keys."""
        region = MR(self._objects[pd], length, _bits(ACCESS, access), address=address)
        return {"id": self._keep(region), "lkey": region.lkey, "rkey": region.rkey, "address": address}

    def map(self, length, at=0, protection=mmap.PROT_READ | mmap.PROT_WRITE):
        """Maps anonymous memory, at the address `at` if it is not 0. Returns its address."""
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_NORESERVE
        _libc.mmap.restype = ctypes.c_void_p
        where = ctypes.c_void_p(at)
        found = _libc.mmap(where, ctypes.c_size_t(length), protection, flags | (MAP_FIXED if at else 0), -1, ctypes.c_long(0))
        if found == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), "mmap")
        return found

    def unmap(self, address, length):
        """Unmaps memory."""
        if _libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(length)):
            raise OSError(ctypes.get_errno(), "munmap")

    def remap(self, old, length, new):
        """Moves a mapping to the address `new`, in place of what is mapped there. Returns `new`."""
        _libc.mremap.restype = ctypes.c_void_p
        size, where = ctypes.c_size_t(length), ctypes.c_void_p(new)
        if _libc.mremap(ctypes.c_void_p(old), size, size, MREMAP_MAYMOVE | MREMAP_FIXED, where) != new:
            raise OSError(ctypes.get_errno(), "mremap")
        return new

    @staticmethod
    def checksum(address, length):
        """Returns the CRC of memory, which is not copied."""
        return zlib.crc32((ctypes.c_char * length).from_address(address))

    @staticmethod
    def mapped_as(address, what):
        """Returns the bytes of the mapping at an address that /proc/self/smaps counts as `what`."""
        found = False
        with open("/proc/self/smaps", encoding="ascii") as lines:
            for line in lines:
                name, _, rest = line.partition(" ")
                start, dash, end = name.partition("-")
                if dash and not name.endswith(":"):
                    found = int(start, 16) <= address < int(end, 16)
                elif found and name == f"{what}:":
                    return int(rest.split()[0]) * 1024
        return 0

    def advise_memory(self, address, length, advice):
        """Calls madvise() with the advice of this number. Returns the errno."""
        return -_libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(length), advice) and ctypes.get_errno()

    @staticmethod
    def resident(address, length):
        """Returns how many pages of a range this process has in memory."""
        pages = (ctypes.c_ubyte * -(-length // 4096))()
        _libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(length), pages)
        return sum(page & 1 for page in pages)

    def locked(self):
        """Returns the bytes that the kernel counts as pinned for this process."""
        with open("/proc/self/status", encoding="ascii") as lines:
            (found,) = [line.split()[1] for line in lines if line.startswith("VmPin:")]
        return int(found) * 1024

    def fill(self, address, byte, length):
        """Fills memory with a byte."""
        ctypes.memset(address, byte, length)

    def bytes_at(self, address, length):
        """Returns memory in hexadecimal digits."""
        return ctypes.string_at(address, length).hex()

    def advise(self, pd, segments, advice, flush=True):
        """Gives an advice about ranges ([address, length, lkey] each)."""
        flags = ADVISE_FLUSH if flush else 0
        ranges = [SGE(address, length, lkey) for address, length, lkey in segments]
        self._objects[pd].advise_mr(ADVICE[advice], flags, ranges)

    def begin_to_advise(self, pd, address, length, lkey):
        """Begins to bring in a range, in another thread. `advised` waits for the end."""
        import verbs_commands  # imports this module

        pd = self.kernel_handle(pd)

        def advise():
            self._advised = 0
            try:
                verbs_commands.advise(self, pd, ADVICE["prefetch-write"], ADVISE_FLUSH, address, length, lkey)
            except OSError as why:
                self._advised = why.errno

        self._advisor = threading.Thread(target=advise, daemon=True)
        self._advisor.start()

    def advised(self):
        """Waits until the advice that has begun is followed. Returns its errno, or 0."""
        self._advisor.join()
        return self._advised

    def without_answer(self, address, length):
        """Registers memory with a userfaultfd that nobody serves: its pages never come."""
        self._missing = _userfaultfd(address, length)

    def wait_for_page(self, seconds):
        """Waits until somebody waits for a page of the last such memory."""
        if not _readable(self._missing, seconds * harness.slowness()):
            raise RuntimeError("nobody waits for a page")

    def serve(self, memory):
        """Takes the pages of a region from this process, and starts a thread that brings them back
        one by one when they are accessed."""
        self._server = _Server(self._objects[memory])
        self._server.start()

    def withdraw(self):
        """Takes all pages of that region away again. Returns how many the thread had brought."""
        served, self._server.served = len(self._server.served), set()
        self._server.withdraw()
        return served

    def served(self):
        """Returns how many pages the thread has brought since they were taken away."""
        return len(self._server.served)

    def stop_serving(self):
        """Ends the thread."""
        server, self._server = self._server, None
        server.stop()

    def disturb(self, memory, huge=False):
        """Begins to change the page tables of a region without changing its contents."""
        if self._disturber is None:
            value = self._objects[memory]
            self._disturber = _Disturber(value.address, len(value.map), huge)
            self._disturber.start()

    def stop_disturbing(self):
        """Ends that. Returns how often it was done."""
        disturber, self._disturber = self._disturber, None
        return disturber.stop()

    def deregister(self, memory):
        """Deregisters the region; its memory stays, and can still be verified."""
        self._objects[memory].region.close()

    def put(self, memory, ranges, seed):
        """Writes the data of `seed` to `ranges` ([offset, length] each) of memory and shadow."""
        value = self._objects[memory]
        start, whole = 0, memoryview(data(seed, sum(length for _, length in ranges)))
        for offset, length in ranges:
            piece = whole[start : start + length]
            ctypes.memmove(value.address + offset, bytes(piece), length)
            value.shadow[offset : offset + length] = piece
            start += length

    def expect(self, memory, ranges, seed, length):
        """Expects the data of `seed` in the first `length` bytes of `ranges` from now on."""
        value = self._objects[memory]
        start, whole = 0, memoryview(data(seed, length))
        for offset, size in ranges:
            size = min(size, length - start)
            value.shadow[offset : offset + size] = whole[start : start + size]
            start += size

    def put_number(self, memory, offset, number):
        """Writes a 64-bit number to memory and shadow."""
        value = self._objects[memory]
        ctypes.memmove(value.address + offset, number.to_bytes(8, "little"), 8)
        self.expect_number(memory, offset, number)

    def expect_number(self, memory, offset, number):
        """Expects a 64-bit number at `offset` from now on."""
        self._objects[memory].shadow[offset : offset + 8] = number.to_bytes(8, "little")

    def accept(self, memory, ranges, length):
        """Accepts the first `length` bytes of `ranges` as they are.

        Returns them in hexadecimal digits.
        """
        value = self._objects[memory]
        taken = bytearray()
        for offset, size in ranges:
            size = min(size, length - len(taken))
            piece = value.contents(offset, size)
            value.shadow[offset : offset + size] = piece
            taken += piece
        return taken.hex()

    def matches(self, memory):
        """Returns whether the whole region is equal to its shadow. It may be changing."""
        return self._objects[memory].is_as_expected()

    def verify(self, memory):
        """Compares the whole region with its shadow. Returns an empty string, or the difference."""
        value = self._objects[memory]
        if value.is_as_expected():
            return ""
        found = value.contents(0, len(value.map))
        pages = [at for at in range(0, len(found), 4096) if found[at : at + 4096] != value.shadow[at : at + 4096]]
        page = pages[0]
        first = page + next(
            i for i, pair in enumerate(zip(found[page:], value.shadow[page:])) if pair[0] != pair[1]
        )
        return (
            f"{len(pages)} pages between offsets {page:#x} and {pages[-1]:#x} differ: at {first:#x} is "
            f"{found[first : first + 16].hex()}, not {bytes(value.shadow[first : first + 16]).hex()}"
        )

    # Memory windows

    def window(self, pd, kind):
        """Allocates an unbound memory window of type 1 or 2."""
        value = MW(self._objects[pd], e.IBV_MW_TYPE_1 if kind == 1 else e.IBV_MW_TYPE_2)
        return {"id": self._keep(value), "type": kind, "rkey": value.rkey}

    def bind(self, qp, window, memory, offset, length, access, rkey=None, number=1):
        """Posts the binding of a window to a part of a region.

        Returns the key that it gets; for type 2 it is `rkey`.
        """
        value, region = self._objects[window], self._objects[memory]
        info = MWBindInfo(region.region, region.address + offset, length, _bits(ACCESS, access))
        target = self._objects[qp]
        if value.type == e.IBV_MW_TYPE_1:
            target.bind_mw(value, MWBind(info, e.IBV_SEND_SIGNALED, number))
            return value.rkey
        target.wr_start()
        target.wr_id, target.wr_flags = number, e.IBV_SEND_SIGNALED
        target.wr_bind_mw(value, rkey, info)
        target.wr_complete()
        return rkey

    def command_file(self):
        """Returns the file descriptor that commands are written to."""
        return self._context.cmd_fd

    def handle(self, qp):
        """Returns the number by which commands name a queue pair."""
        return self._handles[qp]

    # Completion queues

    def channel(self):
        """Creates a completion channel."""
        before = _event_files()
        number = self._keep(CompChannel(self._context))
        (self._event_fds[number],) = _event_files() - before
        return number

    def cq(self, depth=128, extended=False, channel=None, stamped=False):
        """Creates a completion queue for the classic or the extended polling interface.

        `stamped` completions have a time stamp and need the extended interface.
        """
        events = self._objects[channel] if channel else None
        if extended or stamped:
            flags = (
                e.IBV_WC_EX_WITH_BYTE_LEN
                | e.IBV_WC_EX_WITH_IMM
                | e.IBV_WC_EX_WITH_QP_NUM
                | e.IBV_WC_EX_WITH_SRC_QP
                | e.IBV_WC_EX_WITH_SL
            )
            if stamped:
                flags |= e.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
            queue = CQEX(self._context, CqInitAttrEx(cqe=depth, wc_flags=flags, channel=events))
        else:
            queue = CQ(self._context, depth, None, events, 0)
        number = self._keep(queue)
        if stamped:
            self._stamped.add(number)
        return number

    def cq_with_ring(self, pd, depth, channel):
        """Creates a classic queue of rrxe for a program that attacks it.

        Returns also the address of its ring and its handle. `depth` is a power of two.
        """
        handle, before = self._next_handle(self._objects[pd]), _mappings()
        number = self.cq(depth, channel=channel)
        ring = _new_mapping(before, -(-(256 + depth * 64) // 4096) * 4096)
        return {"id": number, "ring": ring, "handle": handle}

    def request_event(self, handle):
        """Issues REQ_NOTIFY_CQ. rrxe raises an event if the queue is armed and has completions."""
        os.write(self._context.cmd_fd, struct.pack("=IHHII", REQ_NOTIFY_CQ, 4, 0, handle, 0))

    def cq_size(self, cq):
        """Returns the capacity of a classic queue in completions."""
        return self._objects[cq].cqe

    def resize(self, cq, depth):
        """Calls ibv_resize_cq on a classic queue."""
        self._objects[cq].resize(depth)

    def arm(self, cq, solicited=False):
        """Requests an event for the next (solicited) completion."""
        self._objects[cq].req_notify(solicited)

    def moderate(self, cq, count, period):
        """Has events of a completion queue come after `count` completions or `period` us."""
        import verbs_commands  # imports this module

        # pyverbs tells the handle only in this text.
        (line,) = [line for line in str(self._objects[cq]).splitlines() if line.startswith("Handle")]
        verbs_commands.moderate(self, int(line.split()[-1]), count, period)

    def wait_event(self, channel, cq, seconds):
        """Returns whether an event of `cq` came within this time; takes and acknowledges it."""
        events, fd = self._objects[channel], self._event_fds[channel]
        if not _readable(fd, seconds):
            return False
        queue = self._objects[cq]
        events.get_cq_event(queue)
        queue.ack_events(1)
        return True

    def poll(self, cq, count, seconds=60):
        """Waits for `count` completions. Returns fewer if the time runs out."""
        queue = self._objects[cq]
        found = []
        last = time.monotonic()
        end = last + seconds
        while True:
            if isinstance(queue, CQEX):
                took = self._poll_extended(queue, cq in self._stamped)
            else:
                took = self._poll_classic(queue, count)
            found += took
            now = time.monotonic()
            if len(found) >= count or (not took and now > end):
                return found
            if took:
                last = now
            else:
                # Lengthens a wait by an eighth at most.
                time.sleep(min(max(EMPTY_POLL_SECONDS, (now - last) / 8), LONGEST_PAUSE_SECONDS))

    @staticmethod
    def _poll_classic(queue, count):
        return [
            {
                "id": wc.wr_id,
                "status": STATUSES.get(wc.status, wc.status),
                "op": WC_OPCODES.get(wc.opcode, wc.opcode),
                "len": wc.byte_len,
                "qpn": wc.qp_num,
                "src_qpn": wc.src_qp,
                "imm": socket.ntohl(wc.imm_data & 0xFFFFFFFF) if wc.wc_flags & e.IBV_WC_WITH_IMM else None,
                "inv": wc.imm_data & 0xFFFFFFFF if wc.wc_flags & e.IBV_WC_WITH_INV else None,
                "grh": bool(wc.wc_flags & e.IBV_WC_GRH),
                "sl": wc.sl,
            }
            for wc in queue.poll(count)[1]
        ]

    @staticmethod
    def _poll_extended(queue, stamped):
        found = []
        status = queue.start_poll(None)
        if status:
            return found
        while not status:
            flags = queue.read_wc_flags() if queue.status == e.IBV_WC_SUCCESS else 0
            good = queue.status == e.IBV_WC_SUCCESS
            found.append(
                {
                    "id": queue.wr_id,
                    "status": STATUSES.get(queue.status, queue.status),
                    "op": WC_OPCODES.get(queue.read_opcode()) if good else None,
                    "len": queue.read_byte_len() if good else 0,
                    "qpn": queue.read_qp_num(),
                    "src_qpn": queue.read_src_qp() if good else 0,
                    "imm": socket.ntohl(queue.read_imm_data() & 0xFFFFFFFF) if flags & e.IBV_WC_WITH_IMM else None,
                    "inv": queue.read_imm_data() & 0xFFFFFFFF if flags & e.IBV_WC_WITH_INV else None,
                    "grh": bool(flags & e.IBV_WC_GRH),
                    "sl": queue.read_sl() if good else 0,
                    "time": queue.read_timestamp() if stamped else None,
                }
            )
            status = queue.poll_next()
        queue.end_poll()
        return found

    # Shared receive queues

    def srq(self, pd, max_wr=64, sge=1):
        """Creates a shared receive queue."""
        value = SRQ(self._objects[pd], SrqInitAttr(SrqAttr(max_wr=max_wr, max_sge=sge)))
        return {"id": self._keep(value), **self._srq_attributes(value)}

    @staticmethod
    def _srq_attributes(value):
        attr = value.query()
        return {"max_wr": attr.max_wr, "sge": attr.max_sge, "limit": attr.srq_limit}

    def srq_with_ring(self, pd, max_wr, stride):
        """Creates a shared receive queue of rrxe for a program that attacks it.

        Returns also the address of its ring, which has `max_wr` entries (a power of two) of
        `stride` bytes and otherwise belongs to the provider.
        """
        before = _mappings()
        found = self.srq(pd, max_wr, (stride - 16) // 16)
        found["ring"] = _new_mapping(before, -(-(256 + max_wr * stride) // 4096) * 4096)
        return found

    @staticmethod
    def poke(address, value):
        """Writes a 32-bit word at any address."""
        ctypes.c_uint32.from_address(address).value = value

    @staticmethod
    def send_ring(number):
        """Returns the address of a send ring of rrxe's provider.

        Its first work request is a signaled WRITE of one segment with this identifier. A ring
        starts at a page boundary, and its first work request 256 bytes later.
        """
        wanted = struct.pack("=QBBH", number, e.IBV_WR_RDMA_WRITE, e.IBV_SEND_SIGNALED, 1)
        for start, end in _mappings(" rw-p 00000000 00:00 0 "):
            for page in range(start, end, 4096):
                if ctypes.string_at(page + 256, len(wanted)) == wanted:
                    return page
        raise RuntimeError(f"no ring begins with work request {number}")

    @staticmethod
    def peek(address):
        """Reads a 32-bit word at any address."""
        return ctypes.c_uint32.from_address(address).value

    def post_srq(self, srq, requests):
        """Posts receives, in the format of `post_recv`, to a shared receive queue."""
        self.post_recv(srq, requests)

    def modify_srq(self, srq, mask, max_wr=0, limit=0):
        """Calls ibv_modify_srq with an arbitrary mask."""
        self._objects[srq].modify(SrqAttr(max_wr=max_wr, srq_limit=limit), mask)

    def query_srq(self, srq):
        """Returns the attributes of a shared receive queue."""
        return self._srq_attributes(self._objects[srq])

    # Extended reliable connections

    def xrcd(self):
        """Opens an XRC domain that is not shared."""
        mask = e.IBV_XRCD_INIT_ATTR_FD | e.IBV_XRCD_INIT_ATTR_OFLAGS
        return self._keep(XRCD(self._context, XRCDInitAttr(mask, os.O_CREAT, -1)))

    def xrc_srq(self, pd, xrcd, cq, max_wr=64):
        """Creates a shared receive queue for XRC."""
        init = SrqInitAttrEx(max_wr=max_wr)
        init.srq_type = e.IBV_SRQT_XRC
        init.pd, init.xrcd, init.cq = self._objects[pd], self._objects[xrcd], self._objects[cq]
        init.comp_mask = (
            e.IBV_SRQ_INIT_ATTR_TYPE | e.IBV_SRQ_INIT_ATTR_PD | e.IBV_SRQ_INIT_ATTR_CQ | e.IBV_SRQ_INIT_ATTR_XRCD
        )
        value = SRQ(self._context, init)
        return {"id": self._keep(value), "number": value.get_srq_num(), **self._srq_attributes(value)}

    def srq_number(self, srq):
        """Calls ibv_get_srq_num."""
        return self._objects[srq].get_srq_num()

    def xrc_qp(self, pd=None, cq=None, xrcd=None):
        """Creates the sending end of a connection, or with `xrcd` the receiving end."""
        if xrcd:
            init = QPInitAttrEx(
                qp_type=e.IBV_QPT_XRC_RECV, comp_mask=e.IBV_QP_INIT_ATTR_XRCD, xrcd=self._objects[xrcd]
            )
        else:
            init = QPInitAttrEx(
                qp_type=e.IBV_QPT_XRC_SEND,
                comp_mask=e.IBV_QP_INIT_ATTR_PD,
                pd=self._objects[pd],
                scq=self._objects[cq],
                cap=QPCap(max_send_wr=64, max_recv_wr=0, max_recv_sge=0),
            )
        value = QP(self._context, init)
        return {"id": self._keep(value), "qpn": value.qp_num}

    # Queue pairs

    def qp(
        self,
        kind,
        pd,
        cq,
        recv_cq=None,
        extended=False,
        send_wr=16,
        recv_wr=16,
        sge=1,
        inline=0,
        signal_all=False,
        srq=None,
        placement=False,
    ):
        """Creates a queue pair in the Reset state for the classic calls or (`extended`)
        ibv_wr_*."""
        cap = QPCap(
            max_send_wr=send_wr, max_recv_wr=recv_wr, max_send_sge=sge, max_recv_sge=sge, max_inline_data=inline
        )
        queues = {"scq": self._objects[cq], "rcq": self._objects[recv_cq or cq]}
        if srq:
            queues["srq"] = self._objects[srq]
        handle = self._next_handle(self._objects[pd])
        if extended:
            init = QPInitAttrEx(
                qp_type=TYPES[kind],
                cap=cap,
                pd=self._objects[pd],
                sq_sig_all=int(signal_all),
                comp_mask=e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                send_ops_flags=(_RC_OPS if kind == "rc" else _UD_OPS) | (_PLACEMENT_OPS if placement else 0),
                **queues,
            )
            value = QPEx(self._context, init)
        else:
            init = QPInitAttr(qp_type=TYPES[kind], cap=cap, sq_sig_all=int(signal_all), **queues)
            value = QP(self._objects[pd], init)
        number = self._keep(value)
        self._handles[number] = handle
        return {
            "id": number,
            "qpn": value.qp_num,
            "send_wr": init.max_send_wr,
            "recv_wr": init.max_recv_wr,
            "sge": init.max_send_sge,
            "inline": init.max_inline_data,
        }

    @staticmethod
    def _next_handle(pd):
        """Returns the handle that uverbs will give to the next object: the lowest free number.

        pyverbs provides the handle of a region, but not of a queue pair.
        """
        probe = MR(pd, 4096, 0)
        handle = probe.handle
        probe.close()
        return handle

    def attach(self, qp, gid):
        """Attaches the queue pair to the multicast GID."""
        self._multicast(ATTACH_MCAST, qp, gid)
        self._attached.add((qp, gid))

    def detach(self, qp, gid):
        """Detaches the queue pair from the multicast GID."""
        self._multicast(DETACH_MCAST, qp, gid)
        self._attached.discard((qp, gid))

    def _multicast(self, command, qp, gid):
        """Issues the command as libibverbs does (ib_user_verbs.h), since pyverbs lacks these
        calls."""
        packed = ipaddress.ip_address(gid).packed
        request = struct.pack("=IHH16sIHH", command, 8, 0, packed, self._handles[qp], 0, 0)
        try:
            os.write(self._context.cmd_fd, request)
        except OSError as why:
            raise PyverbsRDMAError(f"multicast command {command}", why.errno) from why

    def _address(self, gid, gid_index=None, port=1, sl=0, traffic_class=0):
        if gid is None:
            return AHAttr(port_num=port)  # without a GRH, which RoCE requires
        index = self._gid_index if gid_index is None else gid_index
        gid = GID(_eight_groups(gid))
        route = GlobalRoute(dgid=gid, sgid_index=index, hop_limit=64, traffic_class=traffic_class)
        return AHAttr(gr=route, is_global=1, port_num=port, sl=sl)

    def modify(self, qp, mask, **attributes):
        """Calls ibv_modify_qp with an arbitrary mask and attributes.

        `mask` holds names of enum ibv_qp_attr_mask without IBV_QP_. Attributes have the names of
        pyverbs' QPAttr, except `state` by name, `mtu` in bytes, `gid` for the address, and
        `alt_gid` for the alternate address.
        """
        attr = QPAttr()
        address = {name: attributes.pop(name) for name in ("gid_index", "sl", "traffic_class") if name in attributes}
        for name, value in attributes.items():
            if name == "state":
                attr.qp_state = STATE_NUMBERS[value]
            elif name == "current":
                attr.cur_qp_state = STATE_NUMBERS[value]
            elif name == "mtu":
                attr.path_mtu = MTUS[value]
            elif name == "access":
                attr.qp_access_flags = _bits(ACCESS, value)
            elif name == "gid":
                attr.ah_attr = self._address(value, **address)
            elif name == "alt_gid":
                attr.alt_ah_attr = self._address(value)
            else:
                setattr(attr, name, value)
        bits = 0
        for name in mask:
            bits |= getattr(e, "IBV_QP_" + name)
        self._objects[qp].modify(attr, bits)

    def to_init(self, qp, kind="rc", access=ALL_ACCESS, qkey=QKEY):
        """Moves the queue pair from Reset to Init."""
        if kind == "ud":
            self.modify(qp, ("STATE", "PKEY_INDEX", "PORT", "QKEY"), state="init", port_num=1, pkey_index=0, qkey=qkey)
        else:
            mask = ("STATE", "PKEY_INDEX", "PORT", "ACCESS_FLAGS")
            self.modify(qp, mask, state="init", port_num=1, pkey_index=0, access=access)

    def to_rtr(self, qp, kind="rc", gid=None, qpn=0, psn=0, mtu=1024, dest_rd_atomic=8, rnr_timer=12, **address):
        """Moves the queue pair from Init to Ready to Receive.

        `address` has "sl" and "traffic_class" if they are not 0.
        """
        if kind == "ud":
            self.modify(qp, ("STATE",), state="rtr")
            return
        mask = ["STATE", "AV", "PATH_MTU", "DEST_QPN", "RQ_PSN"]
        more = {}
        if kind == "rc":
            mask += ["MAX_DEST_RD_ATOMIC", "MIN_RNR_TIMER"]
            more = {"max_dest_rd_atomic": dest_rd_atomic, "min_rnr_timer": rnr_timer}
        self.modify(qp, mask, state="rtr", gid=gid, mtu=mtu, dest_qp_num=qpn, rq_psn=psn, **more, **address)

    def to_rts(self, qp, kind="rc", psn=0, timeout=18, retry=7, rnr_retry=7, rd_atomic=8):
        """Moves the queue pair from Ready to Receive to Ready to Send.

        The default timeout is 4.096 us * 2^18, about 1 s.
        """
        if kind == "rc":
            mask = ("STATE", "SQ_PSN", "TIMEOUT", "RETRY_CNT", "RNR_RETRY", "MAX_QP_RD_ATOMIC")
            more = {"timeout": timeout, "retry_cnt": retry, "rnr_retry": rnr_retry, "max_rd_atomic": rd_atomic}
        else:
            mask, more = ("STATE", "SQ_PSN"), {}
        self.modify(qp, mask, state="rts", sq_psn=psn, **more)

    def unused_attributes(self, qp):
        """Returns the attributes of ibv_query_qp that the queue pair does not use, by name.

        These are the attributes of the alternate path, which it lacks, and those of the address
        before it has one.
        """
        attr, _ = self._objects[qp].query(e.IBV_QP_STATE)
        names = ("alt_pkey_index", "alt_port_num", "alt_timeout")
        found = {name: getattr(attr, name) for name in names}
        # pyverbs copies the other fields of alt_ah_attr from ah_attr.
        found["alt_ah_attr.is_global"] = attr.alt_ah_attr.is_global
        if attr.qp_state in (e.IBV_QPS_RESET, e.IBV_QPS_INIT) or self._objects[qp].qp_type == e.IBV_QPT_UD:
            fields = ("dlid", "sl", "src_path_bits", "static_rate", "is_global", "port_num")
            found |= {f"ah_attr.{name}": getattr(attr.ah_attr, name) for name in fields}
        return found

    def state(self, qp):
        """Returns the state that ibv_query_qp reports."""
        return STATES[self._objects[qp].query(e.IBV_QP_STATE)[0].qp_state]

    def query(self, qp, *names):
        """Returns attributes of the queue pair by pyverbs' names."""
        attr = self._objects[qp].query(0x1FFFFFF)[0]
        return {name: getattr(attr, name) for name in names}

    def ah(self, pd, gid, gid_index=None, port=1, **more):
        """Creates an address handle for a GID, with "sl" and "traffic_class" if they are not 0."""
        return self._keep(AH(self._objects[pd], attr=self._address(gid, gid_index, port, **more)))

    # Posting

    def post_recv(self, qp, requests):
        """Posts receives: {"id", "sge": [[address, length, lkey]…]} each."""
        for request in requests:
            pieces = [SGE(*piece) for piece in request["sge"]] or [SGE(0, 0, 0)]
            work = RecvWR(wr_id=request["id"], num_sge=len(pieces), sg=pieces)
            work.num_sge = len(request["sge"])
            try:
                self._objects[qp].post_recv(work)
            finally:
                work.close()
                for piece in pieces:
                    piece.close()

    def post_empty(self, queue, count, is_send=False):
        """Posts receives, or unsignaled SENDs, of no bytes, with the numbers from 0 on."""
        target, segment = self._objects[queue], SGE(0, 0, 0)
        if is_send:
            work = SendWR(num_sge=1, sg=[segment], send_flags=0)
        else:
            work = RecvWR(num_sge=1, sg=[segment])
        work.num_sge = 0
        try:
            for number in range(count):
                work.wr_id = number
                (target.post_send if is_send else target.post_recv)(work)
        finally:
            work.close()
            segment.close()

    def post_send(self, qp, requests):
        """Posts send work requests.

        Each has "id", "op" (a name of `SEND_OPS`, or a number), "sge", and the fields that the
        operation needs: "flags", "rkey", "raddr", "imm", "compare" (also the addend), "swap", "ah",
        "qpn", "qkey". Operations without "sge" have "length", "placement" and "level" (flush), or
        "value" in hexadecimal (atomic-write). "one_segment" selects ibv_wr_set_sge instead of
        ibv_wr_set_sge_list, which is wrong in rdma_rxe.
        """
        target = self._objects[qp]
        if isinstance(target, QPEx):
            self._post_extended(target, requests)
        else:
            for request in requests:
                self._post_classic(target, request)

    def _post_classic(self, qp, request):
        op = request["op"]
        pieces = [SGE(*piece) for piece in request["sge"]] or [SGE(0, 0, 0)]
        work = SendWR(
            wr_id=request["id"],
            num_sge=len(pieces),
            sg=pieces,
            imm_data=request["key"] if "key" in request else socket.htonl(request.get("imm", 0)),
            send_flags=_bits(FLAGS, request.get("flags", ("signaled",))),
        )
        try:
            work.opcode = SEND_OPS[op][0] if op in SEND_OPS else op
            work.num_sge = len(request["sge"])
            if "srqn" in request:
                work.set_qp_type_xrc(request["srqn"])
            if "key" in request:
                pass
            elif "ah" in request:
                work.set_wr_ud(self._objects[request["ah"]], request["qpn"], request.get("qkey", QKEY))
            elif "compare" in request:
                work.set_wr_atomic(request["rkey"], request["raddr"], request["compare"], request.get("swap", 0))
            elif "rkey" in request:
                work.set_wr_rdma(request["rkey"], request["raddr"])
            qp.post_send(work)
        finally:
            work.close()
            for piece in pieces:
                piece.close()

    def _post_extended(self, qp, requests):
        qp.wr_start()
        for request in requests:
            op = request["op"]
            flags = request.get("flags", ("signaled",))
            qp.wr_id = request["id"]
            qp.wr_flags = _bits(FLAGS, flags)
            remote = (request.get("rkey"), request.get("raddr"))
            if op == "send":
                qp.wr_send()
            elif op == "send-imm":
                qp.wr_send_imm(request["imm"])
            elif op == "write":
                qp.wr_rdma_write(*remote)
            elif op == "write-imm":
                qp.wr_rdma_write_imm(*remote, request["imm"])
            elif op == "read":
                qp.wr_rdma_read(*remote)
            elif op == "cmp-swap":
                qp.wr_atomic_cmp_swp(*remote, request["compare"], request["swap"])
            elif op == "fetch-add":
                qp.wr_atomic_fetch_add(*remote, request["compare"])
            elif op == "flush":
                qp.wr_flush(*remote, request["length"], request["placement"], request["level"])
                continue
            elif op == "atomic-write":
                qp.wr_atomic_write(*remote, bytes.fromhex(request["value"]))
                continue
            elif op == "local-inv":
                qp.wr_local_inv(request["key"])
                continue
            elif op == "send-inv":
                qp.wr_send_inv(request["key"])
            else:
                raise ValueError(f"ibv_wr_* has no {op!r}")
            if "ah" in request:
                qp.wr_set_ud_addr(self._objects[request["ah"]], request["qpn"], request.get("qkey", QKEY))
            pieces = request["sge"]
            if "inline" in flags:
                buffers = [DataBuffer(address, length) for address, length, _ in pieces]
                qp.wr_set_inline_data_list(len(buffers), buffers)
            elif request.get("one_segment"):
                segment = SGE(*pieces[0])
                qp.wr_set_sge(segment)
                segment.close()
            else:
                segments = [SGE(*piece) for piece in pieces]
                qp.wr_set_sge_list(len(segments), segments)
                for segment in segments:
                    segment.close()
        qp.wr_complete()


class Peer:
    """The endpoint of the other host, with the methods of `Endpoint`."""

    def __init__(self, address):
        self._connection = machine.dial(address)

    def __getattr__(self, what):
        def ask(*arguments, **named):
            return machine.call(self._connection, "endpoint", what, *arguments, **named)

        return ask

    def die(self):
        """Kills the remote process, so that it cannot destroy anything."""
        self._connection.send(["endpoint", "kill_self", [], {}])
        self._connection.receive()
        self._connection.close()

    def leave(self):
        """Ends the remote process, which destroys all objects that it holds."""
        self._connection.close()


class Apart(Peer):
    """An endpoint in another process of this machine.

    It can be killed, and can post while this process does something else. It must be created
    before any endpoint is opened, since it inherits open files.
    """

    def __init__(self):
        self._connection, self._child = machine.apart()

    def begin(self, what, *arguments):
        """Calls a method without waiting for its end; `finish` does that."""
        self._connection.send(["endpoint", what, arguments, {}])

    def finish(self):
        """Waits for the end of the call that `begin` started."""
        reply = self._connection.receive()
        if reply is None or "error" in reply:
            raise RuntimeError(f"the call apart: {reply}")

    @property
    def process(self):
        """The identifier of the process."""
        return self._child

    def stop(self):
        """Stops the process, and waits until it is stopped."""
        os.kill(self._child, signal.SIGSTOP)
        os.waitpid(self._child, os.WUNTRACED)

    def go_on(self):
        """Continues the process."""
        os.kill(self._child, signal.SIGCONT)

    def die(self):
        """Kills the process by kill -9, and waits until the kernel has released its resources."""
        super().die()
        os.waitpid(self._child, 0)

    def leave(self):
        """Ends the process."""
        super().leave()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._child, 0)
