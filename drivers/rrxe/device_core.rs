// SPDX-License-Identifier: GPL-2.0

//! The state of a device that its queue pairs use.

use crate::{
    config::Config, counters::Counters, mr::device_memory::Allocations, tables::Tables,
    transport::gids::Interfaces,
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, Relaxed, Release},
        Arc,
    },
};
use linux_rdma::{
    net::NetDevice,
    sync::{LongCall, Nesting},
};

/// Largest nesting of deliveries on a CPU: one `LoopbackBatch`, and the responses to it. A work
/// item sends anything beyond that.
const MAX_NESTING: u64 = 2;

/// The state of a device that its queue pairs use. It knows none of them, and lives as long as the
/// last one.
#[pin_data]
pub(crate) struct DeviceCore {
    pub(crate) config: Config,
    pub(crate) tables: Arc<Tables>,
    #[pin]
    pub(crate) interfaces: Interfaces,
    /// Counters of packets without a queue pair, and of queue pairs without bound counters.
    pub(crate) counters: Counters,
    bad_pkeys: Atomic<u64>,
    bad_qkeys: Atomic<u64>,
    /// Bytes of out-of-order packets that the queue pairs buffer.
    pub(crate) reorder_bytes: Atomic<usize>,
    /// The device memory that programs have allocated.
    pub(crate) allocations: Arc<Allocations>,
    /// Nested deliveries of `LoopbackBatch`s: see [`crate::transport::loopback`].
    pub(crate) deliveries: Nesting,
    /// The device is being removed.
    is_ending: Atomic<bool>,
}

impl DeviceCore {
    pub(crate) fn new(
        config: &Config,
        tables: &Arc<Tables>,
        netdev: &NetDevice,
    ) -> Result<Arc<Self>> {
        Arc::pin_init(
            try_pin_init!(Self {
                config: config.clone(),
                tables: tables.clone(),
                interfaces <- Interfaces::new(netdev),
                counters: Counters::new()?,
                bad_pkeys: Atomic::new(0),
                bad_qkeys: Atomic::new(0),
                reorder_bytes: Atomic::new(0),
                allocations: Allocations::new()?,
                deliveries: Nesting::new()?,
                is_ending: Atomic::new(false),
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Returns the identity of the device among the long calls.
    fn id(&self) -> u64 {
        core::ptr::from_ref(self).addr() as u64
    }

    /// Begins a system call that may sleep for any time. Returns `ENODEV` if the device is being
    /// removed.
    pub(crate) fn begin_long_call(&self) -> Result<LongCall<'_>> {
        let call = self.tables.long_calls.begin(self.id())?;
        // The lock of `begin` orders this after the store of `end_long_calls`, unless that function
        // finds the call.
        if self.is_ending.load(Acquire) {
            return Err(ENODEV);
        }
        Ok(call)
    }

    /// Interrupts the long calls, and lets no further one begin: ib_core waits for them before it
    /// removes the device. Sleeps.
    pub(crate) fn end_long_calls(&self) {
        self.is_ending.store(true, Release);
        self.tables.long_calls.interrupt(self.id());
    }

    /// Returns whether deliveries on this CPU are nested so deeply that a work item must send
    /// further packets.
    #[inline]
    pub(crate) fn is_deeply_nested(&self) -> bool {
        self.deliveries.depth() >= MAX_NESTING
    }

    /// Counts packets whose P_Key did not match.
    pub(crate) fn count_bad_pkeys(&self, packets: u32) {
        self.bad_pkeys.add(packets.into(), Relaxed);
    }

    /// Counts a datagram whose Q_Key did not match.
    pub(crate) fn count_bad_qkey(&self) {
        self.bad_qkeys.add(1, Relaxed);
    }

    /// Returns the P_Key and Q_Key violations so far, 0xffff at most (IBA 10.9, A-28).
    pub(crate) fn violations(&self) -> (u32, u32) {
        let read = |counter: &Atomic<u64>| counter.load(Relaxed).min(0xffff) as u32;
        (read(&self.bad_pkeys), read(&self.bad_qkeys))
    }
}
