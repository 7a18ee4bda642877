// SPDX-License-Identifier: GPL-2.0

//! Work-queue entries: decodes untrusted contents of a ring into the core's work requests.
//!
//! This file does not depend on the kernel: the fuzzer runs it on a host (fuzz/).

use super::abi::{
    wr_opcode, RecvWqe, SendWqe, Sge, WQE_FENCE, WQE_INLINE, WQE_SIGNALED, WQE_SOLICITED,
};
use crate::limits;
use rrxe_core::{wire::Feth, Fault, SendOp};

/// The defined flags. Entries with other flags are refused, so that a later version of the ABI can
/// define them.
const FLAGS: u8 = WQE_FENCE | WQE_INLINE | WQE_SIGNALED | WQE_SOLICITED;

/// The capabilities of a send queue.
#[derive(Clone, Copy)]
pub(crate) struct SendBounds {
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

/// The driver's part of a send work request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LocalPart {
    /// Returned in the completion.
    pub(crate) wr_id: u64,
    /// Index of the slot.
    pub(crate) index: u32,
    /// UD: the address handle.
    pub(crate) ah: u32,
    pub(crate) data: Data,
}

/// The data of a send work request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Data {
    /// Nothing follows the entry: the data of an ATOMIC WRITE is [`SendSlot::swap`].
    #[default]
    InEntry,
    /// Number of data segments that follow the entry in the ring.
    Segments(u32),
    /// Bytes of payload that follow the entry in the ring.
    Inline(u32),
}

impl SendWqe {
    /// Decodes the entry into a slot. The caller must copy the data that follows the entry
    /// ([`LocalPart::data`], within the bounds), and report its length by [`set_length`].
    #[inline]
    pub(crate) fn decode(&self, slot: &mut SendSlot, bounds: &SendBounds) {
        let op = self.send_op(bounds.is_user);
        // These operations name no local memory.
        let (in_entry, length) = match op {
            Some(SendOp::AtomicWrite) => (true, Some(8)),
            // The flush of a whole region has no length.
            Some(SendOp::Flush) if self.imm_or_key >> 4 == u32::from(Feth::REGION) => {
                (true, Some(0))
            }
            Some(SendOp::Flush) => (true, u32::try_from(self.op.compare_add).ok()),
            _ => (false, Some(0)),
        };
        let (inline, num_sge) = (self.flags & WQE_INLINE != 0, u32::from(self.num_sge));
        let (data, fits) = if inline {
            let fits = self.inline_length <= bounds.max_inline && num_sge == 0;
            (Data::Inline(self.inline_length), fits)
        } else if in_entry {
            (Data::InEntry, num_sge == 0)
        } else {
            (Data::Segments(num_sge), num_sge <= bounds.max_sge)
        };
        let malformed = op.is_none()
            || !fits
            || self.flags & !FLAGS != 0
            || self.reserved != 0
            || inline && op.is_some_and(|op| op.is_read_or_atomic() || op.is_local());
        slot.op = op.unwrap_or_default();
        slot.fault = match length {
            _ if malformed => Some(Fault::Malformed),
            None => Some(Fault::Length),
            Some(_) => None,
        };
        slot.fence = self.flags & WQE_FENCE != 0;
        slot.signaled = bounds.signal_all || self.flags & WQE_SIGNALED != 0;
        slot.solicited = self.flags & WQE_SOLICITED != 0;
        slot.length = length.unwrap_or_default();
        slot.remote_addr = self.op.remote_addr;
        slot.rkey_or_qkey = self.op.rkey_or_qkey;
        slot.imm_or_key = self.imm_or_key;
        slot.compare_add = self.op.compare_add;
        slot.swap = self.op.swap;
        slot.remote_qpn = self.op.remote_qpn;
        slot.local = LocalPart {
            wr_id: self.wr_id,
            index: slot.local.index,
            ah: self.ah,
            data: if malformed { Data::InEntry } else { data },
        };
    }

    /// Returns the operation, if the opcode exists.
    #[inline]
    fn send_op(&self, is_user: bool) -> Option<SendOp> {
        match self.opcode {
            wr_opcode::SEND => Some(SendOp::Send),
            wr_opcode::SEND_WITH_IMM => Some(SendOp::SendImm),
            wr_opcode::SEND_WITH_INV => Some(SendOp::SendInv),
            wr_opcode::RDMA_WRITE => Some(SendOp::Write),
            wr_opcode::RDMA_WRITE_WITH_IMM => Some(SendOp::WriteImm),
            wr_opcode::RDMA_READ => Some(SendOp::Read),
            wr_opcode::ATOMIC_CMP_AND_SWP => Some(SendOp::CompareSwap),
            wr_opcode::ATOMIC_FETCH_AND_ADD => Some(SendOp::FetchAdd),
            wr_opcode::FLUSH => Some(SendOp::Flush),
            wr_opcode::ATOMIC_WRITE => Some(SendOp::AtomicWrite),
            wr_opcode::LOCAL_INV => Some(SendOp::LocalInv),
            wr_opcode::BIND_MW => Some(SendOp::BindMw),
            wr_opcode::REG_MR if !is_user => Some(SendOp::RegMr),
            _ => None,
        }
    }
}

/// Sets the length of a work request to the number of bytes of the data that follows the entry.
#[inline]
pub(crate) fn set_length(slot: &mut SendSlot, bytes: u64) {
    let length = u32::try_from(bytes).ok();
    slot.length = length.unwrap_or_default();
    if length.is_none() || slot.op.is_atomic() && bytes != 8 {
        slot.fault = Some(Fault::Length);
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
