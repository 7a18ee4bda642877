// SPDX-License-Identifier: GPL-2.0

#include "trampolines.h"

static const struct rdma_enum_ops *enum_ops(struct ib_device *device)
{
	return container_of(device, struct rdma_rust_device, ib)->enum_ops;
}

int rdma_trampoline_req_notify_cq(struct ib_cq *cq, enum ib_cq_notify_flags flags)
{
	return enum_ops(cq->device)->req_notify_cq(cq, flags);
}

enum rdma_link_layer rdma_trampoline_get_link_layer(struct ib_device *device, u32 port_num)
{
	return enum_ops(device)->get_link_layer(device, port_num);
}

enum hrtimer_restart rdma_trampoline_timer(struct hrtimer *timer)
{
	container_of(timer, struct rdma_soft_timer, timer)->expired(timer);
	return HRTIMER_NORESTART;
}
