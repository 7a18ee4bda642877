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
use kernel::sync::Arc;

/// An owner of packets in this host's transmit queues.
pub trait TxOwner: Send + Sync + 'static {
    /// Reports that a packet has left: the network device has sent it, it was dropped, or it has
    /// reached another stack of this host. Called in any context but a hard interrupt.
    fn packet_left(&self);
}

/// Packets are inside from when they get an owner until they have left. Open while
/// [`Prepared`](super::Prepared) exists.
pub(super) static OWNED: Gate = Gate::closed();

/// Returns the address of the field for the argument of the destructor.
#[inline]
fn destructor_arg(skb: &Skb) -> *mut *mut c_void {
    // SAFETY: The shared info is valid as long as the packet.
    unsafe { &raw mut (*shim_skb_shinfo(skb)).__bindgen_anon_2.destructor_arg }
}

impl TxSkb {
    /// Gives the packet an owner, which is notified when the packet leaves. Returns whether it
    /// succeeded: a packet can have only one owner, and only while [`Prepared`](super::Prepared)
    /// exists.
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
