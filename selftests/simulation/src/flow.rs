// SPDX-License-Identifier: GPL-2.0

//! One direction of a connection: the posted work requests and their state so far. The simulator
//! checks the core against it.

use rrxe_core::{wire::Operation, Fault, Mtu, Psn, Service, Status};
use rrxe_testkit::Op;

/// The reason why a work request must fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trap {
    /// It must not fail.
    None,
    /// Local memory is not accessible from this packet or response on.
    Local(Fault, u32),
    /// An invalid key, or an address outside of its region.
    Access,
    /// A misaligned atomic.
    Alignment,
    /// An invalid key to invalidate.
    Invalidate,
    /// UD: a Q_Key that differs from the receiver's.
    Qkey,
    /// XRC: a shared receive queue that does not exist.
    Queue,
}

/// A posted send work request.
#[derive(Clone, Debug)]
pub struct Message {
    pub op: Op,
    pub len: u32,
    /// Offset of its data in the random table.
    pub data: u32,
    /// Offset in the peer's memory.
    pub place: usize,
    pub imm_or_key: u32,
    pub fence: bool,
    pub signaled: bool,
    pub solicited: bool,
    pub trap: Trap,
    /// UD: the destination queue pair.
    pub to: usize,
    /// XRC: the number of the destination's shared receive queue.
    pub srqn: u32,
    /// PSN of its first packet, relative to the first PSN of the connection.
    pub first: u32,
    /// Number of PSNs that it uses.
    pub packets: u32,
    /// Number of messages on the wire before it.
    pub number: u32,
    /// Its first packet was sent, or its local operation executed.
    pub started: bool,
    /// READ: the expected data, recorded at execution. Atomic: the original value.
    pub result: Vec<u8>,
    /// The atomic, local operation or invalidation was executed.
    pub done: bool,
    /// READ: one bit for each response packet whose payload was placed.
    pub placed: u64,
    /// READ: index of the packet from which the receiver has repeated its response last.
    pub repeated_from: u32,
}

impl Message {
    /// Returns whether it consumes a receive work request.
    pub fn receives(&self) -> bool {
        self.op.typed().uses_receive()
    }

    /// Returns the operation of its packet at this index.
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
            Op::Send => of([O::SendFirst, O::SendMiddle, O::SendLast, O::SendOnly]),
            Op::SendImm => of([O::SendFirst, O::SendMiddle, O::SendLastImm, O::SendOnlyImm]),
            Op::SendInv => of([
                O::SendFirst,
                O::SendMiddle,
                O::SendLastInvalidate,
                O::SendOnlyInvalidate,
            ]),
            Op::Write => of([O::WriteFirst, O::WriteMiddle, O::WriteLast, O::WriteOnly]),
            Op::WriteImm => of([
                O::WriteFirst,
                O::WriteMiddle,
                O::WriteLastImm,
                O::WriteOnlyImm,
            ]),
            Op::Read => O::ReadRequest,
            Op::CompareSwap => O::CompareSwap,
            Op::FetchAdd => O::FetchAdd,
            Op::Flush => O::Flush,
            Op::AtomicWrite => O::AtomicWrite,
            _ => O::Unsupported,
        }
    }
}

/// All messages from one queue pair to its peer.
#[derive(Clone, Debug)]
pub struct Flow {
    pub service: Service,
    pub mtu: Mtu,
    /// Connection count; packets of an earlier epoch are discarded.
    pub epoch: u32,
    /// The first PSN.
    pub base: Psn,
    /// Key and offset of the window in the peer's memory.
    pub rkey: u32,
    pub window: usize,
    pub messages: Vec<Message>,
    /// Number of PSNs assigned to messages, and number of messages on the wire.
    pub psns: u32,
    pub numbered: u32,
    /// One past the highest PSN seen on the wire.
    pub sent: u32,
    /// One past the PSN seen last.
    pub next: u32,
    /// Number of messages that consume a receive work request and for which the receiver has
    /// granted credits; and whether no limit is in force.
    pub granted: usize,
    pub unlimited: bool,
    /// Number of messages completed at the sender.
    pub completed: usize,
    /// A message has failed: every later one is flushed.
    pub failed: bool,
    /// READs and atomics sent but not yet completed.
    pub reads: u32,
    /// PSNs executed by the receiver, messages executed (as an index in `messages`), and the MSN.
    pub executed: u32,
    pub cursor: usize,
    pub msn: u32,
    /// Index of the next message to consume a receive work request.
    pub receiving: usize,
    /// Times of the last eight disturbances, latest first: losses, corruptions, delays,
    /// duplications, forgeries, and buffered packets that the driver has dropped.
    pub disturbed: [u64; 8],
    /// Time of the last completion, and number of RNR NAKs received since.
    pub last_completion: u64,
    pub rnr_naks: u32,
    /// 1 while an RNR NAK is being handled.
    pub rnr_now: u32,
    /// Reasons that excuse failures.
    pub deregistered: bool,
    pub too_short: bool,
    pub receive_fault: bool,
    /// The requester may have more READs and atomics outstanding than the receiver allows.
    pub mismatched: bool,
    /// The receiver has sent a NAK for the PSN that it expects, and sends no other until it arrives
    /// (B-09).
    pub nak_open: bool,
    /// The expected packet was dropped, because its memory was absent, and has not come again; and
    /// the memory may still be absent.
    pub dropped: bool,
    pub absent: bool,
    /// A response was dropped because its memory was absent, and the memory may still be absent.
    pub response_absent: bool,
    /// Time at which the receiver noticed a gap that it has not reported.
    pub gap: Option<u64>,
    /// Number of sequence error NAKs sent for the expected PSN.
    pub naks: u32,
    /// PSNs at which READ responses continue. A duplicate of an older READ or atomic gets its
    /// response first, even in the middle of a response.
    pub responses: Vec<u32>,
    /// End of the RNR wait, and the PSN from which nothing is sent until then.
    pub rnr: Option<(u64, u32)>,
    /// The next work request must be fenced: it reads memory that later ones write.
    pub fence_next: bool,
    /// Number of work requests left to post.
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
            dropped: false,
            absent: false,
            response_absent: false,
            gap: None,
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

    /// Converts a PSN to one relative to the first.
    pub fn relative(&self, psn: Psn) -> u32 {
        psn.since(self.base)
    }

    /// Records the time of a network impairment.
    pub fn disturb(&mut self, now: u64) {
        self.disturbed.rotate_right(1);
        self.disturbed[0] = now;
    }

    /// Converts a relative PSN to a PSN.
    pub fn psn(&self, relative: u32) -> Psn {
        self.base.add(relative)
    }

    /// Returns whether the receiver is in the middle of a SEND.
    pub fn is_inside_of_send(&self) -> bool {
        let message = self.messages.get(self.cursor);
        message.is_some_and(|message| {
            let send = message.receives() && message.op != Op::WriteImm;
            send && message.first < self.executed
        })
    }

    /// Returns whether every posted work request is completed.
    pub fn is_idle(&self) -> bool {
        self.completed == self.messages.len()
    }

    /// Returns whether `status` is a legitimate completion status for the next message.
    pub fn explains(
        &self,
        message: &Message,
        status: Status,
        retry_count: u8,
        rnr_retry: u8,
        peer_alive: bool,
        (now, delay): (u64, u64),
    ) -> bool {
        let silent = !peer_alive
            || self.deregistered
            || message.trap == Trap::Invalidate
            // The responder no longer responds to duplicates whose resources were overwritten.
            || self.mismatched && message.op.typed().is_read_or_atomic();
        match status {
            Status::Success => {
                let executed = match self.service {
                    Service::Rc | Service::Xrc if message.op.typed().is_local() => message.done,
                    Service::Rc | Service::Xrc => self.executed >= message.first + message.packets,
                    _ => {
                        message.op.typed().is_local()
                            || self.sent >= message.first + message.packets
                    }
                };
                executed && matches!(message.trap, Trap::None | Trap::Qkey)
            }
            Status::WrFlush => self.failed,
            // A local failure may have waited for its turn to complete.
            _ if self.failed && !matches!(message.trap, Trap::Local(..)) => false,
            Status::RetryExc => {
                // Each retry needs a disturbance, which may be up to `delay` older than its
                // detection, and in the case of the last retry up to half of `delay`: two timeouts.
                let since = self.last_completion.saturating_sub(delay);
                let disturbed = self.disturbed[usize::from(retry_count & 7)] > since
                    && self.disturbed[0] + delay / 2 > now;
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
                    || self.mismatched && message.op.typed().is_read_or_atomic()
            }
            Status::RemOp => self.receive_fault && message.receives(),
            Status::MwBind => message.op == Op::BindMw && message.trap != Trap::None,
            status => match message.trap {
                Trap::Local(_, _) if message.op.typed().is_local() => status == Status::LocQpOp,
                Trap::Local(fault, _) => status == fault.status(),
                _ => false,
            },
        }
    }
}
