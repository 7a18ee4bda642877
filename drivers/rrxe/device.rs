// SPDX-License-Identifier: GPL-2.0

//! The driver's state of a device.

use crate::{
    counters::BoundCounters,
    demux::sockets::{SocketShare, Sockets, ERRORS},
    device_core::DeviceCore,
    qp::table::DeviceQps,
    transport::gids::Gid,
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{Arc, Mutex},
};
use linux_rdma::{net::NetDevice, random, rdma::NewGid};

/// A device: one port on one network device.
#[pin_data]
pub(crate) struct DeviceState {
    pub(crate) core: Arc<DeviceCore>,
    pub(crate) qps: Arc<DeviceQps>,
    /// Node and system image GUID.
    pub(crate) guid: [u8; 8],
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
}

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
        core: Arc<DeviceCore>,
        qps: Arc<DeviceQps>,
        sockets: &Arc<Sockets>,
        netdev: &NetDevice,
        share: SocketShare,
    ) -> Result<Arc<Self>> {
        Arc::pin_init(
            try_pin_init!(Self {
                core,
                qps,
                guid: guid(netdev),
                bound_counters <- BoundCounters::new(),
                sockets: sockets.clone(),
                own_share <- new_mutex!(Some(share), "rrxe_device_sockets"),
                gid_shares <- new_mutex!(KVec::new(), "rrxe_gid_shares"),
            }? Error),
            GFP_KERNEL,
        )
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
        self.core.interfaces.add(entry);
        Ok(())
    }

    /// Handles the end of an entry of the GID table.
    pub(crate) fn del_gid(&self, index: u32) {
        self.core.interfaces.remove(index);
        let mut shares = self.gid_shares.lock();
        if let Some(at) = shares.iter().position(|(of, _)| *of == index) {
            drop(shares.remove(at));
        }
    }
}
