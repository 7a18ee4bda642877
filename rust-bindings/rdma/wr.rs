// SPDX-License-Identifier: GPL-2.0

//! Work requests and completions of kernel consumers.

use super::{
    event::QpTarget,
    object::{Ah, Driver},
};
use crate::{raw, shared_bytes};
use core::{
    marker::PhantomData,
    mem::{ManuallyDrop, MaybeUninit},
    ptr,
};
use kernel::prelude::*;

/// A data segment of a work request.
#[derive(Clone, Copy, Debug, Default)]
pub struct DataSegment {
    /// Address in the region that `lkey` names.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// L_Key.
    pub lkey: u32,
}

/// The scatter/gather list of a work request.
fn segments<'a>(list: *const raw::ib_sge, count: i32) -> impl Iterator<Item = DataSegment> + 'a {
    let count = if list.is_null() {
        0
    } else {
        usize::try_from(count).unwrap_or(0)
    };
    (0..count).map(move |i| {
        // SAFETY: ib_post_send() and ib_post_recv() (ib_verbs.h) are given `num_sge` elements,
        // which stay valid until they return.
        let sge = unsafe { ptr::read(list.add(i)) };
        DataSegment {
            addr: sge.addr,
            length: sge.length,
            lkey: sge.lkey,
        }
    })
}

/// A list of send work requests (`struct ib_send_wr`) as it is being posted.
///
/// # Invariants
///
/// - `next` is null or an element of a list that a consumer posts to a queue pair of driver `D`,
///   and that stays for `'a`.
/// - `is_ud` says whether the queue pair is of type UD or GSI.
pub struct SendWrs<'a, D: Driver> {
    next: *const raw::ib_send_wr,
    current: *const raw::ib_send_wr,
    is_ud: bool,
    _p: PhantomData<(&'a raw::ib_send_wr, D)>,
}

impl<'a, D: Driver> SendWrs<'a, D> {
    /// Takes what is posted to a queue pair.
    ///
    /// # Safety
    ///
    /// `qp` is a live queue pair of driver `D`. `head` is null or a list that a consumer posts to
    /// it, which stays for `'a`: while the post operation runs.
    pub(crate) unsafe fn new(qp: *const raw::ib_qp, head: *const raw::ib_send_wr) -> Self {
        // SAFETY: The queue pair is valid, as the caller promises. ib_core has set its type before
        // it called the driver's create operation (verbs.c, `create_qp()`), and never changes it.
        let qp_type = unsafe { (*qp).qp_type };
        // INVARIANT: The caller promises it, and the type was looked at.
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

    /// The work request that was taken last, or the first.
    pub(crate) fn bad(&self) -> *const raw::ib_send_wr {
        self.current
    }
}

impl<'a, D: Driver> Iterator for SendWrs<'a, D> {
    type Item = SendWr<'a, D>;

    fn next(&mut self) -> Option<Self::Item> {
        // SAFETY: Null or a valid element of the list, by the type invariant.
        let wr = unsafe { self.next.as_ref() }?;
        self.current = self.next;
        // INVARIANT: The list goes on there. What was taken is of the queue pair's type.
        self.next = wr.next;
        Some(SendWr {
            wr,
            is_ud: self.is_ud,
            _p: PhantomData,
        })
    }
}

/// A send work request.
///
/// # Invariants
///
/// - `wr` is a part of the struct that its opcode and the queue pair's type call for (ib_verbs.h),
///   as the consumer has posted it. What it points to stays for `'a`.
/// - `is_ud` says whether the queue pair is of type UD or GSI.
pub struct SendWr<'a, D: Driver> {
    wr: &'a raw::ib_send_wr,
    is_ud: bool,
    _p: PhantomData<D>,
}

/// `IB_SEND_*` flags.
pub mod send_flags {
    use crate::raw;
    /// Wait for earlier READs and atomics.
    pub const FENCE: u32 = raw::ib_send_flags_IB_SEND_FENCE as u32;
    /// Raise a completion.
    pub const SIGNALED: u32 = raw::ib_send_flags_IB_SEND_SIGNALED as u32;
    /// Solicited event.
    pub const SOLICITED: u32 = raw::ib_send_flags_IB_SEND_SOLICITED as u32;
    /// The data is to be copied now.
    pub const INLINE: u32 = raw::ib_send_flags_IB_SEND_INLINE as u32;
}

impl<'a, D: Driver> SendWr<'a, D> {
    /// Comes back in the completion.
    pub fn wr_id(&self) -> u64 {
        // SAFETY: Both members of the union are 64 bits of plain data.
        unsafe { *self.wr.__bindgen_anon_1.wr_id }
    }

    /// `enum ib_wr_opcode`.
    pub fn opcode(&self) -> u32 {
        self.wr.opcode
    }

    /// See [`send_flags`].
    pub fn flags(&self) -> u32 {
        self.wr.send_flags as u32
    }

    /// Immediate data (network byte order) or the key to invalidate.
    pub fn imm_or_key(&self) -> u32 {
        // SAFETY: Both members of the union are 32 bits of plain data.
        unsafe { *self.wr.ex.invalidate_rkey }
    }

    /// Data segments; their count first, as the consumer gave it.
    pub fn num_sge(&self) -> u32 {
        u32::try_from(self.wr.num_sge).unwrap_or(u32::MAX)
    }

    /// Data segments.
    pub fn segments(&self) -> impl Iterator<Item = DataSegment> + 'a {
        segments(self.wr.sg_list, self.wr.num_sge)
    }

    /// Copies the data of a work request with [`send_flags::INLINE`] to the start of `to`; returns
    /// what was written. `EINVAL` if it is longer, or if the work request does not have the flag.
    pub fn copy_inline<'b>(&self, to: &'b mut [u8]) -> Result<&'b [u8]> {
        if self.flags() & send_flags::INLINE == 0 {
            return Err(EINVAL);
        }
        let mut done = 0usize;
        for segment in self.segments() {
            let n = segment.length as usize;
            let end = done.checked_add(n).ok_or(EINVAL)?;
            let piece = to.get_mut(done..end).ok_or(EINVAL)?;
            // SAFETY: The work request is inline: its data are at addresses in the kernel, and stay
            // valid until the post operation returns (ib_verbs.h, `IB_SEND_INLINE`). `piece` has
            // `n` bytes.
            unsafe {
                shared_bytes::copy(piece.as_mut_ptr(), segment.addr as usize as *const u8, n)
            };
            done = end;
        }
        to.get(..done).ok_or(EINVAL)
    }

    /// RDMA: remote address and R_Key. `None` for other opcodes, and for UD and GSI.
    pub fn rdma(&self) -> Option<(u64, u32)> {
        match self.wr.opcode {
            raw::ib_wr_opcode_IB_WR_RDMA_WRITE
            | raw::ib_wr_opcode_IB_WR_RDMA_WRITE_WITH_IMM
            | raw::ib_wr_opcode_IB_WR_RDMA_READ
                if !self.is_ud =>
            {
                // SAFETY: With these opcodes the work request is an `ib_rdma_wr` (ib_verbs.h,
                // `rdma_wr()`), by the type invariant.
                let wr = unsafe { &*ptr::from_ref(self.wr).cast::<raw::ib_rdma_wr>() };
                Some((wr.remote_addr, wr.rkey))
            }
            _ => None,
        }
    }

    /// Atomics: remote address, R_Key, compare operand or addend, swap operand.
    pub fn atomic(&self) -> Option<(u64, u32, u64, u64)> {
        match self.wr.opcode {
            raw::ib_wr_opcode_IB_WR_ATOMIC_CMP_AND_SWP
            | raw::ib_wr_opcode_IB_WR_ATOMIC_FETCH_AND_ADD
                if !self.is_ud =>
            {
                // SAFETY: With these opcodes the work request is an `ib_atomic_wr` (ib_verbs.h,
                // `atomic_wr()`), by the type invariant.
                let wr = unsafe { &*ptr::from_ref(self.wr).cast::<raw::ib_atomic_wr>() };
                Some((wr.remote_addr, wr.rkey, wr.compare_add, wr.swap))
            }
            _ => None,
        }
    }

    /// Fast registration: key, rights, address and length. `None` for other opcodes.
    pub fn reg(&self) -> Option<(u32, u32, u64, u64)> {
        if self.is_ud || self.wr.opcode != raw::ib_wr_opcode_IB_WR_REG_MR {
            return None;
        }
        // SAFETY: With this opcode the work request is an `ib_reg_wr` (ib_verbs.h, `reg_wr()`),
        // whose region is the consumer's and stays until this has completed.
        unsafe {
            let wr = &*ptr::from_ref(self.wr).cast::<raw::ib_reg_wr>();
            let mr = wr.mr.as_ref()?;
            Some((wr.key, wr.access as u32, mr.iova, mr.length))
        }
    }

    /// UD and GSI: what a work request to such a queue pair has besides. `None` for those to other
    /// queue pairs, and if there is no address handle.
    pub fn ud(&self) -> Option<UdPart<'a, D>> {
        if !self.is_ud {
            return None;
        }
        // SAFETY: The queue pair is of type UD or GSI, so the work request is an `ib_ud_wr`
        // (ib_verbs.h, `ud_wr()`), by the type invariant.
        let wr = unsafe { &*ptr::from_ref(self.wr).cast::<raw::ib_ud_wr>() };
        if wr.ah.is_null() {
            return None;
        }
        Some(UdPart {
            // SAFETY: A consumer may use only address handles of the device that it posts to, and
            // keeps them until the work request has completed.
            ah: unsafe { Ah::<D>::from_ptr(wr.ah).data() },
            remote_qpn: wr.remote_qpn,
            remote_qkey: wr.remote_qkey,
            pkey_index: wr.pkey_index,
        })
    }
}

/// The part of a send work request that UD and GSI queue pairs have.
pub struct UdPart<'a, D: Driver> {
    /// The driver's address handle.
    pub ah: &'a D::Ah,
    /// Destination queue pair.
    pub remote_qpn: u32,
    /// Its Q_Key.
    pub remote_qkey: u32,
    /// GSI: index of the P_Key.
    pub pkey_index: u16,
}

/// A list of receive work requests as it is being posted.
pub struct RecvWrs<'a> {
    next: *const raw::ib_recv_wr,
    current: *const raw::ib_recv_wr,
    _p: PhantomData<&'a raw::ib_recv_wr>,
}

impl RecvWrs<'_> {
    /// # Safety
    ///
    /// `head` is null or a list that a consumer posts; it is used while the post operation runs.
    pub(crate) unsafe fn new(head: *const raw::ib_recv_wr) -> Self {
        Self {
            next: head,
            current: head,
            _p: PhantomData,
        }
    }

    /// The work request that was taken last, or the first.
    pub(crate) fn bad(&self) -> *const raw::ib_recv_wr {
        self.current
    }
}

impl<'a> Iterator for RecvWrs<'a> {
    type Item = RecvWr<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        // SAFETY: Null or a valid element of the list, see `new`.
        let wr = unsafe { self.next.as_ref() }?;
        self.current = self.next;
        self.next = wr.next;
        Some(RecvWr(wr))
    }
}

/// A receive work request.
pub struct RecvWr<'a>(&'a raw::ib_recv_wr);

impl<'a> RecvWr<'a> {
    /// Comes back in the completion.
    pub fn wr_id(&self) -> u64 {
        // SAFETY: Both members of the union are 64 bits of plain data.
        unsafe { *self.0.__bindgen_anon_1.wr_id }
    }

    /// Data segments; their count, as the consumer gave it.
    pub fn num_sge(&self) -> u32 {
        u32::try_from(self.0.num_sge).unwrap_or(u32::MAX)
    }

    /// Data segments.
    pub fn segments(&self) -> impl Iterator<Item = DataSegment> + 'a {
        segments(self.0.sg_list, self.0.num_sge)
    }
}

/// Room for a work completion of a kernel consumer (`struct ib_wc`).
#[repr(transparent)]
pub struct Wc(MaybeUninit<raw::ib_wc>);

/// The contents of a work completion.
#[derive(Clone, Copy, Default)]
pub struct WcContents {
    /// From the work request.
    pub wr_id: u64,
    /// `enum ib_wc_status`.
    pub status: u32,
    /// `enum ib_wc_opcode`.
    pub opcode: u32,
    /// Detail of a failure.
    pub vendor_err: u32,
    /// Bytes.
    pub byte_len: u32,
    /// Immediate data (network byte order) or invalidated key.
    pub imm_or_key: u32,
    /// Sender (UD).
    pub src_qp: u32,
    /// `IB_WC_*`.
    pub flags: u32,
    /// Index of the P_Key.
    pub pkey_index: u16,
    /// Service level (UD).
    pub sl: u8,
    /// `enum rdma_network_type` (UD).
    pub network_hdr_type: u8,
    /// Sender's Ethernet address (UD).
    pub smac: [u8; 6],
    /// VLAN (UD).
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

impl Wc {
    /// Fills in a completion of the queue pair behind `qp`.
    pub fn set(&mut self, contents: &WcContents, qp: &QpIdentity) {
        // SAFETY: All zeroes is a valid C struct of integers and pointers.
        let wc: &mut raw::ib_wc = self.0.write(unsafe { core::mem::zeroed() });
        wc.__bindgen_anon_1.wr_id = ManuallyDrop::new(contents.wr_id);
        wc.status = contents.status;
        wc.opcode = contents.opcode;
        wc.vendor_err = contents.vendor_err;
        wc.byte_len = contents.byte_len;
        wc.qp = qp.0;
        wc.ex.invalidate_rkey = ManuallyDrop::new(contents.imm_or_key);
        wc.src_qp = contents.src_qp;
        wc.wc_flags = contents.flags as i32;
        wc.pkey_index = contents.pkey_index;
        wc.sl = contents.sl;
        wc.port_num = 1;
        wc.smac = contents.smac;
        wc.vlan_id = contents.vlan_id;
        wc.network_hdr_type = contents.network_hdr_type;
    }
}

/// Which ib_core queue pair a completion belongs to: a pointer that only the consumer follows.
#[derive(Clone, Copy)]
pub struct QpIdentity(*mut raw::ib_qp);

// SAFETY: An identity; never followed here.
unsafe impl Send for QpIdentity {}
// SAFETY: A shared reference can be copied, and nothing else.
unsafe impl Sync for QpIdentity {}

impl QpIdentity {
    /// The identity of the queue pair that `target` belongs to.
    pub fn of(target: &QpTarget) -> Self {
        Self(target.as_ptr())
    }
}
