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
    ring::abi::{
        self, Cqe, RingSpec, ARM_ANY, ARM_SOLICITED, CQE_GRH, CQE_WITH_IMM, CQE_WITH_INV,
        NOT_NOTIFIED, RING_ARM, RING_CONSUMER, RING_HEADER_SIZE, RING_NOTIFIED, RING_PRODUCER,
    },
    Rrxe,
};
use kernel::{
    new_mutex, new_spinlock,
    prelude::*,
    static_lock_class,
    sync::{Arc, ArcBorrow, Mutex, SpinLock},
};
use linux_rdma::{
    errno::not_supported,
    impl_has_serial_work,
    rdma::{
        attr::{CqInitAttr, CQ_FLAG_IGNORE_OVERRUN, CQ_FLAG_TIMESTAMP},
        memory::SharedMemory,
        wr::{wc, QpIdentity, WcBuffer, WcContents},
        CqTarget, Device, Udata,
    },
    sync::{lock_irqsave, smp_mb, SerialTask, SerialWork},
};

/// A completion queue, shared by queue pairs.
#[pin_data]
pub(crate) struct Cq {
    #[pin]
    ring: SpinLock<CqRing>,
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

struct CqRing {
    storage: Storage,
    capacity: u32,
    /// Entries published so far.
    producer: u32,
    /// Kernel consumers: entries taken so far.
    consumer: u32,
    /// Kernel consumers: `ARM_*`.
    armed: u32,
    /// User programs: copy of [`abi::RingHeader::notified`]. It only advances: a program that moves
    /// its consumer counter back gets no further event for a completion.
    notified: u32,
    /// A completion was lost: no further completion is added.
    overflow: bool,
    /// The consumer was told of the loss.
    overflow_reported: bool,
}

enum Storage {
    /// The ring of a user program.
    User(Arc<SharedMemory>),
    /// A kernel consumer's completions, with the queue pairs that they belong to.
    Kernel(KVVec<Option<(Cqe, QpIdentity)>>),
    /// Destroyed: completions are discarded.
    Gone,
}

/// Returns the offset of the entry at a counter in the ring of a user program.
#[inline]
fn entry(counter: u32, capacity: u32) -> usize {
    let slot = counter & capacity.wrapping_sub(1);
    (slot as usize)
        .wrapping_mul(core::mem::size_of::<Cqe>())
        .wrapping_add(RING_HEADER_SIZE)
}

impl CqRing {
    /// Returns the number of entries between the consumer and the producer.
    fn used(&self) -> u32 {
        let consumer = match &self.storage {
            Storage::User(memory) => memory.load_acquire(RING_CONSUMER),
            _ => self.consumer,
        };
        self.producer.wrapping_sub(consumer)
    }

    fn push(&mut self, cqe: &Cqe, qp: QpIdentity) -> Result {
        if self.overflow || self.used() >= self.capacity {
            self.overflow = true;
            return Err(ENOSPC);
        }
        let slot = (self.producer & self.capacity.wrapping_sub(1)) as usize;
        let next = self.producer.wrapping_add(1);
        match &mut self.storage {
            Storage::User(memory) => {
                let offset = entry(self.producer, self.capacity);
                memory.write(offset, cqe)?;
                memory.store_release(RING_PRODUCER, next);
            }
            Storage::Kernel(entries) => {
                if let Some(entry) = entries.get_mut(slot) {
                    *entry = Some((*cqe, qp));
                }
            }
            Storage::Gone => {}
        }
        self.producer = next;
        Ok(())
    }

    /// Takes the arming that a completion satisfies.
    fn disarm(&mut self, solicited: bool) -> bool {
        let wanted = if solicited {
            ARM_ANY | ARM_SOLICITED
        } else {
            ARM_ANY
        };
        match &self.storage {
            Storage::User(memory) => {
                // Orders the new entry before the read of the arming. The consumer arms, and then
                // polls.
                smp_mb();
                let hit = memory.load_relaxed(RING_ARM) & wanted != 0
                    && memory.exchange(RING_ARM, 0) & wanted != 0;
                if hit {
                    if let Some(consumer) = self.unnotified() {
                        self.set_notified(consumer);
                    }
                }
                hit
            }
            Storage::Kernel(_) => {
                let hit = self.armed & wanted != 0;
                if hit {
                    self.armed = 0;
                }
                hit
            }
            Storage::Gone => false,
        }
    }

    /// Takes the arming of a user program that has found completions in its queue, unless the last
    /// event was for the oldest of them.
    fn disarm_for_waiting(&mut self) -> bool {
        let Some(consumer) = self.unnotified() else {
            return false;
        };
        match &self.storage {
            Storage::User(memory) if memory.exchange(RING_ARM, 0) != 0 => {
                self.set_notified(consumer);
                true
            }
            _ => false,
        }
    }

    /// Returns the consumer counter of a user program, if completions wait and the last event was
    /// not for the oldest of them. The program may have written any value.
    fn unnotified(&self) -> Option<u32> {
        let Storage::User(memory) = &self.storage else {
            return None;
        };
        let consumer = memory.load_acquire(RING_CONSUMER);
        let used = self.producer.wrapping_sub(consumer);
        if used == 0 || used > self.capacity {
            return None;
        }
        // Positions in the ring's window, which ends at the producer. `notified` is before the
        // window if the program has polled for long without events.
        let start = self.producer.wrapping_sub(self.capacity);
        let notified = self.notified.wrapping_sub(start);
        (notified > self.capacity || consumer.wrapping_sub(start) > notified).then_some(consumer)
    }

    fn set_notified(&mut self, consumer: u32) {
        self.notified = consumer;
        if let Storage::User(memory) = &self.storage {
            memory.store_release(RING_NOTIFIED, consumer);
        }
    }
}

impl Cq {
    /// CREATE_CQ.
    pub(crate) fn create(
        device: &Device<Rrxe>,
        attr: &CqInitAttr,
        target: Arc<CqTarget>,
        udata: Option<&mut Udata<'_>>,
    ) -> Result<(Arc<Self>, u32)> {
        if attr.flags & !(CQ_FLAG_TIMESTAMP | CQ_FLAG_IGNORE_OVERRUN) != 0 {
            return Err(not_supported());
        }
        if attr.cqe == 0 || attr.cqe > limits::MAX_CQE {
            return Err(EINVAL);
        }
        let (storage, capacity) = match udata {
            Some(udata) => {
                let (memory, capacity) = Self::user_memory(device, attr.cqe, udata)?;
                (Storage::User(memory), capacity)
            }
            None => {
                let capacity = attr.cqe.checked_next_power_of_two().ok_or(EINVAL)?;
                let mut entries = KVVec::with_capacity(capacity as usize, GFP_KERNEL_ACCOUNT)?;
                entries.resize(capacity as usize, None, GFP_KERNEL_ACCOUNT)?;
                (Storage::Kernel(entries), capacity)
            }
        };
        Ok((
            Self::with_storage(storage, capacity, Some(target))?,
            capacity,
        ))
    }

    /// Creates the internal completion queue of a queue pair without one. It discards completions.
    pub(crate) fn none() -> Result<Arc<Self>> {
        Self::with_storage(Storage::Gone, u32::MAX, None)
    }

    fn with_storage(
        storage: Storage,
        capacity: u32,
        target: Option<Arc<CqTarget>>,
    ) -> Result<Arc<Self>> {
        let is_kernel = matches!(storage, Storage::Kernel(_));
        Arc::pin_init(
            pin_init!(Self {
                ring <- new_spinlock!(CqRing {
                    storage,
                    capacity,
                    producer: 0,
                    consumer: 0,
                    armed: 0,
                    notified: NOT_NOTIFIED,
                    overflow: false,
                    overflow_reported: false,
                }, "rrxe_cq"),
                resize_lock <- new_mutex!((), "rrxe_cq_change"),
                target,
                is_kernel,
                notification <- SerialWork::new(c"rrxe_cq", static_lock_class!()),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Pins the ring of a user program. Returns it with its capacity.
    fn user_memory(
        device: &Device<Rrxe>,
        cqe: u32,
        udata: &mut Udata<'_>,
    ) -> Result<(Arc<SharedMemory>, u32)> {
        let spec: RingSpec = udata.read()?;
        if !spec.capacity.is_power_of_two()
            || spec.capacity < cqe
            || spec.capacity > limits::MAX_CQE.wrapping_add(1)
            || spec.stride as usize != core::mem::size_of::<Cqe>()
        {
            return Err(EINVAL);
        }
        let size = spec.size().ok_or(EINVAL)?;
        let memory = SharedMemory::from_user(device, spec.addr, size)?;
        memory.store_release(RING_NOTIFIED, NOT_NOTIFIED);
        udata.write_nothing()?;
        Ok((Arc::new(memory, GFP_KERNEL_ACCOUNT)?, spec.capacity))
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
        let (to, capacity) = Self::user_memory(device, cqe, udata)?;
        let _one = self.resize_lock.lock();
        let (from, first, old_capacity) = {
            let ring = lock_irqsave(&self.ring);
            let Storage::User(from) = &ring.storage else {
                return Err(EINVAL);
            };
            let first = ring.producer.wrapping_sub(ring.used());
            (from.clone(), first, ring.capacity)
        };
        let mut moved = 0;
        // Both rings are dropped without the lock, because unpinning may sleep.
        loop {
            let ring = lock_irqsave(&self.ring);
            let used = ring.producer.wrapping_sub(first);
            if used > old_capacity || used > capacity {
                return Err(EINVAL);
            }
            let locked = (used.wrapping_sub(moved) <= MAX_LOCKED_COPY).then_some(ring);
            for i in moved..used {
                let cqe: Cqe = from.read(entry(first.wrapping_add(i), old_capacity))?;
                to.write(entry(i, capacity), &cqe)?;
            }
            moved = used;
            let Some(mut ring) = locked else {
                continue;
            };
            let armed = from.exchange(RING_ARM, 0);
            to.exchange(RING_ARM, armed);
            to.store_release(RING_PRODUCER, used);
            let notified = ring.notified.wrapping_sub(first);
            ring.producer = used;
            ring.capacity = capacity;
            ring.storage = Storage::User(to);
            ring.set_notified(notified);
            return Ok(capacity);
        }
    }

    /// DESTROY_CQ.
    pub(crate) fn destroy(&self) {
        self.notification.close();
        let old = {
            let mut ring = lock_irqsave(&self.ring);
            core::mem::replace(&mut ring.storage, Storage::Gone)
        };
        // Unpinning may sleep.
        drop(old);
    }

    /// Adds a completion. On failure, the queue is full, and the queue pair must enter the Error
    /// state (IBA 10.8).
    #[inline]
    pub(crate) fn push(&self, cqe: &Cqe, qp: QpIdentity) -> Result {
        lock_irqsave(&self.ring).push(cqe, qp)
    }

    /// Reports pushed completions, if the consumer has armed the queue; or else, if one was `lost`,
    /// only that, and only once, whichever queue pair lost it (K-01). A softirq does it if `later`
    /// is set. Otherwise the caller must hold no lock.
    pub(crate) fn report(this: &Arc<Self>, lost: bool, solicited: bool, later: bool) {
        let mut ring = lock_irqsave(&this.ring);
        let (due, what) = if lost {
            let reported = core::mem::replace(&mut ring.overflow_reported, true);
            (!reported, LOST)
        } else {
            (ring.disarm(solicited), COMPLETIONS)
        };
        drop(ring);
        if due && (later || this.is_kernel) {
            SerialWork::<Self>::queue(this.as_arc_borrow(), what);
        } else if due {
            this.notify(what);
        }
    }

    fn notify(&self, what: u32) {
        let Some(target) = &self.target else {
            return;
        };
        if what & COMPLETIONS != 0 {
            target.notify();
        }
        if what & LOST != 0 {
            target.error();
        }
    }

    /// POLL_CQ of a kernel consumer.
    pub(crate) fn poll(&self, to: &mut WcBuffer<'_>) {
        let mut ring = lock_irqsave(&self.ring);
        while to.has_room() && ring.consumer != ring.producer {
            let slot = (ring.consumer & ring.capacity.wrapping_sub(1)) as usize;
            let Storage::Kernel(entries) = &ring.storage else {
                break;
            };
            let Some(Some((cqe, qp))) = entries.get(slot) else {
                break;
            };
            to.push(&contents(cqe), qp);
            ring.consumer = ring.consumer.wrapping_add(1);
        }
    }

    /// REQ_NOTIFY_CQ. Arms the queue of a kernel consumer, and returns true if completions wait. A
    /// user program has armed its queue already, and calls because completions wait.
    pub(crate) fn arm(&self, solicited_only: bool) -> bool {
        let mut ring = lock_irqsave(&self.ring);
        if !self.is_kernel {
            let due = ring.disarm_for_waiting();
            drop(ring);
            if due {
                self.notify(COMPLETIONS);
            }
            return false;
        }
        ring.armed |= if solicited_only {
            ARM_SOLICITED
        } else {
            ARM_ANY
        };
        ring.consumer != ring.producer
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
fn contents(cqe: &Cqe) -> WcContents {
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
    WcContents {
        wr_id: cqe.wr_id,
        status: cqe.status.into(),
        opcode: cqe.opcode.into(),
        vendor_err: cqe.vendor_err,
        byte_len: cqe.byte_len,
        imm_or_key: cqe.imm_or_key,
        src_qp: cqe.src_qp,
        flags,
        pkey_index: cqe.pkey_index,
        sl: cqe.sl,
        network_hdr_type: cqe.network_hdr_type,
        smac: cqe.smac,
        vlan_id: cqe.vlan_id,
    }
}
