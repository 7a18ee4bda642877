// SPDX-License-Identifier: GPL-2.0

//! Completion and asynchronous events from a driver to the consumer of an object.
//!
//! ib_core frees an object as soon as its destroy operation returns, but softirqs and timers of a
//! driver may run longer than that. So drivers report events through a target, which this module
//! closes first. Closing waits for running callbacks, and later events are dropped.

use crate::{raw, sync::Gate};
use core::ptr::NonNull;
use kernel::{prelude::*, sync::Arc};

/// The destination of the events of an ib_core object `I`.
pub struct Target<I> {
    object: NonNull<I>,
    gate: Gate,
}

/// The destination of the events of a completion queue.
pub type CqTarget = Target<raw::ib_cq>;
/// The destination of the events of a queue pair.
pub type QpTarget = Target<raw::ib_qp>;
/// The destination of the events of a shared receive queue.
pub type SrqTarget = Target<raw::ib_srq>;

// SAFETY: The pointer is used only inside the gate, which is closed before ib_core frees the
// object. The callbacks may be called from any context.
unsafe impl<I> Send for Target<I> {}
// SAFETY: Any number of threads may enter the gate at the same time.
unsafe impl<I> Sync for Target<I> {}

/// The owner of a target. Dropping it waits for running callbacks, and no callback is called after
/// that.
pub(super) struct OpenTarget<I>(pub(super) Arc<Target<I>>);

impl<I> OpenTarget<I> {
    /// Creates a target for the events of `object`.
    ///
    /// # Safety
    ///
    /// `object` stays valid until the result is dropped.
    pub(super) unsafe fn new(object: NonNull<I>) -> Result<Self> {
        let gate = Gate::open();
        Ok(Self(Arc::new(Target { object, gate }, GFP_KERNEL_ACCOUNT)?))
    }
}

impl<I> Drop for OpenTarget<I> {
    fn drop(&mut self) {
        self.0.gate.close();
    }
}

/// The asynchronous events of a completion queue.
#[repr(u32)]
pub enum CqEvent {
    /// The queue overflowed (`IB_EVENT_CQ_ERR`).
    Error = raw::ib_event_type_IB_EVENT_CQ_ERR,
}

/// The asynchronous events of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum QpEvent {
    /// An error that stopped the queue pair (`IB_EVENT_QP_FATAL`).
    Fatal = raw::ib_event_type_IB_EVENT_QP_FATAL,
    /// A peer's request violated the transport (`IB_EVENT_QP_REQ_ERR`).
    RequestError = raw::ib_event_type_IB_EVENT_QP_REQ_ERR,
    /// A peer's request was not permitted to access memory (`IB_EVENT_QP_ACCESS_ERR`).
    AccessError = raw::ib_event_type_IB_EVENT_QP_ACCESS_ERR,
    /// The first packet arrived before the transition to RTS (`IB_EVENT_COMM_EST`).
    CommunicationEstablished = raw::ib_event_type_IB_EVENT_COMM_EST,
    /// The send queue has drained (`IB_EVENT_SQ_DRAINED`).
    SendQueueDrained = raw::ib_event_type_IB_EVENT_SQ_DRAINED,
    /// The queue pair uses no further receives of its shared receive queue
    /// (`IB_EVENT_QP_LAST_WQE_REACHED`).
    LastWqeReached = raw::ib_event_type_IB_EVENT_QP_LAST_WQE_REACHED,
}

/// The asynchronous events of a shared receive queue.
#[repr(u32)]
pub enum SrqEvent {
    /// Fewer work requests are left than the limit (`IB_EVENT_SRQ_LIMIT_REACHED`).
    LimitReached = raw::ib_event_type_IB_EVENT_SRQ_LIMIT_REACHED,
    /// The queue is unusable (`IB_EVENT_SRQ_ERR`).
    Error = raw::ib_event_type_IB_EVENT_SRQ_ERR,
}

macro_rules! impl_dispatch {
    ($($object:ident: $event:ident, $element:ident, $context:ident;)*) => {$(
        impl Target<raw::$object> {
            /// Reports an asynchronous event, unless the target is closed. The caller must not hold
            /// a lock of the driver, because the consumer may call back. Events of queue pairs are
            /// reported in process context, as consumers expect (`struct ib_qp_init_attr`).
            pub fn dispatch(&self, event: $event) {
                let Some(_inside) = self.gate.enter() else {
                    return;
                };
                let object = self.object.as_ptr();
                let mut raw: raw::ib_event = pin_init::zeroed();
                raw.element.$element = object;
                raw.event = event as u32;
                // SAFETY: Inside the gate the object is valid. Its device never changes, and its
                // handler and context do not change once the consumer can use it (verbs.c,
                // `create_qp()`, `create_xrc_qp_user()`, `ib_create_srq_user()`,
                // `__ib_create_cq()`; cq.c, `__ib_alloc_cq()`; uverbs_cmd.c, `create_cq()`;
                // uverbs_std_types_cq.c). It has no events before. The handler only reads `raw`.
                unsafe {
                    raw.device = (*object).device;
                    if let Some(handler) = (*object).event_handler {
                        handler(&mut raw, (*object).$context);
                    }
                }
            }
        }
    )*};
}

impl_dispatch! {
    ib_cq: CqEvent, cq, cq_context;
    ib_qp: QpEvent, qp, qp_context;
    ib_srq: SrqEvent, srq, srq_context;
}

impl CqTarget {
    /// Reports that a completion was added to an armed queue. Any context but hard interrupts. The
    /// consumer may call back into the driver, so the caller must not hold a lock of the driver.
    pub fn notify(&self) {
        let Some(_inside) = self.gate.enter() else {
            return;
        };
        let cq = self.object.as_ptr();
        // SAFETY: Inside the gate the ib_cq is valid. `comp_handler` does not change either, and
        // takes the CQ and its context.
        unsafe {
            if let Some(handler) = (*cq).comp_handler {
                handler(cq, (*cq).cq_context);
            }
        }
    }
}

impl<I> Target<I> {
    /// Returns ib_core's object, or `None` once its destruction has closed the target.
    pub(super) fn object(&self) -> Option<NonNull<I>> {
        self.gate.is_open().then_some(self.object)
    }
}

/// A queue pair without a device, for tests. Dropping it destroys it.
#[cfg(CONFIG_KUNIT = "y")]
pub struct TestQp {
    // Dropped before the object.
    target: OpenTarget<raw::ib_qp>,
    object: KBox<raw::ib_qp>,
}

#[cfg(CONFIG_KUNIT = "y")]
impl TestQp {
    /// Creates a queue pair without a consumer.
    pub fn new() -> Result<Self> {
        let mut object = KBox::new(pin_init::zeroed::<raw::ib_qp>(), GFP_KERNEL)?;
        // SAFETY: The object is dropped after the target. It has no handler for events.
        let target = unsafe { OpenTarget::new(NonNull::from(&mut *object)) }?;
        Ok(Self { target, object })
    }

    /// Returns the target for its events.
    pub fn target(&self) -> &Arc<QpTarget> {
        &self.target.0
    }

    /// Returns whether a completion is of this queue pair.
    pub fn has(&self, wc: &super::wr::WcEntry) -> bool {
        core::ptr::eq(wc.0.qp, &raw const *self.object)
    }
}
