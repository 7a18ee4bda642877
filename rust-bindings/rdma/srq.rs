// SPDX-License-Identifier: GPL-2.0

//! Attributes of shared receive queues.

use super::object::Driver;
use crate::raw;

/// What a shared receive queue holds (`struct ib_srq_attr`).
#[derive(Clone, Copy, Debug, Default)]
pub struct SrqAttr {
    /// Work requests that may be outstanding.
    pub max_wr: u32,
    /// Data segments of each.
    pub max_sge: u32,
    /// An event is raised when fewer work requests are left; 0 for none.
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

/// What a shared receive queue for XRC has besides.
pub struct XrcSrq<'a, D: Driver> {
    /// Its domain.
    pub xrcd: &'a D::Xrcd,
    /// Where its work requests complete.
    pub cq: &'a D::Cq,
}

/// Which attributes MODIFY_SRQ changes (`enum ib_srq_attr_mask`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttrMask(pub u32);

impl SrqAttrMask {
    /// [`SrqAttr::max_wr`]: resize.
    pub const MAX_WR: u32 = raw::ib_srq_attr_mask_IB_SRQ_MAX_WR;
    /// [`SrqAttr::limit`]: arm, or with 0 disarm.
    pub const LIMIT: u32 = raw::ib_srq_attr_mask_IB_SRQ_LIMIT;

    /// True where all of `bits` are set.
    pub fn has(self, bits: u32) -> bool {
        self.0 & bits == bits
    }
}
