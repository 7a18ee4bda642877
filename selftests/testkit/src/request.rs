// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Send work requests for tests that choose the operation and its parameters separately.

use crate::{BASE, QKEY, RKEY};
use rrxe_core::{
    wire::{Feth, ImmDt},
    AtomicOp, Destination, Fence, Remote, SendExt, SendOp, SendSlot,
};

/// An operation without its parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Op {
    #[default]
    Send,
    SendImm,
    SendInv,
    Write,
    WriteImm,
    Read,
    CompareSwap,
    FetchAdd,
    Flush,
    AtomicWrite,
    LocalInv,
    RegMr,
    BindMw,
}

/// The destination of datagrams between the two hosts of a test.
pub const DATAGRAM: Destination = Destination {
    ah: 0,
    qpn: 101,
    qkey: QKEY,
};

impl Op {
    /// Returns the operation with default parameters.
    pub fn typed(self) -> SendOp {
        Request::new(self, 0).typed()
    }
}

/// A send work request. Each operation uses only its own parameters.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub op: Op,
    /// Waits for earlier READs and atomics.
    pub fence: bool,
    pub signaled: bool,
    pub solicited: bool,
    pub length: u32,
    pub va: u64,
    pub rkey: u32,
    pub imm: ImmDt,
    /// The key that the peer invalidates.
    pub key: u32,
    pub feth: Feth,
    pub atomic: Operands,
    /// The destination, which makes a SEND a datagram.
    pub to: Option<Destination>,
    /// XRC: the shared receive queue.
    pub srqn: u32,
}

/// Operands of atomics.
#[derive(Clone, Copy, Debug, Default)]
pub struct Operands {
    /// The value to compare with, or the addend.
    pub compare_add: u64,
    /// The new value of a compare and swap.
    pub swap: u64,
}

impl Request {
    /// Returns a work request for the start of the peer's memory.
    pub fn new(op: Op, length: u32) -> Request {
        Request {
            op,
            fence: false,
            signaled: false,
            solicited: false,
            length,
            va: BASE,
            rkey: RKEY,
            imm: ImmDt([1, 2, 3, 4]),
            key: 0,
            feth: Feth::default(),
            atomic: Operands::default(),
            to: None,
            srqn: 0,
        }
    }

    fn typed(&self) -> SendOp {
        let at = Remote {
            va: self.va,
            rkey: self.rkey,
        };
        let imm = self.imm;
        let Operands { compare_add, swap } = self.atomic;
        let atomic = |op| SendOp::Atomic { at, op };
        match (self.op, self.to) {
            (Op::Send, Some(to)) => SendOp::Datagram { imm: None, to },
            (Op::SendImm, Some(to)) => SendOp::Datagram { imm: Some(imm), to },
            (Op::Send, None) => SendOp::default(),
            (Op::SendImm, None) => SendOp::Send {
                ext: SendExt::Imm(imm),
            },
            (Op::SendInv, _) => SendOp::Send {
                ext: SendExt::Invalidate(self.key),
            },
            (Op::Write, _) => SendOp::Write { to: at, imm: None },
            (Op::WriteImm, _) => SendOp::Write {
                to: at,
                imm: Some(imm),
            },
            (Op::Read, _) => SendOp::Read { from: at },
            (Op::CompareSwap, _) => atomic(AtomicOp::CompareSwap {
                compare: compare_add,
                swap,
            }),
            (Op::FetchAdd, _) => atomic(AtomicOp::FetchAdd { add: compare_add }),
            (Op::Flush, _) => SendOp::Flush {
                at,
                feth: self.feth,
            },
            // The test driver sends the bytes of the buffer.
            (Op::AtomicWrite, _) => SendOp::AtomicWrite {
                to: at,
                value: [0; 8],
            },
            (Op::LocalInv | Op::RegMr | Op::BindMw, _) => SendOp::Local(()),
        }
    }
}

impl Default for Request {
    fn default() -> Request {
        Request::new(Op::default(), 0)
    }
}

impl From<Request> for SendSlot {
    fn from(request: Request) -> SendSlot {
        SendSlot {
            op: request.typed(),
            fence: match request.op {
                Op::LocalInv => Fence::All,
                _ if request.fence => Fence::Reads,
                _ => Fence::None,
            },
            signaled: request.signaled,
            solicited: request.solicited,
            length: request.length,
            srqn: request.srqn,
            ..SendSlot::default()
        }
    }
}
