// SPDX-License-Identifier: GPL-2.0

//! Attributes of queue pairs.

use super::{
    attr,
    object::{Cq, Driver, Srq, Xrcd},
    roce::{self, AddressInfo},
};
use crate::raw;
use core::ops::Deref;
use kernel::prelude::*;

/// Transport service of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum QpType {
    /// Reliable connection.
    Rc = raw::ib_qp_type_IB_QPT_RC,
    /// Unreliable connection.
    Uc = raw::ib_qp_type_IB_QPT_UC,
    /// Unreliable datagram.
    Ud = raw::ib_qp_type_IB_QPT_UD,
    /// General services interface: QP1.
    Gsi = raw::ib_qp_type_IB_QPT_GSI,
    /// Sending end of an extended reliable connection.
    XrcInitiator = raw::ib_qp_type_IB_QPT_XRC_INI,
    /// Receiving end of an extended reliable connection.
    XrcTarget = raw::ib_qp_type_IB_QPT_XRC_TGT,
}

impl QpType {
    /// Returns whether the queue pair has a single peer.
    pub fn is_connected(self) -> bool {
        !matches!(self, QpType::Ud | QpType::Gsi)
    }
}

/// `enum ib_qp_state`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum QpState {
    /// No work requests may be posted.
    #[default]
    Reset = 0,
    /// Receive work requests may be posted.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// The send queue is draining or has drained.
    Sqd = 4,
    /// The send queue stopped after an error (UC, UD).
    Sqe = 5,
    /// All work requests are flushed.
    Error = 6,
}

impl QpState {
    /// Converts a value of `enum ib_qp_state`.
    pub fn from_raw(state: u32) -> Option<Self> {
        use QpState::{Error, Init, Reset, Rtr, Rts, Sqd, Sqe};
        let states = [Reset, Init, Rtr, Rts, Sqd, Sqe, Error];
        states.get(state as usize).copied()
    }
}

/// Capacity of a queue pair (`struct ib_qp_cap`).
#[derive(Clone, Copy, Debug, Default)]
pub struct QpCap {
    /// The maximum number of outstanding send work requests.
    pub max_send_wr: u32,
    /// The maximum number of outstanding receive work requests.
    pub max_recv_wr: u32,
    /// The maximum number of data segments in a send work request.
    pub max_send_sge: u32,
    /// The maximum number of data segments in a receive work request.
    pub max_recv_sge: u32,
    /// The maximum length of inline data in bytes.
    pub max_inline_data: u32,
}

impl QpCap {
    /// Reads ib_core's capacity.
    fn from_raw(cap: &raw::ib_qp_cap) -> Self {
        Self {
            max_send_wr: cap.max_send_wr,
            max_recv_wr: cap.max_recv_wr,
            max_send_sge: cap.max_send_sge,
            max_recv_sge: cap.max_recv_sge,
            max_inline_data: cap.max_inline_data,
        }
    }

    /// Writes the capacity to that of ib_core, which has one more field, for itself.
    pub(super) fn write_to(self, cap: &mut raw::ib_qp_cap) {
        cap.max_send_wr = self.max_send_wr;
        cap.max_recv_wr = self.max_recv_wr;
        cap.max_send_sge = self.max_send_sge;
        cap.max_recv_sge = self.max_recv_sge;
        cap.max_inline_data = self.max_inline_data;
    }
}

/// Arguments of CREATE_QP.
pub struct QpInit<'a, D: Driver> {
    /// Transport service.
    pub qp_type: QpType,
    /// Requested capacity; on return, the granted one.
    pub cap: QpCap,
    /// Every send work request generates a completion.
    pub signal_all: bool,
    /// Port of a GSI queue pair.
    pub port: u32,
    /// `IB_QP_CREATE_*`.
    pub create_flags: u32,
    /// Shared receive queue, or `None` if receives are posted to the queue pair itself.
    pub srq: Option<&'a D::Srq>,
    /// XRC domain of an XRC target.
    pub xrcd: Option<&'a D::Xrcd>,
    /// Completion queue for sends; `None` for an XRC target.
    pub send_cq: Option<&'a D::Cq>,
    /// Completion queue for receives; `None` for either end of XRC.
    pub recv_cq: Option<&'a D::Cq>,
}

impl<'a, D: Driver> QpInit<'a, D> {
    /// Reads ib_core's arguments.
    ///
    /// # Safety
    ///
    /// `init` comes from ib_core's call of `create_qp` on a device of driver `D`, and is used only
    /// during that call.
    pub(crate) unsafe fn from_raw(init: &'a raw::ib_qp_init_attr) -> Result<Self> {
        use QpType::{Gsi, Rc, Uc, Ud, XrcInitiator, XrcTarget};
        let qp_type = [Rc, Uc, Ud, Gsi, XrcInitiator, XrcTarget]
            .into_iter()
            .find(|&known| known as u32 == init.qp_type)
            .ok_or_else(crate::errno::not_supported)?;
        let is_xrc = matches!(qp_type, XrcInitiator | XrcTarget);
        if init.send_cq.is_null() && qp_type != XrcTarget
            || init.recv_cq.is_null() && !is_xrc
            || init.xrcd.is_null() && qp_type == XrcTarget
        {
            return Err(EINVAL);
        }
        // SAFETY: The objects belong to the same device, so they are objects of the driver. They
        // are created and not destroyed while ib_core holds its references to them (`create_qp()`
        // in uverbs_cmd.c and in verbs.c).
        unsafe {
            Ok(Self {
                qp_type,
                cap: QpCap::from_raw(&init.cap),
                signal_all: init.sq_sig_type == raw::ib_sig_type_IB_SIGNAL_ALL_WR,
                port: init.port_num,
                create_flags: init.create_flags,
                srq: Srq::<D>::data_of(init.srq).map(Deref::deref),
                xrcd: Xrcd::<D>::data_of(init.xrcd),
                send_cq: Cq::<D>::data_of(init.send_cq).map(Deref::deref),
                recv_cq: Cq::<D>::data_of(init.recv_cq).map(Deref::deref),
            })
        }
    }
}

/// The attributes that MODIFY_QP changes (`enum ib_qp_attr_mask`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAttrMask(pub u32);

#[expect(missing_docs, reason = "named after the attributes")]
impl QpAttrMask {
    pub const STATE: u32 = raw::ib_qp_attr_mask_IB_QP_STATE;
    pub const CUR_STATE: u32 = raw::ib_qp_attr_mask_IB_QP_CUR_STATE;
    pub const EN_SQD_ASYNC_NOTIFY: u32 = raw::ib_qp_attr_mask_IB_QP_EN_SQD_ASYNC_NOTIFY;
    pub const ACCESS_FLAGS: u32 = raw::ib_qp_attr_mask_IB_QP_ACCESS_FLAGS;
    pub const PKEY_INDEX: u32 = raw::ib_qp_attr_mask_IB_QP_PKEY_INDEX;
    pub const PORT: u32 = raw::ib_qp_attr_mask_IB_QP_PORT;
    pub const QKEY: u32 = raw::ib_qp_attr_mask_IB_QP_QKEY;
    pub const AV: u32 = raw::ib_qp_attr_mask_IB_QP_AV;
    pub const PATH_MTU: u32 = raw::ib_qp_attr_mask_IB_QP_PATH_MTU;
    pub const TIMEOUT: u32 = raw::ib_qp_attr_mask_IB_QP_TIMEOUT;
    pub const RETRY_CNT: u32 = raw::ib_qp_attr_mask_IB_QP_RETRY_CNT;
    pub const RNR_RETRY: u32 = raw::ib_qp_attr_mask_IB_QP_RNR_RETRY;
    pub const RQ_PSN: u32 = raw::ib_qp_attr_mask_IB_QP_RQ_PSN;
    pub const MAX_QP_RD_ATOMIC: u32 = raw::ib_qp_attr_mask_IB_QP_MAX_QP_RD_ATOMIC;
    pub const ALT_PATH: u32 = raw::ib_qp_attr_mask_IB_QP_ALT_PATH;
    pub const MIN_RNR_TIMER: u32 = raw::ib_qp_attr_mask_IB_QP_MIN_RNR_TIMER;
    pub const SQ_PSN: u32 = raw::ib_qp_attr_mask_IB_QP_SQ_PSN;
    pub const MAX_DEST_RD_ATOMIC: u32 = raw::ib_qp_attr_mask_IB_QP_MAX_DEST_RD_ATOMIC;
    pub const PATH_MIG_STATE: u32 = raw::ib_qp_attr_mask_IB_QP_PATH_MIG_STATE;
    pub const CAP: u32 = raw::ib_qp_attr_mask_IB_QP_CAP;
    pub const DEST_QPN: u32 = raw::ib_qp_attr_mask_IB_QP_DEST_QPN;

    /// Returns whether all of `bits` are set.
    pub fn has(self, bits: u32) -> bool {
        self.0 & bits == bits
    }
}

/// Attributes of a queue pair (`struct ib_qp_attr`).
#[derive(Clone, Copy, Debug, Default)]
pub struct QpAttr {
    /// Next state in MODIFY_QP, current state in QUERY_QP.
    pub state: QpState,
    /// Current state, as assumed by the consumer.
    pub cur_state: QpState,
    /// Path MTU in bytes; 0 if it has not been set.
    pub path_mtu: u32,
    /// Q_Key (UD).
    pub qkey: u32,
    /// First PSN that the responder expects.
    pub rq_psn: u32,
    /// First PSN that the requester sends.
    pub sq_psn: u32,
    /// Queue pair number of the peer.
    pub dest_qpn: u32,
    /// `IB_ACCESS_*` rights of the peer.
    pub access_flags: u32,
    /// The path to the peer.
    pub address: Option<AddressInfo>,
    /// Index of the P_Key.
    pub pkey_index: u16,
    /// Reports an event when the send queue has drained.
    pub en_sqd_async_notify: bool,
    /// The send queue is draining.
    pub sq_draining: bool,
    /// Maximum number of READs and atomics outstanding as requester.
    pub max_rd_atomic: u8,
    /// Maximum number of READs and atomics outstanding as responder.
    pub max_dest_rd_atomic: u8,
    /// Encoded delay in RNR NAKs.
    pub min_rnr_timer: u8,
    /// Port number, from 1, in MODIFY_QP.
    pub port: u32,
    /// Encoded acknowledge timeout.
    pub timeout: u8,
    /// Retries after a timeout or sequence error, 0 to 7.
    pub retry_cnt: u8,
    /// Retries after an RNR NAK, 0 to 6; 7 means infinite.
    pub rnr_retry: u8,
    /// The path migration state in MODIFY_QP is "migrated".
    pub migrated: bool,
}

impl QpAttr {
    /// Reads the attributes in `mask`. Returns `EINVAL` if one of them has an invalid value.
    ///
    /// # Safety
    ///
    /// `attr` comes from ib_core's call of `modify_qp`.
    pub(crate) unsafe fn from_raw(attr: &raw::ib_qp_attr, mask: QpAttrMask) -> Result<Self> {
        let mut to = Self::default();
        if mask.has(QpAttrMask::STATE) {
            to.state = QpState::from_raw(attr.qp_state).ok_or(EINVAL)?;
        }
        if mask.has(QpAttrMask::CUR_STATE) {
            to.cur_state = QpState::from_raw(attr.cur_qp_state).ok_or(EINVAL)?;
        }
        if mask.has(QpAttrMask::PATH_MTU) {
            to.path_mtu = match attr.path_mtu {
                mtu @ raw::ib_mtu_IB_MTU_256..=raw::ib_mtu_IB_MTU_4096 => 128 << mtu,
                _ => return Err(EINVAL),
            };
        }
        if mask.has(QpAttrMask::AV) {
            // SAFETY: The caller guarantees that `attr` comes from ib_core. `_ib_modify_qp()`
            // (verbs.c) holds the reference to the source GID.
            to.address = Some(unsafe { AddressInfo::from_raw(&attr.ah_attr) }?);
        }
        to.qkey = attr.qkey;
        to.rq_psn = attr.rq_psn & 0xff_ffff;
        to.sq_psn = attr.sq_psn & 0xff_ffff;
        to.dest_qpn = attr.dest_qp_num & 0xff_ffff;
        to.access_flags = attr.qp_access_flags as u32;
        to.pkey_index = attr.pkey_index;
        to.en_sqd_async_notify = attr.en_sqd_async_notify != 0;
        to.max_rd_atomic = attr.max_rd_atomic;
        to.max_dest_rd_atomic = attr.max_dest_rd_atomic;
        to.min_rnr_timer = attr.min_rnr_timer;
        to.port = attr.port_num;
        to.timeout = attr.timeout;
        to.retry_cnt = attr.retry_cnt;
        to.rnr_retry = attr.rnr_retry;
        to.migrated = attr.path_mig_state == raw::ib_mig_state_IB_MIG_MIGRATED;
        Ok(to)
    }

    /// Returns ib_core's attributes for QUERY_QP. Attributes that a queue pair lacks are zero,
    /// because ib_core copies them to the program (ib_uverbs_query_qp() in uverbs_cmd.c).
    pub(crate) fn to_raw(self, cap: QpCap) -> raw::ib_qp_attr {
        let mut attr: raw::ib_qp_attr = pin_init::zeroed();
        attr.qp_state = self.state as u32;
        attr.cur_qp_state = self.cur_state as u32;
        if self.path_mtu != 0 {
            attr.path_mtu = attr::mtu_to_enum(self.path_mtu);
        }
        attr.path_mig_state = raw::ib_mig_state_IB_MIG_MIGRATED;
        attr.qkey = self.qkey;
        attr.rq_psn = self.rq_psn;
        attr.sq_psn = self.sq_psn;
        attr.dest_qp_num = self.dest_qpn;
        attr.qp_access_flags = self.access_flags as i32;
        cap.write_to(&mut attr.cap);
        if let Some(address) = self.address {
            attr.ah_attr = address.to_raw();
        }
        attr.pkey_index = self.pkey_index;
        attr.en_sqd_async_notify = self.en_sqd_async_notify.into();
        attr.sq_draining = self.sq_draining.into();
        attr.max_rd_atomic = self.max_rd_atomic;
        attr.max_dest_rd_atomic = self.max_dest_rd_atomic;
        attr.min_rnr_timer = self.min_rnr_timer;
        attr.port_num = roce::PORT;
        attr.timeout = self.timeout;
        attr.retry_cnt = self.retry_cnt;
        attr.rnr_retry = self.rnr_retry;
        attr
    }
}

/// Returns whether the Modify QP table (IBA 11.2.5.2) allows the transition with these attributes.
pub fn modify_is_ok(cur: QpState, next: QpState, qp_type: QpType, mask: QpAttrMask) -> bool {
    // SAFETY: ib_modify_qp_is_ok() (verbs.c) looks up a constant table, and all arguments are in
    // its range.
    unsafe { raw::ib_modify_qp_is_ok(cur as u32, next as u32, qp_type as u32, mask.0) }
}
