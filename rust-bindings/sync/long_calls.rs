// SPDX-License-Identifier: GPL-2.0

//! System calls that may sleep for any time, and that the end of a device interrupts.
//!
//! ib_core waits for the calls of programs before it removes a device. A call that sleeps until a
//! page of a program is present may take as long as the program likes.

use crate::raw;
use kernel::{
    alloc::flags::GFP_KERNEL_ACCOUNT,
    list::{impl_list_arc_safe, impl_list_item, List, ListArc, ListLinks},
    new_mutex,
    prelude::*,
    sync::{aref::ARef, Arc, Mutex},
    task::Task,
};

/// The calls in progress.
#[pin_data]
pub struct LongCalls {
    /// Nothing allocates memory with this lock held, so that no program waits for another one whose
    /// control group has no memory left.
    #[pin]
    state: Mutex<State>,
}

struct State {
    /// No further call may begin.
    is_closed: bool,
    calls: List<Call>,
}

/// An entry of [`State::calls`].
///
/// # Invariants
///
/// It is in no other list.
#[pin_data]
struct Call {
    owner: u64,
    task: ARef<Task>,
    #[pin]
    links: ListLinks,
}

impl_list_arc_safe! {
    impl ListArcSafe<0> for Call { untracked; }
}

impl_list_item! {
    impl ListItem<0> for Call { using ListLinks { self.links }; }
}

/// A call in progress, of the current task. It ends when this is dropped.
#[must_use = "the call ends when this is dropped"]
pub struct LongCall<'a> {
    calls: &'a LongCalls,
    call: Arc<Call>,
}

impl LongCalls {
    /// Returns an initializer without calls.
    pub fn new() -> impl PinInit<Self> {
        let state = State {
            is_closed: false,
            calls: List::new(),
        };
        pin_init!(Self {
            state <- new_mutex!(state, "rdma_long_calls"),
        })
    }

    /// Begins a call of the current task. `owner` is a number of the caller's choice. Returns
    /// `ENODEV` after [`LongCalls::close`]. Sleeps.
    pub fn begin(&self, owner: u64) -> Result<LongCall<'_>> {
        // INVARIANT: Only this function adds calls to lists.
        let entry = ListArc::pin_init(
            try_pin_init!(Call {
                owner,
                task: ARef::from(&**kernel::current!()),
                links <- ListLinks::new(),
            }? Error),
            GFP_KERNEL_ACCOUNT,
        )?;
        let call = entry.clone_arc();
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(ENODEV);
        }
        state.calls.push_back(entry);
        Ok(LongCall { calls: self, call })
    }

    /// Interrupts the calls of an owner: in their tasks a signal is pending until they return from
    /// the system call. Sleeps.
    pub fn interrupt(&self, owner: u64) {
        let state = self.state.lock();
        let calls = state.calls.iter().filter(|call| call.owner == owner);
        calls.for_each(|call| interrupt_task(&call.task));
    }

    /// Interrupts all calls, and lets no further one begin. Sleeps.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        let calls = state.calls.iter();
        calls.for_each(|call| interrupt_task(&call.task));
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
        let mut state = self.calls.state.lock();
        // SAFETY: The call is in no other list (type invariant of `Call`).
        let removed = unsafe { state.calls.remove(&self.call) };
        debug_assert!(removed.is_some(), "a call that did not begin");
    }
}
