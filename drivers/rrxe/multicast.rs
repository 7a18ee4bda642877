// SPDX-License-Identifier: GPL-2.0

//! Multicast groups (IBA 10.5): which queue pairs receive what is sent to a multicast GID.
//!
//! RoCEv2 sends to IP multicast addresses (IBA A17.4.4), so the network device joins the IP group
//! with the first queue pair and leaves it with the last. Receiving needs nothing more than the
//! RCU read lock. A sender that is a member receives its own datagrams too, as from other
//! software and hardware (IPoIB drops its own); the stack makes that copy.

use crate::{limits, qp::Qp};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{rcu, Arc, Mutex},
};
use linux_rdma::{
    net::{IpAddr, NetDevice},
    random,
    rdma::AddressInfo,
    sync::RcuCell,
};

/// Destination queue pair number of multicasts.
pub(crate) const QPN: u32 = 0xff_ffff;

/// Lists that the groups are spread over, by a hash that a stranger does not know.
const LISTS: usize = 256;

/// Each queue pair once.
type Members = Arc<KVVec<Arc<Qp>>>;

/// A group.
#[derive(Clone)]
struct Group {
    address: IpAddr,
    members: Members,
}

/// Numbers of what a device has.
#[derive(Clone, Copy, Default)]
struct Totals {
    groups: u32,
    members: u32,
}

/// The multicast groups of a device. Whoever changes them holds `totals`.
#[pin_data]
pub(crate) struct Groups {
    lists: [RcuCell<KVVec<Group>>; LISTS],
    key: u64,
    #[pin]
    totals: Mutex<Totals>,
}

impl Groups {
    pub(crate) fn new() -> impl PinInit<Self> {
        let mut key = [0; 8];
        random::fill(&mut key);
        pin_init!(Self {
            lists: [const { RcuCell::empty() }; LISTS],
            key: u64::from_ne_bytes(key),
            totals <- new_mutex!(Totals::default(), "rrxe_multicast"),
        })
    }

    fn list(&self, address: &IpAddr) -> &RcuCell<KVVec<Group>> {
        let bytes = match address {
            IpAddr::V4(a) => u128::from(u32::from_ne_bytes(*a)),
            IpAddr::V6(a) => u128::from_ne_bytes(*a),
        };
        // Multiplication by a secret odd number spreads all bits to the top ones.
        let mix = |n: u64, by: u64| {
            let n = (n ^ by).wrapping_mul(self.key | 1);
            n ^ n >> 32
        };
        let hash = mix(mix(bytes as u64, self.key), (bytes >> 64) as u64);
        // The top eight bits of the product of the folded halves.
        let at = (hash.wrapping_mul(self.key | 1) >> 56) as usize;
        let [first, ..] = &self.lists;
        self.lists.get(at).unwrap_or(first)
    }

    /// Makes a queue pair a member. `EINVAL` where it is one already or the GID is no group's,
    /// `ENOMEM` where a limit is reached, `ENODEV` where the network device has not the group's
    /// version of IP.
    pub(crate) fn attach(&self, netdev: &NetDevice, gid: &[u8; 16], qp: &Arc<Qp>) -> Result {
        let address = AddressInfo::ip_of(gid);
        if !address.is_multicast() {
            return Err(EINVAL);
        }
        let mut totals = self.totals.lock();
        if totals.members >= limits::MAX_TOTAL_MCAST_QP_ATTACH {
            return Err(ENOMEM);
        }
        let list = self.list(&address);
        let (mut groups, old) = others(list, &address)?;
        let is_new = old.is_none();
        if is_new && totals.groups >= limits::MAX_MCAST_GRP {
            return Err(ENOMEM);
        }
        let mut members = KVVec::new();
        if let Some(old) = &old {
            if old.len() >= limits::MAX_MCAST_QP_ATTACH as usize {
                return Err(ENOMEM);
            }
            if old.iter().any(|member| is_same(member, qp)) {
                return Err(EINVAL);
            }
            copy(&mut members, old.iter())?;
        }
        members.push(qp.clone(), GFP_KERNEL_ACCOUNT)?;
        let members = Arc::new(members, GFP_KERNEL_ACCOUNT)?;
        groups.push(Group { address, members }, GFP_KERNEL_ACCOUNT)?;
        if is_new {
            netdev.join_multicast(&address)?;
        }
        if let Err(e) = list.replace(Some(groups)) {
            if is_new {
                netdev.leave_multicast(&address);
            }
            return Err(e);
        }
        totals.groups = totals.groups.wrapping_add(is_new.into());
        totals.members = totals.members.wrapping_add(1);
        Ok(())
    }

    /// Ends a membership; `EINVAL` where there is none.
    pub(crate) fn detach(&self, netdev: &NetDevice, gid: &[u8; 16], qp: &Arc<Qp>) -> Result {
        let address = AddressInfo::ip_of(gid);
        let mut totals = self.totals.lock();
        let list = self.list(&address);
        let (mut groups, old) = others(list, &address)?;
        let old = old.ok_or(EINVAL)?;
        if !old.iter().any(|member| is_same(member, qp)) {
            return Err(EINVAL);
        }
        let mut members = KVVec::new();
        copy(
            &mut members,
            old.iter().filter(|member| !is_same(member, qp)),
        )?;
        let is_last = members.is_empty();
        if !is_last {
            let members = Arc::new(members, GFP_KERNEL_ACCOUNT)?;
            groups.push(Group { address, members }, GFP_KERNEL_ACCOUNT)?;
        }
        list.replace((!groups.is_empty()).then_some(groups))?;
        if is_last {
            netdev.leave_multicast(&address);
            totals.groups = totals.groups.wrapping_sub(1);
        }
        totals.members = totals.members.wrapping_sub(1);
        Ok(())
    }

    /// Calls `f` for each member of a group (I-07).
    pub(crate) fn for_each_member(
        &self,
        address: &IpAddr,
        rcu: &rcu::Guard,
        mut f: impl FnMut(&Arc<Qp>),
    ) {
        let group = self
            .list(address)
            .get(rcu)
            .and_then(|groups| groups.iter().find(|group| group.address == *address));
        if let Some(group) = group {
            group.members.iter().for_each(&mut f);
        }
    }
}

fn is_same(a: &Arc<Qp>, b: &Arc<Qp>) -> bool {
    Arc::ptr_eq(a, b)
}

fn copy<'a, T: Clone + 'a>(to: &mut KVVec<T>, from: impl Iterator<Item = &'a T>) -> Result {
    for item in from {
        to.push(item.clone(), GFP_KERNEL_ACCOUNT)?;
    }
    Ok(())
}

/// The groups of a list but one, and the members of that one.
fn others(
    list: &RcuCell<KVVec<Group>>,
    address: &IpAddr,
) -> Result<(KVVec<Group>, Option<Members>)> {
    // Room first: nothing may sleep under RCU. Nobody changes the list meanwhile.
    let count = list.get(&rcu::read_lock()).map_or(0, |groups| groups.len());
    let mut rest = KVVec::with_capacity(count.wrapping_add(1), GFP_KERNEL_ACCOUNT)?;
    let rcu = rcu::read_lock();
    let mut found = None;
    for group in list.get(&rcu).into_iter().flat_map(|groups| groups.iter()) {
        if group.address == *address {
            found = Some(group.members.clone());
        } else {
            rest.push_within_capacity(group.clone())?;
        }
    }
    Ok((rest, found))
}
