// SPDX-License-Identifier: GPL-2.0

//! Records a conversation between the two ends of a reliable connection, to measure with genuine
//! packets.

use crate::env::RECEIVE;
use rrxe_core::{Mtu, SendSlot};
use rrxe_testkit::{Attributes, Frame, Host, Op, Request};

/// Depth of the send queue in work requests.
const DEPTH: usize = 64;

/// Start time of a conversation, in nanoseconds.
pub const START: u64 = 1_000_000_000;

/// Returns the attributes of both ends. PSNs start at 0. Most programs use a timeout of 67 ms.
pub fn attributes() -> Attributes {
    Attributes {
        src_qpn: 100,
        dest_qpn: 100,
        mtu: Mtu::from_bytes(4096).expect("4096 is an MTU"),
        max_rd_atomic: 16,
        max_dest_rd_atomic: 16,
        buffering: true,
        ..Attributes::default()
    }
}

/// Returns the slots of a send queue.
pub fn slots() -> Vec<SendSlot> {
    vec![SendSlot::default(); DEPTH]
}

/// Returns a work request.
pub fn request(op: Op, length: u32) -> SendSlot {
    let mut request = Request::new(op, length);
    request.signaled = true;
    request.into()
}

/// Returns the packets of both ends, in order, for `count` work requests posted together.
pub fn conversation(request: SendSlot, count: u32) -> (Vec<Frame>, Vec<Frame>) {
    let [mut here, mut there] = [(); 2].map(|()| Host::connected(&attributes(), DEPTH));
    (here.budget, there.budget) = (u32::MAX, u32::MAX);
    for _ in 0..count {
        here.post(request, vec![0; request.length as usize])
            .expect("the send queue has room");
        there.post_recv(0, RECEIVE as usize);
    }
    here.transmit(START);
    for frame in &here.driver.out {
        let _ = there.handle(START, &frame.packet(), &frame.payload);
    }
    there.transmit(START);
    (here.driver.out, there.driver.out)
}
