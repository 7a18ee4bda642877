// SPDX-License-Identifier: GPL-2.0

//! Protection domains: identities by which keys, queue pairs and address handles are compared.

use kernel::sync::atomic::{Atomic, Relaxed};

/// Identity of a protection domain. Never reused. The default is that of no protection domain.
pub(crate) use rrxe_core::DomainId as PdId;

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
