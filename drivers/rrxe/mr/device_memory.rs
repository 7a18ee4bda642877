// SPDX-License-Identifier: GPL-2.0

//! ALLOC_DM: memory of the device, which programs map and register.

use crate::limits;
use kernel::{
    mm::virt::VmaNew,
    new_mutex,
    page::{PAGE_SHIFT, PAGE_SIZE},
    prelude::*,
    sync::{Arc, Mutex},
};
use linux_rdma::{errno::not_supported, rdma::memory::DeviceMemory};

/// The memories of a context, by the handle that programs name them by.
#[pin_data(PinnedDrop)]
pub(crate) struct Memories {
    #[pin]
    list: Mutex<KVec<(u32, Arc<DeviceMemory>)>>,
    allocations: Arc<Allocations>,
}

#[pinned_drop]
impl PinnedDrop for Memories {
    fn drop(self: Pin<&mut Self>) {
        // The program may have unmapped memories after it had freed them.
        self.allocations.sweep();
    }
}

impl Memories {
    pub(crate) fn new(allocations: &Arc<Allocations>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                list <- new_mutex!(KVec::new(), "rrxe_device_memories"),
                allocations: allocations.clone(),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Maps the memory with a handle. Returns `EINVAL` if no memory of the context has it, or if
    /// the area has another size.
    pub(crate) fn map(&self, handle: u32, area: &VmaNew) -> Result {
        // The lock is held until the memory is mapped: once it has left the list, no call maps it.
        let list = self.list.lock();
        let found = list.iter().find(|(of, _)| *of == handle);
        found.ok_or(EINVAL)?.1.map(area)
    }
}

/// A memory of a device.
struct Allocation {
    memory: Arc<DeviceMemory>,
    /// Its program has freed it.
    is_freed: bool,
}

impl Allocation {
    /// Returns whether the memory counts: a program may keep a mapping of memory that it has freed,
    /// whose pages cannot be swapped out.
    fn is_used(&self) -> bool {
        !self.is_freed || self.memory.is_mapped()
    }
}

/// The memories of a device, including memories that a program has freed and still maps.
#[pin_data]
pub(crate) struct Allocations {
    #[pin]
    list: Mutex<KVec<Allocation>>,
}

impl Allocations {
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                list <- new_mutex!(KVec::new(), "rrxe_device_memory"),
            }),
            GFP_KERNEL,
        )
    }

    /// Allocates memory. Returns `ENOMEM` beyond [`limits::MAX_DM_SIZE`].
    fn allocate(&self, len: usize) -> Result<Arc<DeviceMemory>> {
        let pages = |bytes: u64| bytes.div_ceil(PAGE_SIZE as u64);
        let mut list = self.list.lock();
        list.retain(|one| one.is_used());
        let sizes = list.iter().map(|one| pages(one.memory.size()));
        let used = sizes.fold(pages(len as u64), u64::saturating_add);
        if used > pages(limits::MAX_DM_SIZE) {
            return Err(ENOMEM);
        }
        let memory = DeviceMemory::new(len)?;
        let allocation = Allocation {
            memory: memory.clone(),
            is_freed: false,
        };
        list.push(allocation, GFP_KERNEL_ACCOUNT)?;
        Ok(memory)
    }

    /// Forgets memories that were freed and unmapped.
    fn sweep(&self) {
        self.list.lock().retain(|one| one.is_used());
    }

    /// Notes that a program has freed a memory.
    fn free(&self, memory: &Arc<DeviceMemory>) {
        let mut list = self.list.lock();
        let found = list.iter_mut().find(|one| Arc::ptr_eq(&one.memory, memory));
        if let Some(allocation) = found {
            allocation.is_freed = true;
        }
        list.retain(|one| one.is_used());
    }
}

/// ib_core's handle of a device memory.
pub(crate) struct DmHandle {
    pub(crate) memory: Arc<DeviceMemory>,
    handle: u32,
    memories: Arc<Memories>,
}

impl DmHandle {
    /// Allocates memory for the program of a context, which knows it by `handle`.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no bytes. `ENOMEM`: the limit of the device, or of the host's memory.
    /// `EOPNOTSUPP`: an alignment beyond that of pages.
    pub(crate) fn new(
        memories: &Arc<Memories>,
        handle: u32,
        len: u64,
        log_alignment: u32,
    ) -> Result<Self> {
        if log_alignment > PAGE_SHIFT as u32 {
            return Err(not_supported());
        }
        if len > limits::MAX_DM_SIZE {
            return Err(ENOMEM);
        }
        // From here on, dropping the handle frees the memory.
        let new = Self {
            memory: memories.allocations.allocate(usize::try_from(len)?)?,
            handle,
            memories: memories.clone(),
        };
        let entry = (handle, new.memory.clone());
        new.memories.list.lock().push(entry, GFP_KERNEL_ACCOUNT)?;
        Ok(new)
    }
}

impl Drop for DmHandle {
    fn drop(&mut self) {
        // It cannot be mapped from here on.
        self.memories
            .list
            .lock()
            .retain(|(of, _)| *of != self.handle);
        self.memories.allocations.free(&self.memory);
    }
}
