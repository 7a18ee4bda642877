// SPDX-License-Identifier: GPL-2.0

//! A minimal driver that counts the calls of the core.

use rrxe_core::{
    AtomicOp, DomainId, Fault, Flush, RecvCompletion, RemoteAccess, RequesterEnv, ResponderEnv,
    ResponderEvent, SendCompletion, SendSlot, Status, TxError, TxPacket,
};
use std::hint::black_box;

/// Bytes of a receive work request. The receive queue is never empty.
pub const RECEIVE: u32 = 65_536;

/// A driver that counts the calls of the core. It adds a few instructions per call to the
/// measurement. The compiler can't predict its results.
#[derive(Default)]
pub struct Sink {
    /// Packets sent.
    pub sent: u64,
    /// Packets placed.
    pub placed: u64,
    /// Work requests completed with success.
    pub done: u64,
    /// Unexpected calls; must stay 0.
    pub wrong: u64,
}

impl Sink {
    fn send(&mut self, packet: &TxPacket, count: u32) -> (u32, Result<(), TxError>) {
        self.sent += u64::from(count);
        black_box(packet);
        black_box((count, Ok(())))
    }

    fn place(&mut self) -> Result<(), Fault> {
        self.placed += 1;
        black_box(Ok(()))
    }

    fn complete(&mut self, status: Status) {
        if status == Status::Success {
            self.done += 1;
        } else {
            self.wrong += 1;
        }
    }
}

impl RequesterEnv for Sink {
    type Local = usize;

    #[inline(never)]
    fn transmit(
        &mut self,
        packet: &TxPacket,
        count: u32,
        slot: &SendSlot,
    ) -> (u32, Result<(), TxError>) {
        black_box(slot);
        self.send(packet, count)
    }

    #[inline(never)]
    fn write_read_response(&mut self, slot: &SendSlot, offset: u32) -> Result<(), Fault> {
        black_box((slot, offset));
        self.place()
    }

    fn write_atomic_result(&mut self, _slot: &SendSlot, _value: u64) -> Result<(), Fault> {
        self.wrong += 1;
        black_box(Ok(()))
    }

    #[inline(never)]
    fn complete(&mut self, slot: &SendSlot, completion: SendCompletion) {
        black_box((slot, &completion));
        self.complete(completion.status);
    }

    fn local_op(&mut self, _slot: &SendSlot) -> Result<(), Status> {
        self.wrong += 1;
        black_box(Ok(()))
    }
}

impl ResponderEnv for Sink {
    #[inline(never)]
    fn fetch_recv(&mut self) -> Option<u32> {
        black_box(Some(RECEIVE))
    }

    #[inline(never)]
    fn write_recv(&mut self, offset: u32) -> Result<(), Fault> {
        black_box(offset);
        self.place()
    }

    #[inline(never)]
    fn check_remote(
        &mut self,
        rkey: u32,
        va: u64,
        len: u32,
        access: RemoteAccess,
    ) -> Result<DomainId, Fault> {
        black_box((rkey, va, len, access));
        black_box(Ok(DomainId::default()))
    }

    #[inline(never)]
    fn write_remote(&mut self, rkey: u32, va: u64) -> Result<(), Fault> {
        black_box((rkey, va));
        self.place()
    }

    fn atomic(&mut self, _rkey: u32, _va: u64, _op: AtomicOp) -> Result<u64, Fault> {
        self.wrong += 1;
        black_box(Ok(0))
    }

    fn atomic_write(&mut self, _rkey: u32, _va: u64) -> Result<(), Fault> {
        self.wrong += 1;
        black_box(Ok(()))
    }

    fn flush(&mut self, _rkey: u32, _flush: Flush) -> Result<(), Fault> {
        self.wrong += 1;
        black_box(Ok(()))
    }

    fn invalidate(&mut self, _rkey: u32) -> Result<(), Fault> {
        self.wrong += 1;
        black_box(Ok(()))
    }

    #[inline(never)]
    fn complete_recv(&mut self, completion: RecvCompletion) {
        black_box(&completion);
        self.complete(completion.status);
    }

    fn event(&mut self, event: ResponderEvent) {
        if event != ResponderEvent::CommEstablished {
            self.wrong += 1;
        }
    }

    #[inline(never)]
    fn transmit(&mut self, packet: &TxPacket, count: u32) -> (u32, Result<(), TxError>) {
        self.send(packet, count)
    }
}
