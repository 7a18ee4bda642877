# SPDX-License-Identifier: GPL-2.0
"""Looks at this machine's state, and copies pieces of files, without starting a program.

A program takes 30 ms of CPU time to start on an emulated machine.
"""

import contextlib
import ctypes
import errno
import glob
import os
import re
import socket
import stat
import struct

import libibverbs
import stalls


def read(path):
    """Returns the text of a file."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def listed(folder, pattern):
    """Returns the names in a folder that match the regular expression as a whole."""
    return sorted(name for name in os.listdir(folder) if re.fullmatch(pattern, name))


def is_block_device(path):
    """Returns whether the path is that of a block device's node."""
    return os.path.exists(path) and stat.S_ISBLK(os.stat(path).st_mode)


def tcp_listens(port):
    """Returns whether a program listens for TCP connections on the port."""
    lines = [line.split() for family in ("tcp", "tcp6") for line in read(f"/proc/net/{family}").splitlines()[1:]]
    return any(line[3] == "0A" and int(line[1].rpartition(":")[2], 16) == port for line in lines)


def begin_watch():
    """Begins to measure how long this machine does not run."""
    stalls.begin()


def longest_stall():
    """Returns the longest time in seconds since `begin_watch` in which this machine did not run."""
    return stalls.longest()


def sent_frames(netdev):
    """Returns the number of frames that a network device in the current namespace has sent."""
    lines = [line.partition(":") for line in read("/proc/net/dev").splitlines()]
    (numbers,) = [numbers for name, _, numbers in lines if name.strip() == netdev]
    return int(numbers.split()[9])


def sleeps(pid):
    """Returns whether all threads of a process are in interruptible sleep."""
    states = []
    for path in glob.glob(f"/proc/{pid}/task/*/stat"):
        with contextlib.suppress(OSError):  # the thread has ended
            states.append(read(path).rpartition(")")[2].split()[0])
    return all(state == "S" for state in states)


# The RDMA netlink protocol (include/uapi/rdma/rdma_netlink.h).
_NETLINK_RDMA = 20
_NLDEV = 5 << 10
_GET, _RES_GET, _RES_CM_ID_GET, _STAT_GET = 1, 9, 11, 17
# Tables of queue pairs, identifiers, completion queues, regions, domains, shared receive queues.
_RES_TABLES = (10, _RES_CM_ID_GET, 12, 13, 14, 23)
_DEV_INDEX, _DEV_NAME, _PORT_INDEX = 1, 2, 3
_RES_SUMMARY, _SUMMARY_NAME, _SUMMARY_CURRENT = 15, 17, 18
_RES_STATE, _RES_PID, _RES_CM_ID, _RES_SRC_ADDR = 27, 28, 30, 33
_HWCOUNTERS, _HWCOUNTER_NAME, _HWCOUNTER_VALUE = 80, 82, 83

# RDMA_CM_LISTEN of enum rdma_cm_state (drivers/infiniband/core/cma_priv.h).
_LISTEN = 8

# General netlink (include/uapi/linux/netlink.h).
_REQUEST, _DUMP = 0x1, 0x300
_ERROR, _DONE = 2, 3
_TYPE_MASK = 0x3FFF


def _attributes(data):
    """Yields the type and the contents of each attribute."""
    while len(data) >= 4:
        length, kind = struct.unpack_from("HH", data)
        yield kind & _TYPE_MASK, data[4:length]
        data = data[(length + 3) & ~3 :]


def _ask(command, flags, **attributes):
    """Yields the attributes of each response to an RDMA netlink request.

    `attributes` are 32-bit numbers.
    """
    body = b"".join(struct.pack("HHI", 8, kind, value) for kind, value in attributes.values())
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_RDMA) as netlink:
        netlink.send(struct.pack("IHHII", 16 + len(body), _NLDEV + command, _REQUEST | flags, 0, 0) + body)
        while True:
            data = netlink.recv(1 << 20)
            while data:
                length, kind = struct.unpack_from("IH", data)
                if kind == _ERROR:
                    raise OSError(-struct.unpack_from("i", data, 16)[0], "RDMA netlink")
                if kind == _DONE:
                    return
                yield list(_attributes(data[16:length]))
                data = data[(length + 3) & ~3 :]
            if not flags:
                return


def _number(data):
    """Returns the contents of a 32-bit attribute."""
    return struct.unpack("I", data)[0]


def _text(data):
    """Returns the contents of a string attribute."""
    return data.rstrip(b"\0").decode()


def _devices():
    """Returns the RDMA devices: {name: the kernel's number}."""
    replies = map(dict, _ask(_GET, _DUMP))
    return {_text(reply[_DEV_NAME]): _number(reply[_DEV_INDEX]) for reply in replies}


def cm_listener(port):
    """Returns the number of the process that listens for RDMA connections on the port.

    The number is 0 if it is the kernel that listens. Returns None if there is no listener.
    """
    for index in _devices().values():
        with contextlib.suppress(OSError):  # the device is being removed
            for reply in _ask(_RES_CM_ID_GET, _DUMP, device=(_DEV_INDEX, index)):
                for _, entry in _attributes(dict(reply).get(_RES_CM_ID, b"")):
                    entry = dict(_attributes(entry))
                    address = entry.get(_RES_SRC_ADDR, bytes(4))
                    if entry[_RES_STATE][0] == _LISTEN and struct.unpack_from(">H", address, 2)[0] == port:
                        return _number(entry.get(_RES_PID, bytes(4)))
    return None


def statistics(device):
    """Returns the statistics of the device's port, as `rdma statistic show` does: {name: value}."""
    request = {"device": (_DEV_INDEX, _devices()[device]), "port": (_PORT_INDEX, 1)}
    (reply,) = _ask(_STAT_GET, 0, **request)
    entries = [dict(_attributes(entry)) for _, entry in _attributes(dict(reply)[_HWCOUNTERS])]
    return {_text(entry[_HWCOUNTER_NAME]): struct.unpack("Q", entry[_HWCOUNTER_VALUE])[0] for entry in entries}


def objects(device):
    """Returns the number of the device's objects of each kind, as `rdma resource show` does."""
    (reply,) = _ask(_RES_GET, 0, device=(_DEV_INDEX, _devices()[device]))
    entries = [dict(_attributes(entry)) for _, entry in _attributes(dict(reply)[_RES_SUMMARY])]
    return {_text(entry[_SUMMARY_NAME]): struct.unpack("Q", entry[_SUMMARY_CURRENT])[0] for entry in entries}


def owners():
    """Returns the numbers of the processes that own RDMA objects."""
    found = set()
    for index in _devices().values():
        for command in _RES_TABLES:
            try:
                replies = list(_ask(command, _DUMP, device=(_DEV_INDEX, index)))
            except OSError as why:
                if why.errno == errno.ENODEV:
                    continue  # the device is being removed
                raise
            tables = [table for reply in replies for kind, table in reply if kind > _DEV_NAME]
            entries = [entry for table in tables for _, entry in _attributes(table)]
            found.update(_number(value) for entry in entries for kind, value in _attributes(entry) if kind == _RES_PID)
    return sorted(found)


class _PortAttributes(ctypes.Structure):
    """The beginning of struct ibv_port_attr, and room for the rest."""

    _fields_ = [(name, ctypes.c_uint32) for name in ("state", "max_mtu", "active_mtu", "gids", "flags", "max_msg")]
    _fields_ += [("bad_pkeys", ctypes.c_uint32), ("bad_qkeys", ctypes.c_uint32), ("rest", ctypes.c_char * 96)]


def _port(device):
    """Returns the attributes of the device's port."""
    verbs = libibverbs.Verbs(device)
    port = _PortAttributes()
    try:
        error = verbs.call("ibv_query_port", verbs.context, ctypes.c_uint8(1), ctypes.byref(port))
    finally:
        verbs.call("ibv_close_device", verbs.context)
    if error:
        raise OSError(error, f"ibv_query_port of {device}")
    return port


def key_violations(device):
    """Returns the counts of invalid P_Keys and Q_Keys of the device's port."""
    port = _port(device)
    return [port.bad_pkeys, port.bad_qkeys]


def active_mtu(device):
    """Returns the active MTU of the device's port in bytes."""
    return 128 << _port(device).active_mtu  # enum ibv_mtu


# GID table slots to read: the table is filled from the first.
GID_SLOTS = 32


def gids(device):
    """Yields the index and the text of each RoCEv2 GID of the device's port."""
    port = f"/sys/class/infiniband/{device}/ports/1"
    for index in range(GID_SLOTS):
        with contextlib.suppress(OSError):  # a slot without a GID cannot be read
            if read(f"{port}/gid_attrs/types/{index}") == "RoCE v2\n":
                yield index, read(f"{port}/gids/{index}").strip()


def has_gid(device, gid):
    """Returns whether the device's port has the RoCEv2 GID."""
    return any(gid == found for _, found in gids(device))


def gid_index(device, kind):
    """Returns the index of the device's RoCEv2 GID of an IPv4 (`kind` 4) or IPv6 address (6).

    Link-local addresses do not count.
    """
    for index, gid in gids(device):
        if not gid.startswith("fe80:") and kind == (4 if gid.startswith("0000:0000:0000:0000:0000:ffff:") else 6):
            return index
    raise OSError(f"{device} has no RoCEv2 GID of an IPv{kind} address")


# Pieces of a file or disk: the bytes of each, and the distances from one to the next in the source
# and in the target.
_PIECE, _SOURCE_STEP, _TARGET_STEP = 3 * 4096, 97 * 4096, 211 * 4096

# Number of threads that write pieces.
_WRITERS = 16


def drop_caches():
    """Removes from the page cache all that is on disk."""
    with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as file:
        file.write("3")


def copy_pieces(source, target, count):
    """Copies pieces of one file to other places of another one through the page cache.

    Several threads write at a time. Afterwards the pieces are on disk and not in the page cache.
    """
    from concurrent.futures import ThreadPoolExecutor  # few suites need it

    with open(source, "rb") as old, open(target, "r+b", buffering=0) as new:

        def write(number):
            data = os.pread(old.fileno(), _PIECE, number * _SOURCE_STEP)
            if os.pwrite(new.fileno(), data, number * _TARGET_STEP) != _PIECE:
                raise OSError(f"piece {number} of {target} is incomplete")

        with ThreadPoolExecutor(_WRITERS) as pool:
            list(pool.map(write, range(count)))  # raises what a thread has raised
        os.fsync(new.fileno())
    drop_caches()


def different_pieces(source, target, count):
    """Returns the numbers of the pieces that differ after `copy_pieces`."""
    with open(source, "rb") as old, open(target, "rb") as new:

        def differs(number):
            wanted = os.pread(old.fileno(), _PIECE, number * _SOURCE_STEP)
            return os.pread(new.fileno(), _PIECE, number * _TARGET_STEP) != wanted

        return [number for number in range(count) if differs(number)]
