// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A simulated driver: memory, queues, and the actions that the core asks for.

use super::{BASE, DEPTH, MEMORY, RKEY};
use rrxe_core::*;
use std::collections::VecDeque;

/// The driver's part of a send work request: its memory.
#[derive(Clone, Default)]
pub struct SendBuffer {
    pub wr_id: u64,
    pub data: Vec<u8>,
}

/// A receive work request.
pub struct RecvBuffer {
    pub wr_id: u64,
    pub data: Vec<u8>,
}

/// A completed send work request.
pub struct SendDone {
    pub wr_id: u64,
    pub completion: SendCompletion,
    pub data: Vec<u8>,
}

/// A completed receive work request.
pub struct RecvDone {
    pub wr_id: u64,
    pub completion: RecvCompletion,
    pub data: Vec<u8>,
}

/// The resources of a host's queue pair.
pub struct Driver {
    pub memory: Vec<u8>,
    /// The valid memory key; `None` after its revocation.
    pub rkey: Option<u32>,
    pub sq: Vec<SendBuffer>,
    pub rq: VecDeque<RecvBuffer>,
    /// The current receive work request.
    current: Option<RecvBuffer>,
    pub sent: Vec<SendDone>,
    pub received: Vec<RecvDone>,
    pub events: Vec<ResponderEvent>,
    pub invalidated: Vec<u32>,
    pub local_ops: Vec<u32>,
    /// Number of executed atomics.
    pub atomics: u32,
    /// Executed FLUSHes.
    pub flushes: Vec<Flush>,
    /// XRC: number of the shared receive queue, whose receive work requests are in `rq`.
    pub srq: Option<u32>,
    /// Number of packets that the next batches have room for.
    pub room: u32,
    /// Error returned for packets instead of sending them.
    pub refuse: Option<TxError>,
    /// Error of the requester's local memory accesses.
    pub send_fault: Option<Fault>,
    /// Error of accesses to receive work requests.
    pub recv_fault: Option<Fault>,
    /// Error of local operations.
    pub local_fault: Option<Fault>,
    /// Payload of the packet being handled.
    pub payload: Vec<u8>,
    /// Outgoing packets: whole UDP payloads.
    pub out: Vec<Vec<u8>>,
}

impl Driver {
    pub fn new() -> Driver {
        Driver {
            memory: vec![0; MEMORY],
            rkey: Some(RKEY),
            sq: vec![SendBuffer::default(); DEPTH],
            rq: VecDeque::new(),
            current: None,
            sent: Vec::new(),
            received: Vec::new(),
            events: Vec::new(),
            invalidated: Vec::new(),
            local_ops: Vec::new(),
            atomics: 0,
            flushes: Vec::new(),
            srq: None,
            room: u32::MAX,
            refuse: None,
            send_fault: None,
            recv_fault: None,
            local_fault: None,
            payload: Vec::new(),
            out: Vec::new(),
        }
    }

    fn range(&self, rkey: u32, va: u64, len: u32) -> Result<std::ops::Range<usize>, Fault> {
        let start = va.checked_sub(BASE).ok_or(Fault::Protection)? as usize;
        let end = start.checked_add(len as usize).ok_or(Fault::Protection)?;
        if self.rkey != Some(rkey) || end > self.memory.len() {
            return Err(Fault::Protection);
        }
        Ok(start..end)
    }

    /// Sends a packet with its payload, padding and ICRC.
    fn emit(&mut self, packet: &TxPacket) -> Result<(), TxError> {
        if let Some(error) = self.refuse {
            return Err(error);
        }
        if self.room == 0 {
            return Err(TxError::NoRoom);
        }
        let mut bytes = packet.header().to_vec();
        match packet.payload {
            Payload::None => {}
            Payload::Send { slot, offset, len } => {
                if let Some(fault) = self.send_fault {
                    return Err(TxError::Local(fault));
                }
                let data = &self.sq[slot as usize].data;
                bytes.extend(&data[offset as usize..(offset + len) as usize]);
            }
            Payload::Read { rkey, va, len } => {
                let range = self
                    .range(rkey, va, len)
                    .map_err(|_| TxError::RemoteAccess)?;
                bytes.extend(&self.memory[range]);
            }
        }
        bytes.extend(std::iter::repeat_n(0, packet.pad.into()));
        let icrc = icrc_of(&bytes);
        bytes.extend(icrc);
        assert_eq!(bytes.len(), packet.udp_payload_len() as usize);
        self.room -= 1;
        self.out.push(bytes);
        Ok(())
    }
}

/// Returns the ICRC of a packet with all-zero IP and UDP headers.
pub fn icrc_of(bytes: &[u8]) -> [u8; 4] {
    let state = icrc::ipv4(icrc::crc32_le, &[0; 20], &[0; 8], bytes);
    icrc::finish(state)
}

impl RequesterEnv for Driver {
    fn transmit(&mut self, packet: &TxPacket) -> Result<(), TxError> {
        self.emit(packet)
    }

    fn write_read_response(&mut self, slot: u32, offset: u32) -> Result<(), Fault> {
        let at = offset as usize;
        self.sq[slot as usize].data[at..at + self.payload.len()].copy_from_slice(&self.payload);
        Ok(())
    }

    fn write_atomic_result(&mut self, slot: u32, value: u64) -> Result<(), Fault> {
        self.sq[slot as usize].data = value.to_ne_bytes().to_vec();
        Ok(())
    }

    fn complete(&mut self, slot: u32, completion: SendCompletion) {
        let buffer = std::mem::take(&mut self.sq[slot as usize]);
        self.sent.push(SendDone {
            wr_id: buffer.wr_id,
            completion,
            data: buffer.data,
        });
    }

    fn local_op(&mut self, slot: u32) -> Result<(), Fault> {
        self.local_ops.push(slot);
        self.local_fault.map_or(Ok(()), Err)
    }
}

impl ResponderEnv for Driver {
    fn fetch_recv(&mut self) -> Option<RecvRequest> {
        assert!(self.current.is_none());
        self.current = self.rq.pop_front();
        self.current.as_ref().map(|r| RecvRequest {
            length: r.data.len() as u32,
        })
    }

    fn write_recv(&mut self, offset: u32) -> Result<(), Fault> {
        if let Some(fault) = self.recv_fault {
            return Err(fault);
        }
        let at = offset as usize;
        let current = self.current.as_mut().unwrap();
        current.data[at..at + self.payload.len()].copy_from_slice(&self.payload);
        Ok(())
    }

    fn check_remote(
        &mut self,
        rkey: u32,
        va: u64,
        len: u32,
        _access: RemoteAccess,
    ) -> Result<(), Fault> {
        assert_ne!(len, 0);
        self.range(rkey, va, len).map(|_| ())
    }

    fn write_remote(&mut self, rkey: u32, va: u64) -> Result<(), Fault> {
        let range = self.range(rkey, va, self.payload.len() as u32)?;
        self.memory[range].copy_from_slice(&self.payload);
        Ok(())
    }

    fn atomic(&mut self, rkey: u32, va: u64, op: AtomicOp) -> Result<u64, Fault> {
        let range = self.range(rkey, va, 8)?;
        let word: &mut [u8; 8] = (&mut self.memory[range]).try_into().unwrap();
        let original = u64::from_ne_bytes(*word);
        *word = match op {
            AtomicOp::CompareSwap { compare, swap } if compare == original => swap,
            AtomicOp::CompareSwap { .. } => original,
            AtomicOp::FetchAdd { add } => original.wrapping_add(add),
        }
        .to_ne_bytes();
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
        let (va, len) = flush.range.unwrap_or((BASE, 0));
        self.range(rkey, va, len)?;
        self.flushes.push(flush);
        Ok(())
    }

    fn fetch_xrc_recv(&mut self, srqn: u32) -> Result<Option<RecvRequest>, Fault> {
        if self.srq != Some(srqn) {
            return Err(Fault::Protection);
        }
        Ok(self.fetch_recv())
    }

    fn invalidate(&mut self, rkey: u32) -> Result<(), Fault> {
        if self.rkey != Some(rkey) {
            return Err(Fault::Protection);
        }
        self.rkey = None;
        self.invalidated.push(rkey);
        Ok(())
    }

    fn complete_recv(&mut self, completion: RecvCompletion) {
        let RecvBuffer { wr_id, data } = self.current.take().unwrap();
        self.received.push(RecvDone {
            wr_id,
            completion,
            data,
        });
    }

    fn event(&mut self, event: ResponderEvent) {
        self.events.push(event);
    }

    fn transmit(&mut self, packet: &TxPacket) -> Result<(), TxError> {
        self.emit(packet)
    }
}
