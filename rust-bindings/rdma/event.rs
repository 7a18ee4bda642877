// SPDX-License-Identifier: GPL-2.0

//! Completion and asynchronous events, from a driver to the consumer of an object.
//!
//! Softirqs and timers of a driver may outlive the ib_core object that they report on: ib_core
//! frees it as soon as the destroy operation returns. So events go through a target, which the
//! abstraction closes before that: closing waits for callbacks under way, and events that come
//! later go nowhere.

use crate::{raw, sync::CallbackGate};
use core::{mem::ManuallyDrop, ptr::NonNull};
use kernel::{prelude::*, sync::Arc};

/// Where the events of an ib_core object `I` go.
#[pin_data]
pub struct Target<I> {
    object: NonNull<I>,
    #[pin]
    gate: CallbackGate,
}

/// Where the events of a completion queue go.
pub type CqTarget = Target<raw::ib_cq>;
/// Where the events of a queue pair go.
pub type QpTarget = Target<raw::ib_qp>;
/// Where the events of a shared receive queue go.
pub type SrqTarget = Target<raw::ib_srq>;

// SAFETY: The pointer is only used inside the gate, which ib_core's object outlives; the callbacks
// may be called from any context.
unsafe impl<I> Send for Target<I> {}
// SAFETY: The gate may be entered by any number of threads at a time.
unsafe impl<I> Sync for Target<I> {}

impl<I> Target<I> {
    /// # Safety
    ///
    /// `object` stays valid until `close` was called.
    pub(crate) unsafe fn new(object: NonNull<I>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                object,
                gate <- CallbackGate::new(),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Nobody is called any more after this; waits for who is being called.
    pub(crate) fn close(&self) {
        self.gate.close();
    }
}

impl CqTarget {
    /// A completion was added to an armed queue. Any context but hard interrupts; the consumer may
    /// call back into the driver, so no lock of the driver may be held.
    pub fn notify(&self) {
        let Some(_inside) = self.gate.enter() else {
            return;
        };
        let cq = self.object.as_ptr();
        // SAFETY: Inside the gate the ib_cq is valid. `comp_handler` was set before the driver's
        // create operation was called (verbs.c, uverbs_cmd.c) and takes the CQ and its context.
        unsafe {
            if let Some(handler) = (*cq).comp_handler {
                handler(cq, (*cq).cq_context);
            }
        }
    }

    /// The queue overflowed (`IB_EVENT_CQ_ERR`).
    pub fn error(&self) {
        let Some(_inside) = self.gate.enter() else {
            return;
        };
        let cq = self.object.as_ptr();
        // SAFETY: Inside the gate the ib_cq is valid; the handler only reads the event.
        unsafe {
            let mut event: raw::ib_event = core::mem::zeroed();
            event.device = (*cq).device;
            event.element.cq = ManuallyDrop::new(cq);
            event.event = raw::ib_event_type_IB_EVENT_CQ_ERR;
            if let Some(handler) = (*cq).event_handler {
                handler(&mut event, (*cq).cq_context);
            }
        }
    }
}

/// An asynchronous event of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum QpEvent {
    /// An error that stopped the queue pair (`IB_EVENT_QP_FATAL`).
    Fatal = raw::ib_event_type_IB_EVENT_QP_FATAL,
    /// A request that the transport forbids (`IB_EVENT_QP_REQ_ERR`).
    RequestError = raw::ib_event_type_IB_EVENT_QP_REQ_ERR,
    /// A remote access that was not permitted (`IB_EVENT_QP_ACCESS_ERR`).
    AccessError = raw::ib_event_type_IB_EVENT_QP_ACCESS_ERR,
    /// The first packet came before the move to RTS (`IB_EVENT_COMM_EST`).
    CommunicationEstablished = raw::ib_event_type_IB_EVENT_COMM_EST,
    /// The send queue has drained (`IB_EVENT_SQ_DRAINED`).
    SendQueueDrained = raw::ib_event_type_IB_EVENT_SQ_DRAINED,
    /// No more receives of a shared receive queue will be used (`IB_EVENT_QP_LAST_WQE_REACHED`).
    LastWqeReached = raw::ib_event_type_IB_EVENT_QP_LAST_WQE_REACHED,
}

impl QpTarget {
    /// The ib_qp for work completions: an identity, which is not followed here.
    pub(crate) fn as_ptr(&self) -> *mut raw::ib_qp {
        self.object.as_ptr()
    }

    /// Reports an event. Process context, no lock of the driver held: consumers are promised a
    /// workqueue (`struct ib_qp_init_attr`).
    pub fn dispatch(&self, event: QpEvent) {
        let Some(_inside) = self.gate.enter() else {
            return;
        };
        let qp = self.object.as_ptr();
        // SAFETY: Inside the gate the ib_qp is valid; ib_core set `event_handler` before the
        // driver's create operation (verbs.c, `create_qp()`), and it only reads the event.
        unsafe {
            let mut raw_event: raw::ib_event = core::mem::zeroed();
            raw_event.device = (*qp).device;
            raw_event.element.qp = ManuallyDrop::new(qp);
            raw_event.event = event as u32;
            if let Some(handler) = (*qp).event_handler {
                handler(&mut raw_event, (*qp).qp_context);
            }
        }
    }
}

/// An asynchronous event of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum SrqEvent {
    /// Fewer work requests than the limit are left (`IB_EVENT_SRQ_LIMIT_REACHED`).
    LimitReached = raw::ib_event_type_IB_EVENT_SRQ_LIMIT_REACHED,
    /// The queue can't be used any more (`IB_EVENT_SRQ_ERR`).
    Error = raw::ib_event_type_IB_EVENT_SRQ_ERR,
}

impl SrqTarget {
    /// Reports an event. No lock of the driver may be held: the consumer may call back.
    pub fn dispatch(&self, event: SrqEvent) {
        let Some(_inside) = self.gate.enter() else {
            return;
        };
        let srq = self.object.as_ptr();
        // SAFETY: Inside the gate the ib_srq is valid; ib_core set `event_handler` before the
        // driver's create operation (verbs.c, `ib_create_srq_user()`), and it only reads the event.
        unsafe {
            let mut raw_event: raw::ib_event = core::mem::zeroed();
            raw_event.device = (*srq).device;
            raw_event.element.srq = ManuallyDrop::new(srq);
            raw_event.event = event as u32;
            if let Some(handler) = (*srq).event_handler {
                handler(&mut raw_event, (*srq).srq_context);
            }
        }
    }
}
