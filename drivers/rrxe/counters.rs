// SPDX-License-Identifier: GPL-2.0

//! The statistics of a port (`rdma statistic show link`, and hw_counters in sysfs) and of queue
//! pairs (`rdma statistic qp show`).
//!
//! docs/counters.md describes each counter. A counter has the name that mlx5 uses for the same
//! meaning, or else that of another driver. An error of a packet counts once, under one name.
//!
//! A queue pair also counts in one place only: in the counters bound to it, or else in those of its
//! device. ib_core adds up both for the port, as do the responses to management datagrams.

use crate::limits;
use kernel::{
    c_str, new_mutex,
    prelude::*,
    sync::{Arc, Mutex},
};
use linux_rdma::{
    rdma::attr::StatName,
    sync::{IndexPool, PerCpuCounters},
};
use rrxe_core::{
    pma::PortCounters, requester::RequesterCounters, responder::ResponderCounters, wire::Operation,
};

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
    AccessErrors = "resp_remote_access_errors",
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
    RateReductions = "rp_rate_reductions",
    WindowReductions = "rp_window_reductions",
    Doorbells = "sq_doorbells",
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
        $($to.add(Counter::$counter, $new.$field.get().into());)*
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
            window_reductions => WindowReductions,
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
            access_errors => AccessErrors,
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
    number: u32,
}

/// The counters of a device that are or were bound to queue pairs. ib_core adds them to the port's
/// statistics by itself, but exports no function that returns the sum.
#[pin_data]
pub(crate) struct BoundCounters {
    /// Allocator of the numbers of counters.
    #[pin]
    numbers: IndexPool,
    #[pin]
    all: Mutex<AllBound>,
}

/// The current counters, and the values of former ones.
struct AllBound {
    current: KVVec<Arc<Counters>>,
    /// The sum of the last values of those that were destroyed.
    former: [u64; NAMES.len()],
}

impl BoundCounters {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            numbers <- IndexPool::new(),
            all <- new_mutex!(AllBound {
                current: KVVec::new(),
                former: [0; NAMES.len()],
            }, "rrxe_bound_counters"),
        })
    }

    /// Returns new counters with their number. The caller must call [`destroy`](Self::destroy).
    pub(crate) fn create(&self) -> Result<(QpCounters, u32)> {
        let counters = Counters(PerCpuCounters::new_accounted()?);
        let counters = Arc::new(counters, GFP_KERNEL_ACCOUNT)?;
        // At least one queue pair is bound to each set of counters.
        let number = self.numbers.alloc(1..=limits::MAX_QP, GFP_KERNEL_ACCOUNT)?;
        if let Err(error) = self.all.lock().add(&counters) {
            self.numbers.free(number);
            return Err(error);
        }
        Ok((QpCounters { counters, number }, number))
    }

    /// Frees the number of counters, and keeps their values. No queue pair is bound to them.
    pub(crate) fn destroy(&self, counters: &QpCounters) {
        self.all.lock().remove(&counters.counters);
        self.numbers.free(counters.number);
    }

    /// Returns the counters of the port for management datagrams; `own` counts the packets of the
    /// device that no bound counter counts. Each equals the statistic of the port that ib_core
    /// shows, and an error of a packet counts once. Sleeps.
    pub(crate) fn port(&self, own: &Counters) -> PortCounters {
        let bound = self.all.lock();
        let value = |counter| {
            let stat = counter as usize;
            sum([own.value(stat), bound.value(stat)])
        };
        PortCounters {
            sent_bytes: value(Counter::SentBytes),
            received_bytes: value(Counter::ReceivedBytes),
            sent_packets: value(Counter::SentPackets),
            received_packets: value(Counter::ReceivedPackets),
            receive_errors: sum([value(Counter::Malformed), value(Counter::BadIcrc)]),
            send_discards: value(Counter::SendErrors),
        }
    }
}

impl AllBound {
    fn add(&mut self, counters: &Arc<Counters>) -> Result {
        // The memory is not charged to the caller: others must not wait with this lock until the
        // caller's control group has memory.
        Ok(self.current.push(counters.clone(), GFP_KERNEL)?)
    }

    fn remove(&mut self, counters: &Arc<Counters>) {
        for (stat, former) in self.former.iter_mut().enumerate() {
            *former = sum([*former, counters.value(stat)]);
        }
        self.current.retain(|other| !Arc::ptr_eq(other, counters));
    }

    fn value(&self, stat: usize) -> u64 {
        let former = sum(self.former.get(stat).copied());
        let current = self.current.iter().map(|counters| counters.value(stat));
        sum([former, sum(current)])
    }
}

/// Returns the sum of statistics, which wraps as they do.
fn sum(stats: impl IntoIterator<Item = u64>) -> u64 {
    stats.into_iter().fold(0, u64::wrapping_add)
}
