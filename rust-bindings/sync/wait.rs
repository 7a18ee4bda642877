// SPDX-License-Identifier: GPL-2.0

//! Waiting for a change of an atomic variable, without memory for a wait queue in its owner.
//!
//! The kernel has a table of wait queues for this, and the address of the variable selects one.
//!
//! C header: `include/linux/wait_bit.h`.

use crate::raw;
use kernel::sync::atomic::Atomic;

/// Waits until the variable has `value`. All accesses before the store of that value precede the
/// return. Sleeps. Each context that stores the value calls [`wake`] afterwards.
pub(super) fn wait_for_value(variable: &Atomic<usize>, value: usize) {
    // SAFETY: The variable is valid, and an `Atomic<usize>` has the layout of a `usize`. C and Rust
    // have the same memory model. wait_var_event() (linux/wait_bit.h) uses its address as a key.
    unsafe { raw::shim_wait_for_value(variable.as_ptr(), value) };
}

/// Waits until the variable has one of `bits`. Otherwise like [`wait_for_value`].
pub(super) fn wait_for_bits(variable: &Atomic<u32>, bits: u32) {
    // SAFETY: As in `wait_for_value`.
    unsafe { raw::shim_wait_for_bits(variable.as_ptr(), bits) };
}

/// Wakes the contexts that wait for the variable. The caller has changed it by an operation that is
/// a full barrier, so that either this call sees a waiting context, or that context sees the new
/// value. The variable is not accessed, and its owner may have freed it. Any context.
pub(super) fn wake<T>(variable: *const T) {
    raw::safe::wake_up_var(variable.cast_mut().cast());
}
