// SPDX-License-Identifier: GPL-2.0

//! Protection domains: identities that keys, queue pairs and address handles are compared by.

use kernel::sync::atomic::{Atomic, Relaxed};

/// Names a protection domain; never used again for another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PdId(u64);

static NEXT: Atomic<u64> = Atomic::new(1);

/// A protection domain.
pub(crate) struct Pd {
    id: PdId,
    is_user: bool,
}

impl Pd {
    pub(crate) fn new(is_user: bool) -> Self {
        Self {
            id: PdId(NEXT.fetch_add(1, Relaxed)),
            is_user,
        }
    }

    pub(crate) fn id(&self) -> PdId {
        self.id
    }

    /// It belongs to a program, not to a kernel consumer.
    pub(crate) fn is_user(&self) -> bool {
        self.is_user
    }
}
