/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Callbacks that have an enum in their signature. kCFI compares the type of an indirect call with
 * that of its target, and treats a C enum and a Rust integer as different types. Therefore C calls
 * these C functions. Those that need the driver call Rust, through types on which both sides agree.
 */
#ifndef LINUX_RDMA_TRAMPOLINES_H
#define LINUX_RDMA_TRAMPOLINES_H

#include <linux/hrtimer.h>
#include <rdma/ib_verbs.h>

/* A driver's functions for the trampolines, and texts about its devices for sysfs. */
struct rdma_rust_driver {
	int (*req_notify_cq)(struct ib_cq *cq, u32 flags);
	int (*modify_srq)(struct ib_srq *srq, struct ib_srq_attr *attr, u32 mask,
			  struct ib_udata *udata);
	struct ib_mr *(*alloc_mr)(struct ib_pd *pd, u32 mr_type, u32 max_num_sg);
	int (*advise_mr)(struct ib_pd *pd, u32 advice, u32 flags, const struct ib_sge *list,
			 u32 count);
	const char *hca_type;
	const char *hw_rev;
	const char *board_id;
};

extern const struct attribute_group rdma_identity_group;

/* The first fields of each device that Rust allocates. */
struct rdma_rust_device {
	struct ib_device ib;
	const struct rdma_rust_driver *driver;
};

int rdma_trampoline_req_notify_cq(struct ib_cq *cq, enum ib_cq_notify_flags flags);
enum rdma_link_layer rdma_trampoline_get_link_layer(struct ib_device *device, u32 port_num);
int rdma_trampoline_modify_srq(struct ib_srq *srq, struct ib_srq_attr *attr,
			       enum ib_srq_attr_mask mask, struct ib_udata *udata);
struct ib_mr *rdma_trampoline_alloc_mr(struct ib_pd *pd, enum ib_mr_type mr_type, u32 max_num_sg);
int rdma_trampoline_advise_mr(struct ib_pd *pd, enum ib_uverbs_advise_mr_advice advice, u32 flags,
			      struct ib_sge *list, u32 count, struct uverbs_attr_bundle *attrs);

/* A timer whose callback does not restart it through a return value. */
struct rdma_soft_timer {
	struct hrtimer timer;
	void (*expired)(struct hrtimer *timer);
};

enum hrtimer_restart rdma_trampoline_timer(struct hrtimer *timer);

#endif
