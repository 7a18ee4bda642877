// SPDX-License-Identifier: GPL-2.0

//! Shared receive queues: one ring of receive work requests for many queue pairs (IBA 10.2.9).
//!
//! A queue pair that needs a work request fetches the oldest one, under the queue's lock, which
//! nests inside the queue pair's lock. It copies the entry out and frees its slot at once, because
//! work requests complete in a different order than they were fetched, and a ring can free slots
//! only in order. From then on the work request belongs to the queue pair: a malformed one fails
//! only there.
//!
//! The ring never asks for doorbells, because a shared receive queue is never flushed (J-15).

use super::cq::Cq;
use crate::{
    limits,
    module::{Rrxe, EVENT_QUEUE},
    number_table::NumberTable,
    pd::{Pd, PdId},
    ring::{
        abi::{recv_stride, RecvWqe},
        Consumer, Producer, Ring,
    },
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
        attr::SrqAttr,
        no_udata,
        wr::{RecvWr, RecvWrs},
        Device, SrqEvent, SrqTarget, Udata, XrcSrq,
    },
    sync::{lock_bh, with_lock_irqsave, ModuleWorkqueue, SerialTask, SerialWork},
};

/// Events, as bits of `Srq::event_work`.
const LIMIT_REACHED: u32 = 1;
const ERROR: u32 = 2;

/// A shared receive queue, used by queue pairs. It may outlive ib_core's object.
#[pin_data]
pub(crate) struct Srq {
    /// The protection domain of its work requests, whichever queue pair fetches them.
    pub(crate) pd: PdId,
    /// Largest number of data segments of a work request.
    pub(crate) max_sge: u32,
    /// XRC: the domain of the queue pairs that may use it.
    pub(crate) xrc_domain: Option<PdId>,
    /// XRC: the completion queue of its work requests, whichever queue pair fetches them.
    pub(crate) xrc_cq: Option<Arc<Cq>>,
    target: Arc<SrqTarget>,
    #[pin]
    queue: SpinLock<Queue>,
    /// Serializes MODIFY_SRQ.
    #[pin]
    modify_lock: Mutex<()>,
    /// Reports events. Consumers may call back, and events are raised with a queue pair locked.
    #[pin]
    event_work: SerialWork<Srq>,
}

impl_has_serial_work! {
    impl HasSerialWork<0> for Srq { self.event_work }
}

/// The receive side of a shared receive queue.
struct Queue {
    /// `None` after the queue was destroyed.
    consumer: Option<Consumer>,
    /// An event is due when fewer work requests are left; 0 if none was requested.
    limit: u32,
}

/// ib_core's handle of a shared receive queue.
pub(crate) struct SrqHandle {
    pub(crate) srq: Arc<Srq>,
    numbers: Arc<NumberTable<Srq>>,
    /// For XRC: the queue's index in the table.
    index: Option<u32>,
    /// The ring that a kernel consumer posts to.
    poster: Option<Pin<KBox<SpinLock<Producer>>>>,
}

impl Drop for SrqHandle {
    /// DESTROY_SRQ. ib_core ensures that no queue pair uses the queue. An XRC target may still find
    /// it, and finds it empty.
    fn drop(&mut self) {
        if let Some(index) = self.index {
            self.numbers.withdraw(index);
        }
        let consumer = lock_bh(&self.srq.queue).consumer.take();
        SerialWork::close(self.srq.as_arc_borrow());
        // Unpins the ring, which may sleep.
        drop(consumer);
        if let Some(index) = self.index {
            self.numbers.release(index);
        }
    }
}

/// CREATE_SRQ. Returns a queue, and for XRC its number. Ignores the limit, which MODIFY_SRQ sets.
pub(crate) fn create(
    device: &Device<Rrxe>,
    numbers: &Arc<NumberTable<Srq>>,
    pd: &Pd,
    attr: &mut SrqAttr,
    xrc: Option<XrcSrq<'_, Rrxe>>,
    target: Arc<SrqTarget>,
    udata: Option<&mut Udata<'_>>,
) -> Result<(SrqHandle, u32)> {
    if attr.max_wr == 0 || attr.max_wr > limits::MAX_QP_WR || attr.max_sge > limits::MAX_SGE {
        return Err(EINVAL);
    }
    let (ring, poster) = match udata {
        Some(udata) => (user_ring(device, attr.max_wr, attr.max_sge, udata)?, None),
        None => {
            let stride = recv_stride(attr.max_sge).ok_or(EINVAL)?;
            let ring = Ring::for_kernel(attr.max_wr, stride)?;
            let producer = Producer::new(ring.clone());
            let producer = new_spinlock!(producer, "rrxe_srq_post");
            let poster = KBox::pin_init(producer, GFP_KERNEL_ACCOUNT)?;
            (ring, Some(poster))
        }
    };
    attr.max_wr = ring.capacity;
    attr.srq_limit = 0;
    let srq = Arc::pin_init(
        pin_init!(Srq {
            pd: pd.id,
            max_sge: attr.max_sge,
            xrc_domain: xrc.as_ref().map(|xrc| xrc.xrcd.id),
            xrc_cq: xrc.map(|xrc| xrc.cq.0.clone()),
            target,
            queue <- new_spinlock!(Queue {
                consumer: Some(Consumer::new(ring)),
                limit: 0,
            }, "rrxe_srq"),
            modify_lock <- new_mutex!((), "rrxe_srq_change"),
            event_work <- SerialWork::new(c"rrxe_srq_event", static_lock_class!()),
        }),
        GFP_KERNEL_ACCOUNT,
    )?;
    let mut handle = SrqHandle {
        srq,
        numbers: numbers.clone(),
        index: None,
        poster,
    };
    if handle.srq.xrc_domain.is_none() {
        return Ok((handle, 0));
    }
    let (index, number) = numbers.reserve()?;
    // From here on, dropping the handle releases the index.
    handle.index = Some(index);
    numbers.publish(index, handle.srq.clone())?;
    Ok((handle, number))
}

/// Pins the ring of a user program for CREATE_SRQ or MODIFY_SRQ.
fn user_ring(
    device: &Device<Rrxe>,
    max_wr: u32,
    max_sge: u32,
    udata: &mut Udata<'_>,
) -> Result<Ring> {
    let spec = udata.read()?;
    let stride = recv_stride(max_sge).ok_or(EINVAL)?;
    let ring = Ring::from_user(device, &spec, max_wr, stride)?;
    udata.write_nothing()?;
    Ok(ring)
}

impl SrqHandle {
    /// MODIFY_SRQ. Waiting work requests move to the new ring, at the same counters.
    pub(crate) fn modify(
        &self,
        device: &Device<Rrxe>,
        max_wr: Option<u32>,
        limit: Option<u32>,
        udata: Option<&mut Udata<'_>>,
    ) -> Result {
        let srq = &self.srq;
        let _one = srq.modify_lock.lock();
        let ring = if let Some(max_wr) = max_wr {
            // As with completion queues, kernel consumers can't resize.
            let udata = udata.ok_or(not_supported())?;
            if max_wr == 0 || max_wr > limits::MAX_QP_WR {
                return Err(EINVAL);
            }
            Some(user_ring(device, max_wr, srq.max_sge, udata)?)
        } else {
            no_udata(udata)?;
            None
        };
        let now = self.query();
        let max_wr = ring.as_ref().map_or(now.max_wr, |ring| ring.capacity);
        if limit.unwrap_or(now.srq_limit) > max_wr {
            return Err(EINVAL);
        }
        if let Some(ring) = ring {
            srq.change_ring(ring)?;
        }
        if let Some(limit) = limit {
            lock_bh(&srq.queue).limit = limit;
        }
        Ok(())
    }

    /// QUERY_SRQ.
    pub(crate) fn query(&self) -> SrqAttr {
        let queue = lock_bh(&self.srq.queue);
        SrqAttr {
            max_wr: queue.consumer.as_ref().map_or(0, |c| c.ring.capacity),
            max_sge: self.srq.max_sge,
            srq_limit: queue.limit,
        }
    }

    /// POST_SRQ_RECV of a kernel consumer.
    pub(crate) fn post(&self, wrs: &mut RecvWrs<'_>) -> Result {
        let poster = self.poster.as_ref().ok_or(not_supported())?;
        with_lock_irqsave(poster, |producer| {
            wrs.try_for_each(|wr| push(producer, &wr, self.srq.max_sge))
        })
    }
}

/// Adds a receive work request of a kernel consumer to its ring.
pub(crate) fn push(producer: &mut Producer, wr: &RecvWr<'_>, max_sge: u32) -> Result {
    if wr.num_sge > max_sge {
        return Err(EINVAL);
    }
    producer.push(
        &RecvWqe {
            wr_id: wr.wr_id,
            num_sge: wr.num_sge,
            reserved: 0,
        },
        wr.segments,
        &[],
    )
}

impl Srq {
    /// Takes the next work request, if there is one; `read` copies its entry.
    pub(crate) fn fetch<R>(
        this: ArcBorrow<'_, Self>,
        read: impl FnOnce(&Consumer) -> Option<R>,
    ) -> Option<R> {
        let mut queue = lock_bh(&this.queue);
        let queue = &mut *queue;
        let consumer = queue.consumer.as_mut()?;
        let waiting = match consumer.available() {
            Ok(0) => return None,
            Ok(waiting) => waiting,
            Err(_) => {
                // A ring with an impossible producer counter is treated as empty.
                SerialWork::<Self>::queue(this, ERROR);
                return None;
            }
        };
        let entry = read(consumer)?;
        consumer.advance();
        consumer.retire();
        // G-29
        if waiting <= queue.limit {
            queue.limit = 0;
            SerialWork::<Self>::queue(this, LIMIT_REACHED);
        }
        Some(entry)
    }

    /// Replaces the ring.
    fn change_ring(&self, ring: Ring) -> Result {
        // A program that posts during this call harms only itself. So the waiting entries can be
        // copied without the lock, while queue pairs continue to fetch from the old ring.
        let (old, first, count) = {
            let mut queue = lock_bh(&self.queue);
            let consumer = queue.consumer.as_mut().ok_or(EINVAL)?;
            let (first, count) = consumer.waiting()?;
            (consumer.ring.clone(), first, count)
        };
        if count > ring.capacity {
            return Err(EINVAL);
        }
        ring.copy_entries(&old, first, count)?;
        drop(old);
        let mut queue = lock_bh(&self.queue);
        let consumer = queue.consumer.as_mut().ok_or(EINVAL)?;
        let old = consumer.replace(ring, first.add(count));
        drop(queue);
        // Unpins the old ring, which may sleep.
        drop(old);
        Ok(())
    }
}

impl SerialTask for Srq {
    fn queue() -> Option<&'static ModuleWorkqueue> {
        Some(&EVENT_QUEUE)
    }

    fn round(this: ArcBorrow<'_, Self>, raised: u32) -> bool {
        if raised & LIMIT_REACHED != 0 {
            this.target.dispatch(SrqEvent::LimitReached);
        }
        if raised & ERROR != 0 {
            this.target.dispatch(SrqEvent::Error);
        }
        false
    }
}
