// SPDX-License-Identifier: GPL-2.0

//! The table of memory regions and windows by key, and the accesses by key.

use super::{
    is_inside,
    span::{Source, Span},
    AccessRequest, KeyUser, Kind, Mr,
};
use crate::{limits, number_table::NumberTable, verbs::pd::PdId};
use kernel::{
    prelude::*,
    sync::{rcu, Arc},
};
use linux_rdma::{
    random,
    rdma::memory::access,
    sync::{arc_borrow_ref, lock_bh},
};
use rrxe_core::{Fault, Flush, RemoteAccess};

/// Memory regions by key: 24 bits of number, and 8 low bits that the consumer changes with each
/// use.
#[pin_data]
pub(crate) struct MrTable {
    #[pin]
    pub(super) numbers: NumberTable<Mr>,
}

impl MrTable {
    pub(crate) fn new() -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            numbers <- NumberTable::new(limits::MAX_MR + limits::MAX_MW),
        })
    }

    /// Reserves an index. Returns it with a key.
    pub(super) fn reserve(&self) -> Result<(u32, u32)> {
        let (index, number) = self.numbers.reserve()?;
        Ok((index, number << 8 | random::u32() & 0xff))
    }

    /// Returns the region with the number in this key. The caller must check the rest of the key.
    #[inline]
    pub(super) fn get<'a>(&'a self, key: u32, rcu: &'a rcu::Guard) -> Option<&'a Mr> {
        self.numbers.get(key >> 8, rcu).map(arc_borrow_ref)
    }

    /// Returns a counted reference to the region with the number in this key.
    pub(super) fn get_arc(&self, key: u32, rcu: &rcu::Guard) -> Option<Arc<Mr>> {
        self.numbers.get(key >> 8, rcu).map(Arc::from)
    }

    /// Returns the bytes `va..va + len` of the region or window that `key` names, if the access is
    /// allowed.
    #[inline]
    fn span<'a>(
        &'a self,
        rcu: &'a rcu::Guard,
        request: AccessRequest,
        key: u32,
        va: u64,
        len: u32,
    ) -> Result<Span<'a>, Fault> {
        let AccessRequest {
            pd,
            window,
            required,
        } = request;
        let mr = self.get(key, rcu).ok_or(Fault::Protection)?;
        let end = va.checked_add(len.into()).ok_or(Fault::Protection)?;
        if mr.pd.get() != pd {
            return Err(Fault::Protection);
        }
        if let Kind::Registered(registered) = &mr.kind {
            return Ok(Span {
                source: Source::Registered(&registered.memory),
                rcu,
                offset: registered
                    .find(key, required, va, end)
                    .ok_or(Fault::Protection)?,
                len,
            });
        }
        let state = lock_bh(&mr.key_state);
        if !state.valid
            || state.key != key
            || state.access & required != required
            || !is_inside(state.iova, state.length, va, end)
        {
            return Err(Fault::Protection);
        }
        let start = match (&mr.kind, &state.bound, window) {
            (Kind::FastReg, _, _) => 0,
            (Kind::Window(_), Some(bound), Some(qp))
                if state.binder.is_none_or(|binder| binder == qp) =>
            {
                bound.start
            }
            _ => return Err(Fault::Protection),
        };
        let offset = start.wrapping_add(va.wrapping_sub(state.iova));
        Ok(Span {
            source: Source::Locked(state),
            rcu,
            offset,
            len,
        })
    }

    /// Returns the bytes `va..va + len` for the queue pair's own work requests: see
    /// [`MrTable::span`].
    #[inline]
    pub(crate) fn local<'a>(
        &'a self,
        rcu: &'a rcu::Guard,
        pd: PdId,
        lkey: u32,
        va: u64,
        len: u32,
        write: bool,
    ) -> Result<Span<'a>, Fault> {
        let request = AccessRequest {
            pd,
            window: None,
            required: if write { access::LOCAL_WRITE } else { 0 },
        };
        self.span(rcu, request, lkey, va, len)
    }

    /// Returns the bytes `va..va + len` for a request from the peer: see [`MrTable::span`].
    #[inline]
    pub(crate) fn remote<'a>(
        &'a self,
        rcu: &'a rcu::Guard,
        by: KeyUser,
        rkey: u32,
        va: u64,
        len: u32,
        wants: RemoteAccess,
    ) -> Result<Span<'a>, Fault> {
        let required = match wants {
            RemoteAccess::Read => access::REMOTE_READ,
            RemoteAccess::Write => access::REMOTE_WRITE,
            RemoteAccess::Atomic => access::REMOTE_ATOMIC,
        };
        let request = AccessRequest {
            pd: by.pd,
            window: Some(by.qp),
            required,
        };
        self.span(rcu, request, rkey, va, len)
    }

    /// Makes earlier writes to a region globally visible (IBA A19), if the region allows that. No
    /// region is persistent.
    pub(crate) fn flush(
        &self,
        rcu: &rcu::Guard,
        pd: PdId,
        rkey: u32,
        flush: Flush,
    ) -> Result<(), Fault> {
        let mut required = 0;
        if flush.global {
            required |= access::FLUSH_GLOBAL;
        }
        if flush.persistent {
            required |= access::FLUSH_PERSISTENT;
        }
        let mr = self.get(rkey, rcu).ok_or(Fault::Protection)?;
        // Windows and fast registrations never have these rights.
        let Kind::Registered(registered) = &mr.kind else {
            return Err(Fault::Protection);
        };
        // Without a range, the whole region is flushed.
        let (va, len) = flush.range.unwrap_or((registered.iova, 0));
        let end = va.checked_add(len.into()).ok_or(Fault::Protection)?;
        let found = registered.find(rkey, required, va, end);
        found
            .filter(|_| mr.pd.get() == pd)
            .ok_or(Fault::Protection)?;
        // The CPU wrote the data and caches are coherent, so a memory barrier is enough.
        linux_rdma::sync::smp_mb();
        Ok(())
    }
}
