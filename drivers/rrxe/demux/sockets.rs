// SPDX-License-Identifier: GPL-2.0

//! UDP port 4791 of each network namespace that has an address of a device: sockets, and the guard.

use super::{guard::Guard, Receiver};
use crate::limits::ROCE_UDP_PORT;
use kernel::{
    new_mutex,
    prelude::*,
    sync::{rcu, Arc, Mutex},
};
use linux_rdma::errno::{is_address_in_use, is_family_unknown, not_supported};
use linux_rdma::net::{
    hook_outgoing, open_udp_tunnel, InNamespace, InterfaceId, IpVersion, NetDevice, NetExit,
    NetNsCookie, NetRef,
};
use linux_rdma::time::LogLimit;

/// Limits the errors for interfaces that change by themselves.
pub(crate) static ERRORS: LogLimit = LogLimit::new();

/// The sockets of a namespace, outside of VRFs or in one of them.
struct Entry {
    place: Place,
    _v4: InNamespace<Receiver>,
    /// `None` on hosts without IPv6.
    _v6: Option<InNamespace<Receiver>>,
    /// `None` in a VRF, or if the guard is disabled or the kernel has no netfilter.
    _guard: Option<InNamespace<Guard>>,
}

/// A namespace, and the index of a VRF's device, or 0 outside of VRFs. A socket outside of VRFs
/// receives nothing from a VRF unless net.ipv4.udp_l3mdev_accept is set.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    namespace: NetNsCookie,
    vrf: u32,
}

/// An interface that needs sockets.
struct Use {
    /// Identifies the share.
    share: u64,
    interface: InterfaceId,
    /// The VRF that the interface is in, or 0.
    vrf: u32,
}

impl Use {
    /// Returns whether the interface needs the sockets of a place: those of its namespace for
    /// packets from outside of VRFs and for the guard, and those of its VRF.
    fn needs(&self, place: Place) -> bool {
        self.interface.namespace == place.namespace && (place.vrf == 0 || place.vrf == self.vrf)
    }
}

/// The open sockets, and the interfaces that need them.
struct Open {
    entries: KVec<Entry>,
    uses: KVec<Use>,
    /// Number of shares so far.
    made: u64,
}

/// The sockets of all devices: one pair for each namespace, and one for each VRF in it.
#[pin_data]
pub(crate) struct Sockets {
    exit: Arc<NetExit>,
    receiver: Arc<Receiver>,
    /// `None` if the guard is disabled.
    guard: Option<Arc<Guard>>,
    #[pin]
    open: Mutex<Open>,
}

/// A share of the sockets that an interface needs. Dropping the last share closes them, which
/// sleeps.
pub(crate) struct SocketShare {
    sockets: Arc<Sockets>,
    id: u64,
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
                open <- new_mutex!(
                    Open {
                        entries: KVec::new(),
                        uses: KVec::new(),
                        made: 0,
                    },
                    "rrxe_sockets"
                ),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns a share of the sockets of a network device's namespace and VRF. Returns `EADDRINUSE`
    /// if another socket has the port. Logs errors; an error that root of a container can cause
    /// repeatedly, only once a minute (`limit`).
    pub(crate) fn share(
        this: &Arc<Self>,
        netdev: &NetDevice,
        limit: Option<&LogLimit>,
    ) -> Result<SocketShare> {
        let mut open = this.open.lock();
        // Under the lock, so that `follow` sees later moves.
        let (interface, vrf) = place_of(netdev);
        open.uses.reserve(1, GFP_KERNEL)?;
        let result = this.open_for(&mut open, netdev, vrf, limit);
        open.made = open.made.wrapping_add(1);
        let share = open.made;
        if result.is_ok() {
            let one = Use {
                share,
                interface,
                vrf,
            };
            open.uses.push_within_capacity(one)?;
        }
        open.close_unused();
        result.map(|()| SocketShare {
            sockets: this.clone(),
            id: share,
        })
    }

    /// Handles a network device that has joined or left a VRF.
    pub(crate) fn follow(&self, netdev: &NetDevice) {
        let mut open = self.open.lock();
        let (interface, vrf) = place_of(netdev);
        let mut has_moved = false;
        for one in open
            .uses
            .iter_mut()
            .filter(|one| one.interface == interface)
        {
            has_moved |= one.vrf != vrf;
            one.vrf = vrf;
        }
        if has_moved {
            // An error is in the log. The device receives nothing until it moves again.
            let _ = self.open_for(&mut open, netdev, vrf, Some(&ERRORS));
            open.close_unused();
        }
    }

    /// Opens the sockets that a network device in a VRF (or not, if that is 0) needs, unless they
    /// are open.
    fn open_for(
        &self,
        open: &mut Open,
        netdev: &NetDevice,
        vrf: u32,
        limit: Option<&LogLimit>,
    ) -> Result {
        self.open_at(open, netdev, 0, limit)?;
        match vrf {
            0 => Ok(()),
            vrf => self.open_at(open, netdev, vrf, limit),
        }
    }

    /// Opens the sockets of a VRF, or outside of VRFs, in the namespace of a network device, unless
    /// they are open.
    fn open_at(
        &self,
        open: &mut Open,
        netdev: &NetDevice,
        vrf: u32,
        limit: Option<&LogLimit>,
    ) -> Result {
        let net = netdev.get_net().ok_or(ENODEV)?;
        let namespace = net.cookie();
        let place = Place { namespace, vrf };
        if open.entries.iter().any(|entry| entry.place == place) {
            return Ok(());
        }
        open.entries.reserve(1, GFP_KERNEL)?;
        let entry = self.bind(&net, place).inspect_err(|&e| {
            if limit.is_some_and(|limit| !limit.may_print()) {
                return;
            }
            let dev = netdev.name();
            let place = if vrf == 0 { "network namespace" } else { "VRF" };
            if is_address_in_use(e) {
                pr_err!(
                    "{dev}: UDP port {ROCE_UDP_PORT} is in use in this {place}, by a program (`ss -lunp 'sport = {ROCE_UDP_PORT}'` shows it) or by rdma_rxe (`rdma link` shows its links); end the program, delete the links, or use another namespace\n"
                );
            } else {
                let errno = e.to_errno();
                pr_err!("{dev}: cannot open UDP port {ROCE_UDP_PORT} in this {place}: error {errno}\n");
            }
        })?;
        open.entries.push_within_capacity(entry)?;
        Ok(())
    }

    /// Opens the sockets of a place, with the guard of its namespace.
    fn bind(&self, net: &NetRef, place: Place) -> Result<Entry> {
        let bind = |version| {
            let receiver = self.receiver.clone();
            open_udp_tunnel(&self.exit, net, version, ROCE_UDP_PORT, place.vrf, receiver)
        };
        Ok(Entry {
            place,
            _v4: bind(IpVersion::V4)?,
            _v6: match bind(IpVersion::V6) {
                Err(e) if is_family_unknown(e) => None,
                socket => Some(socket?),
            },
            _guard: match place.vrf {
                0 => self.guard(net)?,
                _ => None,
            },
        })
    }

    /// Registers the guard for the sockets of a namespace, unless it is disabled.
    fn guard(&self, net: &NetRef) -> Result<Option<InNamespace<Guard>>> {
        let Some(guard) = self.guard.clone() else {
            return Ok(None);
        };
        match hook_outgoing(&self.exit, net, guard) {
            Err(e) if e == not_supported() => {
                pr_warn!(
                    "the kernel has no netfilter, so any program can send forged RoCEv2 packets to UDP port {}; use a kernel with CONFIG_NETFILTER=y to prevent that\n",
                    ROCE_UDP_PORT
                );
                Ok(None)
            }
            hook => hook.map(Some),
        }
    }
}

impl Open {
    /// Closes the sockets that no interface needs.
    fn close_unused(&mut self) {
        let Self { entries, uses, .. } = self;
        entries.retain(|entry| uses.iter().any(|one| one.needs(entry.place)));
    }
}

/// Returns the identity of a network device, and the VRF that it is in, or 0.
fn place_of(netdev: &NetDevice) -> (InterfaceId, u32) {
    let rcu = rcu::read_lock();
    (netdev.interface(&rcu), netdev.vrf(&rcu))
}

impl Drop for SocketShare {
    fn drop(&mut self) {
        let mut open = self.sockets.open.lock();
        open.uses.retain(|one| one.share != self.id);
        open.close_unused();
    }
}
