// SPDX-License-Identifier: GPL-2.0

//! CRC-32 by carry-less multiplication with AVX's forms of the instructions, and a copy on the way.
//!
//! What it does and why it is right: data are polynomials over GF(2), the first bit that of the
//! highest degree. 128 bits `H * x^64 + L` may be replaced, `d` bits further on, by
//! `H * (x^(d+64) mod P) + L * (x^d mod P)` without a change of the remainder, which two
//! multiplications of 64 by 64 bits and two additions (exclusive or) do. Four such accumulators take
//! 64 bytes at a time, and two such times are a round; at the end they are folded into one, and that into 32 bits, the last step by
//! multiplication with the inverse of P (Barrett). Less than 64 bytes take one accumulator.
//!
//! A copy goes by 32 bytes, and what is summed up is what was written: that nobody else changes.
//!
//! Bits are reflected: the lowest bit of a byte comes first, so the lowest bit of a register has the
//! highest degree. The product of two reflected numbers of 64 bits comes out as if it had been
//! multiplied by x once more; the constants have one x less for that.
//!
//! Nothing here is of the kernel: the tests of the host take this file as it is.

use core::arch::asm;

/// Bytes that it takes at least.
pub(crate) const LEAST: usize = 16;

/// Bytes that four accumulators take.
const BLOCK: usize = 64;

/// The polynomial, without its highest term, reflected.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// x^n modulo the polynomial, reflected, in the upper half of a word.
const fn power(n: u32) -> u64 {
    // x^0
    let mut value = 1u32 << 31;
    let mut i = 0;
    while i < n {
        // Times x: degrees grow towards the lowest bit.
        let carry = value & 1;
        value >>= 1;
        if carry != 0 {
            value ^= POLYNOMIAL;
        }
        i += 1;
    }
    (value as u64) << 32
}

/// The quotient of x^64 by the polynomial, reflected in 33 bits.
const fn inverse() -> u64 {
    // Long division. Degrees downwards from 64, the polynomial being of degree 32: a step for each bit
    // of the quotient. `rest` holds the 33 highest degrees of what is left, unreflected.
    let divisor = (1u64 << 32) | POLYNOMIAL.reverse_bits() as u64;
    let mut rest = 1u64 << 32;
    let mut quotient = 0u64;
    let mut i = 0;
    while i <= 32 {
        let bit = (rest >> 32) & 1;
        // The first bit of the quotient is that of x^32, which is the lowest reflected.
        quotient |= bit << i;
        if bit != 0 {
            rest ^= divisor;
        }
        rest <<= 1;
        i += 1;
    }
    quotient
}

/// What is multiplied by: pairs for the lower half of a register, of the higher degrees, and for the
/// upper half.
#[repr(C, align(16))]
struct Constants {
    /// Across four accumulators.
    by_512: [u64; 2],
    /// From one to the next.
    by_128: [u64; 2],
    /// An accumulator, times x^32, to 96 bits.
    to_96: [u64; 2],
    /// 96 bits to 64.
    to_64: [u64; 2],
    /// 64 bits to 32: the inverse, and the polynomial, of 33 bits both.
    to_32: [u64; 2],
}

static CONSTANTS: Constants = Constants {
    by_512: [power(512 + 64 - 1), power(512 - 1)],
    by_128: [power(128 + 64 - 1), power(128 - 1)],
    to_96: [power(64 + 32 - 1), power(32 - 1)],
    to_64: [power(64 - 1), 0],
    to_32: [inverse(), ((POLYNOMIAL as u64) << 1) | 1],
};

/// The 16 bytes at `$at` of `$data`, into accumulator `$acc`; xmm7 has the constants.
macro_rules! round {
    ($acc:literal, $data:literal, $at:literal) => {
        concat!(
            "vpclmulqdq xmm6, xmm",
            $acc,
            ", xmm7, 0x00\n",
            "vpclmulqdq xmm",
            $acc,
            ", xmm",
            $acc,
            ", xmm7, 0x11\n",
            "vpxor xmm6, xmm6, [",
            $data,
            " + ",
            $at,
            "]\n",
            "vpxor xmm",
            $acc,
            ", xmm",
            $acc,
            ", xmm6\n",
        )
    };
}

/// Folds an accumulator into the next one.
macro_rules! join {
    ($from:literal, $to:literal) => {
        concat!(
            "vpclmulqdq xmm6, xmm",
            $from,
            ", xmm7, 0x00\n",
            "vpclmulqdq xmm",
            $from,
            ", xmm",
            $from,
            ", xmm7, 0x11\n",
            "vpxor xmm",
            $to,
            ", xmm",
            $to,
            ", xmm6\n",
            "vpxor xmm",
            $to,
            ", xmm",
            $to,
            ", xmm",
            $from,
            "\n",
        )
    };
}

/// 64 bytes, from `$a` on.
macro_rules! rounds {
    ($data:literal, $a:literal, $b:literal, $c:literal, $d:literal) => {
        concat!(
            round!("0", $data, $a),
            round!("1", $data, $b),
            round!("2", $data, $c),
            round!("3", $data, $d),
        )
    };
}

/// The whole of it: of what is at `$data`, after `$take` has put 64 bytes at `{src}` there, `$take_next` the 64 behind them, or
/// `$take_one` 16.
macro_rules! fold {
    (
        $crc:ident, $src:ident, $len:ident, $data:literal,
        take: $take:expr, take_next: $take_next:expr, take_one: $take_one:expr,
        $($operand:tt)*
    ) => {{
        let blocks = $src.wrapping_add($len & !(BLOCK - 1));
        // Where the last round of two blocks ends, of those behind the first block.
        let rounds = blocks.wrapping_sub(($len.wrapping_sub(BLOCK)) & BLOCK);
        let chunks = $src.wrapping_add($len & !(LEAST - 1));
        let crc: u64;
        asm!(
            "vmovd xmm4, {crc:e}",
            "cmp {src}, {blocks}",
            "jae 6f",
            $take,
            concat!("vpxor xmm0, xmm4, [", $data, "]"),
            concat!("vmovdqu xmm1, [", $data, " + 16]"),
            concat!("vmovdqu xmm2, [", $data, " + 32]"),
            concat!("vmovdqu xmm3, [", $data, " + 48]"),
            "vmovdqa xmm7, [{k}]",
            "add {src}, 64",
            "cmp {src}, {rounds}",
            "jae 8f",
            "2:",
            $take,
            rounds!($data, "0", "16", "32", "48"),
            $take_next,
            rounds!($data, "64", "80", "96", "112"),
            "add {src}, 128",
            "cmp {src}, {rounds}",
            "jb 2b",
            "8:",
            "cmp {src}, {blocks}",
            "jae 3f",
            $take,
            rounds!($data, "0", "16", "32", "48"),
            "add {src}, 64",
            "3:",
            "vmovdqa xmm7, [{k} + 16]",
            join!("0", "1"),
            join!("1", "2"),
            join!("2", "3"),
            "cmp {src}, {chunks}",
            "jae 5f",
            "4:",
            $take_one,
            round!("3", $data, "0"),
            "add {src}, 16",
            "7:",
            "cmp {src}, {chunks}",
            "jb 4b",
            "jmp 5f",
            "6:",
            $take_one,
            concat!("vpxor xmm3, xmm4, [", $data, "]"),
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
            // 64 bits, of which the lower 32 have the degrees to get rid of.
            "vpextrq {crc}, xmm0, 1",
            "vmovd xmm0, {crc:e}",
            "vmovdqa xmm7, [{k} + 64]",
            "vpclmulqdq xmm0, xmm0, xmm7, 0x00",
            "vmovd {low:e}, xmm0",
            "vmovd xmm0, {low:e}",
            "vpclmulqdq xmm0, xmm0, xmm7, 0x10",
            "vmovq {low}, xmm0",
            "xor {crc}, {low}",
            "vzeroupper",
            src = inout(reg) $src => _,
            blocks = in(reg) blocks,
            rounds = in(reg) rounds,
            chunks = in(reg) chunks,
            k = in(reg) &raw const CONSTANTS,
            crc = inout(reg) u64::from($crc) => crc,
            low = out(reg) _,
            $($operand)*
            out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _,
            out("ymm4") _, out("ymm5") _, out("ymm6") _, out("ymm7") _,
            options(nostack),
        );
        (crc >> 32) as u32
    }};
}

/// CRC-32, going on from `crc`, over the first `len & !15` bytes, at least [`LEAST`].
///
/// # Safety
///
/// `src` is valid for reads of `len` bytes; others may write to them meanwhile. The CPU has AVX and
/// PCLMULQDQ, and its vector registers may be used.
#[inline]
pub(crate) unsafe fn crc32(crc: u32, src: *const u8, len: usize) -> u32 {
    // SAFETY: Reads from `src` to `chunks`, which is no more than `len` bytes, and the constants; writes
    // to the registers that it names, which the caller says exist and are free.
    unsafe { fold!(crc, src, len, "{src}", take: "", take_next: "", take_one: "",) }
}

/// The same, of the bytes that it copies, each of which is read once.
///
/// # Safety
///
/// As [`crc32`]; `dst` is valid for writes of `len` bytes, and nobody else uses these.
#[inline]
pub(crate) unsafe fn crc32_copy(crc: u32, dst: *mut u8, src: *const u8, len: usize) -> u32 {
    // SAFETY: As in `crc32`; what is read at `src` is written as far from `dst`, and read there again.
    unsafe {
        fold!(
            crc, src, len, "{src} + {delta}",
            take: "vmovdqu ymm5, [{src}]\n\
                vmovdqu ymm6, [{src} + 32]\n\
                vmovdqu [{src} + {delta}], ymm5\n\
                vmovdqu [{src} + {delta} + 32], ymm6",
            take_next: "vmovdqu ymm5, [{src} + 64]\n\
                vmovdqu ymm6, [{src} + 96]\n\
                vmovdqu [{src} + {delta} + 64], ymm5\n\
                vmovdqu [{src} + {delta} + 96], ymm6",
            take_one: "vmovdqu xmm5, [{src}]\n\
                vmovdqu [{src} + {delta}], xmm5",
            delta = in(reg) (dst as usize).wrapping_sub(src as usize),
        )
    }
}
