// SPDX-License-Identifier: GPL-2.0

//! The environment of the queue pairs: memory, queues and the network. It executes the requests of
//! the core and checks each one at once.

use crate::backing::{Access, Backing, Half, Page};
use crate::config::{Config, Connection};
use crate::flow::Flow;
use crate::receives::{Receive, ReceiveQueue};
use rrxe_core::wire::{Bth, Operation, Syndrome};
use rrxe_core::*;
use rrxe_testkit::{icrc_of, Frame, Random, Schedule};

/// Sizes in bytes of the three parts of a window: for READs only, for READs and WRITEs, and for
/// atomics.
pub const READ_ONLY: usize = 12 << 10;
pub const WRITTEN: usize = 12 << 10;
pub const ATOMICS: usize = 64;
pub const WINDOW: usize = READ_ONLY + WRITTEN + ATOMICS;
/// Bytes between windows, which must never change.
pub const GUARD: usize = 64;
/// The address at which a host's memory starts.
pub const ADDRESS: u64 = 0xffff_8000_1000;
/// The Q_Key of all datagrams that must arrive.
pub const QKEY: u32 = 0x0102_0304;
/// The first queue pair number.
pub const FIRST_QPN: u32 = 100;
/// The number of the first receive queue. Only XRC requests carry it.
pub const FIRST_SRQN: u32 = 5000;

/// The state of a queue pair, as seen by its consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Reset,
    Rts,
    Sqd,
    Sqe,
    Error,
}

/// The queues and the state of one queue pair.
pub struct Side {
    pub host: usize,
    /// Index of its connection, and the peer queue pair (itself for UD).
    pub connection: usize,
    pub peer: usize,
    pub state: State,
    /// Indices of its receive queues: one, or several for XRC.
    pub queues: Vec<usize>,
    pub current: Option<Receive>,
    /// UD, UC: flow, message, and bytes placed so far in the current receive work request.
    pub partial: Option<(usize, usize, u32)>,
    /// A poll of the requester, or of the responder, is scheduled.
    pub send_pending: bool,
    pub response_pending: bool,
    pub timer: Option<u64>,
    pub responder_timer: Option<u64>,
    /// Progress count at the last turn, and the number of turns without progress since.
    pub turns: (u64, u32),
    /// Number of packets sent by the current poll.
    pub emitted: u32,
    /// The rate limit for requests in bytes per second, if any; and the time until which the
    /// requests sent so far use it up.
    pub rate: Option<u64>,
    pub paid: u64,
}

impl Side {
    /// Accounts for a request. Neither a first transmission nor a retransmission may exceed the
    /// rate limit (L-07).
    pub fn pay(&mut self, now: u64, packet: &TxPacket) {
        let Some(rate) = self.rate else {
            self.paid = now;
            return;
        };
        assert!(
            self.paid < now + congestion::BURST.ns(),
            "a packet leaves before its time at the rate"
        );
        // Includes Ethernet, IPv4 and UDP headers, rounded as in the core.
        let bytes = u64::from(packet.udp_payload_len()) + 14 + 20 + 8;
        let time = (bytes * ((1_000_000_000 << 16) / rate)) >> 16;
        self.paid = self.paid.max(now) + time;
    }
}

/// A registered region of a host's memory.
pub struct Region {
    pub key: u32,
    pub start: usize,
    pub len: usize,
}

/// An end point.
pub struct Host {
    pub memory: Vec<u8>,
    /// Expected content of the memory.
    pub shadow: Vec<u8>,
    pub regions: Vec<Region>,
    /// Keys that the peer may invalidate.
    pub keys: Vec<u32>,
}

/// The true origin of a packet.
#[derive(Clone, Copy, Debug)]
pub struct Truth {
    /// The flow that it belongs to, named by the requester's queue pair.
    pub flow: usize,
    pub epoch: u32,
    /// The packet is a response.
    pub response: bool,
    /// The relative PSN; for requests also the message index.
    pub relative: u32,
    pub message: usize,
}

/// A packet in flight.
pub struct Flight {
    pub to: usize,
    pub truth: Truth,
    pub frame: Frame,
    /// Marked as having experienced congestion (ECN).
    pub congested: bool,
}

/// A scheduled event.
pub enum Event {
    /// A packet arrives.
    Arrival(Box<Flight>),
    /// A consumer has its turn.
    Turn(usize),
    /// A requester or a responder continues to transmit.
    Send(usize),
    Respond(usize),
    /// A congestion notification arrives.
    Notification(usize),
    /// An absent page is present again.
    Present(Page),
}

/// The state of a simulation except the cores.
pub struct Oracle {
    pub config: Config,
    pub random: Random,
    pub now: u64,
    pub sides: Vec<Side>,
    pub flows: Vec<Flow>,
    pub hosts: Vec<Host>,
    pub queues: Vec<ReceiveQueue>,
    pub backing: Backing,
    pub events: Schedule<Event>,
    /// Number of packets in flight.
    pub flying: usize,
    /// Arrival time of the last packet that was not late, by receiver.
    pub last: Vec<u64>,
    /// Number of packets that fit into the transmit batch.
    pub space: u32,
    pub refused: bool,
    /// The packet being handled.
    pub handling: Option<Truth>,
    pub payload: Vec<u8>,
    /// The network impairments have ended.
    pub fair: bool,
    /// A counter that grows with every sign of progress.
    pub progress: u64,
    pub packets: u64,
    pub requests: u64,
    pub trace: bool,
    next_key: u32,
}

macro_rules! trace {
    ($oracle:expr, $($words:tt)*) => {
        if $oracle.trace {
            println!("{:>11.3} {}", $oracle.now as f64 / 1e3, format_args!($($words)*));
        }
    };
}
pub(crate) use trace;

impl Oracle {
    pub fn new(config: Config, random: Random, trace: bool) -> Oracle {
        let shared = config.hosts * (config.shared + config.xrc_shared);
        let number = |index| FIRST_SRQN + index as u32;
        let queues = (0..shared).map(|index| ReceiveQueue::new(number(index), true));
        let queues = queues.collect();
        let hosts = (0..config.hosts)
            .map(|_| Host {
                memory: Vec::new(),
                shadow: Vec::new(),
                regions: Vec::new(),
                keys: Vec::new(),
            })
            .collect();
        let backing = Backing::new(config.pager.clone(), config.trouble.absences);
        Oracle {
            config,
            random,
            now: 1_000_000,
            sides: Vec::new(),
            flows: Vec::new(),
            hosts,
            queues,
            backing,
            events: Schedule::default(),
            flying: 0,
            last: Vec::new(),
            space: u32::MAX,
            refused: false,
            handling: None,
            payload: Vec::new(),
            fair: false,
            progress: 0,
            packets: 0,
            requests: 0,
            trace,
            next_key: 0x1000,
        }
    }

    pub fn connection(&self, qp: usize) -> &Connection {
        &self.config.connections[self.sides[qp].connection]
    }

    /// Returns the receive queues of a new queue pair at one end of a connection.
    pub fn queues_of(&mut self, connection: &Connection, end: usize) -> Vec<usize> {
        let (shared, all) = (
            self.config.shared,
            self.config.shared + self.config.xrc_shared,
        );
        let first = connection.hosts[end] * all;
        let queues = match (connection.service, connection.shared[end]) {
            (Service::Xrc, _) => (first + shared..first + all).collect(),
            (_, Some(index)) => vec![first + index],
            _ => {
                let index = self.queues.len();
                let number = FIRST_SRQN + index as u32;
                self.queues.push(ReceiveQueue::new(number, false));
                vec![index]
            }
        };
        let longest = (connection.packets * connection.mtu.bytes()).min(WRITTEN as u32);
        for &index in &queues {
            let queue = &mut self.queues[index];
            queue.longest = queue.longest.max(longest);
            queue.keep = queue.keep.max(connection.receives);
        }
        queues
    }

    /// Returns a new key.
    pub fn new_key(&mut self) -> u32 {
        self.next_key += 0x101;
        self.next_key
    }

    /// Returns the longest time, in nanoseconds, that the timers of this queue pair may wait.
    pub fn longest_wait(&self, qp: usize) -> u64 {
        let connection = self.connection(qp);
        let timeout = requester::ack_timeout(connection.timeout).unwrap_or_default();
        let timeout = timeout.max(requester::MIN_ACK_TIMEOUT) * 4;
        timeout.max(wire::rnr_timer(connection.rnr_timer)).ns()
    }

    pub fn schedule(&mut self, delay: u64, event: Event) {
        self.events.push(self.now + delay, event);
    }

    /// Takes the next event.
    pub fn take_event(&mut self) -> Option<Event> {
        let event = self.events.pop();
        self.flying -= usize::from(matches!(event, Some(Event::Arrival(_))));
        event
    }

    fn fly(&mut self, to: usize, truth: Truth, frame: Frame, late: u64, congested: bool) {
        let mut at = self.now + self.config.network.latency + late;
        if late == 0 {
            at = at.max(self.last[to] + 20);
            self.last[to] = at;
        }
        self.flying += 1;
        let flight = Flight {
            to,
            truth,
            frame,
            congested,
        };
        self.events.push(at, Event::Arrival(Box::new(flight)));
    }

    /// Flips a random bit of a packet and checks whether the ICRC detects it. Only bits excluded
    /// from the ICRC may pass; the packet then arrives with the returned bits of `resv8a` flipped.
    /// Returns `None` for a detected corruption.
    fn corrupt(&mut self, frame: &Frame) -> Option<u8> {
        let mut bytes = self.random.bytes(28);
        bytes.extend(frame.bytes(&bytes[..20], &bytes[20..]));
        let at = self.random.below(bytes.len() as u32) as usize;
        let bit = 1u8 << self.random.below(8);
        bytes[at] ^= bit;
        let masked = matches!(at, 1 | 8 | 10 | 11 | 26 | 27) || at == 28 + Bth::RESV8A;
        let (body, end) = bytes.split_at(bytes.len() - 4);
        let taken = icrc_of(&body[..20], &body[20..28], &body[28..]) == end;
        assert_eq!(taken, masked, "the ICRC and bit {bit:#x} of byte {at}");
        if at == 28 + Bth::RESV8A {
            return Some(bit);
        }
        taken.then_some(0)
    }

    /// Turns the first packet of a READ response that begins within the READ into one that
    /// continues the READ ([`Connection::continues_reads`]).
    fn continue_read(&self, truth: &Truth, frame: &mut Frame) {
        let messages = &self.flows[truth.flow].messages;
        let read = messages.iter().find(|message| {
            let packets = message.first..message.first + message.packets;
            packets.contains(&truth.relative)
        });
        if read.is_none_or(|read| read.first == truth.relative) {
            return;
        }
        let operation = match frame.packet().operation {
            Operation::ReadResponseFirst => {
                frame.header_len = Bth::LEN;
                Operation::ReadResponseMiddle
            }
            Operation::ReadResponseOnly => Operation::ReadResponseLast,
            _ => return,
        };
        let service = frame.head[0] & 0xe0;
        frame.head[0] = service | operation as u8;
    }

    /// Sends a packet, whose payload is in `payload`, over the network.
    pub fn ship(&mut self, to: usize, truth: Truth, packet: &TxPacket) {
        self.packets += 1;
        let mut frame = Frame::new(packet, self.payload.clone());
        if truth.response && self.connection(to).continues_reads {
            self.continue_read(&truth, &mut frame);
        }
        let network = self.config.network;
        if self.fair {
            trace!(self, "       {}", self.describe(to, &truth, &frame));
            self.fly(to, truth, frame, 0, false);
            return;
        }
        let copies = 1 + u32::from(self.random.chance(network.duplication));
        for copy in 0..copies {
            let lost = self.random.chance(network.loss);
            let mut frame = frame.clone();
            let mut spoilt = false;
            if self.random.chance(network.corruption) {
                match self.corrupt(&frame) {
                    Some(bits) => frame.head[Bth::RESV8A] ^= bits,
                    None => spoilt = true,
                }
            }
            let congested = self.random.chance(network.marks);
            let late = if self.random.chance(network.reorder) {
                u64::from(self.random.below(network.jitter)) + 1
            } else {
                0
            };
            let fate = match (lost, spoilt, late) {
                (true, _, _) => " LOST",
                (_, true, _) => " CORRUPTED",
                (_, _, 0) => "",
                _ => " LATE",
            };
            let copy = if copy == 0 { "" } else { " AGAIN" };
            trace!(
                self,
                "       {}{copy}{fate}",
                self.describe(to, &truth, &frame)
            );
            // A duplicate NAK costs two retries (F-06).
            if lost || spoilt || late != 0 || !copy.is_empty() {
                self.flows[truth.flow].disturb(self.now);
            }
            if !lost && !spoilt {
                self.fly(to, truth, frame, late, congested);
            }
        }
    }

    fn describe(&self, to: usize, truth: &Truth, frame: &Frame) -> String {
        let from = if truth.response {
            self.sides[to].peer
        } else {
            truth.flow
        };
        let mut words = match Packet::parse(frame.header(), frame.total_len()) {
            Ok(parsed) => {
                let mut words = format!("{:?}", parsed.operation);
                if parsed.bth.ackreq {
                    words += " ackreq";
                }
                match parsed.ext {
                    Ext::Reth(reth) | Ext::RethImm(reth, _) => {
                        words += &format!(" va {:#x} len {}", reth.va, reth.len);
                    }
                    Ext::Aeth(aeth) | Ext::AtomicAck(aeth, _) => {
                        let syndrome = Syndrome::decode(aeth.syndrome);
                        words += &format!(" {syndrome:?} msn {}", aeth.msn.get());
                    }
                    _ => {}
                }
                words
            }
            Err(error) => format!("{error:?}"),
        };
        if !frame.payload.is_empty() {
            words += &format!(" [{}]", frame.payload.len());
        }
        format!("{from} -> {to} psn {} {words}", truth.relative)
    }

    /// Accesses a page for a half of a queue pair.
    pub fn touch(&mut self, page: Page, qp: usize, half: Half) -> Result<(), Fault> {
        let access = self.backing.access(page, (qp, half), self.fair);
        if let Access::Reclaimed(time) = access {
            self.schedule(time, Event::Present(page));
        }
        if let Access::Reclaimed(_) | Access::New = access {
            trace!(self, "    {qp} meets with absent memory: {page:?}");
            match page {
                // The NAK that asks for the packet again, or a timeout before it, costs a retry.
                _ if half == Half::Recv => {
                    let incoming = self.sides[qp].peer;
                    self.flows[incoming].disturb(self.now);
                }
                // The acknowledgement of a duplicate may be beyond a READ or atomic after it, which
                // is then asked for again (F-11).
                Page::Result(..) => self.flows[qp].disturb(self.now),
                _ => {}
            }
        }
        access.result()
    }

    pub fn region(&self, host: usize, rkey: u32, va: u64, len: u32) -> Result<usize, Fault> {
        let host = &self.hosts[host];
        let region = host.regions.iter().find(|r| r.key == rkey);
        let region = region.ok_or(Fault::Protection)?;
        let offset = va.checked_sub(ADDRESS).ok_or(Fault::Protection)? as usize;
        let end = offset.checked_add(len as usize).ok_or(Fault::Protection)?;
        if offset < region.start || end > region.start + region.len {
            return Err(Fault::Protection);
        }
        Ok(offset)
    }
}
