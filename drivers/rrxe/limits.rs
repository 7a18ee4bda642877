// SPDX-License-Identifier: GPL-2.0

//! The limits of a device, as `ibv_query_device` reports them, each with its reason.
//!
//! Numbers of objects are limited for all devices together, and for each user: see
//! [`crate::quota`].

use rrxe_core::Span;

/// UDP destination port of RoCEv2 (IANA, IBA A17.3).
pub(crate) const ROCE_UDP_PORT: u16 = 4791;

/// Vendor id of vendors without an IEEE number (IBA 14.2.5.3).
pub(crate) const VENDOR_ID: u32 = 0xff_ffff;
/// Part number.
pub(crate) const VENDOR_PART_ID: u32 = 1;
/// Time to live of packets if the consumer set none (RFC 1700).
pub(crate) const DEFAULT_HOP_LIMIT: u8 = 64;

/// Queue pairs: numbers have 24 bits, and few of them are in use, so that a guess misses.
pub(crate) const MAX_QP: u32 = 1 << 20;
/// Work requests of a queue, shared or not.
pub(crate) const MAX_QP_WR: u32 = 1 << 15;
/// Data segments of a work request.
pub(crate) const MAX_SGE: u32 = 32;
/// Bytes of inline data of a work request.
pub(crate) const MAX_INLINE: u32 = 1024;
/// Bytes of inline data of a kernel consumer's work request, which is copied on the kernel stack.
pub(crate) const MAX_KERNEL_INLINE: u32 = 256;
/// Completion queues.
pub(crate) const MAX_CQ: u32 = 1 << 20;
/// Entries of a completion queue.
pub(crate) const MAX_CQE: u32 = (1 << 22) - 1;
/// Shared receive queues.
pub(crate) const MAX_SRQ: u32 = 1 << 20;
/// Memory regions: keys have 24 bits of index.
pub(crate) const MAX_MR: u32 = 1 << 22;
/// Bytes of a memory region: the size of an x86-64 program's address space, which has 47 bits and
/// lacks the last page (`task_size_max()`, arch/x86/include/asm/page_64.h). Larger address
/// spaces hold such a region, too.
pub(crate) const MAX_MR_SIZE: u64 = (1 << 47) - 4096;
/// Bytes of device memory (`ibv_alloc_dm(3)`), which is memory of the host: more than the megabytes
/// of hardware, and little enough to be of no concern if programs leave it unused.
pub(crate) const MAX_DM_SIZE: u64 = 16 << 20;
/// Device memories of a device.
pub(crate) const MAX_DM: usize = 512;
/// Memory windows: their keys come from the same table, which has space for both.
pub(crate) const MAX_MW: u32 = 1 << 20;
/// Pages of a fast registration: 2 MiB of small ones.
pub(crate) const MAX_FAST_REG_PAGES: u32 = 512;
/// Protection domains, and XRC domains.
pub(crate) const MAX_PD: u32 = 1 << 20;
/// Domains of a user: thousands of processes with several. They take 5 MB, which are charged to no
/// control group.
pub(crate) const MAX_USER_PD: u32 = 1 << 14;
/// Address handles: their numbers have 24 bits.
pub(crate) const MAX_AH: u32 = 1 << 20;
/// Address handles of a user: 128 processes with a thousand peers each. ib_core's part of them, 40
/// MB, is charged to no control group.
pub(crate) const MAX_USER_AH: u32 = 1 << 17;
/// Multicast groups: the limit of rdma_rxe. Each group is an entry of the network
/// device's filter.
pub(crate) const MAX_MCAST_GRP: u32 = 1 << 13;
/// Queue pairs of a multicast group: one softirq delivers a packet to all of them.
pub(crate) const MAX_MCAST_QP_ATTACH: u32 = 256;
/// Memberships of queue pairs in multicast groups: each may be the only one of its group.
pub(crate) const MAX_TOTAL_MCAST_QP_ATTACH: u32 = MAX_MCAST_GRP;
/// READs and atomics outstanding as the requester, which keeps no state for them: the limit of
/// rdma_rxe, which grants its peers the same number.
pub(crate) const MAX_INIT_RD_ATOMIC: u32 = 128;
/// READs and atomics outstanding as the responder: those that it can replay.
pub(crate) const MAX_RD_ATOMIC: u32 = rrxe_core::responder::MAX_RESOURCES as u32;
/// Bytes of a message (IBA 9.7.2).
pub(crate) const MAX_MESSAGE: u32 = 1 << 31;
/// Allowed number of entries of the GID table. An address names an entry by 8 bits (`struct
/// ib_global_route`, include/rdma/ib_verbs.h), and ib_core refuses addresses whose index does not
/// fit (`rdma_check_ah_attr()`, drivers/infiniband/core/verbs.c).
pub(crate) const GID_TABLE_LENS: core::ops::RangeInclusive<u32> = 16..=256;
/// The only P_Key of RoCE (IBA A16): full member of the default partition.
pub(crate) const DEFAULT_PKEY: u16 = 0xffff;
/// Entries of the P_Key table.
pub(crate) const PKEY_TABLE_LEN: u16 = 1;
/// Longest response time of this end: 4.096 us * 2^15 = 134 ms, as for rdma_rxe and most software.
pub(crate) const LOCAL_ACK_DELAY: u8 = 15;
/// Largest IB MTU.
pub(crate) const MAX_MTU: u32 = 4096;
/// Bytes that IPv6, UDP, BTH, the longest extension headers, padding and ICRC add to the payload.
pub(crate) const MTU_OVERHEAD: u32 = 40 + 8 + 12 + 28 + 4;

/// Returns the IB MTU, in bytes, for a network device's MTU: the largest of 256, 512, 1024, 2048
/// and 4096 that fits with its headers, or 256.
pub(crate) fn ib_mtu(netdev_mtu: u32) -> u32 {
    let max = netdev_mtu.saturating_sub(MTU_OVERHEAD);
    let mut sizes = [MAX_MTU, 2048, 1024, 512].into_iter();
    sizes.find(|&size| size <= max).unwrap_or(256)
}

/// Time between two retries of a user's queue pairs whose receivers have not been ready for
/// 80 ms. Ten queue pairs can retry as often as each may. A retry takes about 12,000 instructions
/// of both ends, so a thousand a second are about 1 % of a CPU.
pub(crate) const RNR_RETRY_INTERVAL: Span = Span::from_us(1_000);

/// Bytes of memory for the out-of-order packets of all queue pairs of a device. A queue pair may
/// use the same amount that it leaves to the others: half of the memory if it is alone, which is
/// the largest window in packets of 4096 bytes; one part in n + 2 if n others use their full share.
/// Packets beyond that are dropped.
pub(crate) const MAX_REORDER_BYTES: usize = 64 << 20;

/// Budgets of the packet path.
pub(crate) mod path {
    use rrxe_core::Span;

    /// Packets that a queue pair sends before it does other work: enough to fill a quarter of a
    /// window, few enough to keep softirqs short.
    pub(crate) const BATCH: u32 = 64;
    /// Work requests that a queue pair fetches before it does other work. A long queue whose work
    /// requests need no packets then does not make a softirq long.
    pub(crate) const MAX_FETCH: u32 = 4 * BATCH;
    /// Nanoseconds that a softirq spends on expired timers before it leaves them to work items.
    pub(crate) const TIMER_BUDGET: u64 = 1_000_000;
    /// Batches that a caller sends before a work item takes over.
    pub(crate) const BATCHES: u32 = 4;
    /// Largest number of batches that a queue pair sends before it ends at its consumer's call:
    /// ACKs, and the READ responses before them, 16 MiB of the largest packets. A consumer whose
    /// call sends that much waits for some milliseconds.
    pub(crate) const LAST_BATCHES: u32 = 64;
    /// Largest number of consecutive doorbells needed to start a stream. Streams that fail then
    /// cost little, and a program that begins to stream does not pay for many doorbells.
    pub(crate) const MAX_STREAM_DOORBELLS: u32 = 64;
    /// Largest message of a stream, in bytes: a larger one is worth its doorbell. Also the number
    /// of bytes per poll that keeps a stream going.
    pub(crate) const MAX_STREAM_MESSAGE: u32 = 64 * 1024;
    /// Work requests that a streaming program may post before it rings the doorbell. Also limited
    /// to half of its queue.
    pub(crate) const MAX_STREAM_BATCH: u32 = 64;
    /// Bytes of messages that a streaming program may post before it rings the doorbell: a batch of
    /// the largest packets.
    pub(crate) const MAX_STREAM_BATCH_BYTES: u32 = BATCH * 4096;
    /// Number of small work requests per poll that keeps a stream going.
    pub(crate) const MIN_STREAM_REQUESTS: u32 = 4;
    /// Time between two polls of the ring of a streaming program. A message waits this long
    /// only if meanwhile the program neither polls nor waits for an event, and receives nothing.
    pub(crate) const STREAM_POLL_INTERVAL: Span = Span::from_us(100);
    /// Consecutive requests that a program must reply to in time before ACKs are delayed.
    pub(crate) const PROMPT_REPLIES: u32 = 8;
    /// Largest delay of an ACK, in microseconds. The module parameter `ack_delay_us` sets the
    /// delay. Its default is longer than a program needs to post a reply, and shorter than the
    /// probe timeout of the requester (`MIN_PTO` in the core).
    pub(crate) const MAX_ACK_DELAY_US: u32 = 1_000_000;
}
