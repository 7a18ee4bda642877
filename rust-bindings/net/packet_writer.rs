// SPDX-License-Identifier: GPL-2.0

//! A writer for packet memory.

use super::Fragment;
use crate::{crc32, shared_bytes};
use core::{marker::PhantomData, ptr::NonNull, slice};
use kernel::prelude::*;

/// Memory that is written once, from start to end. It need not be initialised.
///
/// # Invariants
///
/// `start` is valid for writes of `len` bytes for `'a`, and nothing else uses these bytes. The
/// first `filled` of them are initialised, and `filled` is at most `len`.
pub struct PacketWriter<'a> {
    start: *mut u8,
    filled: usize,
    len: usize,
    /// The state of a checksum, and the offset from which on it covers the bytes; at most `filled`.
    sum: Option<(u32, usize)>,
    _memory: PhantomData<&'a mut [u8]>,
}

impl<'a> PacketWriter<'a> {
    /// Has `fill` write `len` bytes. Those that it does not write become zero.
    ///
    /// # Safety
    ///
    /// `start` is valid for writes of `len` bytes during the call, and nothing else uses these
    /// bytes.
    #[inline]
    pub(super) unsafe fn write<E>(
        start: NonNull<u8>,
        len: usize,
        fill: impl FnOnce(&mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        // INVARIANT: The caller guarantees that the memory is valid and unshared; no byte is
        // filled.
        let mut writer = Self {
            start: start.as_ptr(),
            filled: 0,
            len,
            sum: None,
            _memory: PhantomData,
        };
        let result = fill(&mut writer);
        // This cannot fail: exactly these bytes are left.
        let _ = writer.push_zeros(writer.left());
        result
    }

    /// Returns the number of bytes not yet written.
    #[inline]
    pub(crate) fn left(&self) -> usize {
        self.len.saturating_sub(self.filled)
    }

    /// Returns the bytes written so far.
    #[inline]
    fn filled(&self) -> &[u8] {
        // SAFETY: By the type invariant, these bytes are initialised; writing requires `&mut self`.
        unsafe { slice::from_raw_parts(self.start, self.filled) }
    }

    /// Starts a checksum of all bytes appended from now on. It continues from `crc`: see
    /// [`crc32::crc32_le`].
    #[inline]
    pub fn start_sum(&mut self, crc: u32) {
        self.sum = Some((crc, self.filled));
    }

    /// Ends the checksum and returns its value over all bytes since [`start_sum`](Self::start_sum).
    /// Returns 0 if none was started.
    #[inline]
    pub fn end_sum(&mut self) -> u32 {
        let Some((crc, start)) = self.sum.take() else {
            return 0;
        };
        let covered = self.filled().get(start..);
        crc32::crc32_le(crc, covered.unwrap_or_default())
    }

    /// Appends the bytes of a header or a trailer. Returns `EMSGSIZE` if fewer bytes are left.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) -> Result {
        if bytes.len() > self.left() {
            return Err(EMSGSIZE);
        }
        // SAFETY: By the type invariant, the memory after the filled bytes has space for `bytes`,
        // and nothing else uses it.
        unsafe {
            let to = self.start.add(self.filled);
            to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        // INVARIANT: The copy has initialised these bytes.
        self.filled = self.filled.wrapping_add(bytes.len());
        Ok(())
    }

    /// Appends the bytes of a fragment, which may change during the copy. Returns `EMSGSIZE` if
    /// fewer bytes are left.
    #[inline]
    pub(crate) fn push_fragment(&mut self, from: &Fragment<'_>) -> Result {
        let (source, len) = (from.as_ptr(), from.len());
        if len > self.left() {
            return Err(EMSGSIZE);
        }
        // SAFETY: By the type invariant, nothing else uses the `len` bytes after the filled ones.
        // The fragment is valid for reads; any value is a valid byte.
        unsafe { shared_bytes::copy_payload(self.start.add(self.filled), source, len) };
        // INVARIANT: The copy has initialised these bytes.
        self.filled = self.filled.wrapping_add(len);
        Ok(())
    }

    /// Appends zeros. Returns `EMSGSIZE` if fewer than `len` bytes are left.
    #[inline]
    pub fn push_zeros(&mut self, len: usize) -> Result {
        if len > self.left() {
            return Err(EMSGSIZE);
        }
        // SAFETY: By the type invariant, nothing else uses the `len` bytes after the filled ones.
        unsafe { self.start.add(self.filled).write_bytes(0, len) };
        // INVARIANT: These bytes were initialised just above.
        self.filled = self.filled.wrapping_add(len);
        Ok(())
    }
}
