// SPDX-License-Identifier: GPL-2.0

//! The model: a requester, a responder, and the actions of the network between them.

use crate::snapshot::{key, Key};
use rrxe_core::*;
use rrxe_testkit::{Attributes, Op, Operands, Request, Responder};
use stateright::{Model, Property};
use std::hash::{Hash, Hasher};

/// The property that some explored state must satisfy.
pub const DONE: &str = "all can be done";

/// Payload bytes of a full packet.
const MTU: u32 = 256;
/// The first PSN: the messages cross the end of the PSN space.
const PSN: u32 = 0xff_ffff;
/// Start time in nanoseconds. Only timers advance the time.
const START: u64 = 1 << 40;

/// A kind of message: operation and number of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Send1,
    Send2,
    Write2,
    WriteImm1,
    Read1,
    Read2,
    FetchAdd,
}

impl Kind {
    pub const ALL: [Kind; 7] = [
        Kind::Send1,
        Kind::Send2,
        Kind::Write2,
        Kind::WriteImm1,
        Kind::Read1,
        Kind::Read2,
        Kind::FetchAdd,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Send1 => "send1",
            Kind::Send2 => "send2",
            Kind::Write2 => "write2",
            Kind::WriteImm1 => "writeimm1",
            Kind::Read1 => "read1",
            Kind::Read2 => "read2",
            Kind::FetchAdd => "fetchadd",
        }
    }

    fn op(self) -> Op {
        match self {
            Kind::Send1 | Kind::Send2 => Op::Send,
            Kind::Write2 => Op::Write,
            Kind::WriteImm1 => Op::WriteImm,
            Kind::Read1 | Kind::Read2 => Op::Read,
            Kind::FetchAdd => Op::FetchAdd,
        }
    }

    fn packets(self) -> u32 {
        match self {
            Kind::Send2 | Kind::Write2 | Kind::Read2 => 2,
            _ => 1,
        }
    }

    fn length(self) -> u32 {
        match self {
            Kind::FetchAdd => 0,
            kind => MTU * (kind.packets() - 1) + 20,
        }
    }

    fn receives(self) -> bool {
        matches!(self, Kind::Send1 | Kind::Send2 | Kind::WriteImm1)
    }
}

/// Returns the remote address of a message; all are distinct.
fn address(message: usize) -> u64 {
    0x1_0000 + 0x1000 * message as u64
}

/// An action of the responder. The messages define the only valid sequence of steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Writes the payload at this offset of a message.
    Write(usize, u32),
    /// Executes this atomic.
    Atomic(usize),
    /// Completes the receive work request of this message.
    Receive(usize),
}

/// The messages of a connection, and the maximum number of disturbances of each kind.
#[derive(Clone, Debug)]
pub struct Connection {
    pub kinds: Vec<Kind>,
    pub losses: u8,
    pub duplicates: u8,
    pub overtakes: u8,
    pub timers: u8,
}

/// A packet in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InFlight {
    header: Vec<u8>,
    len: u32,
    /// The message that its payload comes from, and the offset there.
    payload: Option<(usize, u32)>,
}

/// The environment of the core.
#[derive(Clone, Debug)]
struct World {
    kinds: Vec<Kind>,
    /// Packets to the responder, and packets to the requester.
    requests: Vec<InFlight>,
    responses: Vec<InFlight>,
    /// The payload of the packet being handled.
    payload: Option<(usize, u32)>,
    /// Number of steps that the responder has executed.
    steps: usize,
    /// Whether a receive work request is in use, the number posted, and the number left to post.
    current: bool,
    posted: u8,
    to_post: u8,
    /// Number of completed work requests, and for each message a bit per placed response packet.
    completed: usize,
    placed: [u8; 4],
    violation: Option<String>,
}

impl World {
    /// Returns the expected steps of all messages, in order.
    fn all_steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (message, kind) in self.kinds.iter().enumerate() {
            match kind {
                Kind::Read1 | Kind::Read2 => {}
                Kind::FetchAdd => steps.push(Step::Atomic(message)),
                kind => steps.extend((0..kind.packets()).map(|n| Step::Write(message, n * MTU))),
            }
            if kind.receives() {
                steps.push(Step::Receive(message));
            }
        }
        steps
    }

    fn violated(&mut self, words: String) {
        self.violation.get_or_insert(words);
    }

    fn step(&mut self, step: Step) {
        match self.all_steps().get(self.steps) {
            Some(next) if *next == step => self.steps += 1,
            next => {
                let next = *next.unwrap_or(&step);
                self.violated(format!(
                    "the responder does {step:?}, and {next:?} was next"
                ));
            }
        }
    }

    /// Checks that the payload of the packet being handled belongs at this address and is next.
    fn place(&mut self, expected_address: Option<u64>) {
        let Some((message, offset)) = self.payload else {
            self.violated("a packet without payload is placed".into());
            return;
        };
        if expected_address.is_some_and(|at| at != address(message) + u64::from(offset)) {
            self.violated(format!("{message} is placed at {expected_address:x?}"));
        }
        self.step(Step::Write(message, offset));
    }
}

/// Returns a packet in flight: of a message, if the requester sends it.
fn on_its_way(packet: &TxPacket, message: Option<usize>) -> InFlight {
    let payload = match packet.payload {
        Payload::None => None,
        Payload::Send { offset, .. } => message.map(|message| (message, offset)),
        Payload::Read { va, .. } => {
            let message = (va - address(0)) / 0x1000;
            Some((message as usize, (va & 0xfff) as u32))
        }
    };
    InFlight {
        header: packet.header().to_vec(),
        len: packet.udp_payload_len(),
        payload,
    }
}

impl RequesterEnv for World {
    type Local = usize;

    fn transmit(
        &mut self,
        packet: &TxPacket,
        count: u32,
        slot: &SendSlot,
    ) -> (u32, Result<(), TxError>) {
        packet.for_each_in_burst(count, |packet| {
            self.requests.push(on_its_way(packet, Some(slot.local)));
            Ok(())
        })
    }

    fn write_read_response(&mut self, slot: &SendSlot, offset: u32) -> Result<(), Fault> {
        let slot = slot.local;
        if self.payload != Some((slot, offset)) {
            let payload = self.payload;
            self.violated(format!("{payload:?} is placed at {offset} of READ {slot}"));
        }
        self.placed[slot] |= 1 << (offset / MTU);
        Ok(())
    }

    fn write_atomic_result(&mut self, slot: &SendSlot, value: u64) -> Result<(), Fault> {
        let slot = slot.local;
        let before = &self.kinds[..slot];
        let original = before
            .iter()
            .filter(|&&kind| kind == Kind::FetchAdd)
            .count();
        if value != original as u64 {
            self.violated(format!("atomic {slot} brings {value}"));
        }
        self.placed[slot] = 1;
        Ok(())
    }

    fn complete(&mut self, slot: &SendSlot, completion: SendCompletion) {
        let message = slot.local;
        if message != self.completed || completion.status != Status::Success {
            self.violated(format!("message {message} completes: {completion:?}"));
        }
        self.completed = message + 1;
        let kind = self.kinds[message];
        // This message and all earlier ones must have executed all of their steps.
        let all = self.all_steps();
        let of = |step: &Step| match *step {
            Step::Write(m, _) | Step::Atomic(m) | Step::Receive(m) => m,
        };
        let needed = all.iter().filter(|step| of(step) <= message).count();
        let whole = match kind {
            Kind::Read2 => 3,
            Kind::Read1 | Kind::FetchAdd => 1,
            _ => 0,
        };
        if self.steps < needed || self.placed[message] != whole {
            self.violated(format!("message {message} completes, and is not done"));
        }
    }

    fn local_op(&mut self, slot: &SendSlot) -> Result<(), Status> {
        self.violated(format!("{} is no local operation", slot.local));
        Ok(())
    }
}

impl ResponderEnv for World {
    fn fetch_recv(&mut self) -> Option<u32> {
        if self.current {
            self.violated("two receive work requests at a time".into());
        }
        self.posted = self.posted.checked_sub(1)?;
        self.current = true;
        Some(2 * MTU)
    }

    fn write_recv(&mut self, offset: u32) -> Result<(), Fault> {
        if self.payload.is_some_and(|(_, at)| at != offset) {
            self.violated(format!("placed at {offset}"));
        }
        self.place(None);
        Ok(())
    }

    fn check_remote(&mut self, _: u32, _: u64, _: u32, _: RemoteAccess) -> Result<DomainId, Fault> {
        Ok(DomainId::default())
    }

    fn write_remote(&mut self, _: u32, va: u64) -> Result<(), Fault> {
        self.place(Some(va));
        Ok(())
    }

    fn atomic(&mut self, _: u32, va: u64, _: AtomicOp) -> Result<u64, Fault> {
        let message = ((va - address(0)) / 0x1000) as usize;
        self.step(Step::Atomic(message));
        let before = &self.kinds[..message];
        Ok(before
            .iter()
            .filter(|&&kind| kind == Kind::FetchAdd)
            .count() as u64)
    }

    fn invalidate(&mut self, _: u32) -> Result<(), Fault> {
        Err(Fault::Protection)
    }

    fn complete_recv(&mut self, completion: RecvCompletion) {
        self.current = false;
        let next = self.all_steps().get(self.steps).copied();
        match next {
            Some(Step::Receive(message)) if completion.status == Status::Success => {
                if completion.byte_len != self.kinds[message].length() {
                    self.violated(format!("message {message}: {completion:?}"));
                }
                self.step(Step::Receive(message));
            }
            next => self.violated(format!("{completion:?}, and {next:?} was next")),
        }
    }

    fn event(&mut self, _: ResponderEvent) {}

    fn transmit(&mut self, packet: &TxPacket, count: u32) -> (u32, Result<(), TxError>) {
        packet.for_each_in_burst(count, |packet| {
            self.responses.push(on_its_way(packet, None));
            Ok(())
        })
    }
}

/// A state of the model.
#[derive(Clone, Debug)]
pub struct State {
    requester: Requester,
    slots: Vec<SendSlot>,
    responder: Responder,
    world: World,
    now: u64,
    /// The responder has packets to send.
    due: bool,
    losses: u8,
    duplicates: u8,
    overtakes: u8,
    timers: u8,
    pub violation: Option<String>,
    key: Key,
}

impl PartialEq for State {
    fn eq(&self, other: &State) -> bool {
        self.key == other.key
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.key.hash(hasher);
    }
}

/// The direction of a packet: to the responder, or to the requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Request,
    Response,
}

/// A transition of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Arrive(Direction, usize),
    Lose(Direction, usize),
    Double(Direction, usize),
    /// The responder transmits.
    Respond,
    Timer,
    PostReceive,
}

impl State {
    fn in_flight(&mut self, direction: Direction) -> &mut Vec<InFlight> {
        match direction {
            Direction::Request => &mut self.world.requests,
            Direction::Response => &mut self.world.responses,
        }
    }

    fn arrive(&mut self, direction: Direction, at: usize) {
        let flight = self.in_flight(direction).remove(at);
        let packet = match Packet::parse(&flight.header, flight.len) {
            Ok(packet) => packet,
            Err(error) => {
                self.world.violated(format!("{error:?}"));
                return;
            }
        };
        self.world.payload = flight.payload;
        let outcome = match direction {
            Direction::Request => {
                let outcome =
                    self.responder
                        .handle_packet(Time::from_ns(self.now), &packet, &mut self.world);
                self.due |= outcome.transmit;
                outcome
            }
            Direction::Response => self.requester.handle_packet(
                &mut self.slots,
                Time::from_ns(self.now),
                &packet,
                &mut self.world,
            ),
        };
        self.world.payload = None;
        self.check(outcome.fatal || outcome.sqe);
    }

    fn check(&mut self, fatal: bool) {
        if fatal {
            self.world.violated("the queue pair is lost".into());
        }
    }

    fn send(&mut self) {
        let progress = self.requester.poll_transmit(
            &mut self.slots,
            Time::from_ns(self.now),
            u32::MAX,
            &mut self.world,
        );
        self.check(progress.fatal || progress.sqe);
    }

    fn respond(&mut self) {
        let progress =
            self.responder
                .poll_transmit(Time::from_ns(self.now), u32::MAX, &mut self.world);
        self.due = false;
        self.check(progress.fatal);
    }

    fn seal(&mut self) {
        self.violation = self.world.violation.clone();
        self.key = key(&[
            &self.requester,
            &self.slots,
            &self.responder,
            &self.world,
            &(
                self.due,
                self.losses,
                self.duplicates,
                self.overtakes,
                self.timers,
            ),
        ]);
    }

    fn is_done(&self) -> bool {
        self.world.completed == self.world.kinds.len()
    }
}

impl Model for Connection {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let attributes = Attributes {
            mtu: Mtu::from_bytes(MTU).expect("it is one"),
            src_qpn: 1,
            dest_qpn: 1,
            sq_psn: PSN,
            rq_psn: PSN,
            max_rd_atomic: 2,
            max_dest_rd_atomic: 2,
            ..Attributes::default()
        };
        let (mut requester, responder) = (attributes.requester(), attributes.responder());
        let mut slots = vec![SendSlot::default(); 4];
        for (message, kind) in self.kinds.iter().enumerate() {
            let slot = requester.free_slot(&mut slots);
            let slot = slot.expect("there are enough slots");
            let request = Request {
                va: address(message),
                atomic: Operands {
                    compare_add: 1,
                    swap: 0,
                },
                ..Request::new(kind.op(), kind.length())
            };
            *slot = SendSlot {
                local: message,
                ..request.into()
            };
            requester.post(slot);
        }
        let receives = self.kinds.iter().filter(|kind| kind.receives()).count() as u8;
        let mut state = State {
            requester,
            slots,
            responder,
            world: World {
                kinds: self.kinds.clone(),
                requests: Vec::new(),
                responses: Vec::new(),
                payload: None,
                steps: 0,
                current: false,
                posted: 0,
                to_post: receives,
                completed: 0,
                placed: [0; 4],
                violation: None,
            },
            now: START,
            due: false,
            losses: self.losses,
            duplicates: self.duplicates,
            overtakes: self.overtakes,
            timers: self.timers,
            violation: None,
            key: Key::default(),
        };
        state.send();
        state.seal();
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.violation.is_some() {
            return;
        }
        for (direction, packets) in [
            (Direction::Request, &state.world.requests),
            (Direction::Response, &state.world.responses),
        ] {
            for at in 0..packets.len() {
                if at == 0 || state.overtakes > 0 {
                    actions.push(Action::Arrive(direction, at));
                }
                if state.losses > 0 {
                    actions.push(Action::Lose(direction, at));
                }
                if state.duplicates > 0 {
                    actions.push(Action::Double(direction, at));
                }
            }
        }
        if state.due {
            actions.push(Action::Respond);
        }
        if state.world.to_post > 0 {
            actions.push(Action::PostReceive);
        }
        // A timer may fire early a limited number of times, and always if nothing else can happen.
        let quiet =
            state.world.requests.is_empty() && state.world.responses.is_empty() && !state.due;
        let armed = state.requester.next_timeout().is_some();
        if armed && (quiet && state.world.to_post == 0 || state.timers > 0) {
            actions.push(Action::Timer);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Arrive(direction, at) => {
                state.overtakes -= u8::from(at != 0);
                state.arrive(direction, at);
            }
            Action::Lose(direction, at) => {
                state.losses -= 1;
                state.in_flight(direction).remove(at);
            }
            Action::Double(direction, at) => {
                state.duplicates -= 1;
                let packet = state.in_flight(direction)[at].clone();
                state.in_flight(direction).push(packet);
            }
            Action::Respond => state.respond(),
            Action::Timer => {
                let world = &state.world;
                let quiet = world.requests.is_empty() && world.responses.is_empty() && !state.due;
                if !(quiet && world.to_post == 0) {
                    state.timers -= 1;
                }
                state.now = state.requester.next_timeout().map(Time::ns)?.max(state.now);
                let outcome = state.requester.handle_timeout(
                    &mut state.slots,
                    Time::from_ns(state.now),
                    &mut state.world,
                );
                state.check(outcome.fatal);
            }
            Action::PostReceive => {
                state.world.to_post -= 1;
                state.world.posted += 1;
            }
        }
        if state.violation.is_none() {
            state.send();
        }
        state.seal();
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("exactly once and in order", |_, state: &State| {
                state.violation.is_none()
            }),
            Property::always("it goes on until all is done", |model: &Self, state| {
                let mut actions = Vec::new();
                model.actions(state, &mut actions);
                !actions.is_empty() || state.violation.is_some() || {
                    state.is_done() && state.requester.next_timeout().is_none()
                }
            }),
            Property::sometimes(DONE, |_, state: &State| state.is_done()),
        ]
    }
}
