// SPDX-License-Identifier: GPL-2.0

//! Attributes of shared receive queues.

use super::object::Driver;
use crate::raw;

/// Attributes of a shared receive queue (`struct ib_srq_attr`).
#[derive(Clone, Copy, Debug, Default)]
pub struct SrqAttr {
    /// Maximum number of outstanding work requests.
    pub max_wr: u32,
    /// Maximum number of data segments in a work request.
    pub max_sge: u32,
    /// Reports an event when fewer work requests are left; 0 disables it.
    pub limit: u32,
}

impl SrqAttr {
    pub(crate) fn from_raw(attr: &raw::ib_srq_attr) -> Self {
        Self {
            max_wr: attr.max_wr,
            max_sge: attr.max_sge,
            limit: attr.srq_limit,
        }
    }

    pub(crate) fn to_raw(self) -> raw::ib_srq_attr {
        raw::ib_srq_attr {
            max_wr: self.max_wr,
            max_sge: self.max_sge,
            srq_limit: self.limit,
        }
    }
}

/// Additional attributes of a shared receive queue for XRC.
pub struct XrcSrq<'a, D: Driver> {
    /// XRC domain.
    pub xrcd: &'a D::Xrcd,
    /// Completion queue of the work requests.
    pub cq: &'a D::Cq,
}

/// The attributes that MODIFY_SRQ changes (`enum ib_srq_attr_mask`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttrMask(pub u32);

impl SrqAttrMask {
    /// Resizes to [`SrqAttr::max_wr`].
    pub const MAX_WR: u32 = raw::ib_srq_attr_mask_IB_SRQ_MAX_WR;
    /// Arms [`SrqAttr::limit`], or disarms it if it is 0.
    pub const LIMIT: u32 = raw::ib_srq_attr_mask_IB_SRQ_LIMIT;

    /// Returns whether all of `bits` are set.
    pub fn has(self, bits: u32) -> bool {
        self.0 & bits == bits
    }
}
