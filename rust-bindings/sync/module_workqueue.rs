// SPDX-License-Identifier: GPL-2.0

//! Workqueues of the module.
//!
//! A work item on one of the kernel's workqueues can still be about to return when all objects that
//! it used are gone. Unloading the module would free its code at that moment. So the module queues
//! every work item that can sleep or be preempted on a workqueue of its own, which it destroys
//! before it is unloaded.
//!
//! C header: `include/linux/workqueue.h`.

use crate::raw;
use core::ptr;
use kernel::{
    prelude::*,
    str::CStr,
    sync::{
        atomic::{Acquire, Atomic, Full},
        rcu,
    },
    workqueue::{Queue, RawWorkItem},
};

/// A workqueue of the module, as a static. It takes work items while there is an [`OpenWorkqueue`].
///
/// # Invariants
///
/// The pointer is null or a workqueue. [`OpenWorkqueue`] destroys the workqueue a grace period
/// after it has set the pointer to null.
pub struct ModuleWorkqueue(Atomic<*mut raw::workqueue_struct>);

/// The CPUs on which a [`ModuleWorkqueue`] runs its work items.
#[derive(Clone, Copy)]
pub enum Placement {
    /// Any CPU, and several work items at a time.
    Anywhere,
    /// The CPU that queued the work item, one at a time. A CPU-bound program there keeps half of
    /// the CPU, however many work items are queued. Does not depend on free memory.
    QueueingCpu,
}

impl Placement {
    /// Returns the flags of the workqueue (`enum wq_flags`).
    fn flags(self) -> u32 {
        match self {
            Self::Anywhere => raw::wq_flags_WQ_UNBOUND,
            Self::QueueingCpu => raw::wq_flags_WQ_PERCPU | raw::wq_flags_WQ_MEM_RECLAIM,
        }
    }
}

impl ModuleWorkqueue {
    /// Creates a queue that is not open.
    pub const fn closed() -> Self {
        Self(Atomic::new(ptr::null_mut()))
    }

    /// Opens the queue, whose worker threads get this name. Returns `EBUSY` if it is already open.
    pub fn open(&'static self, name: &CStr, placement: Placement) -> Result<OpenWorkqueue> {
        // SAFETY: The name is copied before this returns (kernel/workqueue.c,
        // `__alloc_workqueue()`). If there is another workqueue, nothing else has a pointer to the
        // new one.
        unsafe {
            let queue = raw::shim_alloc_workqueue(name.as_char_ptr(), placement.flags());
            if queue.is_null() {
                return Err(ENOMEM);
            }
            // INVARIANT: `queue` is a workqueue, which only the `OpenWorkqueue` destroys.
            if self.0.cmpxchg(ptr::null_mut(), queue, Full).is_err() {
                raw::destroy_workqueue(queue);
                return Err(EBUSY);
            }
        }
        Ok(OpenWorkqueue(self))
    }

    /// Queues a work item, unless it is already queued. Returns false if the queue is not open. Any
    /// context.
    pub(crate) fn enqueue<W, const ID: u64>(&self, work: W) -> bool
    where
        W: RawWorkItem<ID> + Send + 'static,
    {
        let _guard = rcu::read_lock();
        let queue = self.0.load(Acquire);
        if queue.is_null() {
            return false;
        }
        // SAFETY: By the type invariant the workqueue is valid until the end of the read-side
        // critical section. `Queue` is a transparent wrapper.
        let queue = unsafe { Queue::from_raw(queue.cast_const().cast()) };
        // A work item that is already queued will run anyway.
        let _ = queue.enqueue(work);
        true
    }
}

/// An open [`ModuleWorkqueue`]. Dropping it closes the queue and waits until the queued work items
/// have returned, which sleeps.
#[must_use = "the queue is closed when this is dropped"]
pub struct OpenWorkqueue(&'static ModuleWorkqueue);

impl Drop for OpenWorkqueue {
    fn drop(&mut self) {
        let queue = self.0 .0.xchg(ptr::null_mut(), Full);
        raw::safe::synchronize_rcu();
        // SAFETY: `ModuleWorkqueue::open` has allocated the workqueue. Since a grace period has
        // passed, no `enqueue` uses it. `destroy_workqueue()` (kernel/workqueue.c) waits for the
        // queued work items.
        unsafe { raw::destroy_workqueue(queue) };
    }
}
