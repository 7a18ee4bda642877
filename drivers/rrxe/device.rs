// SPDX-License-Identifier: GPL-2.0

//! What the driver keeps for a device.

use crate::{qp::Qp, sockets::SocketShare, tables::Tables};
use kernel::{
    new_mutex, new_spinlock,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{Atomic, Relaxed},
        Arc, Mutex, SpinLock,
    },
};
use linux_rdma::{net::NetDevice, sync::lock_bh};

/// A device: one port on one network device.
#[pin_data]
pub(crate) struct DeviceState {
    pub(crate) tables: Arc<Tables>,
    pub(crate) netdev: ARef<NetDevice>,
    /// Node and system image GUID.
    pub(crate) guid: [u8; 8],
    /// The sockets of the namespace; given back as soon as the network device leaves.
    #[pin]
    sockets: Mutex<Option<SocketShare>>,
    /// QP1.
    #[pin]
    gsi: SpinLock<Option<Arc<Qp>>>,
    bad_pkeys: Atomic<u32>,
    bad_qkeys: Atomic<u32>,
}

/// Adds one, up to 0xffff (IBA 10.9, A-28).
fn count_up(counter: &Atomic<u32>) {
    let mut now = counter.load(Relaxed);
    while now < 0xffff {
        match counter.cmpxchg(now, now.wrapping_add(1), Relaxed) {
            Ok(_) => break,
            Err(other) => now = other,
        }
    }
}

impl DeviceState {
    pub(crate) fn new(
        tables: Arc<Tables>,
        netdev: &NetDevice,
        sockets: SocketShare,
    ) -> Result<Arc<Self>> {
        // EUI-64 from the Ethernet address, as the stack makes interface identifiers (RFC 4291).
        let [a, b, c, d, e, f] = netdev.address();
        let guid = [a ^ 2, b, c, 0xff, 0xfe, d, e, f];
        Arc::pin_init(
            pin_init!(Self {
                tables,
                netdev: netdev.into(),
                guid,
                sockets <- new_mutex!(Some(sockets), "rrxe_device_sockets"),
                gsi <- new_spinlock!(None, "rrxe_device_gsi"),
                bad_pkeys: Atomic::new(0),
                bad_qkeys: Atomic::new(0),
            }),
            GFP_KERNEL,
        )
    }

    /// Gives the namespace's sockets back: nothing is received any more.
    pub(crate) fn release_sockets(&self) {
        let sockets = self.sockets.lock().take();
        // Closing waits for packets under way.
        drop(sockets);
    }

    /// ib_core has let go of the device.
    pub(crate) fn forget(&self) {
        let _ = self.set_gsi(None);
    }

    /// Makes a queue pair QP1; `EBUSY` where there is one.
    pub(crate) fn set_gsi(&self, qp: Option<Arc<Qp>>) -> Result {
        let old = {
            let mut gsi = lock_bh(&self.gsi);
            if qp.is_some() && gsi.is_some() {
                return Err(EBUSY);
            }
            core::mem::replace(&mut *gsi, qp)
        };
        drop(old);
        Ok(())
    }

    /// QP1.
    pub(crate) fn gsi(&self) -> Option<Arc<Qp>> {
        lock_bh(&self.gsi).clone()
    }

    /// A packet's P_Key did not match.
    pub(crate) fn count_bad_pkey(&self) {
        count_up(&self.bad_pkeys);
    }

    /// A datagram's Q_Key did not match.
    pub(crate) fn count_bad_qkey(&self) {
        count_up(&self.bad_qkeys);
    }

    /// P_Key and Q_Key violations so far.
    pub(crate) fn violations(&self) -> (u32, u32) {
        (self.bad_pkeys.load(Relaxed), self.bad_qkeys.load(Relaxed))
    }
}
