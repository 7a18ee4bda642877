// SPDX-License-Identifier: GPL-2.0

//! Memory regions and windows, and their keys (IBA 10.6).
//!
//! Packets look them up by key under the RCU read lock, without a reference count. Each access is
//! checked at the moment of use: key, protection domain, rights and range.
//!
//! The memory of a registered region stays as it is; domain and rights change by reregistration, which waits until
//! nobody uses the old ones any more. Fast registrations and windows change while packets use
//! them, so they have a lock, which an access holds until its bytes are copied: when a work
//! request that invalidates a key completes, nobody uses it any more.

mod change;
mod rereg;
mod span;

use change::Bound;
pub(crate) use change::{Bind, FastRegister};
use span::Source;
pub(crate) use span::{Reference, Span};

use crate::{
    device::DeviceState,
    driver::Rrxe,
    limits,
    pd::{Pd, PdCell, PdId},
    tables::Tables,
};
use kernel::{
    new_spinlock,
    prelude::*,
    sync::{
        atomic::{Atomic, Full, Relaxed},
        rcu, Arc, SpinLock,
    },
};
use linux_rdma::errno::not_supported;
use linux_rdma::rdma::{
    memory::{access, KernelMemory, KernelPages, PinOwner, Pinned, Umem},
    Device, MrKeys, UserMemory,
};
use linux_rdma::sync::lock_bh;
use rrxe_core::{Fault, Flush, RemoteAccess};

/// Rights of the peer.
const REMOTE: u32 = access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;
/// Rights that a region of rrxe can have.
const SUPPORTED_ACCESS: u32 = REMOTE | access::LOCAL_WRITE | access::MW_BIND | access::FLUSH_GLOBAL;

/// [`Mr::windows`]: the region is deregistered, and no window can be bound to it any more.
const CLOSED: u32 = u32::MAX;

/// `IB_MW_TYPE_1` and `IB_MW_TYPE_2` (of which this is 2B, IBA 10.6.7.2.5).
const TYPE_1: u32 = 1;
const TYPE_2: u32 = 2;

/// Names a queue pair for the windows that are bound to it; never used again for another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BinderId(u64);

impl BinderId {
    /// A new one.
    pub(crate) fn new() -> Self {
        static NEXT: Atomic<u64> = Atomic::new(1);
        Self(NEXT.fetch_add(1, Relaxed))
    }
}

/// Who wants to do something with a key.
#[derive(Clone, Copy)]
pub(crate) struct Consumer {
    pub(crate) pd: PdId,
    pub(crate) qp: BinderId,
}

/// What somebody wants to do with memory.
#[derive(Clone, Copy)]
struct Wish {
    pd: PdId,
    /// For whom a window will do.
    window: Option<BinderId>,
    /// All of these rights.
    need: u32,
}

/// A memory region or window, as packets see it.
#[pin_data]
pub(crate) struct Mr {
    pd: PdCell,
    kind: Kind,
    /// Windows that are bound to it, or [`CLOSED`].
    windows: Atomic<u32>,
    #[pin]
    changing: SpinLock<Changing>,
}

enum Kind {
    /// Registered by a verb, until it is deregistered or takes other memory.
    Fixed(Fixed),
    /// For fast registration.
    Fast,
    /// A window of this type.
    Window(u32),
}

struct Fixed {
    key: u32,
    access: Atomic<u32>,
    /// The address of its first byte in work requests.
    iova: u64,
    length: u64,
    memory: Memory,
}

impl Fixed {
    /// The rights that it has.
    #[inline]
    fn access(&self) -> u32 {
        self.access.load(Relaxed)
    }

    /// Where the bytes `va..end` begin in the memory, if `key` is its key, and it has all of these rights.
    #[inline]
    fn find(&self, key: u32, need: u32, va: u64, end: u64) -> Option<u64> {
        let allowed = self.key == key
            && self.access() & need == need
            && is_inside(self.iova, self.length, va, end);
        allowed.then(|| va.wrapping_sub(self.iova))
    }
}

enum Memory {
    User(Arc<Pinned>),
    Kernel(KernelMemory),
}

/// What changes of a fast registration or a window.
struct Changing {
    /// Of a window of type 1, this is so from the start.
    valid: bool,
    key: u32,
    access: u32,
    iova: u64,
    length: u64,
    /// Fast registration: its memory.
    pages: Option<KernelPages>,
    /// Window: its hold on a region.
    bound: Option<Bound>,
    /// It was deregistered or deallocated: it can't be bound any more.
    ended: bool,
    /// Window of type 2: the queue pair that it is bound to (K-06).
    binder: Option<BinderId>,
}

impl Changing {
    fn new(key: u32, valid: bool, pages: Option<KernelPages>) -> Self {
        Self {
            valid,
            key,
            access: 0,
            iova: 0,
            length: 0,
            pages,
            bound: None,
            ended: false,
            binder: None,
        }
    }
}

/// A memory region or window, as ib_core holds it: who may unpin it.
pub(crate) struct MrHandle {
    tables: Arc<Tables>,
    index: u32,
    mr: Arc<Mr>,
    owner: Option<PinOwner>,
}

/// Whether `va..end` is inside `iova..iova + length`.
fn is_inside(iova: u64, length: u64, va: u64, end: u64) -> bool {
    va >= iova && end <= iova.saturating_add(length)
}

impl Mr {
    fn register(
        tables: &Arc<Tables>,
        pd: PdId,
        owner: Option<PinOwner>,
        make: impl FnOnce(u32) -> (Kind, Changing),
    ) -> Result<(MrHandle, MrKeys)> {
        let (index, key) = tables.regions.reserve()?;
        let (kind, changing) = make(key);
        let mr = Arc::pin_init(
            pin_init!(Mr {
                pd: PdCell::new(pd),
                kind,
                windows: Atomic::new(0),
                changing <- new_spinlock!(changing, "rrxe_mr"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
        .inspect_err(|_| tables.regions.release(index))?;
        // From here on, the handle gives the index back.
        let handle = MrHandle {
            tables: tables.clone(),
            index,
            mr: mr.clone(),
            owner,
        };
        tables.regions.publish(index, mr)?;
        Ok((
            handle,
            MrKeys {
                lkey: key,
                rkey: key,
            },
        ))
    }

    fn fixed(key: u32, access: u32, iova: u64, length: u64, memory: Memory) -> (Kind, Changing) {
        let fixed = Fixed {
            key,
            access: Atomic::new(access),
            iova,
            length,
            memory,
        };
        (Kind::Fixed(fixed), Changing::new(key, false, None))
    }

    /// REG_MR.
    pub(crate) fn user(
        device: &Device<Rrxe>,
        pd: &Pd,
        memory: &UserMemory,
        access: u32,
    ) -> Result<(MrHandle, MrKeys)> {
        let UserMemory {
            start,
            length,
            iova,
        } = *memory;
        if access & !SUPPORTED_ACCESS != 0 {
            return Err(not_supported());
        }
        if length == 0 || length > limits::MAX_MR_SIZE || iova.checked_add(length).is_none() {
            return Err(EINVAL);
        }
        let size = usize::try_from(length).map_err(|_| EINVAL)?;
        let owner = PinOwner::new(Umem::get(device, start, size, access)?)?;
        let memory = Memory::User(owner.shared().clone());
        Self::register(&device.data().tables, pd.id(), Some(owner), |key| {
            Self::fixed(key, access, iova, length, memory)
        })
    }

    /// The region of all kernel memory, for kernel consumers. Never for remote access (K-09).
    pub(crate) fn kernel(
        device: &DeviceState,
        pd: &Pd,
        memory: KernelMemory,
        access: u32,
    ) -> Result<(MrHandle, MrKeys)> {
        if pd.is_user() || access & !access::LOCAL_WRITE != 0 {
            return Err(EINVAL);
        }
        Self::register(&device.tables, pd.id(), None, |key| {
            Self::fixed(key, access, 0, u64::MAX, Memory::Kernel(memory))
        })
    }

    /// ALLOC_MR: a region for fast registrations of up to `pages` pages.
    pub(crate) fn fast(device: &DeviceState, pd: &Pd, pages: u32) -> Result<(MrHandle, MrKeys)> {
        if pd.is_user() || pages == 0 || pages > limits::MAX_FAST_REG_PAGES {
            return Err(EINVAL);
        }
        let pages = KernelPages::with_capacity(pages as usize)?;
        Self::register(&device.tables, pd.id(), None, |key| {
            (Kind::Fast, Changing::new(key, false, Some(pages)))
        })
    }

    /// ALLOC_MW; returns the window with its key.
    pub(crate) fn window(device: &DeviceState, pd: &Pd, mw_type: u32) -> Result<(MrHandle, u32)> {
        if !matches!(mw_type, TYPE_1 | TYPE_2) {
            return Err(EINVAL);
        }
        let (handle, keys) = Self::register(&device.tables, pd.id(), None, |key| {
            let changing = Changing::new(key, mw_type == TYPE_1, None);
            (Kind::Window(mw_type), changing)
        })?;
        Ok((handle, keys.rkey))
    }

    /// Has the key refused from now on, after those that use it have finished.
    fn end(&self) {
        let mut changing = lock_bh(&self.changing);
        changing.valid = false;
        changing.ended = true;
        changing.bound = None;
    }
}

impl MrHandle {
    /// DEREG_MR, DEALLOC_MW: the key is refused from now on. `EBUSY` where windows are bound to
    /// the region (IBA 10.6.7.2.8).
    pub(crate) fn close(&self) -> Result {
        match self.mr.windows.cmpxchg(0, CLOSED, Full) {
            // Another region has taken its place.
            Ok(_) | Err(CLOSED) => {}
            Err(_) => return Err(EBUSY),
        }
        self.tables.regions.withdraw(self.index);
        self.mr.end();
        Ok(())
    }

    /// A fast registration's pages are to be mapped anew.
    pub(crate) fn unmap(&self) {
        let mut changing = lock_bh(&self.mr.changing);
        changing.valid = false;
        if let Some(pages) = &mut changing.pages {
            pages.clear();
        }
    }

    /// Adds a page to a fast registration.
    pub(crate) fn map_page(&self, address: u64) -> Result {
        let mut changing = lock_bh(&self.mr.changing);
        changing.pages.as_mut().ok_or(EINVAL)?.push(address)
    }

    /// All pages were added.
    pub(crate) fn map_end(&self, address: u64, length: u64, page_size: u32) -> Result {
        let mut changing = lock_bh(&self.mr.changing);
        let pages = changing.pages.as_mut().ok_or(EINVAL)?;
        pages.finish(address, length, page_size)
    }
}

impl Drop for MrHandle {
    fn drop(&mut self) {
        self.tables.regions.withdraw(self.index);
        self.mr.end();
        self.tables.regions.release(self.index);
    }
}

impl Tables {
    /// The bytes `va..va + len` of what `key` names, if who wants them may have them.
    #[inline]
    fn span<'a>(
        &'a self,
        rcu: &'a rcu::Guard,
        wish: Wish,
        key: u32,
        va: u64,
        len: u32,
    ) -> Result<Span<'a>, Fault> {
        let Wish { pd, window, need } = wish;
        let mr = self.regions.get(key, rcu).ok_or(Fault::Protection)?;
        let end = va.checked_add(len.into()).ok_or(Fault::Protection)?;
        if mr.pd.get() != pd {
            return Err(Fault::Protection);
        }
        if let Kind::Fixed(fixed) = &mr.kind {
            return Ok(Span {
                source: Source::Fixed(&fixed.memory),
                rcu,
                offset: fixed.find(key, need, va, end).ok_or(Fault::Protection)?,
                len,
            });
        }
        let state = lock_bh(&mr.changing);
        if !state.valid
            || state.key != key
            || state.access & need != need
            || !is_inside(state.iova, state.length, va, end)
        {
            return Err(Fault::Protection);
        }
        let start = match (&mr.kind, &state.bound, window) {
            (Kind::Fast, _, _) => 0,
            (Kind::Window(_), Some(bound), Some(qp))
                if state.binder.is_none_or(|binder| binder == qp) =>
            {
                bound.start()
            }
            _ => return Err(Fault::Protection),
        };
        let offset = start.wrapping_add(va.wrapping_sub(state.iova));
        Ok(Span {
            source: Source::Changing(state),
            rcu,
            offset,
            len,
        })
    }

    /// As [`Tables::span`], for this side's own work requests.
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
        let wish = Wish {
            pd,
            window: None,
            need: if write { access::LOCAL_WRITE } else { 0 },
        };
        self.span(rcu, wish, lkey, va, len)
    }

    /// As [`Tables::span`], for the peer.
    #[inline]
    pub(crate) fn remote<'a>(
        &'a self,
        rcu: &'a rcu::Guard,
        by: Consumer,
        rkey: u32,
        va: u64,
        len: u32,
        wants: RemoteAccess,
    ) -> Result<Span<'a>, Fault> {
        let need = match wants {
            RemoteAccess::Read => access::REMOTE_READ,
            RemoteAccess::Write => access::REMOTE_WRITE,
            RemoteAccess::Atomic => access::REMOTE_ATOMIC,
        };
        let wish = Wish {
            pd: by.pd,
            window: Some(by.qp),
            need,
        };
        self.span(rcu, wish, rkey, va, len)
    }
}

impl Tables {
    /// Makes what was written to a region before visible to everyone (IBA A19), if the region
    /// allows that. No region is persistent.
    pub(crate) fn flush(
        &self,
        rcu: &rcu::Guard,
        pd: PdId,
        rkey: u32,
        flush: Flush,
    ) -> Result<(), Fault> {
        let mut need = 0;
        if flush.global {
            need |= access::FLUSH_GLOBAL;
        }
        if flush.persistent {
            need |= access::FLUSH_PERSISTENT;
        }
        let mr = self.regions.get(rkey, rcu).ok_or(Fault::Protection)?;
        // Windows and fast registrations never have these rights.
        let Kind::Fixed(fixed) = &mr.kind else {
            return Err(Fault::Protection);
        };
        // Without a range, all of it.
        let (va, len) = flush.range.unwrap_or((fixed.iova, 0));
        let end = va.checked_add(len.into()).ok_or(Fault::Protection)?;
        let found = fixed.find(rkey, need, va, end);
        found
            .filter(|_| mr.pd.get() == pd)
            .ok_or(Fault::Protection)?;
        // The CPU wrote it, and so all there is to do is to wait for the CPU: caches are coherent.
        linux_rdma::sync::smp_mb();
        Ok(())
    }
}
