# SPDX-License-Identifier: GPL-2.0
"""Commands of uverbs (include/uapi/rdma/ib_user_verbs.h and ib_user_ioctl_cmds.h).

Tests use them to bypass libibverbs: while other threads run, or with values that no library
accepts.
"""

import ctypes
import fcntl
import os
import struct

import endpoint
import verbs_enums as e

# IB_USER_VERBS_CMD_*.
ALLOC_PD = 3
MODIFY_QP = 26

# IB_USER_VERBS_CMD_FLAG_EXTENDED and IB_USER_VERBS_EX_CMD_MODIFY_CQ; IB_CQ_MODERATE.
EXTENDED, MODIFY_CQ, MODERATE = 1 << 31, 57, 1

# RDMA_VERBS_IOCTL, UVERBS_ATTR_F_MANDATORY, and the driver's number (abi.rs).
VERBS_IOCTL, MANDATORY, DRIVER = 0xC0181B01, 1, 0x72727865

# UVERBS_OBJECT_*, whose method 0 creates an object.
CQ, QP, SRQ, MR = 3, 4, 5, 7
# UVERBS_METHOD_ADVISE_MR.
ADVISE = 2

# UVERBS_ATTR_UHW_IN: the driver's input.
DRIVER_INPUT = 1 << 12


def command(end, number, body, response=0):
    """Writes a command with this body, and room for a response, to the endpoint's device."""
    header = struct.pack("=IHH", number, (8 + len(body)) // 4, response // 4)
    os.write(end.command_file(), header + body)


def moderate(end, cq, count, period):
    """Issues MODIFY_CQ with the handle of a completion queue. The period is in microseconds."""
    body = struct.pack("=2I2HI", cq, MODERATE, count, period, 0)
    header = struct.pack("=IHHQHHI", EXTENDED | MODIFY_CQ, len(body) // 8, 0, 0, 0, 0, 0)
    os.write(end.command_file(), header + body)


def modify_state(end, qp, state):
    """Issues MODIFY_QP with the state as its only attribute."""
    # Two addresses (struct ib_uverbs_qp_dest), then struct ib_uverbs_modify_qp from qp_handle on.
    body = bytes(64) + struct.pack(
        "=7I2H14B2x", end.handle(qp), e.IBV_QP_STATE, *[0] * 7, endpoint.STATE_NUMBERS[state], *[0] * 13
    )
    command(end, MODIFY_QP, body)


def alloc_pd(end):
    """Allocates a protection domain, and returns its handle."""
    response = ctypes.c_uint32()
    command(end, ALLOC_PD, struct.pack("=Q", ctypes.addressof(response)), ctypes.sizeof(response))
    return response.value


def create(end, kind, attributes):
    """Creates an object by ioctl(), and returns its handle. Attribute 0 is the new object."""
    return call(end, kind, 0, {0: 0, **attributes})


def advise(end, pd, advice, flags, address, length, lkey):
    """Gives an advice about a range, with the handle of a protection domain.

    pyverbs would keep Python's lock during the call.
    """
    advice, flags = struct.pack("=Q", advice), struct.pack("=Q", flags)
    attributes = {0: pd, 1: advice, 2: flags, 3: struct.pack("=QII", address, length, lkey)}
    call(end, MR, ADVISE, attributes)


def call(end, kind, method, attributes):
    """Calls a method of an object by ioctl(), and returns the value of the first attribute.

    `attributes` are {number: value}. A value is the number of an object or file, bytes of input, or
    a buffer for output.
    """
    records, buffers = [], []
    for number, value in attributes.items():
        length = 0
        if isinstance(value, bytes) and len(value) <= 8:
            length, value = len(value), int.from_bytes(value, "little")
        elif not isinstance(value, int):
            buffer = ctypes.create_string_buffer(value, len(value)) if isinstance(value, bytes) else value
            buffers.append(buffer)
            length, value = ctypes.sizeof(buffer), ctypes.addressof(buffer)
        records.append((number, length, value))
    return issue(end.command_file(), kind, method, *records)


def issue(file, kind, method, *attributes):
    """Issues a method of uverbs by ioctl(). Returns the value of the first attribute, or 0.

    Attributes are (number, length, value).
    """
    records = b"".join(struct.pack("=4HQ", number, length, MANDATORY, 0, value) for number, length, value in attributes)
    header = struct.pack("=4HQ2I", 24 + len(records), kind, method, len(attributes), 0, DRIVER, 0)
    request = bytearray(header + records)
    fcntl.ioctl(file, VERBS_IOCTL, request)
    return struct.unpack_from("=Q", request, len(header) + 8)[0] if attributes else 0
