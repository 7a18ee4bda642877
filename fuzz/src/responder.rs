// SPDX-License-Identifier: GPL-2.0

//! A responder with a peer that may send anything, and a driver that may refuse any call.

use crate::script::{Fed, Frame, Script, Service};
use crate::world::{World, KEY, OWN, PEER, PLACES, QKEY};
use rrxe_core::{Mtu, Outcome, Packet, Psn, Resource, Time};
use rrxe_testkit::{ReorderBuffer, Responder};

/// Maximum number of events of one input; more only take time.
const EVENTS: usize = 200;

/// A responder and its environment.
pub struct End {
    /// The service.
    pub service: Service,
    /// Bytes of a full packet.
    pub mtu: u32,
    /// The core's responder.
    pub responder: Responder,
    /// Its environment.
    pub world: World,
    handled: u32,
    lost: bool,
    now: u64,
    buffered: ReorderBuffer<Fed>,
}

/// Set-up of a queue pair, which is the start of a script.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The service.
    pub service: Service,
    /// Bytes of a full packet.
    pub mtu: u32,
    /// The PSN expected first.
    pub psn: u32,
    /// Maximum number of outstanding READs and atomics.
    pub resources: u8,
    /// Whether the queue pair allows the peer READ, WRITE and atomic.
    pub access: [bool; 3],
    /// Whether the memory region allows the peer READ, WRITE and atomic.
    pub rights: [bool; 3],
    /// Whether the peer may FLUSH for visibility and for persistence.
    pub flush: [bool; 2],
    /// Code of the RNR NAK timer.
    pub rnr: u8,
    /// Start address of the memory region.
    pub base: u64,
    /// Whether the driver buffers out-of-order packets.
    pub buffers: bool,
}

impl Setup {
    /// Reads four bytes, and more for a PSN far from 0.
    pub fn read(script: &mut Script<'_>) -> Setup {
        let [kind, limits, access, psn] = [script.u8(), script.u8(), script.u8(), script.u8()];
        let bits = |shift: u8| [0, 1, 2].map(|bit| (!access >> (shift + bit)) & 1 != 0);
        Setup {
            service: Service::read(kind),
            mtu: [256, 512, 1024][usize::from(kind >> 3) % 3],
            psn: match psn {
                0xff => script.u32() & 0xff_ffff,
                n => u32::from(n).wrapping_sub(16) & 0xff_ffff,
            },
            resources: limits % 20,
            access: bits(0),
            rights: bits(3),
            flush: [kind & 0x40 == 0, kind & 0x80 == 0],
            rnr: limits >> 3,
            base: match access >> 6 {
                // The region ends at the last address.
                3 => u64::MAX - crate::world::SIZE as u64 + 1,
                2 => 0,
                _ => 0x7f00_0000_1000,
            },
            buffers: kind & 0x20 != 0,
        }
    }

    /// Creates a responder of the core.
    pub fn responder(&self) -> Responder {
        let mut responder = Responder::new(self.service.core());
        self.apply(&mut responder);
        responder
    }

    fn apply(&self, responder: &mut Responder) {
        responder.mtu = Mtu::from_bytes(self.mtu).expect("an MTU");
        responder.set_psn(self.psn);
        responder.dest_qpn = PEER;
        responder.qkey = QKEY;
        responder.set_resources(vec![Resource::default(); usize::from(self.resources)]);
        responder.min_rnr_timer = self.rnr;
        let [read, write, atomic] = self.access;
        responder.set_access(read, write, atomic);
        responder.set_flush_access(self.flush[0], self.flush[1]);
        responder.start();
    }

    /// Returns the context for encoded packets.
    pub fn frame(&self, psn: u32) -> Frame {
        Frame {
            service: self.service,
            mtu: self.mtu,
            psn,
            base: self.base,
            key: KEY,
            qkey: QKEY,
            qpn: OWN,
        }
    }
}

impl End {
    /// Creates a responder that is ready to receive.
    pub fn new(setup: &Setup) -> End {
        let mut world = World::new(setup.base, setup.mtu, setup.rights);
        world.class = setup.service.class();
        End {
            service: setup.service,
            mtu: setup.mtu,
            responder: setup.responder(),
            world,
            handled: 0,
            lost: false,
            now: 0,
            buffered: ReorderBuffer::new(usize::from(setup.buffers) * PLACES),
        }
    }

    /// Feeds a packet whose UDP payload has `total` bytes.
    pub fn feed(&mut self, fed: &Fed, total: u32) {
        let Ok(packet) = Packet::parse(fed.head(), total) else {
            return;
        };
        // Raw bytes are treated as if they were followed by payload.
        let mut fed = *fed;
        fed.payload = packet.payload_len;
        self.handle(&packet, &fed);
        let mut turns = 0;
        loop {
            let Some((packet, fed)) = self.buffered.next_request(&self.responder) else {
                break;
            };
            turns += 1;
            assert!(turns < 4 * PLACES, "buffered, and due, for ever");
            self.handle(&packet, &fed);
        }
        let beyond = self.buffered.len();
        let outcome = self.responder.on_buffered(Time::from_ns(self.now), beyond);
        self.note(outcome);
    }

    fn handle(&mut self, packet: &Packet, fed: &Fed) {
        self.world.packet = Some(*fed);
        let (psn, msn) = (self.responder.expected_psn(), self.responder.msn.get());
        let outcome =
            self.responder
                .handle_packet(Time::from_ns(self.now), packet, &mut self.world);
        self.world.packet = None;
        self.handled += 1;
        let moved = self.responder.expected_psn() != psn;
        match self.service {
            Service::Rc | Service::Xrc => {
                assert!(
                    !moved || packet.psn().get() == psn,
                    "took what it did not expect"
                );
                let more = self.responder.msn.get().wrapping_sub(msn) & 0xff_ffff;
                assert!(more <= 1, "{more} messages in one packet");
            }
            _ => assert_eq!(self.responder.msn.get(), msn),
        }
        assert!(!outcome.sqe, "a responder has no send queue");
        if outcome.buffer {
            assert!(!moved, "buffered, and of effect");
            let expected = Psn::new(self.responder.expected_psn());
            self.buffered.insert(0, expected, packet, *fed, |_, _| true);
        }
        self.note(outcome);
    }

    fn note(&mut self, outcome: Outcome) {
        if outcome.fatal {
            assert!(!self.lost, "lost twice");
            self.error();
        }
    }

    /// Moves to the Error state.
    pub fn error(&mut self) {
        self.lost = true;
        // The current receive work request completes, and nothing else happens.
        self.responder.enter_error(&mut self.world);
        assert!(!self.world.busy(), "a receive is left over");
        self.world.dead = true;
    }

    /// Lets the responder send up to `budget` packets.
    pub fn poll(&mut self, budget: u32) {
        let before = self.world.sent.len();
        let space = self.world.space;
        let progress =
            self.responder
                .poll_transmit(Time::from_ns(self.now), budget, &mut self.world);
        let sent = (self.world.sent.len() - before) as u32;
        assert_eq!(progress.sent, sent);
        assert!(sent <= budget.min(space));
        if progress.more {
            assert!(sent == budget || sent == space, "stopped before the budget");
        } else if budget > sent && space > sent && !progress.fatal {
            let again = self
                .responder
                .poll_transmit(Time::from_ns(self.now), 1, &mut self.world);
            assert!(
                again.sent == 0 && !again.more && !again.fatal,
                "had more to say"
            );
        }
        if matches!(self.service, Service::Uc | Service::Ud) {
            assert_eq!(sent, 0, "an unreliable service sends a response");
        }
        assert!(
            self.world.acknowledgements <= self.handled,
            "more acknowledgements than packets"
        );
        self.note(Outcome {
            fatal: progress.fatal,
            sqe: progress.sqe,
            ..Outcome::default()
        });
    }
}

/// Input: a [`Setup`], then events.
pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    let setup = Setup::read(&mut script);
    let mut end = End::new(&setup);
    for _ in 0..EVENTS {
        if script.is_empty() {
            break;
        }
        match script.u8() {
            0..=0x9f => {
                let frame = setup.frame(end.responder.expected_psn());
                let fed = Fed::read(&mut script, &frame);
                end.feed(&fed, fed.total_len());
            }
            0xa0..=0xaf => {
                let (fed, total) = Fed::raw(&mut script);
                end.feed(&fed, total);
            }
            0xb0..=0xcf => end.world.post(usize::from(script.u16() % 5000)),
            0xd0..=0xdf => end.poll(u32::MAX),
            0xe0..=0xe7 => {
                let budget = script.u8();
                end.world.space = u32::from(budget >> 4);
                end.poll(u32::from(budget & 0xf));
                end.world.space = u32::MAX;
            }
            0xe8..=0xef => end.world.arm(&mut script),
            0xf0..=0xf3 => end.world.open = false,
            0xf4..=0xf7 => end.world.open = true,
            0xf8..=0xf9 => end.world.rights = [1, 2, 4].map(|bit| script.u8() & bit == 0),
            0xfa..=0xfb => {
                let [read, write, atomic] = [1, 2, 4].map(|bit| script.u8() & bit == 0);
                end.responder.set_access(read, write, atomic);
            }
            0xfc => {
                let count = usize::from(script.u8());
                end.responder
                    .set_resources(vec![Resource::default(); count]);
            }
            0xfd => {
                if !end.lost {
                    end.error();
                }
            }
            0xfe => {
                // Reset: a responder in the Error state starts again.
                end.world.dead = false;
                if !end.lost {
                    end.error();
                    end.world.dead = false;
                }
                end.lost = false;
                end.responder.reset();
                end.buffered.clear();
                setup.apply(&mut end.responder);
            }
            // The peer's CNP reports congestion.
            _ => {
                end.now += u64::from(script.u16()) << 4;
                end.responder.on_cnp(Time::from_ns(end.now));
            }
        }
    }
    for _ in 0..EVENTS {
        end.poll(u32::MAX);
        let Some(at) = end.responder.next_timeout().map(Time::ns) else {
            break;
        };
        end.now = end.now.max(at);
    }
    if !end.lost {
        end.error();
    }
    for (at, (receive, _)) in end.world.done.iter().enumerate() {
        assert_eq!(receive.id, at as u32, "receives complete out of order");
    }
}
