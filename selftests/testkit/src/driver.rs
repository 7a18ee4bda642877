// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A simulated driver: memory, queues, and the actions that the core asks for.

use crate::{execute_atomic, Frame};
use rrxe_core::*;
use std::collections::VecDeque;

/// The memory of a work request.
#[derive(Clone, Default)]
pub struct Buffer {
    pub wr_id: u64,
    pub data: Vec<u8>,
    /// Error of accesses to the memory.
    pub fault: Option<Fault>,
}

impl Buffer {
    fn write(&mut self, offset: u32, bytes: &[u8]) -> Result<(), Fault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let at = offset as usize;
        self.data[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

/// A completed work request.
pub struct Done<C> {
    pub wr_id: u64,
    /// The operation of a send work request.
    pub op: Option<SendOp>,
    pub completion: C,
    pub data: Vec<u8>,
}

/// A memory region that the peer may access.
#[derive(Clone)]
pub struct Region {
    pub key: u32,
    /// The address of the first byte.
    pub va: u64,
    pub bytes: Vec<u8>,
    /// The rights of the peer: r, w and a for READ, WRITE and atomics; f and p for FLUSHes for
    /// visibility and persistence.
    pub rights: String,
    /// It is neither deregistered nor invalidated.
    pub valid: bool,
}

/// The resources of a queue pair.
#[derive(Default)]
pub struct Driver {
    pub regions: Vec<Region>,
    /// The memory of the regions is absent.
    pub absent: bool,
    /// The check of a request for remote memory finds that, and not only the access.
    pub checks_presence: bool,
    /// All send work requests so far; [`SendSlot::local`] is the index.
    pub sq: Vec<Buffer>,
    pub rq: VecDeque<Buffer>,
    /// The current receive work request.
    pub current: Option<Buffer>,
    pub sent: VecDeque<Done<SendCompletion>>,
    pub received: VecDeque<Done<RecvCompletion>>,
    pub events: Vec<ResponderEvent>,
    pub invalidated: Vec<u32>,
    pub local_ops: Vec<usize>,
    /// Number of executed atomics.
    pub atomics: u32,
    /// Executed FLUSHes.
    pub flushes: Vec<Flush>,
    /// XRC: number of the shared receive queue, whose receive work requests are in `rq`.
    pub srq: Option<u32>,
    /// Capacity of the next batches in packets; `None` for any number.
    pub space: Option<u32>,
    /// Error returned for packets instead of sending them.
    pub refuse: Option<TxError>,
    /// Status of local operations that fail.
    pub local_fault: Option<Status>,
    /// Earliest time of the RNR retries that the driver limits, and their number so far.
    pub rnr_retry: (u64, u32),
    /// Payload of the packet being handled.
    pub payload: Vec<u8>,
    /// Outgoing packets.
    pub out: Vec<Frame>,
}

impl Driver {
    /// Returns the region with this key.
    pub fn region(&mut self, rkey: u32) -> Result<&mut Region, Fault> {
        let mut regions = self.regions.iter_mut();
        let region = regions.find(|region| region.key == rkey && region.valid);
        region.ok_or(Fault::Protection)
    }

    /// Returns the bytes of a region if the peer has this right.
    fn access(&mut self, rkey: u32, va: u64, len: usize, right: char) -> Result<&mut [u8], Fault> {
        let region = self.region(rkey)?;
        let start = va.checked_sub(region.va).ok_or(Fault::Protection)? as usize;
        let end = start.checked_add(len).ok_or(Fault::Protection)?;
        if !region.rights.contains(right) {
            return Err(Fault::Protection);
        }
        region.bytes.get_mut(start..end).ok_or(Fault::Protection)
    }

    fn present(&self) -> Result<(), Fault> {
        if self.absent {
            return Err(Fault::NotPresent);
        }
        Ok(())
    }

    /// Sends a packet with its payload. A requester's packet has a slot.
    fn emit(&mut self, packet: &TxPacket, slot: Option<&SendSlot>) -> Result<(), TxError> {
        if let Some(error) = self.refuse {
            return Err(error);
        }
        if self.space == Some(0) {
            return Err(TxError::Full);
        }
        let payload = match packet.payload {
            Payload::None => Vec::new(),
            Payload::Send { offset, len } => {
                let buffer = &self.sq[slot.expect("a request").local];
                if let Some(fault) = buffer.fault {
                    return Err(fault.into());
                }
                buffer.data[offset as usize..(offset + len) as usize].to_vec()
            }
            Payload::Read { rkey, va, len, .. } => {
                let bytes = self.access(rkey, va, len as usize, 'r')?.to_vec();
                self.present()?;
                bytes
            }
        };
        self.space = self.space.map(|space| space - 1);
        self.out.push(Frame::new(packet, payload));
        Ok(())
    }
}

impl RequesterEnv for Driver {
    type Local = usize;

    fn transmit(
        &mut self,
        packet: &TxPacket,
        count: u32,
        slot: &SendSlot,
    ) -> (u32, Result<(), TxError>) {
        packet.for_each_in_burst(count, |packet| self.emit(packet, Some(slot)))
    }

    fn write_read_response(&mut self, slot: &SendSlot, offset: u32) -> Result<(), Fault> {
        self.sq[slot.local].write(offset, &self.payload)
    }

    fn write_atomic_result(&mut self, slot: &SendSlot, value: u64) -> Result<(), Fault> {
        let buffer = &mut self.sq[slot.local];
        buffer.data = value.to_ne_bytes().to_vec();
        buffer.fault.map_or(Ok(()), Err)
    }

    fn complete(&mut self, slot: &SendSlot, completion: SendCompletion) {
        let buffer = std::mem::take(&mut self.sq[slot.local]);
        self.sent.push_back(Done {
            wr_id: buffer.wr_id,
            op: Some(slot.op),
            completion,
            data: buffer.data,
        });
    }

    fn local_op(&mut self, slot: &SendSlot) -> Result<(), Status> {
        self.local_ops.push(slot.local);
        self.local_fault.map_or(Ok(()), Err)
    }

    fn reserve_rnr_retry(&mut self, now: Time) -> Time {
        self.rnr_retry.1 += 1;
        now.max(Time::from_ns(self.rnr_retry.0))
    }
}

impl ResponderEnv for Driver {
    fn fetch_recv(&mut self) -> Option<u32> {
        assert!(self.current.is_none());
        self.current = self.rq.pop_front();
        self.current.as_ref().map(|r| r.data.len() as u32)
    }

    fn write_recv(&mut self, offset: u32) -> Result<(), Fault> {
        let current = self.current.as_mut().expect("it was fetched");
        current.write(offset, &self.payload)
    }

    fn check_remote(
        &mut self,
        rkey: u32,
        va: u64,
        len: u32,
        access: RemoteAccess,
    ) -> Result<DomainId, Fault> {
        assert_ne!(len, 0);
        let right = match access {
            RemoteAccess::Read => 'r',
            RemoteAccess::Write => 'w',
            RemoteAccess::Atomic => 'a',
        };
        self.access(rkey, va, len as usize, right)?;
        if self.checks_presence {
            self.present()?;
        }
        Ok(DomainId::default())
    }

    fn write_remote(&mut self, rkey: u32, va: u64) -> Result<(), Fault> {
        self.present()?;
        let payload = std::mem::take(&mut self.payload);
        let bytes = self.access(rkey, va, payload.len(), 'w');
        let written = bytes.map(|bytes| bytes.copy_from_slice(&payload));
        self.payload = payload;
        written
    }

    fn atomic(&mut self, rkey: u32, va: u64, op: AtomicOp) -> Result<u64, Fault> {
        self.present()?;
        let original = execute_atomic(self.access(rkey, va, 8, 'a')?, op);
        self.atomics += 1;
        Ok(original)
    }

    fn atomic_write(&mut self, rkey: u32, va: u64) -> Result<(), Fault> {
        assert_eq!(self.payload.len(), 8);
        self.write_remote(rkey, va)?;
        self.atomics += 1;
        Ok(())
    }

    fn flush(&mut self, rkey: u32, flush: Flush) -> Result<(), Fault> {
        self.present()?;
        let (va, len) = flush.range.unwrap_or((self.region(rkey)?.va, 0));
        for (asked, right) in [(flush.global, 'f'), (flush.persistent, 'p')] {
            if asked {
                self.access(rkey, va, len as usize, right)?;
            }
        }
        self.flushes.push(flush);
        Ok(())
    }

    fn fetch_xrc_recv(&mut self, srqn: u32) -> Result<Option<u32>, Fault> {
        if self.srq != Some(srqn) {
            return Err(Fault::Protection);
        }
        Ok(self.fetch_recv())
    }

    fn invalidate(&mut self, rkey: u32) -> Result<(), Fault> {
        self.region(rkey)?.valid = false;
        self.invalidated.push(rkey);
        Ok(())
    }

    fn complete_recv(&mut self, completion: RecvCompletion) {
        let buffer = self.current.take().expect("it was fetched");
        self.received.push_back(Done {
            wr_id: buffer.wr_id,
            op: None,
            completion,
            data: buffer.data,
        });
    }

    fn event(&mut self, event: ResponderEvent) {
        self.events.push(event);
    }

    fn transmit(&mut self, packet: &TxPacket, count: u32) -> (u32, Result<(), TxError>) {
        packet.for_each_in_burst(count, |packet| self.emit(packet, None))
    }
}
