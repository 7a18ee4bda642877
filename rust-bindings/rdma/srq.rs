// SPDX-License-Identifier: GPL-2.0

//! Attributes of shared receive queues.

use super::object::Driver;
use crate::raw;

/// Attributes of a shared receive queue: the maximum numbers of outstanding work requests and of
/// data segments in each, and the limit. An event is reported when fewer work requests than the
/// limit are left; 0 disables it.
pub type SrqAttr = raw::ib_srq_attr;

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
    /// Resizes to `max_wr`.
    pub const MAX_WR: u32 = raw::ib_srq_attr_mask_IB_SRQ_MAX_WR;
    /// Arms `srq_limit`, or disarms it if it is 0.
    pub const LIMIT: u32 = raw::ib_srq_attr_mask_IB_SRQ_LIMIT;

    /// Returns whether all of `bits` are set.
    pub fn has(self, bits: u32) -> bool {
        self.0 & bits == bits
    }
}
