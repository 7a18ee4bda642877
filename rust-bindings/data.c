// SPDX-License-Identifier: GPL-2.0
/*
 * Static data that only macros of C can define. Each variable is documented where Rust uses it.
 */

#include "data.h"

DEFINE_PER_CPU_ALIGNED(u64, rdma_bursts);
