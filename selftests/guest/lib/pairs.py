# SPDX-License-Identifier: GPL-2.0
"""Connected queue pairs of two devices in one program."""

from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr

import testbed
import verbs_enums as e


def connect(ends, depth):
    """Creates two connected queue pairs for `depth` requests each.

    Each of `ends` is (protection domain, completion queue, device, address). The peers may write;
    a request completes with a CQE only if it is signaled.
    """
    made = []
    for pd, cq, _, _ in ends:
        cap = QPCap(max_send_wr=depth, max_recv_wr=1, max_send_sge=1, max_recv_sge=1)
        init = QPAttr(port_num=1)
        init.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE
        made.append(QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=cap, sq_sig_all=0), init))
    for qp, peer, (_, _, device, address), (_, _, _, to) in zip(made, made[::-1], ends, ends[::-1]):
        attr = QPAttr(port_num=1, path_mtu=e.IBV_MTU_4096)
        attr.dest_qp_num, attr.max_rd_atomic, attr.max_dest_rd_atomic = peer.qp_num, 1, 1
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = 14, 7, 7, 12
        index = testbed.gids(device)[testbed.gid_of(address)]
        route = GlobalRoute(dgid=GID(testbed.gid_of(to)), sgid_index=index, hop_limit=64)
        attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=route)
        qp.to_rts(attr)
    return made
