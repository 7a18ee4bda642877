// SPDX-License-Identifier: GPL-2.0

//! The environment of the core's responder: a memory region, receive work requests, a wire. It
//! panics if the core makes a call that the contract forbids.

use crate::script::{Fed, Script, Service};
use rrxe_core::{
    AtomicOp, DomainId, Fault, Flush, Payload, RecvCompletion, RemoteAccess, ResponderEnv,
    ResponderEvent, Status, TxError, TxPacket,
};
use rrxe_testkit::{execute_atomic, layout::extensions};
use std::collections::VecDeque;

/// Bytes of the memory region.
pub const SIZE: usize = 4096;
/// Key of the memory region.
pub const KEY: u32 = 0x1234_5600;
/// The Q_Key.
pub const QKEY: u32 = 0x1111_0000;
/// The peer's queue pair.
pub const PEER: u32 = 0x0a_bcde;
/// Capacity of a reorder buffer. It is small, so that the buffer fills up.
pub const PLACES: usize = 8;
/// This queue pair.
pub const OWN: u32 = 0x00_0123;

/// A receive work request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receive {
    /// Number of the work request, counting from 0.
    pub id: u32,
    /// Buffer of the work request.
    pub data: Vec<u8>,
}

/// The environment of a responder.
pub struct World {
    /// Start address of the region.
    pub base: u64,
    /// Whether the key is valid.
    pub open: bool,
    /// Whether the region allows READ, WRITE and atomic.
    pub rights: [bool; 3],
    /// Contents of the region.
    pub memory: Vec<u8>,
    /// Posted receive work requests.
    pub receives: VecDeque<Receive>,
    posted: u32,
    current: Option<Receive>,
    /// Completed receive work requests.
    pub done: Vec<(Receive, RecvCompletion)>,
    /// Events that the responder reported.
    pub events: Vec<ResponderEvent>,
    /// The packet being handled.
    pub packet: Option<Fed>,
    /// Fault to inject, after the given number of successful actions.
    pub fault: Option<(u8, Fault)>,
    /// Packets that can still be sent.
    pub space: u32,
    /// Packets sent: headers and payload.
    pub sent: Vec<(Vec<u8>, Vec<u8>)>,
    /// Number of ACKs and NAKs sent.
    pub acknowledgements: u32,
    /// Number of READ responses and atomic acknowledgements sent.
    pub responses: u32,
    /// Bytes of a full packet.
    pub mtu: u32,
    /// Top three bits of the service's opcodes.
    pub class: u8,
    /// Ranges of READs that were granted.
    reads: Vec<(u64, u32)>,
    /// Range of the WRITE that was granted last.
    write: Option<(u64, u32)>,
    /// In the Error state: no further action is allowed.
    pub dead: bool,
}

impl World {
    /// Creates an environment with nothing posted.
    pub fn new(base: u64, mtu: u32, rights: [bool; 3]) -> World {
        World {
            base,
            open: true,
            rights,
            memory: vec![0; SIZE],
            receives: VecDeque::new(),
            posted: 0,
            current: None,
            done: Vec::new(),
            events: Vec::new(),
            packet: None,
            fault: None,
            space: u32::MAX,
            sent: Vec::new(),
            acknowledgements: 0,
            responses: 0,
            mtu,
            class: 0,
            reads: Vec::new(),
            write: None,
            dead: false,
        }
    }

    /// Posts a receive work request of `len` bytes.
    pub fn post(&mut self, len: usize) {
        self.receives.push_back(Receive {
            id: self.posted,
            data: vec![0; len],
        });
        self.posted += 1;
    }

    /// Returns whether a receive work request is being filled.
    pub fn busy(&self) -> bool {
        self.current.is_some()
    }

    /// Makes one of the next actions fail.
    pub fn arm(&mut self, script: &mut Script<'_>) {
        let fault = match script.u8() % 3 {
            0 => Fault::Protection,
            1 => Fault::Malformed,
            _ => Fault::Length,
        };
        self.fault = Some((script.u8() % 4, fault));
    }

    fn act(&mut self) -> Result<(), Fault> {
        assert!(!self.dead, "acts in the Error state");
        burn(&mut self.fault)
    }

    /// Checks an access against the region, independently of the protocol. Returns its range.
    fn range(
        &self,
        key: u32,
        va: u64,
        len: u32,
        access: RemoteAccess,
    ) -> Result<std::ops::Range<usize>, Fault> {
        let right = match access {
            RemoteAccess::Read => self.rights[0],
            RemoteAccess::Write => self.rights[1],
            RemoteAccess::Atomic => self.rights[2],
        };
        let start = u128::from(va).checked_sub(self.base.into());
        let start = start.ok_or(Fault::Protection)?;
        let end = start + u128::from(len);
        if !self.open || !right || key != KEY || end > SIZE as u128 {
            return Err(Fault::Protection);
        }
        Ok(start as usize..end as usize)
    }

    fn payload(&self) -> Fed {
        let packet = self.packet.expect("places without a packet");
        assert_ne!(packet.payload, 0, "places nothing");
        packet
    }

    /// Checks a packet.
    fn send(&mut self, packet: &TxPacket) -> Result<(), TxError> {
        assert!(!self.dead, "sends in the Error state");
        if self.space == 0 {
            return Err(TxError::Full);
        }
        let head = packet.header();
        let opcode = head[0] & 0x1f;
        assert_eq!(head[0] >> 5, self.class >> 5, "another service's opcode");
        let expected: usize = extensions(opcode).iter().map(|h| h.size()).sum();
        assert_eq!(head.len(), 12 + expected, "headers of {opcode:#x}");
        assert!(
            (0x0d..=0x12).contains(&opcode),
            "{opcode:#x} is no response"
        );
        assert_eq!(head[5..8], PEER.to_be_bytes()[1..], "to another queue pair");
        assert_eq!(head[1] & 0x0f, 0, "transport version");
        let len = packet.payload.len();
        assert_eq!(
            (head[1] >> 4) & 3,
            (len as u8).wrapping_neg() & 3,
            "padding"
        );
        assert_eq!(packet.pad, (head[1] >> 4) & 3);
        match opcode {
            0x0d | 0x0e => assert_eq!(len, self.mtu, "not a full packet"),
            0x0f => assert!(len != 0 && len <= self.mtu),
            0x10 => assert!(len <= self.mtu),
            _ => assert_eq!(len, 0, "an acknowledgement with payload"),
        }
        let payload = match packet.payload {
            Payload::None => Vec::new(),
            Payload::Send { .. } => panic!("sends a work request's data"),
            Payload::Read { rkey, va, len, .. } => {
                assert!(
                    self.reads.iter().any(|granted| within((va, len), *granted)),
                    "reads what it did not ask for"
                );
                let range = self.range(rkey, va, len, RemoteAccess::Read)?;
                self.act()?;
                self.memory[range].to_vec()
            }
        };
        self.space -= 1;
        match opcode {
            0x11 => self.acknowledgements += 1,
            _ => self.responses += 1,
        }
        self.sent.push((head.to_vec(), payload));
        Ok(())
    }
}

/// Returns whether a range lies within another.
fn within((va, len): (u64, u32), outer: (u64, u32)) -> bool {
    let start = u128::from(va).checked_sub(outer.0.into());
    start.is_some_and(|start| start + u128::from(len) <= u128::from(outer.1))
}

impl ResponderEnv for World {
    fn fetch_recv(&mut self) -> Option<u32> {
        assert!(!self.dead && self.current.is_none());
        self.current = self.receives.pop_front();
        self.current
            .as_ref()
            .map(|receive| receive.data.len() as u32)
    }

    fn write_recv(&mut self, offset: u32) -> Result<(), Fault> {
        // The driver writes the GRH of a datagram even without a payload.
        let packet = if self.class == Service::Ud.class() {
            self.packet.expect("places without a packet")
        } else {
            self.payload()
        };
        self.act()?;
        let receive = self.current.as_mut().expect("places into no receive");
        let at = offset as usize;
        let target = &mut receive.data[at..at + packet.payload as usize];
        target
            .iter_mut()
            .zip(packet.payload())
            .for_each(|(to, byte)| *to = byte);
        Ok(())
    }

    fn check_remote(
        &mut self,
        rkey: u32,
        va: u64,
        len: u32,
        access: RemoteAccess,
    ) -> Result<DomainId, Fault> {
        assert_ne!(len, 0);
        self.act()?;
        self.range(rkey, va, len, access)?;
        match access {
            RemoteAccess::Read => self.reads.push((va, len)),
            RemoteAccess::Write => self.write = Some((va, len)),
            RemoteAccess::Atomic => {}
        }
        Ok(DomainId::default())
    }

    fn write_remote(&mut self, rkey: u32, va: u64) -> Result<(), Fault> {
        let packet = self.payload();
        self.act()?;
        let granted = self.write.expect("writes before it asked");
        assert!(
            within((va, packet.payload), granted),
            "writes beyond what it asked for"
        );
        let range = self.range(rkey, va, packet.payload, RemoteAccess::Write)?;
        let target = &mut self.memory[range];
        target
            .iter_mut()
            .zip(packet.payload())
            .for_each(|(to, byte)| *to = byte);
        Ok(())
    }

    fn atomic(&mut self, rkey: u32, va: u64, op: AtomicOp) -> Result<u64, Fault> {
        assert_eq!(va % 8, 0);
        self.act()?;
        let range = self.range(rkey, va, 8, RemoteAccess::Atomic)?;
        Ok(execute_atomic(&mut self.memory[range], op))
    }

    fn atomic_write(&mut self, rkey: u32, va: u64) -> Result<(), Fault> {
        let packet = self.payload();
        assert!(va % 8 == 0 && packet.payload == 8);
        self.act()?;
        let range = self.range(rkey, va, 8, RemoteAccess::Write)?;
        let target = &mut self.memory[range];
        target
            .iter_mut()
            .zip(packet.payload())
            .for_each(|(to, byte)| *to = byte);
        Ok(())
    }

    fn flush(&mut self, rkey: u32, flush: Flush) -> Result<(), Fault> {
        assert!(flush.global || flush.persistent);
        self.act()?;
        let (va, len) = flush.range.unwrap_or((self.base, 0));
        let inside = within((va, len), (self.base, SIZE as u32));
        if !self.open || rkey != KEY || !inside {
            return Err(Fault::Protection);
        }
        Ok(())
    }

    fn fetch_xrc_recv(&mut self, srqn: u32) -> Result<Option<u32>, Fault> {
        if srqn == 3 {
            return Err(Fault::Protection);
        }
        Ok(self.fetch_recv())
    }

    fn invalidate(&mut self, rkey: u32) -> Result<(), Fault> {
        self.act()?;
        if rkey != KEY || !self.open {
            return Err(Fault::Protection);
        }
        self.open = false;
        Ok(())
    }

    fn complete_recv(&mut self, completion: RecvCompletion) {
        let receive = self.current.take().expect("completes no receive");
        if completion.status == Status::Success {
            let length = receive.data.len() as u32;
            let placed = completion.opcode == rrxe_core::RecvOpcode::Recv;
            assert!(!self.dead && (!placed || completion.byte_len <= length));
        }
        self.done.push((receive, completion));
    }

    fn event(&mut self, event: ResponderEvent) {
        assert!(!self.dead);
        self.events.push(event);
    }

    fn transmit(&mut self, packet: &TxPacket, count: u32) -> (u32, Result<(), TxError>) {
        packet.for_each_in_burst(count, |packet| self.send(packet))
    }
}

/// Returns whether the current action fails. An injected fault strikes after the given number of
/// successful actions.
pub(crate) fn burn(fuse: &mut Option<(u8, Fault)>) -> Result<(), Fault> {
    match fuse.take() {
        None => Ok(()),
        Some((0, fault)) => Err(fault),
        Some((n, fault)) => {
            *fuse = Some((n - 1, fault));
            Ok(())
        }
    }
}
