// SPDX-License-Identifier: GPL-2.0

//! The vector registers: what of x86-64's to use, and copies by them.
//!
//! C header: `arch/x86/include/asm/fpu/api.h`.

use crate::shared_bytes;
use core::{cell::Cell, marker::PhantomData};

#[cfg(CONFIG_X86_64)]
mod copy;

#[cfg(CONFIG_X86_64)]
mod registers {
    use crate::raw;
    use core::marker::PhantomData;
    use kernel::sync::atomic::{Atomic, Relaxed};

    /// What to use them for, a bit for each: set once.
    static USES: Atomic<u32> = Atomic::new(0);

    const CHECKSUMS: u32 = 1;
    const COPIES: u32 = 2;

    pub(super) fn prepare() {
        let has = |feature: u32| {
            // SAFETY: Reads a bit of the boot CPU's capabilities (asm/cpufeature.h), of which there
            // are as many as the header has numbers for.
            unsafe { raw::shim_boot_cpu_has(feature) }
        };
        let state = 1 << raw::xfeature_XFEATURE_YMM;
        // SAFETY: Without a place for the names of features that are missing, it writes nothing
        // (arch/x86/kernel/fpu/xstate.c).
        let saved = unsafe { raw::cpu_has_xfeatures(state, core::ptr::null_mut()) } != 0;
        let mut uses = 0;
        if saved && has(raw::X86_FEATURE_AVX) {
            // The library's functions for VPCLMULQDQ are faster than ours.
            if has(raw::X86_FEATURE_PCLMULQDQ) && !has(raw::X86_FEATURE_VPCLMULQDQ) {
                uses |= CHECKSUMS;
            }
            // Where there is no fast string instruction, memcpy() goes by 8 bytes
            // (arch/x86/lib/memcpy_64.S).
            if !has(raw::X86_FEATURE_FSRM) {
                uses |= COPIES;
            }
        }
        USES.store(uses, Relaxed);
    }

    /// The right to use the vector registers. Whoever has it does not sleep, nor takes it a second
    /// time, and nothing preempts it.
    pub(crate) struct Registers(PhantomData<*mut ()>);

    impl Registers {
        /// On a CPU with AVX and PCLMULQDQ whose checksums are better made by hand.
        #[inline]
        pub(crate) fn for_checksums() -> Option<Self> {
            Self::take(CHECKSUMS)
        }

        /// On a CPU with AVX whose copies are better made by hand.
        #[inline]
        pub(super) fn for_copies() -> Option<Self> {
            Self::take(COPIES)
        }

        /// The right that [`Vector`](super::Vector) has.
        ///
        /// # Safety
        ///
        /// It was taken, is not given back by anybody else, and this is the CPU that it was taken on.
        #[inline]
        pub(super) unsafe fn held() -> Self {
            Self(PhantomData)
        }

        /// Whether copies are better made by hand.
        #[inline]
        pub(super) fn are_for_copies() -> bool {
            USES.load(Relaxed) & COPIES != 0
        }

        #[inline]
        fn take(uses: u32) -> Option<Self> {
            // SAFETY: Callable in every context but an NMI, where we are not (irq_fpu_usable() in
            // arch/x86/kernel/fpu/core.c); where it says so, the registers may be taken, and are
            // given back on this CPU, since nothing is preempted until then.
            unsafe {
                if USES.load(Relaxed) & uses == 0 || !raw::irq_fpu_usable() {
                    return None;
                }
                raw::shim_kernel_fpu_begin();
            }
            Some(Self(PhantomData))
        }
    }

    impl Drop for Registers {
        #[inline]
        fn drop(&mut self) {
            // SAFETY: Taken by `take`, and not given back since.
            unsafe { raw::kernel_fpu_end() };
        }
    }
}

#[cfg(CONFIG_X86_64)]
pub(crate) use registers::Registers;

/// The vector registers, for work on many pieces: taking them costs as much as a hundred bytes do.
///
/// While they are held nothing else can use them: the kernel's own functions that would, take slower ways. So
/// who holds them neither sends nor wakes anybody, and releases them before. Nor does he sleep.
///
/// # Invariants
///
/// `held` says that this has the right to use the registers, on a CPU whose checksums are better made by hand, and has to give
/// it back.
pub struct Vector {
    held: Cell<bool>,
    /// Of this CPU, and nothing preempts who has them.
    _here: PhantomData<*mut ()>,
}

impl Vector {
    /// What holds nothing.
    #[inline]
    pub const fn new() -> Self {
        Self {
            held: Cell::new(false),
            _here: PhantomData,
        }
    }

    /// Takes them, unless it has them, where they are worth it and can be had. What is done by this works as well without.
    ///
    /// (In a kernel for real time locks sleep, which who holds them must not.)
    #[inline]
    pub fn hold(&self) {
        #[cfg(all(CONFIG_X86_64, not(CONFIG_PREEMPT_RT)))]
        if !self.held.get() {
            if let Some(registers) = Registers::for_checksums() {
                core::mem::forget(registers);
                // INVARIANT: Forgotten, not given back.
                self.held.set(true);
            }
        }
    }

    /// Gives them back.
    #[inline]
    pub fn release(&self) {
        #[cfg(CONFIG_X86_64)]
        if self.held.replace(false) {
            // SAFETY: By the type invariant, which holds again: `held` says so no more.
            drop(unsafe { Registers::held() });
        }
    }

    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        self.held.get()
    }

    /// The least-significant-bit-first CRC-32 of IEEE 802.3 over `bytes`, going on from `crc`: neither the initial nor the final
    /// complement is applied.
    #[inline]
    pub fn crc32_le(&self, crc: u32, bytes: &[u8]) -> u32 {
        // SAFETY: The slice is valid for reads of its length.
        unsafe { crate::crc32::crc32_le_raw(self, crc, bytes.as_ptr(), bytes.len()) }
    }
}

impl Default for Vector {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Vector {
    #[inline]
    fn drop(&mut self) {
        self.release();
    }
}

/// Looks at what the CPU can do. Without it everything works as well, and slower.
pub fn prepare() {
    #[cfg(CONFIG_X86_64)]
    registers::prepare();
}

/// Bytes from which on a copy is worth taking the registers.
#[cfg(CONFIG_X86_64)]
const MANY: usize = 512;

/// Bytes from which on it is where they have been taken.
#[cfg(CONFIG_X86_64)]
const SOME: usize = copy::BLOCK;

/// Copies bytes of memory that others may use meanwhile, in the order of their addresses as far as the
/// last hundred are concerned: a program may look at the last byte to see that all have come.
///
/// # Safety
///
/// `from` is valid for reads of `len` bytes and `to` for writes, and they do not overlap.
#[inline]
pub(crate) unsafe fn copy(vector: &Vector, to: *mut u8, from: *const u8, len: usize) {
    #[cfg(CONFIG_X86_64)]
    if vector.is_held() {
        if len >= SOME && Registers::are_for_copies() {
            // SAFETY: As below; the registers are `vector`'s.
            unsafe { copy::copy(to, from, len) };
            return;
        }
    } else if len >= MANY {
        if let Some(registers) = Registers::for_copies() {
            // SAFETY: The caller promises valid memory, which is more than a block; the registers
            // are ours, and the CPU has them.
            unsafe { copy::copy(to, from, len) };
            drop(registers);
            return;
        }
    }
    // SAFETY: The caller promises valid memory that does not overlap.
    unsafe { shared_bytes::copy(to, from, len) }
}

/// As [`copy`], of bytes that may overlap: a queue pair may write to what it reads from, through another of its device. What
/// becomes of such bytes is nobody's promise.
///
/// # Safety
///
/// `from` is valid for reads of `len` bytes and `to` for writes.
#[inline]
pub(crate) unsafe fn copy_within(vector: &Vector, to: *mut u8, from: *const u8, len: usize) {
    let distance = (to as usize).wrapping_sub(from as usize);
    // SAFETY: The caller promises valid memory; where it is far enough apart, it does not overlap.
    unsafe {
        if distance < len || distance.wrapping_neg() < len {
            shared_bytes::copy_within(to, from, len)
        } else {
            copy(vector, to, from, len)
        }
    }
}

#[kernel::prelude::kunit_tests(linux_rdma_vector)]
mod tests {
    use super::*;
    use kernel::prelude::*;

    #[test]
    fn copies_of_every_length() -> Result {
        prepare();
        let mut from = KVec::from_elem(0u8, 1400, GFP_KERNEL)?;
        for (index, byte) in from.iter_mut().enumerate() {
            *byte = (index * 7 + index / 256) as u8;
        }
        let mut to = KVec::from_elem(0u8, 1400, GFP_KERNEL)?;
        // Half of them with the registers held.
        let vector = Vector::new();
        for len in 100usize..800 {
            if len % 2 == 0 {
                vector.hold();
            } else {
                vector.release();
            }
            let (read, write) = (len % 37, len % 41);
            let bytes = from.get(read..read + len).ok_or(EINVAL)?;
            to.fill(0x5a);
            let place = to.get_mut(write..write + len).ok_or(EINVAL)?;
            // SAFETY: Both are slices of that length.
            unsafe { copy(&vector, place.as_mut_ptr(), bytes.as_ptr(), len) };
            let (before, rest) = to.split_at(write);
            let (place, behind) = rest.split_at(len);
            assert_eq!(place, bytes);
            assert!(before.iter().all(|byte| *byte == 0x5a));
            assert!(behind.iter().all(|byte| *byte == 0x5a));
        }
        Ok(())
    }
}
