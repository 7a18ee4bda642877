// SPDX-License-Identifier: GPL-2.0

//! The kinds of memory behind a registered region.

use super::pager::Pager;
use kernel::{prelude::*, sync::Arc};
#[cfg(CONFIG_KUNIT = "y")]
use linux_rdma::rdma::memory::TestMemory;
use linux_rdma::{
    rdma::memory::{
        Backing, DeviceRange, KernelMemory, MappedMemory, OnDemand, Pinned, Unavailable,
    },
    sync::BurstGuard,
};
use rrxe_core::Fault;

/// The memory of a registered region. An enum, because a call through a table of functions would
/// cost each packet more.
pub(super) enum Memory {
    User(Arc<Pinned>),
    /// No bytes: a region of length 0, which permits no access.
    Empty,
    /// Memory that is not pinned, and the pager that brings in its pages.
    OnDemand(Arc<OnDemand>, Arc<Pager>),
    /// Memory of the device.
    Device(DeviceRange),
    /// No memory: the null region, which permits any local access and is never deregistered.
    Null,
    Kernel(KernelMemory),
    #[cfg(CONFIG_KUNIT = "y")]
    Test(Arc<TestMemory>),
}

impl Backing for Memory {
    #[inline]
    unsafe fn access<'a>(
        &'a self,
        burst: &'a BurstGuard,
        offset: u64,
        len: u64,
    ) -> Result<(MappedMemory<'a>, u64), Unavailable> {
        // SAFETY: The caller fulfils the same contract.
        unsafe {
            match self {
                Memory::User(memory) => memory.access(burst, offset, len),
                Memory::Empty => {
                    debug_assert!(len == 0, "an access to bytes of an empty region");
                    Err(Unavailable::Revoked)
                }
                Memory::OnDemand(memory, _) => memory.access(burst, offset, len),
                Memory::Device(memory) => memory.access(burst, offset, len),
                Memory::Null => Ok((MappedMemory::null(), offset)),
                Memory::Kernel(memory) => memory.access(burst, offset, len),
                #[cfg(CONFIG_KUNIT = "y")]
                Memory::Test(memory) => memory.access(burst, offset, len),
            }
        }
    }

    fn revoke(&self) {
        match self {
            Memory::User(memory) => memory.revoke(),
            Memory::Empty => {}
            Memory::OnDemand(memory, _) => memory.revoke(),
            Memory::Device(memory) => memory.revoke(),
            Memory::Null => debug_assert!(false, "the null region is deregistered"),
            Memory::Kernel(memory) => memory.revoke(),
            #[cfg(CONFIG_KUNIT = "y")]
            Memory::Test(memory) => memory.revoke(),
        }
    }
}

/// Returns the fault of an access to memory that is unavailable.
#[cold]
pub(super) fn fault(why: Unavailable) -> Fault {
    match why {
        Unavailable::NotPresent => Fault::NotPresent,
        Unavailable::Revoked => Fault::Protection,
    }
}

/// Returns the fault of an access that has failed.
#[cold]
pub(super) fn access_fault(error: Error) -> Fault {
    if error == EAGAIN {
        Fault::NotPresent
    } else {
        Fault::Protection
    }
}

#[cfg(CONFIG_KUNIT = "y")]
#[kernel::prelude::kunit_tests(rrxe_memory)]
mod tests {
    use super::super::*;
    use crate::quota::{self, Quotas};
    use linux_rdma::{rdma::memory::TestMemory, sync::BurstGuard};
    use rrxe_core::Fault;

    #[test]
    fn absent_and_revoked_memory_is_not_accessed() -> Result {
        let (table, quotas) = (Arc::pin_init(MrTable::new(2), GFP_KERNEL)?, Quotas::new()?);
        let memory = Arc::new(TestMemory::new(2)?, GFP_KERNEL)?;
        let kind = Kind::Registered(Registered {
            access: Atomic::new(access::LOCAL_WRITE),
            iova: 0x1000,
            length: 16,
            memory: Memory::Test(memory.clone()),
        });
        let pd = Pd::new(true).id;
        let charge = Charge::new(&quotas, quota::Kind::Region, false)?;
        let (region, lkey) = Mr::register(&table, charge, pd, None, kind, None)?;
        let write = |len: u32| {
            let burst = BurstGuard::enter();
            let range = table.local(&burst, pd, lkey, 0x1008, len, true)?;
            range.write(0, &[1; 8])
        };

        assert_eq!(write(8), Err(Fault::NotPresent));
        // The rights are checked first.
        assert_eq!(write(9), Err(Fault::Protection));
        memory.set_present(true);
        assert_eq!(write(8), Ok(()));
        memory.set_present(false);
        assert_eq!(write(8), Err(Fault::NotPresent));
        memory.set_present(true);
        memory.revoke();
        assert_eq!(write(8), Err(Fault::Protection));
        // A second revocation does not wait for anything.
        memory.revoke();
        drop(region);
        Ok(())
    }
}
