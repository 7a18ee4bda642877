// SPDX-License-Identifier: GPL-2.0

//! Work requests and completions of kernel consumers.

use super::{
    device,
    event::QpTarget,
    object::{Ah, Driver},
};
use crate::{raw, shared_bytes};
use core::{marker::PhantomData, mem::MaybeUninit, ptr};
use kernel::prelude::*;

/// A data segment of a work request: an address in the region that the L_Key names, and a length in
/// bytes.
pub type DataSegment = raw::ib_sge;

/// Returns the data segments of a scatter/gather list.
fn segments<'a>(list: *const raw::ib_sge, count: i32) -> impl Iterator<Item = DataSegment> + 'a {
    let count = if list.is_null() {
        0
    } else {
        usize::try_from(count).unwrap_or(0)
    };
    (0..count).map(move |i| {
        // SAFETY: Callers of ib_post_send() and ib_post_recv() (ib_verbs.h) pass `num_sge`
        // elements, which stay valid until the call returns.
        unsafe { ptr::read(list.add(i)) }
    })
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
    current: *const raw::ib_send_wr,
    is_ud: bool,
    _p: PhantomData<(&'a raw::ib_send_wr, D)>,
}

impl<'a, D: Driver> SendWrs<'a, D> {
    /// Creates an iterator over the work requests posted to a queue pair.
    ///
    /// # Safety
    ///
    /// `qp` is a live queue pair of driver `D`. `head` is null or a list that a consumer posts to
    /// it. The list does not change during `'a`, while the post operation runs.
    pub(crate) unsafe fn new(qp: *const raw::ib_qp, head: *const raw::ib_send_wr) -> Self {
        // SAFETY: The caller guarantees that the queue pair is valid. ib_core set its type before
        // it called the driver's create operation (verbs.c, `create_qp()`), and never changes it.
        let qp_type = unsafe { (*qp).qp_type };
        // INVARIANT: The caller guarantees the list, and `is_ud` follows from the queue pair's
        // type.
        Self {
            next: head,
            current: head,
            is_ud: matches!(
                qp_type,
                raw::ib_qp_type_IB_QPT_UD | raw::ib_qp_type_IB_QPT_GSI
            ),
            _p: PhantomData,
        }
    }

    /// Returns the work request that was taken last, or the first one if none was taken.
    pub(crate) fn bad(&self) -> *const raw::ib_send_wr {
        self.current
    }
}

impl<'a, D: Driver> Iterator for SendWrs<'a, D> {
    type Item = SendWr<'a, D>;

    fn next(&mut self) -> Option<Self::Item> {
        // SAFETY: By the type invariant, `next` is null or a valid element of the list, which is a
        // work request of this queue pair.
        let (wr, part) = unsafe {
            let wr = self.next.as_ref()?;
            (wr, SendPart::of(wr, self.is_ud))
        };
        self.current = self.next;
        // INVARIANT: `wr.next` continues the list.
        self.next = wr.next;
        Some(SendWr { wr, part })
    }
}

/// The part of a send work request that depends on its opcode and on the type of the queue pair.
pub enum SendPart<'a, D: Driver> {
    /// A READ or WRITE.
    Rdma(&'a raw::ib_rdma_wr),
    /// An atomic operation.
    Atomic(&'a raw::ib_atomic_wr),
    /// A fast registration of a region.
    Reg(&'a raw::ib_reg_wr, &'a raw::ib_mr),
    /// Any work request to a UD or GSI queue pair, with its address handle.
    Ud(&'a raw::ib_ud_wr, &'a D::Ah),
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
                    Ah::<D>::data_of(ud.ah).map_or(Self::None, |ah| Self::Ud(ud, ah))
                }
                raw::ib_wr_opcode_IB_WR_RDMA_WRITE
                | raw::ib_wr_opcode_IB_WR_RDMA_WRITE_WITH_IMM
                | raw::ib_wr_opcode_IB_WR_RDMA_READ => Self::Rdma(&*start.cast()),
                raw::ib_wr_opcode_IB_WR_ATOMIC_CMP_AND_SWP
                | raw::ib_wr_opcode_IB_WR_ATOMIC_FETCH_AND_ADD => Self::Atomic(&*start.cast()),
                raw::ib_wr_opcode_IB_WR_REG_MR => {
                    let reg = &*start.cast::<raw::ib_reg_wr>();
                    reg.mr.as_ref().map_or(Self::None, |mr| Self::Reg(reg, mr))
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
/// A consumer has posted `wr`. The memory to which it points stays valid for `'a`.
pub struct SendWr<'a, D: Driver> {
    wr: &'a raw::ib_send_wr,
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

impl<'a, D: Driver> SendWr<'a, D> {
    /// Returns the identifier that the completion will carry.
    pub fn wr_id(&self) -> u64 {
        // SAFETY: Both members of the union are 64 bits of plain data.
        unsafe { self.wr.__bindgen_anon_1.wr_id }
    }

    /// Returns the operation (`enum ib_wr_opcode`).
    pub fn opcode(&self) -> u32 {
        self.wr.opcode
    }

    /// Returns the flags (see [`send_flags`]).
    pub fn flags(&self) -> u32 {
        self.wr.send_flags as u32
    }

    /// Returns the immediate data (network byte order) or the key to invalidate.
    pub fn imm_or_key(&self) -> u32 {
        // SAFETY: Both members of the union are 32 bits of plain data.
        unsafe { self.wr.ex.invalidate_rkey }
    }

    /// Returns the number of data segments, as given by the consumer.
    pub fn num_sge(&self) -> u32 {
        u32::try_from(self.wr.num_sge).unwrap_or(u32::MAX)
    }

    /// Returns the data segments.
    pub fn segments(&self) -> impl Iterator<Item = DataSegment> + 'a {
        segments(self.wr.sg_list, self.wr.num_sge)
    }

    /// Copies the data of a work request with [`send_flags::INLINE`] to the start of `to`. Returns
    /// the copied bytes. Returns `EINVAL` if `to` is too short, or if the work request does not
    /// have the flag.
    pub fn copy_inline<'b>(&self, to: &'b mut [u8]) -> Result<&'b [u8]> {
        if self.flags() & send_flags::INLINE == 0 {
            return Err(EINVAL);
        }
        let mut done = 0usize;
        for segment in self.segments() {
            let n = segment.length as usize;
            let end = done.checked_add(n).ok_or(EINVAL)?;
            let piece = to.get_mut(done..end).ok_or(EINVAL)?;
            // SAFETY: The work request is inline, so its data is at kernel addresses that stay
            // valid until the post operation returns (ib_verbs.h, `IB_SEND_INLINE`). `piece` has
            // `n` bytes.
            unsafe {
                shared_bytes::copy(piece.as_mut_ptr(), segment.addr as usize as *const u8, n)
            };
            done = end;
        }
        to.get(..done).ok_or(EINVAL)
    }
}

/// A list of receive work requests that is being posted.
pub struct RecvWrs<'a> {
    next: *const raw::ib_recv_wr,
    current: *const raw::ib_recv_wr,
    _p: PhantomData<&'a raw::ib_recv_wr>,
}

impl RecvWrs<'_> {
    /// Creates an iterator over posted receive work requests.
    ///
    /// # Safety
    ///
    /// `head` is null or a list that a consumer posts. It is used only while the post operation
    /// runs.
    pub(crate) unsafe fn new(head: *const raw::ib_recv_wr) -> Self {
        Self {
            next: head,
            current: head,
            _p: PhantomData,
        }
    }

    /// Returns the work request that was taken last, or the first one if none was taken.
    pub(crate) fn bad(&self) -> *const raw::ib_recv_wr {
        self.current
    }
}

impl<'a> Iterator for RecvWrs<'a> {
    type Item = RecvWr<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        // SAFETY: The caller of `new` guarantees that `next` is null or a valid element of the
        // list.
        let wr = unsafe { self.next.as_ref() }?;
        self.current = self.next;
        self.next = wr.next;
        Some(RecvWr(wr))
    }
}

/// A receive work request.
pub struct RecvWr<'a>(&'a raw::ib_recv_wr);

impl<'a> RecvWr<'a> {
    /// Returns the identifier that the completion will carry.
    pub fn wr_id(&self) -> u64 {
        // SAFETY: Both members of the union are 64 bits of plain data.
        unsafe { self.0.__bindgen_anon_1.wr_id }
    }

    /// Returns the number of data segments, as given by the consumer.
    pub fn num_sge(&self) -> u32 {
        u32::try_from(self.0.num_sge).unwrap_or(u32::MAX)
    }

    /// Returns the data segments.
    pub fn segments(&self) -> impl Iterator<Item = DataSegment> + 'a {
        segments(self.0.sg_list, self.0.num_sge)
    }
}

/// A kernel consumer's memory for work completions (`struct ib_wc`).
///
/// # Invariants
///
/// The first `len` entries are initialized.
pub struct WcBuffer<'a> {
    entries: &'a mut [MaybeUninit<raw::ib_wc>],
    len: usize,
}

/// The contents of a work completion.
#[derive(Clone, Copy, Default)]
pub struct WcContents {
    /// Identifier of the work request.
    pub wr_id: u64,
    /// `enum ib_wc_status`.
    pub status: u32,
    /// `enum ib_wc_opcode`.
    pub opcode: u32,
    /// Vendor-specific detail of a failure.
    pub vendor_err: u32,
    /// Bytes transferred.
    pub byte_len: u32,
    /// Immediate data (network byte order) or invalidated key.
    pub imm_or_key: u32,
    /// Queue pair number of the sender (UD).
    pub src_qp: u32,
    /// `IB_WC_*`.
    pub flags: u32,
    /// Index of the P_Key.
    pub pkey_index: u16,
    /// Service level (UD).
    pub sl: u8,
    /// `enum rdma_network_type` (UD).
    pub network_hdr_type: u8,
    /// Ethernet address of the sender (UD).
    pub smac: [u8; 6],
    /// VLAN identifier (UD).
    pub vlan_id: u16,
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

impl<'a> WcBuffer<'a> {
    pub(crate) fn new(entries: &'a mut [MaybeUninit<raw::ib_wc>]) -> Self {
        Self { entries, len: 0 }
    }

    /// Returns the number of completions in the buffer.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the buffer has room for another completion.
    pub fn has_room(&self) -> bool {
        self.len < self.entries.len()
    }

    /// Appends a completion of the queue pair `qp`, if there is room.
    pub fn push(&mut self, contents: &WcContents, qp: &QpIdentity) {
        let Some(entry) = self.entries.get_mut(self.len) else {
            return;
        };
        // INVARIANT: The entry is initialized here.
        self.len = self.len.wrapping_add(1);
        let wc: &mut raw::ib_wc = entry.write(pin_init::zeroed());
        wc.__bindgen_anon_1.wr_id = contents.wr_id;
        wc.status = contents.status;
        wc.opcode = contents.opcode;
        wc.vendor_err = contents.vendor_err;
        wc.byte_len = contents.byte_len;
        wc.qp = qp.0;
        wc.ex.invalidate_rkey = contents.imm_or_key;
        wc.src_qp = contents.src_qp;
        wc.wc_flags = contents.flags as i32;
        wc.pkey_index = contents.pkey_index;
        wc.sl = contents.sl;
        wc.port_num = device::PORT;
        wc.smac = contents.smac;
        wc.vlan_id = contents.vlan_id;
        wc.network_hdr_type = contents.network_hdr_type;
    }
}

/// Identity of a completion's ib_core queue pair: a pointer that only the consumer dereferences.
#[derive(Clone, Copy)]
pub struct QpIdentity(*mut raw::ib_qp);

// SAFETY: The pointer is an identity, and this crate never dereferences it.
unsafe impl Send for QpIdentity {}
// SAFETY: A shared reference only allows copying the pointer.
unsafe impl Sync for QpIdentity {}

impl QpIdentity {
    /// Returns the identity of the queue pair to which `target` belongs.
    pub fn of(target: &QpTarget) -> Self {
        Self(target.as_ptr())
    }
}
