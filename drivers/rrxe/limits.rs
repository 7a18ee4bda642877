// SPDX-License-Identifier: GPL-2.0

//! What a device can hold, as `ibv_query_device` reports it, each with its reason.

/// UDP destination port of RoCEv2 (IANA, IBA A17.3).
pub(crate) const ROCE_UDP_PORT: u16 = 4791;

/// Vendor id: what a vendor without an IEEE number reports (IBA 14.2.5.3).
pub(crate) const VENDOR_ID: u32 = 0xff_ffff;
/// Part number.
pub(crate) const VENDOR_PART_ID: u32 = 1;
/// Time to live of packets whose consumer chose none (RFC 1700).
pub(crate) const DEFAULT_HOP_LIMIT: u8 = 64;

/// Queue pairs: numbers have 24 bits, of which few are in use, so that a guess misses.
pub(crate) const MAX_QP: u32 = 1 << 20;
/// Work requests of a queue. A flush walks the queue in one go.
pub(crate) const MAX_QP_WR: u32 = 1 << 15;
/// Data segments of a work request.
pub(crate) const MAX_SGE: u32 = 32;
/// Bytes of inline data of a work request.
pub(crate) const MAX_INLINE: u32 = 1024;
/// The same of kernel consumers, whose data passes over the stack.
pub(crate) const MAX_KERNEL_INLINE: u32 = 256;
/// Completion queues.
pub(crate) const MAX_CQ: u32 = 1 << 20;
/// Entries of a completion queue.
pub(crate) const MAX_CQE: u32 = (1 << 22) - 1;
/// Shared receive queues.
pub(crate) const MAX_SRQ: u32 = 1 << 20;
/// Work requests of a shared receive queue, and data segments of each: a ring as any other.
pub(crate) const MAX_SRQ_WR: u32 = MAX_QP_WR;
pub(crate) const MAX_SRQ_SGE: u32 = MAX_SGE;
/// Memory regions: keys have 24 bits of index.
pub(crate) const MAX_MR: u32 = 1 << 22;
/// Bytes of a memory region: as much as user space can map.
pub(crate) const MAX_MR_SIZE: u64 = 1 << 47;
/// Memory windows: their keys come from the same table.
pub(crate) const MAX_MW: u32 = 1 << 20;
/// Pages of a fast registration: 2 MiB of small ones.
pub(crate) const MAX_FAST_REG_PAGES: u32 = 512;
/// Protection domains.
pub(crate) const MAX_PD: u32 = 1 << 20;
/// Address handles: named by 24 bits.
pub(crate) const MAX_AH: u32 = 1 << 20;
/// Multicast groups of a device: as many as rdma_rxe. Each is an entry of the network device's
/// filter.
pub(crate) const MAX_MCAST_GRP: u32 = 1 << 13;
/// Queue pairs of a multicast group: one softirq delivers a packet to all of them.
pub(crate) const MAX_MCAST_QP_ATTACH: u32 = 256;
/// Queue pairs of all multicast groups of a device.
pub(crate) const MAX_TOTAL_MCAST_QP_ATTACH: u32 = 1 << 16;
/// READs and atomics outstanding as the requester, which keeps nothing for them: as many as
/// rdma_rxe, which lets its peers have that many.
pub(crate) const MAX_INIT_RD_ATOMIC: u32 = 128;
/// READs and atomics outstanding as the responder: what it can replay.
pub(crate) const MAX_RD_ATOMIC: u32 = rrxe_core::responder::MAX_RESOURCES as u32;
/// Bytes of a message (IBA 9.7.2).
pub(crate) const MAX_MESSAGE: u32 = 1 << 31;
/// Entries that the GID table may have. An address names one by 8 bits (`struct ib_global_route`,
/// include/rdma/ib_verbs.h), and ib_core refuses addresses whose index does not fit
/// (`rdma_check_ah_attr()`, drivers/infiniband/core/verbs.c).
pub(crate) const GID_TABLE_LENS: core::ops::RangeInclusive<u32> = 16..=256;
/// The one P_Key of RoCE (IBA A16): full member of the default partition.
pub(crate) const DEFAULT_PKEY: u16 = 0xffff;
/// Entries of the P_Key table.
pub(crate) const PKEY_TABLE_LEN: u16 = 1;
/// How long this end may take to answer: 4.096 us * 2^15 = 134 ms, as rdma_rxe and most software.
pub(crate) const LOCAL_ACK_DELAY: u8 = 15;
/// Smallest and largest IB MTU.
pub(crate) const MAX_MTU: u32 = 4096;
/// Bytes that IPv6, UDP, BTH, the longest extension headers, padding and ICRC take beside the
/// payload.
pub(crate) const MTU_OVERHEAD: u32 = 40 + 8 + 12 + 28 + 4;

/// The IB MTU in bytes of a network device with this MTU: the largest of 256, 512, 1024, 2048 and
/// 4096 that fits with its headers.
pub(crate) fn ib_mtu(netdev_mtu: u32) -> u32 {
    match netdev_mtu.saturating_sub(MTU_OVERHEAD) {
        4096.. => 4096,
        2048.. => 2048,
        1024.. => 1024,
        512.. => 512,
        _ => 256,
    }
}

/// Bytes of memory that the packets may take that the queue pairs of a device keep until their
/// turn, where others were lost. A queue pair may have as much of it as it leaves to the others: if
/// it is alone half of it, which is the largest window in packets of 4096 bytes; if n others have as
/// much as they may, one part in n + 2. Packets beyond are lost, as if nothing were kept.
pub(crate) const MAX_HELD_BYTES: usize = 64 << 20;

/// Contexts of a device that may be in poll mode at the same time. Nothing charges their threads to whoever has them.
pub(crate) const MAX_POLL_THREADS: u32 = 32;

/// Budgets of the packet path.
pub(crate) mod path {
    /// Packets that a queue pair sends in one go, before it looks at other things: enough to fill
    /// a window quarter, few enough to keep softirqs short.
    pub(crate) const BATCH: u32 = 64;
    /// Batches that a caller sends before a softirq worker takes over.
    pub(crate) const BATCHES: u32 = 4;
    /// Batches that are sent for requests at most before a queue pair ends at its consumer's call:
    /// acknowledgements, and the READ responses in front of them, 16 MiB of the largest packets. A
    /// consumer that waits for one of them waits some milliseconds.
    pub(crate) const LAST_BATCHES: u32 = 64;
    /// Doorbells in a row, for small messages, one soon after the other and with nothing heard from
    /// the peer in between, that make a stream: more than a program rings for that sends some messages and waits for the answer.
    pub(crate) const STREAM: u32 = 8;
    /// Nanoseconds from what one doorbell has started to the next: what a program takes to post, or another to
    /// take what has come on the same processor.
    pub(crate) const STREAM_GAP: u64 = 50_000;
    /// Largest message of a stream, in bytes: what is larger pays for its doorbell. As many bytes are enough for it to go on.
    pub(crate) const STREAM_MESSAGE: u32 = 64 * 1024;
    /// Work requests that a program in a stream may post before it calls; at most half of its queue.
    pub(crate) const STREAM_BATCH: u32 = 64;
    /// Bytes of messages likewise: a batch of the largest packets.
    pub(crate) const STREAM_BYTES: u32 = BATCH * 4096;
    /// Work requests to be found from one look to the next for it to go on, if they are small.
    pub(crate) const STREAM_LEAST: u32 = 4;
    /// Nanoseconds after which the ring of a program in a stream is looked at, whatever it does. Programs wait that long for
    /// a message only where they neither poll nor hear anything then, nor wait for an event.
    pub(crate) const STREAM_LOOK: u64 = 100_000;
    /// Requests in a row that a program answers, each within the wait, for acknowledgements to wait for the answer. The wait is the module's parameter
    /// `answer_wait_us`: by default longer than a program takes that has the answer at hand, and shorter than a requester waits that sends
    /// again by the time it has measured (`PROBE_FLOOR` in the core).
    pub(crate) const ANSWERS: u32 = 8;
    /// Microseconds that it can be at most.
    pub(crate) const LONGEST_ANSWER_WAIT: u32 = 1_000_000;
}
