// SPDX-License-Identifier: GPL-2.0

//! UDP port 4791 of each network namespace that has a device: sockets, and the guard.

use super::{guard::Guard, rx::Receiver};
use crate::limits::ROCE_UDP_PORT;
use kernel::{
    new_mutex,
    prelude::*,
    sync::{Arc, Mutex},
};
use linux_rdma::errno::{is_family_unknown, not_supported};
use linux_rdma::net::{
    hook_outgoing, open_udp_tunnel, InNamespace, IpVersion, NetDevice, NetExit, NetNsCookie, NetRef,
};

/// The sockets of a namespace.
struct Entry {
    namespace: NetNsCookie,
    _v4: InNamespace<Receiver>,
    /// `None` on hosts without IPv6.
    _v6: Option<InNamespace<Receiver>>,
    /// `None` if the guard is disabled or the kernel has no netfilter.
    _guard: Option<InNamespace<Guard>>,
    /// Devices in the namespace.
    users: usize,
}

/// The open sockets: one pair for all devices of a namespace.
#[pin_data]
pub(crate) struct Sockets {
    exit: Arc<NetExit>,
    receiver: Arc<Receiver>,
    /// `None` if the guard is disabled.
    guard: Option<Arc<Guard>>,
    #[pin]
    open: Mutex<KVec<Entry>>,
}

/// A device's share of the sockets of its namespace. Dropping the last share closes them, which
/// sleeps.
pub(crate) struct SocketShare {
    sockets: Arc<Sockets>,
    namespace: NetNsCookie,
}

impl Sockets {
    pub(crate) fn new(receiver: Arc<Receiver>, is_guarded: bool) -> Result<Arc<Self>> {
        let exit = NetExit::register()?;
        let guard = is_guarded.then(|| Arc::new(Guard::new(), GFP_KERNEL));
        let guard = guard.transpose()?;
        Arc::pin_init(
            pin_init!(Self {
                exit,
                receiver,
                guard,
                open <- new_mutex!(KVec::new(), "rrxe_sockets"),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns a share of the sockets of a network device's namespace. Returns `EADDRINUSE` if
    /// another socket has the port.
    pub(crate) fn share(this: &Arc<Self>, netdev: &NetDevice) -> Result<SocketShare> {
        let net = netdev.get_net().ok_or(ENODEV)?;
        let namespace = net.cookie();
        let mut open = this.open.lock();
        match open.iter_mut().find(|e| e.namespace == namespace) {
            Some(entry) => entry.users = entry.users.wrapping_add(1),
            None => {
                let entry = Entry {
                    namespace,
                    _v4: this.bind(&net, IpVersion::V4)?,
                    _v6: match this.bind(&net, IpVersion::V6) {
                        Err(e) if is_family_unknown(e) => None,
                        socket => Some(socket?),
                    },
                    _guard: this.guard(&net)?,
                    users: 1,
                };
                open.push(entry, GFP_KERNEL)?;
            }
        }
        Ok(SocketShare {
            sockets: this.clone(),
            namespace,
        })
    }

    fn bind(&self, net: &NetRef, version: IpVersion) -> Result<InNamespace<Receiver>> {
        let receiver = self.receiver.clone();
        open_udp_tunnel(&self.exit, net, version, ROCE_UDP_PORT, receiver)
    }

    /// Registers the guard for the sockets of a namespace, unless it is disabled.
    fn guard(&self, net: &NetRef) -> Result<Option<InNamespace<Guard>>> {
        let Some(guard) = self.guard.clone() else {
            return Ok(None);
        };
        match hook_outgoing(&self.exit, net, guard) {
            Err(e) if e == not_supported() => {
                pr_warn!(
                    "the kernel has no netfilter: nothing keeps programs from sending to UDP port {}\n",
                    ROCE_UDP_PORT
                );
                Ok(None)
            }
            hook => hook.map(Some),
        }
    }
}

impl Drop for SocketShare {
    fn drop(&mut self) {
        let mut open = self.sockets.open.lock();
        if let Some(entry) = open.iter_mut().find(|e| e.namespace == self.namespace) {
            entry.users = entry.users.saturating_sub(1);
        }
        open.retain(|entry| entry.users != 0);
    }
}
