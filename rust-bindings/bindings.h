/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What bindgen reads. Sorted alphabetically.
 *
 * bindgen_parameters says which items become Rust.
 */

/* Avoids forward references to enum types, as the kernel's own bindings_helper.h does. */
#include <linux/hrtimer_types.h>

#include <linux/netdevice.h>

#include "shim.h"
