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
use linux_rdma::{
    errno::{not_supported, quota_exceeded},
    rdma::memory::DeviceMemory,
    user,
};
use rrxe_core::reorder::share;

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
    key: u64,
    /// The user that is charged for it.
    owner: u32,
    pages: usize,
    /// `None` while it is being allocated.
    memory: Option<Arc<DeviceMemory>>,
    /// Its program has freed it.
    is_freed: bool,
}

impl Allocation {
    /// Returns whether the memory counts: a program may keep a mapping of memory that it has freed,
    /// whose pages cannot be swapped out.
    fn is_used(&self) -> bool {
        !self.is_freed
            || self
                .memory
                .as_ref()
                .is_some_and(|memory| memory.is_mapped())
    }
}

/// The memories of a device.
struct List {
    /// Has capacity for [`limits::MAX_DM`].
    entries: KVec<Allocation>,
    /// Key of the next entry.
    next: u64,
}

impl List {
    /// Removes memories that were freed and unmapped.
    fn sweep(&mut self) {
        self.entries.retain(|one| one.is_used());
    }

    /// Adds memory that is about to be allocated. Returns its key.
    fn reserve(&mut self, pages: usize) -> Result<u64> {
        const MAX: usize = (limits::MAX_DM_SIZE >> PAGE_SHIFT) as usize;
        self.sweep();
        let owner = user::current_euid();
        let (mut all, mut own) = (0_usize, 0_usize);
        for one in &self.entries {
            all = all.saturating_add(one.pages);
            if one.owner == owner {
                own = own.saturating_add(one.pages);
            }
        }
        if all.saturating_add(pages) > MAX || self.entries.len() >= limits::MAX_DM {
            return Err(ENOMEM);
        }
        if own.saturating_add(pages) > share(MAX, all, own) && !user::has_sys_resource() {
            return Err(quota_exceeded());
        }
        let key = self.next;
        self.next = key.wrapping_add(1);
        let entry = Allocation {
            key,
            owner,
            pages,
            memory: None,
            is_freed: false,
        };
        self.entries
            .push_within_capacity(entry)
            .map_err(|_| ENOMEM)?;
        Ok(key)
    }

    /// Returns the entry with a key.
    fn entry(&mut self, key: u64) -> Option<&mut Allocation> {
        self.entries.iter_mut().find(|one| one.key == key)
    }
}

/// The memories of a device, including memories that a program has freed and still maps. Each call
/// of a program that allocates or frees memory, or that closes a context, removes those that were
/// unmapped meanwhile.
#[pin_data]
pub(crate) struct Allocations {
    /// Users share this lock, so nothing is allocated while it is held.
    #[pin]
    list: Mutex<List>,
}

impl Allocations {
    pub(crate) fn new() -> Result<Arc<Self>> {
        let list = List {
            entries: KVec::with_capacity(limits::MAX_DM, GFP_KERNEL)?,
            next: 0,
        };
        Arc::pin_init(
            pin_init!(Self { list <- new_mutex!(list, "rrxe_device_memory") }),
            GFP_KERNEL,
        )
    }

    /// Allocates memory. Returns it with the key of its entry.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: the limit of the device, or of the host's memory. `EDQUOT`: the user's share.
    fn allocate(&self, len: usize) -> Result<(u64, Arc<DeviceMemory>)> {
        let key = self.list.lock().reserve(len.div_ceil(PAGE_SIZE))?;
        let memory = DeviceMemory::new(len).inspect_err(|_| self.free(key))?;
        let mut list = self.list.lock();
        let entry = list.entry(key);
        debug_assert!(entry.is_some(), "memory is freed while it is allocated");
        if let Some(entry) = entry {
            entry.memory = Some(memory.clone());
        }
        drop(list);
        Ok((key, memory))
    }

    /// Forgets memories that were freed and unmapped.
    fn sweep(&self) {
        self.list.lock().sweep();
    }

    /// Notes that a program has freed a memory.
    fn free(&self, key: u64) {
        let mut list = self.list.lock();
        let entry = list.entry(key);
        debug_assert!(
            entry.as_ref().is_some_and(|entry| !entry.is_freed),
            "memory is freed twice"
        );
        if let Some(entry) = entry {
            entry.is_freed = true;
        }
        list.sweep();
    }
}

/// ib_core's handle of a device memory.
pub(crate) struct DmHandle {
    pub(crate) memory: Arc<DeviceMemory>,
    /// Key of its entry in [`Allocations`].
    key: u64,
    handle: u32,
    memories: Arc<Memories>,
}

impl DmHandle {
    /// Allocates memory for the program of a context, which knows it by `handle`.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no bytes. `ENOMEM`: the limit of the device, or of the host's memory. `EDQUOT`:
    /// the user's share. `EOPNOTSUPP`: an alignment beyond that of pages.
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
        let (key, memory) = memories.allocations.allocate(usize::try_from(len)?)?;
        // From here on, dropping the handle frees the memory.
        let new = Self {
            memory,
            key,
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
        self.memories.allocations.free(self.key);
    }
}
