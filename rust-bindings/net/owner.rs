// SPDX-License-Identifier: GPL-2.0

//! Packets that report when they have left the host.
//!
//! C header: `include/linux/skbuff.h`.

use super::{
    skb::{shim_skb_shinfo, Skb},
    TxSkb,
};
use crate::{raw, sync::Gate};
use core::ffi::c_void;
use kernel::{
    prelude::*,
    sync::{
        atomic::{Atomic, Full, Release},
        Arc,
    },
};

/// An owner of packets in this host's transmit queues.
pub trait TxOwner: Send + Sync + 'static {
    /// Reports that a packet has left: the network device has sent it, it was dropped, or it has
    /// reached another stack of this host. Called in any context but a hard interrupt.
    fn packet_left(&self);
}

/// Packets are inside from when they get an owner until they have left. Open while a
/// [`PacketOwners`] exists.
static OWNED: Gate = Gate::closed();

/// 1 while a [`PacketOwners`] exists, otherwise 0.
static EXISTS: Atomic<u32> = Atomic::new(0);

/// Allows packets to have owners. At most one exists, and a module drops it last.
pub struct PacketOwners(());

impl PacketOwners {
    /// Allows packets to have owners. Returns `EBUSY` if a `PacketOwners` already exists.
    pub fn new() -> Result<Self> {
        EXISTS.cmpxchg(0, 1, Full).map_err(|_| EBUSY)?;
        OWNED.reopen();
        Ok(Self(()))
    }
}

impl Drop for PacketOwners {
    /// Waits until no packet has an owner. Later packets have none. Sleeps.
    fn drop(&mut self) {
        OWNED.close();
        // A task that was preempted in a destructor after its last access has left it when
        // synchronize_rcu_tasks() (kernel/rcu/tasks.h) returns, so the code can be unloaded.
        raw::safe::shim_synchronize_rcu_tasks();
        EXISTS.store(0, Release);
    }
}

/// Returns the address of the field for the argument of the destructor.
#[inline]
fn destructor_arg(skb: &Skb) -> *mut *mut c_void {
    // SAFETY: The shared info is valid as long as the packet.
    unsafe { &raw mut (*shim_skb_shinfo(skb)).__bindgen_anon_2.destructor_arg }
}

impl TxSkb {
    /// Gives the packet an owner, which is notified when the packet leaves. Returns whether it
    /// succeeded: a packet can have only one owner, and only while a [`PacketOwners`] exists.
    pub fn set_owner<T: TxOwner>(&mut self, owner: Arc<T>) -> bool {
        let skb = self.as_raw();
        let Some(inside) = OWNED.enter() else {
            return false;
        };
        // SAFETY: `self` owns the only reference to the packet (type invariant). The destructor
        // takes over the reference to the owner. The stack calls the destructor once, clears it,
        // and does not pass it to copies and clones (`skb_release_head_state()`, `skb_orphan()`,
        // `__skb_clone()`, net/core/skbuff.c).
        unsafe {
            if raw::shim_skb_has_destructor(skb) {
                return false;
            }
            *destructor_arg(self.fields()) = Arc::into_raw(owner).cast_mut().cast();
            raw::shim_skb_set_destructor(skb, Some(destructor::<T>));
        }
        // `destructor` leaves the gate.
        core::mem::forget(inside);
        true
    }
}

/// Notifies the owner of a packet that it has left.
///
/// # Safety
///
/// `skb` is valid, and [`TxSkb::set_owner`] gave it an owner of type `T`, whose reference has not
/// been taken yet.
unsafe extern "C" fn destructor<T: TxOwner>(skb: *mut raw::sk_buff) {
    // SAFETY: The stack is the only caller, once per packet (`skb_release_head_state()`,
    // `skb_orphan()`, net/core/skbuff.c). The reference and the guard of the gate are those that
    // `set_owner` gave up. Nothing else writes to the field: only packets with
    // `SKBFL_ZEROCOPY_ENABLE` use it differently, and `pskb_expand_head()` copies it.
    unsafe {
        let owner = *destructor_arg(Skb::from_raw(skb));
        let owner = Arc::from_raw(owner.cast::<T>().cast_const());
        owner.packet_left();
        drop(owner);
        OWNED.leave();
    }
}

#[kernel::prelude::kunit_tests(linux_rdma_packet_owners)]
mod tests {
    use super::*;

    /// The module has the only `PacketOwners`.
    #[test]
    fn there_is_one() {
        assert_eq!(PacketOwners::new().err(), Some(EBUSY));
    }
}
