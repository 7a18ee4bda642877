// SPDX-License-Identifier: GPL-2.0

//! Generated bindings: the C items with their C names, `unsafe` as generated.
//!
//! Items of the kernel crate's bindings are re-exported. bindgen generates the others from
//! `bindings.h`. Nothing outside this crate uses this module.

#![allow(
    clippy::all,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::undocumented_unsafe_blocks,
    clippy::as_underscore,
    clippy::cast_lossless,
    clippy::ptr_as_ptr,
    clippy::ref_as_ptr,
    dead_code,
    improper_ctypes,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    unsafe_op_in_unsafe_fn
)]

use kernel::ffi;
use pin_init::{MaybeZeroable, Zeroable};

// The generated items below shadow these.
pub use kernel::bindings::*;

include!(env!("LINUX_RDMA_BINDINGS"));

// SAFETY: `__BindgenBitfieldUnit<Storage>` is a newtype around `Storage`. (bindgen does not derive
// this, see <https://github.com/rust-lang/rust-bindgen/issues/3196>.)
unsafe impl<Storage> Zeroable for __BindgenBitfieldUnit<Storage> where Storage: Zeroable {}

/// C functions that are safe to call: they take numbers, or addresses that they do not access. The
/// kernel itself reports a caller whose context is wrong, for example one that may not sleep.
pub(crate) mod safe {
    use kernel::ffi::{c_int, c_uint, c_void};

    // Safe: these are the signatures of the C functions, and the functions are as described
    // (kernel/capability.c, kernel/rcu/tree.c, kernel/sched/core.c, syscalls.c and wait_bit.c,
    // kernel/time/timekeeping.c, drivers/char/random.c, net/core/dev.c and rtnetlink.c; shim.c has
    // the others).
    unsafe extern "C" {
        pub(crate) safe fn capable(capability: c_int) -> bool;
        pub(crate) safe fn get_random_u32() -> u32;
        pub(crate) safe fn ktime_get() -> i64;
        pub(crate) safe fn rtnl_lock();
        pub(crate) safe fn shim_bursts_of_this_cpu() -> *mut u64;
        pub(crate) safe fn shim_cond_resched();
        pub(crate) safe fn shim_get_udp_sport(label: u32, local_qpn: u32, remote_qpn: u32) -> u16;
        pub(crate) safe fn shim_in_serving_softirq() -> bool;
        pub(crate) safe fn shim_in_softirq() -> bool;
        pub(crate) safe fn shim_in_softirq_level() -> bool;
        pub(crate) safe fn shim_irqs_disabled() -> bool;
        pub(crate) safe fn shim_local_bh_disable();
        pub(crate) safe fn shim_num_possible_cpus() -> c_uint;
        pub(crate) safe fn shim_set_current_running();
        pub(crate) safe fn shim_set_notify_signal();
        pub(crate) safe fn shim_synchronize_rcu_tasks();
        pub(crate) safe fn shim_take_notify_resume() -> bool;
        pub(crate) safe fn single_task_running() -> bool;
        pub(crate) safe fn synchronize_net();
        pub(crate) safe fn synchronize_rcu();
        pub(crate) safe fn wake_up_var(variable: *mut c_void);
        #[link_name = "yield"]
        pub(crate) safe fn yield_();
    }
}
