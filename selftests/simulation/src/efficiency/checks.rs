// SPDX-License-Identifier: GPL-2.0

//! The rules of efficient flows. Each check explains its rule; the bounds leave a margin to the
//! worst of 20,000 seeds.

use super::config::{Config, Marking, Path, Peers, Trouble, MS};
use super::net::{Counts, Net};
use rrxe_core::requester::{ack_timeout, RequesterCounters, MIN_ACK_TIMEOUT};
use rrxe_core::Status;
use rrxe_testkit::{Op, Request};

/// A part of the time, measured.
#[derive(Clone, Debug)]
pub(super) struct Period {
    pub path: Path,
    pub time: u64,
    pub counts: Counts,
    /// Packets acknowledged of each flow.
    pub acknowledged: Vec<u64>,
    /// Share of the bottleneck that is used.
    pub used: f64,
    /// Jain's index of fairness.
    pub fairness: f64,
    pub retransmitted: u64,
    pub probes: u64,
    pub timeouts: u64,
    pub naks: u64,
    /// Longest time without progress of any flow.
    pub stall: u64,
    /// The window or the rate of a flow was reduced.
    pub reduced: bool,
    pub windows: Vec<u32>,
}

/// All measurements of a seed.
#[derive(Clone, Debug)]
pub(super) struct Report {
    pub config: Config,
    pub warm_up: Period,
    /// The first and the second half of the disturbance.
    pub adapting: Period,
    pub disturbed: Period,
    /// The quiet period, after some time to settle.
    pub quiet: Period,
}

fn total(net: &Net, of: impl Fn(&RequesterCounters) -> u32) -> u64 {
    let counters = net
        .flows
        .iter()
        .map(|flow| &flow.hosts[0].requester.counters);
    counters.map(|counters| u64::from(of(counters))).sum()
}

impl Period {
    /// Starts to measure.
    pub fn start(net: &mut Net) -> Period {
        for flow in &mut net.flows {
            flow.stall = 0;
            flow.reduced = false;
            flow.progress_at = net.now;
        }
        Period {
            path: net.path,
            time: net.now,
            counts: Counts {
                longest_queue: 0,
                ..net.counts
            },
            acknowledged: net.flows.iter().map(|flow| flow.acknowledged).collect(),
            used: 0.0,
            fairness: 0.0,
            retransmitted: total(net, |counters| counters.retransmitted.get()),
            probes: total(net, |counters| counters.probes.get()),
            timeouts: total(net, |counters| counters.timeouts.get()),
            naks: total(net, |counters| {
                counters.sequence_naks.get() + counters.implied_naks.get()
            }),
            stall: 0,
            reduced: false,
            windows: Vec::new(),
        }
    }

    /// Ends the measurement.
    pub fn end(self, net: &Net) -> Period {
        let (now, then) = (&net.counts, &self.counts);
        let time = net.now - self.time;
        let flows = net.flows.iter().zip(&self.acknowledged);
        let acknowledged: Vec<_> = flows.map(|(flow, then)| flow.acknowledged - then).collect();
        let sum = acknowledged.iter().sum::<u64>() as f64;
        let squares: f64 = acknowledged.iter().map(|&n| n as f64 * n as f64).sum();
        Period {
            time,
            counts: Counts {
                data: now.data - then.data,
                returned: now.returned - then.returned,
                dropped: now.dropped - then.dropped,
                lost: now.lost - then.lost,
                marked: now.marked - then.marked,
                notifications: now.notifications - then.notifications,
                longest_queue: now.longest_queue,
                queued: now.queued - then.queued,
                requests: now.requests - then.requests,
            },
            used: sum * self.path.service as f64 / time as f64,
            fairness: sum * sum / (squares * acknowledged.len() as f64),
            acknowledged,
            retransmitted: total(net, |counters| counters.retransmitted.get()) - self.retransmitted,
            probes: total(net, |counters| counters.probes.get()) - self.probes,
            timeouts: total(net, |counters| counters.timeouts.get()) - self.timeouts,
            naks: total(net, |counters| {
                counters.sequence_naks.get() + counters.implied_naks.get()
            }) - self.naks,
            stall: net.flows.iter().map(|flow| flow.stall).max().unwrap_or(0),
            reduced: net.flows.iter().any(|flow| flow.reduced),
            windows: net.flows.iter().map(|flow| flow.window).collect(),
            ..self
        }
    }
}

/// Checks the measurements of a seed.
pub(super) fn check(report: &Report) {
    nothing_is_sent_again(report);
    nothing_is_reduced(report);
    reordering_is_tolerated(report);
    losses_are_repaired_once(report);
    the_path_is_used(report);
    the_path_is_shared(report);
    flows_get_on(report);
    acknowledgements_are_few(report);
    marks_keep_the_queue_short(report);
}

impl Report {
    /// Returns whether all hosts buffer out-of-order packets.
    fn buffers(&self) -> bool {
        self.config.peers == Peers::Buffer
    }

    /// Returns whether round trips are measured well. While two READs are outstanding, none is, so
    /// the probe timeout of READs is too short on a path that is longer than its minimum.
    fn has_round_trips(&self) -> bool {
        self.config.op != Op::Read || self.config.is_short()
    }

    /// Returns the periods without loss, marks and reordering, to which no earlier trouble leads.
    ///
    /// A peer that drops out-of-order packets may make one packet good for each round trip, for as
    /// long as the flow lasts. An overflow may leave a gap after every other packet, and each takes
    /// a round trip.
    fn clean(&self) -> impl Iterator<Item = &Period> {
        let warm_up = !matches!(self.config.trouble, Trouble::Overflow | Trouble::Marks);
        let quiet = match self.config.trouble {
            Trouble::Nothing => true,
            Trouble::Overflow | Trouble::Marks | Trouble::All => false,
            Trouble::Reordering | Trouble::Loss | Trouble::Change => self.buffers(),
        };
        let warm_up = warm_up.then_some(&self.warm_up);
        warm_up.into_iter().chain(quiet.then_some(&self.quiet))
    }
}

/// Without drops and reordering, nothing is sent again, a few round trips after the last trouble.
/// If round trips are longer than the shortest probe timeout and vary little, some probes are too
/// early. No round trip is measured while each has such a probe.
fn nothing_is_sent_again(report: &Report) {
    for period in report.clean().filter(|_| report.has_round_trips()) {
        let allowed = match report.config.is_short() {
            true => 0,
            false => 4 + period.counts.data / 8,
        };
        assert!(
            period.retransmitted <= allowed,
            "without any loss, {} of {} packets are sent again",
            period.retransmitted,
            period.counts.data
        );
        assert_eq!(
            period.timeouts, 0,
            "without any loss, acknowledge timers expire"
        );
    }
}

/// Without loss and marks, neither window nor rate is ever reduced, not even by probes that are too
/// early.
fn nothing_is_reduced(report: &Report) {
    for period in report.clean() {
        assert!(
            !period.reduced,
            "without any loss, the window or the rate is reduced"
        );
    }
}

/// With reordering alone, hardly anything is sent again once the tolerance has adapted. If each
/// packet asks for an acknowledgement, it cannot be told from a retransmission, and the tolerance
/// adapts only by superfluous ones.
fn reordering_is_tolerated(report: &Report) {
    let config = &report.config;
    if config.trouble != Trouble::Reordering || !report.buffers() || !report.has_round_trips() {
        return;
    }
    let period = &report.disturbed;
    let allowed = if config.packets() == 1 { 20 } else { 5 };
    assert!(
        period.retransmitted * 100 <= period.counts.data * allowed,
        "with reordering alone, {} of {} packets are sent again",
        period.retransmitted,
        period.counts.data
    );
}

/// A lost packet is sent again about once.
fn losses_are_repaired_once(report: &Report) {
    let (config, path) = (&report.config, &report.disturbed.path);
    let simple = path.spray == 0 && path.back_loss <= 10;
    if config.trouble != Trouble::Loss || !report.buffers() || !simple || !report.has_round_trips()
    {
        return;
    }
    let period = &report.disturbed;
    let probes = if config.is_short() {
        0
    } else {
        period.counts.data / 50
    };
    let allowed = 10 + period.counts.lost * 3 / 2 + probes;
    assert!(
        period.retransmitted <= allowed,
        "{} packets were lost, and {} were sent again",
        period.counts.lost,
        period.retransmitted
    );
}

/// A bottleneck is used if the flows have enough work requests and, if its queue overflows, the
/// queue is long enough.
fn the_path_is_used(report: &Report) {
    let config = &report.config;
    if !config.fills_the_path() || !report.has_round_trips() {
        return;
    }
    let used = |period: &Period, least: f64| {
        let used = period.used;
        assert!(
            used >= least,
            "only {:.0} % of the path are used",
            used * 100.0
        );
    };
    match config.trouble {
        Trouble::Marks if config.op == Op::Read => {}
        Trouble::Marks if report.quiet.path.marking == Marking::None => {
            used(&report.quiet, 0.6);
        }
        Trouble::Marks => used(&report.quiet, 0.4),
        Trouble::Nothing if !report.buffers() => used(&report.quiet, 0.3),
        _ if !report.buffers() => {}
        Trouble::Nothing => {
            used(&report.warm_up, 0.6);
            used(&report.adapting, 0.9);
            used(&report.quiet, 0.9);
        }
        Trouble::Reordering => {
            used(
                &report.disturbed,
                if config.packets() == 1 { 0.5 } else { 0.9 },
            );
            used(&report.quiet, 0.9);
        }
        Trouble::Loss => {
            let path = &report.disturbed.path;
            let (least, least_after) = match (path.loss, path.back_loss) {
                (0 | 1, 0..=10) => (0.6, 0.9),
                (0 | 1, _) => (0.1, 0.9),
                (_, 0..=10) => (0.2, 0.5),
                _ => (0.02, 0.5),
            };
            used(&report.disturbed, least);
            used(&report.quiet, least_after);
        }
        Trouble::Change => used(&report.quiet, 0.6),
        // An overflow in slow start may leave a gap after every other packet, and each takes a
        // round trip.
        Trouble::Overflow if report.has_long_queue() && !report.repairs_old_losses() => {
            used(&report.quiet, 0.3);
        }
        Trouble::Overflow | Trouble::All => {}
    }
}

impl Report {
    /// Returns whether most of the retransmissions are for packets that were lost long before.
    fn repairs_old_losses(&self) -> bool {
        self.quiet.retransmitted > 2 * self.quiet.counts.dropped + 10
    }

    /// Returns whether the queue of the bottleneck holds the packets that go through it in two
    /// round trips, and enough of each flow.
    fn has_long_queue(&self) -> bool {
        let path = &self.quiet.path;
        let polls = 2 * self.config.poll / path.service;
        let enough = (2 * path.capacity())
            .max(64 * self.config.flows as u64)
            .max(2 * polls);
        path.queue as u64 >= enough
    }
}

/// Flows share a bottleneck fairly, some time after the last trouble.
fn the_path_is_shared(report: &Report) {
    let config = &report.config;
    if !config.fills_the_path() || config.op == Op::Read || !report.buffers() {
        return;
    }
    let least = match config.trouble {
        Trouble::Nothing | Trouble::Reordering => 0.8,
        Trouble::Loss | Trouble::Change | Trouble::Marks => 0.3,
        Trouble::Overflow if report.has_long_queue() => 0.3,
        Trouble::Overflow | Trouble::All => return,
    };
    let fairness = report.quiet.fairness;
    assert!(
        fairness >= least,
        "the fairness among flows is {fairness:.2}"
    );
}

/// No flow stands still for much longer than a round trip takes. If packets get lost, one of them
/// may wait for a few probes, or for an acknowledge timeout.
fn flows_get_on(report: &Report) {
    let config = &report.config;
    if !report.buffers() || !report.has_round_trips() {
        return;
    }
    let longest = config.longest + 4 * MS;
    for period in report.clean() {
        let stall = period.stall;
        assert!(
            stall <= longest,
            "without any loss, a flow stands still for {stall} ns"
        );
    }
    if config.trouble == Trouble::Loss {
        assert!(
            report.disturbed.timeouts <= 6,
            "losses wait for acknowledge timeouts"
        );
    }
}

/// A message and a quarter of a window each have one acknowledgement.
fn acknowledgements_are_few(report: &Report) {
    let config = &report.config;
    if config.op == Op::Read || config.trouble != Trouble::Nothing || !report.buffers() {
        return;
    }
    let counts = &report.quiet.counts;
    let windows = report.quiet.windows.iter();
    let shortest = u64::from(windows.copied().min().unwrap_or(1)).clamp(16, 256) / 4;
    let most = counts.data / config.packets() + counts.data / shortest + 32;
    assert!(
        counts.returned <= most,
        "{} packets have {} acknowledgements",
        counts.data,
        counts.returned
    );
}

/// Flows that get CNPs keep the queue short (DCQCN): much shorter than their windows would.
fn marks_keep_the_queue_short(report: &Report) {
    let config = &report.config;
    let (period, flows) = (&report.quiet, config.flows as u64);
    let marks = period.path.marking != Marking::None;
    if config.trouble != Trouble::Marks || config.op == Op::Read || !marks {
        return;
    }
    let mean = period.counts.queued / period.counts.data.max(1);
    assert!(
        mean <= 200 * flows + period.path.capacity(),
        "{mean} packets are in the queue, in spite of marks"
    );
}

/// Lets all flows end, which they must in a bounded time. To a peer that drops out-of-order
/// packets, and after an overflow, each packet may take a round trip.
pub(super) fn drain(net: &mut Net) {
    net.posts = false;
    let timeout = ack_timeout(net.config.timeout)
        .unwrap_or_default()
        .max(MIN_ACK_TIMEOUT)
        .ns();
    let overflows = matches!(net.config.trouble, Trouble::Overflow | Trouble::All);
    let slow = net.config.peers == Peers::Drop || overflows;
    let trips = if slow { 1000 } else { 20 };
    let end = net.now + 4 * timeout + trips * (net.config.longest + MS);
    while net.flows.iter().any(|flow| flow.under_way > 0) {
        assert!(net.step(), "nothing happens any more");
        assert!(net.now < end, "a flow does not end");
    }
}

/// The time from the first transmission to the error towards a peer that has died lies between the
/// programmed one and 1.5 times that. Programs choose timeout and number of retries by it.
pub(super) fn lose_peers(net: &mut Net) {
    net.dead = true;
    let config = net.config.clone();
    let timeout = ack_timeout(config.timeout)
        .unwrap_or_default()
        .max(MIN_ACK_TIMEOUT)
        .ns();
    let shortest = timeout * (u64::from(config.retry_count) + 1);
    for index in 0..net.flows.len() {
        let flow = &mut net.flows[index];
        flow.hosts[0].requester.set_retry_count(config.retry_count);
        let mut request = Request::new(config.op, config.message);
        request.signaled = true;
        flow.hosts[0]
            .post(request, vec![0; config.message as usize])
            .expect("all have ended");
        flow.under_way += 1;
        net.transmit(index, 0);
    }
    let mut left = net.flows.len();
    while left > 0 {
        assert!(net.step(), "nobody notices that the peers are dead");
        for flow in &mut net.flows {
            let Some(status) = flow.failed.take() else {
                continue;
            };
            left -= 1;
            assert_eq!(status, Status::RetryExc);
            let took = net.now - flow.first_sent.expect("it was sent");
            assert!(
                took >= shortest && took <= shortest + shortest / 2,
                "a dead peer is noticed after {took} ns, with {shortest} ns programmed"
            );
        }
    }
}
