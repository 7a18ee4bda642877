/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Input of bindgen. Sorted alphabetically.
 *
 * bindgen_parameters lists the items for which Rust bindings are generated.
 */

/* Avoids forward references to enum types, like the kernel's own bindings_helper.h. */
#include <linux/hrtimer_types.h>

#include <linux/capability.h>
#include <linux/crc32.h>
#include <linux/igmp.h>
#include <linux/inetdevice.h>
#include <linux/netdevice.h>
#include <linux/netfilter.h>
#include <linux/rtnetlink.h>
#include <linux/sched/stat.h>
#include <linux/sched/vhost_task.h>
#include <linux/skbuff.h>
#include <linux/workqueue.h>
#include <net/addrconf.h>
#include <net/ip.h>
#include <net/ip6_checksum.h>
#include <net/ip6_route.h>
#include <net/ipv6.h>
#include <net/net_namespace.h>
#include <net/route.h>
#include <net/udp_tunnel.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_mad.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_verbs.h>
#include <rdma/iter.h>
#include <rdma/rdma_netlink.h>
#include <rdma/uverbs_ioctl.h>

/* User Mode Linux has CONFIG_X86_64 without CONFIG_X86. */
#ifdef CONFIG_X86
#include <asm/fpu/api.h>
#include <asm/fpu/types.h>
#endif

#include "shim.c"
#include "trampolines.h"
