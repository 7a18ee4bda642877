// SPDX-License-Identifier: GPL-2.0

//! Timers in softirq context, inside reference-counted objects.
//!
//! C header: `include/linux/hrtimer.h`.
//!
//! `kernel::time::hrtimer` hands out a handle that cancels when it is dropped, which doesn't suit
//! objects that arm their timer from many places, and for which nobody owns a handle. Here an
//! armed timer itself owns a reference to the object that contains it.

use crate::{compat::smp_mb, raw, sync::irq::IrqGuard};
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

/// Lockdep tells classes by the address of their name too. Timers are generic, so that their code
/// is in each crate that uses them: a literal would have an address in each.
static LOCK_NAME: &CStr = c"SoftTimer";

/// A high-resolution timer on `CLOCK_MONOTONIC` that expires in softirq context.
///
/// A pinned field of `T`, which lives in an [`Arc`]; `ID` tells several timers of one type apart.
/// [`impl_has_soft_timer!`](crate::impl_has_soft_timer) says which field it is.
///
/// # Invariants
///
/// - `timer` is initialised, and calls `run::<T, ID>`.
/// - `deadline`, which is written only with `lock` held, is [`IDLE`] or the timer owns a reference
///   to the `T` that contains it. The former implies that it is not queued.
#[pin_data]
#[repr(C)]
pub struct SoftTimer<T, const ID: u64 = 0> {
    /// The first field, so that a pointer to it is a pointer to the `SoftTimer`.
    #[pin]
    timer: Opaque<raw::rdma_soft_timer>,
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    deadline: Atomic<u64>,
    /// Taken with interrupts disabled, so that callers may have them so.
    #[pin]
    lock: SpinLock<()>,
    _owner: PhantomData<fn(T)>,
}

// SAFETY: The timer's base lock and `lock` protect the state; `T` is reached only through
// references to it, which `HasSoftTimer` wants to be `Send` and `Sync`.
unsafe impl<T, const ID: u64> Send for SoftTimer<T, ID> {}
// SAFETY: Shared references change the timer under `lock`, and load `deadline`, which is an atomic.
unsafe impl<T, const ID: u64> Sync for SoftTimer<T, ID> {}

/// What happens when a [`SoftTimer`] expires.
pub trait TimerCallback<const ID: u64 = 0>: HasSoftTimer<ID> {
    /// Called in softirq context at or after the deadline. The timer is not armed any more, and may
    /// be armed again from here.
    ///
    /// Where the timer is armed for an earlier deadline while it expires, there is another call.
    fn expired(this: ArcBorrow<'_, Self>);
}

/// Says where in an object the timer is. Use [`impl_has_soft_timer!`](crate::impl_has_soft_timer).
///
/// # Safety
///
/// `raw_timer` and `raw_owner` convert between a pointer to the object and a pointer to one and
/// the same timer field of it.
pub unsafe trait HasSoftTimer<const ID: u64 = 0>: Send + Sync + Sized + 'static {
    /// The timer of an object.
    ///
    /// # Safety
    ///
    /// `owner` points to a live object.
    unsafe fn raw_timer(owner: *const Self) -> *const SoftTimer<Self, ID>;

    /// The object of a timer.
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
        // SAFETY: The type of the field is checked by the return type of `raw_timer`, and both
        // functions use the same field.
        unsafe impl$(<$($generics)*>)? $crate::sync::HasSoftTimer$(<$id>)? for $owner {
            #[inline]
            unsafe fn raw_timer(
                owner: *const Self,
            ) -> *const $crate::sync::SoftTimer<Self $(, $id)?> {
                // SAFETY: The caller promises that `owner` points to a live object.
                unsafe { &raw const (*owner).$field }
            }

            #[inline]
            unsafe fn raw_owner(
                timer: *const $crate::sync::SoftTimer<Self $(, $id)?>,
            ) -> *const Self {
                // SAFETY: The caller promises that `timer` points to this field of an object.
                unsafe { timer.byte_sub(::core::mem::offset_of!(Self, $field)).cast() }
            }
        }
    )*};
}

impl<T: TimerCallback<ID>, const ID: u64> SoftTimer<T, ID> {
    /// A timer that is not armed.
    pub fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            // INVARIANT: Initialised with `run`, not queued, and idle.
            timer <- Opaque::ffi_init(|slot: *mut raw::rdma_soft_timer| {
                // SAFETY: `slot` is memory for the struct, both fields of which are initialised:
                // `hrtimer_setup` (kernel/time/hrtimer.c) takes its one as it is.
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

    /// The timer inside `owner`.
    #[inline]
    fn of(owner: &T) -> &Self {
        // SAFETY: A reference points to a live object, whose field lives as long.
        unsafe { &*T::raw_timer(owner) }
    }

    /// Makes the timer expire at `deadline_ns` (nanoseconds of `CLOCK_MONOTONIC`), or earlier
    /// where it was armed for an earlier time. Any context.
    ///
    /// A deadline is never postponed: a timer that expires early asks its owner what is due. So
    /// this costs a barrier and a load where the timer is already armed, which is the common case.
    ///
    /// What the caller has changed before, the callback sees: it is called after that, or it has
    /// not looked yet.
    #[inline]
    pub fn arm(owner: ArcBorrow<'_, T>, deadline_ns: u64) {
        // Pairs with the barrier in `run`: either we see that the callback has taken the deadline
        // back, or it sees what the caller did.
        smp_mb();
        if Self::of(&owner).deadline.load(Relaxed) > deadline_ns {
            Self::arm_slow(owner, deadline_ns);
        }
    }

    #[cold]
    fn arm_slow(owner: ArcBorrow<'_, T>, deadline_ns: u64) {
        let this = Self::of(&owner);
        let _irq = IrqGuard::new();
        let _locked = this.lock.lock();
        let before = this.deadline.load(Relaxed);
        if before <= deadline_ns {
            return;
        }
        if before == IDLE {
            // INVARIANT: From here the timer owns this reference.
            let _timers_own = ManuallyDrop::new(Arc::from(owner));
        }
        this.deadline.store(deadline_ns, Relaxed);
        // SAFETY: The timer is initialised by the type invariant, and lives until it has run or is
        // cancelled, by the reference that it owns.
        unsafe {
            raw::hrtimer_start_range_ns(
                this.raw(),
                i64::try_from(deadline_ns).unwrap_or(i64::MAX),
                0,
                raw::hrtimer_mode_HRTIMER_MODE_ABS_SOFT,
            )
        };
    }

    /// When the timer will expire, if it is armed, at this instant.
    #[inline]
    pub fn deadline(owner: &T) -> Option<u64> {
        Some(Self::of(owner).deadline.load(Relaxed)).filter(|deadline| *deadline != IDLE)
    }

    /// Whether the timer is armed, at this instant.
    #[inline]
    pub fn is_armed(owner: &T) -> bool {
        Self::deadline(owner).is_some()
    }

    /// Cancels the timer where it is queued, without waiting for a callback that runs. Any context.
    /// Returns whether no callback is running.
    pub fn cancel(owner: ArcBorrow<'_, T>) -> bool {
        let owner = Arc::from(owner);
        let this = Self::of(&owner);
        let _irq = IrqGuard::new();
        let locked = this.lock.lock();
        // SAFETY: The timer is initialised by the type invariant.
        let removed = unsafe { raw::hrtimer_try_to_cancel(this.raw()) };
        if removed > 0 {
            // INVARIANT: It is not queued any more, and its reference is dropped below.
            this.deadline.store(IDLE, Relaxed);
            drop(locked);
            // SAFETY: A queued timer owns a reference to its owner by the type invariant.
            drop(unsafe { Arc::from_raw(Arc::as_ptr(&owner)) });
        }
        removed >= 0
    }

    /// Cancels the timer and waits for a callback that runs. Sleeps; not from the callback.
    ///
    /// Nobody else must arm the timer meanwhile, if it is to stay cancelled.
    pub fn cancel_sync(owner: ArcBorrow<'_, T>) {
        // A callback that runs takes `lock`, and may arm the timer again.
        while !Self::cancel(owner) {
            fsleep(Delta::from_micros(20));
        }
    }
}

/// Runs when a timer expires.
///
/// # Safety
///
/// `timer` is that of a [`SoftTimer<T, ID>`] that was armed and has expired; its callback is called
/// once for that, with no lock held.
unsafe extern "C" fn run<T: TimerCallback<ID>, const ID: u64>(timer: *mut raw::hrtimer) {
    let this = timer.cast::<SoftTimer<T, ID>>();
    // SAFETY: `__run_hrtimer()` (kernel/time/hrtimer.c) is the only caller, through the trampoline,
    // without its base's lock. The timer is the first field of a `repr(C)` `SoftTimer`, which is
    // the field of a live object: the timer owns a reference to it until that is taken below.
    let (owner, this) = unsafe { (T::raw_owner(this), &*this) };
    let irq = IrqGuard::new();
    let locked = this.lock.lock();
    // SAFETY: The timer is initialised. hrtimer_start_range_ns() and hrtimer_try_to_cancel() change
    // `is_queued`, which are called with `lock` held only; the core has cleared it before it called
    // (kernel/time/hrtimer.c, `__run_hrtimer()`), and sets it again only for a callback that asks
    // for that.
    let queued_again = unsafe { core::ptr::read_volatile(&raw const (*timer).is_queued) };
    let owner = if queued_again {
        // It was armed for an earlier time between its expiry and now: what it owns stays with it.
        // SAFETY: By the type invariant `owner` has a reference that is held by the timer, which
        // can't be given up as long as we hold `lock`.
        Arc::from(unsafe { ArcBorrow::from_raw(owner) })
    } else {
        // INVARIANT: Not queued, idle, and its reference is ours.
        this.deadline.store(IDLE, Relaxed);
        // SAFETY: By the type invariant the timer owned a reference.
        unsafe { Arc::from_raw(owner) }
    };
    drop(locked);
    drop(irq);
    // Pairs with the barrier in `arm`.
    smp_mb();
    T::expired(owner.as_arc_borrow());
    // Where this drops the last reference, the timer goes with it. It is neither queued (that would
    // be a reference), nor does the hrtimer core touch it after a callback that says "no restart".
    drop(owner);
}
