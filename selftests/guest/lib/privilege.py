# SPDX-License-Identifier: GPL-2.0
"""The privileges of the calling thread or process."""

import contextlib
import ctypes
import json
import os

from harness import Failure

CAP_NET_RAW = 13  # linux/capability.h

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


def aside(body, before=()):
    """Calls all of `before`, then `body`, in a child process, and returns the result of `body`."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for step in before:
                step()
            answer = {"value": body()}
        except BaseException as why:
            answer = {"error": f"{type(why).__name__}: {why}"}
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        answer = json.loads(file.read() or b'{"error": "it died"}')
    os.waitpid(child, 0)
    if "error" in answer:
        raise Failure(f"in a process aside: {answer['error']}")
    return answer["value"]


def give_up():
    """Gives up all privileges of this process."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def unprivileged(body, before=()):
    """Runs `body` without privileges in a child process, and returns its result.

    The functions in `before` are called first, with privileges.
    """
    return aside(body, (*before, give_up))
