// SPDX-License-Identifier: GPL-2.0

//! Memory regions and their keys.
//!
//! Packets look regions up by key under the RCU read lock, without a reference count. Each access
//! is checked at the moment of use: key, protection domain, rights and range.

use crate::{
    device::DeviceState,
    driver::Rrxe,
    limits,
    pd::{Pd, PdId},
    tables::Tables,
};
use kernel::{
    prelude::*,
    sync::{rcu, Arc, ArcBorrow},
};
use linux_rdma::errno::not_supported;
use linux_rdma::net::Fragment;
use linux_rdma::rdma::{
    memory::{access, KernelMemory, PinOwner, Pinned, Umem},
    Device, MrKeys,
};
use rrxe_core::{AtomicOp, Fault, RemoteAccess};

/// Rights that a region of rrxe can have.
const SUPPORTED_ACCESS: u32 =
    access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;

/// A memory region, as packets see it.
pub(crate) struct Mr {
    key: u32,
    pd: PdId,
    access: u32,
    /// The address of its first byte in work requests.
    iova: u64,
    length: u64,
    memory: Memory,
}

enum Memory {
    User(Arc<Pinned>),
    Kernel(KernelMemory),
}

/// A memory region, as ib_core holds it: who may unpin it.
pub(crate) struct MrHandle {
    tables: Arc<Tables>,
    index: u32,
    _owner: Option<PinOwner>,
}

/// Bytes of a region that an access was checked for, while the RCU read lock is held.
pub(crate) struct Span<'a> {
    mr: ArcBorrow<'a, Mr>,
    rcu: &'a rcu::Guard,
    va: u64,
}

impl Mr {
    fn register(
        tables: &Arc<Tables>,
        owner: Option<PinOwner>,
        make: impl FnOnce(u32) -> Mr,
    ) -> Result<(MrHandle, MrKeys)> {
        let (index, key) = tables.regions.reserve(GFP_KERNEL)?;
        // From here on, the handle gives the index back.
        let handle = MrHandle {
            tables: tables.clone(),
            index,
            _owner: owner,
        };
        let mr = Arc::new(make(key), GFP_KERNEL)?;
        tables.regions.publish(index, mr)?;
        Ok((
            handle,
            MrKeys {
                lkey: key,
                rkey: key,
            },
        ))
    }

    /// REG_MR.
    pub(crate) fn user(
        device: &Device<Rrxe>,
        pd: &Pd,
        start: u64,
        length: u64,
        iova: u64,
        access: u32,
    ) -> Result<(MrHandle, MrKeys)> {
        if access & !SUPPORTED_ACCESS != 0 {
            return Err(not_supported());
        }
        if length == 0 || length > limits::MAX_MR_SIZE || iova.checked_add(length).is_none() {
            return Err(EINVAL);
        }
        let size = usize::try_from(length).map_err(|_| EINVAL)?;
        let owner = PinOwner::new(Umem::get(device, start, size, access)?)?;
        let memory = Memory::User(owner.shared().clone());
        Self::register(&device.data().tables, Some(owner), |key| Mr {
            key,
            pd: pd.id(),
            access,
            iova,
            length,
            memory,
        })
    }

    /// The region of all kernel memory, for kernel consumers. Never for remote access.
    pub(crate) fn kernel(
        device: &DeviceState,
        pd: &Pd,
        memory: KernelMemory,
        access: u32,
    ) -> Result<(MrHandle, MrKeys)> {
        if pd.is_user() || access & !access::LOCAL_WRITE != 0 {
            return Err(EINVAL);
        }
        Self::register(&device.tables, None, |key| Mr {
            key,
            pd: pd.id(),
            access,
            iova: 0,
            length: u64::MAX,
            memory: Memory::Kernel(memory),
        })
    }
}

impl MrHandle {
    /// DEREG_MR: the key is refused from now on.
    pub(crate) fn invalidate(&self) {
        self.tables.regions.withdraw(self.index);
    }
}

impl Drop for MrHandle {
    fn drop(&mut self) {
        self.tables.regions.withdraw(self.index);
        self.tables.regions.release(self.index);
    }
}

impl Tables {
    /// The bytes `va..va + len` of the region that `key` names, if the protection domain has it
    /// with all rights in `need`.
    #[inline]
    fn span<'a>(
        &'a self,
        rcu: &'a rcu::Guard,
        pd: PdId,
        key: u32,
        va: u64,
        len: u32,
        need: u32,
    ) -> Result<Span<'a>, Fault> {
        let mr = self.regions.get(key, rcu).ok_or(Fault::Protection)?;
        let end = va.checked_add(len.into()).ok_or(Fault::Protection)?;
        let last = mr.iova.saturating_add(mr.length);
        if mr.key != key || mr.pd != pd || mr.access & need != need || va < mr.iova || end > last {
            return Err(Fault::Protection);
        }
        Ok(Span { mr, rcu, va })
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
        let need = if write { access::LOCAL_WRITE } else { 0 };
        self.span(rcu, pd, lkey, va, len, need)
    }

    /// As [`Tables::span`], for the peer.
    #[inline]
    pub(crate) fn remote<'a>(
        &'a self,
        rcu: &'a rcu::Guard,
        pd: PdId,
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
        self.span(rcu, pd, rkey, va, len, need)
    }
}

impl Span<'_> {
    /// Copies from its start. The caller asked for at least that many bytes.
    #[inline]
    pub(crate) fn read(&self, to: &mut [u8]) -> Result<(), Fault> {
        match &self.mr.memory {
            Memory::User(pinned) => pinned
                .access(self.rcu)
                .ok_or(Fault::Protection)?
                .read(self.va.wrapping_sub(self.mr.iova), to)
                .map_err(|_| Fault::Protection),
            Memory::Kernel(memory) => {
                memory.read(self.va, to);
                Ok(())
            }
        }
    }

    /// Copies to byte `offset` from its start. The caller asked for at least that many bytes.
    #[inline]
    pub(crate) fn write(&self, offset: usize, from: &[u8]) -> Result<(), Fault> {
        let va = self.va.wrapping_add(offset as u64);
        match &self.mr.memory {
            Memory::User(pinned) => pinned
                .access(self.rcu)
                .ok_or(Fault::Protection)?
                .write(va.wrapping_sub(self.mr.iova), from)
                .map_err(|_| Fault::Protection),
            Memory::Kernel(memory) => {
                memory.write(va, from);
                Ok(())
            }
        }
    }

    /// As [`Span::write`], from `len` bytes of a fragment from its byte `at` on.
    #[inline]
    pub(crate) fn write_fragment(
        &self,
        offset: usize,
        from: &Fragment<'_>,
        at: usize,
        len: usize,
    ) -> Result<(), Fault> {
        let va = self.va.wrapping_add(offset as u64);
        match &self.mr.memory {
            Memory::User(pinned) => pinned
                .access(self.rcu)
                .ok_or(Fault::Protection)?
                .write_fragment(va.wrapping_sub(self.mr.iova), from, at, len),
            Memory::Kernel(memory) => memory.write_fragment(va, from, at, len),
        }
        .map_err(|_| Fault::Protection)
    }

    /// Executes an atomic operation at its start; returns what was there.
    pub(crate) fn atomic(&self, op: AtomicOp) -> Result<u64, Fault> {
        match &self.mr.memory {
            Memory::User(pinned) => {
                let memory = pinned.access(self.rcu).ok_or(Fault::Protection)?;
                let offset = self.va.wrapping_sub(self.mr.iova);
                match op {
                    AtomicOp::CompareSwap { compare, swap } => {
                        memory.compare_swap(offset, compare, swap)
                    }
                    AtomicOp::FetchAdd { add } => memory.fetch_add(offset, add),
                }
            }
            Memory::Kernel(memory) => match op {
                AtomicOp::CompareSwap { compare, swap } => {
                    memory.compare_swap(self.va, compare, swap)
                }
                AtomicOp::FetchAdd { add } => memory.fetch_add(self.va, add),
            },
        }
        .map_err(|_| Fault::Protection)
    }
}
