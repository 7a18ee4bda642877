/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Input of bindgen. Sorted alphabetically, without the headers that shim.c includes.
 *
 * bindgen_parameters lists the items for which Rust bindings are generated.
 */

/* Avoids forward references to enum types, like the kernel's own bindings_helper.h. */
#include <linux/hrtimer_types.h>

#include <linux/capability.h>
#include <linux/crc32.h>
#include <linux/sched/stat.h>
#include <linux/sched/vhost_task.h>
#include <net/addrconf.h>
#include <net/ip6_checksum.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_mad.h>
#include <rdma/ib_umem.h>
#include <rdma/iter.h>
#include <rdma/rdma_netlink.h>

#include "import.h"
#include "shim.c"
#include "trampolines.h"
