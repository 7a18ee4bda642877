// SPDX-License-Identifier: GPL-2.0

//! Work-queue entries: decodes untrusted contents of a ring into the core's work requests.
//!
//! This file does not depend on the kernel: the fuzzer runs it on a host (fuzz/).

use super::abi::{
    wr_opcode, RecvWqe, SendWqe, Sge, WQE_FENCE, WQE_INLINE, WQE_SIGNALED, WQE_SOLICITED,
};
use crate::limits;
use core::mem::size_of;
use rrxe_core::{
    wire::{Feth, ImmDt},
    AtomicOp, Destination, DriverPart, Fault, Fence, Remote, SendExt, SendOp, Service,
};

/// The defined flags. Entries with other flags are refused, so that a later version of the ABI can
/// define them.
const FLAGS: u8 = WQE_FENCE | WQE_INLINE | WQE_SIGNALED | WQE_SOLICITED;

/// The capabilities of a send queue.
#[derive(Clone, Copy)]
pub(crate) struct SendBounds {
    pub(crate) service: Service,
    /// The ring belongs to a user program. Only kernel consumers post fast registrations: programs
    /// register memory by a verb, which pins it.
    pub(crate) is_user: bool,
    /// Every work request raises a completion.
    pub(crate) signal_all: bool,
    /// Data segments of a work request.
    pub(crate) max_sge: u32,
    /// Bytes of inline data of a work request.
    pub(crate) max_inline: u32,
}

/// A send work request.
pub(crate) type SendSlot = rrxe_core::SendSlot<LocalPart>;

// The operation takes 48 bytes: an atomic and a local operation have 40 bytes of parameters.
const _: () = assert!(size_of::<SendSlot>() == 88);

/// The driver's part of a send work request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LocalPart {
    /// Returned in the completion.
    pub(crate) wr_id: u64,
    /// Index of the slot.
    pub(crate) index: u32,
    pub(crate) data: Data,
}

impl DriverPart for LocalPart {
    type LocalOp = LocalOp;
}

/// The data of a send work request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Data {
    /// Nothing follows the entry.
    #[default]
    None,
    /// Number of data segments that follow the entry in the ring.
    Segments(u16),
    /// The payload follows the entry in the ring: [`SendSlot::length`] bytes.
    Inline,
}

/// A key that a work request makes valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NewKey {
    /// Its upper 24 bits name the window or the fast registration.
    pub(crate) key: u32,
    /// Window: the region's key.
    pub(crate) lkey: u32,
    /// The address of the first byte in work requests; for a window, in those of the region.
    pub(crate) address: u64,
    /// Bytes; 0 unbinds a window of type 1.
    pub(crate) length: u64,
    /// `IB_ACCESS_*` flags.
    pub(crate) access: u64,
}

/// An operation that sends no packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LocalOp {
    /// Invalidates a key.
    Invalidate(u32),
    /// Binds a memory window.
    BindMw(NewKey),
    /// Registers a fast memory region.
    RegMr(NewKey),
}

impl Default for LocalOp {
    fn default() -> Self {
        Self::Invalidate(0)
    }
}

impl SendWqe {
    /// Decodes the entry into a slot. The caller must copy the data that follows the entry
    /// ([`LocalPart::data`], within the bounds), and report the length of segments by
    /// [`set_length`].
    #[inline]
    pub(crate) fn decode(&self, slot: &mut SendSlot, bounds: &SendBounds) {
        slot.op = self.send_op(bounds);
        let (mut data, mut length, fits) = match slot.op {
            SendOp::Invalid(_) => (Data::None, 0, false),
            _ if self.flags & WQE_INLINE != 0 => {
                let has_data = !slot.op.is_read_or_atomic() && !slot.op.is_local();
                let fits = self.inline_length <= bounds.max_inline && self.num_sge == 0;
                (Data::Inline, self.inline_length, fits && has_data)
            }
            SendOp::AtomicWrite { .. } => (Data::None, 0, self.num_sge == 0),
            SendOp::Flush { feth, .. } => {
                // The flush of a whole region has no length.
                let length = match feth.level {
                    Feth::REGION => 0,
                    _ => self.op.compare_add,
                };
                (Data::None, message_length(length), self.num_sge == 0)
            }
            _ => {
                let fits = u32::from(self.num_sge) <= bounds.max_sge;
                (Data::Segments(self.num_sge), 0, fits)
            }
        };
        if !fits || self.flags & !FLAGS != 0 || self.reserved != 0 {
            slot.op = SendOp::Invalid(Fault::Malformed);
            (data, length) = (Data::None, 0);
        }
        slot.fence = match slot.op {
            SendOp::Local(LocalOp::Invalidate(_)) => Fence::All,
            _ if self.flags & WQE_FENCE != 0 => Fence::Reads,
            _ => Fence::None,
        };
        slot.signaled = bounds.signal_all || self.flags & WQE_SIGNALED != 0;
        slot.solicited = self.flags & WQE_SOLICITED != 0;
        slot.length = length;
        slot.srqn = self.op.remote_qpn;
        slot.local.wr_id = self.wr_id;
        slot.local.data = data;
    }

    /// Returns the operation, which is invalid if the opcode does not exist.
    #[inline]
    fn send_op(&self, bounds: &SendBounds) -> SendOp<LocalOp> {
        let op = &self.op;
        let at = Remote {
            va: op.remote_addr,
            rkey: op.rkey_or_qkey,
        };
        let to = Destination {
            ah: self.ah,
            qpn: op.remote_qpn,
            qkey: op.rkey_or_qkey,
        };
        let new_key = NewKey {
            key: op.rkey_or_qkey,
            lkey: op.remote_qpn,
            address: op.remote_addr,
            length: op.compare_add,
            access: op.swap,
        };
        let has_imm = matches!(
            self.opcode,
            wr_opcode::SEND_WITH_IMM | wr_opcode::RDMA_WRITE_WITH_IMM
        );
        let imm = has_imm.then_some(ImmDt::from_verbs(self.imm_or_key));
        let send = |ext| SendOp::Send { ext };
        let atomic = |op| SendOp::Atomic { at, op };
        match self.opcode {
            wr_opcode::SEND | wr_opcode::SEND_WITH_IMM if bounds.service == Service::Ud => {
                SendOp::Datagram { imm, to }
            }
            wr_opcode::SEND | wr_opcode::SEND_WITH_IMM => {
                send(imm.map_or(SendExt::None, SendExt::Imm))
            }
            wr_opcode::SEND_WITH_INV => send(SendExt::Invalidate(self.imm_or_key)),
            wr_opcode::RDMA_WRITE | wr_opcode::RDMA_WRITE_WITH_IMM => SendOp::Write { to: at, imm },
            wr_opcode::RDMA_READ => SendOp::Read { from: at },
            wr_opcode::ATOMIC_CMP_AND_SWP => atomic(AtomicOp::CompareSwap {
                compare: op.compare_add,
                swap: op.swap,
            }),
            wr_opcode::ATOMIC_FETCH_AND_ADD => atomic(AtomicOp::FetchAdd {
                add: op.compare_add,
            }),
            wr_opcode::FLUSH => SendOp::Flush {
                at,
                feth: Feth::from_bytes(&[0, 0, 0, self.imm_or_key as u8]),
            },
            wr_opcode::ATOMIC_WRITE => SendOp::AtomicWrite {
                to: at,
                value: op.swap.to_ne_bytes(),
            },
            wr_opcode::LOCAL_INV => SendOp::Local(LocalOp::Invalidate(self.imm_or_key)),
            wr_opcode::BIND_MW => SendOp::Local(LocalOp::BindMw(new_key)),
            wr_opcode::REG_MR if !bounds.is_user => SendOp::Local(LocalOp::RegMr(new_key)),
            _ => SendOp::Invalid(Fault::Malformed),
        }
    }
}

/// Converts a number of bytes to the length of a message. A length that does not fit is still
/// longer than any message may be.
#[inline]
fn message_length(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Sets the length of a work request to the number of bytes of its segments.
#[inline]
pub(crate) fn set_length(slot: &mut SendSlot, bytes: u64) {
    slot.length = message_length(bytes);
    if slot.op.is_atomic() && bytes != 8 {
        slot.op = SendOp::Invalid(Fault::Length);
    }
}

/// Returns the opcode of the completion: a value of `enum ib_wc_opcode`.
pub(crate) fn wc_opcode(op: &SendOp<LocalOp>) -> u8 {
    match op {
        SendOp::Send { .. } | SendOp::Datagram { .. } | SendOp::Invalid(_) => 0,
        SendOp::Write { .. } => 1,
        SendOp::Read { .. } => 2,
        SendOp::Atomic { op, .. } => match op {
            AtomicOp::CompareSwap { .. } => 3,
            AtomicOp::FetchAdd { .. } => 4,
        },
        SendOp::Local(LocalOp::BindMw(_)) => 5,
        SendOp::Local(LocalOp::Invalidate(_)) => 6,
        SendOp::Flush { .. } => 8,
        SendOp::AtomicWrite { .. } => 9,
        SendOp::Local(LocalOp::RegMr(_)) => 10,
    }
}

/// A receive work-queue entry.
#[derive(Clone, Copy)]
pub(crate) struct RecvEntry {
    /// Number of data segments that follow, within the bounds.
    pub(crate) num_sge: usize,
    /// The entry is malformed: it accepts any message, and fails then.
    pub(crate) malformed: bool,
    length: u32,
}

impl RecvEntry {
    /// Decodes an entry of a queue whose work requests have up to `max_sge` segments.
    pub(crate) fn decode(wqe: &RecvWqe, max_sge: usize) -> Self {
        let num_sge = wqe.num_sge as usize;
        let malformed = num_sge > max_sge || wqe.reserved != 0;
        Self {
            num_sge: if malformed { 0 } else { num_sge },
            malformed,
            length: 0,
        }
    }

    /// Sets the total number of bytes of the segments.
    pub(crate) fn set_length(&mut self, bytes: u64) {
        match u32::try_from(bytes) {
            Ok(length) if length <= limits::MAX_MESSAGE => self.length = length,
            _ => self.malformed = true,
        }
    }

    /// Returns the number of bytes that the work request accepts.
    pub(crate) fn length(&self) -> u32 {
        if self.malformed {
            limits::MAX_MESSAGE
        } else {
            self.length
        }
    }
}

/// Returns the sum of the lengths of data segments.
pub(crate) fn total(list: &[Sge]) -> u64 {
    let lengths = list.iter().map(|segment| segment.length.into());
    lengths.fold(0, u64::saturating_add)
}

/// Calls `f` with (lkey, address, bytes done before, bytes) for each piece of the `len` bytes from
/// `offset` on. Returns `Fault::Malformed` if the list is too short.
pub(crate) fn for_each_piece(
    list: &[Sge],
    offset: u32,
    len: usize,
    mut f: impl FnMut(u32, u64, usize, u32) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let mut skip = offset;
    let mut done = 0usize;
    for segment in list {
        if done == len {
            return Ok(());
        }
        if skip >= segment.length {
            skip = skip.wrapping_sub(segment.length);
            continue;
        }
        let addr = segment
            .addr
            .checked_add(skip.into())
            .ok_or(Fault::Protection)?;
        let left = u32::try_from(len.wrapping_sub(done)).map_err(|_| Fault::Malformed)?;
        let n = left.min(segment.length.wrapping_sub(skip));
        f(segment.lkey, addr, done, n)?;
        done = done.wrapping_add(n as usize);
        skip = 0;
    }
    (done == len).then_some(()).ok_or(Fault::Malformed)
}
