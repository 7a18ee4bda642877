# SPDX-License-Identifier: GPL-2.0
"""Commands of uverbs as libibverbs writes them (include/uapi/rdma/ib_user_verbs.h), for what a test wants to do without
it: while other threads run, or with values that no library lets through."""

import os
import struct

import endpoint
import verbs_enums as e

# IB_USER_VERBS_CMD_*.
MODIFY_QP = 26


def command(end, number, body, answer=0):
    """Write a command with this body, and room for an answer, to the endpoint's device."""
    header = struct.pack("=IHH", number, (8 + len(body)) // 4, answer // 4)
    os.write(end.command_file(), header + body)


def modify_state(end, qp, state):
    """MODIFY_QP with no attribute but the state."""
    # Two addresses (struct ib_uverbs_qp_dest), then struct ib_uverbs_modify_qp from qp_handle on.
    body = bytes(64) + struct.pack(
        "=7I2H14B2x", end.handle(qp), e.IBV_QP_STATE, *[0] * 7, endpoint.STATE_NUMBERS[state], *[0] * 13
    )
    command(end, MODIFY_QP, body)
