# SPDX-License-Identifier: GPL-2.0
"""Commands of uverbs as libibverbs writes them (include/uapi/rdma/ib_user_verbs.h).

Tests use them to bypass libibverbs: while other threads run, or with values that no library
accepts.
"""

import os
import struct

import endpoint
import verbs_enums as e

# IB_USER_VERBS_CMD_*.
MODIFY_QP = 26


def command(end, number, body, answer=0):
    """Writes a command with this body, and room for a response, to the endpoint's device."""
    header = struct.pack("=IHH", number, (8 + len(body)) // 4, answer // 4)
    os.write(end.command_file(), header + body)


def modify_state(end, qp, state):
    """Issues MODIFY_QP with the state as its only attribute."""
    # Two addresses (struct ib_uverbs_qp_dest), then struct ib_uverbs_modify_qp from qp_handle on.
    body = bytes(64) + struct.pack(
        "=7I2H14B2x", end.handle(qp), e.IBV_QP_STATE, *[0] * 7, endpoint.STATE_NUMBERS[state], *[0] * 13
    )
    command(end, MODIFY_QP, body)
