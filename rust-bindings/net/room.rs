// SPDX-License-Identifier: GPL-2.0

//! Memory of a packet that is being written.

use crate::{
    crc32,
    vector::{self, Vector},
};
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
    sum: Option<Sum>,
    /// What copies and sums are made with.
    vector: &'a Vector,
    _memory: PhantomData<&'a mut [u8]>,
}

/// A checksum of what is written.
struct Sum {
    crc: u32,
    /// Up to where it goes: all from there on is still to be summed up. At most `filled`.
    end: usize,
}

impl<'a> Room<'a> {
    /// A room that is all empty.
    ///
    /// # Safety
    ///
    /// `start` is valid for writes of `len` bytes as long as the room exists, and nobody else uses
    /// them.
    #[inline]
    pub(crate) unsafe fn new(start: *mut u8, len: usize, vector: &'a Vector) -> Self {
        // INVARIANT: As the caller promises; nothing is filled.
        Self {
            start,
            filled: 0,
            len,
            sum: None,
            vector,
            _memory: PhantomData,
        }
    }

    /// Bytes that are still empty.
    #[inline]
    pub fn left(&self) -> usize {
        self.len.saturating_sub(self.filled)
    }

    /// What has been written.
    #[inline]
    pub fn filled(&self) -> &[u8] {
        // SAFETY: Initialised by the type invariant, and written to by `&mut self` alone.
        unsafe { slice::from_raw_parts(self.start, self.filled) }
    }

    /// Starts a checksum of all that is appended from now on, going on from `crc`: see
    /// [`Vector::crc32_le`].
    #[inline]
    pub fn start_sum(&mut self, crc: u32) {
        let end = self.filled;
        self.sum = Some(Sum { crc, end });
    }

    /// The checksum, of everything since [`start_sum`](Self::start_sum). It ends; 0 where there is none.
    #[inline]
    pub fn end_sum(&mut self) -> u32 {
        let Some(Sum { crc, end }) = self.sum.take() else {
            return 0;
        };
        match self.filled().get(end..) {
            // A copy has summed up everything.
            None | Some([]) => crc,
            Some(rest) => self.vector.crc32_le(crc, rest),
        }
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
        // What is summed up where it is copied is read once; small pieces are summed up together.
        let sum = match self.sum {
            Some(_) if len >= crc32::SOME => Some(self.end_sum()),
            _ => None,
        };
        // SAFETY: There is room for `len` bytes behind the filled ones, which nobody else uses
        // (type invariant). Whatever is copied are bytes.
        unsafe {
            let to = self.start.add(self.filled);
            match sum {
                Some(crc) => {
                    let crc = crc32::copy_raw(self.vector, crc, to, source, len);
                    let end = self.filled.wrapping_add(len);
                    self.sum = Some(Sum { crc, end });
                }
                None => vector::copy(self.vector, to, source, len),
            }
        }
        // INVARIANT: These are initialised now.
        self.filled = self.filled.wrapping_add(len);
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
        self.filled = self.filled.wrapping_add(len);
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
