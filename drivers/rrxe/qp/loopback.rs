// SPDX-License-Identifier: GPL-2.0

//! Delivery of packets to queue pairs of the same device, without the network stack.

use super::{Qp, RxBatch};
use crate::{
    counters::Counter,
    transport::{
        loopback::{LoopbackBatch, LoopbackEntry},
        rx_packet::RxPacket,
    },
};
use linux_rdma::{sync::BurstGuard, time::monotonic_ns};
use rrxe_core::{lengths::times, Minus, Packet, Time};

impl Qp {
    /// Delivers the packets of a [`LoopbackBatch`] to their queue pairs, which may send responses.
    /// Returns the number of packets and the bytes of their IP packets. The caller must hold no
    /// lock.
    pub(super) fn deliver(&self, batch: &LoopbackBatch) -> (u64, u64) {
        let _nested = self.device.deliveries.enter();
        let rcu = BurstGuard::enter();
        let now = Time::from_ns(monotonic_ns());
        let mut rx_batch = RxBatch::new(&rcu);
        let (mut packets, mut bytes) = (0u64, 0u64);
        for entry in &batch.packets {
            packets = packets.wrapping_add(entry.count.into());
            let each = batch.ip_len(entry.packet.udp_payload_len() as usize);
            bytes = bytes.wrapping_add(times(entry.count, each as u32));
            if let Err(counter) = self.deliver_entry(batch, entry, now, &mut rx_batch) {
                self.device.counters.count(counter);
            }
        }
        rx_batch.finish();
        (packets, bytes)
    }

    /// Delivers one entry of a [`LoopbackBatch`]. Returns the counter for it if it has no receiver.
    #[inline]
    fn deliver_entry<'a>(
        &'a self,
        batch: &'a LoopbackBatch,
        entry: &LoopbackEntry,
        now: Time,
        rx_batch: &mut RxBatch<'a>,
    ) -> Result<(), Counter> {
        let sent = &entry.packet;
        let packet = Packet::parse(sent.header(), sent.udp_payload_len());
        let mut packet = packet.map_err(|_| Counter::Malformed)?;
        let number = packet.bth.dest_qpn;
        let burst = rx_batch.burst;
        let qp = rx_batch.last(number).or_else(|| self.peer(number, burst));
        let qp = qp.ok_or(Counter::Discarded)?;
        // If the region is gone, the packet is lost. The sender learns the reason when it
        // retransmits.
        let whole = entry.find(batch, &self.device.tables.mrs, burst);
        let whole = whole.ok_or(Counter::Discarded)?;
        let (each, mut done) = (packet.payload_len, 0u32);
        while done < entry.count {
            let rest = whole.from(times(done, each));
            let left = entry.count.minus(done);
            let mut count = 1;
            if left > 1 && packet.starts_burst() {
                let first = RxPacket::from_loopback(&packet, rest, now);
                count = rx_batch.accepts_burst(qp, &first).clamp(1, left);
            }
            let burst = packet.burst(count);
            rx_batch.deliver(qp, &RxPacket::from_loopback(&burst, rest, now));
            done = done.wrapping_add(count);
            packet.bth.psn = packet.bth.psn.add(count);
        }
        Ok(())
    }
}
