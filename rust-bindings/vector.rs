// SPDX-License-Identifier: GPL-2.0

//! Use of the x86-64 vector registers, and copies with them.
//!
//! C header: `arch/x86/include/asm/fpu/api.h`.

use crate::{raw, shared_bytes};
use core::{cell::Cell, marker::PhantomData};
#[cfg(CONFIG_X86)]
use kernel::sync::atomic::{Atomic, Relaxed};

#[cfg(CONFIG_X86)]
mod copy;

/// Uses for which the registers are worthwhile, one bit each. Set once. If there is any, the CPU
/// has AVX and PCLMULQDQ.
#[cfg(CONFIG_X86)]
static USES: Atomic<u32> = Atomic::new(0);
/// This crate's checksums are faster than the library's.
#[cfg(CONFIG_X86)]
pub(crate) const CHECKSUMS: u32 = 1;
/// This crate's copies are faster than memcpy().
#[cfg(CONFIG_X86)]
const COPIES: u32 = 2;

/// Detects the CPU's features. Without this call everything works, but more slowly.
pub fn prepare() {
    #[cfg(CONFIG_X86)]
    {
        let ymm = 1 << raw::xfeature_XFEATURE_YMM;
        // SAFETY: The boot CPU's capabilities have a bit for each feature number of the header
        // (asm/cpufeature.h). With a null pointer for feature names, cpu_has_xfeatures()
        // (arch/x86/kernel/fpu/xstate.c) writes nothing.
        let (has, saved) = unsafe {
            (
                |feature: u32| raw::shim_boot_cpu_has(feature),
                raw::cpu_has_xfeatures(ymm, core::ptr::null_mut()) != 0,
            )
        };
        if saved && has(raw::X86_FEATURE_AVX) && has(raw::X86_FEATURE_PCLMULQDQ) {
            let mut uses = 0;
            // With VPCLMULQDQ, the library's functions are faster than those of this crate.
            if !has(raw::X86_FEATURE_VPCLMULQDQ) {
                uses |= CHECKSUMS;
            }
            // Without fast string instructions, memcpy() copies 8 bytes at a time
            // (arch/x86/lib/memcpy_64.S).
            if !has(raw::X86_FEATURE_FSRM) {
                uses |= COPIES;
            }
            USES.store(uses, Relaxed);
        }
    }
}

/// The vector registers, held across several pieces of work. Taking them costs about as much as
/// processing a hundred bytes.
///
/// While they are held, nothing else on this CPU can use them: other kernel functions fall back to
/// slower code. The owner is not preempted. It must release the registers before it sends packets
/// or wakes tasks, and it must not sleep.
///
/// # Invariants
///
/// If `held` is true, `self` owns the permission to use the registers and must release it, and the
/// CPU has AVX and PCLMULQDQ.
#[derive(Default)]
pub struct Vector {
    #[cfg_attr(not(CONFIG_X86), expect(dead_code))]
    held: Cell<bool>,
    /// Not `Send`: the permission is bound to this CPU.
    _here: PhantomData<*mut ()>,
}

impl Vector {
    /// Takes the registers, unless `self` holds them, if they are useful and available. All
    /// functions that take a `Vector` also work without the registers.
    ///
    /// Does nothing with PREEMPT_RT, whose spin locks sleep, because the owner must not sleep.
    #[inline]
    pub fn hold(&self) {
        #[cfg(all(CONFIG_X86, not(CONFIG_PREEMPT_RT)))]
        if !self.held.get() {
            self.take(CHECKSUMS);
        }
    }

    /// Takes the registers if they are worthwhile for this use, and available. Returns whether it
    /// did.
    #[cfg(CONFIG_X86)]
    #[inline]
    pub(crate) fn take(&self, use_: u32) -> bool {
        // SAFETY: irq_fpu_usable() (arch/x86/kernel/fpu/core.c) may be called in any context but an
        // NMI, and this is not called from one. If it returns true, the registers are free and may
        // be taken. They are released on this CPU, because taking them disables preemption.
        unsafe {
            if USES.load(Relaxed) & use_ == 0 || !raw::irq_fpu_usable() {
                return false;
            }
            raw::shim_kernel_fpu_begin();
        }
        // INVARIANT: The permission was taken just above, and `prepare` has found the features.
        self.held.set(true);
        true
    }

    /// Releases the registers if they are held.
    #[inline]
    pub fn release(&self) {
        #[cfg(CONFIG_X86)]
        if self.held.replace(false) {
            // SAFETY: `held` was true, so `self` owned the permission (type invariant).
            unsafe { raw::kernel_fpu_end() };
        }
    }

    #[inline]
    #[cfg(CONFIG_X86)]
    pub(crate) fn is_held(&self) -> bool {
        self.held.get()
    }

    /// Returns the least-significant-bit-first CRC-32 of IEEE 802.3 over `bytes`, continued from
    /// `crc`. Applies neither the initial nor the final complement.
    #[inline]
    pub fn crc32_le(&self, crc: u32, bytes: &[u8]) -> u32 {
        // SAFETY: The slice is valid for reads of its length.
        unsafe { crate::crc32::crc32_le(self, crc, bytes.as_ptr(), bytes.len()) }
    }
}

impl Drop for Vector {
    #[inline]
    fn drop(&mut self) {
        self.release();
    }
}

/// Minimum length for which a copy takes the registers.
#[cfg(CONFIG_X86)]
const MIN_COPY: usize = 512;

/// Copies bytes of memory that may be used concurrently. The last hundred bytes are written in
/// ascending address order, because a program may poll the last byte to detect that all have
/// arrived.
///
/// # Safety
///
/// `from` is valid for reads of `len` bytes and `to` for writes, and they do not overlap.
#[inline]
#[cfg_attr(not(CONFIG_X86), expect(unused_variables))]
pub(crate) unsafe fn copy(vector: &Vector, to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: The caller guarantees valid memory that does not overlap. It is at least a block for
    // `copy::copy`, and `vector` or `own` holds the registers, so the CPU has AVX.
    unsafe {
        #[cfg(CONFIG_X86)]
        {
            let own = Vector::default();
            let has_registers = if vector.is_held() {
                len >= copy::BLOCK && USES.load(Relaxed) & COPIES != 0
            } else {
                len >= MIN_COPY && own.take(COPIES)
            };
            if has_registers {
                return copy::copy(to, from, len);
            }
        }
        shared_bytes::copy(to, from, len);
    }
}

/// Copies bytes of memory that may be used concurrently and may overlap. They overlap if a queue
/// pair writes to memory that it also reads, through another queue pair of its device. The contents
/// of overlapping bytes are unspecified.
///
/// # Safety
///
/// `from` is valid for reads of `len` bytes and `to` for writes.
#[inline]
pub(crate) unsafe fn copy_within(vector: &Vector, to: *mut u8, from: *const u8, len: usize) {
    let distance = (to as usize).wrapping_sub(from as usize);
    // SAFETY: The caller guarantees valid memory. If the distance is at least `len` in both
    // directions, it does not overlap; otherwise `memmove()` (include/linux/string.h) accepts it.
    unsafe {
        if distance < len || distance.wrapping_neg() < len {
            raw::memmove(to.cast(), from.cast(), len);
        } else {
            copy(vector, to, from, len);
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
        // Even lengths are copied with the registers held.
        let vector = Vector::default();
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
            // SAFETY: Both slices have `len` bytes and do not overlap.
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
