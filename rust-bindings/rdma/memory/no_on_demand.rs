// SPDX-License-Identifier: GPL-2.0

//! Stands for on-demand paging in kernels without MMU notifiers. Every registration fails.

use super::{Backing, MappedMemory, Unavailable};
use crate::{errno::not_supported, sync::BurstGuard};
use kernel::{prelude::*, sync::Arc};

/// Bytes that would come in together.
pub const WINDOW: usize = 256 * 1024;

/// How absent pages would be brought in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "documented in on_demand.rs")]
pub enum Paging {
    Fault,
    NoFault,
}

/// Returns `EOPNOTSUPP`.
pub fn current_mm() -> Result<usize> {
    Err(not_supported())
}

/// Memory of a process, of which pages may be absent. No value exists.
pub enum OnDemand {}

impl OnDemand {
    /// Returns `EOPNOTSUPP`.
    pub fn register(_start: u64, _len: u64, _writable: bool) -> Result<Arc<Self>> {
        Err(not_supported())
    }

    /// Returns the address in the process and the length in bytes of the memory.
    pub fn range(&self) -> (u64, u64) {
        match *self {}
    }

    /// Returns the length in bytes, and whether the memory may be written to.
    pub(super) fn properties(&self) -> (u64, bool) {
        match *self {}
    }

    /// Returns whether the memory can be given all of these `IB_ACCESS_*` flags.
    pub fn allows(&self, _access: u32) -> bool {
        match *self {}
    }

    /// Returns the address of byte `offset`.
    pub(super) fn piece(&self, _: u64, _: usize, _: bool) -> Result<(*mut u8, usize)> {
        match *self {}
    }

    /// Returns the offset of the first byte after a page.
    pub fn end_of_page(&self, _offset: u64) -> u64 {
        match *self {}
    }

    /// Returns the offset of the first absent byte.
    pub fn first_absent(&self, _offset: u64, _len: u64, _write: bool) -> Option<u64> {
        match *self {}
    }

    /// Brings in pages.
    pub fn bring_in(&self, _: u64, _: u64, _: bool, _: Paging) -> Result {
        match *self {}
    }
}

impl Backing for OnDemand {
    unsafe fn access<'a>(
        &'a self,
        _: &'a BurstGuard,
        _: u64,
        _: u64,
    ) -> Result<(MappedMemory<'a>, u64), Unavailable> {
        match *self {}
    }

    fn revoke(&self) {
        match *self {}
    }
}
