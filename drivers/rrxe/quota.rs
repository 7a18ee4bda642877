// SPDX-License-Identifier: GPL-2.0

//! Quotas: the maximum numbers of objects of each user.
//!
//! The limits in [`limits`] are those of the module. A user may have half of the objects that the
//! others leave of a limit. With n users each gets one part in n + 1, and a new user always finds
//! some left. The share is smaller for objects that nobody needs in such numbers: ib_core allocates
//! some 300 bytes for each object, which are charged to no control group. A process with
//! CAP_SYS_RESOURCE may create objects beyond its user's share, and consumers in the kernel have
//! none. Both have only the limits of the module. The rdma control group does not replace this: it
//! has no limit by default, and does not know users.
//!
//! An object is charged to the effective user of the process that creates it, until any process
//! destroys it. Locked memory (`ib_umem_get()` in drivers/infiniband/core/umem.c) and control
//! groups are charged to the caller, too. So a process that got an open device from another user,
//! over fork() or SCM_RIGHTS, is charged for the objects that it creates there. A membership of a
//! multicast group is an exception: it is charged to the user of the queue pair.

use crate::limits;
use core::ops::{Deref, Index, IndexMut};
use kernel::{
    new_spinlock,
    prelude::*,
    rbtree::{Entry, RBTree, RBTreeNode, RBTreeNodeReservation},
    sync::{Arc, SpinLock},
};
use linux_rdma::{errno::quota_exceeded, sync::with_lock_irqsave, user};
use rrxe_core::{reorder::share, Increment, Time};

/// The consumer that an object is charged to: a user, by its UID in the initial user namespace, or
/// `None` for all consumers in the kernel.
pub(crate) type Payer = Option<u32>;

/// A kind of objects with a limit of its own.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// Protection domains and XRC domains.
    Domain,
    AddressHandle,
    CompletionQueue,
    QueuePair,
    SharedReceiveQueue,
    Region,
    Window,
    /// Memberships of queue pairs in multicast groups.
    Membership,
}

/// A number of objects of each kind.
#[derive(Debug, Default, PartialEq)]
struct Counts([u32; Kind::Membership as usize + 1]);

impl Counts {
    fn is_zero(&self) -> bool {
        self.0.iter().all(|&count| count == 0)
    }
}

impl Index<Kind> for Counts {
    type Output = u32;

    #[expect(clippy::indexing_slicing, reason = "each kind has an element")]
    fn index(&self, kind: Kind) -> &u32 {
        &self.0[kind as usize]
    }
}

impl IndexMut<Kind> for Counts {
    #[expect(clippy::indexing_slicing, reason = "each kind has an element")]
    fn index_mut(&mut self, kind: Kind) -> &mut u32 {
        &mut self.0[kind as usize]
    }
}

impl Kind {
    /// Returns the largest numbers of objects: of the module, and of a user besides its share.
    const fn max(self) -> (u32, u32) {
        let module = match self {
            Self::Domain => return (limits::MAX_PD, limits::MAX_USER_PD),
            Self::AddressHandle => return (limits::MAX_AH, limits::MAX_USER_AH),
            Self::CompletionQueue => limits::MAX_CQ,
            Self::QueuePair => limits::MAX_QP,
            Self::SharedReceiveQueue => limits::MAX_SRQ,
            Self::Region => limits::MAX_MR,
            Self::Window => limits::MAX_MW,
            Self::Membership => limits::MAX_TOTAL_MCAST_QP_ATTACH,
        };
        (module, module)
    }
}

/// The account of a user that has objects.
#[derive(Default)]
struct Account {
    objects: Counts,
    /// Earliest time of the next limited retry ([`Quotas::reserve_rnr_retry`]).
    next_retry: Time,
}

/// Memory for an account.
type NewNode = RBTreeNodeReservation<u32, Account>;

/// The objects of all consumers, and the accounts of the users that have any, by UID.
struct Accounts {
    all: Counts,
    users: RBTree<u32, Account>,
}

impl Accounts {
    fn new() -> Self {
        Self {
            all: Counts::default(),
            users: RBTree::new(),
        }
    }

    /// Counts one more object. Takes `node` if the payer is a user without an account. Returns
    /// false if there are `module` objects already, or if a user that is not `is_exempt` has its
    /// share or `user` objects.
    fn add(
        &mut self,
        kind: Kind,
        (module, user): (u32, u32),
        payer: Payer,
        is_exempt: bool,
        node: &mut Option<NewNode>,
    ) -> bool {
        let all = &mut self.all[kind];
        if *all >= module {
            return false;
        }
        if let Some(uid) = payer {
            let own = self
                .users
                .get(&uid)
                .map_or(0, |account| account.objects[kind]);
            let share = share(module as usize, *all as usize, own as usize).min(user as usize);
            if !is_exempt && own as usize >= share {
                return false;
            }
            match (self.users.entry(uid), node.take()) {
                (Entry::Occupied(mut entry), _) => entry.get_mut().objects[kind].increment(),
                (Entry::Vacant(entry), Some(node)) => {
                    let mut account = Account::default();
                    account.objects[kind] = 1;
                    entry.insert(account, node);
                }
                (Entry::Vacant(_), None) => return false,
            }
        }
        all.increment();
        true
    }

    /// Counts one object less. Returns the user's account if that was its last object.
    fn remove(&mut self, kind: Kind, payer: Payer) -> Option<RBTreeNode<u32, Account>> {
        decrement(&mut self.all[kind]);
        let mut entry = self.users.find_mut(&payer?)?;
        let objects = &mut entry.get_mut().objects;
        decrement(&mut objects[kind]);
        objects.is_zero().then(|| entry.remove_node())
    }
}

/// Counts one object less.
fn decrement(count: &mut u32) {
    debug_assert!(*count > 0, "an object is uncharged that was not charged");
    *count = count.saturating_sub(1);
}

/// The objects of all devices, and the users that they are charged to.
#[pin_data]
pub(crate) struct Quotas {
    #[pin]
    accounts: SpinLock<Accounts>,
}

impl Quotas {
    pub(crate) fn new() -> Result<Arc<Self>> {
        let accounts = new_spinlock!(Accounts::new(), "rrxe_quotas");
        Arc::pin_init(pin_init!(Self { accounts <- accounts }), GFP_KERNEL)
    }

    /// Counts one more object, until [`Self::uncharge`]. Sleeps if the payer is a user.
    ///
    /// # Errors
    ///
    /// `EDQUOT` if the user has its share, and the current process lacks CAP_SYS_RESOURCE. `ENOMEM`
    /// at the limit of the module, or if there is no memory.
    pub(crate) fn charge(&self, kind: Kind, payer: Payer) -> Result {
        let node = payer.map(|_| NewNode::new(GFP_KERNEL_ACCOUNT));
        let mut node = node.transpose()?;
        let mut add = |is_exempt| {
            with_lock_irqsave(&self.accounts, |accounts| {
                accounts.add(kind, kind.max(), payer, is_exempt, &mut node)
            })
        };
        match payer {
            Some(_) if add(false) => Ok(()),
            Some(_) if !user::has_sys_resource() => Err(quota_exceeded()),
            _ if add(true) => Ok(()),
            _ => Err(ENOMEM),
        }
    }

    /// Counts one object less, which must have been [charged](Self::charge). Any context.
    pub(crate) fn uncharge(&self, kind: Kind, payer: Payer) {
        let last = with_lock_irqsave(&self.accounts, |accounts| accounts.remove(kind, payer));
        // Freed without the lock.
        drop(last);
    }

    /// Reserves a retry of a request whose receiver has not been ready for long. Returns its
    /// earliest time. The retries of all queue pairs of a user
    /// are [`limits::RNR_RETRY_INTERVAL`] apart, since softirqs send them, even while the user's
    /// processes are stopped. Those of kernel consumers are not limited. Any context.
    pub(crate) fn reserve_rnr_retry(&self, payer: Payer, now: Time) -> Time {
        with_lock_irqsave(&self.accounts, |accounts| {
            let account = payer.and_then(|uid| accounts.users.get_mut(&uid));
            account.map_or(now, |account| {
                let time = account.next_retry.max(now);
                account.next_retry = time + limits::RNR_RETRY_INTERVAL;
                time
            })
        })
    }
}

/// The charge for one object, which ends on drop.
pub(crate) struct Charge {
    quotas: Arc<Quotas>,
    kind: Kind,
    pub(crate) payer: Payer,
}

impl Charge {
    /// Charges the current process's user, or the kernel, for an object that is about to be
    /// created. Sleeps for a user. Fails as [`Quotas::charge`] does.
    pub(crate) fn new(quotas: &Arc<Quotas>, kind: Kind, is_user: bool) -> Result<Self> {
        let payer = is_user.then(user::current_euid);
        quotas.charge(kind, payer)?;
        Ok(Self {
            quotas: quotas.clone(),
            kind,
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
        self.quotas.uncharge(self.kind, self.payer);
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

#[cfg(CONFIG_KUNIT)]
#[kernel::prelude::kunit_tests(rrxe_quota)]
mod tests {
    use super::{Kind::Region, *};

    const LIMIT: (u32, u32) = (12, 12);

    fn add(
        max: (u32, u32),
        accounts: &mut Accounts,
        payer: Payer,
        is_exempt: bool,
    ) -> Result<bool> {
        Ok(accounts.add(
            Region,
            max,
            payer,
            is_exempt,
            &mut Some(NewNode::new(GFP_KERNEL)?),
        ))
    }

    /// Counts objects of this payer until one is refused. Returns their number.
    fn fill_to(
        max: (u32, u32),
        accounts: &mut Accounts,
        payer: Payer,
        is_exempt: bool,
    ) -> Result<u32> {
        let mut count = 0;
        while add(max, accounts, payer, is_exempt)? {
            count += 1;
        }
        Ok(count)
    }

    fn fill(accounts: &mut Accounts, payer: Payer, is_exempt: bool) -> Result<u32> {
        fill_to(LIMIT, accounts, payer, is_exempt)
    }

    #[test]
    fn a_user_has_half_of_what_the_others_leave() -> Result {
        let mut accounts = Accounts::new();
        assert_eq!(fill(&mut accounts, Some(1), false)?, 6);
        assert_eq!(fill(&mut accounts, Some(2), false)?, 3);
        // A user that destroys an object can create another one, and a user at its share none.
        let _ = accounts.remove(Region, Some(2));
        assert_eq!(fill(&mut accounts, Some(1), false)?, 0);
        assert_eq!(fill(&mut accounts, Some(2), false)?, 1);
        Ok(())
    }

    #[test]
    fn a_user_has_no_more_than_its_maximum() -> Result {
        let (mut accounts, max) = (Accounts::new(), (LIMIT.0, 4));
        assert_eq!(fill_to(max, &mut accounts, Some(1), false)?, 4);
        assert_eq!(fill_to(max, &mut accounts, Some(2), false)?, 4);
        // Half of what the others leave is less.
        assert_eq!(fill_to(max, &mut accounts, Some(3), false)?, 2);
        assert_eq!(fill_to(max, &mut accounts, Some(1), true)?, 2);
        Ok(())
    }

    #[test]
    fn an_exempt_user_and_the_kernel_have_what_is_left() -> Result {
        for payer in [Some(2), None] {
            let mut accounts = Accounts::new();
            assert_eq!(fill(&mut accounts, Some(1), false)?, 6);
            assert_eq!(fill(&mut accounts, payer, true)?, 6);
            assert_eq!(fill(&mut accounts, Some(3), false)?, 0);
        }
        Ok(())
    }

    #[test]
    fn kinds_have_limits_of_their_own() -> Result {
        let mut accounts = Accounts::new();
        assert_eq!(fill(&mut accounts, Some(1), false)?, 6);
        assert!(accounts.add(Kind::Window, LIMIT, Some(1), false, &mut None));
        assert_eq!(accounts.all[Kind::Window], 1);
        Ok(())
    }

    #[test]
    fn users_without_objects_have_no_account() -> Result {
        let mut accounts = Accounts::new();
        for uid in 1..=2 {
            assert!(add(LIMIT, &mut accounts, Some(uid), false)?);
            assert!(accounts.add(Kind::Window, LIMIT, Some(uid), false, &mut None));
        }
        for uid in 1..=2 {
            assert!(accounts.remove(Region, Some(uid)).is_none());
            assert!(accounts.remove(Kind::Window, Some(uid)).is_some());
        }
        assert!(accounts.users.is_empty());
        assert_eq!(accounts.all, Counts::default());
        Ok(())
    }

    #[test]
    fn an_object_counts_until_it_is_dropped() -> Result {
        let quotas = Quotas::new()?;
        let object = Charge::new(&quotas, Region, false)?.of(());
        let count = || with_lock_irqsave(&quotas.accounts, |accounts| accounts.all[Region]);
        assert_eq!(count(), 1);
        drop(object);
        assert_eq!(count(), 0);
        Ok(())
    }
}
