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
    // SAFETY: As the caller promises; these are more than two blocks.
    unsafe {
        if len >= LONG {
            copy_long(to, from, len);
        } else {
            copy_short(to, from, len);
        }
    }
}

/// The same, a block in a round.
///
/// # Safety
///
/// As [`copy`].
#[inline]
unsafe fn copy_short(to: *mut u8, from: *const u8, len: usize) {
    let last = from.wrapping_add(len).wrapping_sub(BLOCK);
    // SAFETY: A round reads a block from `from` on and writes it as far from `to`: in the loop while that
    // is before the last block, which ends where the memory does, and then that one. It uses the registers
    // that it names, which the caller says exist and are free.
    unsafe {
        asm!(
            "2:",
            "vmovdqu ymm0, [{from}]",
            "vmovdqu ymm1, [{from} + 32]",
            "vmovdqu ymm2, [{from} + 64]",
            "vmovdqu ymm3, [{from} + 96]",
            "vmovdqu [{from} + {delta}], ymm0",
            "vmovdqu [{from} + {delta} + 32], ymm1",
            "vmovdqu [{from} + {delta} + 64], ymm2",
            "vmovdqu [{from} + {delta} + 96], ymm3",
            "add {from}, 128",
            "cmp {from}, {last}",
            "jb 2b",
            "vmovdqu ymm0, [{last}]",
            "vmovdqu ymm1, [{last} + 32]",
            "vmovdqu ymm2, [{last} + 64]",
            "vmovdqu ymm3, [{last} + 96]",
            "vmovdqu [{last} + {delta}], ymm0",
            "vmovdqu [{last} + {delta} + 32], ymm1",
            "vmovdqu [{last} + {delta} + 64], ymm2",
            "vmovdqu [{last} + {delta} + 96], ymm3",
            "vzeroupper",
            from = inout(reg) from => _,
            last = in(reg) last,
            delta = in(reg) (to as usize).wrapping_sub(from as usize),
            out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _,
            options(nostack),
        );
    }
}

/// The same, two blocks in a round; `len` is at least two blocks.
///
/// # Safety
///
/// As [`copy`].
#[inline]
unsafe fn copy_long(to: *mut u8, from: *const u8, len: usize) {
    let last = from.wrapping_add(len).wrapping_sub(2 * BLOCK);
    // SAFETY: As in `copy_short`, with two blocks for one.
    unsafe {
        asm!(
            "2:",
            "vmovdqu ymm0, [{from}]",
            "vmovdqu ymm1, [{from} + 32]",
            "vmovdqu ymm2, [{from} + 64]",
            "vmovdqu ymm3, [{from} + 96]",
            "vmovdqu ymm4, [{from} + 128]",
            "vmovdqu ymm5, [{from} + 160]",
            "vmovdqu ymm6, [{from} + 192]",
            "vmovdqu ymm7, [{from} + 224]",
            "vmovdqu [{from} + {delta}], ymm0",
            "vmovdqu [{from} + {delta} + 32], ymm1",
            "vmovdqu [{from} + {delta} + 64], ymm2",
            "vmovdqu [{from} + {delta} + 96], ymm3",
            "vmovdqu [{from} + {delta} + 128], ymm4",
            "vmovdqu [{from} + {delta} + 160], ymm5",
            "vmovdqu [{from} + {delta} + 192], ymm6",
            "vmovdqu [{from} + {delta} + 224], ymm7",
            "add {from}, 256",
            "cmp {from}, {last}",
            "jb 2b",
            "vmovdqu ymm0, [{last}]",
            "vmovdqu ymm1, [{last} + 32]",
            "vmovdqu ymm2, [{last} + 64]",
            "vmovdqu ymm3, [{last} + 96]",
            "vmovdqu ymm4, [{last} + 128]",
            "vmovdqu ymm5, [{last} + 160]",
            "vmovdqu ymm6, [{last} + 192]",
            "vmovdqu ymm7, [{last} + 224]",
            "vmovdqu [{last} + {delta}], ymm0",
            "vmovdqu [{last} + {delta} + 32], ymm1",
            "vmovdqu [{last} + {delta} + 64], ymm2",
            "vmovdqu [{last} + {delta} + 96], ymm3",
            "vmovdqu [{last} + {delta} + 128], ymm4",
            "vmovdqu [{last} + {delta} + 160], ymm5",
            "vmovdqu [{last} + {delta} + 192], ymm6",
            "vmovdqu [{last} + {delta} + 224], ymm7",
            "vzeroupper",
            from = inout(reg) from => _,
            last = in(reg) last,
            delta = in(reg) (to as usize).wrapping_sub(from as usize),
            out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _,
            out("ymm4") _, out("ymm5") _, out("ymm6") _, out("ymm7") _,
            options(nostack),
        );
    }
}
