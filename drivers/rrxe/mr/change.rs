// SPDX-License-Identifier: GPL-2.0

//! Work requests that change what a key means: fast registration, binding of windows, invalidation.

use super::{is_inside, Consumer, Kind, Mr, CLOSED, REMOTE, TYPE_1, TYPE_2};
use crate::{pd::PdId, tables::Tables};
use kernel::sync::{
    atomic::{Full, Relaxed},
    rcu, Arc,
};
use linux_rdma::{rdma::memory::access, sync::lock_bh};
use rrxe_core::Fault;

/// What a fast registration can ask for.
const FAST_ACCESS: u32 = REMOTE | access::LOCAL_WRITE;
/// What a window can be bound with. Local rights mean nothing: it has no L_Key.
const WINDOW_ACCESS: u32 = REMOTE | access::LOCAL_WRITE | access::ZERO_BASED;

/// What a window is to be bound to.
#[derive(Clone, Copy)]
pub(crate) struct Bind {
    /// The key that it gets; the upper 24 bits say which window it is.
    pub(crate) rkey: u32,
    /// The region.
    pub(crate) lkey: u32,
    pub(crate) address: u64,
    /// 0 unbinds a window of type 1.
    pub(crate) length: u64,
    /// `IB_ACCESS_*` flags.
    pub(crate) access: u64,
}

/// What a fast registration is to become.
#[derive(Clone, Copy)]
pub(crate) struct FastRegister {
    pub(crate) key: u32,
    pub(crate) iova: u64,
    pub(crate) length: u64,
    /// `IB_ACCESS_*` flags.
    pub(crate) access: u64,
}

impl Mr {
    /// One window more is bound to it. False where it is being deregistered.
    fn take_window(&self) -> bool {
        let mut now = self.windows.load(Relaxed);
        // Far below `CLOSED`: there are fewer windows.
        while now != CLOSED {
            match self.windows.cmpxchg(now, now.wrapping_add(1), Full) {
                Ok(_) => return true,
                Err(other) => now = other,
            }
        }
        false
    }

    /// One window less is.
    pub(super) fn give_window(&self) {
        self.windows.fetch_sub(1, Full);
    }
}

impl Tables {
    /// Local invalidate, and SEND with invalidate (IBA 10.6.5): a fast registration or a window of
    /// type 2; any other key is refused, and stays valid (K-08). Afterwards nobody uses it.
    pub(crate) fn invalidate(&self, rcu: &rcu::Guard, by: Consumer, key: u32) -> Result<(), Fault> {
        let mr = self.regions.get(key, rcu).ok_or(Fault::Protection)?;
        if mr.pd.get() != by.pd || !matches!(mr.kind, Kind::Fast | Kind::Window(TYPE_2)) {
            return Err(Fault::Protection);
        }
        let bound = {
            let mut state = lock_bh(&mr.changing);
            if state.key != key || state.binder.is_some_and(|binder| binder != by.qp) {
                return Err(Fault::Protection);
            }
            state.valid = false;
            state.binder = None;
            state.bound.take()
        };
        if let Some((region, _)) = bound {
            region.give_window();
        }
        Ok(())
    }

    /// Registers what was mapped for a fast registration under a key, whose low eight bits are the
    /// consumer's (K-05).
    pub(crate) fn fast_register(
        &self,
        rcu: &rcu::Guard,
        by: Consumer,
        to: FastRegister,
    ) -> Result<(), Fault> {
        let mr = self.regions.get(to.key, rcu).ok_or(Fault::Protection)?;
        let access = u32::try_from(to.access).map_err(|_| Fault::Malformed)?;
        if mr.pd.get() != by.pd || !matches!(mr.kind, Kind::Fast) || access & !FAST_ACCESS != 0 {
            return Err(Fault::Protection);
        }
        let mut state = lock_bh(&mr.changing);
        let mapped = state.pages.as_ref().map_or(0, |pages| pages.size());
        let fits = to.length <= mapped && to.iova.checked_add(to.length).is_some();
        if state.valid || !fits {
            return Err(Fault::Protection);
        }
        state.key = to.key;
        state.access = access;
        state.iova = to.iova;
        state.length = to.length;
        state.valid = true;
        Ok(())
    }

    /// Binds a window (IBA 10.6.7.2, 11.4.1.1). One of type 1 may be bound again, or to nothing;
    /// one of type 2 must have been invalidated.
    pub(crate) fn bind(&self, rcu: &rcu::Guard, by: Consumer, to: Bind) -> Result<(), Fault> {
        let window = self.regions.get(to.rkey, rcu).ok_or(Fault::Protection)?;
        let Kind::Window(mw_type) = window.kind else {
            return Err(Fault::Protection);
        };
        let access = u32::try_from(to.access).map_err(|_| Fault::Protection)?;
        let zero_based = access & access::ZERO_BASED != 0;
        if window.pd.get() != by.pd
            || access & !WINDOW_ACCESS != 0
            || mw_type == TYPE_1 && zero_based
            || mw_type == TYPE_2 && to.length == 0
        {
            return Err(Fault::Protection);
        }
        let bound = match to.length {
            0 => None,
            _ => Some(self.region_for_window(rcu, by.pd, &to, access)?),
        };
        let old = {
            let mut state = lock_bh(&window.changing);
            if mw_type == TYPE_2 && state.valid {
                drop(state);
                if let Some((region, _)) = bound {
                    region.give_window();
                }
                return Err(Fault::Protection);
            }
            state.valid = true;
            state.key = to.rkey;
            state.access = access & REMOTE;
            state.iova = if zero_based { 0 } else { to.address };
            state.length = to.length;
            state.binder = (mw_type == TYPE_2).then_some(by.qp);
            core::mem::replace(&mut state.bound, bound)
        };
        if let Some((region, _)) = old {
            region.give_window();
        }
        Ok(())
    }

    /// The region that a window is to be bound to, which has one window more now, and where in its
    /// memory the window starts.
    fn region_for_window(
        &self,
        rcu: &rcu::Guard,
        pd: PdId,
        to: &Bind,
        access: u32,
    ) -> Result<(Arc<Mr>, u64), Fault> {
        let region = self
            .regions
            .get_arc(to.lkey, rcu)
            .ok_or(Fault::Protection)?;
        let Kind::Fixed(fixed) = &region.kind else {
            return Err(Fault::Protection);
        };
        let writes = access & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0;
        let end = to.address.checked_add(to.length).ok_or(Fault::Protection)?;
        let allowed = fixed.access();
        if region.pd.get() != pd
            || fixed.key != to.lkey
            || allowed & access::MW_BIND == 0
            || writes && allowed & access::LOCAL_WRITE == 0
            || !is_inside(fixed.iova, fixed.length, to.address, end)
            || !region.take_window()
        {
            return Err(Fault::Protection);
        }
        let start = to.address.wrapping_sub(fixed.iova);
        Ok((region, start))
    }
}
