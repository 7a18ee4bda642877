// SPDX-License-Identifier: GPL-2.0
/*
 * The files in /sys/class/infiniband/DEVICE that identify the device. They are in C because
 * DEVICE_ATTR_RO() is a macro; Rust supplies the texts.
 */

#include <linux/device.h>

#include "trampolines.h"

static const struct rdma_rust_driver *identity(struct device *dev)
{
	struct ib_device *ib = rdma_device_to_ibdev(dev);

	return container_of(ib, struct rdma_rust_device, ib)->driver;
}

static ssize_t hca_type_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%s\n", identity(dev)->hca_type);
}
static DEVICE_ATTR_RO(hca_type);

static ssize_t hw_rev_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%s\n", identity(dev)->hw_rev);
}
static DEVICE_ATTR_RO(hw_rev);

static ssize_t board_id_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%s\n", identity(dev)->board_id);
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
