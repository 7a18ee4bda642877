// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The status of a responder: the cause of a standstill, for a person to read.

use super::{Responder, ResponderCounters, State};

/// The reason why a responder does not proceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecvLimit {
    /// None: it handles the next request.
    Nothing,
    /// The queue pair is not ready to receive.
    NotReady,
    /// The queue pair has failed.
    Error,
    /// Memory of the expected request is absent.
    PageFault,
    /// No receive work request was posted for the expected request, which was refused (RNR NAK).
    Rnr,
    /// The expected request is missing, and later ones have arrived (NAK Sequence Error).
    Gap,
}

impl RecvLimit {
    /// Returns the name, which `rdma resource show qp -dd` prints.
    pub const fn name(self) -> &'static core::ffi::CStr {
        match self {
            Self::Nothing => c"nothing",
            Self::NotReady => c"not-ready",
            Self::Error => c"error",
            Self::PageFault => c"page-fault",
            Self::Rnr => c"rnr",
            Self::Gap => c"gap",
        }
    }
}

impl<R> Responder<R> {
    /// Returns the reason why the responder does not proceed.
    pub fn limit(&self) -> RecvLimit {
        match self.state {
            State::Idle => RecvLimit::NotReady,
            State::Failing | State::Error => RecvLimit::Error,
            State::Ready if self.awaits_memory => RecvLimit::PageFault,
            State::Ready if self.not_ready => RecvLimit::Rnr,
            State::Ready if self.nak_outstanding => RecvLimit::Gap,
            State::Ready => RecvLimit::Nothing,
        }
    }
}

impl ResponderCounters {
    /// Adds other counts.
    pub fn add(&mut self, new: &Self) {
        for (total, new) in [
            (&mut self.duplicates, new.duplicates),
            (&mut self.out_of_sequence, new.out_of_sequence),
            (&mut self.rnr_naks, new.rnr_naks),
            (&mut self.dropped, new.dropped),
            (&mut self.access_errors, new.access_errors),
        ] {
            total.add(new.get());
        }
    }
}
