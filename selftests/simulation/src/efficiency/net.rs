// SPDX-License-Identifier: GPL-2.0

//! Flows through one bottleneck, in simulated time.

use super::config::{Config, Marking, Path, Peers, HEADERS, MS, READS};
use rrxe_core::congestion::NotificationPoint;
use rrxe_core::*;
use rrxe_testkit::*;
use std::collections::VecDeque;

/// Packets that a host processes at once.
const BATCH: usize = 64;

/// Minimum time between two congestion notifications of a flow, in nanoseconds.
const NOTIFY_INTERVAL: Span = Span::from_us(50);

macro_rules! trace {
    ($net:expr, $($words:tt)*) => {
        if $net.trace {
            println!("{:>11.3} {}", $net.now as f64 / 1e3, format_args!($($words)*));
        }
    };
}
pub(super) use trace;

/// A packet under way.
struct Flight {
    flow: usize,
    /// Its receiver: 0 for the requester's host, 1 for the responder's.
    to: usize,
    packet: Packet,
    payload: Vec<u8>,
    marked: bool,
}

enum Event {
    /// The flow starts.
    Start(usize),
    /// A packet reaches the bottleneck.
    Bottleneck(Box<Flight>),
    /// The bottleneck has sent a packet.
    Departure,
    /// A packet reaches its receiver.
    Arrival(Box<Flight>),
    /// A host processes the packets that have arrived.
    Poll(usize, usize),
    /// A timer of a host expires.
    Timer(usize, usize),
    /// A congestion notification reaches a host.
    Notification(usize, usize),
}

/// A queue pair at each end, and what is known about them.
pub(super) struct Flow {
    /// The hosts of the requester and of the responder.
    pub hosts: [Host; 2],
    points: [NotificationPoint; 2],
    /// Time at which the link of the host that sends data is free.
    free: u64,
    /// Packets that have arrived and wait for the poll of their host.
    arrived: [VecDeque<Flight>; 2],
    polling: [bool; 2],
    armed: [Option<u64>; 2],
    /// Time of the last congestion notification.
    notified: u64,
    /// Work requests under way.
    pub under_way: usize,
    /// Packets acknowledged or completed by a response so far, and the time of the last one.
    pub acknowledged: u64,
    pub progress_at: u64,
    /// Work requests are waiting for a response.
    waits: bool,
    /// Longest time without progress while they do.
    pub stall: u64,
    /// Window and rate limit after the last event.
    pub window: u32,
    pub rate: u64,
    /// The window or the rate was reduced.
    pub reduced: bool,
    /// Reductions of the window that the requester has counted.
    counted: u32,
    una: Psn,
    /// Time of the first request since the peer is dead.
    pub first_sent: Option<u64>,
    /// Status of a failed work request.
    pub failed: Option<Status>,
}

/// All flows and the bottleneck.
pub(super) struct Net {
    pub config: Config,
    pub path: Path,
    pub now: u64,
    pub trace: bool,
    random: Random,
    pub flows: Vec<Flow>,
    /// The host that sends data: 0, or 1 for READ.
    from: usize,
    events: Schedule<Event>,
    queue: VecDeque<Box<Flight>>,
    busy: bool,
    /// Flows post work requests.
    pub posts: bool,
    /// All packets get lost.
    pub dead: bool,
    pub counts: Counts,
}

/// The counts so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// Packets with data, or without data in the opposite direction.
    pub data: u64,
    pub returned: u64,
    /// Packets dropped by the full queue, lost packets, and marked packets.
    pub dropped: u64,
    pub lost: u64,
    pub marked: u64,
    pub notifications: u64,
    /// Longest queue, and its sum over all packets that entered it.
    pub longest_queue: usize,
    pub queued: u64,
    pub requests: u64,
}

impl Net {
    pub fn new(config: Config, mut random: Random, trace: bool) -> Net {
        let from = usize::from(config.op == Op::Read);
        let now = 1_000_000;
        let mut events = Schedule::default();
        let flows = (0..config.flows)
            .map(|flow| {
                let late = below(&mut random, config.spread);
                events.push(now + late, Event::Start(flow));
                Flow::new(&config)
            })
            .collect();
        Net {
            path: config.paths[0],
            config,
            now,
            trace,
            random,
            flows,
            from,
            events,
            queue: VecDeque::new(),
            busy: false,
            posts: true,
            dead: false,
            counts: Counts::default(),
        }
    }

    /// Runs until this time, or until nothing is left to happen.
    pub fn run_until(&mut self, end: u64) {
        while self.events.next_time().is_some_and(|at| at <= end) {
            self.step();
        }
        self.now = end;
        // A flow that stands still now does so since its last progress.
        for flow in 0..self.flows.len() {
            self.note_progress(flow);
        }
    }

    /// Executes the next event.
    pub fn step(&mut self) -> bool {
        let Some(at) = self.events.next_time() else {
            return false;
        };
        self.now = self.now.max(at);
        match self.events.pop() {
            Some(Event::Start(flow)) => self.transmit(flow, 0),
            Some(Event::Bottleneck(flight)) => self.enter_queue(flight),
            Some(Event::Departure) => self.depart(),
            Some(Event::Arrival(flight)) => self.arrive(*flight),
            Some(Event::Poll(flow, side)) => self.poll(flow, side),
            Some(Event::Timer(flow, side)) => self.timer(flow, side),
            Some(Event::Notification(flow, side)) => self.notify(flow, side),
            None => {}
        }
        true
    }

    /// Hands a congestion notification to a host. If its rate has a limit that was not reduced just
    /// before, and it has sent packets lately, it must reduce the limit.
    fn notify(&mut self, index: usize, side: usize) {
        let now = self.now;
        trace!(self, "flow {index}: notification to {side}");
        let flow = &mut self.flows[index];
        let host = &mut flow.hosts[side];
        let rate = |host: &mut Host| match side {
            0 => host.requester.congestion.rate.limit(Time::from_ns(now)),
            _ => host.responder.rate.limit(Time::from_ns(now)),
        };
        let before = rate(host);
        let reduced = match side {
            0 => host.requester.on_cnp(Time::from_ns(now)),
            _ => host.responder.on_cnp(Time::from_ns(now)),
        };
        let after = rate(host);
        let limit = |rate: Option<u64>| rate.unwrap_or(u64::MAX);
        assert_eq!(
            reduced,
            limit(after) < limit(before),
            "flow {index}: a reduction of the rate is not counted, or there was none"
        );
        let due = now >= flow.notified + congestion::REDUCE_INTERVAL.ns();
        let sends = side == self.from && now < flow.free + MS;
        assert!(
            !due || !sends
                || before.is_none()
                || after < before.max(Some(congestion::MIN_RATE + 1)),
            "flow {index}: a notification does not reduce the rate"
        );
        flow.notified = now;
        self.transmit(index, side);
    }

    /// Posts work requests while fewer than the intended number are under way.
    fn post(&mut self, flow: usize) {
        let (flow, config) = (&mut self.flows[flow], &self.config);
        let length = config.message;
        while flow.under_way < config.depth {
            let mut request = Request::new(config.op, length);
            request.signaled = true;
            let data = vec![0; length as usize];
            if flow.hosts[0].post(request, data).is_none() {
                break;
            }
            if config.op == Op::Send {
                flow.hosts[1].driver.received.clear();
                flow.hosts[1].post_recv(0, length as usize);
            }
            flow.under_way += 1;
        }
    }

    /// Lets a host send everything it can, and sets its timer.
    pub fn transmit(&mut self, flow: usize, side: usize) {
        if side == 0 && self.posts {
            self.post(flow);
        }
        let host = &mut self.flows[flow].hosts[side];
        while host.transmit(self.now) {}
        for frame in std::mem::take(&mut host.driver.out) {
            self.ship(flow, side, frame);
        }
        self.note_progress(flow);
        let flow_of = &mut self.flows[flow];
        let host = &flow_of.hosts[side];
        let next = match side {
            0 => host.requester.next_timeout().map(Time::ns),
            _ => host.responder.next_timeout().map(Time::ns),
        };
        let earlier = |at: &u64| flow_of.armed[side].is_none_or(|armed| *at < armed);
        if let Some(at) = next.filter(earlier) {
            flow_of.armed[side] = Some(at);
            self.events.push(at.max(self.now), Event::Timer(flow, side));
        }
    }

    /// Sends a packet on its way.
    fn ship(&mut self, flow: usize, side: usize, frame: Frame) {
        if self.dead {
            if side == 0 {
                self.flows[flow].first_sent.get_or_insert(self.now);
            }
            return;
        }
        let packet = frame.packet();
        let data = side == self.from;
        trace!(
            self,
            "flow {flow}: {side} sends {:?} {}{} {:?}",
            packet.operation,
            packet.psn().get(),
            if packet.bth.ackreq { " ackreq" } else { "" },
            packet.ext
        );
        if data {
            self.counts.data += 1;
        } else {
            self.counts.returned += 1;
        }
        let loss = if data {
            self.path.loss
        } else {
            self.path.back_loss
        };
        if self.random.chance(loss) {
            trace!(self, "    LOST");
            self.counts.lost += 1;
            return;
        }
        let bytes = u64::from(frame.total_len()) + HEADERS - 20;
        let flight = Box::new(Flight {
            flow,
            to: 1 - side,
            packet,
            payload: frame.payload,
            marked: false,
        });
        if !data {
            let late = below(&mut self.random, self.path.spray);
            let at = self.now + self.path.back + late;
            self.events.push(at, Event::Arrival(flight));
            return;
        }
        // The host's link is twice as fast as the bottleneck. No two hosts are ever in step.
        let time = self.path.service * bytes / (u64::from(self.config.mtu) + HEADERS) / 2;
        let gap = below(&mut self.random, time / 4 + 1);
        let free = &mut self.flows[flow].free;
        *free = self.now.max(*free) + time + gap;
        let at = *free + self.path.delay / 2;
        self.events.push(at, Event::Bottleneck(flight));
    }

    fn enter_queue(&mut self, mut flight: Box<Flight>) {
        let len = self.queue.len();
        if len >= self.path.queue {
            trace!(self, "    queue full: {}", flight.packet.psn().get());
            self.counts.dropped += 1;
            return;
        }
        flight.marked = match self.path.marking {
            Marking::None => false,
            Marking::Step(from) => len >= from,
            Marking::Red if len >= 200 => true,
            Marking::Red => self.random.below(19_500) < len.saturating_sub(5) as u32,
        };
        self.counts.marked += u64::from(flight.marked);
        self.queue.push_back(flight);
        self.counts.longest_queue = self.counts.longest_queue.max(len + 1);
        self.counts.queued += len as u64;
        if !self.busy {
            self.serve();
        }
    }

    /// Starts to send the next packet of the queue.
    fn serve(&mut self) {
        self.busy = !self.queue.is_empty();
        if let Some(flight) = self.queue.front() {
            let bytes = u64::from(flight.packet.payload_len) + HEADERS;
            let time = self.path.service * bytes / (u64::from(self.config.mtu) + HEADERS);
            self.events.push(self.now + time, Event::Departure);
        }
    }

    fn depart(&mut self) {
        if let Some(flight) = self.queue.pop_front() {
            let late = below(&mut self.random, self.path.spray);
            let at = self.now + self.path.delay / 2 + late;
            self.events.push(at, Event::Arrival(flight));
        }
        self.serve();
    }

    fn arrive(&mut self, flight: Flight) {
        if self.dead {
            return;
        }
        let (index, side) = (flight.flow, flight.to);
        let flow = &mut self.flows[index];
        flow.arrived[side].push_back(flight);
        if self.config.poll == 0 {
            self.poll(index, side);
        } else if !flow.polling[side] {
            flow.polling[side] = true;
            let at = self.now + self.config.poll;
            self.events.push(at, Event::Poll(index, side));
        }
    }

    /// Hands the packets that have arrived to their host, and then lets it send.
    fn poll(&mut self, index: usize, side: usize) {
        let now = self.now;
        for _ in 0..BATCH {
            let flow = &mut self.flows[index];
            let Some(flight) = flow.arrived[side].pop_front() else {
                break;
            };
            let host = &mut flow.hosts[side];
            trace!(
                self,
                "flow {index}: {side} takes {}",
                flight.packet.psn().get()
            );
            if flight.marked && flow.points[side].marked(Time::from_ns(now), NOTIFY_INTERVAL) {
                let notification = match flight.packet.is_response() {
                    true => host.requester.cnp(&flight.packet),
                    false => host.responder.cnp(&flight.packet),
                };
                if notification.is_some() {
                    self.counts.notifications += 1;
                    let event = Event::Notification(index, 1 - side);
                    self.events.push(now + self.path.back, event);
                }
            }
            let outcome = host.take(now, &flight.packet, &flight.payload);
            assert!(!outcome.fatal, "flow {index}: a packet is fatal");
        }
        let more = !self.flows[index].arrived[side].is_empty();
        self.flows[index].polling[side] = more;
        if more {
            self.events.push(now + 1000, Event::Poll(index, side));
        }
        self.collect(index);
        self.transmit(index, side);
    }

    fn timer(&mut self, index: usize, side: usize) {
        let flow = &mut self.flows[index];
        if flow.armed[side] != Some(self.now) {
            // It was set to another time.
            if flow.armed[side].is_some_and(|at| at > self.now) {
                return;
            }
        }
        flow.armed[side] = None;
        let host = &mut flow.hosts[side];
        let due = host
            .requester
            .next_timeout()
            .map(Time::ns)
            .is_some_and(|at| at <= self.now);
        if side == 0 && due {
            trace!(self, "flow {index}: timer");
            let _ = host.timeout(self.now);
        }
        self.collect(index);
        self.transmit(index, side);
    }

    /// Takes the completions of a flow. All work requests succeed unless the peer is dead.
    fn collect(&mut self, index: usize) {
        let flow = &mut self.flows[index];
        for done in std::mem::take(&mut flow.hosts[0].driver.sent) {
            let status = done.completion.status;
            flow.under_way -= 1;
            self.counts.requests += 1;
            if self.dead {
                flow.failed.get_or_insert(status);
            } else {
                assert_eq!(
                    status,
                    Status::Success,
                    "flow {index}: a work request fails"
                );
            }
        }
    }

    /// Notes the progress, the window and the rate of a flow.
    fn note_progress(&mut self, index: usize) {
        let now = self.now;
        let flow = &mut self.flows[index];
        let requester = &mut flow.hosts[0].requester;
        let una = requester.expected_psn();
        let window = requester.window();
        let waits = requester.outstanding() > 0;
        let sender = match self.from {
            0 => requester.congestion.rate.limit(Time::from_ns(now)),
            _ => flow.hosts[1].responder.rate.limit(Time::from_ns(now)),
        };
        let rate = sender.unwrap_or(u64::MAX);
        let counted = requester.counters.window_reductions.get();
        assert!(
            window >= flow.window || counted > flow.counted,
            "flow {index}: a reduction of the window is not counted"
        );
        flow.reduced |= counted != flow.counted || window < flow.window || rate < flow.rate;
        flow.counted = counted;
        flow.window = window;
        flow.rate = rate;
        if waits && flow.waits && !self.dead {
            flow.stall = flow.stall.max(now - flow.progress_at);
        }
        if una != flow.una || !flow.waits {
            flow.acknowledged += u64::from(una.since(flow.una));
            flow.una = una;
            flow.progress_at = now;
        }
        flow.waits = waits;
    }
}

impl Flow {
    fn new(config: &Config) -> Flow {
        let hosts = [0, 1].map(|index| {
            let mut host = Host::new(Service::Rc, index, config.mtu);
            host.requester.set_timeout(config.timeout);
            host.requester.max_rd_atomic = READS as u8;
            host.responder
                .set_resources(vec![Resource::default(); READS]);
            host.slots = vec![SendSlot::default(); config.depth.next_power_of_two()];
            host.budget = 64;
            host.driver.regions[0].bytes = vec![0; config.message as usize];
            match config.peers {
                Peers::Buffer => host,
                Peers::Drop if index == 1 => host.without_reorder_buffer(),
                Peers::Drop => host,
                Peers::Strict => host.strict(),
            }
        });
        let una = hosts[0].requester.expected_psn();
        Flow {
            hosts,
            points: Default::default(),
            free: 0,
            arrived: Default::default(),
            polling: [false; 2],
            armed: [None; 2],
            notified: 0,
            under_way: 0,
            acknowledged: 0,
            progress_at: 1_000_000,
            waits: false,
            stall: 0,
            window: 0,
            rate: u64::MAX,
            reduced: false,
            counted: 0,
            una,
            first_sent: None,
            failed: None,
        }
    }
}

/// Returns a random number below `n`, or 0 if that is 0.
fn below(random: &mut Random, n: u64) -> u64 {
    match n {
        0 => 0,
        n => random.next_u64() % n,
    }
}
