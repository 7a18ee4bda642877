// SPDX-License-Identifier: GPL-2.0

//! Contexts, RCU-protected tables and lists, timers, threads, workqueues and serial work.
//!
//! Shared objects are plain [`Arc`](kernel::sync::Arc)s, so that they can also be work items. A
//! table entry and an armed timer own a reference. If that is the last one, the object is dropped
//! in softirq context, so its `Drop` must not sleep.

mod arc;
mod atomic_box;
mod gate;
mod index_pool;
mod irq;
mod module_workqueue;
mod nesting;
mod per_cpu;
mod rcu;
mod rcu_arc;
mod rcu_lists;
mod rcu_table;
mod serial_work;
#[cfg(CONFIG_KUNIT = "y")]
mod tests;
mod timer;
mod user_thread;

pub use crate::compat::smp_mb;
pub use arc::arc_borrow_ref;
pub(crate) use gate::CallbackGate;
pub use index_pool::IndexPool;
pub use irq::{irqs_disabled, lock_bh, lock_irqsave, BhGuard, BhLocked};
pub use module_workqueue::{ModuleWorkqueue, OpenWorkqueue};
pub use nesting::{Nested, Nesting};
pub use per_cpu::PerCpuCounters;
pub use rcu::{rcu_barrier, synchronize_rcu_expedited};
pub use rcu_arc::RcuArc;
pub use rcu_lists::{RcuListEntry, RcuLists, RcuListsWriter};
pub use rcu_table::RcuTable;
pub use serial_work::{HasSerialWork, SerialQueue, SerialTask, SerialWork, Turn};
pub use timer::{HasSoftTimer, SoftTimer, TimerCallback};
pub use user_thread::{CurrentThread, ThreadBody, UserThread, UserThreads, HAS_USER_THREADS};
