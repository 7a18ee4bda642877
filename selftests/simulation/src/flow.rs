// SPDX-License-Identifier: GPL-2.0

//! One direction of a connection: what was posted, and what is true of it so far. This is what the
//! core's work is judged by.

use rrxe_core::{wire::Operation, Fault, Mtu, Psn, SendOp, Service, Status};

/// Why a work request must fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trap {
    /// It must not.
    None,
    /// Local memory can't be used, from this packet on (or any response).
    Local(Fault, u32),
    /// A key that opens nothing, or an address outside of what it opens.
    Access,
    /// An atomic that is not aligned.
    Alignment,
    /// A key to invalidate that is none.
    Invalidate,
    /// UD: a Q_Key that is not the receiver's.
    Qkey,
    /// XRC: a shared receive queue that is not there.
    Queue,
}

/// A send work request that was posted.
#[derive(Clone, Debug)]
pub struct Message {
    pub op: SendOp,
    pub len: u32,
    /// Where its data stands in the table.
    pub data: u32,
    /// Offset in the peer's memory.
    pub place: usize,
    pub imm_or_key: u32,
    pub fence: bool,
    pub signaled: bool,
    pub solicited: bool,
    pub trap: Trap,
    /// UD: the queue pair that it goes to.
    pub to: usize,
    /// XRC: the number of the shared receive queue that it goes to.
    pub srqn: u32,
    /// PSN of its first packet, counted from the connection's first.
    pub first: u32,
    /// PSNs that it takes.
    pub packets: u32,
    /// Messages on the wire before it.
    pub number: u32,
    /// Its first packet (or local operation) was seen.
    pub started: bool,
    /// READ: what it must bring, since it was executed. Atomic: the value before.
    pub result: Vec<u8>,
    /// Atomic, local operation, invalidation: was executed.
    pub done: bool,
    /// READ: a bit for each packet of the response that was placed.
    pub placed: u64,
}

impl Message {
    /// Whether it consumes a receive work request.
    pub fn receives(&self) -> bool {
        self.op.uses_receive()
    }

    /// What its packet with this index is.
    pub fn operation(&self, index: u32) -> Operation {
        use Operation as O;
        let first = index == 0;
        let last = index + 1 >= self.packets;
        let of = |all: [Operation; 4]| match (first, last) {
            (true, false) => all[0],
            (false, false) => all[1],
            (false, true) => all[2],
            (true, true) => all[3],
        };
        match self.op {
            SendOp::Send => of([O::SendFirst, O::SendMiddle, O::SendLast, O::SendOnly]),
            SendOp::SendImm => of([O::SendFirst, O::SendMiddle, O::SendLastImm, O::SendOnlyImm]),
            SendOp::SendInv => of([
                O::SendFirst,
                O::SendMiddle,
                O::SendLastInvalidate,
                O::SendOnlyInvalidate,
            ]),
            SendOp::Write => of([O::WriteFirst, O::WriteMiddle, O::WriteLast, O::WriteOnly]),
            SendOp::WriteImm => of([
                O::WriteFirst,
                O::WriteMiddle,
                O::WriteLastImm,
                O::WriteOnlyImm,
            ]),
            SendOp::Read => O::ReadRequest,
            SendOp::CompareSwap => O::CompareSwap,
            SendOp::FetchAdd => O::FetchAdd,
            SendOp::Flush => O::Flush,
            SendOp::AtomicWrite => O::AtomicWrite,
            _ => O::Unsupported,
        }
    }
}

/// Everything that one queue pair sends to its peer.
#[derive(Clone, Debug)]
pub struct Flow {
    pub service: Service,
    pub mtu: Mtu,
    /// Counts connections: packets of an earlier one are no longer on the network.
    pub epoch: u32,
    /// The first PSN.
    pub base: Psn,
    /// The key of the window, and the window, in the peer's memory.
    pub rkey: u32,
    pub window: usize,
    pub messages: Vec<Message>,
    /// PSNs given to messages, and messages on the wire.
    pub psns: u32,
    pub numbered: u32,
    /// One beyond the highest PSN seen on the wire.
    pub sent: u32,
    /// One beyond the PSN seen last.
    pub next: u32,
    /// Messages that consume a receive work request, as far as the receiver has granted credits for
    /// them; and whether it has none to give, but takes any number.
    pub granted: usize,
    pub unlimited: bool,
    /// Messages completed at the sender.
    pub completed: usize,
    /// One has failed: from here on all are flushed.
    pub failed: bool,
    /// READs and atomics seen on the wire and not completed.
    pub reads: u32,
    /// PSNs, messages (as they are counted in `messages`, and on the wire) executed by the receiver.
    pub executed: u32,
    pub cursor: usize,
    pub msn: u32,
    /// Of the messages that consume receive work requests, this is the next to be received.
    pub receiving: usize,
    /// When packets were last lost, spoilt, made late or doubled: eight times, the latest first.
    pub disturbed: [u64; 8],
    /// When the last completion was, and RNR NAKs that came since.
    pub last_completion: u64,
    pub rnr_naks: u32,
    /// One is being handled.
    pub rnr_now: u32,
    /// What excuses failures.
    pub deregistered: bool,
    pub too_short: bool,
    pub receive_fault: bool,
    /// More READs and atomics may be under way than the receiver allows.
    pub mismatched: bool,
    /// The receiver has made a NAK for the PSN that it waits for: no other until it comes (B-09).
    pub nak_open: bool,
    /// NAK Sequence Errors sent for it.
    pub naks: u32,
    /// PSNs that the responses to READs go on with. (An older READ or atomic that comes again is
    /// answered first, in the middle of a response.)
    pub responses: Vec<u32>,
    /// An RNR NAK was taken: until then nothing is sent, from this PSN.
    pub rnr: Option<(u64, u32)>,
    /// The next work request must wait for the READ before it: it reads what later ones write.
    pub fence_next: bool,
    /// Work requests still to be posted.
    pub left: u32,
}

impl Flow {
    pub fn new(service: Service, mtu: Mtu) -> Flow {
        Flow {
            service,
            mtu,
            epoch: 0,
            base: Psn::default(),
            rkey: 0,
            window: 0,
            messages: Vec::new(),
            psns: 0,
            numbered: 0,
            sent: 0,
            next: 0,
            granted: 0,
            unlimited: true,
            completed: 0,
            failed: false,
            reads: 0,
            executed: 0,
            cursor: 0,
            msn: 0,
            receiving: 0,
            disturbed: [0; 8],
            last_completion: 0,
            rnr_naks: 0,
            rnr_now: 0,
            deregistered: false,
            too_short: false,
            receive_fault: false,
            mismatched: false,
            nak_open: false,
            naks: 0,
            responses: Vec::new(),
            rnr: None,
            fence_next: false,
            left: 0,
        }
    }

    /// Begins a new connection.
    pub fn restart(&mut self, base: Psn) {
        let old = std::mem::replace(self, Flow::new(self.service, self.mtu));
        self.epoch = old.epoch + 1;
        self.base = base;
        self.window = old.window;
        self.left = old.left;
    }

    /// A PSN counted from the first.
    pub fn relative(&self, psn: Psn) -> u32 {
        psn.since(self.base)
    }

    /// Notes that a packet does not get through as it should.
    pub fn disturb(&mut self, now: u64) {
        self.disturbed.rotate_right(1);
        self.disturbed[0] = now;
    }

    /// The PSN of one counted from the first.
    pub fn psn(&self, relative: u32) -> Psn {
        self.base.add(relative)
    }

    /// Whether the receiver has taken a part of a SEND, and waits for the rest.
    pub fn is_inside_of_send(&self) -> bool {
        let message = self.messages.get(self.cursor);
        message.is_some_and(|message| {
            let send = message.receives() && message.op != SendOp::WriteImm;
            send && message.first < self.executed
        })
    }

    /// Whether everything posted is completed.
    pub fn is_idle(&self) -> bool {
        self.completed == self.messages.len()
    }

    /// Whether a completion with this status is right for the message that is next.
    pub fn explains(
        &self,
        message: &Message,
        status: Status,
        retry_count: u8,
        rnr_retry: u8,
        peer_alive: bool,
        delay: u64,
    ) -> bool {
        let silent = !peer_alive
            || self.deregistered
            || message.trap == Trap::Invalidate
            // What was pushed out by those that are too many is not answered again.
            || self.mismatched && message.op.is_read_or_atomic();
        match status {
            Status::Success => {
                let executed = match self.service {
                    Service::Rc | Service::Xrc if message.op.is_local() => message.done,
                    Service::Rc | Service::Xrc => self.executed >= message.first + message.packets,
                    _ => message.op.is_local() || self.sent >= message.first + message.packets,
                };
                executed && matches!(message.trap, Trap::None | Trap::Qkey)
            }
            Status::WrFlush => self.failed,
            // What failed on this side may have waited for its turn to say so.
            _ if self.failed && !matches!(message.trap, Trap::Local(..)) => false,
            Status::RetryExc => {
                // Each retry takes a disturbance, which may be so much older than what it is found by.
                let since = self.last_completion.saturating_sub(delay);
                let disturbed = self.disturbed[usize::from(retry_count & 7)] > since;
                message.started && (silent || disturbed)
            }
            Status::RnrRetryExc => {
                let may = rnr_retry < 7 && message.trap != Trap::Queue;
                may && self.rnr_naks > u32::from(rnr_retry)
            }
            Status::RemAccess => message.trap == Trap::Access || self.deregistered,
            Status::RemInvReq => {
                matches!(message.trap, Trap::Alignment | Trap::Queue)
                    || self.too_short && message.receives()
                    || self.mismatched && message.op.is_read_or_atomic()
            }
            Status::RemOp => self.receive_fault && message.receives(),
            Status::MwBind => message.op == SendOp::BindMw && message.trap != Trap::None,
            status => match message.trap {
                Trap::Local(_, _) if message.op.is_local() => status == Status::LocQpOp,
                Trap::Local(fault, _) => status == fault.status(),
                _ => false,
            },
        }
    }
}
