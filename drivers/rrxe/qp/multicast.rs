// SPDX-License-Identifier: GPL-2.0

//! Multicast groups (IBA 10.5): the queue pairs that receive packets for a multicast GID.
//!
//! RoCEv2 sends to IP multicast addresses (IBA A17.4.4), so the network device joins the IP group
//! with the first queue pair and leaves it with the last. Reception needs only the RCU read lock. A
//! sender that is a member receives its own datagrams too, as with other software and hardware
//! (IPoIB drops its own); the stack makes that copy.

use super::Qp;
use crate::{
    limits,
    quota::{Kind::Membership, Payer},
};
use kernel::{
    prelude::*,
    static_lock_class,
    sync::{rcu, Arc},
    types::ScopeGuard,
};
use linux_rdma::{
    net::IpAddr,
    random,
    rdma::AddressInfo,
    sync::{RcuListEntry, RcuLists},
};

/// Destination queue pair number of multicasts.
pub(crate) const QPN: u32 = 0xff_ffff;

/// Number of lists that the groups are spread over, by a secret hash.
const LISTS: usize = 256;

/// A queue pair in a group.
struct Member {
    address: IpAddr,
    qp: Arc<Qp>,
}

/// The multicast groups of a device.
///
/// ib_core ignores the result of a detachment when a program ends, so detaching needs no memory
/// (ib_uverbs_detach_umcast() in uverbs_main.c).
#[pin_data]
pub(crate) struct Groups {
    #[pin]
    members: RcuLists<Member, LISTS>,
    key: u64,
}

impl Groups {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            // SAFETY: Before the module is unloaded, `SharedState` (rrxe_main.rs) waits for RCU
            // callbacks. By then no device exists, and members have left.
            members <- unsafe { RcuLists::new(c"rrxe_multicast", static_lock_class!()) },
            key: u64::from_ne_bytes(random::bytes()),
        })
    }

    /// Returns the index of the list that has the members of a group.
    fn list(&self, address: &IpAddr) -> usize {
        let bytes = match address {
            IpAddr::V4(a) => u128::from(u32::from_ne_bytes(*a)),
            IpAddr::V6(a) => u128::from_ne_bytes(*a),
        };
        // Multiplication by a secret odd number moves the information of all bits to the top bits,
        // of which the index has eight.
        let mix = |n: u64, by: u64| {
            let n = (n ^ by).wrapping_mul(self.key | 1);
            n ^ n >> 32
        };
        let hash = mix(mix(bytes as u64, self.key), (bytes >> 64) as u64);
        (hash.wrapping_mul(self.key | 1) >> 56) as usize
    }

    pub(crate) fn members_of<'a>(
        &'a self,
        address: &'a IpAddr,
        rcu: &'a rcu::Guard,
    ) -> impl Iterator<Item = &'a Arc<Qp>> {
        self.members
            .iter(self.list(address), rcu)
            .filter(|member| member.address == *address)
            .map(|member| &member.qp)
    }

    /// Makes a queue pair of the device a member of a group. `payer` pays for the queue pair, and
    /// for this.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is a member already or the GID is not a multicast address, `ENOMEM` if the
    /// group is full, the errors of `Quotas::charge`, `ENODEV` if the network device lacks the
    /// group's version of IP.
    pub(crate) fn attach(&self, gid: &[u8; 16], qp: &Arc<Qp>, payer: Payer) -> Result {
        let address = AddressInfo::ip_of(gid);
        if !address.is_multicast() {
            return Err(EINVAL);
        }
        let member = Member {
            address,
            qp: qp.clone(),
        };
        let entry = RcuListEntry::new(member, GFP_KERNEL_ACCOUNT)?;
        let quotas = &qp.device.tables.quotas;
        // Before the lock, because this may wait for memory of the payer's control group.
        quotas.charge(Membership, payer)?;
        let charged = ScopeGuard::new(|| quotas.uncharge(Membership, payer));
        let mut writer = self.members.lock();
        let (count, is_member) = {
            let rcu = rcu::read_lock();
            let members = || self.members_of(&address, &rcu);
            let is_member = members().any(|member| Arc::ptr_eq(member, qp));
            (members().count(), is_member)
        };
        if is_member {
            return Err(EINVAL);
        }
        if count >= limits::MAX_MCAST_QP_ATTACH as usize {
            return Err(ENOMEM);
        }
        if count == 0 {
            qp.device.interfaces.netdev.join_multicast(&address)?;
        }
        charged.dismiss();
        writer.push(self.list(&address), entry);
        Ok(())
    }

    /// Ends a membership, for which `payer` paid. `EINVAL`: the queue pair is not a member.
    pub(crate) fn detach(&self, gid: &[u8; 16], qp: &Arc<Qp>, payer: Payer) -> Result {
        let address = AddressInfo::ip_of(gid);
        let mut writer = self.members.lock();
        let is_it = |member: &Member| member.address == address && Arc::ptr_eq(&member.qp, qp);
        if !writer.remove(self.list(&address), is_it) {
            return Err(EINVAL);
        }
        // At once, and not with the entry, which lives until after a grace period.
        qp.device.tables.quotas.uncharge(Membership, payer);
        let rcu = rcu::read_lock();
        if self.members_of(&address, &rcu).next().is_none() {
            drop(rcu);
            qp.device.interfaces.netdev.leave_multicast(&address);
        }
        Ok(())
    }
}
