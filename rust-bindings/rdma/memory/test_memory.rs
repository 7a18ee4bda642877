// SPDX-License-Identifier: GPL-2.0

//! Memory for tests, which may be absent.

use super::{backing::Revocation, Backing, MappedMemory, Place, Unavailable};
use crate::sync::BurstGuard;
use kernel::{
    prelude::*,
    sync::atomic::{Acquire, Atomic, Release},
};

/// Memory for tests, all of which is present or absent.
pub struct TestMemory {
    address: usize,
    words: KVec<u64>,
    present: Atomic<u32>,
    revocation: Revocation,
}

impl TestMemory {
    /// Returns zeroed memory of this number of words, which is absent.
    pub fn new(words: usize) -> Result<Self> {
        let mut words = KVec::from_elem(0u64, words, GFP_KERNEL)?;
        Ok(Self {
            address: words.as_mut_ptr() as usize,
            words,
            present: Atomic::new(0),
            revocation: Revocation::new(),
        })
    }

    /// Makes the memory present or absent.
    pub fn set_present(&self, present: bool) {
        self.present.store(present.into(), Release);
    }
}

impl Backing for TestMemory {
    unsafe fn access<'a>(
        &'a self,
        burst: &'a BurstGuard,
        offset: u64,
        _len: u64,
    ) -> Result<(MappedMemory<'a>, u64), Unavailable> {
        self.revocation.check(burst)?;
        if self.present.load(Acquire) == 0 {
            return Err(Unavailable::NotPresent);
        }
        let size = size_of_val(self.words.as_slice()) as u64;
        // INVARIANT: The words live as long as `self`, and nothing else accesses them.
        let memory = MappedMemory(Place::Contiguous(self.address, size));
        Ok((memory, offset))
    }

    fn revoke(&self) {
        self.revocation.revoke();
    }
}
