// SPDX-License-Identifier: GPL-2.0
/*
 * Inline functions of libibverbs, for ctypes.
 */
#include <infiniband/verbs.h>

int call_modify_cq(struct ibv_cq *cq, uint32_t mask, uint16_t count, uint16_t period);

int call_modify_cq(struct ibv_cq *cq, uint32_t mask, uint16_t count, uint16_t period)
{
	struct ibv_modify_cq_attr attr = {
		.attr_mask = mask,
		.moderate = { .cq_count = count, .cq_period = period },
	};

	return ibv_modify_cq(cq, &attr);
}
