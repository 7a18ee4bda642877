// SPDX-License-Identifier: GPL-2.0

//! Borrows of reference-counted objects.

use kernel::sync::ArcBorrow;

/// Returns a reference to the object with the lifetime of the borrow, not of this copy of the
/// `ArcBorrow`.
#[inline]
pub fn arc_borrow_ref<'a, T>(borrow: ArcBorrow<'a, T>) -> &'a T {
    let object: *const T = &*borrow;
    // SAFETY: An `ArcBorrow<'a, T>` guarantees that the reference count does not reach zero during
    // `'a` and that there is no exclusive reference to the object (rust/kernel/sync/arc.rs).
    unsafe { &*object }
}
