// SPDX-License-Identifier: GPL-2.0

//! Work of an object that one context does at a time.

use super::{in_serving_softirq, wait, ModuleWorkqueue};
use crate::raw;
use kernel::{
    prelude::*,
    str::CStr,
    sync::{
        atomic::{Atomic, Full, Relaxed},
        Arc, ArcBorrow, LockClassKey,
    },
    workqueue::{self, HasWork, Work, WorkItem},
};

/// A context does the work, or the work item is queued to do it.
const RUNNING: u32 = 1 << 31;
/// The work was started again meanwhile.
const AGAIN: u32 = 1 << 30;
/// The work never runs again.
const CLOSED: u32 = 1 << 29;
/// A context waits until the work is closed. The owner of the turn closes it at its end.
/// Set only together with [`RUNNING`].
const CLOSING: u32 = 1 << 28;
/// The kinds of work that are marked.
const KINDS: u32 = CLOSING - 1;

/// Work that one context does at a time, with a work item that continues it: a try-lock with marks
/// for pending work.
///
/// A context that starts the work while another one does it leaves a mark and continues. The other
/// one sees the mark before it stops. So no caller waits, and no work is lost.
///
/// It is a pinned field of `T`, which lives in an [`Arc`]. `ID` distinguishes several fields of one
/// type. [`impl_has_serial_work!`](crate::impl_has_serial_work) names the field.
#[pin_data]
#[repr(C)]
pub struct SerialWork<T, const ID: u64 = 0> {
    /// The first field, so that a pointer to it is also a pointer to the `SerialWork`.
    #[pin]
    work: Work<T, ID>,
    state: Atomic<u32>,
}

/// The task of a [`SerialWork`].
pub trait SerialTask<const ID: u64 = 0>: HasSerialWork<ID> {
    /// Number of rounds after which the work item continues, behind other work.
    const ROUNDS: u32 = 16;

    /// Returns the queue of the work item, which must be open as long as the work can be started.
    /// `None`, the default, is a softirq (`system_bh_wq`).
    fn queue() -> Option<&'static ModuleWorkqueue> {
        None
    }

    /// Returns whether softirqs must not do what is left to do now.
    fn avoids_softirqs(_this: ArcBorrow<'_, Self>) -> bool {
        false
    }

    /// Has the work started again outside of softirqs, which avoids them. Any context.
    fn restart(_this: ArcBorrow<'_, Self>) {}

    /// Does a part of the work; `kinds` were marked since the previous round. Returns whether more
    /// is left to do.
    fn round(this: ArcBorrow<'_, Self>, kinds: u32) -> bool;
}

/// An object with a [`SerialWork`]. Implemented by
/// [`impl_has_serial_work!`](crate::impl_has_serial_work).
pub trait HasSerialWork<const ID: u64 = 0>:
    HasWork<Self, ID> + WorkItem<ID, Pointer = Arc<Self>> + Send + Sync + Sized + 'static
{
    /// Returns the field.
    fn serial_work(&self) -> &SerialWork<Self, ID>;
}

/// Implements [`HasSerialWork`](crate::sync::HasSerialWork) for fields, for example
/// `impl HasSerialWork<1> for QueuePair { self.recv_work }`, or, for a generic type,
/// `impl{T: Task} HasSerialWork<0> for Queue<T> { self.work }`.
#[macro_export]
macro_rules! impl_has_serial_work {
    ($(
        impl$({$($generics:tt)*})? HasSerialWork<$id:tt> for $owner:ty { self.$field:ident }
    )*) => {$(
        impl$(<$($generics)*>)? $crate::sync::HasSerialWork<$id> for $owner {
            #[inline]
            fn serial_work(&self) -> &$crate::sync::SerialWork<Self, $id> {
                &self.$field
            }
        }

        // SAFETY: `serial_work` checks the type of the field, whose first part is the `Work`
        // (`repr(C)`). Both functions use the same field.
        unsafe impl$(<$($generics)*>)? ::kernel::workqueue::HasWork<Self, $id> for $owner {
            #[inline]
            unsafe fn raw_get_work(owner: *mut Self) -> *mut ::kernel::workqueue::Work<Self, $id> {
                // SAFETY: The caller guarantees that `owner` points to an object.
                unsafe { (&raw mut (*owner).$field).cast() }
            }

            #[inline]
            unsafe fn work_container_of(
                work: *mut ::kernel::workqueue::Work<Self, $id>,
            ) -> *mut Self {
                // SAFETY: The caller guarantees that `work` is in this field of an object.
                unsafe { work.byte_sub(::core::mem::offset_of!(Self, $field)).cast() }
            }
        }

        impl$(<$($generics)*>)? ::kernel::workqueue::WorkItem<$id> for $owner {
            type Pointer = ::kernel::sync::Arc<Self>;

            fn run(this: ::kernel::sync::Arc<Self>) {
                $crate::sync::SerialWork::<Self, $id>::run_queued(&this);
            }
        }
    )*};
}

impl<T: SerialTask<ID>, const ID: u64> SerialWork<T, ID> {
    /// Creates work that can be started. `name` and `key` are for lockdep.
    pub fn new(name: &'static CStr, key: Pin<&'static LockClassKey>) -> impl PinInit<Self> {
        pin_init!(Self {
            work <- Work::new(name, key),
            state: Atomic::new(0),
        })
    }

    /// Marks kinds of work, which are bits of [`KINDS`], for the next round. It does not start the
    /// work.
    pub fn mark(&self, kinds: u32) {
        self.update(|now| now | kinds & KINDS);
    }

    /// Returns whether any kind of work is marked.
    #[inline]
    pub fn is_marked(&self) -> bool {
        self.state.load(Relaxed) & KINDS != 0
    }

    /// Returns whether a context does the work, or the work item is queued to do it.
    #[cfg(CONFIG_KUNIT = "y")]
    pub(super) fn is_running(&self) -> bool {
        self.state.load(Relaxed) & RUNNING != 0
    }

    /// Starts the work. Returns the caller's turn to do it, unless another context does it.
    #[inline]
    pub fn start(this: ArcBorrow<'_, T>) -> Option<Turn<'_, T, ID>> {
        this.serial_work().enter(0).then(|| Turn(this))
    }

    /// Marks `kinds` of work, and starts the work in its queue. May be called from any context.
    #[inline]
    pub fn queue(this: ArcBorrow<'_, T>, kinds: u32) {
        if this.serial_work().enter(kinds & KINDS) {
            // The work item takes the turn.
            drop(Turn::<T, ID>(this));
        }
    }

    /// Waits until no context does the work, and closes it: no context can start it from then on.
    /// Marks are lost, and so is a work item that has not begun. Sleeps; must not be called from
    /// the work.
    pub fn close(this: ArcBorrow<'_, T>) {
        let work = this.serial_work();
        let before = work.update(|now| match now & (CLOSED | RUNNING) {
            RUNNING => now | CLOSING,
            _ => CLOSED,
        });
        if before & RUNNING == 0 {
            return;
        }
        // The work item may be behind many others, or its CPU busy with a real-time program.
        if !Self::end_queued(this) {
            wait::wait_for_bits(&work.state, CLOSED);
        }
    }

    /// Ends the turn of the work item, if it is queued. Returns whether it was.
    fn end_queued(this: ArcBorrow<'_, T>) -> bool {
        // The work item had the turn, which is this context's now.
        let owner = Self::dequeue(this);
        if owner.is_some() {
            this.serial_work().end_turn();
        }
        owner.is_some()
    }

    /// Ends the caller's turn. Marks are lost. Closes the work if a context waits for that.
    fn end_turn(&self) {
        let before = self.update(|now| match now & CLOSING {
            0 => 0,
            _ => CLOSED,
        });
        if before & CLOSING != 0 {
            wait::wake(self.state.as_ptr());
        }
    }

    /// Takes the work item out of its queue, if it is queued. Returns its reference to the object.
    /// Any context.
    fn dequeue(this: ArcBorrow<'_, T>) -> Option<Arc<T>> {
        let object: *const T = &*this;
        // SAFETY: `object` points to an object, whose work item is initialized. A queued item owns
        // a reference from `Arc::into_raw()` (rust/kernel/workqueue.rs, `WorkItemPointer` for
        // `Arc`), which `run_queued` takes back when the item runs. cancel_work()
        // (kernel/workqueue.c) returns true if it has removed the item, which then does not run.
        unsafe {
            let work = Work::raw_get(T::raw_get_work(object.cast_mut()));
            raw::cancel_work(work).then(|| Arc::from_raw(object))
        }
    }

    /// Continues in the work item.
    #[doc(hidden)]
    pub fn run_queued(this: &Arc<T>) {
        Turn::<T, ID>(this.as_arc_borrow()).run();
    }

    /// Replaces the state by what `next` returns for it, and returns the state from before.
    #[inline]
    fn update(&self, next: impl Fn(u32) -> u32) -> u32 {
        let mut now = self.state.load(Relaxed);
        // A state that stays the same is written, too, so that the owner sees what the caller has
        // done before.
        while let Err(other) = self.state.cmpxchg(now, next(now), Full) {
            now = other;
        }
        now
    }

    /// Ends the caller's turn if a context waits for that, and the work was not started again.
    /// Returns whether it has.
    #[cold]
    fn close_idle(&self) -> bool {
        let is_closed = self.state.cmpxchg(RUNNING | CLOSING, CLOSED, Full).is_ok();
        if is_closed {
            wait::wake(self.state.as_ptr());
        }
        is_closed
    }

    /// Marks work. Returns whether the caller must do it, because no other context does.
    #[inline]
    fn enter(&self, kinds: u32) -> bool {
        let before = self.update(|now| match now & (CLOSED | RUNNING) {
            0 => now | kinds | RUNNING,
            RUNNING => now | kinds | AGAIN,
            _ => now,
        });
        before & (CLOSED | RUNNING) == 0
    }
}

/// The turn of a context to do a [`SerialWork`]. If it is dropped, the work item takes it.
#[must_use = "the work item takes the turn when this is dropped"]
pub struct Turn<'a, T: SerialTask<ID>, const ID: u64 = 0>(ArcBorrow<'a, T>);

impl<T: SerialTask<ID>, const ID: u64> Turn<'_, T, ID> {
    /// Does the work. The work item takes the turn if the work is not finished after
    /// [`SerialTask::ROUNDS`] rounds. If softirqs must not do it, it is started again elsewhere.
    pub fn run(self) {
        let mut turn = self;
        for _ in 0..T::ROUNDS {
            if in_serving_softirq() && T::avoids_softirqs(turn.0) {
                return;
            }
            let work = turn.0.serial_work();
            let kinds = match work.state.load(Relaxed) {
                RUNNING => 0,
                _ => work.update(|now| now & (RUNNING | CLOSING)) & KINDS,
            };
            let more = T::round(turn.0, kinds);
            match turn.end_round(more) {
                Some(again) => turn = again,
                None => return,
            }
        }
    }

    /// Ends a round that the caller has done. Returns the turn if another round is due: if `more`
    /// is left to do, or if the work was started again.
    #[inline]
    pub fn end_round(self, more: bool) -> Option<Self> {
        let work = self.0.serial_work();
        if more || work.state.cmpxchg(RUNNING, 0, Full).is_err() && !work.close_idle() {
            return Some(self);
        }
        core::mem::forget(self);
        None
    }
}

impl<T: SerialTask<ID>, const ID: u64> Drop for Turn<'_, T, ID> {
    fn drop(&mut self) {
        let this = self.0;
        let work = this.serial_work();
        if T::avoids_softirqs(this) && T::queue().is_none() {
            work.end_turn();
            T::restart(this);
            return;
        }
        // The work item is not queued yet, since only the owner of the turn queues it.
        let queued = match T::queue() {
            Some(queue) => queue.enqueue::<Arc<T>, ID>(this.into()),
            None => workqueue::system_bh()
                .enqueue::<Arc<T>, ID>(this.into())
                .is_ok(),
        };
        if !queued {
            work.end_turn();
        } else if work.state.load(Relaxed) & CLOSING != 0 {
            // Either this context sees the mark of `close`, or that function sees the work item:
            // queueing and dequeueing are full barriers (kernel/workqueue.c, `queue_work_on()`,
            // `try_to_grab_pending()`).
            SerialWork::<T, ID>::end_queued(this);
        }
    }
}
