// SPDX-License-Identifier: GPL-2.0

//! Protection domains: identities by which keys, queue pairs and address handles are compared.

use kernel::sync::atomic::{Atomic, Relaxed};

/// Identity of a protection domain. Never reused.
pub(crate) use rrxe_core::DomainId as PdId;

/// The protection domain of a region, which reregistration may change.
pub(crate) struct PdCell(Atomic<u64>);

impl PdCell {
    pub(crate) fn new(pd: PdId) -> Self {
        Self(Atomic::new(pd.0))
    }

    #[inline]
    pub(crate) fn get(&self) -> PdId {
        PdId(self.0.load(Relaxed))
    }

    pub(crate) fn set(&self, pd: PdId) {
        self.0.store(pd.0, Relaxed);
    }
}

static NEXT: Atomic<u64> = Atomic::new(1);

/// A protection domain.
pub(crate) struct Pd {
    pub(crate) id: PdId,
    /// It belongs to a user program, and not to a kernel consumer.
    pub(crate) is_user: bool,
}

impl Pd {
    pub(crate) fn new(is_user: bool) -> Self {
        Self {
            id: PdId(NEXT.fetch_add(1, Relaxed)),
            is_user,
        }
    }
}
