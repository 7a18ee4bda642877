// SPDX-License-Identifier: GPL-2.0

//! The details of a queue pair that `rdma resource show qp -dd` prints: why it sends nothing or
//! receives nothing, and what it has counted since it was created.

use super::{Half, Qp};
use kernel::prelude::*;
use linux_rdma::{rdma::Details, sync::lock_bh, time::monotonic_ns};
use rrxe_core::{requester::SendLimit, responder::RecvLimit, Span, Time};

/// Bits of a byte.
const BITS: u64 = 8;

/// Returns whole microseconds.
fn us(span: Span) -> u64 {
    span.ns() / 1000
}

impl Qp {
    /// Adds the details.
    pub(crate) fn describe(&self, to: &mut Details<'_>) -> Result {
        self.describe_send(to)?;
        self.describe_recv(to)
    }

    fn describe_send(&self, to: &mut Details<'_>) -> Result {
        let now = Time::from_ns(monotonic_ns());
        let (status, totals, posted, buffered, rate, error, fault) = {
            let mut side = lock_bh(&self.send);
            let posted = side.consumer.as_ref().map_or(0, |ring| ring.backlog());
            let buffered = side.reorder_buffer().len();
            let rate = side.requester.congestion.rate.limit(now);
            let status = side.requester.status(&side.slots);
            let fault = side.page_wait.is_waiting();
            (
                status,
                side.totals,
                posted,
                buffered,
                rate,
                side.last_error,
                fault,
            )
        };
        let limit = match status.limit {
            limit @ (SendLimit::NotReady | SendLimit::Error) => limit.name(),
            _ if fault => SendLimit::PageFault.name(),
            limit @ SendLimit::NoRequest if posted == 0 => limit.name(),
            // Packets of this queue pair, or of others, fill the queue of this host.
            SendLimit::Nothing | SendLimit::NoRequest if self.local.is_blocked() => c"local-queue",
            SendLimit::NoRequest => SendLimit::Nothing.name(),
            limit => limit.name(),
        };
        to.text(c"sq_limited_by", limit)?;
        if let Some(error) = error {
            to.text(c"sq_last_error", error.name())?;
        }
        to.number(
            c"sq_requests",
            status.requests.saturating_add(posted).into(),
        )?;
        to.number(c"sq_local_queue", self.local.len().into())?;
        if !self.qp_type.is_connected() {
            return Ok(());
        }
        to.number(c"sq_psn_una", status.una.get().into())?;
        to.number(c"sq_psn_next", status.next.get().into())?;
        to.number(c"sq_in_flight", status.in_flight.into())?;
        to.number(c"sq_window", status.window.into())?;
        to.number(c"sq_reads", status.reads.into())?;
        to.number(c"sq_srtt_us", us(status.srtt))?;
        to.number(c"sq_rttvar_us", us(status.rttvar))?;
        to.number(c"sq_min_rtt_us", us(status.min_rtt))?;
        if let Some(rate) = rate {
            to.number(c"sq_rate_bps", rate.saturating_mul(BITS))?;
        }
        to.number(c"sq_retries_left", status.retries_left.into())?;
        to.number(c"sq_rnr_retries_left", status.rnr_retries_left.into())?;
        to.number(c"sq_retransmitted", totals.retransmitted.get().into())?;
        to.number(c"sq_timeouts", totals.timeouts.get().into())?;
        to.number(c"sq_probes", totals.probes.get().into())?;
        to.number(c"sq_seq_naks", totals.sequence_naks.get().into())?;
        to.number(c"sq_rnr_naks", totals.rnr_naks.get().into())?;
        to.number(c"sq_dropped", totals.dropped.get().into())?;
        to.number(c"sq_buffered", buffered.into())
    }

    fn describe_recv(&self, to: &mut Details<'_>) -> Result {
        let (limit, expected, msn, totals, posted, buffered) = {
            let mut side = lock_bh(&self.recv);
            let posted = side.consumer.as_ref().map(|ring| ring.backlog());
            let buffered = side.reorder_buffer().len();
            let responder = &side.responder;
            let (expected, msn) = (responder.expected_psn(), responder.msn);
            let limit = match responder.limit() {
                // The memory of a READ response may be absent, too.
                RecvLimit::Nothing if side.page_wait.is_waiting() => RecvLimit::PageFault,
                limit => limit,
            };
            (limit, expected, msn, side.totals, posted, buffered)
        };
        to.text(c"rq_limited_by", limit.name())?;
        if let Some(posted) = posted {
            to.number(c"rq_posted", posted.into())?;
        }
        to.number(c"rq_dropped", totals.dropped.get().into())?;
        if !self.qp_type.is_connected() {
            return Ok(());
        }
        to.number(c"rq_psn", expected.into())?;
        to.number(c"rq_msn", msn.get().into())?;
        to.number(c"rq_duplicates", totals.duplicates.get().into())?;
        to.number(c"rq_seq_naks", totals.out_of_sequence.get().into())?;
        to.number(c"rq_rnr_naks", totals.rnr_naks.get().into())?;
        to.number(c"rq_access_errors", totals.access_errors.get().into())?;
        to.number(c"rq_buffered", buffered.into())
    }
}
