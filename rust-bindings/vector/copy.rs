// SPDX-License-Identifier: GPL-2.0

//! A copy by 32 bytes at a time. Nothing here is of the kernel: the tests of the host take this file as
//! it is.

use core::arch::asm;

/// Bytes of a round.
pub(crate) const BLOCK: usize = 128;

/// Copies `len` bytes, at least [`BLOCK`]: whole blocks, and then the last one, which may be partly the same.
///
/// # Safety
///
/// `from` is valid for reads of `len` bytes and `to` for writes, others may use them meanwhile, and they do
/// not overlap. The CPU has AVX, and its vector registers may be used.
#[inline]
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
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
