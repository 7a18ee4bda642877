# SPDX-License-Identifier: GPL-2.0
"""The privileges of the calling thread or process."""

import contextlib
import ctypes
import json
import os
import signal

from harness import Failure

# linux/capability.h
CAP_NET_ADMIN = 12
CAP_NET_RAW = 13
CAP_SYS_RESOURCE = 24

NOBODY = 65534

_VERSION = 0x20080522


class _Header(ctypes.Structure):
    """struct __user_cap_header_struct, for the calling thread."""

    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _Set(ctypes.Structure):
    """struct __user_cap_data_struct, one for each 32 capabilities."""

    _fields_ = [(name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable")]


def _call(what, sets):
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, what)(ctypes.byref(_Header(_VERSION, 0)), sets):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@contextlib.contextmanager
def without(capability):
    """Drops this capability from the calling thread's effective set within the block."""
    before, less = (_Set * 2)(), (_Set * 2)()
    _call("capget", before)
    _call("capget", less)
    less[capability // 32].effective &= ~(1 << capability % 32)
    _call("capset", less)
    try:
        yield
    finally:
        _call("capset", before)


@contextlib.contextmanager
def beside(body, before=()):
    """Calls all of `before`, then enters the context manager of `body`, in a child process.

    Yields what it yields. The process is killed at the end of the block, within that context.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for step in before:
                step()
            with body() as value:
                os.write(writer, json.dumps({"value": value}).encode())
                os.close(writer)
                signal.pause()
        except BaseException as why:
            os.write(writer, json.dumps({"error": f"{type(why).__name__}: {why}"}).encode())
        os._exit(0)
    os.close(writer)
    try:
        with os.fdopen(reader, "rb") as file:
            result = json.loads(file.read() or b'{"error": "it died"}')
        if "error" in result:
            raise Failure(f"in a process beside: {result['error']}")
        yield result["value"]
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def aside(body, before=()):
    """Calls all of `before`, then `body`, in a child process, and returns the result of `body`."""
    with beside(lambda: contextlib.nullcontext(body()), before) as value:
        return value


def become(user, *capabilities):
    """Changes the effective user of this process, which may be root.

    A user other than root gets these capabilities only.
    """
    os.seteuid(user)
    sets = (_Set * 2)()
    _call("capget", sets)
    for capability in capabilities:
        sets[capability // 32].effective |= 1 << capability % 32
    _call("capset", sets)


def give_up():
    """Drops all privileges of this process."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def unprivileged(body, before=()):
    """Runs `body` without privileges in a child process, and returns its result.

    The functions in `before` are called first, with privileges.
    """
    return aside(body, (*before, give_up))
