// SPDX-License-Identifier: GPL-2.0

#include <linux/device.h>

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
	return IB_LINK_LAYER_ETHERNET;
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

int rdma_trampoline_advise_mr(struct ib_pd *pd, enum ib_uverbs_advise_mr_advice advice, u32 flags,
			      struct ib_sge *list, u32 count, struct uverbs_attr_bundle *attrs)
{
	return driver(pd->device)->advise_mr(pd, advice, flags, list, count);
}

enum hrtimer_restart rdma_trampoline_timer(struct hrtimer *timer)
{
	container_of(timer, struct rdma_soft_timer, timer)->expired(timer);
	return HRTIMER_NORESTART;
}

/*
 * The files in /sys/class/infiniband/DEVICE that identify the device. They are in C because
 * DEVICE_ATTR_RO() is a macro; Rust supplies the texts.
 */

static ssize_t hca_type_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%s\n", driver(rdma_device_to_ibdev(dev))->hca_type);
}
static DEVICE_ATTR_RO(hca_type);

static ssize_t hw_rev_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%s\n", driver(rdma_device_to_ibdev(dev))->hw_rev);
}
static DEVICE_ATTR_RO(hw_rev);

static ssize_t board_id_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%s\n", driver(rdma_device_to_ibdev(dev))->board_id);
}
static DEVICE_ATTR_RO(board_id);

static struct attribute *identity_attributes[] = {
	&dev_attr_hca_type.attr,
	&dev_attr_hw_rev.attr,
	&dev_attr_board_id.attr,
	NULL,
};

const struct attribute_group rdma_identity_group = {
	.attrs = identity_attributes,
};
