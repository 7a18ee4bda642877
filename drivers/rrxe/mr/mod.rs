// SPDX-License-Identifier: GPL-2.0

//! Memory regions and windows, and their keys (IBA 10.6).
//!
//! The packet path looks up regions and windows by key in a burst ([`linux_rdma::sync`]), without a
//! reference count. Each access is checked at the moment of use: key, protection domain, rights and
//! range.
//!
//! The memory of a registered region ([`Memory`]) never changes, but parts of it may be absent, and
//! it may be revoked at any time. Reregistration changes the region's domain and rights, and waits
//! until no access uses the old ones. Fast registrations and windows change while packets
//! use them, so they have a lock, which an access holds until its bytes are copied. When a work
//! request that invalidates a key completes, no access uses the key.

mod change;
pub(crate) mod device_memory;
mod memory;
pub(crate) mod pager;
mod segments;
mod table;

use change::WindowBinding;
use memory::Memory;
use pager::Pager;
pub(crate) use segments::Segments;
pub(crate) use table::{MemoryRange, MrTable, Reference};

use crate::{
    limits,
    module::Rrxe,
    pd::{Pd, PdId},
    quota::{self, Charge, Charged, Quotas},
};
use kernel::{
    new_spinlock,
    prelude::*,
    sync::{
        atomic::{Atomic, Full, Relaxed, Release},
        Arc, SpinLock,
    },
    types::ScopeGuard,
};
use linux_rdma::{
    errno::not_supported,
    random,
    rdma::{
        advice,
        memory::{
            access, Backing, DeviceRange, KernelMemory, KernelPages, OnDemand, Paging, PinOwner,
            Umem,
        },
        wr::DataSegment,
        Device, MrAdvice, MrChange, UserMemory,
    },
    sync::{lock_bh, wait_for_bursts, BurstGuard},
};

/// Rights of the peer.
const REMOTE: u32 = access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;
/// Rights that a region can have, and the kind of its memory.
const SUPPORTED_ACCESS: u32 = REMOTE
    | access::LOCAL_WRITE
    | access::MW_BIND
    | access::FLUSH_GLOBAL
    | access::ON_DEMAND
    | access::HUGETLB;

/// Value of [`Mr::pd`]: the region belongs to no protection domain, and all may use it.
const ANY_DOMAIN: u64 = u64::MAX;

/// Value of [`Mr::windows`]: the region is deregistered, and no window can be bound to it.
const CLOSED: u32 = u32::MAX;

/// `IB_MW_TYPE_1` and `IB_MW_TYPE_2` (type 2B, IBA 10.6.7.2.5).
const TYPE_1: u32 = 1;
const TYPE_2: u32 = 2;

/// Identity of a queue pair for the windows bound to it. Never reused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BinderId(u64);

impl BinderId {
    pub(crate) fn new() -> Self {
        static NEXT: Atomic<u64> = Atomic::new(1);
        Self(NEXT.fetch_add(1, Relaxed))
    }
}

/// The user of a key.
#[derive(Clone, Copy)]
pub(crate) struct KeyUser {
    pub(crate) pd: PdId,
    pub(crate) qp: BinderId,
}

/// A memory region or window, as the packet path looks it up. An access to registered memory reads
/// the first fields only, which `repr(C)` keeps in one cache line.
#[pin_data]
#[repr(C)]
pub(crate) struct Mr {
    /// Its index in the table.
    index: u32,
    /// Its key as registered. [`KeyState`] has the current one of a fast registration or a window.
    key: u32,
    /// Number of its [`PdId`], which reregistration may change.
    pd: Atomic<u64>,
    kind: Kind,
    /// Number of windows bound to the region, or [`CLOSED`].
    windows: Atomic<u32>,
    #[pin]
    key_state: SpinLock<KeyState>,
}

/// Whether a key belongs to a registered region, a fast registration or a window.
enum Kind {
    /// Registered by a verb. Never changes its memory.
    Registered(Registered),
    /// A region for fast registration.
    FastReg,
    /// A window of this type.
    Window(u32),
}

/// A region that a verb has registered.
struct Registered {
    /// `IB_ACCESS_*` flags, which reregistration may change.
    access: Atomic<u32>,
    /// The address of its first byte in work requests.
    iova: u64,
    length: u64,
    memory: Memory,
}

/// The variable state of a fast registration or a window.
#[derive(Default)]
struct KeyState {
    /// The key may be used. Always true for a window of type 1.
    valid: bool,
    key: u32,
    access: u32,
    iova: u64,
    length: u64,
    /// Fast registration: its memory.
    pages: Option<KernelPages>,
    /// Window: the region that it is bound to.
    bound: Option<WindowBinding>,
    /// Deregistered or deallocated: it can't be bound.
    ended: bool,
    /// Window of type 2: the queue pair that it is bound to (K-06).
    binder: Option<BinderId>,
}

/// ib_core's handle of a memory region or window. It owns the pinned memory.
///
/// Together with its charge and with `struct ib_mr` of the stock kernels it fills a slab object of
/// 256 bytes. One more field would double that.
pub(crate) struct MrHandle {
    table: Arc<MrTable>,
    mr: Arc<Mr>,
    owner: Option<PinOwner>,
}

/// A new region or window, with its key.
pub(crate) type NewMr = (Charged<MrHandle>, u32);

/// Returns whether this is the whole address space, as `ibv_reg_mr()` registers it: by address 0
/// and the largest length.
fn is_whole_address_space(memory: &UserMemory) -> bool {
    memory.start == 0 && memory.iova == 0 && memory.length == u64::MAX
}

/// Returns whether `va..end` is inside `iova..iova + length`.
fn is_inside(iova: u64, length: u64, va: u64, end: u64) -> bool {
    va >= iova && end <= iova.saturating_add(length)
}

impl Mr {
    /// Creates a region or window, and reserves an index and a key for it.
    fn new(table: &MrTable, pd: PdId, kind: Kind, pages: Option<KernelPages>) -> Result<Arc<Self>> {
        let (index, number) = table.reserve()?;
        let key = number << 8 | random::u32() & 0xff;
        let key_state = KeyState {
            key,
            valid: matches!(kind, Kind::Window(TYPE_1)),
            pages,
            ..KeyState::default()
        };
        Arc::pin_init(
            pin_init!(Self {
                index,
                key,
                pd: Atomic::new(pd.0),
                kind,
                windows: Atomic::new(0),
                key_state <- new_spinlock!(key_state, "rrxe_mr"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
        .inspect_err(|_| table.release(index))
    }

    fn register(
        table: &Arc<MrTable>,
        charge: Charge,
        pd: PdId,
        owner: Option<PinOwner>,
        kind: Kind,
        pages: Option<KernelPages>,
    ) -> Result<NewMr> {
        let mr = Self::new(table, pd, kind, pages)?;
        let (index, key) = (mr.index, mr.key);
        // From here on, dropping the handle releases the index.
        let handle = MrHandle {
            table: table.clone(),
            mr: mr.clone(),
            owner,
        };
        table.publish(index, mr)?;
        Ok((charge.of(handle), key))
    }

    /// Returns whether work requests of a protection domain may use it.
    #[inline]
    fn is_in(&self, pd: PdId) -> bool {
        let own = self.pd.load(Relaxed);
        own == pd.0 || own == ANY_DOMAIN
    }

    /// Adds the null region to a table, which keeps it. Any program may use its key in the data
    /// segments of work requests. Returns the key.
    pub(crate) fn add_null(table: &MrTable) -> Result<u32> {
        let kind = Kind::Registered(Registered {
            access: Atomic::new(access::LOCAL_WRITE),
            iova: 0,
            length: u64::MAX,
            memory: Memory::Null,
        });
        let mr = Self::new(table, PdId(ANY_DOMAIN), kind, None)?;
        let (index, key) = (mr.index, mr.key);
        table.publish(index, mr)?;
        Ok(key)
    }

    /// Returns the offset of `len` bytes in the memory of this region, which is `registered`, if it
    /// has the key, the domain and the rights of `reference`.
    #[inline]
    fn find(&self, registered: &Registered, reference: Reference, len: u64) -> Option<u64> {
        let (va, required) = (reference.va, reference.required);
        let end = va.checked_add(len)?;
        let allowed = self.key == reference.key
            && self.is_in(reference.pd)
            && registered.access.load(Relaxed) & required == required
            && is_inside(registered.iova, registered.length, va, end);
        allowed.then(|| va.wrapping_sub(registered.iova))
    }

    /// REG_MR. Nothing is pinned for on-demand paging, nor for a region of length 0, which permits
    /// operations of length 0.
    pub(crate) fn user(
        device: &Device<Rrxe>,
        mrs: &Arc<MrTable>,
        quotas: &Arc<Quotas>,
        pager: Option<&Arc<Pager>>,
        pd: &Pd,
        memory: &UserMemory,
        access: u32,
    ) -> Result<NewMr> {
        let (length, iova) = (memory.length, memory.iova);
        if access & !SUPPORTED_ACCESS != 0 {
            return Err(not_supported());
        }
        // `ibv_reg_mr(3)`. The size of the pages is no concern of on-demand paging.
        if access & access::HUGETLB != 0 && access & access::ON_DEMAND == 0 {
            return Err(EINVAL);
        }
        let is_implicit = access & access::ON_DEMAND != 0 && is_whole_address_space(memory);
        let fits = length <= limits::MAX_MR_SIZE && iova.checked_add(length).is_some();
        if !fits && !is_implicit {
            return Err(EINVAL);
        }
        let size = usize::try_from(length).map_err(|_| EINVAL)?;
        let charge = Charge::new(quotas, quota::Kind::Region, true)?;
        let mut owner = None;
        let kind = Kind::Registered(Registered {
            access: Atomic::new(access),
            iova,
            length,
            memory: match size {
                0 => Memory::Empty,
                _ if access & access::ON_DEMAND != 0 => {
                    Self::on_demand(pager.ok_or_else(not_supported)?, memory, access)?
                }
                _ => {
                    let umem = Umem::get(device, memory.start, size, access)?;
                    let pinned = owner.insert(PinOwner::new(umem)?).shared();
                    Memory::User(pinned.clone())
                }
            },
        });
        Self::register(mrs, charge, pd.id, owner, kind, None)
    }

    /// Registers memory for on-demand paging.
    fn on_demand(pager: &Arc<Pager>, memory: &UserMemory, access: u32) -> Result<Memory> {
        Pager::start(pager)?;
        let writable = access & access::WRITABLE != 0;
        let pages = OnDemand::register(memory.start, memory.length, writable)?;
        Ok(Memory::OnDemand(pages, pager.clone()))
    }

    /// REG_DM_MR: registers memory of the device, by addresses from 0 on.
    pub(crate) fn device(
        mrs: &Arc<MrTable>,
        quotas: &Arc<Quotas>,
        pd: &Pd,
        memory: DeviceRange,
        length: u64,
        access: u32,
    ) -> Result<NewMr> {
        if access & !SUPPORTED_ACCESS != 0 || access & access::ON_DEMAND != 0 {
            return Err(not_supported());
        }
        let charge = Charge::new(quotas, quota::Kind::Region, true)?;
        let kind = Kind::Registered(Registered {
            access: Atomic::new(access),
            iova: 0,
            length,
            memory: Memory::Device(memory),
        });
        Self::register(mrs, charge, pd.id, None, kind, None)
    }

    /// Creates the region of all kernel memory, for kernel consumers. Never for remote access
    /// (K-09).
    pub(crate) fn kernel(
        mrs: &Arc<MrTable>,
        quotas: &Arc<Quotas>,
        pd: &Pd,
        memory: KernelMemory,
        access: u32,
    ) -> Result<NewMr> {
        if pd.is_user || access & !access::LOCAL_WRITE != 0 {
            return Err(EINVAL);
        }
        let charge = Charge::new(quotas, quota::Kind::Region, false)?;
        let kind = Kind::Registered(Registered {
            access: Atomic::new(access),
            iova: 0,
            length: u64::MAX,
            memory: Memory::Kernel(memory),
        });
        Self::register(mrs, charge, pd.id, None, kind, None)
    }

    /// ALLOC_MR: creates a region for fast registrations of up to `pages` pages.
    pub(crate) fn fast(
        mrs: &Arc<MrTable>,
        quotas: &Arc<Quotas>,
        pd: &Pd,
        pages: u32,
    ) -> Result<NewMr> {
        if pd.is_user || pages == 0 || pages > limits::MAX_FAST_REG_PAGES {
            return Err(EINVAL);
        }
        let pages = Some(KernelPages::with_capacity(pages as usize)?);
        let charge = Charge::new(quotas, quota::Kind::Region, false)?;
        Self::register(mrs, charge, pd.id, None, Kind::FastReg, pages)
    }

    /// ALLOC_MW: creates a window. Returns it with its key.
    pub(crate) fn window(
        mrs: &Arc<MrTable>,
        quotas: &Arc<Quotas>,
        pd: &Pd,
        mw_type: u32,
    ) -> Result<NewMr> {
        if !matches!(mw_type, TYPE_1 | TYPE_2) {
            return Err(EINVAL);
        }
        let charge = Charge::new(quotas, quota::Kind::Window, pd.is_user)?;
        Self::register(mrs, charge, pd.id, None, Kind::Window(mw_type), None)
    }
}

impl MrTable {
    /// ADVISE_MR: brings in ranges of regions with on-demand paging, in the calling process.
    ///
    /// # Errors
    ///
    /// `EFAULT`: a range is not inside a region of the protection domain with these rights, or its
    /// process cannot have a page of it. `EINVAL`: a region has other memory. `EINTR`: a signal is
    /// pending. `EOPNOTSUPP`: an unknown advice. Without the flag FLUSH, the caller does not wait
    /// until the pages are present, and is not told if they cannot be brought in.
    pub(crate) fn advise(&self, pd: &Pd, to: &MrAdvice<'_>) -> Result {
        let (write, paging) = match to.advice {
            advice::PREFETCH => (false, Paging::Fault),
            advice::PREFETCH_WRITE => (true, Paging::Fault),
            advice::PREFETCH_NO_FAULT => (false, Paging::NoFault),
            _ => return Err(not_supported()),
        };
        let find = |range: &DataSegment| {
            let burst = BurstGuard::enter();
            let found = self.local(&burst, pd.id, range.lkey, range.addr, range.length, write);
            let absent = found.map(|found| found.to_bring_in(write));
            absent.map_err(|_| EFAULT)?.ok_or(EINVAL)
        };
        // All are checked before any is brought in.
        for range in to.ranges {
            find(range)?;
        }
        for range in to.ranges {
            let absent = find(range)?;
            match paging {
                Paging::Fault if !to.flush => absent.bring_in_later()?,
                _ => absent.bring_in_all(paging)?,
            }
        }
        Ok(())
    }
}

impl MrHandle {
    /// DEREG_MR, DEALLOC_MW: returns `EBUSY` if windows are bound to the region (IBA 10.6.7.2.8).
    /// From then on none can be bound, and the handle may be dropped.
    pub(crate) fn close(&self) -> Result {
        match self.mr.windows.cmpxchg(0, CLOSED, Full) {
            // `CLOSED`: reregistration has replaced the region.
            Ok(_) | Err(CLOSED) => Ok(()),
            Err(_) => Err(EBUSY),
        }
    }

    /// Removes the pages of a fast registration, before new ones are mapped.
    pub(crate) fn unmap(&self) {
        let mut key_state = lock_bh(&self.mr.key_state);
        key_state.valid = false;
        if let Some(pages) = &mut key_state.pages {
            pages.clear();
        }
    }

    /// Adds a page to a fast registration.
    pub(crate) fn map_page(&self, address: u64) -> Result {
        let mut key_state = lock_bh(&self.mr.key_state);
        key_state.pages.as_mut().ok_or(EINVAL)?.push(address)
    }

    /// Completes the mapping after all pages were added.
    pub(crate) fn map_end(&self, address: u64, length: u64, page_size: u32) -> Result {
        let mut key_state = lock_bh(&self.mr.key_state);
        let pages = key_state.pages.as_mut().ok_or(EINVAL)?;
        pages.finish(address, length, page_size)
    }

    /// REREG_MR (IBA 11.2.8.6). New rights and a new protection domain change the region, which
    /// keeps its keys: returns `None`. New memory makes a new region with new keys, so that no
    /// access by the old keys reaches it; the caller must close this one. On failure the region is
    /// unchanged.
    ///
    /// # Errors
    ///
    /// `EBUSY` if windows are bound to the region, `EOPNOTSUPP` if no region can have the rights,
    /// `EINVAL` if it is not a region of user memory, and the errors of registration.
    pub(crate) fn change(
        &self,
        device: &Device<Rrxe>,
        quotas: &Arc<Quotas>,
        pager: Option<&Arc<Pager>>,
        pd: &Pd,
        change: &MrChange,
    ) -> Result<Option<NewMr>> {
        // A region must have the rights that its windows grant. No window can be bound during the
        // change, nor ever again to a region that is replaced.
        if self.mr.windows.cmpxchg(0, CLOSED, Full).is_err() {
            return Err(EBUSY);
        }
        let reopen = ScopeGuard::new(|| self.mr.windows.store(0, Release));
        let Kind::Registered(registered) = &self.mr.kind else {
            return Err(EINVAL);
        };
        if matches!(registered.memory, Memory::Kernel(_) | Memory::Device(_)) {
            return Err(EINVAL);
        }
        let old = registered.access.load(Relaxed);
        let access = change.access.unwrap_or(old);
        if access & !SUPPORTED_ACCESS != 0 {
            return Err(not_supported());
        }
        // For rights that the pages lack, the same memory must be registered anew, because the
        // first write to a read-only page may replace the page. The same is done for another kind
        // of memory.
        let range = match (&registered.memory, &self.owner) {
            (Memory::OnDemand(memory, _), _) if !memory.allows(access) => Some(memory.range()),
            (_, Some(owner)) if !owner.allows(access) => Some(owner.range()),
            _ => None,
        };
        let again = range.map(|(start, length)| UserMemory {
            start,
            length,
            iova: registered.iova,
        });
        if let Some(memory) = change.memory.as_ref().or(again.as_ref()) {
            let new = Mr::user(device, &self.table, quotas, pager, pd, memory, access)?;
            reopen.dismiss();
            return Ok(Some(new));
        }
        // No access may see the new domain with old rights, or the reverse. So the rights are first
        // reduced to those that both allow: an access that needs only these is not disturbed. No
        // access is checked and made in different bursts, so after each wait none relies on what
        // was before.
        if old & !access != 0 {
            registered.access.store(old & access, Relaxed);
            wait_for_bursts();
        }
        if !self.mr.is_in(pd.id) {
            self.mr.pd.store(pd.id.0, Relaxed);
            wait_for_bursts();
        }
        registered.access.store(access, Relaxed);
        Ok(None)
    }
}

impl Drop for MrHandle {
    fn drop(&mut self) {
        self.table.withdraw(self.mr.index);
        // Waits for the accesses in progress by the key of a fast registration or a window.
        let mut key_state = lock_bh(&self.mr.key_state);
        key_state.valid = false;
        key_state.ended = true;
        key_state.bound = None;
        drop(key_state);
        if let Kind::Registered(registered) = &self.mr.kind {
            registered.memory.revoke();
            if let Memory::OnDemand(_, pager) = &registered.memory {
                pager.interrupt();
            }
        }
        self.table.release(self.mr.index);
    }
}
