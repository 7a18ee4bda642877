# SPDX-License-Identifier: GPL-2.0
"""What the caller may do."""

import contextlib
import ctypes
import json
import os

from harness import Failure

CAP_NET_RAW = 13  # linux/capability.h

NOBODY = 65534

_VERSION = 0x20080522


class _Header(ctypes.Structure):
    """struct __user_cap_header_struct: of the calling thread."""

    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _Set(ctypes.Structure):
    """struct __user_cap_data_struct, of which there is one for each 32 capabilities."""

    _fields_ = [(name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable")]


def _call(what, sets):
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, what)(ctypes.byref(_Header(_VERSION, 0)), sets):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@contextlib.contextmanager
def without(capability):
    """In the block, the calling thread has not this capability in effect."""
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
    """Call all of `before`, then `body`, in a process of its own, and return what `body` returns."""
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
    """Give up all privileges of this process."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def unprivileged(body, before=()):
    """Call all of `before` with privileges, then `body` without any, in a process of its own, and return what `body`
    returns."""
    return aside(body, (*before, give_up))
