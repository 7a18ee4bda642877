// SPDX-License-Identifier: GPL-2.0

//! The vector registers: what of x86-64's to use, and copies by them.
//!
//! C header: `arch/x86/include/asm/fpu/api.h`.

use core::ptr;

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

/// Looks at what the CPU can do. Without it everything works as well, and slower.
pub fn prepare() {
    #[cfg(CONFIG_X86_64)]
    registers::prepare();
}

/// Bytes from which on a copy is worth taking the registers.
#[cfg(CONFIG_X86_64)]
const MANY: usize = 512;

/// Copies bytes of memory that others may use meanwhile, in the order of their addresses as far as the
/// last hundred are concerned: a program may look at the last byte to see that all have come.
///
/// # Safety
///
/// `from` is valid for reads of `len` bytes and `to` for writes, and they do not overlap.
#[inline]
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    #[cfg(CONFIG_X86_64)]
    if len >= MANY {
        if let Some(registers) = Registers::for_copies() {
            // SAFETY: The caller promises valid memory, which is more than a block; the registers
            // are ours, and the CPU has them.
            unsafe { copy::copy(to, from, len) };
            drop(registers);
            return;
        }
    }
    // SAFETY: The caller promises valid memory. Whatever is copied are bytes.
    unsafe { ptr::copy_nonoverlapping(from, to, len) }
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
        for len in 500usize..800 {
            let (read, write) = (len % 37, len % 41);
            let bytes = from.get(read..read + len).ok_or(EINVAL)?;
            to.fill(0x5a);
            let place = to.get_mut(write..write + len).ok_or(EINVAL)?;
            // SAFETY: Both are slices of that length.
            unsafe { copy(place.as_mut_ptr(), bytes.as_ptr(), len) };
            let (before, rest) = to.split_at(write);
            let (place, behind) = rest.split_at(len);
            assert_eq!(place, bytes);
            assert!(before.iter().all(|byte| *byte == 0x5a));
            assert!(behind.iter().all(|byte| *byte == 0x5a));
        }
        Ok(())
    }
}
