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
//! A copy reads each byte once: others may change them meanwhile. It goes by 16 bytes, though there are registers of 32: where
//! QEMU emulates these, by those of its host, the multiplications that follow take thirty times as long.
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
        i = i.wrapping_add(1);
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
    let mut i = 0u32;
    while i <= 32 {
        let bit = (rest >> 32) & 1;
        // The first bit of the quotient is that of x^32, which is the lowest reflected.
        quotient |= bit << i;
        if bit != 0 {
            rest ^= divisor;
        }
        rest <<= 1;
        i = i.wrapping_add(1);
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

/// The 16 bytes `$data`, into accumulator `$acc`; xmm7 has the constants.
macro_rules! round {
    ($acc:literal, $data:literal) => {
        concat!(
            "vpclmulqdq xmm6, xmm",
            $acc,
            ", xmm7, 0x00\n",
            "vpclmulqdq xmm",
            $acc,
            ", xmm",
            $acc,
            ", xmm7, 0x11\n",
            "vpxor xmm6, xmm6, ",
            $data,
            "\n",
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

/// A copy of the 16 bytes at `$at`, into accumulator `$acc`.
macro_rules! copy_round {
    ($acc:literal, $at:literal) => {
        concat!(copy!($at), round!($acc, "xmm5"))
    };
}

/// A copy of the 16 bytes at `$at`, by way of xmm5.
macro_rules! copy {
    ($at:literal) => {
        concat!(
            "vmovdqu xmm5, [{src} + ",
            $at,
            "]\n",
            "vmovdqu [{src} + {delta} + ",
            $at,
            "], xmm5\n",
        )
    };
}

/// The whole of it. `$first` takes 64 bytes to begin with, where there are as many: the CRC so far, which is in xmm4, is added to
/// the first of them. `$block` and `$next` take 64 bytes each, `$one` 16; and `$only` begins with 16.
macro_rules! fold {
    (
        $crc:ident, $src:ident, $len:ident,
        first: $first:expr, block: $block:expr, next: $next:expr, one: $one:expr, only: $only:expr,
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
            $first,
            "vmovdqa xmm7, [{k}]",
            "add {src}, 64",
            "cmp {src}, {rounds}",
            "jae 8f",
            "2:",
            $block,
            $next,
            "add {src}, 128",
            "cmp {src}, {rounds}",
            "jb 2b",
            "8:",
            "cmp {src}, {blocks}",
            "jae 3f",
            $block,
            "add {src}, 64",
            "3:",
            "vmovdqa xmm7, [{k} + 16]",
            join!("0", "1"),
            join!("1", "2"),
            join!("2", "3"),
            "cmp {src}, {chunks}",
            "jae 5f",
            "4:",
            $one,
            "add {src}, 16",
            "7:",
            "cmp {src}, {chunks}",
            "jb 4b",
            "jmp 5f",
            "6:",
            $only,
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
            src = inout(reg) $src => _,
            blocks = in(reg) blocks,
            rounds = in(reg) rounds,
            chunks = in(reg) chunks,
            k = in(reg) &raw const CONSTANTS,
            crc = inout(reg) u64::from($crc) => crc,
            low = out(reg) _,
            $($operand)*
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
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
    unsafe {
        fold!(
            crc, src, len,
            first: "vpxor xmm0, xmm4, [{src}]\n\
                vmovdqu xmm1, [{src} + 16]\n\
                vmovdqu xmm2, [{src} + 32]\n\
                vmovdqu xmm3, [{src} + 48]",
            block: concat!(
                round!("0", "[{src}]"),
                round!("1", "[{src} + 16]"),
                round!("2", "[{src} + 32]"),
                round!("3", "[{src} + 48]"),
            ),
            next: concat!(
                round!("0", "[{src} + 64]"),
                round!("1", "[{src} + 80]"),
                round!("2", "[{src} + 96]"),
                round!("3", "[{src} + 112]"),
            ),
            one: round!("3", "[{src}]"),
            only: "vpxor xmm3, xmm4, [{src}]",
        )
    }
}

/// The same, of the bytes that it copies, each of which is read once.
///
/// # Safety
///
/// As [`crc32`]; `dst` is valid for writes of `len` bytes, and nobody else uses these.
#[inline]
pub(crate) unsafe fn crc32_copy(crc: u32, dst: *mut u8, src: *const u8, len: usize) -> u32 {
    // SAFETY: As in `crc32`; what is read at `src` is written as far from `dst`.
    unsafe {
        fold!(
            crc, src, len,
            first: concat!(
                copy!("0"),
                "vpxor xmm0, xmm4, xmm5\n",
                copy!("16"),
                "vmovdqa xmm1, xmm5\n",
                copy!("32"),
                "vmovdqa xmm2, xmm5\n",
                copy!("48"),
                "vmovdqa xmm3, xmm5\n",
            ),
            block: concat!(
                copy_round!("0", "0"),
                copy_round!("1", "16"),
                copy_round!("2", "32"),
                copy_round!("3", "48"),
            ),
            next: concat!(
                copy_round!("0", "64"),
                copy_round!("1", "80"),
                copy_round!("2", "96"),
                copy_round!("3", "112"),
            ),
            one: copy_round!("3", "0"),
            only: concat!(copy!("0"), "vpxor xmm3, xmm4, xmm5"),
            delta = in(reg) (dst as usize).wrapping_sub(src as usize),
        )
    }
}
