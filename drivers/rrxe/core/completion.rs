// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Results of work requests, of the driver's actions, and of calls into the core.

/// The status of a completed work request. The values are those of `enum ibv_wc_status` and
/// `enum ib_wc_status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Done.
    #[default]
    Success = 0,
    /// The message exceeds the receive work request, or a READ response has a wrong length.
    LocLen = 1,
    /// An inconsistency in the queue pair or the work request.
    LocQpOp = 2,
    /// A data segment refers to memory that may not be accessed this way.
    LocProt = 4,
    /// Not executed: the queue pair was in the Error (or SQE) state.
    WrFlush = 5,
    /// A memory window could not be bound.
    MwBind = 6,
    /// The response does not match the request.
    BadResp = 7,
    /// A protection error on a local buffer during a WRITE with immediate.
    LocAccess = 8,
    /// The responder rejected the request as invalid.
    RemInvReq = 9,
    /// The responder refused access to the memory.
    RemAccess = 10,
    /// The responder failed to execute the request.
    RemOp = 11,
    /// No response after all retries.
    RetryExc = 12,
    /// The responder had no receive work request after all retries.
    RnrRetryExc = 13,
    /// Another failure of the transport.
    Fatal = 19,
    /// Anything else.
    General = 21,
}

impl Status {
    /// Returns the name: that in `enum ibv_wc_status` without `IBV_WC_`.
    pub const fn name(self) -> &'static core::ffi::CStr {
        match self {
            Self::Success => c"SUCCESS",
            Self::LocLen => c"LOC_LEN_ERR",
            Self::LocQpOp => c"LOC_QP_OP_ERR",
            Self::LocProt => c"LOC_PROT_ERR",
            Self::WrFlush => c"WR_FLUSH_ERR",
            Self::MwBind => c"MW_BIND_ERR",
            Self::BadResp => c"BAD_RESP_ERR",
            Self::LocAccess => c"LOC_ACCESS_ERR",
            Self::RemInvReq => c"REM_INV_REQ_ERR",
            Self::RemAccess => c"REM_ACCESS_ERR",
            Self::RemOp => c"REM_OP_ERR",
            Self::RetryExc => c"RETRY_EXC_ERR",
            Self::RnrRetryExc => c"RNR_RETRY_EXC_ERR",
            Self::Fatal => c"FATAL_ERR",
            Self::General => c"GENERAL_ERR",
        }
    }
}

/// Reason for the failure of a driver's action on memory or keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Wrong key, domain, range or rights.
    Protection,
    /// The work request itself is malformed.
    Malformed,
    /// The operation or the service does not allow its length.
    Length,
    /// The access is allowed, but a page of the memory is absent now. No part of the operation
    /// counts as executed, although some bytes may have been copied. The driver calls
    /// `on_memory_present` of the half once all of the memory of the access is present. If that
    /// cannot be achieved, the access fails with [`Fault::Protection`] from then on.
    NotPresent,
}

impl Fault {
    /// Returns the status of a work request whose own memory failed with this fault. Absent memory
    /// completes no work request.
    #[inline]
    pub const fn status(self) -> Status {
        debug_assert!(
            !matches!(self, Fault::NotPresent),
            "absent memory completes a work request"
        );
        match self {
            Fault::Protection | Fault::NotPresent => Status::LocProt,
            Fault::Malformed => Status::LocQpOp,
            Fault::Length => Status::LocLen,
        }
    }
}

/// Actions for the driver after an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Outcome {
    /// There is something to send: call `poll_transmit` (once, after the whole batch).
    pub transmit: bool,
    /// The queue pair must go to the Error state: flush both queues with `enter_error`.
    pub fatal: bool,
    /// The queue pair (UC or UD) must go to the Send Queue Error state.
    pub sqe: bool,
    /// The packet is out of order and had no effect: the driver should buffer it until its turn
    /// ([`crate::Reorder`]). To drop it is harmless: the packet is lost and will be retransmitted.
    pub buffer: bool,
}

impl Outcome {
    /// Returns an outcome that says only whether there may be something to send.
    #[inline]
    pub fn transmit(transmit: bool) -> Outcome {
        Outcome {
            transmit,
            ..Outcome::default()
        }
    }

    /// Merges the outcomes of a batch, except `buffer`, which concerns a single packet.
    #[inline]
    pub fn merge(&mut self, other: Outcome) {
        self.transmit |= other.transmit;
        self.fatal |= other.fatal;
        self.sqe |= other.sqe;
        debug_assert!(!self.fatal || !self.sqe, "two error states at once");
    }
}

/// Result of a call of `poll_transmit`, and actions for the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Progress {
    /// Packets handed to the driver.
    pub sent: u32,
    /// The budget or the space ran out: poll again.
    pub more: bool,
    /// The queue pair must go to the Error state: flush both queues with `enter_error`.
    pub fatal: bool,
    /// The queue pair (UC or UD) must go to the Send Queue Error state.
    pub sqe: bool,
}

impl Progress {
    /// Returns how many packets of this budget are left.
    #[inline]
    pub(crate) fn left(&self, budget: u32) -> u32 {
        let left = budget.checked_sub(self.sent);
        debug_assert!(left.is_some(), "more packets were sent than permitted");
        left.unwrap_or(0)
    }

    /// Counts packets handed to the driver.
    #[inline]
    pub(crate) fn note_sent(&mut self, packets: u32) {
        self.sent = self.sent.wrapping_add(packets);
    }
}
