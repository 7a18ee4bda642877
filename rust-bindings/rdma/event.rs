// SPDX-License-Identifier: GPL-2.0

//! Completion and asynchronous events from a driver to the consumer of an object.
//!
//! ib_core frees an object as soon as its destroy operation returns, but softirqs and timers of a
//! driver may run longer than that. So drivers report events through a target, which this module
//! closes first. Closing waits for running callbacks, and later events are dropped.

use crate::{raw, sync::Gate};
use core::ptr::NonNull;
use kernel::{ffi::c_void, prelude::*, sync::Arc};

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

impl<I> Target<I> {
    /// Creates a target for the events of `object`.
    ///
    /// # Safety
    ///
    /// `object` stays valid until `close` is called.
    pub(crate) unsafe fn new(object: NonNull<I>) -> Result<Arc<Self>> {
        let gate = Gate::open();
        Ok(Arc::new(Self { object, gate }, GFP_KERNEL_ACCOUNT)?)
    }

    /// Waits for running callbacks. No callback is called after this returns.
    pub(crate) fn close(&self) {
        self.gate.close();
    }
}

/// The consumer's handler of an object's events.
type Handler = Option<unsafe extern "C" fn(*mut raw::ib_event, *mut c_void)>;

/// An ib_core object that has asynchronous events.
trait Source: Sized {
    /// Returns an event of type `event`, and the consumer's handler with its context.
    ///
    /// # Safety
    ///
    /// `object` is valid.
    unsafe fn event(object: *mut Self, event: u32) -> (raw::ib_event, Handler, *mut c_void);
}

macro_rules! sources {
    ($($object:ident: $element:ident, $context:ident;)*) => {$(
        impl Source for raw::$object {
            unsafe fn event(object: *mut Self, event: u32) -> (raw::ib_event, Handler, *mut c_void) {
                let mut raw: raw::ib_event = pin_init::zeroed();
                raw.element.$element = object;
                raw.event = event;
                // SAFETY: The caller guarantees that the object is valid. Its device never changes,
                // and its handler and context do not change once the consumer can use it (verbs.c,
                // `create_qp()`, `create_xrc_qp_user()`, `ib_create_srq_user()`,
                // `__ib_create_cq()`; cq.c, `__ib_alloc_cq()`; uverbs_cmd.c, `create_cq()`;
                // uverbs_std_types_cq.c). It has no events before.
                unsafe {
                    raw.device = (*object).device;
                    (raw, (*object).event_handler, (*object).$context)
                }
            }
        }
    )*};
}

sources! {
    ib_cq: cq, cq_context;
    ib_qp: qp, qp_context;
    ib_srq: srq, srq_context;
}

/// Reports an event, unless the target is closed.
fn report<I: Source>(target: &Target<I>, event: u32) {
    let Some(_inside) = target.gate.enter() else {
        return;
    };
    // SAFETY: Inside the gate the object is valid. The handler only reads the event.
    unsafe {
        if let (mut event, Some(handler), context) = I::event(target.object.as_ptr(), event) {
            handler(&mut event, context);
        }
    }
}

impl CqTarget {
    /// Reports that a completion was added to an armed queue. Any context but hard interrupts. The
    /// consumer may call back into the driver, so the caller must not hold a lock of the driver.
    pub fn notify(&self) {
        let Some(_inside) = self.gate.enter() else {
            return;
        };
        let cq = self.object.as_ptr();
        // SAFETY: Inside the gate the ib_cq is valid. `comp_handler` was set before the consumer
        // could use the CQ (verbs.c, `__ib_create_cq()`; cq.c, `__ib_alloc_cq()`; uverbs_cmd.c,
        // `create_cq()`; uverbs_std_types_cq.c), and takes the CQ and its context.
        unsafe {
            if let Some(handler) = (*cq).comp_handler {
                handler(cq, (*cq).cq_context);
            }
        }
    }

    /// Reports that the queue overflowed (`IB_EVENT_CQ_ERR`).
    pub fn error(&self) {
        report(self, raw::ib_event_type_IB_EVENT_CQ_ERR);
    }
}

/// An asynchronous event of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

impl QpTarget {
    /// Returns the ib_qp for work completions. It serves as an identity and is not dereferenced.
    pub(crate) fn as_ptr(&self) -> *mut raw::ib_qp {
        self.object.as_ptr()
    }

    /// Reports an event. Called in process context without a lock of the driver: consumers expect a
    /// workqueue (`struct ib_qp_init_attr`).
    pub fn dispatch(&self, event: QpEvent) {
        report(self, event as u32);
    }
}

/// An asynchronous event of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum SrqEvent {
    /// Fewer work requests are left than the limit (`IB_EVENT_SRQ_LIMIT_REACHED`).
    LimitReached = raw::ib_event_type_IB_EVENT_SRQ_LIMIT_REACHED,
    /// The queue is unusable (`IB_EVENT_SRQ_ERR`).
    Error = raw::ib_event_type_IB_EVENT_SRQ_ERR,
}

impl SrqTarget {
    /// Reports an event. The caller must not hold a lock of the driver, because the consumer may
    /// call back.
    pub fn dispatch(&self, event: SrqEvent) {
        report(self, event as u32);
    }
}
