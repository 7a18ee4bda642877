// SPDX-License-Identifier: GPL-2.0

//! Work requests and completions of kernel consumers.

use super::{
    event::QpTarget,
    object::{Ah, Driver},
    roce,
};
use crate::{raw, shared_bytes};
use core::{
    marker::PhantomData,
    mem::{offset_of, MaybeUninit},
    ptr, slice,
};
use kernel::prelude::*;

/// A data segment of a work request (`struct ib_sge`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DataSegment {
    /// An address in the region that `lkey` names.
    pub addr: u64,
    /// The length in bytes.
    pub length: u32,
    /// The L_Key.
    pub lkey: u32,
}

// `segments` relies on the same layout.
const _: () = assert!(
    size_of::<DataSegment>() == size_of::<raw::ib_sge>()
        && align_of::<DataSegment>() == align_of::<raw::ib_sge>()
        && offset_of!(DataSegment, addr) == offset_of!(raw::ib_sge, addr)
        && offset_of!(DataSegment, length) == offset_of!(raw::ib_sge, length)
        && offset_of!(DataSegment, lkey) == offset_of!(raw::ib_sge, lkey)
);

/// Returns a scatter/gather list, which is empty if `list` is null or `count` is not positive.
///
/// # Safety
///
/// A consumer passes `list` and `count` in a work request or an advice, which stays valid for `'a`.
pub(super) unsafe fn segments<'a>(list: *const raw::ib_sge, count: i32) -> &'a [DataSegment] {
    match usize::try_from(count) {
        // SAFETY: The callers of ib_post_send() and ib_post_recv() (ib_verbs.h) pass `num_sge`
        // elements, and do not change them until the call returns. A `DataSegment` has the layout
        // of an element, and any value is valid.
        Ok(count @ 1..) if !list.is_null() => unsafe { slice::from_raw_parts(list.cast(), count) },
        _ => &[],
    }
}

/// A list of send work requests (`struct ib_send_wr`) that is being posted.
///
/// # Invariants
///
/// - `next` is null or an element of a list that a consumer posts to a queue pair of driver `D`.
///   The list does not change during `'a`.
/// - `is_ud` tells whether the queue pair is of type UD or GSI.
pub struct SendWrs<'a, D: Driver> {
    next: *const raw::ib_send_wr,
    /// The work request that was returned last, or the first one if none was returned.
    pub(super) last: *const raw::ib_send_wr,
    is_ud: bool,
    _list: PhantomData<(&'a raw::ib_send_wr, D)>,
}

impl<D: Driver> SendWrs<'_, D> {
    /// Creates an iterator over the work requests posted to a queue pair.
    ///
    /// # Safety
    ///
    /// `qp` is a live queue pair of driver `D`. `head` is null or a list that a consumer posts to
    /// it. The list does not change during `'a`, while the post operation runs.
    pub(crate) unsafe fn new(qp: *const raw::ib_qp, head: *const raw::ib_send_wr) -> Self {
        // SAFETY: The caller guarantees a valid pointer. ib_core set the type of the queue pair
        // before it called the driver's create operation (verbs.c, `create_qp()`), and never
        // changes it.
        let qp_type = unsafe { (*qp).qp_type };
        // INVARIANT: The caller guarantees the list, and `is_ud` follows from the type.
        Self {
            next: head,
            last: head,
            is_ud: matches!(
                qp_type,
                raw::ib_qp_type_IB_QPT_UD | raw::ib_qp_type_IB_QPT_GSI
            ),
            _list: PhantomData,
        }
    }
}

impl<'a, D: Driver> Iterator for SendWrs<'a, D> {
    type Item = SendWr<'a, D>;

    fn next(&mut self) -> Option<Self::Item> {
        // SAFETY: By the type invariant, `next` is null or a valid element of the list, which is a
        // work request of this queue pair. The members of its unions are plain data.
        unsafe {
            let wr = self.next.as_ref()?;
            self.last = self.next;
            // INVARIANT: `wr.next` continues the list.
            self.next = wr.next;
            let segments = segments(wr.sg_list, wr.num_sge);
            let flags = wr.send_flags as u32;
            Some(SendWr {
                wr_id: wr.__bindgen_anon_1.wr_id,
                opcode: wr.opcode,
                flags,
                imm_or_key: wr.ex.invalidate_rkey,
                num_sge: wr.num_sge as u32,
                segments,
                // INVARIANT: The data of an inline work request is at kernel addresses.
                inline: (flags & send_flags::INLINE != 0).then_some(segments),
                part: SendPart::of(wr, self.is_ud),
            })
        }
    }
}

/// The part of a send work request that depends on its opcode and on the type of the queue pair.
pub enum SendPart<'a, D: Driver> {
    /// A READ or WRITE.
    Rdma {
        /// The address in the peer's region.
        remote_addr: u64,
        /// The R_Key of the peer's region.
        rkey: u32,
    },
    /// An atomic operation.
    Atomic {
        /// The address in the peer's region.
        remote_addr: u64,
        /// The R_Key of the peer's region.
        rkey: u32,
        /// The operand that is compared or added.
        compare_add: u64,
        /// The operand that is stored if the comparison succeeds.
        swap: u64,
    },
    /// A fast registration of a region.
    Reg {
        /// The new key of the region.
        key: u32,
        /// `IB_ACCESS_*` flags.
        access: u32,
        /// The address of the first byte in work requests.
        iova: u64,
        /// The length in bytes.
        length: u64,
    },
    /// Any work request to a UD or GSI queue pair.
    Ud {
        /// The address handle.
        ah: &'a D::Ah,
        /// The number of the peer's queue pair.
        remote_qpn: u32,
        /// The Q_Key of the peer's queue pair.
        remote_qkey: u32,
    },
    /// Another opcode, or a work request that lacks its region or address handle.
    None,
}

impl<'a, D: Driver> SendPart<'a, D> {
    /// Returns the part of a work request.
    ///
    /// # Safety
    ///
    /// A consumer posts `wr` to a queue pair of `D`, which is of type UD or GSI if and only if
    /// `is_ud` is true.
    unsafe fn of(wr: &'a raw::ib_send_wr, is_ud: bool) -> Self {
        let start = ptr::from_ref(wr);
        // SAFETY: The type of the queue pair and the opcode determine the struct whose first part a
        // work request is (ib_verbs.h, `ud_wr()`, `rdma_wr()`, `atomic_wr()`, `reg_wr()`). A
        // consumer keeps the struct, its region, and its address handle, which belongs to the same
        // device, until the work request has completed.
        unsafe {
            match wr.opcode {
                _ if is_ud => {
                    let ud = &*start.cast::<raw::ib_ud_wr>();
                    Ah::<D>::data_of(ud.ah).map_or(Self::None, |ah| Self::Ud {
                        ah,
                        remote_qpn: ud.remote_qpn,
                        remote_qkey: ud.remote_qkey,
                    })
                }
                raw::ib_wr_opcode_IB_WR_RDMA_WRITE
                | raw::ib_wr_opcode_IB_WR_RDMA_WRITE_WITH_IMM
                | raw::ib_wr_opcode_IB_WR_RDMA_READ => {
                    let rdma = &*start.cast::<raw::ib_rdma_wr>();
                    Self::Rdma {
                        remote_addr: rdma.remote_addr,
                        rkey: rdma.rkey,
                    }
                }
                raw::ib_wr_opcode_IB_WR_ATOMIC_CMP_AND_SWP
                | raw::ib_wr_opcode_IB_WR_ATOMIC_FETCH_AND_ADD => {
                    let atomic = &*start.cast::<raw::ib_atomic_wr>();
                    Self::Atomic {
                        remote_addr: atomic.remote_addr,
                        rkey: atomic.rkey,
                        compare_add: atomic.compare_add,
                        swap: atomic.swap,
                    }
                }
                raw::ib_wr_opcode_IB_WR_REG_MR => {
                    let reg = &*start.cast::<raw::ib_reg_wr>();
                    reg.mr.as_ref().map_or(Self::None, |mr| Self::Reg {
                        key: reg.key,
                        access: reg.access as u32,
                        iova: mr.iova,
                        length: mr.length,
                    })
                }
                _ => Self::None,
            }
        }
    }
}

/// A send work request.
///
/// # Invariants
///
/// The addresses in `inline` are kernel addresses of data that stays valid for `'a`.
pub struct SendWr<'a, D: Driver> {
    /// The identifier that the completion will carry.
    pub wr_id: u64,
    /// The operation (`enum ib_wr_opcode`).
    pub opcode: u32,
    /// The flags (see [`send_flags`]).
    pub flags: u32,
    /// The immediate data (network byte order) or the key to invalidate.
    pub imm_or_key: u32,
    /// The number of data segments, as given by the consumer.
    pub num_sge: u32,
    /// The data segments.
    pub segments: &'a [DataSegment],
    /// The data segments of a work request with [`send_flags::INLINE`].
    inline: Option<&'a [DataSegment]>,
    /// The part that depends on the opcode and the queue pair.
    pub part: SendPart<'a, D>,
}

/// `IB_SEND_*` flags.
pub mod send_flags {
    use crate::raw;
    /// Wait for earlier READs and atomics.
    pub const FENCE: u32 = raw::ib_send_flags_IB_SEND_FENCE as u32;
    /// Generate a completion.
    pub const SIGNALED: u32 = raw::ib_send_flags_IB_SEND_SIGNALED as u32;
    /// Generate a solicited event at the receiver.
    pub const SOLICITED: u32 = raw::ib_send_flags_IB_SEND_SOLICITED as u32;
    /// Copy the data while posting.
    pub const INLINE: u32 = raw::ib_send_flags_IB_SEND_INLINE as u32;
}

impl<D: Driver> SendWr<'_, D> {
    /// Copies the data of a work request with [`send_flags::INLINE`] to the start of `to`. Returns
    /// the copied bytes. Returns `EINVAL` if `to` is too short, or if the work request does not
    /// have the flag.
    pub fn copy_inline<'b>(&self, to: &'b mut [u8]) -> Result<&'b [u8]> {
        let mut done = 0usize;
        for segment in self.inline.ok_or(EINVAL)? {
            let n = segment.length as usize;
            let end = done.checked_add(n).ok_or(EINVAL)?;
            let piece = to.get_mut(done..end).ok_or(EINVAL)?;
            // SAFETY: By the type invariant, the data is at kernel addresses that stay valid until
            // the post operation returns (ib_verbs.h, `IB_SEND_INLINE`). `piece` has `n` bytes.
            unsafe {
                shared_bytes::copy(piece.as_mut_ptr(), segment.addr as usize as *const u8, n)
            };
            done = end;
        }
        to.get(..done).ok_or(EINVAL)
    }
}

/// A list of receive work requests (`struct ib_recv_wr`) that is being posted.
///
/// # Invariants
///
/// `next` is null or an element of a list that a consumer posts, and that does not change during
/// `'a`.
pub struct RecvWrs<'a> {
    next: *const raw::ib_recv_wr,
    /// The work request that was returned last, or the first one if none was returned.
    pub(super) last: *const raw::ib_recv_wr,
    _list: PhantomData<&'a raw::ib_recv_wr>,
}

impl RecvWrs<'_> {
    /// Creates an iterator over posted receive work requests.
    ///
    /// # Safety
    ///
    /// `head` is null or a list that a consumer posts, and that does not change during `'a`, while
    /// the post operation runs.
    pub(crate) unsafe fn new(head: *const raw::ib_recv_wr) -> Self {
        // INVARIANT: The caller guarantees the list.
        Self {
            next: head,
            last: head,
            _list: PhantomData,
        }
    }
}

impl<'a> Iterator for RecvWrs<'a> {
    type Item = RecvWr<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        // SAFETY: By the type invariant, `next` is null or a valid element of the list. Both
        // members of its union are 64 bits of plain data.
        unsafe {
            let wr = self.next.as_ref()?;
            self.last = self.next;
            // INVARIANT: `wr.next` continues the list.
            self.next = wr.next;
            Some(RecvWr {
                wr_id: wr.__bindgen_anon_1.wr_id,
                num_sge: wr.num_sge as u32,
                segments: segments(wr.sg_list, wr.num_sge),
            })
        }
    }
}

/// A receive work request.
pub struct RecvWr<'a> {
    /// The identifier that the completion will carry.
    pub wr_id: u64,
    /// The number of data segments, as given by the consumer.
    pub num_sge: u32,
    /// The data segments.
    pub segments: &'a [DataSegment],
}

/// A work completion (`struct ib_wc`) without its work request and queue pair.
#[derive(Default)]
#[expect(missing_docs, reason = "named as in ib_verbs.h")]
pub struct Wc {
    pub status: u32,
    pub opcode: u32,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub src_qp: u32,
    /// Flags of [`wc`].
    pub wc_flags: u32,
    pub pkey_index: u16,
    pub sl: u8,
    pub network_hdr_type: u8,
    pub smac: [u8; 6],
    pub vlan_id: u16,
}

/// A work completion in a consumer's memory.
#[repr(transparent)]
pub struct WcEntry(pub(super) raw::ib_wc);

#[cfg(CONFIG_KUNIT = "y")]
impl WcEntry {
    /// Returns the length in bytes.
    pub fn byte_len(&self) -> u32 {
        self.0.byte_len
    }
}

/// `IB_WC_*` flags and opcodes of kernel completions.
pub mod wc {
    #![expect(missing_docs, reason = "named as in ib_verbs.h")]
    use crate::raw;
    pub const GRH: u32 = raw::ib_wc_flags_IB_WC_GRH;
    pub const WITH_IMM: u32 = raw::ib_wc_flags_IB_WC_WITH_IMM;
    pub const WITH_INVALIDATE: u32 = raw::ib_wc_flags_IB_WC_WITH_INVALIDATE;
    pub const WITH_SMAC: u32 = raw::ib_wc_flags_IB_WC_WITH_SMAC;
    pub const WITH_VLAN: u32 = raw::ib_wc_flags_IB_WC_WITH_VLAN;
    pub const WITH_NETWORK_HDR_TYPE: u32 = raw::ib_wc_flags_IB_WC_WITH_NETWORK_HDR_TYPE;
    pub const NETWORK_IPV4: u8 = raw::rdma_network_type_RDMA_NETWORK_IPV4 as u8;
    pub const NETWORK_IPV6: u8 = raw::rdma_network_type_RDMA_NETWORK_IPV6 as u8;
}

/// A kernel consumer's memory for work completions.
///
/// # Invariants
///
/// The first `len` entries are initialized.
pub struct WcBuffer<'a> {
    entries: &'a mut [MaybeUninit<WcEntry>],
    len: usize,
}

impl<'a> WcBuffer<'a> {
    /// Creates a buffer without completions.
    pub fn new(entries: &'a mut [MaybeUninit<WcEntry>]) -> Self {
        // INVARIANT: No entry counts as initialized.
        Self { entries, len: 0 }
    }

    /// Returns the completions.
    pub fn completions(&self) -> &[WcEntry] {
        let entries = self.entries.get(..self.len).unwrap_or_default();
        // SAFETY: `MaybeUninit` has the layout of its contents, and these entries are initialized
        // by the type invariant.
        unsafe { slice::from_raw_parts(entries.as_ptr().cast(), entries.len()) }
    }

    /// Returns whether the buffer has space for another completion.
    pub fn has_space(&self) -> bool {
        self.len < self.entries.len()
    }

    /// Appends a completion of the queue pair of `qp`, if there is space and the queue pair exists:
    /// the completion names ib_core's object, which the consumer may use until it destroys that.
    /// `imm_or_key` is the immediate data (network byte order) or the invalidated key.
    pub fn push(&mut self, wr_id: u64, imm_or_key: u32, qp: &QpTarget, wc: &Wc) {
        let Some(entry) = self.entries.get_mut(self.len) else {
            return;
        };
        let Some(object) = qp.object() else {
            return;
        };
        let mut raw: raw::ib_wc = pin_init::zeroed();
        raw.__bindgen_anon_1.wr_id = wr_id;
        raw.status = wc.status;
        raw.opcode = wc.opcode;
        raw.vendor_err = wc.vendor_err;
        raw.byte_len = wc.byte_len;
        raw.qp = object.as_ptr();
        raw.ex.invalidate_rkey = imm_or_key;
        raw.src_qp = wc.src_qp;
        raw.wc_flags = wc.wc_flags as i32;
        raw.pkey_index = wc.pkey_index;
        raw.sl = wc.sl;
        raw.port_num = roce::PORT;
        raw.smac = wc.smac;
        raw.vlan_id = wc.vlan_id;
        raw.network_hdr_type = wc.network_hdr_type;
        // INVARIANT: The entry is initialized here.
        entry.write(WcEntry(raw));
        self.len = self.len.wrapping_add(1);
    }
}
