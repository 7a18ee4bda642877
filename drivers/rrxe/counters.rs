// SPDX-License-Identifier: GPL-2.0

//! The statistics of a port: `rdma statistic show link`, and hw_counters in sysfs.
//!
//! docs/counters.md says what each counts. Names are those of mlx5 where it has one that means the
//! same, else of another driver. What goes wrong with a packet is counted once, under one name.

use kernel::{c_str, prelude::*};
use linux_rdma::{rdma::attr::StatName, sync::PerCpuCounters};
use rrxe_core::{requester::RequesterCounters, responder::ResponderCounters, wire::Operation};

macro_rules! counters {
    ($($name:ident = $text:literal,)*) => {
        /// A statistic.
        #[derive(Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Counter {
            $($name,)*
        }

        /// All of them, in order.
        const ALL: &[Counter] = &[$(Counter::$name,)*];

        /// Their names, in order.
        pub(crate) const NAMES: &[StatName] = &[$(StatName::new(c_str!($text)),)*];
    };
}

counters! {
    SentPackets = "sent_pkts",
    SentBytes = "sent_bytes",
    SendErrors = "send_err",
    ReceivedPackets = "rcvd_pkts",
    ReceivedBytes = "rcvd_bytes",
    WriteRequests = "rx_write_requests",
    ReadRequests = "rx_read_requests",
    AtomicRequests = "rx_atomic_requests",
    Malformed = "rx_roce_error_pkts",
    BadIcrc = "rx_icrc_encapsulated",
    Discarded = "rx_roce_discard_pkts",
    DuplicateRequests = "duplicate_request",
    OutOfSequence = "out_of_sequence",
    OutOfBuffer = "out_of_buffer",
    RnrNaks = "rnr_nak_retry_err",
    SequenceNaks = "packet_seq_err",
    ImpliedNaks = "implied_nak_seq_err",
    AckTimeouts = "local_ack_timeout_err",
    Retransmitted = "retrans_pkts",
    RequesterErrors = "req_cqe_error",
    RequesterFlushes = "req_cqe_flush_error",
    ResponderErrors = "resp_cqe_error",
    ResponderFlushes = "resp_cqe_flush_error",
    MarkedPackets = "np_ecn_marked_roce_packets",
    NotificationsSent = "np_cnp_sent",
    NotificationsHandled = "rp_cnp_handled",
    NotificationsIgnored = "rp_cnp_ignored",
    Throttled = "rp_throttled",
    Doorbells = "sq_doorbells",
    WithoutIcrc = "same_host_pkts",
    Direct = "same_device_pkts",
    CarriedAcknowledgements = "acks_with_answers",
}

/// The counters of a port. All wrap at 2^64.
pub(crate) struct Counters(PerCpuCounters<{ ALL.len() }>);

impl Counters {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(PerCpuCounters::new()?))
    }

    /// Adds one.
    #[inline]
    pub(crate) fn count(&self, counter: Counter) {
        self.0.add(counter as usize, 1);
    }

    /// Adds `n`.
    #[inline]
    pub(crate) fn add(&self, counter: Counter, n: u64) {
        if n != 0 {
            self.0.add(counter as usize, n);
        }
    }

    /// Adds what the core's numbers, which wrap at 2^32, have grown by.
    #[inline]
    fn grow(&self, counter: Counter, before: u32, after: u32) {
        self.add(counter, after.wrapping_sub(before).into());
    }

    /// Adds what a requester has counted between two points in time.
    #[inline]
    pub(crate) fn requester(&self, before: &RequesterCounters, after: &RequesterCounters) {
        self.grow(
            Counter::Retransmitted,
            before.retransmitted,
            after.retransmitted,
        );
        self.grow(Counter::AckTimeouts, before.timeouts, after.timeouts);
        self.grow(
            Counter::SequenceNaks,
            before.sequence_naks,
            after.sequence_naks,
        );
        self.grow(Counter::RnrNaks, before.rnr_naks, after.rnr_naks);
        self.grow(
            Counter::ImpliedNaks,
            before.implied_naks,
            after.implied_naks,
        );
        self.grow(Counter::Discarded, before.dropped, after.dropped);
    }

    /// Adds what a responder has counted between two points in time.
    #[inline]
    pub(crate) fn responder(&self, before: &ResponderCounters, after: &ResponderCounters) {
        if before == after {
            return;
        }
        self.grow(
            Counter::DuplicateRequests,
            before.duplicates,
            after.duplicates,
        );
        self.grow(
            Counter::OutOfSequence,
            before.out_of_sequence,
            after.out_of_sequence,
        );
        self.grow(Counter::OutOfBuffer, before.rnr_naks, after.rnr_naks);
        self.grow(Counter::Discarded, before.dropped, after.dropped);
    }

    /// A request was taken: counts the kinds that have a counter.
    #[inline]
    pub(crate) fn request(&self, operation: Operation) {
        self.count(match operation {
            Operation::WriteFirst | Operation::WriteOnly | Operation::WriteOnlyImm => {
                Counter::WriteRequests
            }
            Operation::ReadRequest => Counter::ReadRequests,
            Operation::CompareSwap | Operation::FetchAdd => Counter::AtomicRequests,
            _ => return,
        });
    }

    /// All of them, in order.
    pub(crate) fn read(&self, values: &mut [u64]) {
        for (value, counter) in values.iter_mut().zip(ALL) {
            *value = self.0.sum(*counter as usize);
        }
    }
}
