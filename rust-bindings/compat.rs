// SPDX-License-Identifier: GPL-2.0

//! Differences between the kernel versions that this crate supports: Linux 7.2 and later.
//!
//! Kbuild sets `--cfg linux_7_2` for the oldest version. Code for the newest version needs no
//! `cfg`. To drop support for a version, delete its items here and the `cfg` in Kbuild.

use core::borrow::Borrow;

/// The type of limits in `struct ib_device_attr`.
#[cfg(linux_7_2)]
pub(crate) type DeviceLimit = i32;
#[cfg(not(linux_7_2))]
pub(crate) type DeviceLimit = u32;

/// The attribute of CREATE_SRQ that gives the ring other memory.
#[cfg(linux_7_2)]
pub(crate) const SRQ_BUFFERS: &[u32] = &[];
#[cfg(not(linux_7_2))]
pub(crate) const SRQ_BUFFERS: &[u32] =
    &[crate::raw::uverbs_attrs_create_srq_cmd_attr_ids_UVERBS_ATTR_CREATE_SRQ_BUF_UMEM];

/// A full memory barrier between CPUs (`smp_mb()`, Documentation/memory-barriers.txt).
#[inline(always)]
pub fn smp_mb() {
    #[cfg(linux_7_2)]
    kernel::sync::barrier::smp_mb();
    #[cfg(not(linux_7_2))]
    kernel::sync::barrier::smp_mb(kernel::sync::barrier::Full);
}

/// A memory barrier between CPUs for stores (`smp_wmb()`, Documentation/memory-barriers.txt).
#[inline(always)]
pub(crate) fn smp_wmb() {
    #[cfg(linux_7_2)]
    kernel::sync::barrier::smp_wmb();
    #[cfg(not(linux_7_2))]
    kernel::sync::barrier::smp_mb(kernel::sync::barrier::Write);
}

/// Returns the value of a module parameter, given the result of `ModuleParamAccess::value()`: a
/// reference in Linux 7.2, the value itself in later versions.
#[inline]
pub fn parameter<T: Copy>(value: impl Borrow<T>) -> T {
    *value.borrow()
}
