// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! One endpoint.

use super::{icrc_of, Driver, RecvBuffer, SendBuffer, DEPTH, QKEY};
use rrxe_core::*;

/// A responder with resources in its own memory.
pub type Responder = rrxe_core::Responder<Vec<Resource>>;

/// One endpoint: a queue pair and its driver.
pub struct Host {
    pub requester: Requester,
    pub responder: Responder,
    pub slots: Vec<SendSlot>,
    pub driver: Driver,
    /// The queue pair has entered Error.
    pub error: bool,
    pub sqe: bool,
    pub posted: u64,
    /// Maximum number of packets of one call of `poll_transmit`.
    pub budget: u32,
    /// Packets dropped because of a wrong ICRC.
    pub bad_icrc: u32,
    /// Out-of-order requests and answers.
    pub reorder_buffers: [ReorderBuffer; 2],
    /// Whether the driver buffers out-of-order packets instead of dropping them.
    pub buffers: bool,
}

/// A packet and its payload.
type Kept = (Packet, Vec<u8>);

/// Out-of-order packets of one side.
#[derive(Default)]
pub struct ReorderBuffer {
    pub reorder: Reorder,
    ring: Vec<Option<Buffered<Kept>>>,
}

impl ReorderBuffer {
    fn new() -> ReorderBuffer {
        ReorderBuffer {
            reorder: Reorder::new(),
            ring: (0..reorder::MAX_BUFFERED).map(|_| None).collect(),
        }
    }
}

/// First packet sequence numbers that host 0 and host 1 send.
pub const START_PSN: [u32; 2] = [0xff_fff0, 0x12_3456];

impl Host {
    pub fn new(service: Service, index: usize, mtu: u32) -> Host {
        let mtu = Mtu::from_bytes(mtu).unwrap();
        let (mine, peers) = (START_PSN[index], START_PSN[1 - index]);
        let mut requester = Requester::new(service);
        requester.set_src_qpn(100 + index as u32);
        requester.set_dest_qpn(101 - index as u32);
        requester.set_mtu(mtu);
        requester.set_psn(mine);
        requester.set_timeout(8);
        requester.set_retry_count(7);
        requester.set_rnr_retry(7);
        requester.set_max_rd_atomic(4);
        requester.set_qkey(QKEY);
        requester.set_buffering(true);
        requester.start();
        let mut responder = Responder::new(service);
        responder.set_dest_qpn(101 - index as u32);
        responder.set_mtu(mtu);
        responder.set_psn(peers);
        responder.set_resources(vec![Resource::default(); 4]);
        responder.set_min_rnr_timer(1);
        responder.set_access(true, true, true);
        responder.set_flush_access(true, true);
        responder.set_qkey(QKEY);
        responder.start();
        Host {
            requester,
            responder,
            slots: vec![SendSlot::default(); DEPTH],
            driver: Driver::new(),
            error: false,
            sqe: false,
            posted: 0,
            budget: 16,
            bad_icrc: 0,
            reorder_buffers: [ReorderBuffer::new(), ReorderBuffer::new()],
            buffers: true,
        }
    }

    /// Makes the driver drop out-of-order packets.
    pub fn without_reorder_buffer(mut self) -> Host {
        self.buffers = false;
        self.requester.set_buffering(false);
        self
    }

    /// Switches to plain go-back-N, like the module with `recovery=strict`.
    pub fn strict(mut self) -> Host {
        self.buffers = false;
        self.requester.set_recovery(RecoveryMode::Strict);
        self
    }

    /// Posts a send work request with this local memory (data to send, or room for a READ).
    pub fn post(&mut self, request: SendRequest, data: Vec<u8>) -> Result<u64, PostError> {
        let slot = self.requester.post(&mut self.slots, request)?;
        let wr_id = self.posted;
        self.posted += 1;
        self.driver.sq[slot as usize] = SendBuffer { wr_id, data };
        Ok(wr_id)
    }

    /// Posts a receive work request.
    pub fn post_recv(&mut self, wr_id: u64, len: usize) {
        self.driver.rq.push_back(RecvBuffer {
            wr_id,
            data: vec![0xee; len],
        });
    }

    /// Hands a whole UDP payload to its side.
    pub fn receive(&mut self, now: u64, bytes: &[u8]) -> Outcome {
        let Some((body, icrc)) = bytes.split_last_chunk::<4>() else {
            return Outcome::default();
        };
        if body.len() < wire::Bth::LEN || icrc_of(body) != *icrc {
            self.bad_icrc += 1;
            return Outcome::default();
        }
        let Ok(packet) = Packet::parse(body, bytes.len() as u32) else {
            return Outcome::default();
        };
        let start = usize::from(packet.header_len);
        self.take(
            now,
            &packet,
            &body[start..start + packet.payload_len as usize],
        )
    }

    /// Hands a packet with this payload to its side, bypassing the wire format, and then the
    /// buffered packets that are due.
    pub fn take(&mut self, now: u64, packet: &Packet, payload: &[u8]) -> Outcome {
        assert_eq!(packet.payload_len as usize, payload.len());
        for ReorderBuffer { reorder, ring } in &mut self.reorder_buffers {
            reorder.expire(ring, now);
        }
        let mut outcome = self.handle(now, packet, payload);
        let is_response = packet.is_response();
        let (mut taken, side) = (false, usize::from(is_response));
        loop {
            let ReorderBuffer { reorder, ring } = &mut self.reorder_buffers[side];
            let next = if is_response {
                let (requester, slots) = (&self.requester, &self.slots);
                let due = |psn| requester.is_due(slots, psn);
                reorder.next(ring, requester.expected_psn(), due)
            } else {
                let responder = &self.responder;
                let expected = Psn::new(responder.expected_psn());
                reorder.next(ring, expected, |psn| responder.is_due(psn))
            };
            let Some((packet, payload)) = next else {
                break;
            };
            taken = true;
            outcome.merge(self.handle(now, &packet, &payload));
        }
        let left = !self.reorder_buffers[side].reorder.is_empty();
        let told = if is_response {
            self.requester
                .on_buffered(&mut self.slots, now, left, &mut self.driver)
        } else {
            self.responder.on_buffered(taken, left)
        };
        outcome.merge(told);
        self.note(outcome.fatal, outcome.sqe);
        outcome
    }

    /// Hands a packet to its side, and buffers it if asked to.
    fn handle(&mut self, now: u64, packet: &Packet, payload: &[u8]) -> Outcome {
        self.driver.payload = payload.to_vec();
        let (outcome, expected) = if packet.is_response() {
            let outcome =
                self.requester
                    .handle_packet(&mut self.slots, now, packet, &mut self.driver);
            (outcome, self.requester.expected_psn())
        } else {
            let outcome = self.responder.handle_packet(now, packet, &mut self.driver);
            (outcome, Psn::new(self.responder.expected_psn()))
        };
        if outcome.buffer && self.buffers {
            let ReorderBuffer { reorder, ring } =
                &mut self.reorder_buffers[usize::from(packet.is_response())];
            let buffered = Buffered {
                psn: packet.psn(),
                arrived: now,
                bytes: packet.payload_len,
                shares_memory: false,
                packet: (*packet, payload.to_vec()),
            };
            let same = |a: &Kept, b: &Kept| a.0.repeats(&b.0) && a.1 == b.1;
            let _lost = reorder.insert(ring, expected, usize::MAX, buffered, same);
        }
        outcome
    }

    /// Lets the host send everything it can, and returns the parsed packets with their payloads.
    pub fn drain(&mut self, now: u64) -> Vec<(Packet, Vec<u8>)> {
        while self.transmit(now) {}
        let out = std::mem::take(&mut self.driver.out);
        out.into_iter()
            .map(|bytes| {
                let packet = Packet::parse(&bytes, bytes.len() as u32).unwrap();
                let start = usize::from(packet.header_len);
                let end = start + packet.payload_len as usize;
                (packet, bytes[start..end].to_vec())
            })
            .collect()
    }

    /// Transmits the packets of both sides. Returns whether there are more.
    pub fn transmit(&mut self, now: u64) -> bool {
        let a = self
            .requester
            .poll_transmit(&mut self.slots, now, self.budget, &mut self.driver);
        let b = self
            .responder
            .poll_transmit(now, self.budget, &mut self.driver);
        self.note(a.fatal || b.fatal, a.sqe);
        a.more || b.more
    }

    pub fn note(&mut self, fatal: bool, sqe: bool) {
        self.sqe |= sqe;
        if fatal && !self.error {
            self.go_to_error();
        }
    }

    /// Does what a driver does on a fatal error and for modify_qp to Error.
    pub fn go_to_error(&mut self) {
        self.error = true;
        self.reorder_buffers = [ReorderBuffer::new(), ReorderBuffer::new()];
        self.requester
            .enter_error(&mut self.slots, &mut self.driver);
        self.responder.enter_error(&mut self.driver);
    }

    /// Returns the statuses of the send work requests in the order of completion. Asserts that this
    /// is the order of posting.
    pub fn statuses(&self) -> Vec<Status> {
        for (i, done) in self.driver.sent.iter().enumerate() {
            assert_eq!(done.wr_id, i as u64, "completed out of order");
        }
        self.driver
            .sent
            .iter()
            .map(|done| done.completion.status)
            .collect()
    }
}
