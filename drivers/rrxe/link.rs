// SPDX-License-Identifier: GPL-2.0

//! `rdma link add`, and the end of a device's network device.
//!
//! ib_core gives `newlink` no way to report more than an error number. Each refusal therefore has a
//! number of its own, and one line in the kernel log that gives the reason and the remedy.

use crate::{
    config::Config,
    demux::sockets::Sockets,
    device::DeviceState,
    device_core::DeviceCore,
    module::Rrxe,
    qp::table::{DeviceQps, QpTables},
    tables::Tables,
};
use kernel::{prelude::*, str::CStr, sync::Arc};
use linux_rdma::{
    errno::not_supported,
    net::{NetDevice, NetdevEvents},
    rdma::device::{self, by_netdev, LinkOps, LinkRequest},
    sync::num_possible_cpus,
};

/// Operations for `rdma link add NAME type rrxe`.
pub(crate) static LINK_OPS: LinkOps<Rrxe> = LinkOps::new();

/// State shared by all devices; created when the module is loaded.
pub(crate) struct State {
    pub(crate) tables: Arc<Tables>,
    pub(crate) qps: Arc<QpTables>,
    pub(crate) sockets: Arc<Sockets>,
    pub(crate) config: Config,
}

kernel::sync::global_lock! {
    // SAFETY: `Module::init` (rrxe_main.rs) initializes it before it registers anything that uses
    // it.
    pub(crate) unsafe(uninit) static STATE: Mutex<Option<Arc<State>>> = None;
}

/// Returns the shared state; `None` while the module is being loaded or unloaded.
fn module_state() -> Option<Arc<State>> {
    STATE.lock().clone()
}

/// Creates a device on a network device.
pub(crate) fn add(request: &LinkRequest<'_, Rrxe>, name: &CStr, netdev: &NetDevice) -> Result {
    let dev = netdev.name();
    if netdev.is_vlan() {
        pr_err!(
            "{dev}: is a VLAN; add the link on the device below it, whose GID table has the VLAN's addresses\n"
        );
        return Err(EPERM);
    }
    if netdev.is_loopback() || !netdev.carries_ip() {
        pr_err!(
            "{dev}: is neither an Ethernet device nor an IP tunnel; add the link on one of these, also for traffic within this host\n"
        );
        return Err(not_supported());
    }
    if by_netdev::<Rrxe>(netdev).is_some() {
        pr_err!(
            "{dev}: has a link already (`rdma link` shows it); use that link, or delete it first\n"
        );
        return Err(EEXIST);
    }
    let state = module_state().ok_or(ENODEV)?;
    let share = Sockets::share(&state.sockets, netdev, None)?;
    let State {
        tables,
        qps,
        sockets,
        config,
    } = &*state;
    let core = DeviceCore::new(config, tables, netdev)?;
    let qps = DeviceQps::new(&core, qps)?;
    let data = DeviceState::new(core, qps, sockets, netdev, share)?;
    let guid = data.guid;
    let vectors = num_possible_cpus();
    device::register(request, name, netdev, guid, vectors, data).inspect_err(|&e| {
        if e == EEXIST || e == ENFILE {
            pr_err!("{dev}: a device named {name} exists already; choose another name\n");
        } else {
            let errno = e.to_errno();
            pr_err!("{dev}: ib_core cannot register {name}: error {errno}\n");
        }
    })?;
    pr_info!("{name}: added on {dev}\n");
    Ok(())
}

/// Handles the end of network devices, and their moves to other VRFs. ib_core itself reports the
/// state of the port and maintains the GID table.
pub(crate) struct Follower;

impl NetdevEvents for Follower {
    fn unregister(dev: &NetDevice) {
        if let Some(device) = by_netdev::<Rrxe>(dev) {
            device.unregister_queued();
            device.data().core.end_long_calls();
            // Synchronously, because the namespace may be destroyed next.
            device.data().release_sockets();
        }
    }

    fn upper_changed(dev: &NetDevice) {
        if let Some(state) = module_state() {
            state.sockets.follow(dev);
        }
    }
}
