// SPDX-License-Identifier: GPL-2.0

//! CRC-32 by carry-less multiplication with the AVX forms of the instructions.
//!
//! Data are polynomials over GF(2), whose first bit has the highest degree. 128 bits `H * x^64 + L`
//! can be replaced by `H * (x^(d+64) mod P) + L * (x^d mod P)`, placed `d` bits further on, without
//! changing the remainder. This takes two multiplications of 64 by 64 bits and two additions
//! (exclusive or). Four such accumulators take 64 bytes at a time, and a round does so twice. At
//! the end they are folded into one accumulator and that into 32 bits; the last step multiplies
//! with the inverse of P (Barrett reduction). Less than 64 bytes use one accumulator.
//!
//! Bits are reflected: the lowest bit of a byte comes first, so the lowest bit of a register has
//! the highest degree. The product of two reflected 64-bit numbers contains an extra factor x, so
//! the constants are divided by x.
//!
//! This file does not depend on the kernel: the host tests include it unchanged.

use core::arch::asm;

/// Minimum length.
pub(crate) const MIN_LEN: usize = 16;

/// Bytes that the four accumulators take at a time.
const BLOCK: usize = 64;

/// The multipliers: pairs for the lower half of a register, which has the higher degrees, and for
/// the upper half. A power of x stands for its remainder modulo the polynomial, reflected, in the
/// upper half of the number. (lib/crc/x86/crc-pclmul-consts.h has them, too.)
#[repr(C, align(16))]
struct Constants([[u64; 2]; 5]);

static CONSTANTS: Constants = Constants([
    // Moves an accumulator past the four accumulators: x^(512 + 63), x^511.
    [0x653d_9822_0000_0000, 0xcad3_8e8f_0000_0000],
    // Moves an accumulator to the next one: x^(128 + 63), x^127.
    [0x6567_3b46_0000_0000, 0x9ba5_4c6f_0000_0000],
    // Reduces an accumulator, times x^32, to 96 bits: x^(64 + 31), x^31.
    [0xccaa_009e_0000_0000, 0x0000_0001_0000_0000],
    // Reduces 96 bits to 64: x^63.
    [0xb8bc_6765_0000_0000, 0],
    // Reduces 64 bits to 32: the quotient of x^64 and the polynomial, and the polynomial, reflected
    // in 33 bits.
    [0x1_f701_1641, 0x1_db71_0641],
]);

/// Folds the 16 bytes `$data` into accumulator `$acc`. xmm7 holds the constants.
macro_rules! round {
    ($acc:literal, $data:literal) => {
        concat! {
            "vpclmulqdq xmm6, xmm", $acc, ", xmm7, 0x00\n",
            "vpclmulqdq xmm", $acc, ", xmm", $acc, ", xmm7, 0x11\n",
            "vpxor xmm6, xmm6, ", $data, "\n",
            "vpxor xmm", $acc, ", xmm", $acc, ", xmm6\n",
        }
    };
}

/// Folds one accumulator into the next.
macro_rules! join {
    ($from:literal, $to:literal) => {
        concat! {
            "vpclmulqdq xmm6, xmm", $from, ", xmm7, 0x00\n",
            "vpclmulqdq xmm", $from, ", xmm", $from, ", xmm7, 0x11\n",
            "vpxor xmm", $to, ", xmm", $to, ", xmm6\n",
            "vpxor xmm", $to, ", xmm", $to, ", xmm", $from, "\n",
        }
    };
}

/// Returns the CRC-32, continued from `crc`, of the first `len & !15` bytes. `len` is at least
/// [`MIN_LEN`].
///
/// # Safety
///
/// `src` is valid for reads of `len` bytes, which may change concurrently. `len` is at least
/// [`MIN_LEN`]. The CPU has AVX and PCLMULQDQ, and its vector registers may be used.
#[inline]
pub(crate) unsafe fn crc32(crc: u32, src: *const u8, len: usize) -> u32 {
    let blocks = src.wrapping_add(len & !(BLOCK - 1));
    // End of the last round of two blocks, counted after the first block.
    let rounds = blocks.wrapping_sub((len.wrapping_sub(BLOCK)) & BLOCK);
    let chunks = src.wrapping_add(len & !(MIN_LEN - 1));
    let folded: u64;
    // SAFETY: The code reads the constants and the memory from `src` to `chunks`, which is at most
    // `len` bytes. The caller guarantees that the named registers exist and are free.
    unsafe {
        asm!(
            // If there are at least 64 bytes, the CRC so far (xmm4) is added to the first 16.
            "vmovd xmm4, {crc:e}",
            "cmp {src}, {blocks}",
            "jae 6f",
            "vpxor xmm0, xmm4, [{src}]",
            "vmovdqu xmm1, [{src} + 16]",
            "vmovdqu xmm2, [{src} + 32]",
            "vmovdqu xmm3, [{src} + 48]",
            "vmovdqa xmm7, [{k}]",
            "add {src}, 64",
            "cmp {src}, {rounds}",
            "jae 8f",
            "2:",
            round!("0", "[{src}]"),
            round!("1", "[{src} + 16]"),
            round!("2", "[{src} + 32]"),
            round!("3", "[{src} + 48]"),
            round!("0", "[{src} + 64]"),
            round!("1", "[{src} + 80]"),
            round!("2", "[{src} + 96]"),
            round!("3", "[{src} + 112]"),
            "add {src}, 128",
            "cmp {src}, {rounds}",
            "jb 2b",
            "8:",
            "cmp {src}, {blocks}",
            "jae 3f",
            round!("0", "[{src}]"),
            round!("1", "[{src} + 16]"),
            round!("2", "[{src} + 32]"),
            round!("3", "[{src} + 48]"),
            "add {src}, 64",
            "3:",
            "vmovdqa xmm7, [{k} + 16]",
            join!("0", "1"),
            join!("1", "2"),
            join!("2", "3"),
            "cmp {src}, {chunks}",
            "jae 5f",
            "4:",
            round!("3", "[{src}]"),
            "add {src}, 16",
            "7:",
            "cmp {src}, {chunks}",
            "jb 4b",
            "jmp 5f",
            "6:",
            "vpxor xmm3, xmm4, [{src}]",
            "vmovdqa xmm7, [{k} + 16]",
            "add {src}, 16",
            "jmp 7b",
            "5:",
            "vmovdqa xmm7, [{k} + 32]",
            "vpclmulqdq xmm0, xmm3, xmm7, 0x00",
            "vpclmulqdq xmm1, xmm3, xmm7, 0x11",
            "vpxor xmm0, xmm0, xmm1",
            "vmovdqa xmm7, [{k} + 48]",
            "vpclmulqdq xmm1, xmm0, xmm7, 0x00",
            "vpxor xmm0, xmm0, xmm1",
            // Of these 64 bits, the lower 32 hold the degrees to eliminate.
            "vpextrq {crc}, xmm0, 1",
            "vmovd xmm0, {crc:e}",
            "vmovdqa xmm7, [{k} + 64]",
            "vpclmulqdq xmm0, xmm0, xmm7, 0x00",
            "vmovd {low:e}, xmm0",
            "vmovd xmm0, {low:e}",
            "vpclmulqdq xmm0, xmm0, xmm7, 0x10",
            "vmovq {low}, xmm0",
            "xor {crc}, {low}",
            src = inout(reg) src => _,
            blocks = in(reg) blocks,
            rounds = in(reg) rounds,
            chunks = in(reg) chunks,
            k = in(reg) &raw const CONSTANTS,
            crc = inout(reg) u64::from(crc) => folded,
            low = out(reg) _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            options(nostack),
        );
    }
    (folded >> 32) as u32
}
