// SPDX-License-Identifier: GPL-2.0

//! Memory of a packet that is being written.

use core::{marker::PhantomData, slice};
use kernel::prelude::*;

/// Memory that is written from its start to its end, once. It need not be initialised before.
///
/// # Invariants
///
/// `start` is valid for writes of `len` bytes for `'a`, and nobody else uses these. The first
/// `filled` of them are initialised, and `filled` is at most `len`.
pub struct Room<'a> {
    start: *mut u8,
    filled: usize,
    len: usize,
    _memory: PhantomData<&'a mut [u8]>,
}

impl Room<'_> {
    /// A room that is all empty.
    ///
    /// # Safety
    ///
    /// `start` is valid for writes of `len` bytes as long as the room exists, and nobody else uses
    /// them.
    #[inline]
    pub(crate) unsafe fn new(start: *mut u8, len: usize) -> Self {
        // INVARIANT: As the caller promises; nothing is filled.
        Self {
            start,
            filled: 0,
            len,
            _memory: PhantomData,
        }
    }

    /// Bytes that are still empty.
    #[inline]
    pub fn left(&self) -> usize {
        self.len - self.filled
    }

    /// What has been written.
    #[inline]
    pub fn filled(&self) -> &[u8] {
        // SAFETY: Initialised by the type invariant, and written to by `&mut self` alone.
        unsafe { slice::from_raw_parts(self.start, self.filled) }
    }

    /// Appends bytes.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE`: there are not as many left.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) -> Result {
        // SAFETY: The slice is valid for reads of its length.
        unsafe { self.push_raw(bytes.as_ptr(), bytes.len()) }
    }

    /// Appends bytes of memory that others may write to meanwhile.
    ///
    /// # Errors
    ///
    /// As [`push`](Self::push).
    ///
    /// # Safety
    ///
    /// `source` is valid for reads of `len` bytes.
    #[inline]
    pub(crate) unsafe fn push_raw(&mut self, source: *const u8, len: usize) -> Result {
        if len > self.left() {
            return Err(EMSGSIZE);
        }
        // SAFETY: There is room for `len` bytes behind the filled ones, which nobody else uses
        // (type invariant). Whatever is copied are bytes.
        unsafe {
            self.start
                .add(self.filled)
                .copy_from_nonoverlapping(source, len)
        };
        // INVARIANT: These are initialised now.
        self.filled += len;
        Ok(())
    }

    /// Appends zeros.
    ///
    /// # Errors
    ///
    /// As [`push`](Self::push).
    #[inline]
    pub fn push_zeros(&mut self, len: usize) -> Result {
        if len > self.left() {
            return Err(EMSGSIZE);
        }
        // SAFETY: There is room for `len` bytes, as in `push_raw`.
        unsafe { self.start.add(self.filled).write_bytes(0, len) };
        // INVARIANT: These are initialised now.
        self.filled += len;
        Ok(())
    }

    /// Writes zeros to what is left.
    #[inline]
    pub(crate) fn finish(mut self) {
        let left = self.left();
        // There is as much room.
        let _ = self.push_zeros(left);
    }
}
