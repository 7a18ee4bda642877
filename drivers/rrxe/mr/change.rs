// SPDX-License-Identifier: GPL-2.0

//! Work requests that change a key: fast registration, binding of windows, invalidation.

use super::{is_inside, KeyUser, Kind, Mr, MrTable, CLOSED, REMOTE, TYPE_1, TYPE_2};
use crate::{pd::PdId, ring::wqe::NewKey};
use kernel::sync::{
    atomic::{Full, Relaxed},
    Arc,
};
use linux_rdma::{
    rdma::memory::access,
    sync::{lock_bh, BurstGuard},
};
use rrxe_core::Fault;

/// Rights that a fast registration can have.
const FAST_ACCESS: u32 = REMOTE | access::LOCAL_WRITE;
/// Rights that a window can be bound with. Local rights have no effect, because a window has no
/// L_Key.
const WINDOW_ACCESS: u32 = REMOTE | access::LOCAL_WRITE | access::ZERO_BASED;

/// The binding of a window to its region, which can't be deregistered while this exists.
pub(super) struct WindowBinding {
    /// The region, which has the memory.
    pub(super) region: Arc<Mr>,
    /// Offset of the window's start in the region's memory, in bytes.
    pub(super) start: u64,
}

impl WindowBinding {
    /// Returns `None` if the region is being deregistered.
    fn new(region: Arc<Mr>, start: u64) -> Option<Self> {
        let mut now = region.windows.load(Relaxed);
        // The count can't reach `CLOSED`: there are fewer windows.
        while now != CLOSED {
            match region.windows.cmpxchg(now, now.wrapping_add(1), Full) {
                Ok(_) => return Some(Self { region, start }),
                Err(other) => now = other,
            }
        }
        None
    }
}

impl Drop for WindowBinding {
    fn drop(&mut self) {
        self.region.windows.fetch_sub(1, Full);
    }
}

impl Mr {
    /// Binds this window. A window that was found under RCU may have been deallocated since, and
    /// must not be bound then.
    fn bind(
        &self,
        mw_type: u32,
        by: KeyUser,
        to: &NewKey,
        bound: Option<WindowBinding>,
    ) -> Result<(), Fault> {
        let mut state = lock_bh(&self.key_state);
        if state.ended || mw_type == TYPE_2 && state.valid {
            return Err(Fault::Protection);
        }
        let zero_based = to.access & u64::from(access::ZERO_BASED) != 0;
        state.valid = true;
        state.key = to.key;
        // All rights are among the lower 32 bits.
        state.access = to.access as u32 & REMOTE;
        state.iova = if zero_based { 0 } else { to.address };
        state.length = to.length;
        state.binder = (mw_type == TYPE_2).then_some(by.qp);
        state.bound = bound;
        Ok(())
    }
}

impl MrTable {
    /// Invalidates a key: local invalidate, and SEND with invalidate (IBA 10.6.5). The key must be
    /// that of a fast registration or of a bound window of type 2; any other key is refused and
    /// stays valid (K-08). On return, no access uses the key.
    pub(crate) fn invalidate(
        &self,
        burst: &BurstGuard,
        by: KeyUser,
        key: u32,
    ) -> Result<(), Fault> {
        let mr = self.by_key(key, burst).ok_or(Fault::Protection)?;
        if !mr.is_in(by.pd) || !matches!(mr.kind, Kind::FastReg | Kind::Window(TYPE_2)) {
            return Err(Fault::Protection);
        }
        let mut state = lock_bh(&mr.key_state);
        if state.key != key || state.binder.is_some_and(|binder| binder != by.qp) {
            return Err(Fault::Protection);
        }
        // A window must not be invalid already (o10-37.2.26). A fast registration may be.
        if matches!(mr.kind, Kind::Window(_)) && !state.valid {
            return Err(Fault::Protection);
        }
        state.valid = false;
        state.binder = None;
        state.bound = None;
        Ok(())
    }

    /// Registers the mapped pages of a fast registration under a key, whose low eight bits the
    /// consumer chooses (K-05).
    pub(crate) fn fast_reg(
        &self,
        burst: &BurstGuard,
        by: KeyUser,
        to: &NewKey,
    ) -> Result<(), Fault> {
        let mr = self.by_key(to.key, burst).ok_or(Fault::Protection)?;
        let access = u32::try_from(to.access).map_err(|_| Fault::Malformed)?;
        if !mr.is_in(by.pd) || !matches!(mr.kind, Kind::FastReg) || access & !FAST_ACCESS != 0 {
            return Err(Fault::Protection);
        }
        let mut state = lock_bh(&mr.key_state);
        let mapped = state.pages.as_ref().map_or(0, |pages| pages.size());
        let fits = to.length <= mapped && to.address.checked_add(to.length).is_some();
        if state.valid || !fits {
            return Err(Fault::Protection);
        }
        state.key = to.key;
        state.access = access;
        state.iova = to.address;
        state.length = to.length;
        state.valid = true;
        Ok(())
    }

    /// Binds a window (IBA 10.6.7.2, 11.4.1.1). A window of type 1 may be bound again, or unbound;
    /// a window of type 2 must have been invalidated.
    pub(crate) fn bind(&self, burst: &BurstGuard, by: KeyUser, to: &NewKey) -> Result<(), Fault> {
        let window = self.by_key(to.key, burst).ok_or(Fault::Protection)?;
        let Kind::Window(mw_type) = window.kind else {
            return Err(Fault::Protection);
        };
        let access = u32::try_from(to.access).map_err(|_| Fault::Protection)?;
        let zero_based = access & access::ZERO_BASED != 0;
        if !window.is_in(by.pd)
            || access & !WINDOW_ACCESS != 0
            || mw_type == TYPE_1 && zero_based
            || mw_type == TYPE_2 && to.length == 0
        {
            return Err(Fault::Protection);
        }
        let bound = match to.length {
            0 => None,
            _ => Some(self.region_for_window(burst, by.pd, to, access)?),
        };
        window.bind(mw_type, by, to, bound)
    }

    /// Returns the binding to a region, for a window.
    fn region_for_window(
        &self,
        burst: &BurstGuard,
        pd: PdId,
        to: &NewKey,
        access: u32,
    ) -> Result<WindowBinding, Fault> {
        let region = self.get(to.lkey >> 8, burst);
        let region = region.map(Arc::from).ok_or(Fault::Protection)?;
        let Kind::Registered(registered) = &region.kind else {
            return Err(Fault::Protection);
        };
        let writes = access & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0;
        let end = to.address.checked_add(to.length).ok_or(Fault::Protection)?;
        let allowed = registered.access.load(Relaxed);
        if !region.is_in(pd)
            || region.key != to.lkey
            || allowed & access::MW_BIND == 0
            || writes && allowed & access::LOCAL_WRITE == 0
            || !is_inside(registered.iova, registered.length, to.address, end)
        {
            return Err(Fault::Protection);
        }
        let start = to.address.wrapping_sub(registered.iova);
        WindowBinding::new(region, start).ok_or(Fault::Protection)
    }
}

#[cfg(CONFIG_KUNIT)]
#[kernel::prelude::kunit_tests(rrxe_windows)]
mod tests {
    use super::super::*;
    use crate::{
        quota::{self, Quotas},
        ring::wqe::NewKey,
    };

    #[test]
    fn a_window_that_is_gone_holds_no_region() -> Result {
        let (table, quotas) = (Arc::pin_init(MrTable::new(2), GFP_KERNEL)?, Quotas::new()?);
        let by = KeyUser {
            pd: Pd::new(true).id,
            qp: BinderId::new(),
        };
        let register = |kind: Kind| {
            let charge = Charge::new(&quotas, quota::Kind::Window, false)?;
            Mr::register(&table, charge, by.pd, None, kind, None)
        };
        let (region, _) = register(Kind::FastReg)?;
        let (window, rkey) = register(Kind::Window(TYPE_1))?;
        let to = NewKey {
            key: rkey,
            lkey: 0,
            address: 0,
            length: 1,
            access: access::REMOTE_READ.into(),
        };
        let binding = || WindowBinding::new(region.mr.clone(), 0);

        // Binding the window twice leaves one window on the region.
        assert!(window.mr.bind(TYPE_1, by, &to, binding()).is_ok());
        assert!(window.mr.bind(TYPE_1, by, &to, binding()).is_ok());
        assert_eq!(region.mr.windows.load(Relaxed), 1);
        assert_eq!(region.close(), Err(EBUSY));

        // A CPU that has found the window binds it after another CPU has deallocated it.
        let found = window.mr.clone();
        let late = binding();
        window.close()?;
        drop(window);
        assert!(found.bind(TYPE_1, by, &to, late).is_err());
        assert_eq!(region.mr.windows.load(Relaxed), 0);
        region.close()?;
        assert!(binding().is_none());
        Ok(())
    }
}
