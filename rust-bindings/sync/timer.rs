// SPDX-License-Identifier: GPL-2.0

//! Timers in softirq context, inside reference-counted objects.
//!
//! C header: `include/linux/hrtimer.h`.
//!
//! `kernel::time::hrtimer` returns a handle that cancels the timer when it is dropped. That does
//! not suit objects that arm their timer in many places without an owner for the handle. Here the
//! armed timer itself owns a reference to the object that contains it.

use super::{smp_mb, with_lock_irqsave};
use crate::raw;
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
/// It is a pinned field of `T`, which lives in an [`Arc`].
///
/// # Invariants
///
/// - `timer` is initialised, and calls `run::<T>`.
/// - `deadline` is written only with `owner` locked. If it is [`IDLE`], the timer is not queued and
///   `owner` is empty. Otherwise `owner` has a reference to the `T` that contains the timer.
#[pin_data]
#[repr(C)]
pub struct SoftTimer<T> {
    /// The first field, so that a pointer to it is also a pointer to the `SoftTimer`.
    #[pin]
    timer: Opaque<raw::rdma_soft_timer>,
    /// Deadline in nanoseconds of `CLOCK_MONOTONIC`, or [`IDLE`].
    deadline: Atomic<u64>,
    /// Locked with interrupts disabled, so that callers may be in any context.
    #[pin]
    owner: SpinLock<Option<Arc<T>>>,
}

// SAFETY: The timer's base lock and that of `owner` protect the state. A timer only exists for a
// `T: TimerCallback`, which is `Send` and `Sync`.
unsafe impl<T> Send for SoftTimer<T> {}
// SAFETY: Shared references change the timer with `owner` locked; `deadline` is an atomic.
unsafe impl<T> Sync for SoftTimer<T> {}

/// An object with a [`SoftTimer`].
pub trait TimerCallback: Send + Sync + Sized + 'static {
    /// Returns the timer, which is a field of the object.
    fn timer(&self) -> &SoftTimer<Self>;

    /// Called in softirq context at or after the deadline. The timer is no longer armed, and the
    /// callback may arm it again.
    ///
    /// If the timer is armed for an earlier deadline while it expires, the callback is called
    /// again.
    fn expired(this: ArcBorrow<'_, Self>);
}

impl<T: TimerCallback> SoftTimer<T> {
    /// Creates a timer that is not armed.
    pub fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            // INVARIANT: The timer calls `run` and is neither queued nor armed.
            timer <- Opaque::ffi_init(|slot: *mut raw::rdma_soft_timer| {
                // SAFETY: `slot` is valid for writes of the struct. Both fields are initialised;
                // `hrtimer_setup` (kernel/time/hrtimer.c) accepts uninitialised memory.
                unsafe {
                    (&raw mut (*slot).expired).write(Some(run::<T>));
                    raw::hrtimer_setup(
                        &raw mut (*slot).timer,
                        Some(raw::rdma_trampoline_timer),
                        raw::CLOCK_MONOTONIC as i32,
                        raw::hrtimer_mode_HRTIMER_MODE_ABS_SOFT,
                    );
                }
            }),
            deadline: Atomic::new(IDLE),
            owner <- SpinLock::new(None, LOCK_NAME, static_lock_class!()),
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
        with_lock_irqsave(&this.owner, |reference| {
            let before = this.deadline.load(Relaxed);
            let offset = (&raw const *this as usize).wrapping_sub(&raw const *owner as usize);
            // A timer outside of the object would not live as long as the reference below.
            if before <= deadline_ns || offset >= size_of::<T>() {
                return;
            }
            if before == IDLE {
                *reference = Some(owner.into());
            }
            // INVARIANT: The timer has a reference to the object that contains it.
            this.deadline.store(deadline_ns, Relaxed);
            // SAFETY: The timer is initialised by the type invariant; hrtimer_start_range_ns()
            // (kernel/time/hrtimer.c) also restarts a timer that is queued or running. It lives
            // until it has run or is cancelled, because it has a reference to the object that
            // contains it.
            unsafe {
                raw::hrtimer_start_range_ns(
                    this.raw(),
                    i64::try_from(deadline_ns).unwrap_or(i64::MAX),
                    0,
                    raw::hrtimer_mode_HRTIMER_MODE_ABS_SOFT,
                )
            };
        });
    }

    /// Returns the current deadline, or `None` if the timer is not armed.
    #[cfg(CONFIG_KUNIT = "y")]
    pub(crate) fn deadline(owner: &T) -> Option<u64> {
        Some(owner.timer().deadline.load(Relaxed)).filter(|deadline| *deadline != IDLE)
    }

    /// Cancels the timer if it is queued, without waiting for a running callback. Any context.
    /// Returns whether no callback is running.
    fn cancel(owner: ArcBorrow<'_, T>) -> bool {
        let this = owner.timer();
        let (removed, reference) = with_lock_irqsave(&this.owner, |reference| {
            // SAFETY: The timer is initialised by the type invariant; hrtimer_try_to_cancel()
            // (kernel/time/hrtimer.c) locks its base.
            let removed = unsafe { raw::hrtimer_try_to_cancel(this.raw()) };
            if removed <= 0 {
                return (removed, None);
            }
            // INVARIANT: The timer is not queued now, and gives up its reference.
            this.deadline.store(IDLE, Relaxed);
            (removed, reference.take())
        });
        // Without the lock, which the object may contain.
        drop(reference);
        removed >= 0
    }

    /// Cancels the timer and waits for a running callback. Sleeps; must not be called from the
    /// callback.
    ///
    /// The timer stays cancelled only if nothing arms it concurrently.
    pub fn cancel_sync(owner: ArcBorrow<'_, T>) {
        // A running callback locks `owner`, and may arm the timer again.
        while !Self::cancel(owner) {
            fsleep(Delta::from_micros(20));
        }
    }
}

/// Handles the expiry of a timer.
///
/// # Safety
///
/// `timer` belongs to a [`SoftTimer<T>`] that was armed and has expired. This is the only call for
/// that expiry, and no lock is held.
unsafe extern "C" fn run<T: TimerCallback>(timer: *mut raw::hrtimer) {
    // SAFETY: Only `__run_hrtimer()` (kernel/time/hrtimer.c) calls this, through the trampoline and
    // without the lock of the timer's base. The timer is the first field of a `repr(C)`
    // `SoftTimer`, which is valid: it has a reference to the object that contains it, which is
    // taken below.
    let this = unsafe { &*timer.cast::<SoftTimer<T>>() };
    let owner = with_lock_irqsave(&this.owner, |reference| {
        // SAFETY: The timer is initialised. Only hrtimer_start_range_ns() and
        // hrtimer_try_to_cancel() change `is_queued`, and both are called with `owner` locked. The
        // core clears it before it calls this function (kernel/time/hrtimer.c, `__run_hrtimer()`),
        // and sets it again only if a callback asks for a restart.
        let queued_again = unsafe { core::ptr::read_volatile(&raw const (*timer).is_queued) };
        if queued_again {
            // The timer was armed for an earlier time after it expired, so it keeps its reference.
            reference.clone()
        } else {
            // INVARIANT: The timer is idle and not queued, and gives up its reference.
            this.deadline.store(IDLE, Relaxed);
            reference.take()
        }
    });
    // Pairs with the barrier in `arm`.
    smp_mb();
    if let Some(owner) = owner {
        T::expired(owner.as_arc_borrow());
    }
    // If this dropped the last reference, the timer was freed as well. It was not queued, which
    // would require a reference. The hrtimer core does not touch it after a callback that returns
    // HRTIMER_NORESTART.
}
