// SPDX-License-Identifier: GPL-2.0
/*
 * Functions for what Rust can't call; see shim.h.
 */

#include "shim.h"

bool rdma_shim_netif_running(const struct net_device *dev)
{
	return netif_running(dev);
}
