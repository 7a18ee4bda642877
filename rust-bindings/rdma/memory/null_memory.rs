// SPDX-License-Identifier: GPL-2.0

//! Memory without contents (`ibv_alloc_null_mr(3)`).

use super::{backing::Revocation, Backing, MappedMemory, Place, Unavailable};
use crate::sync::BurstGuard;
use kernel::page::PAGE_SIZE;

/// The bytes that a read finds.
static ZEROES: [u8; PAGE_SIZE] = [0; PAGE_SIZE];

/// Memory of any length that reads as zeroes, and discards the data that is written to it.
pub struct NullMemory(Revocation);

impl NullMemory {
    /// Creates the memory for a region.
    #[expect(
        clippy::new_without_default,
        reason = "a region has a memory of its own"
    )]
    pub fn new() -> Self {
        Self(Revocation::new())
    }
}

/// Returns the address of up to `len` bytes to read, and their number.
#[inline]
pub(super) fn zeroes(len: usize) -> (*const u8, usize) {
    (ZEROES.as_ptr(), len.min(ZEROES.len()))
}

impl Backing for NullMemory {
    #[inline]
    unsafe fn access<'a>(
        &'a self,
        burst: &'a BurstGuard,
        offset: u64,
        _len: u64,
    ) -> Result<(MappedMemory<'a>, u64), Unavailable> {
        self.0.check(burst)?;
        // INVARIANT: There is no memory but the static `ZEROES`.
        Ok((MappedMemory(Place::Null), offset))
    }

    fn revoke(&self) {
        self.0.revoke();
    }
}
