// SPDX-License-Identifier: GPL-2.0

//! Reregistration of a program's memory (IBA 11.2.8.6, `ibv_rereg_mr()`).
//!
//! New rights and a new protection domain change the region, which keeps its keys. New memory makes
//! a new region with new keys, so that no access by the old keys reaches it.

use super::{Kind, Mr, MrHandle, Registered, CLOSED, SUPPORTED_ACCESS};
use crate::{
    verbs::{pd::Pd, quota::Charged},
    Rrxe,
};
use kernel::{
    prelude::*,
    sync::atomic::{Full, Relaxed, Release},
};
use linux_rdma::{
    errno::not_supported,
    rdma::{Device, MrChange, UserMemory},
    sync::synchronize_rcu_expedited,
};

impl MrHandle {
    /// REREG_MR. Returns `None` if the region was changed in place, or the new region. In the
    /// latter case the caller must close this one. On failure the region is unchanged.
    ///
    /// # Errors
    ///
    /// `EBUSY` if windows are bound to the region, `EOPNOTSUPP` if no region can have the rights,
    /// `EINVAL` if the region has no user memory, and the errors of registration.
    pub(crate) fn change(
        &self,
        device: &Device<Rrxe>,
        pd: &Pd,
        change: &MrChange,
    ) -> Result<Option<(Charged<MrHandle>, u32)>> {
        // A region must have the rights that its windows grant. No window can be bound during the
        // change, nor ever again to a region that is replaced.
        if self.mr.windows.cmpxchg(0, CLOSED, Full).is_err() {
            return Err(EBUSY);
        }
        let result = self.change_without_windows(device, pd, change);
        if !matches!(result, Ok(Some(_))) {
            self.mr.windows.store(0, Release);
        }
        result
    }

    fn change_without_windows(
        &self,
        device: &Device<Rrxe>,
        pd: &Pd,
        change: &MrChange,
    ) -> Result<Option<(Charged<MrHandle>, u32)>> {
        let (Kind::Registered(registered), Some(owner)) = (&self.mr.kind, &self.owner) else {
            return Err(EINVAL);
        };
        let access = change.access.unwrap_or(registered.access());
        if access & !SUPPORTED_ACCESS != 0 {
            return Err(not_supported());
        }
        if let Some(memory) = &change.memory {
            return Mr::user(device, pd, memory, access).map(Some);
        }
        if !owner.allows(access) {
            // The memory must be pinned anew, because the first write to a read-only page may
            // replace the page.
            let (start, size) = owner.range();
            let memory = UserMemory {
                start,
                length: size as u64,
                iova: registered.iova,
            };
            return Mr::user(device, pd, &memory, access).map(Some);
        }
        self.mr.set(registered, pd, access);
        Ok(None)
    }
}

impl Mr {
    /// Changes the domain and the rights of a region. Sleeps. On return, no access relies on the
    /// old ones.
    fn set(&self, registered: &Registered, pd: &Pd, access: u32) {
        // No access may see the new domain with old rights, or the reverse. So the rights are first
        // reduced to those that both allow: an access that needs only these is not disturbed.
        let old = registered.access();
        if old & !access != 0 {
            registered.access.store(old & access, Relaxed);
            synchronize_rcu_expedited();
        }
        if self.pd.get() != pd.id {
            self.pd.set(pd.id);
            synchronize_rcu_expedited();
        }
        registered.access.store(access, Relaxed);
    }
}
