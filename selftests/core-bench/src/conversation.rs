// SPDX-License-Identifier: GPL-2.0

//! Records a conversation between the two ends of a reliable connection, to measure with genuine
//! packets.

use crate::env::{Recorder, Sent};
use rrxe_core::{Mtu, Requester, Resource, Responder, SendOp, SendRequest, SendSlot, Service};

/// Depth of the send queue in work requests.
pub const DEPTH: usize = 64;

/// Start time of a conversation, in nanoseconds.
pub const START: u64 = 1_000_000_000;

const QPN: u32 = 100;
/// Maximum number of outstanding READs at either end.
const READS: u8 = 16;

/// Returns a requester that is ready to send, with a first PSN of 0.
pub fn requester() -> Requester {
    let mut requester = Requester::new(Service::Rc);
    requester.set_src_qpn(QPN);
    requester.set_dest_qpn(QPN);
    requester.set_mtu(mtu());
    requester.set_psn(0);
    // Most programs use 67 ms.
    requester.set_timeout(14);
    requester.set_retry_count(7);
    requester.set_rnr_retry(7);
    requester.set_max_rd_atomic(READS);
    requester.set_buffering(true);
    requester.start();
    requester
}

/// Returns a responder that permits all accesses and expects PSN 0.
pub fn responder() -> Responder<Vec<Resource>> {
    let mut responder = Responder::new(Service::Rc);
    responder.set_dest_qpn(QPN);
    responder.set_mtu(mtu());
    responder.set_psn(0);
    responder.set_resources(vec![Resource::default(); READS.into()]);
    responder.set_access(true, true, true);
    responder.start();
    responder
}

fn mtu() -> Mtu {
    Mtu::from_bytes(4096).expect("4096 is an MTU")
}

/// Returns the slots of a send queue.
pub fn slots() -> Vec<SendSlot> {
    vec![SendSlot::default(); DEPTH]
}

/// Returns a work request.
pub fn request(op: SendOp, length: u32) -> SendRequest {
    SendRequest {
        op,
        length,
        remote_addr: 0x7f00_0000_1000,
        rkey: 0x1234_5600,
        signaled: true,
        ..SendRequest::default()
    }
}

/// Returns the packets of both ends, in order, for `count` work requests posted together. PSNs
/// start at 0.
pub fn conversation(request: SendRequest, count: u32) -> (Vec<Sent>, Vec<Sent>) {
    let (mut requester, mut slots, mut here) = (requester(), slots(), Recorder::default());
    let (mut responder, mut there) = (responder(), Recorder::default());
    for _ in 0..count {
        requester
            .post(&mut slots, request)
            .expect("the send queue has room");
    }
    let _ = requester.poll_transmit(&mut slots, START, u32::MAX, &mut here);
    for sent in &here.sent {
        let _ = responder.handle_packet(START, &sent.packet(), &mut there);
    }
    let _ = responder.poll_transmit(START, u32::MAX, &mut there);
    (here.sent, there.sent)
}
