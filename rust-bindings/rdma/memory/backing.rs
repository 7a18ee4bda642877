// SPDX-License-Identifier: GPL-2.0

//! The interface of the memory behind a region.

use super::MappedMemory;
use crate::sync::{wait_for_bursts, BurstGuard};
use kernel::sync::atomic::{Acquire, Atomic, Full, Release};

/// Reason why memory cannot be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// Pages are absent. The memory can be accessed once they have been brought in.
    NotPresent,
    /// The memory was revoked.
    Revoked,
}

/// Memory behind a region. The data path accesses it in bursts ([`crate::sync`]).
pub trait Backing {
    /// Returns access to memory that contains `len` bytes from `offset` on, and the offset of the
    /// first of them in it. Never sleeps: absent pages are an error, and the access begins again
    /// once they have been brought in.
    ///
    /// # Safety
    ///
    /// A key of the region was checked, which permits the access to these bytes and remains valid
    /// while the access exists. For memory of kernel consumers, a work request names the bytes, and
    /// does not complete while the access exists.
    unsafe fn access<'a>(
        &'a self,
        burst: &'a BurstGuard,
        offset: u64,
        len: u64,
    ) -> Result<(MappedMemory<'a>, u64), Unavailable>;

    /// Revokes the memory, at any time: further accesses fail. Returns when no burst uses it.
    /// Sleeps. The caller must not be in a burst.
    fn revoke(&self);
}

/// Values of [`Revocation`].
const ACCESSIBLE: u32 = 0;
const REVOKING: u32 = 1;
const REVOKED: u32 = 2;

/// Whether memory was revoked.
pub(super) struct Revocation(Atomic<u32>);

impl Revocation {
    /// Returns the state of memory that is not revoked.
    pub(super) fn new() -> Self {
        Self(Atomic::new(ACCESSIBLE))
    }

    /// Returns [`Unavailable::Revoked`] if the memory may not be accessed in this burst.
    #[inline]
    pub(super) fn check(&self, _burst: &BurstGuard) -> Result<(), Unavailable> {
        if self.is_accessible() {
            Ok(())
        } else {
            Err(Unavailable::Revoked)
        }
    }

    /// Returns whether the memory is not revoked yet.
    #[inline]
    pub(super) fn is_accessible(&self) -> bool {
        self.0.load(Acquire) == ACCESSIBLE
    }

    /// Makes further accesses fail, and waits for the bursts in which one may have succeeded. Once
    /// the memory is revoked, further calls return at once.
    pub(super) fn revoke(&self) {
        if self.0.load(Acquire) != REVOKED {
            self.0.xchg(REVOKING, Full);
            wait_for_bursts();
            self.0.store(REVOKED, Release);
        }
    }
}
