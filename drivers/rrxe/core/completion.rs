// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Results: of work requests, of the driver's actions, and of the calls into the core.

/// The status of a completed work request. The values are those of `enum ibv_wc_status` and
/// `enum ib_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Success = 0,
    /// The message does not fit into the receive work request, or a READ response has a length
    /// that was not asked for.
    LocLen = 1,
    /// An inconsistency in the queue pair or the work request.
    LocQpOp = 2,
    /// A data segment names memory that may not be used so.
    LocProt = 4,
    /// Not executed: the queue pair was in the Error (or SQE) state.
    WrFlush = 5,
    /// A memory window could not be bound.
    MwBind = 6,
    /// The responder answered with something that does not belong to the request.
    BadResp = 7,
    /// A protection error on a local buffer during a WRITE with immediate.
    LocAccess = 8,
    /// The responder calls the request invalid.
    RemInvReq = 9,
    /// The responder refuses access to the memory.
    RemAccess = 10,
    /// The responder could not do it.
    RemOp = 11,
    /// No answer after all retries.
    RetryExc = 12,
    /// The responder had no receive work request after all retries.
    RnrRetryExc = 13,
    /// Another failure of the transport.
    Fatal = 19,
    /// Anything else.
    General = 21,
}

/// Why an action of the driver failed on memory or keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Key, domain, range or rights.
    Protection,
    /// The work request itself is malformed.
    Malformed,
    /// Its length is none that the operation or the service allows.
    Length,
}

impl Fault {
    /// The status of a work request whose own memory failed so.
    #[inline]
    pub const fn status(self) -> Status {
        match self {
            Fault::Protection => Status::LocProt,
            Fault::Malformed => Status::LocQpOp,
            Fault::Length => Status::LocLen,
        }
    }
}

/// What the driver is to do after an event was handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Outcome {
    /// There is something to send: call `poll_transmit` (once, after the whole batch).
    pub transmit: bool,
    /// The queue pair must go to the Error state: flush both queues with `enter_error`.
    pub fatal: bool,
    /// The queue pair (UC or UD) must go to the Send Queue Error state.
    pub sqe: bool,
    /// The packet came before its turn and had no effect: it is worth keeping until then
    /// ([`crate::Reorder`]). A driver that drops it loses a packet, no more.
    pub hold: bool,
}

impl Outcome {
    /// Adds up the outcomes of a batch, but for `hold`, which is about one packet.
    #[inline]
    pub fn merge(&mut self, other: Outcome) {
        self.transmit |= other.transmit;
        self.fatal |= other.fatal;
        self.sqe |= other.sqe;
    }
}

/// What a call of `poll_transmit` did, and what the driver is to do next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Progress {
    /// Packets handed to the driver.
    pub sent: u32,
    /// Budget or room ran out: poll again.
    pub more: bool,
    /// The queue pair must go to the Error state: flush both queues with `enter_error`.
    pub fatal: bool,
    /// The queue pair (UC or UD) must go to the Send Queue Error state.
    pub sqe: bool,
}
