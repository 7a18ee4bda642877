// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The user ABI of rrxe, shared by the module and its rdma-core provider.
//!
//! This one file is compiled into both. It holds the layout of the rings (work-queue entries,
//! completion entries, ring headers) and of the driver-specific parts of the uverbs commands. Every
//! layout is asserted at compile time at the end of the file.
//!
//! # Versions
//!
//! The module and the provider may be of different versions. Each new opcode, flag, ring word and
//! member of a command has a `FEATURE_*` bit in [`AllocUcontextResp::features`], and the provider
//! uses it only if the kernel has set the bit. An older module would report an unknown opcode only
//! by a failed completion, and would ignore an unknown word. If the kernel needs to know the
//! abilities of the provider, the provider sets a word that older providers leave zero
//! ([`COUNTS_EVENTS`]). Commands and responses grow at their end. Missing members are zero, and the
//! kernel refuses a command with unknown members that are not zero.
//!
//! [`ABI_VERSION`] changes only if a layout becomes incompatible. Then a provider and a module of
//! different versions do not work together, and libibverbs prints a line that says so.
//!
//! # Rings
//!
//! A ring is page-aligned memory that the *consumer* (the user program's provider) allocates and
//! passes to the kernel in the create command. The kernel pins it and charges it to the consumer's
//! `RLIMIT_MEMLOCK`. For in-kernel consumers the driver allocates the same layout itself.
//!
//! A ring is a [`RingHeader`] ([`RING_HEADER_SIZE`] bytes) followed by `capacity` entries of
//! `stride` bytes each; `capacity` is a power of two, `stride` a multiple of 16. `producer` and
//! `consumer` are free-running 32-bit counters: entry `i` lives in slot `i & (capacity - 1)`, the
//! ring is empty if they are equal, and full if `producer - consumer == capacity` (wrapping).
//!
//! | ring | entries | producer | consumer |
//! |---|---|---|---|
//! | send queue | [`SendWqe`] and its data segments | user | kernel |
//! | receive queue, shared or not | [`RecvWqe`] and its data segments | user | kernel |
//! | completion queue | [`Cqe`] | kernel | user |
//!
//! The producer publishes an entry by a release store of its counter; taking an entry starts with
//! an acquire load of that counter. The kernel keeps its own copy of every counter that it owns,
//! and does not trust the values that it reads from the ring: a counter that claims more than
//! `capacity` entries is an error of the queue, and each entry is copied out once before it is
//! examined.
//!
//! The two rings of a queue pair may be in one piece of memory, the receive ring after the send
//! ring ([`RingSpec::next_ring`]). The kernel then pins that memory once, and no page counts twice.
//!
//! # Doorbells
//!
//! After publishing to a send or receive queue, the user program executes a sequentially consistent
//! fence and reads [`RingHeader::doorbell`]. If it is not zero, the program must call the kernel
//! (`POST_SEND` or `POST_RECV` with no work requests). A receive queue asks for a doorbell only in
//! the Error state, in which the kernel must flush a posted receive at once. A send queue asks for
//! one unless the program posts a stream of messages. In a stream the kernel polls the ring at
//! intervals, and the program
//!
//! - must call the kernel if its producer counter has reached [`RingHeader::doorbell_event`] (the
//!   difference is not negative), and
//! - should call the kernel before it waits for a completion of something that it has posted, and
//!   if it finds no completion.
//!
//! In poll mode ([`AllocUcontextCmd::poll_idle_us`], if the response has [`FEATURE_POLL`]) the
//! `doorbell` word of a send queue alone tells whether to call, and [`RingHeader::doorbell_event`]
//! has no meaning. The word is zero while a thread of the kernel polls the queues of the context,
//! and not zero after the thread has found nothing for the idle time and sleeps. The kernel sets
//! the word, executes a sequentially consistent fence, and polls once more.
//!
//! # Arming a completion queue
//!
//! The user program ORs [`ARM_ANY`] or [`ARM_SOLICITED`] into [`RingHeader::arm`] and then polls
//! once more, as the verbs require. After publishing completions, the kernel executes a
//! sequentially consistent fence and reads the word. If the completions match, it clears the word
//! and raises one completion event. A system call is rarely needed to arm (see below).
//!
//! # Arming a completion queue that is not empty
//!
//! Some programs arm and then sleep without polling once more: they rely on hardware that raises an
//! event at once if completions wait. Others poll after they have armed, and an event for a
//! completion that they are about to find would only cost time. [`RingHeader::notified`] tells the
//! two apart. If completions waited when the kernel last raised an event, it is the consumer
//! counter of that moment. If it equals the program's consumer counter, the program has polled
//! nothing since.
//!
//! So the user program arms, executes a sequentially consistent fence and reads the producer
//! counter. If completions wait that the arming asks for, and its consumer counter is not
//! [`RingHeader::notified`], it calls the kernel (`REQ_NOTIFY_CQ`). The kernel raises the event
//! unless it has taken the arming meanwhile.
//!
//! # The limit of events
//!
//! An event takes kernel memory, which is charged to nobody, until the program reads it. With
//! [`FEATURE_EVENT_LIMIT`], a completion queue whose program has set [`COUNTS_EVENTS`] raises at
//! most [`MAX_EVENTS`] events between two calls of the kernel (`REQ_NOTIFY_CQ`). Then the arming
//! stays in its word until the next call, which raises the event if completions have matched the
//! arming meanwhile.
//!
//! [`RingHeader::events`] is the number of events since the last call. The kernel increments it
//! before it takes an arming, with a sequentially consistent exchange. So the user program calls
//! the kernel if it finds [`MAX_EVENTS`] there before it arms, which is once in [`MAX_EVENTS`]
//! events. It looks again after it has armed and executed a sequentially consistent fence, because
//! another thread's arming may have caused the last event meanwhile.

use core::mem::{align_of, offset_of, size_of};

/// The version of rrxe, as in Cargo.toml.
pub const VERSION_TEXT: &core::ffi::CStr = c"0.1.0";
/// The version as QUERY_DEVICE reports it (`fw_ver`): major, minor and patch number, 16 bits each.
pub const VERSION: u64 = 1 << 16;

/// The number that uverbs reports as the ABI version of this driver (`uverbs_abi_ver`).
///
/// The provider matches on it together with [`DRIVER_ID`]. It is outside the range of all other
/// drivers.
pub const ABI_VERSION: u32 = 64;

/// `enum rdma_driver_id` value of rrxe: private, ASCII `rrxe`. Never `RDMA_DRIVER_RXE`.
pub const DRIVER_ID: u32 = 0x7272_7865;

/// The longest [`AllocUcontextCmd::poll_idle_us`]: longer times would give a CPU away.
pub const MAX_POLL_IDLE_US: u32 = 1_000_000;

/// Bytes from the start of a ring to its first entry.
pub const RING_HEADER_SIZE: usize = size_of::<RingHeader>();

/// Offsets in bytes of the words of a [`RingHeader`].
pub const RING_PRODUCER: usize = offset_of!(RingHeader, producer);
pub const RING_CONSUMER: usize = offset_of!(RingHeader, consumer);
pub const RING_DOORBELL: usize = offset_of!(RingHeader, doorbell);
pub const RING_DOORBELL_EVENT: usize = offset_of!(RingHeader, doorbell_event);
pub const RING_ARM: usize = offset_of!(RingHeader, arm);
pub const RING_NOTIFIED: usize = offset_of!(RingHeader, notified);
pub const RING_EVENTS: usize = offset_of!(RingHeader, events);
pub const RING_FLAGS: usize = offset_of!(RingHeader, flags);

/// First bytes of each ring. Words of different writers have cache lines of their own.
///
/// All words are native-endian and accessed only atomically. The padding is zero.
#[repr(C)]
pub struct RingHeader {
    /// Entries published so far (wrapping).
    pub producer: u32,
    pub _pad0: [u32; 15],
    /// Entries fetched so far (wrapping).
    pub consumer: u32,
    pub _pad1: [u32; 15],
    /// Work queues: not zero if the kernel must be called after publishing.
    pub doorbell: u32,
    /// Send queues with a zero `doorbell`: the value of `producer` from which on the kernel must be
    /// called nevertheless.
    pub doorbell_event: u32,
    pub _pad2: [u32; 14],
    /// Completion queues: [`ARM_ANY`], [`ARM_SOLICITED`] or zero.
    pub arm: u32,
    /// Completion queues: the consumer counter of the last event, if completions waited then.
    /// Initially [`NOT_NOTIFIED`]. Only the kernel writes it.
    pub notified: u32,
    /// Completion queues: events since the last call of the kernel. Only the kernel writes it.
    pub events: u32,
    /// Completion queues: [`COUNTS_EVENTS`] or zero. Only the user program writes it.
    pub flags: u32,
    pub _pad3: [u32; 12],
}

/// [`RingHeader::flags`]: the program calls the kernel after [`MAX_EVENTS`] events.
pub const COUNTS_EVENTS: u32 = 1;

/// Largest number of events of a completion queue between two calls of the kernel.
pub const MAX_EVENTS: u32 = 16;

/// [`RingHeader::notified`]: no event has been raised. One less than the first counter.
pub const NOT_NOTIFIED: u32 = u32::MAX;

/// [`RingHeader::arm`]: raise an event for the next completion.
pub const ARM_ANY: u32 = 1;
/// [`RingHeader::arm`]: raise an event for the next solicited or failed completion.
pub const ARM_SOLICITED: u32 = 2;

/// Work request opcodes in [`SendWqe::opcode`]. The values are those of `enum ibv_wr_opcode`
/// (and of `enum ib_wr_opcode`).
pub mod wr_opcode {
    #![allow(missing_docs)]
    pub const RDMA_WRITE: u8 = 0;
    pub const RDMA_WRITE_WITH_IMM: u8 = 1;
    pub const SEND: u8 = 2;
    pub const SEND_WITH_IMM: u8 = 3;
    pub const RDMA_READ: u8 = 4;
    pub const ATOMIC_CMP_AND_SWP: u8 = 5;
    pub const ATOMIC_FETCH_AND_ADD: u8 = 6;
    pub const LOCAL_INV: u8 = 7;
    pub const BIND_MW: u8 = 8;
    pub const SEND_WITH_INV: u8 = 9;
    pub const FLUSH: u8 = 14;
    pub const ATOMIC_WRITE: u8 = 15;
    /// Fast registration; only for kernel consumers.
    pub const REG_MR: u8 = 32;
}

/// [`SendWqe::flags`]: wait for earlier READs and atomics of this queue pair.
pub const WQE_FENCE: u8 = 1;
/// [`SendWqe::flags`]: raise a completion. (Ignored if the queue pair signals everything.)
pub const WQE_SIGNALED: u8 = 2;
/// [`SendWqe::flags`]: set the solicited event bit of the last packet.
pub const WQE_SOLICITED: u8 = 4;
/// [`SendWqe::flags`]: the payload follows the entry instead of data segments.
pub const WQE_INLINE: u8 = 8;

/// A send work-queue entry: these 64 bytes, then either `num_sge` [`Sge`]s or, with
/// [`WQE_INLINE`], `inline_length` bytes of payload.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct SendWqe {
    /// Returned in the completion.
    pub wr_id: u64,
    /// One of [`wr_opcode`].
    pub opcode: u8,
    /// `WQE_*`.
    pub flags: u8,
    /// Data segments that follow; 0 with [`WQE_INLINE`].
    pub num_sge: u16,
    /// Immediate data as it goes on the wire (network byte order), or the key to invalidate
    /// (native byte order). FLUSH: the placement type in bits 0 to 3, the selectivity level in
    /// bits 4 and 5.
    pub imm_or_key: u32,
    /// [`WQE_INLINE`]: bytes of payload. Otherwise 0: the kernel adds up the segments.
    pub inline_length: u32,
    /// UD: the address handle, [`CreateAhResp::ah`]. Otherwise zero.
    pub ah: u32,
    /// Further parameters of the opcode.
    pub op: WqeOp,
    /// Zero.
    pub reserved: u64,
}

/// The part of a [`SendWqe`] that depends on the opcode. All opcodes share one layout, so that it
/// can be copied and read without a union.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct WqeOp {
    /// RDMA and atomics: remote virtual address. Memory windows: start of the window.
    pub remote_addr: u64,
    /// Atomics: compare operand or addend. Memory windows: length of the window. FLUSH: bytes to
    /// flush.
    pub compare_add: u64,
    /// Atomics: swap operand. Memory windows: `IBV_ACCESS_*` flags. ATOMIC WRITE: the eight bytes
    /// to write, as memory holds them. (ATOMIC WRITE and FLUSH have neither data segments nor
    /// inline data.)
    pub swap: u64,
    /// RDMA and atomics: R_Key. UD: Q_Key. Memory windows: the window's new R_Key, of which the
    /// upper 24 bits name the window.
    pub rkey_or_qkey: u32,
    /// UD: destination queue pair number. Memory windows: L_Key of the region.
    pub remote_qpn: u32,
}

/// A data segment (scatter/gather element) of a work-queue entry.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Sge {
    /// Address in the region that `lkey` names.
    pub addr: u64,
    /// Bytes; 0 means 0 (not 2^31).
    pub length: u32,
    /// L_Key.
    pub lkey: u32,
}

/// A receive work-queue entry: these 16 bytes, then `num_sge` [`Sge`]s.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct RecvWqe {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Data segments that follow.
    pub num_sge: u32,
    /// Zero.
    pub reserved: u32,
}

/// [`Cqe::flags`]: a Global Route Header (or an IPv4 header in its place) precedes the payload.
pub const CQE_GRH: u8 = 1;
/// [`Cqe::flags`]: `imm_or_key` holds immediate data (network byte order).
pub const CQE_WITH_IMM: u8 = 2;
/// [`Cqe::flags`]: `imm_or_key` holds the key that the peer invalidated (native byte order).
pub const CQE_WITH_INV: u8 = 8;
/// [`Cqe::flags`]: the sender asked for a solicited event.
pub const CQE_SOLICITED: u8 = 16;

/// A completion entry.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Cqe {
    /// From the work request.
    pub wr_id: u64,
    /// Time at which the completion was raised: nanoseconds of `CLOCK_MONOTONIC`.
    pub timestamp: u64,
    /// Bytes received, read or atomically fetched.
    pub byte_len: u32,
    /// Immediate data or invalidated key; see `flags`.
    pub imm_or_key: u32,
    /// The local queue pair.
    pub qp_num: u32,
    /// UD: the sender's queue pair.
    pub src_qp: u32,
    /// `enum ibv_wc_status`.
    pub status: u8,
    /// `enum ibv_wc_opcode` as libibverbs numbers them (receives have bit 7 set).
    pub opcode: u8,
    /// `CQE_*`.
    pub flags: u8,
    /// UD: service level.
    pub sl: u8,
    /// Driver-specific detail of a failure, for humans: see docs.
    pub vendor_err: u32,
    /// UD (RoCEv2): network header type of the packet, `enum rdma_network_type`:
    /// [`NETWORK_IPV4`] or [`NETWORK_IPV6`].
    pub network_hdr_type: u8,
    /// Zero.
    pub reserved: [u8; 3],
    /// Index into the port's P_Key table.
    pub pkey_index: u16,
    /// VLAN identifier of the packet, or [`NO_VLAN`].
    pub vlan_id: u16,
    /// The sender's Ethernet address (UD, for the CM).
    pub smac: [u8; 6],
    /// Zero.
    pub reserved2: [u8; 10],
}

/// [`Cqe::status`]: `IBV_WC_SUCCESS`.
pub const STATUS_SUCCESS: u8 = 0;

/// [`Cqe::network_hdr_type`]: `RDMA_NETWORK_IPV4`.
pub const NETWORK_IPV4: u8 = 2;
/// [`Cqe::network_hdr_type`]: `RDMA_NETWORK_IPV6`.
pub const NETWORK_IPV6: u8 = 3;

/// [`Cqe::vlan_id`]: the packet had no VLAN tag.
pub const NO_VLAN: u16 = 0xffff;

/// [`AllocUcontextResp::features`]: the context is in poll mode.
pub const FEATURE_POLL: u64 = 1;
/// [`AllocUcontextResp::features`]: [`RingHeader::events`] counts, and [`COUNTS_EVENTS`] limits the
/// events of a completion queue.
pub const FEATURE_EVENT_LIMIT: u64 = 2;
/// [`AllocUcontextResp::features`]: [`AllocUcontextResp::null_key`] is valid.
pub const FEATURE_NULL_KEY: u64 = 4;

/// Driver part of GET_CONTEXT. A program that asks for nothing omits it: a kernel may not know it,
/// and refuses anything but zero with `EOPNOTSUPP`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct AllocUcontextCmd {
    /// Poll mode: microseconds for which the kernel continues to poll send queues after it has
    /// found something; 0: no poll mode. `EINVAL` above [`MAX_POLL_IDLE_US`].
    pub poll_idle_us: u32,
    /// Zero.
    pub reserved: u32,
}

/// Driver part of the response to GET_CONTEXT.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct AllocUcontextResp {
    /// Features of the kernel beyond the base of this ABI version: `FEATURE_*`.
    pub features: u64,
    /// Largest number of bytes of inline data that a send queue can be created for.
    pub max_inline: u32,
    /// Largest number of data segments of a work request.
    pub max_sge: u32,
    /// Key of the null region, for data segments of any address and length. Reads find zeroes, and
    /// data that is written is discarded.
    pub null_key: u32,
    /// Zero.
    pub reserved: u32,
}

/// Attributes and methods of uverbs that this driver adds, for programs that import a context or
/// its objects. A module that lacks them refuses the commands with `EPROTONOSUPPORT`. The methods
/// fail with `ENOENT` if no object has the handle, and with `EINVAL` if its kind is another one.
pub mod import {
    /// Attribute of `UVERBS_METHOD_QUERY_CONTEXT`: receives an
    /// [`AllocUcontextResp`](super::AllocUcontextResp).
    pub const CONTEXT_RESPONSE: u16 = 0x1000;
    /// Method of `UVERBS_OBJECT_PD`: checks the handle of a protection domain.
    pub const QUERY_PD: u16 = 0x1000;
    /// Attribute of [`QUERY_PD`]: the handle.
    pub const PD_HANDLE: u16 = 0x1000;
    /// Method of `UVERBS_OBJECT_DM`: returns the length of a device memory.
    pub const QUERY_DM: u16 = 0x1000;
    /// Attribute of [`QUERY_DM`]: the handle.
    pub const DM_HANDLE: u16 = 0x1000;
    /// Attribute of [`QUERY_DM`]: receives the length in bytes, a `u32`.
    pub const DM_LENGTH: u16 = 0x1001;
}

/// Location and size of a ring. Alone it is the driver part of CREATE_CQ, RESIZE_CQ, CREATE_SRQ,
/// and of MODIFY_SRQ if it resizes. The ring holds at least the entries of the core command.
///
/// The consumer counter of a shared receive queue counts the entries that were fetched. Their slots
/// may be used again, although the work requests have not completed. The queue never asks for a
/// doorbell. MODIFY_SRQ copies the waiting entries to the new ring and keeps the counters: entry
/// `i` is still entry `i`. The user program must not publish meanwhile.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct RingSpec {
    /// User address of the ring: page-aligned, or, for a receive ring, [`RingSpec::next_ring`] the
    /// send ring. 0 for a queue of depth 0, and for the receive queue of a queue pair with a shared
    /// one.
    pub addr: u64,
    /// Entries; a power of two.
    pub capacity: u32,
    /// Bytes of an entry; a multiple of 16, at least 64 (send) or 16 (receive), or the size of
    /// [`Cqe`].
    pub stride: u32,
}

impl RingSpec {
    /// Returns the size of the whole ring in bytes, header included; `None` on overflow.
    pub fn size(&self) -> Option<usize> {
        let entries = (self.capacity as usize).checked_mul(self.stride as usize)?;
        entries.checked_add(RING_HEADER_SIZE)
    }

    /// Returns the distance in bytes from the start of this ring to the start of the ring after it:
    /// a multiple of 64, so that no two rings share a cache line. `None` on overflow.
    pub fn next_ring(&self) -> Option<usize> {
        self.size()?.checked_next_multiple_of(64)
    }
}

/// Driver part of CREATE_QP. The rings must be at least as large as the `cap` of the core command.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct CreateQpCmd {
    /// The send ring; stride 64 plus the larger of 16 for each data segment and the inline size,
    /// rounded up to a multiple of 16.
    pub sq: RingSpec,
    /// The receive ring, or none with a shared receive queue; stride 16 plus 16 for each data
    /// segment.
    pub rq: RingSpec,
}

/// Driver part of the response to CREATE_AH.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct CreateAhResp {
    /// The number of the address handle in work-queue entries.
    pub ah: u32,
    /// Zero.
    pub reserved: u32,
}

/// Returns the smallest stride, in bytes, of a send ring for work requests of `max_sge` segments or
/// `max_inline` bytes. `None` on overflow.
pub fn send_stride(max_sge: u32, max_inline: u32) -> Option<u32> {
    let payload = max_sge.checked_mul(16)?.max(max_inline);
    payload.checked_add(64)?.checked_next_multiple_of(16)
}

/// Returns the smallest stride, in bytes, of a receive ring for work requests of `max_sge`
/// segments. `None` on overflow.
pub fn recv_stride(max_sge: u32) -> Option<u32> {
    max_sge.checked_mul(16)?.checked_add(16)
}

const _: () = {
    assert!(RING_HEADER_SIZE == 256);
    assert!(RING_PRODUCER == 0 && RING_CONSUMER == 64);
    assert!(RING_DOORBELL == 128 && RING_DOORBELL_EVENT == 132);
    assert!(RING_ARM == 192 && RING_NOTIFIED == 196);
    assert!(RING_EVENTS == 200 && RING_FLAGS == 204);
    assert!(size_of::<WqeOp>() == 32);
    assert!(size_of::<SendWqe>() == 64);
    assert!(align_of::<SendWqe>() == 8);
    assert!(size_of::<Sge>() == 16);
    assert!(size_of::<RecvWqe>() == 16);
    assert!(size_of::<Cqe>() == 64);
    assert!(size_of::<AllocUcontextCmd>() == 8);
    assert!(size_of::<AllocUcontextResp>() == 24);
    assert!(size_of::<RingSpec>() == 16);
    assert!(size_of::<CreateQpCmd>() == 32);
    assert!(size_of::<CreateAhResp>() == 8);
};
