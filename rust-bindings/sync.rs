// SPDX-License-Identifier: GPL-2.0

//! Contexts, bursts, RCU-protected tables and lists, timers, threads, workqueues and serial work.
//!
//! Shared objects are plain [`Arc`](kernel::sync::Arc)s, so that they can also be work items. A
//! table entry and an armed timer own a reference. If that is the last one, the object is dropped
//! in softirq context, so its `Drop` must not sleep.

use kernel::sync::ArcBorrow;

mod atomic_place;
mod burst;
mod burst_arc;
mod gate;
mod index_pool;
mod irq;
mod long_calls;
mod module_workqueue;
mod per_cpu;
mod rcu;
mod rcu_lists;
mod rcu_table;
mod serial_work;
mod softirq_budget;
#[cfg(CONFIG_KUNIT = "y")]
mod tests;
mod timer;
mod user_thread;
mod wait;

pub use crate::compat::smp_mb;
pub use burst::{wait_for_bursts, BurstGuard};
pub use burst_arc::BurstArc;
pub(crate) use gate::Gate;
pub use index_pool::IndexPool;
pub(crate) use irq::{in_serving_softirq, in_softirq};
pub use irq::{irqs_disabled, lock_bh, with_lock_irqsave, BhGuard, BhLocked, Nested, Nesting};
pub use long_calls::{LongCall, LongCalls};
pub use module_workqueue::{ModuleWorkqueue, OpenWorkqueue, Placement};
pub use per_cpu::{num_possible_cpus, PerCpuCounters};
pub use rcu::rcu_barrier;
pub use rcu_lists::{RcuListEntry, RcuLists, RcuListsWriter};
pub use rcu_table::RcuTable;
pub use serial_work::{HasSerialWork, SerialTask, SerialWork, Turn};
pub use softirq_budget::SoftirqBudget;
pub use timer::{SoftTimer, TimerCallback};
pub use user_thread::{CurrentThread, ThreadBody, UserThread, UserThreads, HAS_USER_THREADS};

/// Returns a reference to the object with the lifetime of the borrow, not of this copy of the
/// `ArcBorrow`.
#[inline]
pub fn arc_borrow_ref<'a, T>(borrow: ArcBorrow<'a, T>) -> &'a T {
    let object: *const T = &*borrow;
    // SAFETY: An `ArcBorrow<'a, T>` guarantees that the reference count does not reach zero during
    // `'a` and that there is no exclusive reference to the object (rust/kernel/sync/arc.rs).
    unsafe { &*object }
}
