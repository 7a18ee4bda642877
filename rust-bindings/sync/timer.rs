// SPDX-License-Identifier: GPL-2.0

//! Timers in softirq context, inside reference-counted objects.
//!
//! C header: `include/linux/hrtimer.h`.
//!
//! `kernel::time::hrtimer` returns a handle that cancels the timer when it is dropped. That does
//! not suit objects that arm their timer in many places without an owner for the handle. Here the
//! armed timer itself owns a reference to the object that contains it.

use super::{lock_irqsave, smp_mb};
use crate::raw;
use core::{marker::PhantomData, mem::ManuallyDrop};
use kernel::{
    prelude::*,
    static_lock_class,
    str::CStr,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc, ArcBorrow, SpinLock,
    },
    time::{delay::fsleep, Delta},
    types::Opaque,
};

/// Deadline of a timer that is not armed.
const IDLE: u64 = u64::MAX;

/// Name of the timers' lock class. Lockdep also distinguishes classes by the address of their name.
/// The code of generic timers is instantiated in each crate that uses them, and a literal would
/// have a different address in each.
static LOCK_NAME: &CStr = c"SoftTimer";

/// A high-resolution timer on `CLOCK_MONOTONIC` that expires in softirq context.
///
/// It is a pinned field of `T`, which lives in an [`Arc`]. `ID` distinguishes several timers of one
/// type. [`impl_has_soft_timer!`](crate::impl_has_soft_timer) names the field.
///
/// # Invariants
///
/// - `timer` is initialised, and calls `run::<T, ID>`.
/// - `deadline` is written only with `lock` held. If it is [`IDLE`], the timer is not queued;
///   otherwise the timer owns a reference to the `T` that contains it.
#[pin_data]
#[repr(C)]
pub struct SoftTimer<T, const ID: u64 = 0> {
    /// The first field, so that a pointer to it is also a pointer to the `SoftTimer`.
    #[pin]
    timer: Opaque<raw::rdma_soft_timer>,
    /// Deadline in nanoseconds of `CLOCK_MONOTONIC`, or [`IDLE`].
    deadline: Atomic<u64>,
    /// Taken with interrupts disabled, so that callers may be in any context.
    #[pin]
    lock: SpinLock<()>,
    _owner: PhantomData<fn(T)>,
}

// SAFETY: The timer's base lock and `lock` protect the state. `T` is reached only through
// references to it, and `HasSoftTimer` requires it to be `Send` and `Sync`.
unsafe impl<T, const ID: u64> Send for SoftTimer<T, ID> {}
// SAFETY: Shared references change the timer under `lock`; `deadline` is an atomic.
unsafe impl<T, const ID: u64> Sync for SoftTimer<T, ID> {}

/// The callback of a [`SoftTimer`].
pub trait TimerCallback<const ID: u64 = 0>: HasSoftTimer<ID> {
    /// Called in softirq context at or after the deadline. The timer is no longer armed, and the
    /// callback may arm it again.
    ///
    /// If the timer is armed for an earlier deadline while it expires, the callback is called
    /// again.
    fn expired(this: ArcBorrow<'_, Self>);
}

/// Locates the timer in an object. Use [`impl_has_soft_timer!`](crate::impl_has_soft_timer).
///
/// # Safety
///
/// `timer` and `raw_owner` convert between the object and one timer field, which is the same in
/// both functions.
pub unsafe trait HasSoftTimer<const ID: u64 = 0>: Send + Sync + Sized + 'static {
    /// Returns the timer of an object.
    fn timer(&self) -> &SoftTimer<Self, ID>;

    /// Returns the object that contains a timer.
    ///
    /// # Safety
    ///
    /// `timer` points to the timer field of a live object.
    unsafe fn raw_owner(timer: *const SoftTimer<Self, ID>) -> *const Self;
}

/// Implements [`HasSoftTimer`](crate::sync::HasSoftTimer).
///
/// ```ignore
/// impl_has_soft_timer! {
///     impl HasSoftTimer<Self> for QueuePair { self.timer }
///     impl HasSoftTimer<Self, 1> for QueuePair { self.ack_timer }
/// }
/// ```
#[macro_export]
macro_rules! impl_has_soft_timer {
    ($(
        impl$({$($generics:tt)*})? HasSoftTimer<Self $(, $id:tt)?> for $owner:ty {
            self.$field:ident
        }
    )*) => {$(
        // SAFETY: The return type of `timer` checks the type of the field, and both functions use
        // the same field.
        unsafe impl$(<$($generics)*>)? $crate::sync::HasSoftTimer$(<$id>)? for $owner {
            #[inline]
            fn timer(&self) -> &$crate::sync::SoftTimer<Self $(, $id)?> {
                &self.$field
            }

            #[inline]
            unsafe fn raw_owner(
                timer: *const $crate::sync::SoftTimer<Self $(, $id)?>,
            ) -> *const Self {
                // SAFETY: The caller guarantees that `timer` points to this field of a live object.
                unsafe { timer.byte_sub(::core::mem::offset_of!(Self, $field)).cast() }
            }
        }
    )*};
}

impl<T: TimerCallback<ID>, const ID: u64> SoftTimer<T, ID> {
    /// Creates a timer that is not armed.
    pub fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            // INVARIANT: The timer calls `run` and is neither queued nor armed.
            timer <- Opaque::ffi_init(|slot: *mut raw::rdma_soft_timer| {
                // SAFETY: `slot` is valid for writes of the struct. Both fields are initialised;
                // `hrtimer_setup` (kernel/time/hrtimer.c) accepts uninitialised memory.
                unsafe {
                    (&raw mut (*slot).expired).write(Some(run::<T, ID>));
                    raw::hrtimer_setup(
                        &raw mut (*slot).timer,
                        Some(raw::rdma_trampoline_timer),
                        raw::CLOCK_MONOTONIC as i32,
                        raw::hrtimer_mode_HRTIMER_MODE_ABS_SOFT,
                    );
                }
            }),
            deadline: Atomic::new(IDLE),
            lock <- SpinLock::new((), LOCK_NAME, static_lock_class!()),
            _owner: PhantomData,
        })
    }

    #[inline]
    fn raw(&self) -> *mut raw::hrtimer {
        // The timer is the first field.
        self.timer.get().cast()
    }

    /// Arms the timer to expire at `deadline_ns` (nanoseconds of `CLOCK_MONOTONIC`), unless it is
    /// already armed for an earlier time. Any context.
    ///
    /// A deadline is never postponed: the callback of a timer that expires early checks which work
    /// is due. Arming a timer that is already armed, the common case, thus costs only a barrier and
    /// a load.
    ///
    /// The callback sees all changes that the caller made before this call.
    #[inline]
    pub fn arm(owner: ArcBorrow<'_, T>, deadline_ns: u64) {
        // Pairs with the barrier in `run`: either this CPU sees that the callback has reset the
        // deadline, or the callback sees the caller's changes.
        smp_mb();
        if owner.timer().deadline.load(Relaxed) > deadline_ns {
            Self::arm_slow(owner, deadline_ns);
        }
    }

    #[cold]
    fn arm_slow(owner: ArcBorrow<'_, T>, deadline_ns: u64) {
        let this = owner.timer();
        let _locked = lock_irqsave(&this.lock);
        let before = this.deadline.load(Relaxed);
        if before <= deadline_ns {
            return;
        }
        if before == IDLE {
            // INVARIANT: The timer owns this reference from now on.
            let _timers_own = ManuallyDrop::new(Arc::from(owner));
        }
        this.deadline.store(deadline_ns, Relaxed);
        // SAFETY: The timer is initialised by the type invariant; hrtimer_start_range_ns()
        // (kernel/time/hrtimer.c) also restarts a timer that is queued or running. It lives until
        // it has run or is cancelled, because it owns a reference to its owner.
        unsafe {
            raw::hrtimer_start_range_ns(
                this.raw(),
                i64::try_from(deadline_ns).unwrap_or(i64::MAX),
                0,
                raw::hrtimer_mode_HRTIMER_MODE_ABS_SOFT,
            )
        };
    }

    /// Returns the current deadline, or `None` if the timer is not armed.
    #[cfg(CONFIG_KUNIT = "y")]
    pub(crate) fn deadline(owner: &T) -> Option<u64> {
        Some(owner.timer().deadline.load(Relaxed)).filter(|deadline| *deadline != IDLE)
    }

    /// Cancels the timer if it is queued, without waiting for a running callback. Any context.
    /// Returns whether no callback is running.
    fn cancel(owner: ArcBorrow<'_, T>) -> bool {
        let owner = Arc::from(owner);
        let this = owner.timer();
        let locked = lock_irqsave(&this.lock);
        // SAFETY: The timer is initialised by the type invariant; hrtimer_try_to_cancel()
        // (kernel/time/hrtimer.c) locks its base. The timer owned a reference to `owner` while it
        // was queued.
        unsafe {
            let removed = raw::hrtimer_try_to_cancel(this.raw());
            if removed > 0 {
                // INVARIANT: The timer is not queued now, and its reference is dropped.
                this.deadline.store(IDLE, Relaxed);
                drop(locked);
                drop(Arc::from_raw(Arc::as_ptr(&owner)));
            }
            removed >= 0
        }
    }

    /// Cancels the timer and waits for a running callback. Sleeps; must not be called from the
    /// callback.
    ///
    /// The timer stays cancelled only if nothing arms it concurrently.
    pub fn cancel_sync(owner: ArcBorrow<'_, T>) {
        // A running callback takes `lock`, and may arm the timer again.
        while !Self::cancel(owner) {
            fsleep(Delta::from_micros(20));
        }
    }
}

/// Handles the expiry of a timer.
///
/// # Safety
///
/// `timer` belongs to a [`SoftTimer<T, ID>`] that was armed and has expired. This is the only call
/// for that expiry, and no lock is held.
unsafe extern "C" fn run<T: TimerCallback<ID>, const ID: u64>(timer: *mut raw::hrtimer) {
    let this = timer.cast::<SoftTimer<T, ID>>();
    // SAFETY: Only `__run_hrtimer()` (kernel/time/hrtimer.c) calls this, through the trampoline and
    // without the lock of the timer's base. The timer is the first field of a `repr(C)`
    // `SoftTimer`, which is a field of a live object: the timer owns a reference to it, which is
    // taken below.
    let (owner, this) = unsafe { (T::raw_owner(this), &*this) };
    let locked = lock_irqsave(&this.lock);
    // SAFETY: The timer is initialised. Only hrtimer_start_range_ns() and hrtimer_try_to_cancel()
    // change `is_queued`, and both are called with `lock` held. The core clears it before it calls
    // this function (kernel/time/hrtimer.c, `__run_hrtimer()`), and sets it again only if a
    // callback asks for a restart.
    let queued_again = unsafe { core::ptr::read_volatile(&raw const (*timer).is_queued) };
    // SAFETY: By the type invariant, the timer owns a reference to `owner`, which cannot be given
    // up while `lock` is held.
    let owner = unsafe {
        if queued_again {
            // The timer was armed for an earlier time after it expired, so it keeps its reference.
            Arc::from(ArcBorrow::from_raw(owner))
        } else {
            // INVARIANT: The timer is idle and not queued, and gives up its reference.
            this.deadline.store(IDLE, Relaxed);
            Arc::from_raw(owner)
        }
    };
    drop(locked);
    // Pairs with the barrier in `arm`.
    smp_mb();
    T::expired(owner.as_arc_borrow());
    // If this drops the last reference, the timer is freed as well. It is not queued, which would
    // require a reference. The hrtimer core does not touch it after a callback that returns
    // HRTIMER_NORESTART.
    drop(owner);
}
