// SPDX-License-Identifier: GPL-2.0

//! A copy by 32 bytes at a time. Nothing here is of the kernel: the tests of the host take this file as
//! it is.

use core::arch::asm;

/// Bytes of a round.
pub(crate) const BLOCK: usize = 128;

/// Bytes from which on rounds are twice as long.
const LONG: usize = 1024;

/// Copies `len` bytes, at least [`BLOCK`]: whole blocks, and then the last one, which may be partly the same.
///
/// # Safety
///
/// `from` is valid for reads of `len` bytes and `to` for writes, others may use them meanwhile, and they do
/// not overlap. The CPU has AVX, and its vector registers may be used.
#[inline]
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: As the caller promises; what is long is more than a long round.
    unsafe {
        if len >= LONG {
            copy_long(to, from, len);
        } else {
            copy_short(to, from, len);
        }
    }
}

/// A function that copies whole rounds, and then the last one, which may be partly the same: of so many bytes, by these
/// registers at these places.
macro_rules! by_rounds {
    ($name:ident, $bytes:literal, $(($register:tt, $at:tt)),+) => {
        /// # Safety
        ///
        /// As [`copy`]; `len` is at least a round.
        #[inline]
        unsafe fn $name(to: *mut u8, from: *const u8, len: usize) {
            let last = from.wrapping_add(len).wrapping_sub($bytes);
            // SAFETY: A round is read from `from` on and written as far from `to`: in the loop while that
            // is before the last one, which ends where the memory does, and then that one. It uses the registers
            // that it names, which the caller says exist and are free.
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

by_rounds!(
    copy_short,
    128,
    ("ymm0", 0),
    ("ymm1", 32),
    ("ymm2", 64),
    ("ymm3", 96)
);
by_rounds!(
    copy_long,
    256,
    ("ymm0", 0),
    ("ymm1", 32),
    ("ymm2", 64),
    ("ymm3", 96),
    ("ymm4", 128),
    ("ymm5", 160),
    ("ymm6", 192),
    ("ymm7", 224)
);
