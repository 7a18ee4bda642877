// SPDX-License-Identifier: GPL-2.0

//! Reregistration of a program's memory (IBA 11.2.8.6, `ibv_rereg_mr()`).
//!
//! Other rights and another protection domain are changes of the region, which keeps its keys: who uses it with what it
//! has before and after does not notice. Other memory makes another region with other keys, so that what somebody still
//! does by the old ones never gets to it.

use super::{Fixed, Kind, Mr, MrHandle, CLOSED, SUPPORTED_ACCESS};
use crate::{driver::Rrxe, pd::Pd};
use kernel::{
    prelude::*,
    sync::atomic::{Full, Relaxed, Release},
};
use linux_rdma::{
    errno::not_supported,
    rdma::{Device, MrChange, MrKeys, UserMemory},
    sync::synchronize_rcu_expedited,
};

impl MrHandle {
    /// REREG_MR: `None` where this is the region still, or the one that takes its place; this one is to be closed then.
    /// On failure it is what it was.
    ///
    /// # Errors
    ///
    /// `EBUSY`: windows are bound to it. `EOPNOTSUPP`: rights that no region can have. `EINVAL`: it has no memory of a
    /// program. Those of registration.
    pub(crate) fn change(
        &self,
        device: &Device<Rrxe>,
        pd: &Pd,
        change: &MrChange,
    ) -> Result<Option<(MrHandle, MrKeys)>> {
        // What a window allows, its region has to allow as well: none is bound meanwhile, and to an old one never again.
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
    ) -> Result<Option<(MrHandle, MrKeys)>> {
        let (Kind::Fixed(fixed), Some(owner)) = (&self.mr.kind, &self.owner) else {
            return Err(EINVAL);
        };
        let access = change.access.unwrap_or(fixed.access());
        if access & !SUPPORTED_ACCESS != 0 {
            return Err(not_supported());
        }
        if let Some(memory) = &change.memory {
            return Mr::user(device, pd, memory, access).map(Some);
        }
        if !owner.allows(access) {
            // It must be pinned anew, since a page that is only read may be another one once it is written to.
            let (start, size) = owner.range();
            let memory = UserMemory {
                start,
                length: size as u64,
                iova: fixed.iova,
            };
            return Mr::user(device, pd, &memory, access).map(Some);
        }
        self.mr.set(fixed, pd, access);
        Ok(None)
    }
}

impl Mr {
    /// Gives a region another domain and other rights. Sleeps: afterwards nobody does what only the old ones allow.
    fn set(&self, fixed: &Fixed, pd: &Pd, access: u32) {
        // Nobody sees the rights of one with the domain of the other: first there is only what both allow.
        let old = fixed.access();
        if old & !access != 0 {
            fixed.access.store(old & access, Relaxed);
            synchronize_rcu_expedited();
        }
        if self.pd.get() != pd.id() {
            self.pd.set(pd.id());
            synchronize_rcu_expedited();
        }
        fixed.access.store(access, Relaxed);
    }
}
