// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! One endpoint.

use crate::{
    icrc_of, Attributes, Buffer, Driver, Region, ReorderBuffer, Responder, BASE, DEPTH, MEMORY,
    NO_IP, NO_UDP, QKEY, RKEY,
};
use rrxe_core::{
    reorder, wire, Mtu, Outcome, Packet, Psn, RecoveryMode, Requester, SendSlot, Service, Status,
    Time,
};

/// One endpoint: a queue pair and its driver.
pub struct Host {
    pub service: Service,
    pub requester: Requester,
    pub responder: Responder,
    pub slots: Vec<SendSlot>,
    pub driver: Driver,
    /// The queue pair has entered Error.
    pub error: bool,
    pub sqe: bool,
    /// Maximum number of packets of one call of `poll_transmit`.
    pub budget: u32,
    /// Packets dropped because of a wrong ICRC.
    pub bad_icrc: u32,
    /// Out-of-order requests and responses, with their payloads.
    pub reorder_buffers: [ReorderBuffer<Vec<u8>>; 2],
}

/// First packet sequence numbers that host 0 and host 1 send.
pub const START_PSN: [u32; 2] = [0xff_fff0, 0x12_3456];

impl Host {
    /// Returns an endpoint in the Reset state, without memory and without reorder buffers.
    pub fn reset(service: Service, depth: usize) -> Host {
        Host {
            service,
            requester: Requester::new(service),
            responder: Responder::new(service),
            slots: vec![SendSlot::default(); depth],
            driver: Driver::default(),
            error: false,
            sqe: false,
            budget: 16,
            bad_icrc: 0,
            reorder_buffers: [0; 2].map(ReorderBuffer::new),
        }
    }

    /// Returns an endpoint that is ready to send and to receive.
    pub fn connected(attributes: &Attributes, depth: usize) -> Host {
        let mut host = Host::reset(attributes.service, depth);
        attributes.connect_requester(&mut host.requester);
        attributes.connect_responder(&mut host.responder);
        host.driver.regions.push(Region {
            key: RKEY,
            va: BASE,
            bytes: vec![0; MEMORY],
            rights: "rwafp".into(),
            valid: true,
        });
        host
    }

    /// Returns one of two connected hosts.
    pub fn new(service: Service, index: usize, mtu: u32) -> Host {
        let attributes = Attributes {
            service,
            src_qpn: 100 + index as u32,
            dest_qpn: 101 - index as u32,
            mtu: Mtu::from_bytes(mtu).expect("an MTU"),
            sq_psn: START_PSN[index],
            rq_psn: START_PSN[1 - index],
            timeout: 8,
            qkey: QKEY,
            buffering: true,
            ..Attributes::default()
        };
        let mut host = Host::connected(&attributes, DEPTH);
        host.reorder_buffers = [reorder::MAX_BUFFERED; 2].map(ReorderBuffer::new);
        host
    }

    /// Makes the driver drop out-of-order packets.
    pub fn without_reorder_buffer(mut self) -> Host {
        self.reorder_buffers = [0; 2].map(ReorderBuffer::new);
        self.requester.buffering = false;
        self.responder.buffering = false;
        self
    }

    /// Switches to plain go-back-N, like the module with `strict_recovery=1`.
    pub fn strict(mut self) -> Host {
        self.reorder_buffers = [0; 2].map(ReorderBuffer::new);
        self.requester.set_recovery(RecoveryMode::Strict);
        self.responder.buffering = false;
        self
    }

    /// Posts a send work request with this local memory (data to send, or the buffer of a READ).
    /// Returns its number, or `None` if the queue is full.
    pub fn post(&mut self, request: impl Into<SendSlot>, data: Vec<u8>) -> Option<u64> {
        let wr_id = self.driver.sq.len() as u64;
        let buffer = Buffer {
            wr_id,
            data,
            fault: None,
        };
        self.post_buffer(request, buffer)?;
        Some(wr_id)
    }

    /// Posts a send work request with this buffer, if the queue is not full.
    pub fn post_buffer(&mut self, request: impl Into<SendSlot>, buffer: Buffer) -> Option<()> {
        let slot = self.requester.free_slot(&mut self.slots)?;
        let local = self.driver.sq.len();
        *slot = SendSlot {
            local,
            ..request.into()
        };
        self.requester.post(slot);
        self.driver.sq.push(buffer);
        Some(())
    }

    /// Posts a receive work request.
    pub fn post_recv(&mut self, wr_id: u64, len: usize) {
        self.driver.rq.push_back(Buffer {
            wr_id,
            data: vec![0xee; len],
            fault: None,
        });
    }

    /// Hands a whole UDP payload to its side.
    pub fn receive(&mut self, now: u64, bytes: &[u8]) -> Outcome {
        let Some((body, icrc)) = bytes.split_last_chunk::<4>() else {
            return Outcome::default();
        };
        if body.len() < wire::Bth::LEN || icrc_of(&NO_IP, &NO_UDP, body) != *icrc {
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
        for buffer in &mut self.reorder_buffers {
            buffer.expire(now);
        }
        let mut outcome = self.handle(now, packet, payload);
        let is_response = packet.is_response();
        let side = usize::from(is_response);
        loop {
            let buffer = &mut self.reorder_buffers[side];
            let next = if is_response {
                buffer.next_response(&self.requester, &self.slots)
            } else {
                buffer.next_request(&self.responder)
            };
            let Some((packet, payload)) = next else {
                break;
            };
            outcome.merge(self.handle(now, &packet, &payload));
        }
        let beyond = self.reorder_buffers[side].len();
        let told = if is_response {
            self.requester.on_buffered(
                &mut self.slots,
                Time::from_ns(now),
                beyond,
                &mut self.driver,
            )
        } else {
            self.responder.on_buffered(Time::from_ns(now), beyond)
        };
        outcome.merge(told);
        self.note(outcome.fatal, outcome.sqe);
        outcome
    }

    /// Hands a packet to its side, and buffers it if asked to.
    pub fn handle(&mut self, now: u64, packet: &Packet, payload: &[u8]) -> Outcome {
        self.driver.payload = payload.to_vec();
        let (outcome, expected) = if packet.is_response() {
            let outcome = self.requester.handle_packet(
                &mut self.slots,
                Time::from_ns(now),
                packet,
                &mut self.driver,
            );
            (outcome, self.requester.expected_psn())
        } else {
            let outcome =
                self.responder
                    .handle_packet(Time::from_ns(now), packet, &mut self.driver);
            (outcome, Psn::new(self.responder.expected_psn()))
        };
        if outcome.buffer {
            let buffer = &mut self.reorder_buffers[usize::from(packet.is_response())];
            buffer.insert(now, expected, packet, payload.to_vec(), |a, b| a == b);
        }
        outcome
    }

    /// Lets the host send everything it can, and returns the parsed packets with their payloads.
    pub fn drain(&mut self, now: u64) -> Vec<(Packet, Vec<u8>)> {
        while self.transmit(now) {}
        let out = std::mem::take(&mut self.driver.out);
        out.into_iter()
            .map(|frame| (frame.packet(), frame.payload))
            .collect()
    }

    /// Handles expired timers of the requester.
    pub fn timeout(&mut self, now: u64) -> Outcome {
        let outcome =
            self.requester
                .handle_timeout(&mut self.slots, Time::from_ns(now), &mut self.driver);
        self.note(outcome.fatal, outcome.sqe);
        outcome
    }

    /// Transmits the packets of both sides. Returns whether there are more.
    pub fn transmit(&mut self, now: u64) -> bool {
        let a = self.requester.poll_transmit(
            &mut self.slots,
            Time::from_ns(now),
            self.budget,
            &mut self.driver,
        );
        let b = self
            .responder
            .poll_transmit(Time::from_ns(now), self.budget, &mut self.driver);
        self.note(a.fatal || b.fatal, a.sqe);
        a.more || b.more
    }

    pub fn note(&mut self, fatal: bool, sqe: bool) {
        self.sqe |= sqe;
        if fatal && !self.error {
            self.go_to_error();
        } else if sqe {
            self.flush();
        }
    }

    /// Does what a driver does on a fatal error and for modify_qp to Error.
    pub fn go_to_error(&mut self) {
        self.error = true;
        for buffer in &mut self.reorder_buffers {
            buffer.clear();
        }
        self.requester.enter_error();
        self.flush();
        self.responder.enter_error(&mut self.driver);
    }

    /// Flushes the send queue after an error.
    fn flush(&mut self) {
        while self.requester.is_flushing() {
            let progress = self.requester.poll_transmit(
                &mut self.slots,
                Time::from_ns(0),
                0,
                &mut self.driver,
            );
            assert_eq!(progress.more, self.requester.is_flushing());
        }
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
