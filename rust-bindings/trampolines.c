// SPDX-License-Identifier: GPL-2.0

#include "trampolines.h"

static const struct rdma_rust_driver *driver(struct ib_device *device)
{
	return container_of(device, struct rdma_rust_device, ib)->driver;
}

int rdma_trampoline_req_notify_cq(struct ib_cq *cq, enum ib_cq_notify_flags flags)
{
	return driver(cq->device)->req_notify_cq(cq, flags);
}

enum rdma_link_layer rdma_trampoline_get_link_layer(struct ib_device *device, u32 port_num)
{
	return driver(device)->get_link_layer(device, port_num);
}

int rdma_trampoline_modify_srq(struct ib_srq *srq, struct ib_srq_attr *attr,
			       enum ib_srq_attr_mask mask, struct ib_udata *udata)
{
	return driver(srq->device)->modify_srq(srq, attr, mask, udata);
}

struct ib_mr *rdma_trampoline_alloc_mr(struct ib_pd *pd, enum ib_mr_type mr_type, u32 max_num_sg)
{
	return driver(pd->device)->alloc_mr(pd, mr_type, max_num_sg);
}

enum hrtimer_restart rdma_trampoline_timer(struct hrtimer *timer)
{
	container_of(timer, struct rdma_soft_timer, timer)->expired(timer);
	return HRTIMER_NORESTART;
}
