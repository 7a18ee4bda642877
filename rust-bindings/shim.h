/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Functions for what Rust can't call: static inline functions and macros. One line each, without
 * branches, loops or logic. Rust sees `rdma_shim_NAME` as `raw::rdma_shim_NAME`.
 */
#ifndef RUST_BINDINGS_SHIM_H
#define RUST_BINDINGS_SHIM_H

#include <linux/netdevice.h>

bool rdma_shim_netif_running(const struct net_device *dev);

#endif
