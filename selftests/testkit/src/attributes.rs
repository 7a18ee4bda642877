// SPDX-License-Identifier: GPL-2.0

//! Queue pairs that are ready to send and to receive.

use rrxe_core::*;

/// A responder that owns its responder resources.
pub type Responder = rrxe_core::Responder<Vec<Resource>>;

/// The attributes of a queue pair. The default permits all accesses, and retries without end if a
/// receiver is not ready.
#[derive(Clone, Copy, Debug)]
pub struct Attributes {
    pub service: Service,
    pub src_qpn: u32,
    pub dest_qpn: u32,
    pub mtu: Mtu,
    /// The first PSNs that this queue pair sends and expects.
    pub sq_psn: u32,
    pub rq_psn: u32,
    pub timeout: u8,
    pub retry_count: u8,
    pub rnr_retry: u8,
    pub rnr_timer: u8,
    /// Maximum number of outstanding READs and atomics of this queue pair and of its peer.
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub qkey: u32,
    /// The driver buffers out-of-order packets, unless the recovery mode is strict.
    pub buffering: bool,
    pub recovery: RecoveryMode,
}

impl Default for Attributes {
    fn default() -> Attributes {
        Attributes {
            service: Service::Rc,
            src_qpn: 0,
            dest_qpn: 0,
            mtu: Mtu::default(),
            sq_psn: 0,
            rq_psn: 0,
            timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            rnr_timer: 1,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            qkey: 0,
            buffering: false,
            recovery: RecoveryMode::Selective,
        }
    }
}

impl Attributes {
    /// Returns a requester that is ready to send.
    pub fn requester(&self) -> Requester {
        let mut requester = Requester::new(self.service);
        self.connect_requester(&mut requester);
        requester
    }

    /// Makes a requester in the Reset state ready to send.
    pub fn connect_requester(&self, requester: &mut Requester) {
        requester.src_qpn = self.src_qpn;
        requester.buffering = self.buffering;
        requester.set_recovery(self.recovery);
        requester.dest_qpn = self.dest_qpn;
        requester.mtu = self.mtu;
        requester.set_psn(self.sq_psn);
        requester.set_timeout(self.timeout);
        requester.set_retry_count(self.retry_count);
        requester.set_rnr_retry(self.rnr_retry);
        requester.max_rd_atomic = self.max_rd_atomic;
        requester.qkey = self.qkey;
        requester.start();
    }

    /// Returns a responder that is ready to receive.
    pub fn responder(&self) -> Responder {
        let mut responder = Responder::new(self.service);
        self.connect_responder(&mut responder);
        responder
    }

    /// Makes a responder in the Reset state ready to receive.
    pub fn connect_responder(&self, responder: &mut Responder) {
        responder.dest_qpn = self.dest_qpn;
        responder.buffering = self.buffering && self.recovery == RecoveryMode::Selective;
        responder.mtu = self.mtu;
        responder.set_psn(self.rq_psn);
        responder.set_resources(vec![
            Resource::default();
            usize::from(self.max_dest_rd_atomic)
        ]);
        responder.min_rnr_timer = self.rnr_timer;
        responder.set_access(true, true, true);
        responder.set_flush_access(true, true);
        responder.qkey = self.qkey;
        responder.start();
    }
}

/// Executes an atomic on eight bytes of memory. Returns the original value.
pub fn execute_atomic(memory: &mut [u8], op: AtomicOp) -> u64 {
    let word: &mut [u8; 8] = memory.try_into().expect("8 bytes");
    let original = u64::from_ne_bytes(*word);
    let value = match op {
        AtomicOp::CompareSwap { compare, swap } if compare == original => swap,
        AtomicOp::CompareSwap { .. } => original,
        AtomicOp::FetchAdd { add } => original.wrapping_add(add),
    };
    *word = value.to_ne_bytes();
    original
}
