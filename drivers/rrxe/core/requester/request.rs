// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Send work requests: one form from the driver's decoding of a work queue entry to the completion.

use super::{Requester, MAX_MESSAGE};
use crate::congestion::CongestionControl;
use crate::psn::Psn;
use crate::wire::Operation;
use crate::{Fault, Service, Status};

/// Length of an atomic write in bytes (IBA A19).
pub(crate) const ATOMIC_WRITE_LEN: u32 = 8;

/// Operation of a send work request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SendOp {
    /// SEND.
    #[default]
    Send,
    /// SEND with immediate data.
    SendImm,
    /// SEND that invalidates a key of the peer.
    SendInv,
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with immediate data.
    WriteImm,
    /// RDMA READ.
    Read,
    /// Atomic compare and swap of 8 bytes.
    CompareSwap,
    /// Atomic fetch and add of 8 bytes.
    FetchAdd,
    /// FLUSH (IBA A19): makes earlier writes to remote memory visible or persistent before it
    /// completes.
    Flush,
    /// Atomic write of 8 bytes (IBA A19).
    AtomicWrite,
    /// Invalidates a local key: sends no packet.
    LocalInv,
    /// Registers a fast memory region: sends no packet.
    RegMr,
    /// Binds a memory window: sends no packet.
    BindMw,
}

impl SendOp {
    /// Returns whether this is a READ, atomic, FLUSH or atomic write: an operation with an answer
    /// of its own, which alone completes the work request.
    #[inline]
    pub const fn is_read_or_atomic(self) -> bool {
        self.is_atomic() || matches!(self, SendOp::Read | SendOp::Flush | SendOp::AtomicWrite)
    }

    /// Returns whether the request packets carry the work request's data.
    #[inline]
    pub const fn carries_data(self) -> bool {
        !self.is_read_or_atomic() || matches!(self, SendOp::AtomicWrite)
    }

    /// Returns whether this consumes a receive work request of the peer.
    #[inline]
    pub const fn uses_receive(self) -> bool {
        matches!(
            self,
            SendOp::Send | SendOp::SendImm | SendOp::SendInv | SendOp::WriteImm
        )
    }

    /// Returns whether this is an atomic with an operand and an original value.
    #[inline]
    pub const fn is_atomic(self) -> bool {
        matches!(self, SendOp::CompareSwap | SendOp::FetchAdd)
    }

    /// Returns whether this sends no packet.
    #[inline]
    pub const fn is_local(self) -> bool {
        matches!(self, SendOp::LocalInv | SendOp::RegMr | SendOp::BindMw)
    }

    /// Returns the opcode of the completion: the value of `enum ib_wc_opcode`.
    pub const fn wc_opcode(self) -> u8 {
        match self {
            SendOp::Send | SendOp::SendImm | SendOp::SendInv => 0,
            SendOp::Write | SendOp::WriteImm => 1,
            SendOp::Read => 2,
            SendOp::CompareSwap => 3,
            SendOp::FetchAdd => 4,
            SendOp::BindMw => 5,
            SendOp::LocalInv => 6,
            SendOp::Flush => 8,
            SendOp::AtomicWrite => 9,
            SendOp::RegMr => 10,
        }
    }
}

/// The result of a send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendCompletion {
    /// The status.
    pub status: Status,
    /// The operation; [`SendOp::wc_opcode`] returns its number in the completion.
    pub op: SendOp,
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
pub struct SendSlot<P = usize> {
    /// The operation.
    pub op: SendOp,
    /// The work request is malformed: it fails with this fault when it is executed.
    pub fault: Option<Fault>,
    /// Starts only after all earlier READs and atomics are complete (F-24).
    pub fence: bool,
    /// Reports a successful completion.
    pub signaled: bool,
    /// Sets the solicited event bit of the last packet (SENDs, WRITE with immediate).
    pub solicited: bool,
    /// Length in bytes: of a READ the bytes to read, of a FLUSH the bytes to flush (less than
    /// 2^31), of an atomic write 8, of atomics and local operations 0.
    pub length: u32,
    /// RDMA and atomics: the remote address.
    pub remote_addr: u64,
    /// RDMA and atomics: the remote key. UD: the destination's Q_Key.
    pub rkey_or_qkey: u32,
    /// Immediate data as in the `imm_data` of verbs (network byte order); or the key to invalidate
    /// (host byte order); or for a FLUSH the placement type in bits 0 to 3 and the selectivity
    /// level in bits 4 and 5 ([`crate::wire::Feth`]).
    pub imm_or_key: u32,
    /// FetchAdd: addend. CompareSwap: value to compare with.
    pub compare_add: u64,
    /// CompareSwap: the new value.
    pub swap: u64,
    /// UD: the destination queue pair. XRC: the peer's shared receive queue.
    pub remote_qpn: u32,
    /// The requester's state.
    pub progress: SlotProgress,
    /// The driver's part, which the requester passes to [`super::RequesterEnv`].
    pub local: P,
}

impl<P> SendSlot<P> {
    /// Returns the PSN of the last packet. Valid only after the start.
    #[inline]
    pub(super) fn last_psn(&self) -> Psn {
        debug_assert!(self.progress.packets != 0, "a work request without packets");
        self.progress
            .first_psn
            .add(self.progress.packets.wrapping_sub(1))
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
            op: self.op,
            byte_len: if self.op.is_atomic() { 8 } else { self.length },
            signaled: self.signaled,
            vendor_err: syndrome.into(),
        }
    }

    /// Returns the operation of a packet that is or is not the first and the last of the message.
    #[inline]
    pub(super) fn operation(&self, first: bool, last: bool) -> Operation {
        use Operation as O;
        match (self.op, first, last) {
            (SendOp::Read, _, _) => O::ReadRequest,
            (SendOp::CompareSwap, _, _) => O::CompareSwap,
            (SendOp::FetchAdd, _, _) => O::FetchAdd,
            (SendOp::Flush, _, _) => O::Flush,
            (SendOp::AtomicWrite, _, _) => O::AtomicWrite,
            (SendOp::Write | SendOp::WriteImm, true, false) => O::WriteFirst,
            (SendOp::Write | SendOp::WriteImm, false, false) => O::WriteMiddle,
            (SendOp::Write, false, true) => O::WriteLast,
            (SendOp::Write, true, true) => O::WriteOnly,
            (SendOp::WriteImm, false, true) => O::WriteLastImm,
            (SendOp::WriteImm, true, true) => O::WriteOnlyImm,
            (_, true, false) => O::SendFirst,
            (_, false, false) => O::SendMiddle,
            (SendOp::SendImm, false, true) => O::SendLastImm,
            (SendOp::SendImm, true, true) => O::SendOnlyImm,
            (SendOp::SendInv, false, true) => O::SendLastInvalidate,
            (SendOp::SendInv, true, true) => O::SendOnlyInvalidate,
            (_, false, true) => O::SendLast,
            (_, true, true) => O::SendOnly,
        }
    }
}

impl<C: CongestionControl> Requester<C> {
    /// Returns the work request at this counter value, if there is one.
    #[inline]
    pub(super) fn slot<'a, P>(
        &self,
        slots: &'a [SendSlot<P>],
        counter: u32,
    ) -> Option<&'a SendSlot<P>> {
        if counter == self.queue.head {
            return None;
        }
        debug_assert!(slots.len().is_power_of_two(), "a ring of the wrong size");
        slots.get(counter as usize & slots.len().wrapping_sub(1))
    }

    /// Returns the slot at this counter value.
    #[inline]
    pub(super) fn slot_mut<P>(slots: &mut [SendSlot<P>], counter: u32) -> Option<&mut SendSlot<P>> {
        debug_assert!(slots.len().is_power_of_two(), "a ring of the wrong size");
        slots.get_mut(counter as usize & slots.len().wrapping_sub(1))
    }

    /// Returns the slot for the next work request, which the driver writes and then passes to
    /// [`Requester::post`]; `None` if [`Requester::can_post`] returns false.
    #[inline]
    pub fn free_slot<'a, P>(&self, slots: &'a mut [SendSlot<P>]) -> Option<&'a mut SendSlot<P>> {
        if !self.can_post(slots) {
            return None;
        }
        Self::slot_mut(slots, self.queue.head)
    }

    /// Returns whether the service supports an operation (H-08).
    #[inline]
    pub fn supports(&self, op: SendOp) -> bool {
        match self.service {
            Service::Rc | Service::Xrc => true,
            Service::Uc => !op.is_read_or_atomic() && op != SendOp::SendInv,
            Service::Ud => matches!(op, SendOp::Send | SendOp::SendImm),
        }
    }

    /// Queues the work request in the slot that [`Requester::free_slot`] has returned. One that the
    /// service does not support, or whose length is wrong, fails when it is executed, as if the
    /// driver had set [`SendSlot::fault`]. Nothing is sent until [`Requester::poll_transmit`].
    #[inline]
    pub fn post<P>(&mut self, slot: &mut SendSlot<P>) {
        let op = slot.op;
        if op.is_atomic() || op.is_local() {
            slot.length = 0;
        }
        let fits = match op {
            SendOp::AtomicWrite => slot.length == ATOMIC_WRITE_LEN,
            SendOp::Flush => slot.length < MAX_MESSAGE,
            _ => slot.length <= MAX_MESSAGE,
        };
        slot.fault = match slot.fault {
            None if !self.supports(op) => Some(Fault::Malformed),
            None if !fits => Some(Fault::Length),
            fault => fault,
        };
        if slot.fault.is_some() {
            slot.op = SendOp::Send;
            slot.length = 0;
            slot.signaled = true;
        }
        slot.progress = SlotProgress {
            packets: match slot.op {
                SendOp::Flush => 1,
                _ => self.mtu.packets(slot.length),
            },
            ..SlotProgress::default()
        };
        debug_assert!(
            self.supports(slot.op),
            "the service does not support the operation"
        );
        debug_assert!(
            slot.length <= MAX_MESSAGE,
            "a message of more than 2^31 bytes"
        );
        self.queue.head = self.queue.head.wrapping_add(1);
    }
}
