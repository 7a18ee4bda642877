/* SPDX-License-Identifier: GPL-2.0 */
/* Static data that only macros of C can define. */
#ifndef LINUX_RDMA_DATA_H
#define LINUX_RDMA_DATA_H

#include <linux/percpu.h>

/* sync/burst.rs */
DECLARE_PER_CPU_ALIGNED(u64, rdma_bursts);

#endif
