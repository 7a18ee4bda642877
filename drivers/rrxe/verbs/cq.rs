// SPDX-License-Identifier: GPL-2.0

//! Completion queues.
//!
//! A queue pair pushes completions while it holds its own lock, and notifies the consumer after it
//! has released the lock, because the consumer may call back into the driver. A softirq notifies
//! kernel consumers. A kernel consumer may be inside a call that has led here, and hold locks that
//! its completion handler takes, so the handler must not run from that call. Nor may it run
//! concurrently with itself (Documentation/infiniband/core_locking.rst).

use crate::{
    limits,
    module::Rrxe,
    ring::{
        abi::{
            self, Cqe, RingSpec, ARM_ANY, ARM_SOLICITED, COUNTS_EVENTS, CQE_GRH, CQE_WITH_IMM,
            CQE_WITH_INV, MAX_EVENTS, NOT_NOTIFIED, RING_ARM, RING_CONSUMER, RING_EVENTS,
            RING_FLAGS, RING_NOTIFIED, RING_PRODUCER,
        },
        Ring,
    },
};
use kernel::{
    new_mutex, new_spinlock,
    prelude::*,
    static_lock_class,
    sync::{Arc, ArcBorrow, Mutex, SpinLock},
    time::Delta,
};
use linux_rdma::{
    errno::not_supported,
    impl_has_serial_work,
    rdma::{
        attr::{CqInitAttr, Moderation, CQ_FLAG_TIMESTAMP},
        wr::{wc, Wc, WcBuffer},
        CqEvent, CqTarget, Device, QpTarget, Udata,
    },
    sync::{smp_mb, with_lock_irqsave, SerialTask, SerialWork, SoftTimer, TimerCallback},
    time::monotonic_ns,
};
use rrxe_core::{Minus, RingCounter};

/// A completion queue, shared by queue pairs.
#[pin_data]
pub(crate) struct Cq {
    #[pin]
    queue: SpinLock<Queue>,
    /// Serializes resizing.
    #[pin]
    resize_lock: Mutex<()>,
    /// `None` for the internal completion queue of a queue pair that was created without one.
    target: Option<Arc<CqTarget>>,
    /// The consumer is in the kernel.
    is_kernel: bool,
    /// Notifies the consumer in a softirq: [`COMPLETIONS`], [`LOST`].
    #[pin]
    notification: SerialWork<Cq>,
    /// Notifies the consumer of a deferred event.
    #[pin]
    timer: SoftTimer<Cq>,
}

impl_has_serial_work! {
    impl HasSerialWork<0> for Cq { self.notification }
}

/// Largest number of completions that a resize copies with interrupts disabled.
const MAX_LOCKED_COPY: u32 = 64;

/// The consumer must be notified of completions.
const COMPLETIONS: u32 = 1;
/// A completion was lost.
const LOST: u32 = 2;

/// Size of an entry, in bytes.
const STRIDE: u32 = core::mem::size_of::<Cqe>() as u32;

/// The entries of a completion queue, and the producer's state.
struct Queue {
    /// `None` if completions are discarded: the queue is destroyed, or internal.
    ring: Option<Ring>,
    /// Kernel consumers: the queue pairs that the waiting entries belong to.
    qps: KVVec<Option<Arc<QpTarget>>>,
    /// Entries published so far.
    producer: RingCounter,
    /// Copy of [`abi::RingHeader::notified`]. It only advances: a program that moves its consumer
    /// counter back gets no further event for a completion.
    notified: RingCounter,
    /// Copy of [`abi::RingHeader::events`].
    events: u32,
    /// Completions have matched the arming since the queue has raised [`MAX_EVENTS`] events.
    withheld: bool,
    /// A completion was lost: no further completion is added.
    overflow: bool,
    /// The consumer was told of the loss.
    overflow_reported: bool,
    moderation: Moderation,
    /// `producer` at the last event, or at the last change of `moderation` or of the ring.
    counted: RingCounter,
    /// The armings that completions have satisfied since then, whose event moderation defers.
    deferred: u32,
    /// Time of the deferred event, in nanoseconds of the monotonic clock.
    due: u64,
}

/// When to notify the consumer.
enum Notice {
    /// Not for these completions.
    Never,
    Now,
    /// At this time, in nanoseconds of the monotonic clock, unless more completions make it due
    /// before.
    At(u64),
}

impl Queue {
    fn push(&mut self, cqe: &Cqe, qp: &Arc<QpTarget>) -> Result {
        let Some(ring) = &self.ring else {
            return Ok(());
        };
        let consumer = ring.counter(RING_CONSUMER);
        let used = self.producer.checked_since(consumer, ring.capacity);
        if self.overflow || used.is_none_or(|used| used == ring.capacity) {
            self.overflow = true;
            return Err(ENOSPC);
        }
        ring.write(self.producer, cqe)?;
        if let Some(entry) = self.qps.get_mut(ring.slot(self.producer)) {
            *entry = Some(qp.clone());
        }
        self.producer.advance();
        ring.publish(RING_PRODUCER, self.producer);
        Ok(())
    }

    /// Removes the waiting completions of a queue pair from the queue of a kernel consumer. The
    /// order of the others stays.
    ///
    /// Goes from the newest entry to the oldest. Each entry that stays moves up to the next newer
    /// one that stays. The free entries at the old end are returned.
    fn remove(&mut self, qp: &Arc<QpTarget>) -> Result {
        let Some(ring) = self.ring.as_ref().filter(|_| !self.qps.is_empty()) else {
            return Ok(());
        };
        let first = ring.counter(RING_CONSUMER);
        // The entries from here on stay.
        let mut to = self.producer;
        for i in (0..self.producer.since(first)).rev() {
            let at = first.add(i);
            let owner = self.qps.get_mut(ring.slot(at)).and_then(Option::take);
            if owner.as_ref().is_some_and(|owner| Arc::ptr_eq(owner, qp)) {
                continue;
            }
            to = to.sub(1);
            if to != at {
                ring.write(to, &ring.read::<Cqe>(at)?)?;
            }
            if let Some(entry) = self.qps.get_mut(ring.slot(to)) {
                *entry = owner;
            }
        }
        ring.publish(RING_CONSUMER, to);
        Ok(())
    }

    /// Takes the arming that a completion satisfies, unless moderation defers the event.
    fn disarm(&mut self, solicited: bool) -> Notice {
        let Some(ring) = &self.ring else {
            return Notice::Never;
        };
        let wanted = ARM_ANY | if solicited { ARM_SOLICITED } else { 0 };
        if self.qps.is_empty() {
            // Orders the new entry before the read of the arming. A program arms, and then polls. A
            // kernel consumer does both under the lock.
            smp_mb();
        }
        if ring.load_acquire(RING_ARM) & wanted == 0 || self.withhold() {
            return Notice::Never;
        }
        self.take_or_defer(wanted)
    }

    /// Takes the arming of a user program that calls the kernel, if an event was withheld until
    /// then, or if completions wait, unless the last event was for the oldest of them.
    fn disarm_at_call(&mut self) -> Notice {
        self.set_events(0);
        let withheld = core::mem::take(&mut self.withheld);
        if withheld || self.unnotified().is_some() {
            self.take_or_defer(ARM_ANY | ARM_SOLICITED)
        } else {
            Notice::Never
        }
    }

    /// Takes the arming of the deferred event when the timer expires, unless the consumer has
    /// polled the completions, or has been notified of the last one.
    fn disarm_at(&mut self, now: u64) -> Notice {
        if self.deferred != 0 && now < self.due {
            // The timer was armed for an earlier event.
            return Notice::At(self.due);
        }
        let wanted = core::mem::take(&mut self.deferred);
        if wanted == 0 || self.oldest().is_none() || self.withhold() {
            return Notice::Never;
        }
        self.take(wanted)
    }

    /// Takes the arming if the event is due. Otherwise defers the event.
    fn take_or_defer(&mut self, wanted: u32) -> Notice {
        let Moderation { count, period } = self.moderation;
        let is_due = period == 0 || self.producer.since(self.counted) >= count.into();
        if is_due {
            return self.take(wanted);
        }
        if self.deferred == 0 {
            let delay = Delta::from_micros(period.into()).as_nanos();
            self.due = monotonic_ns().saturating_add(delay.unsigned_abs());
        }
        self.deferred |= wanted;
        Notice::At(self.due)
    }

    /// Takes the arming.
    fn take(&mut self, wanted: u32) -> Notice {
        match self.take_arming(wanted) {
            true => Notice::Now,
            false => Notice::Never,
        }
    }

    /// Withholds the event if the queue has raised [`MAX_EVENTS`] events. Returns whether it has.
    fn withhold(&mut self) -> bool {
        let counts = |ring: &Ring| ring.load_acquire(RING_FLAGS) & COUNTS_EVENTS != 0;
        let limited = self.events >= MAX_EVENTS && self.ring.as_ref().is_some_and(counts);
        self.withheld |= limited;
        limited
    }

    /// Takes the arming. Returns whether it is one of `wanted`.
    fn take_arming(&mut self, wanted: u32) -> bool {
        let before = self.events;
        // Before the exchange: a program that arms after it finds the new number.
        self.set_events(before.saturating_add(1));
        let armed = self.ring.as_ref().map(|ring| ring.exchange(RING_ARM, 0));
        let hit = armed.is_some_and(|armed| armed & wanted != 0);
        if !hit {
            self.set_events(before);
            return false;
        }
        (self.counted, self.deferred) = (self.producer, 0);
        if let Some(consumer) = self.unnotified() {
            self.set_notified(consumer);
        }
        true
    }

    fn set_events(&mut self, events: u32) {
        self.events = events;
        if let Some(ring) = &self.ring {
            ring.store_release(RING_EVENTS, events);
        }
    }

    /// Returns the consumer counter, if completions wait and the last event was not for the oldest
    /// of them. A program may have written any value.
    fn unnotified(&self) -> Option<RingCounter> {
        let ring = self.ring.as_ref()?;
        let consumer = self.oldest()?;
        // Positions in the ring's window, which ends at the producer. `notified` is before the
        // window if the program has polled for long without events.
        let start = self.producer.sub(ring.capacity);
        let notified = self.notified.checked_since(start, ring.capacity);
        let is_new = notified.is_none_or(|notified| consumer.since(start) > notified);
        is_new.then_some(consumer)
    }

    /// Returns the consumer counter, if completions wait.
    fn oldest(&self) -> Option<RingCounter> {
        let ring = self.ring.as_ref()?;
        let consumer = ring.counter(RING_CONSUMER);
        let waiting = self.producer.checked_since(consumer, ring.capacity)?;
        (waiting != 0).then_some(consumer)
    }

    fn set_notified(&mut self, consumer: RingCounter) {
        self.notified = consumer;
        if let Some(ring) = &self.ring {
            ring.publish(RING_NOTIFIED, consumer);
        }
    }

    /// Moves the completions of a kernel consumer to its buffer.
    fn poll(&mut self, to: &mut WcBuffer<'_>) {
        let Queue {
            ring: Some(ring),
            qps,
            producer,
            ..
        } = self
        else {
            return;
        };
        let mut consumer = ring.counter(RING_CONSUMER);
        while to.has_space() && consumer != *producer {
            let qp = qps.get_mut(ring.slot(consumer)).and_then(Option::take);
            let (Ok(cqe), Some(qp)) = (ring.read::<Cqe>(consumer), qp) else {
                break;
            };
            to.push(cqe.wr_id, cqe.imm_or_key, &qp, &contents(&cqe));
            consumer.advance();
        }
        ring.publish(RING_CONSUMER, consumer);
    }
}

impl Cq {
    /// CREATE_CQ.
    pub(crate) fn create(
        device: &Device<Rrxe>,
        attr: &CqInitAttr,
        target: Arc<CqTarget>,
        udata: Option<&mut Udata<'_>>,
    ) -> Result<(CqHandle, u32)> {
        // A queue that ignores overruns is not supported: one that is full always enters the Error
        // state.
        if attr.flags & !CQ_FLAG_TIMESTAMP != 0 {
            return Err(not_supported());
        }
        if attr.cqe == 0 || attr.cqe > limits::MAX_CQE {
            return Err(EINVAL);
        }
        let is_kernel = udata.is_none();
        let ring = match udata {
            Some(udata) => Self::user_ring(device, attr.cqe, udata)?,
            None => Ring::for_kernel(attr.cqe, STRIDE)?,
        };
        let capacity = ring.capacity;
        let cq = Self::new(Some(ring), is_kernel, Some(target))?;
        Ok((CqHandle(cq), capacity))
    }

    /// Creates the internal completion queue of a queue pair without one. It discards completions.
    pub(crate) fn none() -> Result<Arc<Self>> {
        Self::new(None, false, None)
    }

    fn new(ring: Option<Ring>, kernel: bool, target: Option<Arc<CqTarget>>) -> Result<Arc<Self>> {
        let mut qps = KVVec::new();
        if let Some(ring) = ring.as_ref().filter(|_| kernel) {
            qps.resize(ring.capacity as usize, None, GFP_KERNEL_ACCOUNT)?;
        }
        Arc::pin_init(
            pin_init!(Self {
                queue <- new_spinlock!(Queue {
                    ring,
                    qps,
                    producer: RingCounter::default(),
                    notified: RingCounter::new(NOT_NOTIFIED),
                    events: 0,
                    withheld: false,
                    overflow: false,
                    overflow_reported: false,
                    moderation: Moderation::default(),
                    counted: RingCounter::default(),
                    deferred: 0,
                    due: 0,
                }, "rrxe_cq"),
                resize_lock <- new_mutex!((), "rrxe_cq_change"),
                target,
                is_kernel: kernel,
                notification <- SerialWork::new(c"rrxe_cq", static_lock_class!()),
                timer <- SoftTimer::new(),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Pins the ring of a user program.
    fn user_ring(device: &Device<Rrxe>, cqe: u32, udata: &mut Udata<'_>) -> Result<Ring> {
        let spec: RingSpec = udata.read()?;
        if !spec.capacity.is_power_of_two()
            || spec.capacity < cqe
            || spec.capacity > limits::MAX_CQE.next_power_of_two()
            || spec.stride != STRIDE
        {
            return Err(EINVAL);
        }
        let ring = Ring::pin(device, &spec)?;
        ring.store_release(RING_NOTIFIED, NOT_NOTIFIED);
        udata.write_nothing()?;
        Ok(ring)
    }

    /// RESIZE_CQ: moves the waiting completions to a new ring, whose consumer counter starts at 0.
    ///
    /// The number of waiting completions depends on the program's consumer counter, so most of them
    /// are copied without the lock, which disables interrupts. Completions that arrive meanwhile
    /// are copied in the same way, until only a few are left. A program that changes its consumer
    /// counter during this call harms only itself.
    pub(crate) fn resize(
        &self,
        device: &Device<Rrxe>,
        cqe: u32,
        udata: Option<&mut Udata<'_>>,
    ) -> Result<u32> {
        let udata = udata.ok_or(not_supported())?;
        if cqe == 0 || cqe > limits::MAX_CQE {
            return Err(EINVAL);
        }
        let to = Self::user_ring(device, cqe, udata)?;
        let capacity = to.capacity;
        let _one = self.resize_lock.lock();
        let from = with_lock_irqsave(&self.queue, |queue| queue.ring.clone()).ok_or(EINVAL)?;
        let first = from.counter(RING_CONSUMER);
        let copy = |moved, used| -> Result {
            for i in moved..used {
                let cqe: Cqe = from.read(first.add(i))?;
                to.write(RingCounter::new(i), &cqe)?;
            }
            Ok(())
        };
        let mut moved = 0;
        // `from` and `to` keep both rings, which are dropped without the lock, because unpinning
        // may sleep.
        loop {
            let used = with_lock_irqsave(&self.queue, |queue| -> Result<Option<u32>> {
                let max = capacity.min(from.capacity);
                let used = queue.producer.checked_since(first, max).ok_or(EINVAL)?;
                if used.minus(moved) > MAX_LOCKED_COPY {
                    return Ok(Some(used));
                }
                copy(moved, used)?;
                let armed = from.exchange(RING_ARM, 0);
                to.exchange(RING_ARM, armed);
                to.store_release(RING_PRODUCER, used);
                let notified = queue.notified.sub(first.get());
                queue.producer = RingCounter::new(used);
                queue.counted = queue.producer;
                queue.ring = Some(to.clone());
                queue.set_notified(notified);
                let events = queue.events;
                queue.set_events(events);
                Ok(None)
            })?;
            let Some(used) = used else {
                return Ok(capacity);
            };
            copy(moved, used)?;
            moved = used;
        }
    }

    /// Adds a completion. On failure, the queue is full, and the queue pair must enter the Error
    /// state (IBA 10.8).
    #[inline]
    pub(crate) fn push(&self, cqe: &Cqe, qp: &Arc<QpTarget>) -> Result {
        with_lock_irqsave(&self.queue, |queue| queue.push(cqe, qp))
    }

    /// Removes the completions of a queue pair that is being destroyed, after it has added the last
    /// one. So a kernel consumer does not find a completion that names the destroyed queue pair.
    /// The provider removes those in the queues of user programs. The work is proportional to the
    /// waiting completions, whose number a kernel consumer decides.
    pub(crate) fn remove(&self, qp: &Arc<QpTarget>) {
        let removed = with_lock_irqsave(&self.queue, |queue| queue.remove(qp));
        // Reads and writes of a kernel's own ring do not fail.
        debug_assert!(removed.is_ok());
    }

    /// Notifies the consumer of completions, if it has armed the queue; or, with `lost`, tells it
    /// that one was lost, only once, whichever queue pair lost it (K-01). With `later`, a softirq
    /// does that. Otherwise the caller must hold no lock.
    pub(crate) fn report(this: &Arc<Self>, lost: bool, solicited: bool, later: bool) {
        let this = this.as_arc_borrow();
        let (due, what) = if lost {
            let reported = with_lock_irqsave(&this.queue, |queue| {
                core::mem::replace(&mut queue.overflow_reported, true)
            });
            (!reported, LOST)
        } else {
            (
                Self::notice(this, |queue| queue.disarm(solicited)),
                COMPLETIONS,
            )
        };
        if due {
            Self::deliver(this, what, later);
        }
    }

    /// Returns whether the consumer must be notified now, as `change` decides. Arms the timer of a
    /// deferred event.
    fn notice(this: ArcBorrow<'_, Self>, change: impl FnOnce(&mut Queue) -> Notice) -> bool {
        with_lock_irqsave(&this.queue, |queue| match change(queue) {
            Notice::Never => false,
            Notice::Now => true,
            Notice::At(deadline) => {
                // With the lock, so that nothing arms the timer once DESTROY_CQ has taken the ring.
                SoftTimer::arm(this, deadline);
                false
            }
        })
    }

    /// Notifies the consumer. With `later`, a softirq does that.
    fn deliver(this: ArcBorrow<'_, Self>, what: u32, later: bool) {
        if later || this.is_kernel {
            SerialWork::<Self>::queue(this, what);
        } else {
            this.notify(what);
        }
    }

    /// MODIFY_CQ: the consumer is notified after this number of completions, or when this time has
    /// passed since the first of them. If one of the two is 0, it is notified at once.
    pub(crate) fn moderate(&self, to: Moderation) {
        let is_off = to.count == 0;
        let to = if is_off { Moderation::default() } else { to };
        with_lock_irqsave(&self.queue, |queue| {
            queue.moderation = to;
            queue.counted = queue.producer;
        });
    }

    fn notify(&self, what: u32) {
        let Some(target) = &self.target else {
            return;
        };
        if what & COMPLETIONS != 0 {
            target.notify();
        }
        if what & LOST != 0 {
            target.dispatch(CqEvent::Error);
        }
    }

    /// POLL_CQ of a kernel consumer.
    pub(crate) fn poll(&self, to: &mut WcBuffer<'_>) {
        with_lock_irqsave(&self.queue, |queue| queue.poll(to));
    }

    /// REQ_NOTIFY_CQ. Arms the queue of a kernel consumer, for `solicited` completions or for all,
    /// and returns true if completions wait. A user program arms its queue itself, and calls if
    /// completions wait, or if the queue has raised [`MAX_EVENTS`] events.
    pub(crate) fn arm(this: &Arc<Self>, solicited: bool) -> bool {
        if !this.is_kernel {
            let this = this.as_arc_borrow();
            if Self::notice(this, Queue::disarm_at_call) {
                Self::deliver(this, COMPLETIONS, false);
            }
            return false;
        }
        with_lock_irqsave(&this.queue, |queue| {
            let Some(ring) = &queue.ring else {
                return false;
            };
            let wanted = if solicited { ARM_SOLICITED } else { ARM_ANY };
            ring.store_release(RING_ARM, ring.load_acquire(RING_ARM) | wanted);
            ring.counter(RING_CONSUMER) != queue.producer
        })
    }
}

/// ib_core's handle of a completion queue.
pub(crate) struct CqHandle(pub(crate) Arc<Cq>);

impl Drop for CqHandle {
    /// DESTROY_CQ.
    fn drop(&mut self) {
        SerialWork::close(self.0.as_arc_borrow());
        let old = with_lock_irqsave(&self.0.queue, |queue| queue.ring.take());
        // Without a ring, nothing arms the timer again.
        SoftTimer::<Cq>::cancel_sync(self.0.as_arc_borrow());
        // Unpinning may sleep, so it happens without the lock.
        drop(old);
    }
}

impl TimerCallback for Cq {
    fn timer(&self) -> &SoftTimer<Self> {
        &self.timer
    }

    fn expired(this: ArcBorrow<'_, Self>) {
        if Self::notice(this, |queue| queue.disarm_at(monotonic_ns())) {
            Self::deliver(this, COMPLETIONS, false);
        }
    }
}

impl SerialTask for Cq {
    fn round(this: ArcBorrow<'_, Self>, what: u32) -> bool {
        this.notify(what);
        false
    }
}

// The provider uses `abi`'s names for these values.
const _: () =
    assert!(abi::NETWORK_IPV4 == wc::NETWORK_IPV4 && abi::NETWORK_IPV6 == wc::NETWORK_IPV6);

/// Returns a completion entry in the form that kernel consumers use.
fn contents(cqe: &Cqe) -> Wc {
    let mut flags = 0;
    for (ours, theirs) in [
        (CQE_GRH, wc::GRH | wc::WITH_NETWORK_HDR_TYPE | wc::WITH_SMAC),
        (CQE_WITH_IMM, wc::WITH_IMM),
        (CQE_WITH_INV, wc::WITH_INVALIDATE),
    ] {
        if cqe.flags & ours != 0 {
            flags |= theirs;
        }
    }
    if cqe.flags & CQE_GRH != 0 && cqe.vlan_id != abi::NO_VLAN {
        flags |= wc::WITH_VLAN;
    }
    Wc {
        status: cqe.status.into(),
        opcode: cqe.opcode.into(),
        vendor_err: cqe.vendor_err,
        byte_len: cqe.byte_len,
        src_qp: cqe.src_qp,
        wc_flags: flags,
        pkey_index: cqe.pkey_index,
        sl: cqe.sl,
        network_hdr_type: cqe.network_hdr_type,
        smac: cqe.smac,
        vlan_id: cqe.vlan_id,
    }
}

#[cfg(CONFIG_KUNIT = "y")]
#[kernel::prelude::kunit_tests(rrxe_cq)]
mod tests {
    use super::*;
    use core::mem::MaybeUninit;
    use linux_rdma::rdma::TestQp;

    /// Creates a queue of a kernel consumer.
    fn queue(capacity: u32) -> Result<Arc<Cq>> {
        Cq::new(Some(Ring::for_kernel(capacity, STRIDE)?), true, None)
    }

    fn push(cq: &Cq, qp: &TestQp, byte_len: u32) -> Result {
        let cqe = Cqe {
            byte_len,
            ..Cqe::default()
        };
        cq.push(&cqe, qp.target())
    }

    /// Polls all completions, which must be of `qp`. Returns their lengths, which are digits, as
    /// one decimal number.
    fn poll(cq: &Cq, qp: &TestQp) -> u32 {
        let mut entries = [const { MaybeUninit::uninit() }; 8];
        let mut buffer = WcBuffer::new(&mut entries);
        cq.poll(&mut buffer);
        buffer.completions().iter().fold(0, |digits, wc| {
            assert!(qp.has(wc));
            digits * 10 + wc.byte_len()
        })
    }

    #[test]
    fn no_completion_of_a_destroyed_queue_pair() -> Result {
        let (cq, kept, destroyed) = (queue(8)?, TestQp::new()?, TestQp::new()?);
        // Moves the counters so that the removal crosses the end of the ring.
        for len in 1..=5 {
            push(&cq, &kept, len)?;
        }
        assert_eq!(poll(&cq, &kept), 12345);
        for (len, qp) in [
            (1, &destroyed),
            (2, &kept),
            (3, &destroyed),
            (4, &destroyed),
            (5, &kept),
            (6, &kept),
            (7, &destroyed),
            (8, &kept),
        ] {
            push(&cq, qp, len)?;
        }
        cq.remove(destroyed.target());
        drop(destroyed);
        // The removal frees entries.
        push(&cq, &kept, 9)?;
        assert_eq!(poll(&cq, &kept), 25689);
        Ok(())
    }

    /// Moderation defers an event until enough completions have been added or the time has passed,
    /// and drops it if the consumer has polled.
    #[test]
    fn events_are_moderated() -> Result {
        let (cq, qp) = (queue(8)?, TestQp::new()?);
        // Returns whether the consumer is notified now, and otherwise when.
        let notice =
            |change: &dyn Fn(&mut Queue) -> Notice| match with_lock_irqsave(&cq.queue, |queue| {
                change(queue)
            }) {
                Notice::Never => (false, None),
                Notice::Now => (true, None),
                Notice::At(deadline) => (false, Some(deadline)),
            };
        let complete = || -> Result<(bool, Option<u64>)> {
            push(&cq, &qp, 1)?;
            Ok(notice(&|queue| queue.disarm(false)))
        };
        let expired = |now| notice(&|queue| queue.disarm_at(now));
        let moderate = |count, period| cq.moderate(Moderation { count, period });
        let (never, now) = ((false, None), (true, None));
        for (count, period) in [(0, 0), (5, 0), (0, 5), (1, 5)] {
            moderate(count, period);
            assert_eq!(complete()?, never);
            Cq::arm(&cq, false);
            assert_eq!((complete()?, complete()?), (now, never));
            poll(&cq, &qp);
        }
        moderate(3, u16::MAX);
        Cq::arm(&cq, false);
        let began = monotonic_ns();
        let first = complete()?;
        let deadline = first.1.ok_or(EINVAL)?;
        assert!(deadline >= began + 65_535_000);
        // The time counts from the first completion.
        assert_eq!(complete()?, first);
        assert_eq!((complete()?, complete()?), (now, never));
        assert_eq!(expired(u64::MAX), never);
        poll(&cq, &qp);
        Cq::arm(&cq, false);
        // The completion that was added after the last event counts.
        let deadline = complete()?.1.ok_or(EINVAL)?;
        assert_eq!(expired(deadline - 1), (false, Some(deadline)));
        assert_eq!((expired(deadline), expired(u64::MAX)), (now, never));
        poll(&cq, &qp);
        Cq::arm(&cq, false);
        assert!(complete()?.1.is_some());
        poll(&cq, &qp);
        assert_eq!(expired(u64::MAX), never);
        // The queue is still armed.
        assert!(complete()?.1.is_some());
        assert_eq!(complete()?, now);
        Ok(())
    }

    /// A completion that was not removed is not reported once its queue pair is destroyed.
    #[test]
    fn a_completion_does_not_outlive_its_queue_pair() -> Result {
        let (cq, kept, destroyed) = (queue(8)?, TestQp::new()?, TestQp::new()?);
        push(&cq, &destroyed, 1)?;
        push(&cq, &kept, 2)?;
        drop(destroyed);
        assert_eq!(poll(&cq, &kept), 2);
        Ok(())
    }
}
