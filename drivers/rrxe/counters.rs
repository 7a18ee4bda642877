// SPDX-License-Identifier: GPL-2.0

//! The statistics of a port (`rdma statistic show link`, and hw_counters in sysfs) and of queue
//! pairs (`rdma statistic qp show`).
//!
//! docs/counters.md describes each counter. A counter has the name that mlx5 uses for the same
//! meaning, or else that of another driver. An error of a packet counts once, under one name.
//!
//! A queue pair also counts in one place only: in the counters bound to it, or else in those of its
//! device. ib_core adds up both for the port.

use crate::{limits, qp::Qp, verbs::device::DeviceState};
use kernel::{c_str, prelude::*, sync::Arc};
use linux_rdma::{
    rdma::attr::StatName,
    sync::{arc_borrow_ref, BurstGuard, PerCpuCounters},
};
use rrxe_core::{requester::RequesterCounters, responder::ResponderCounters, wire::Operation};

macro_rules! counters {
    ($($name:ident = $text:literal,)*) => {
        /// A statistic.
        #[derive(Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Counter {
            $($name,)*
        }

        /// The names of all statistics, in order.
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
    UnknownNumber = "rx_unknown_qp_pkts",
    Discarded = "rx_roce_discard_pkts",
    WrongKeys = "resp_remote_access_errors",
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
    CnpsSent = "np_cnp_sent",
    CnpsHandled = "rp_cnp_handled",
    CnpsIgnored = "rp_cnp_ignored",
    Throttled = "rp_throttled",
    Doorbells = "sq_doorbells",
    WithoutIcrc = "same_host_pkts",
    SameDevice = "same_device_pkts",
    PiggybackedAcks = "acks_piggybacked",
    RefusedLocally = "local_guard_drops",
}

/// Statistics of packets that have reached no queue pair.
pub(crate) const PORT_ONLY: &[usize] = &[
    Counter::Malformed as usize,
    Counter::BadIcrc as usize,
    Counter::UnknownNumber as usize,
    Counter::RefusedLocally as usize,
];

/// Adds each of the core's counters to a statistic.
macro_rules! add_all {
    ($to:ident, $new:ident: $($field:ident => $counter:ident,)*) => {
        $($to.add(Counter::$counter, $new.$field.into());)*
    };
}

/// The counters of a port, or of queue pairs. All wrap at 2^64.
pub(crate) struct Counters(PerCpuCounters<{ NAMES.len() }>);

impl Counters {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(PerCpuCounters::new()?))
    }

    #[inline]
    pub(crate) fn count(&self, counter: Counter) {
        self.0.add(counter as usize, 1);
    }

    #[inline]
    pub(crate) fn add(&self, counter: Counter, n: u64) {
        if n != 0 {
            self.0.add(counter as usize, n);
        }
    }

    /// Adds what a requester has counted.
    #[inline]
    pub(crate) fn requester(&self, new: &RequesterCounters) {
        add_all!(self, new:
            retransmitted => Retransmitted,
            timeouts => AckTimeouts,
            sequence_naks => SequenceNaks,
            rnr_naks => RnrNaks,
            implied_naks => ImpliedNaks,
            dropped => Discarded,
        );
    }

    /// Adds what a responder has counted.
    #[inline]
    pub(crate) fn responder(&self, new: &ResponderCounters) {
        add_all!(self, new:
            duplicates => DuplicateRequests,
            out_of_sequence => OutOfSequence,
            rnr_naks => OutOfBuffer,
            wrong_keys => WrongKeys,
            dropped => Discarded,
        );
    }

    /// Counts an accepted request, if its kind has a counter.
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

    /// Returns the value of the counter at an index.
    pub(crate) fn value(&self, stat: usize) -> u64 {
        self.0.sum(stat)
    }
}

/// ib_core's handle of counters that `rdma statistic` binds to queue pairs. Each queue pair has a
/// reference of its own.
pub(crate) struct QpCounters {
    pub(crate) counters: Arc<Counters>,
    pub(crate) number: u32,
}

impl QpCounters {
    /// Returns new counters with their number, which the caller must free.
    pub(crate) fn create(device: &DeviceState) -> Result<(Self, u32)> {
        let counters = Counters(PerCpuCounters::new_accounted()?);
        let counters = Arc::new(counters, GFP_KERNEL_ACCOUNT)?;
        // At least one queue pair is bound to each set of counters.
        let number = device
            .counter_numbers
            .alloc(1..=limits::MAX_QP, GFP_KERNEL_ACCOUNT)?;
        Ok((Self { counters, number }, number))
    }
}

impl Qp {
    #[inline]
    pub(crate) fn count(&self, counter: Counter) {
        self.with_counters(|counters| counters.count(counter));
    }

    /// Calls `count` with the counters in which the queue pair counts. Must be called with
    /// interrupts enabled.
    #[inline]
    pub(crate) fn with_counters(&self, count: impl FnOnce(&Counters)) {
        if self.counters.is_empty() {
            count(&self.device.counters);
        } else {
            self.with_bound_counters(count);
        }
    }

    /// Calls `count` with the bound counters of the queue pair.
    #[cold]
    #[inline(never)]
    fn with_bound_counters(&self, count: impl FnOnce(&Counters)) {
        let burst = BurstGuard::enter();
        let bound = self.counters.get(&burst).map(arc_borrow_ref);
        // The counters may be unbound meanwhile.
        count(bound.unwrap_or(&self.device.counters));
    }
}
