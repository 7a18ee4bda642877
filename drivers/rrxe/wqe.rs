// SPDX-License-Identifier: GPL-2.0

//! Work-queue entries: translates untrusted contents of a ring into the core's requests, or a
//! fault.
//!
//! This file does not depend on the kernel: the fuzzer runs it on a host (fuzz/).

use crate::{
    abi::{wr_opcode, RecvWqe, SendWqe, Sge, WQE_FENCE, WQE_INLINE, WQE_SIGNALED, WQE_SOLICITED},
    limits,
};
use rrxe_core::{wire::Feth, Fault, SendOp, SendRequest};

/// The defined flags. Entries with other flags are refused, so that a later version of the ABI can
/// define them.
const FLAGS: u8 = WQE_FENCE | WQE_INLINE | WQE_SIGNALED | WQE_SOLICITED;

/// The capabilities of a send queue.
#[derive(Clone, Copy)]
pub(crate) struct SendBounds {
    /// Every work request raises a completion.
    pub(crate) signal_all: bool,
    /// Data segments of a work request.
    pub(crate) max_sge: usize,
    /// Bytes of inline data of a work request.
    pub(crate) max_inline: usize,
}

/// The data that follows an entry in the ring and must be copied out, within [`SendBounds`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trailer {
    /// Number of data segments.
    Segments(usize),
    /// Bytes of payload.
    Inline(usize),
}

/// A send work-queue entry.
#[derive(Clone, Copy)]
pub(crate) struct SendEntry {
    request: SendRequest,
    fault: Option<Fault>,
    /// The data that follows it. The caller must report its length by [`SendEntry::set_length`].
    pub(crate) trailer: Trailer,
    /// No data of its own follows it.
    without_data: bool,
}

impl SendEntry {
    /// Decodes an entry of a ring.
    pub(crate) fn decode(wqe: &SendWqe, bounds: &SendBounds) -> Self {
        let op = match wqe.opcode {
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
            _ => None,
        };
        let request = SendRequest {
            op: op.unwrap_or_default(),
            fence: wqe.flags & WQE_FENCE != 0,
            signaled: bounds.signal_all || wqe.flags & WQE_SIGNALED != 0,
            solicited: wqe.flags & WQE_SOLICITED != 0,
            length: 0,
            remote_addr: wqe.op.remote_addr,
            rkey: wqe.op.rkey_or_qkey,
            imm_or_key: wqe.imm_or_key,
            compare_add: wqe.op.compare_add,
            swap: wqe.op.swap,
            remote_qpn: wqe.op.remote_qpn & rrxe_core::wire::QPN_MASK,
            qkey: wqe.op.rkey_or_qkey,
            pkey: limits::DEFAULT_PKEY,
        };
        // These operations name no local memory.
        let (without_data, length) = match op {
            Some(SendOp::AtomicWrite) => (true, Some(8)),
            // The flush of a whole region has no length.
            Some(SendOp::Flush) if wqe.imm_or_key >> 4 == u32::from(Feth::REGION) => {
                (true, Some(0))
            }
            Some(SendOp::Flush) => {
                let length = u32::try_from(wqe.op.compare_add).ok();
                (true, length.filter(|&n| n < limits::MAX_MESSAGE))
            }
            _ => (false, Some(0)),
        };
        let inline = wqe.flags & WQE_INLINE != 0;
        let (inline_length, num_sge) = (wqe.inline_length as usize, usize::from(wqe.num_sge));
        let (trailer, fits) = match inline {
            true if inline_length <= bounds.max_inline => (Trailer::Inline(inline_length), true),
            true => (Trailer::Inline(0), false),
            false if num_sge <= bounds.max_sge => (Trailer::Segments(num_sge), true),
            false => (Trailer::Segments(0), false),
        };
        let malformed = op.is_none()
            || !fits
            || wqe.flags & !FLAGS != 0
            || wqe.reserved != 0
            || inline && op.is_some_and(|op| op.is_read_or_atomic() || op.is_local())
            || without_data && wqe.num_sge != 0
            || inline && wqe.num_sge != 0;
        let fault = match length {
            _ if malformed => Some(Fault::Malformed),
            None => Some(Fault::Length),
            Some(_) => None,
        };
        Self {
            request: SendRequest {
                length: length.unwrap_or_default(),
                ..request
            },
            fault,
            trailer,
            without_data,
        }
    }

    /// Decodes an entry of a kernel consumer's ring. It may also be a fast registration; programs
    /// register memory by a verb, which pins it.
    pub(crate) fn decode_kernel(wqe: &SendWqe, bounds: &SendBounds) -> Self {
        let mut entry = Self::decode(wqe, bounds);
        if wqe.opcode == wr_opcode::REG_MR {
            entry.request.op = SendOp::RegMr;
            entry.fault = None;
        }
        entry
    }

    /// Sets the total number of bytes of the data that follows.
    pub(crate) fn set_length(&mut self, bytes: u64) {
        if self.fault.is_some() || self.without_data {
            return;
        }
        match u32::try_from(bytes) {
            Ok(length) if length <= limits::MAX_MESSAGE => self.request.length = length,
            _ => self.fault = Some(Fault::Length),
        }
        if self.request.op.is_atomic() && bytes != 8 {
            self.fault = Some(Fault::Length);
        }
    }

    /// Returns the data of an atomic write, which is part of the entry.
    pub(crate) fn operand(&self) -> Option<[u8; 8]> {
        (self.request.op == SendOp::AtomicWrite).then(|| self.request.swap.to_ne_bytes())
    }

    /// Records that the requester refuses the request.
    pub(crate) fn refuse(&mut self, fault: Fault) {
        self.fault = Some(fault);
    }

    /// Returns the fault with which a malformed work request fails when it is executed.
    pub(crate) fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// Returns the request for the requester. A malformed entry becomes a request that fails when
    /// it is executed.
    pub(crate) fn request(&self) -> SendRequest {
        match self.fault {
            None => self.request,
            Some(_) => SendRequest {
                op: SendOp::Send,
                signaled: true,
                length: 0,
                ..self.request
            },
        }
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
pub(crate) fn total(lengths: impl Iterator<Item = u32>) -> u64 {
    lengths.map(u64::from).fold(0, u64::saturating_add)
}

/// Calls `f` with (lkey, address, bytes done before, bytes) for each piece of the `len` bytes from
/// `offset` on. Returns `Fault::Malformed` if the list is too short.
pub(crate) fn for_each_piece(
    list: impl Iterator<Item = Sge>,
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
    if done == len {
        Ok(())
    } else {
        Err(Fault::Malformed)
    }
}
