// SPDX-License-Identifier: GPL-2.0

//! Work-queue entries, read with suspicion: what a ring holds becomes the core's words, or a fault.
//!
//! Nothing here touches the kernel: the fuzzer runs this file on a host (fuzz/).

use crate::{
    abi::{wr_opcode, RecvWqe, SendWqe, Sge, WQE_FENCE, WQE_INLINE, WQE_SIGNALED, WQE_SOLICITED},
    limits,
};
use rrxe_core::{wire::Feth, Fault, SendOp, SendRequest};

/// The flags that mean something. What an entry says beyond them is refused, and can mean something
/// in a later version of the ABI.
const FLAGS: u8 = WQE_FENCE | WQE_INLINE | WQE_SIGNALED | WQE_SOLICITED;

/// What a send queue was created for.
#[derive(Clone, Copy)]
pub(crate) struct SendBounds {
    /// Every work request raises a completion.
    pub(crate) signal_all: bool,
    /// Data segments of a work request.
    pub(crate) max_sge: usize,
    /// Bytes of inline data of a work request.
    pub(crate) max_inline: usize,
}

/// What follows an entry in the ring, and is to be copied out: within the bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behind {
    /// So many data segments.
    Segments(usize),
    /// So many bytes of payload.
    Inline(usize),
}

/// A send work-queue entry.
#[derive(Clone, Copy)]
pub(crate) struct SendEntry {
    request: SendRequest,
    fault: Option<Fault>,
    /// What follows it. [`SendEntry::set_length`] wants to hear how long that is.
    pub(crate) behind: Behind,
    /// It has no data of its own behind it.
    bare: bool,
}

impl SendEntry {
    /// From the ring.
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
        // These name no memory of this side.
        let (bare, length) = match op {
            Some(SendOp::AtomicWrite) => (true, Some(8)),
            // Of a whole region no length counts.
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
        let (behind, fits) = match inline {
            true if inline_length <= bounds.max_inline => (Behind::Inline(inline_length), true),
            true => (Behind::Inline(0), false),
            false if num_sge <= bounds.max_sge => (Behind::Segments(num_sge), true),
            false => (Behind::Segments(0), false),
        };
        let malformed = op.is_none()
            || !fits
            || wqe.flags & !FLAGS != 0
            || wqe.reserved != 0
            || inline && op.is_some_and(|op| op.is_read_or_atomic() || op.is_local())
            || bare && wqe.num_sge != 0
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
            behind,
            bare,
        }
    }

    /// From the ring of a kernel consumer, who has one operation more: programs register memory by
    /// a verb, which pins it.
    pub(crate) fn decode_kernel(wqe: &SendWqe, bounds: &SendBounds) -> Self {
        let mut entry = Self::decode(wqe, bounds);
        if wqe.opcode == wr_opcode::REG_MR {
            entry.request.op = SendOp::RegMr;
            entry.fault = None;
        }
        entry
    }

    /// The bytes that what follows holds together.
    pub(crate) fn set_length(&mut self, bytes: u64) {
        if self.fault.is_some() || self.bare {
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

    /// The data of an atomic write, which stands in the entry itself.
    pub(crate) fn operand(&self) -> Option<[u8; 8]> {
        (self.request.op == SendOp::AtomicWrite).then(|| self.request.swap.to_ne_bytes())
    }

    /// The requester does not take it.
    pub(crate) fn refuse(&mut self, fault: Fault) {
        self.fault = Some(fault);
    }

    /// It makes no sense, and fails so when its turn comes.
    pub(crate) fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// For the requester. In the place of an entry that makes no sense, what fails on its turn.
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
    /// Data segments that follow: within the bounds.
    pub(crate) num_sge: usize,
    /// It makes no sense: it takes anything, and fails then.
    pub(crate) malformed: bool,
    length: u32,
}

impl RecvEntry {
    /// From the ring of a queue whose work requests have `max_sge` segments at most.
    pub(crate) fn decode(wqe: &RecvWqe, max_sge: usize) -> Self {
        let num_sge = wqe.num_sge as usize;
        let malformed = num_sge > max_sge || wqe.reserved != 0;
        Self {
            num_sge: if malformed { 0 } else { num_sge },
            malformed,
            length: 0,
        }
    }

    /// The bytes that its segments hold together.
    pub(crate) fn set_length(&mut self, bytes: u64) {
        match u32::try_from(bytes) {
            Ok(length) if length <= limits::MAX_MESSAGE => self.length = length,
            _ => self.malformed = true,
        }
    }

    /// Bytes that it takes.
    pub(crate) fn length(&self) -> u32 {
        if self.malformed {
            limits::MAX_MESSAGE
        } else {
            self.length
        }
    }
}

/// Bytes of data segments of these lengths together.
pub(crate) fn total(lengths: impl Iterator<Item = u32>) -> u64 {
    lengths.map(u64::from).fold(0, u64::saturating_add)
}

/// Calls `f` with (lkey, address, bytes done before, bytes) for each piece of the `len` bytes from
/// `offset` on. `Fault::Malformed` where the list is shorter.
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
