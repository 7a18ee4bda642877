// SPDX-License-Identifier: GPL-2.0

//! Packets that report when they have left the host.
//!
//! C header: `include/linux/skbuff.h`.

use super::TxSkb;
use crate::raw;
use kernel::{
    sync::{
        atomic::{Acquire, Atomic, Full, Relaxed},
        Arc,
    },
    time::{delay::fsleep, Delta},
};

/// The owner of packets that wait in queues of this host.
pub trait TxOwner: Send + Sync + 'static {
    /// Takes note that a packet has left: the network device has sent it, something has dropped
    /// it, or it has reached another stack of this host. Any context but a hard interrupt.
    fn packet_left(&self);
}

/// Packets that have an owner and have not left.
static OWNED: Atomic<i64> = Atomic::new(0);

impl TxSkb {
    /// Gives the packet an owner, which hears when it leaves. A packet has one owner at most.
    pub fn set_owner<T: TxOwner>(&mut self, owner: Arc<T>) {
        let skb = self.as_raw();
        // SAFETY: The packet is valid by the type invariant, and ours alone. The destructor takes
        // the reference that is given up here. The stack calls it once, clears it, and does not
        // give it to copies and clones (`skb_release_head_state()`, `skb_orphan()`,
        // `__skb_clone()`, net/core/skbuff.c).
        unsafe {
            if raw::shim_skb_has_destructor(skb) {
                return;
            }
            OWNED.add(1, Relaxed);
            raw::shim_skb_set_destructor_arg(skb, Arc::into_raw(owner).cast_mut().cast());
            raw::shim_skb_set_destructor(skb, Some(destructor::<T>));
        }
    }
}

/// Tells the owner of a packet that it has left.
///
/// # Safety
///
/// Called by the stack as the destructor of a packet that [`TxSkb::set_owner`] gave an owner of
/// type `T`.
unsafe extern "C" fn destructor<T: TxOwner>(skb: *mut raw::sk_buff) {
    // SAFETY: The reference is the one that `set_owner` gave up, by the requirements. Nothing else
    // uses the field: only packets with `SKBFL_ZEROCOPY_ENABLE` have it from somewhere else, and
    // `pskb_expand_head()` copies it.
    let owner =
        unsafe { Arc::from_raw(raw::shim_skb_destructor_arg(skb).cast::<T>().cast_const()) };
    owner.packet_left();
    drop(owner);
    OWNED.fetch_sub(1, Full);
}

/// Waits until no packet has an owner, and no destructor runs: for the end of the module that has
/// the code. No packet gets an owner from here on. Sleeps.
pub(super) fn wait_for_owned() {
    while OWNED.load(Acquire) != 0 {
        fsleep(Delta::from_millis(10));
    }
    // SAFETY: Sleeping is allowed here. A task that was preempted in a destructor, behind its last
    // access, has left it when this returns (kernel/rcu/tasks.h).
    unsafe { raw::shim_synchronize_rcu_tasks() };
}
