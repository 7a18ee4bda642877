// SPDX-License-Identifier: GPL-2.0

//! System calls that may sleep for any time, and that the end of a device interrupts.
//!
//! ib_core waits for the calls of programs before it removes a device. A call that sleeps until a
//! page of a program is present may take as long as the program likes.

use crate::raw;
use core::ptr;
use kernel::{
    alloc::flags::GFP_KERNEL_ACCOUNT,
    new_mutex,
    prelude::*,
    sync::{aref::ARef, Mutex},
    task::Task,
};

/// The calls in progress.
#[pin_data]
pub struct LongCalls {
    #[pin]
    calls: Mutex<Calls>,
}

struct Calls {
    /// No further call may begin.
    is_closed: bool,
    /// The task of each call, with the number of its owner.
    tasks: KVVec<(u64, ARef<Task>)>,
}

/// A call in progress, of the current task. It ends when this is dropped.
#[must_use = "the call ends when this is dropped"]
pub struct LongCall<'a> {
    calls: &'a LongCalls,
    task: ARef<Task>,
}

impl LongCalls {
    /// Returns an initializer without calls.
    pub fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            calls <- new_mutex!(Calls { is_closed: false, tasks: KVVec::new() }, "rdma_long_calls"),
        })
    }

    /// Begins a call of the current task. `owner` is a number of the caller's choice. Returns
    /// `ENODEV` after [`LongCalls::close`]. Sleeps.
    pub fn begin(&self, owner: u64) -> Result<LongCall<'_>> {
        let task: ARef<Task> = ARef::from(&**kernel::current!());
        let mut calls = self.calls.lock();
        if calls.is_closed {
            return Err(ENODEV);
        }
        let entry = (owner, task.clone());
        calls.tasks.push(entry, GFP_KERNEL_ACCOUNT)?;
        Ok(LongCall { calls: self, task })
    }

    /// Interrupts the calls of an owner: in their tasks a signal is pending until they return from
    /// the system call. Sleeps.
    pub fn interrupt(&self, owner: u64) {
        let calls = self.calls.lock();
        let tasks = calls.tasks.iter().filter(|(of, _)| *of == owner);
        tasks.for_each(|(_, task)| interrupt_task(task));
    }

    /// Interrupts all calls, and lets no further one begin. Sleeps.
    pub fn close(&self) {
        let mut calls = self.calls.lock();
        calls.is_closed = true;
        let tasks = calls.tasks.iter();
        tasks.for_each(|(_, task)| interrupt_task(task));
    }
}

/// Makes a signal pending in a task, and wakes it if it sleeps and a signal may interrupt that.
pub(super) fn interrupt_task(task: &Task) {
    // SAFETY: The reference keeps the task, which may have exited already. Setting a flag of it and
    // waking it without a reason is always allowed (kernel/sched/core.c, `wake_up_process()`).
    unsafe { raw::shim_interrupt_task(task.as_ptr()) };
}

impl Drop for LongCall<'_> {
    fn drop(&mut self) {
        let mut calls = self.calls.calls.lock();
        let is_own = |(_, task): &(u64, ARef<Task>)| ptr::eq(&**task, &*self.task);
        let at = calls.tasks.iter().position(is_own);
        debug_assert!(at.is_some(), "a call that did not begin");
        if let Some(at) = at {
            drop(calls.tasks.remove(at));
        }
    }
}
