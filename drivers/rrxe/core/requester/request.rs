// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Send work requests: one form from the driver's decoding of a work queue entry to the completion.

use super::{Requester, MAX_MESSAGE};
use crate::congestion::CongestionControl;
use crate::psn::Psn;
use crate::wire::{Feth, ImmDt, Operation};
use crate::{AtomicOp, Fault, RingCounter, Service, Status};

/// Length of an atomic write in bytes (IBA A19).
pub(crate) const ATOMIC_WRITE_LEN: u32 = 8;

/// A place in the peer's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remote {
    /// Address in the region that `rkey` names.
    pub va: u64,
    /// Key of the region.
    pub rkey: u32,
}

/// The destination of a datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Destination {
    /// The driver's number of an address handle, which the requester does not use.
    pub ah: u32,
    /// Queue pair number.
    pub qpn: u32,
    /// Q_Key.
    pub qkey: u32,
}

/// The value that the last packet of a SEND brings besides its data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SendExt {
    /// None.
    #[default]
    None,
    /// Immediate data.
    Imm(ImmDt),
    /// A key that the peer invalidates.
    Invalidate(u32),
}

/// Operation of a send work request, with its parameters. `L` is the driver's type of local
/// operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp<L = ()> {
    /// SEND over a connection.
    Send {
        /// Immediate data, or a key to invalidate.
        ext: SendExt,
    },
    /// SEND of a datagram (UD).
    Datagram {
        /// Immediate data.
        imm: Option<ImmDt>,
        /// The destination.
        to: Destination,
    },
    /// RDMA WRITE.
    Write {
        /// Start of the memory to write.
        to: Remote,
        /// Immediate data, which consumes a receive work request of the peer.
        imm: Option<ImmDt>,
    },
    /// RDMA READ.
    Read {
        /// Start of the memory to read.
        from: Remote,
    },
    /// Atomic operation on 8 bytes.
    Atomic {
        /// The bytes, at a multiple of 8.
        at: Remote,
        /// The operation.
        op: AtomicOp,
    },
    /// Atomic write of 8 bytes (IBA A19).
    AtomicWrite {
        /// The bytes to write, at a multiple of 8.
        to: Remote,
        /// Their new value, in the order of memory.
        value: [u8; 8],
    },
    /// FLUSH (IBA A19): makes earlier writes to remote memory visible or persistent before it
    /// completes.
    Flush {
        /// Start of the memory to flush.
        at: Remote,
        /// The guarantees, and the part of the region.
        feth: Feth,
    },
    /// An operation of the driver, which sends no packet.
    Local(L),
    /// A malformed work request, which fails with this fault when it is executed.
    Invalid(Fault),
}

impl<L> Default for SendOp<L> {
    fn default() -> SendOp<L> {
        SendOp::Send { ext: SendExt::None }
    }
}

impl<L> SendOp<L> {
    /// Returns whether this is a READ, atomic, FLUSH or atomic write: an operation with a response
    /// of its own, which alone completes the work request.
    #[inline]
    pub const fn is_read_or_atomic(&self) -> bool {
        self.is_atomic()
            || self.is_read()
            || matches!(self, SendOp::Flush { .. } | SendOp::AtomicWrite { .. })
    }

    /// Returns whether the request packets carry the work request's data.
    #[inline]
    pub const fn carries_data(&self) -> bool {
        !self.is_read_or_atomic() || matches!(self, SendOp::AtomicWrite { .. })
    }

    /// Returns whether this consumes a receive work request of the peer.
    #[inline]
    pub const fn uses_receive(&self) -> bool {
        matches!(
            self,
            SendOp::Send { .. } | SendOp::Datagram { .. } | SendOp::Write { imm: Some(_), .. }
        )
    }

    /// Returns whether this is an RDMA READ.
    #[inline]
    pub const fn is_read(&self) -> bool {
        matches!(self, SendOp::Read { .. })
    }

    /// Returns whether this is an atomic with an operand and an original value.
    #[inline]
    pub const fn is_atomic(&self) -> bool {
        matches!(self, SendOp::Atomic { .. })
    }

    /// Returns whether this sends no packet.
    #[inline]
    pub const fn is_local(&self) -> bool {
        matches!(self, SendOp::Local(_))
    }
}

/// The earlier work requests that must be complete before a work request starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fence {
    /// None.
    #[default]
    None,
    /// READs and atomics (F-24).
    Reads,
    /// All (F-25): an earlier one may need a key again for a retransmission.
    All,
}

/// The driver's part of a work request.
pub trait DriverPart {
    /// The operations of [`SendOp::Local`].
    type LocalOp;
}

/// An index, for drivers without local operations of different kinds.
impl DriverPart for usize {
    type LocalOp = ();
}

/// The result of a send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendCompletion {
    /// The status.
    pub status: Status,
    /// READ and atomics: bytes placed. Others: the length of the message.
    pub byte_len: u32,
    /// Copied from the work request.
    pub signaled: bool,
    /// Detail of a failure for diagnosis: the syndrome of the fatal NAK, or 0.
    pub vendor_err: u32,
}

impl SendCompletion {
    /// Returns whether the consumer gets a completion: it asked for one, or the request failed.
    #[inline]
    pub fn report(&self) -> bool {
        self.signaled || self.status != Status::Success
    }
}

/// Progress of the work request in a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SlotState {
    /// Not started.
    #[default]
    Posted,
    /// Has PSNs or, for a local operation, was executed.
    Started,
    /// Failed locally. It stops the queue, and completes with this status in its turn.
    Failed(Status),
}

/// The requester's own state of a work request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotProgress {
    pub(super) first_psn: Psn,
    /// Number of packets: of the request or, for a READ, of the response.
    pub(super) packets: u32,
    pub(super) state: SlotState,
    /// Some packets were sent more than once.
    pub(super) retried: bool,
}

/// A send work request. The driver provides the storage: a slice of slots whose length, a power of
/// two, is the depth of the send queue. `P` is the driver's part, by default an index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendSlot<P: DriverPart = usize> {
    /// The operation.
    pub op: SendOp<P::LocalOp>,
    /// The work requests to wait for.
    pub fence: Fence,
    /// Reports a successful completion.
    pub signaled: bool,
    /// Sets the solicited event bit of the last packet (SENDs, WRITE with immediate).
    pub solicited: bool,
    /// Length in bytes: of a READ the bytes to read, of a FLUSH the bytes to flush (less than
    /// 2^31). [`Requester::post`] sets the length of atomics, atomic writes and local operations.
    pub length: u32,
    /// XRC: the number of the peer's shared receive queue.
    pub srqn: u32,
    /// The requester's state.
    pub progress: SlotProgress,
    /// The driver's part, which the requester passes to [`super::RequesterEnv`].
    pub local: P,
}

impl<P: DriverPart> SendSlot<P> {
    /// Returns the index of the last packet.
    #[inline]
    pub(super) fn last_index(&self) -> u32 {
        debug_assert!(self.progress.packets != 0, "a work request without packets");
        self.progress.packets.wrapping_sub(1)
    }

    /// Returns the PSN of the last packet. Valid only after the start.
    #[inline]
    pub(super) fn last_psn(&self) -> Psn {
        self.progress.first_psn.add(self.last_index())
    }

    /// Returns whether the work request has PSNs or, if it is local, was executed.
    #[inline]
    pub(super) fn is_started(&self) -> bool {
        self.progress.state == SlotState::Started
    }

    /// Returns whether the work request has started and this PSN is one of its packets.
    #[inline]
    pub(super) fn contains(&self, psn: Psn) -> bool {
        self.is_started() && psn.since(self.progress.first_psn) < self.progress.packets
    }

    /// Returns whether the work request has started, and this PSN is one of its later packets.
    #[inline]
    pub(super) fn is_within(&self, psn: Psn) -> bool {
        psn != self.progress.first_psn && self.contains(psn)
    }

    /// Returns the completion with this status, and with the syndrome of a fatal NAK or 0.
    #[inline]
    pub(super) fn completion(&self, status: Status, syndrome: u8) -> SendCompletion {
        SendCompletion {
            status,
            byte_len: if self.op.is_atomic() { 8 } else { self.length },
            signaled: self.signaled,
            vendor_err: syndrome.into(),
        }
    }

    /// Returns the operation of a packet that is or is not the first and the last of the message.
    #[inline]
    pub(super) fn operation(&self, first: bool, last: bool) -> Operation {
        use Operation as O;
        match (&self.op, first, last) {
            (SendOp::Read { .. }, _, _) => O::ReadRequest,
            (SendOp::Atomic { op, .. }, _, _) => match op {
                AtomicOp::CompareSwap { .. } => O::CompareSwap,
                AtomicOp::FetchAdd { .. } => O::FetchAdd,
            },
            (SendOp::Flush { .. }, _, _) => O::Flush,
            (SendOp::AtomicWrite { .. }, _, _) => O::AtomicWrite,
            (SendOp::Write { .. }, true, false) => O::WriteFirst,
            (SendOp::Write { .. }, false, false) => O::WriteMiddle,
            (SendOp::Write { imm: None, .. }, false, true) => O::WriteLast,
            (SendOp::Write { imm: None, .. }, true, true) => O::WriteOnly,
            (SendOp::Write { .. }, false, true) => O::WriteLastImm,
            (SendOp::Write { .. }, true, true) => O::WriteOnlyImm,
            (SendOp::Datagram { imm: Some(_), .. }, _, _) => O::SendOnlyImm,
            (SendOp::Datagram { .. }, _, _) => O::SendOnly,
            (_, true, false) => O::SendFirst,
            (_, false, false) => O::SendMiddle,
            (SendOp::Send { ext }, first, _) => match (ext, first) {
                (SendExt::None, false) => O::SendLast,
                (SendExt::None, true) => O::SendOnly,
                (SendExt::Imm(_), false) => O::SendLastImm,
                (SendExt::Imm(_), true) => O::SendOnlyImm,
                (SendExt::Invalidate(_), false) => O::SendLastInvalidate,
                (SendExt::Invalidate(_), true) => O::SendOnlyInvalidate,
            },
            (SendOp::Local(_) | SendOp::Invalid(_), _, true) => O::Unsupported,
        }
    }
}

impl<C: CongestionControl> Requester<C> {
    /// Returns the work request at this counter value, if there is one.
    #[inline]
    pub(super) fn slot<'a, P: DriverPart>(
        &self,
        slots: &'a [SendSlot<P>],
        counter: RingCounter,
    ) -> Option<&'a SendSlot<P>> {
        if counter == self.queue.head {
            return None;
        }
        slots.get(counter.index(slots.len()))
    }

    /// Returns the slot at this counter value.
    #[inline]
    pub(super) fn slot_mut<P: DriverPart>(
        slots: &mut [SendSlot<P>],
        counter: RingCounter,
    ) -> Option<&mut SendSlot<P>> {
        slots.get_mut(counter.index(slots.len()))
    }

    /// Returns the slot for the next work request, which the driver writes and then passes to
    /// [`Requester::post`]; `None` if [`Requester::can_post`] returns false.
    #[inline]
    pub fn free_slot<'a, P: DriverPart>(
        &self,
        slots: &'a mut [SendSlot<P>],
    ) -> Option<&'a mut SendSlot<P>> {
        if !self.can_post(slots) {
            return None;
        }
        Self::slot_mut(slots, self.queue.head)
    }

    /// Returns whether the service supports an operation (H-08).
    #[inline]
    pub fn supports<L>(&self, op: &SendOp<L>) -> bool {
        use SendExt::Invalidate;
        match (self.service, op) {
            (_, SendOp::Invalid(_)) => true,
            (service, SendOp::Datagram { .. }) => service == Service::Ud,
            (Service::Rc | Service::Xrc, _) => true,
            (Service::Uc, SendOp::Send { ext: Invalidate(_) }) => false,
            (Service::Uc, op) => !op.is_read_or_atomic(),
            (Service::Ud, _) => false,
        }
    }

    /// Queues the work request in the slot that [`Requester::free_slot`] has returned. If the
    /// service does not support it, or its length is wrong, it becomes [`SendOp::Invalid`]. Nothing
    /// is sent until [`Requester::poll_transmit`].
    #[inline]
    pub fn post<P: DriverPart>(&mut self, slot: &mut SendSlot<P>) {
        let fits = match slot.op {
            SendOp::Flush { .. } => slot.length < MAX_MESSAGE,
            _ => slot.length <= MAX_MESSAGE,
        };
        if !self.supports(&slot.op) {
            slot.op = SendOp::Invalid(Fault::Malformed);
        } else if !fits {
            slot.op = SendOp::Invalid(Fault::Length);
        }
        match slot.op {
            SendOp::AtomicWrite { .. } => slot.length = ATOMIC_WRITE_LEN,
            SendOp::Atomic { .. } | SendOp::Local(_) | SendOp::Invalid(_) => slot.length = 0,
            _ => {}
        }
        slot.progress = SlotProgress {
            packets: match slot.op {
                SendOp::Flush { .. } => 1,
                _ => self.mtu.packets(slot.length),
            },
            ..SlotProgress::default()
        };
        debug_assert!(
            slot.length <= MAX_MESSAGE,
            "a message of more than 2^31 bytes"
        );
        self.queue.head.advance();
    }
}
