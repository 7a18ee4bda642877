/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Functions that the test programs share. A program includes this file first.
 */
#ifndef RRXE_PROGRAMS_COMMON_H
#define RRXE_PROGRAMS_COMMON_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ends the program with an error of a call. */
static inline void fail(const char *what, int error)
{
	fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, strerror(error));
	exit(1);
}

/* Ends the program unless `error` is 0. */
static inline void check(const char *what, int error)
{
	if (error)
		fail(what, error);
}

/* Returns an object. Ends the program if it was not made. */
static inline void *must(const char *what, void *made)
{
	if (!made)
		fail(what, errno);
	return made;
}

/* Resets an RC queue pair, and connects it to itself. */
static inline void connect_to_itself(struct ibv_qp *qp, union ibv_gid gid, int gid_index, enum ibv_mtu mtu, int access)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };

	check("RESET", ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access };
	check("INIT", ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = mtu,
		.dest_qp_num = qp->qp_num,
		.max_dest_rd_atomic = 1,
		.ah_attr = {
			.is_global = 1,
			.port_num = 1,
			.grh = { .dgid = gid, .sgid_index = gid_index, .hop_limit = 64 },
		},
	};
	check("RTR", ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
					      IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .max_rd_atomic = 1 };
	check("RTS", ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					      IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

#endif
