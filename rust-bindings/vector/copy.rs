// SPDX-License-Identifier: GPL-2.0

//! Copies 32 bytes at a time. This file does not depend on the kernel: the host tests include it
//! unchanged.

use core::arch::asm;

/// Bytes of a round.
pub(crate) const BLOCK: usize = 128;

/// Minimum length for which rounds are twice as long.
const MIN_LONG: usize = 1024;

/// Copies `len` bytes, at least [`BLOCK`]. The last round ends at the last byte and may overlap the
/// round before it.
///
/// # Safety
///
/// `from` is valid for reads of `len` bytes and `to` for writes, and they do not overlap. The
/// memory may be used concurrently. The CPU has AVX, and its vector registers may be used.
#[inline]
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: The caller guarantees valid memory and usable registers. `MIN_LONG` is more than a
    // long round, and `len` is at least a short one.
    unsafe {
        if len >= MIN_LONG {
            copy_long(to, from, len);
        } else {
            copy_short(to, from, len);
        }
    }
}

/// Defines a function that copies in rounds of `$bytes`, through the given registers at the given
/// offsets. The last round ends at the last byte and may overlap the round before it.
macro_rules! by_rounds {
    ($name:ident, $bytes:literal, $(($register:tt, $at:tt)),+) => {
        /// # Safety
        ///
        /// `from` is valid for reads of `len` bytes and `to` for writes, and they do not overlap.
        /// `len` is at least a round. The CPU has AVX, and its vector registers may be used.
        #[inline]
        unsafe fn $name(to: *mut u8, from: *const u8, len: usize) {
            let last = from.wrapping_add(len).wrapping_sub($bytes);
            // SAFETY: Each round reads at `from` and writes at the same offset from `to`. The loop
            // runs while `from` is below `last`, which is one round before the end of the memory;
            // the final round is at `last`. The caller guarantees that the named registers exist
            // and are free.
            unsafe {
                asm!(
                    "2:",
                    $(concat!("vmovdqu ", $register, ", [{from} + ", $at, "]"),)+
                    $(concat!("vmovdqu [{from} + {delta} + ", $at, "], ", $register),)+
                    concat!("add {from}, ", $bytes),
                    "cmp {from}, {last}",
                    "jb 2b",
                    $(concat!("vmovdqu ", $register, ", [{last} + ", $at, "]"),)+
                    $(concat!("vmovdqu [{last} + {delta} + ", $at, "], ", $register),)+
                    "vzeroupper",
                    from = inout(reg) from => _,
                    last = in(reg) last,
                    delta = in(reg) (to as usize).wrapping_sub(from as usize),
                    $(out($register) _,)+
                    options(nostack),
                );
            }
        }
    };
}

by_rounds! { copy_short, 128, ("ymm0", 0), ("ymm1", 32), ("ymm2", 64), ("ymm3", 96) }
by_rounds! {
    copy_long, 256,
    ("ymm0", 0), ("ymm1", 32), ("ymm2", 64), ("ymm3", 96),
    ("ymm4", 128), ("ymm5", 160), ("ymm6", 192), ("ymm7", 224)
}
