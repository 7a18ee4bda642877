// SPDX-License-Identifier: GPL-2.0

//! Addresses of RoCEv2 paths (`struct rdma_ah_attr`).

use crate::{
    net::{InterfaceId, IpAddr, NetDevice},
    raw,
};
use kernel::{prelude::*, sync::rcu};

/// The path to a peer: the selected source GID and the destination.
#[derive(Clone, Copy, Debug)]
pub struct AddressInfo {
    /// Source GID (IPv4 as an IPv4-mapped address).
    pub sgid: [u8; 16],
    /// Destination GID, of the same version of IP.
    pub dgid: [u8; 16],
    /// Index of the source GID in the port's table.
    pub sgid_index: u8,
    /// The source GID's interface: the port's network device, or one stacked on it, which may be in
    /// another namespace. `None` if the interface has been removed.
    pub interface: Option<InterfaceId>,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit or TTL.
    pub hop_limit: u8,
    /// Traffic class or TOS.
    pub traffic_class: u8,
    /// Service level.
    pub sl: u8,
    /// Static rate.
    pub static_rate: u8,
    /// Port number, from 1.
    pub port: u32,
    /// Ethernet address of the next hop.
    pub dmac: [u8; 6],
}

impl AddressInfo {
    /// Returns the IP address that a GID represents.
    pub fn ip_of(gid: &[u8; 16]) -> IpAddr {
        match *gid {
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] => IpAddr::V4([a, b, c, d]),
            _ => IpAddr::V6(*gid),
        }
    }

    /// Reads ib_core's attribute. Returns `EINVAL` if it has no route or is not RoCEv2, or if the
    /// GIDs belong to different versions of IP.
    ///
    /// # Safety
    ///
    /// `attr` comes from ib_core, which holds a reference to its `sgid_attr`
    /// (`rdma_fill_sgid_attr()`, verbs.c).
    pub(crate) unsafe fn from_raw(attr: &raw::rdma_ah_attr) -> Result<Self> {
        if attr.type_ != raw::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_ROCE
            || u32::from(attr.ah_flags) & raw::ib_ah_flags_IB_AH_GRH == 0
            || attr.grh.sgid_attr.is_null()
        {
            return Err(EINVAL);
        }
        // SAFETY: The pointer is not null, and the caller guarantees that ib_core holds a
        // reference. All members of `union ib_gid` are sixteen plain bytes. The type is RoCE, so
        // `roce` is the active member of its union.
        let (gid_attr, sgid, dgid, dmac) = unsafe {
            let gid_attr = &*attr.grh.sgid_attr;
            let roce = &attr.__bindgen_anon_1.roce;
            (gid_attr, gid_attr.gid.raw, attr.grh.dgid.raw, roce.dmac)
        };
        if gid_attr.gid_type != raw::ib_gid_type_IB_GID_TYPE_ROCE_UDP_ENCAP
            || Self::ip_of(&sgid).version() != Self::ip_of(&dgid).version()
        {
            return Err(EINVAL);
        }
        let interface = {
            let rcu = rcu::read_lock();
            // SAFETY: The RCU read lock is held, as `rdma_read_gid_attr_ndev_rcu()` (cache.c)
            // requires. It returns an error or a device that is valid under RCU.
            unsafe {
                let ndev = raw::rdma_read_gid_attr_ndev_rcu(gid_attr);
                let ndev = kernel::error::from_err_ptr(ndev).ok();
                let ndev = ndev.filter(|ndev| !ndev.is_null());
                ndev.map(|ndev| NetDevice::from_raw(ndev).interface(&rcu))
            }
        };
        Ok(Self {
            sgid,
            dgid,
            sgid_index: attr.grh.sgid_index,
            interface,
            flow_label: attr.grh.flow_label & 0xf_ffff,
            hop_limit: attr.grh.hop_limit,
            traffic_class: attr.grh.traffic_class,
            sl: attr.sl,
            static_rate: attr.static_rate,
            port: attr.port_num,
            dmac,
        })
    }

    /// Returns ib_core's attribute for the query verbs. Like other drivers, this does not set
    /// `sgid_attr`.
    pub(crate) fn to_raw(self) -> raw::rdma_ah_attr {
        let mut attr: raw::rdma_ah_attr = pin_init::zeroed();
        attr.type_ = raw::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_ROCE;
        attr.ah_flags = raw::ib_ah_flags_IB_AH_GRH as u8;
        attr.grh.dgid.raw = self.dgid;
        attr.grh.sgid_index = self.sgid_index;
        attr.grh.flow_label = self.flow_label;
        attr.grh.hop_limit = self.hop_limit;
        attr.grh.traffic_class = self.traffic_class;
        attr.sl = self.sl;
        attr.static_rate = self.static_rate;
        attr.port_num = self.port;
        attr.__bindgen_anon_1.roce = raw::roce_ah_attr { dmac: self.dmac };
        attr
    }

    /// Returns the priority of packets in this host's stack, from 0 to 7, and thereby in the tags
    /// of VLANs. Other adapters, too, use three bits of the service level for RoCE.
    #[inline]
    pub fn priority(&self) -> u8 {
        self.sl & 7
    }

    /// Returns the UDP source port of a connected queue pair, from 0xC000 to 0xFFFF. The kernel
    /// derives it from the flow label, or from the QP numbers if the label is 0
    /// (`rdma_get_udp_sport()`).
    pub fn udp_source_port(&self, local_qpn: u32, remote_qpn: u32) -> u16 {
        raw::safe::shim_get_udp_sport(self.flow_label, local_qpn, remote_qpn)
    }
}
