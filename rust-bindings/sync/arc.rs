// SPDX-License-Identifier: GPL-2.0

//! Borrows of reference-counted objects.

use kernel::sync::ArcBorrow;

/// The object of a borrow, for as long as the borrow itself is good, not only this copy of it.
#[inline]
pub fn object_of<'a, T>(borrow: ArcBorrow<'a, T>) -> &'a T {
    let object: *const T = &*borrow;
    // SAFETY: For `'a` the reference count does not become zero, and nobody has the object for himself alone: that is
    // what `ArcBorrow` says (rust/kernel/sync/arc.rs).
    unsafe { &*object }
}
