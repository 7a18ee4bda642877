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

/// Packets that have an owner and have not left, or that are about to get one.
static OWNED: Atomic<i64> = Atomic::new(0);

/// Whether packets may have owners: 0 or 1.
static OPEN: Atomic<u32> = Atomic::new(0);

impl TxSkb {
    /// Gives the packet an owner, which hears when it leaves. Returns whether it has it: a packet
    /// has one owner at most, and none without [`Prepared`](super::Prepared).
    pub fn set_owner<T: TxOwner>(&mut self, owner: Arc<T>) -> bool {
        let skb = self.as_raw();
        // Full: either this sees that owners are closed, or `close` sees the packet.
        OWNED.fetch_add(1, Full);
        // SAFETY: The packet is valid by the type invariant.
        if OPEN.load(Relaxed) == 0 || unsafe { raw::shim_skb_has_destructor(skb) } {
            OWNED.fetch_sub(1, Full);
            return false;
        }
        // SAFETY: The packet is valid by the type invariant, and ours alone. The destructor takes
        // the reference that is given up here. The stack calls it once, clears it, and does not
        // give it to copies and clones (`skb_release_head_state()`, `skb_orphan()`,
        // `__skb_clone()`, net/core/skbuff.c).
        unsafe {
            raw::shim_skb_set_destructor_arg(skb, Arc::into_raw(owner).cast_mut().cast());
            raw::shim_skb_set_destructor(skb, Some(destructor::<T>));
        }
        true
    }
}

/// Tells the owner of a packet that it has left.
///
/// # Safety
///
/// `skb` is valid, and [`TxSkb::set_owner`] gave it an owner of type `T`, whose reference nobody
/// has taken.
unsafe extern "C" fn destructor<T: TxOwner>(skb: *mut raw::sk_buff) {
    // SAFETY: The stack is the only caller, and calls once for a packet
    // (`skb_release_head_state()`, `skb_orphan()`, net/core/skbuff.c). The reference is the one
    // that `set_owner` gave up: nothing else writes to the field, since only packets with
    // `SKBFL_ZEROCOPY_ENABLE` have it from somewhere else, and `pskb_expand_head()` copies it.
    let owner =
        unsafe { Arc::from_raw(raw::shim_skb_destructor_arg(skb).cast::<T>().cast_const()) };
    owner.packet_left();
    drop(owner);
    OWNED.fetch_sub(1, Full);
}

/// Lets packets have owners.
pub(super) fn open() {
    OPEN.store(1, Relaxed);
}

/// Has packets get no owners any more, and waits until none has one and no destructor runs: for the
/// end of the module that has the code. Sleeps.
pub(super) fn close() {
    // Full, as in `set_owner`.
    OPEN.xchg(0, Full);
    while OWNED.load(Acquire) != 0 {
        fsleep(Delta::from_millis(10));
    }
    // SAFETY: Sleeping is allowed here. A task that was preempted in a destructor, behind its last
    // access, has left it when this returns (kernel/rcu/tasks.h).
    unsafe { raw::shim_synchronize_rcu_tasks() };
}
