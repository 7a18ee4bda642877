// SPDX-License-Identifier: GPL-2.0

//! The driver's state of a device.

use super::multicast::Groups;
use crate::{
    config::Config,
    counters::{BoundCounters, Counters},
    demux::sockets::{SocketShare, Sockets, ERRORS},
    qp::{table::QpTables, Qp},
    tables::Tables,
    transport::{
        gids::{Gid, Interfaces},
        local_queue::LocalQueue,
    },
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc, Mutex,
    },
};
use linux_rdma::{net::NetDevice, random, rdma::NewGid, sync::Nesting};

/// A device: one port on one network device.
#[pin_data]
pub(crate) struct DeviceState {
    pub(crate) config: Config,
    pub(crate) tables: Arc<Tables>,
    pub(crate) qps: Arc<QpTables>,
    #[pin]
    pub(crate) interfaces: Interfaces,
    /// Node and system image GUID.
    pub(crate) guid: [u8; 8],
    /// Counters of packets without a queue pair, and of queue pairs without bound counters.
    pub(crate) counters: Counters,
    /// Counters that are or were bound to queue pairs.
    #[pin]
    pub(crate) bound_counters: BoundCounters,
    /// The sockets of all devices.
    sockets: Arc<Sockets>,
    /// The share of the sockets of the device's namespace; released as soon as the network device
    /// is unregistered.
    #[pin]
    own_share: Mutex<Option<SocketShare>>,
    /// The sockets of the namespaces and VRFs of the GID table's entries, by index.
    #[pin]
    gid_shares: Mutex<KVec<(u32, SocketShare)>>,
    #[pin]
    pub(crate) multicast: Groups,
    bad_pkeys: Atomic<u64>,
    bad_qkeys: Atomic<u64>,
    /// Bytes of out-of-order packets that the queue pairs buffer.
    pub(crate) reorder_bytes: Atomic<usize>,
    /// The device's packets that are queued on this host.
    pub(crate) local_queue: Arc<LocalQueue<Qp>>,
    /// Nested deliveries of `LoopbackBatch`s: see [`crate::transport::loopback`].
    pub(crate) deliveries: Nesting,
}

/// Largest nesting of deliveries on a CPU: one `LoopbackBatch`, and the responses to it. A work
/// item sends anything beyond that.
const MAX_NESTING: u64 = 2;

/// Returns the node GUID of a device: the EUI-64 of the Ethernet address, as the stack makes
/// interface identifiers (RFC 4291, appendix A), or a random one if there is no such address.
fn guid(netdev: &NetDevice) -> [u8; 8] {
    let [a, b, c, d, e, f] = netdev.ethernet_address().unwrap_or_else(|| {
        let [a, b, c, d, e, f] = random::bytes();
        // Unicast, locally administered (IEEE 802).
        [a & !1 | 2, b, c, d, e, f]
    });
    [a ^ 2, b, c, 0xff, 0xfe, d, e, f]
}

impl DeviceState {
    pub(crate) fn new(
        config: &Config,
        tables: &Arc<Tables>,
        qps: &Arc<QpTables>,
        sockets: &Arc<Sockets>,
        netdev: &NetDevice,
        share: SocketShare,
    ) -> Result<Arc<Self>> {
        Arc::pin_init(
            try_pin_init!(Self {
                config: config.clone(),
                tables: tables.clone(),
                qps: qps.clone(),
                interfaces <- Interfaces::new(netdev),
                guid: guid(netdev),
                counters: Counters::new()?,
                bound_counters <- BoundCounters::new(),
                sockets: sockets.clone(),
                own_share <- new_mutex!(Some(share), "rrxe_device_sockets"),
                gid_shares <- new_mutex!(KVec::new(), "rrxe_gid_shares"),
                multicast <- Groups::new(),
                bad_pkeys: Atomic::new(0),
                bad_qkeys: Atomic::new(0),
                reorder_bytes: Atomic::new(0),
                local_queue: LocalQueue::new()?,
                deliveries: Nesting::new()?,
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Returns whether deliveries on this CPU are nested so deeply that a work item must send
    /// further packets.
    #[inline]
    pub(crate) fn is_deeply_nested(&self) -> bool {
        self.deliveries.depth() >= MAX_NESTING
    }

    /// Releases the sockets of all namespaces. Waits for packets in flight: none is received after
    /// that.
    pub(crate) fn release_sockets(&self) {
        let own = self.own_share.lock().take();
        let shares = core::mem::take(&mut *self.gid_shares.lock());
        drop((own, shares));
    }

    /// Handles a new entry of the GID table: opens the sockets of the namespace and VRF that has
    /// the address, unless they are open. If that fails, ib_core does not add the entry.
    pub(crate) fn add_gid(&self, gid: &NewGid<'_>) -> Result {
        let entry = Gid::new(gid)?;
        let mut shares = self.gid_shares.lock();
        shares.reserve(1, GFP_KERNEL)?;
        let share = Sockets::share(&self.sockets, gid.netdev, Some(&ERRORS))?;
        shares.push_within_capacity((gid.index, share))?;
        self.interfaces.add(entry);
        Ok(())
    }

    /// Handles the end of an entry of the GID table.
    pub(crate) fn del_gid(&self, index: u32) {
        self.interfaces.remove(index);
        let mut shares = self.gid_shares.lock();
        if let Some(at) = shares.iter().position(|(of, _)| *of == index) {
            drop(shares.remove(at));
        }
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
