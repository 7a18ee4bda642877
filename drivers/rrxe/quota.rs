// SPDX-License-Identifier: GPL-2.0

//! Quotas: how many objects of one kind a user may have.
//!
//! The limits in [`limits`] are those of the module. A user may have half of what the others leave
//! of a limit: with n users each gets one part in n + 1, and a new user always finds something
//! left. The share is smaller for objects that nobody needs in such numbers: ib_core allocates some
//! 300 bytes for each object, which are charged to no control group. A process with
//! CAP_SYS_RESOURCE may create objects beyond its user's share, and consumers in the kernel have
//! none. Both have only the limits of the module.
//!
//! The caller pays: the effective user of the process that creates an object, until the object is
//! destroyed by any process. Locked memory (`ib_umem_get()` in drivers/infiniband/core/umem.c) and
//! control groups charge the caller, too. So a process that got an open device from another user,
//! over fork() or SCM_RIGHTS, pays for what it creates there. A membership of a multicast group is
//! an exception: the user that pays for the queue pair pays for it.

use crate::limits;
use core::ops::Deref;
use kernel::{
    new_spinlock,
    prelude::*,
    rbtree::{Entry, RBTree, RBTreeNode, RBTreeNodeReservation},
    sync::{Arc, SpinLock},
};
use linux_rdma::{errno::quota_exceeded, sync::with_lock_irqsave, user};
use rrxe_core::reorder::share;

/// The consumer that an object is charged to: a user, by its UID in the initial user namespace, or
/// `None` for all consumers in the kernel.
pub(crate) type Payer = Option<u32>;

/// The numbers of existing objects of one kind.
struct Usage {
    all: u32,
    /// The users that have any.
    users: RBTree<u32, User>,
}

/// A user that has objects of one kind.
#[derive(Default)]
struct User {
    objects: u32,
    /// Queue pairs: earliest time of the next retry that is limited
    /// ([`Quota::reserve_rnr_retry`]), in nanoseconds of CLOCK_MONOTONIC.
    next_retry: u64,
}

/// Memory for a user's entry in [`Usage::users`].
type NewNode = RBTreeNodeReservation<u32, User>;

impl Usage {
    fn new() -> Self {
        Self {
            all: 0,
            users: RBTree::new(),
        }
    }

    /// Counts one more object. Takes `node` if the payer is a user without an entry. Returns false
    /// if the module has its maximum of objects already, or if a user that is not `exempt` has its
    /// share.
    fn add(&mut self, max: Max, payer: Payer, exempt: bool, node: &mut Option<NewNode>) -> bool {
        let (module, user) = (max.module as usize, max.user as usize);
        let (has, may) = match payer {
            Some(uid) if !exempt => {
                let own = self.users.get(&uid).map_or(0, |user| user.objects as usize);
                (own, share(module, self.all as usize, own).min(user))
            }
            _ => (self.all as usize, module),
        };
        if has >= may {
            return false;
        }
        if let Some(uid) = payer {
            match self.users.entry(uid) {
                Entry::Occupied(mut entry) => {
                    let user = entry.get_mut();
                    user.objects = user.objects.saturating_add(1);
                }
                Entry::Vacant(entry) => match node.take() {
                    Some(node) => {
                        let user = User {
                            objects: 1,
                            ..User::default()
                        };
                        entry.insert(user, node);
                    }
                    None => return false,
                },
            }
        }
        self.all = self.all.saturating_add(1);
        true
    }

    /// Counts one object less. Returns the user's entry if it was the last one.
    fn remove(&mut self, payer: Payer) -> Option<RBTreeNode<u32, User>> {
        self.all = self.all.saturating_sub(1);
        let mut entry = self.users.find_mut(&payer?)?;
        let user = entry.get_mut();
        user.objects = user.objects.saturating_sub(1);
        (user.objects == 0).then(|| entry.remove_node())
    }

    /// Reserves a retry of a user: see [`Quota::reserve_rnr_retry`].
    fn reserve_rnr_retry(&mut self, payer: Payer, now: u64) -> u64 {
        let user = payer.and_then(|uid| self.users.get_mut(&uid));
        user.map_or(now, |user| {
            let time = user.next_retry.max(now);
            user.next_retry = time.saturating_add(limits::RNR_RETRY_INTERVAL);
            time
        })
    }
}

/// The largest numbers of objects of one kind.
#[derive(Clone, Copy)]
struct Max {
    /// Of the module.
    module: u32,
    /// Of a user, besides its share.
    user: u32,
}

/// The limit of one kind of object, and the objects that count.
#[pin_data]
pub(crate) struct Quota {
    max: Max,
    #[pin]
    usage: SpinLock<Usage>,
}

impl Quota {
    /// A user's share is half of what the others leave, but `user` at most.
    fn new(module: u32, user: u32) -> Result<Arc<Self>> {
        let max = Max { module, user };
        Arc::pin_init(
            pin_init!(Self {
                max,
                usage <- new_spinlock!(Usage::new(), "rrxe_quota"),
            }),
            GFP_KERNEL,
        )
    }

    /// Counts one more object. The caller must [uncharge](Self::uncharge) it. Sleeps if the payer
    /// is a user.
    ///
    /// # Errors
    ///
    /// `EDQUOT` if the user has its share, and the current process lacks CAP_SYS_RESOURCE. `ENOMEM`
    /// at the limit of the module, or if there is no memory.
    pub(crate) fn charge(&self, payer: Payer) -> Result {
        let node = payer.map(|_| NewNode::new(GFP_KERNEL_ACCOUNT));
        let mut node = node.transpose()?;
        let mut add = |exempt| {
            with_lock_irqsave(&self.usage, |usage| {
                usage.add(self.max, payer, exempt, &mut node)
            })
        };
        match payer {
            Some(_) if add(false) => Ok(()),
            Some(_) if !user::has_sys_resource() => Err(quota_exceeded()),
            _ if add(true) => Ok(()),
            _ => Err(ENOMEM),
        }
    }

    /// Counts one object less. Any context.
    pub(crate) fn uncharge(&self, payer: Payer) {
        let last = with_lock_irqsave(&self.usage, |usage| usage.remove(payer));
        // Freed without the lock.
        drop(last);
    }
}

impl Quota {
    /// Reserves a retry of a request whose receiver has not been ready for long. Returns its
    /// earliest time, in nanoseconds of CLOCK_MONOTONIC. The retries of all queue pairs of a user
    /// are [`limits::RNR_RETRY_INTERVAL`] apart, since softirqs send them, even while the user's
    /// processes are stopped. Those of kernel consumers are not limited. Any context.
    pub(crate) fn reserve_rnr_retry(&self, payer: Payer, now: u64) -> u64 {
        with_lock_irqsave(&self.usage, |usage| usage.reserve_rnr_retry(payer, now))
    }
}

/// One object of a [`Quota`]. Given back on drop.
pub(crate) struct Charge {
    quota: Arc<Quota>,
    pub(crate) payer: Payer,
}

impl Charge {
    /// Charges the current process's user, or the kernel, for an object that is about to be
    /// created. Sleeps for a user. Fails as [`Quota::charge`] does.
    pub(crate) fn new(quota: &Arc<Quota>, is_user: bool) -> Result<Self> {
        let payer = is_user.then(user::current_euid);
        quota.charge(payer)?;
        Ok(Self {
            quota: quota.clone(),
            payer,
        })
    }

    pub(crate) fn of<T>(self, object: T) -> Charged<T> {
        Charged {
            object,
            charge: self,
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.quota.uncharge(self.payer);
    }
}

/// An object of ib_core's, and the charge for it.
pub(crate) struct Charged<T> {
    object: T,
    // Dropped after the object.
    pub(crate) charge: Charge,
}

impl<T> Deref for Charged<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.object
    }
}

/// The quotas of all kinds of objects.
pub(crate) struct Quotas {
    /// Protection domains, and XRC domains, which have no limit of their own.
    pub(crate) domains: Arc<Quota>,
    pub(crate) address_handles: Arc<Quota>,
    pub(crate) completion_queues: Arc<Quota>,
    pub(crate) queue_pairs: Arc<Quota>,
    pub(crate) shared_receive_queues: Arc<Quota>,
    pub(crate) regions: Arc<Quota>,
    pub(crate) windows: Arc<Quota>,
    /// Memberships of queue pairs in multicast groups.
    pub(crate) memberships: Arc<Quota>,
}

impl Quotas {
    pub(crate) fn new() -> Result<Self> {
        let of_all = |max| Quota::new(max, max);
        Ok(Self {
            domains: Quota::new(limits::MAX_PD, limits::MAX_USER_PD)?,
            address_handles: Quota::new(limits::MAX_AH, limits::MAX_USER_AH)?,
            completion_queues: of_all(limits::MAX_CQ)?,
            queue_pairs: of_all(limits::MAX_QP)?,
            shared_receive_queues: of_all(limits::MAX_SRQ)?,
            regions: of_all(limits::MAX_MR)?,
            windows: of_all(limits::MAX_MW)?,
            memberships: of_all(limits::MAX_TOTAL_MCAST_QP_ATTACH)?,
        })
    }
}

#[cfg(CONFIG_KUNIT)]
#[kernel::prelude::kunit_tests(rrxe_quota)]
mod tests {
    use super::*;

    const LIMIT: Max = Max {
        module: 12,
        user: 12,
    };

    /// Counts objects of this payer until one is refused. Returns their number.
    fn fill(usage: &mut Usage, payer: Payer, exempt: bool) -> Result<u32> {
        fill_to(LIMIT, usage, payer, exempt)
    }

    fn fill_to(max: Max, usage: &mut Usage, payer: Payer, exempt: bool) -> Result<u32> {
        let mut count = 0;
        while usage.add(max, payer, exempt, &mut Some(NewNode::new(GFP_KERNEL)?)) {
            count += 1;
        }
        Ok(count)
    }

    #[test]
    fn a_user_has_half_of_what_the_others_leave() -> Result {
        let mut usage = Usage::new();
        assert_eq!(fill(&mut usage, Some(1), false)?, 6);
        assert_eq!(fill(&mut usage, Some(2), false)?, 3);
        // A user that destroys an object can create another one, and a user at its share none.
        let _ = usage.remove(Some(2));
        assert_eq!(fill(&mut usage, Some(1), false)?, 0);
        assert_eq!(fill(&mut usage, Some(2), false)?, 1);
        Ok(())
    }

    #[test]
    fn a_user_has_no_more_than_its_maximum() -> Result {
        let (mut usage, max) = (Usage::new(), Max { user: 4, ..LIMIT });
        assert_eq!(fill_to(max, &mut usage, Some(1), false)?, 4);
        assert_eq!(fill_to(max, &mut usage, Some(2), false)?, 4);
        // Half of what the others leave is less.
        assert_eq!(fill_to(max, &mut usage, Some(3), false)?, 2);
        assert_eq!(fill_to(max, &mut usage, Some(1), true)?, 2);
        Ok(())
    }

    #[test]
    fn an_exempt_user_and_the_kernel_have_what_is_left() -> Result {
        for payer in [Some(2), None] {
            let mut usage = Usage::new();
            assert_eq!(fill(&mut usage, Some(1), false)?, 6);
            assert_eq!(fill(&mut usage, payer, true)?, 6);
            assert_eq!(fill(&mut usage, Some(3), false)?, 0);
        }
        Ok(())
    }

    #[test]
    fn users_without_objects_have_no_entry() -> Result {
        let mut usage = Usage::new();
        for uid in 1..=2 {
            assert!(usage.add(
                LIMIT,
                Some(uid),
                false,
                &mut Some(NewNode::new(GFP_KERNEL)?)
            ));
        }
        for uid in 1..=2 {
            assert!(usage.remove(Some(uid)).is_some());
        }
        assert!(usage.users.is_empty());
        assert_eq!(usage.all, 0);
        Ok(())
    }

    #[test]
    fn an_object_counts_until_it_is_dropped() -> Result {
        let quota = Quota::new(1, 1)?;
        let object = Charge::new(&quota, false)?.of(());
        assert_eq!(Charge::new(&quota, false).err(), Some(ENOMEM));
        drop(object);
        Charge::new(&quota, false).map(drop)
    }
}
