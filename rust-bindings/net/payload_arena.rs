// SPDX-License-Identifier: GPL-2.0

//! Temporary storage of bytes in a block of packet memory.

use super::{blocks, Fragment, PacketWriter};
use core::ptr::NonNull;
use kernel::prelude::*;

/// A buffer of up to 32 KiB. Callers append pieces and read them in place. It allocates no memory
/// before the first append.
///
/// # Invariants
///
/// `block` was returned by `blocks::take`, `self` owns its reference, and nothing else uses it. Its
/// first `used` bytes are initialised.
#[derive(Default)]
pub struct PayloadArena {
    block: Option<NonNull<u8>>,
    used: usize,
}

// SAFETY: It owns plain memory, which belongs to no thread.
unsafe impl Send for PayloadArena {}

impl PayloadArena {
    /// Appends `len` bytes that `fill` writes, and returns their offset. Bytes that it does not
    /// write are zero. If `fill` fails, nothing is appended. Returns `EMSGSIZE` if fewer than `len`
    /// bytes are left. Any context.
    #[inline]
    pub fn append<E>(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut PacketWriter<'_>) -> Result<(), E>,
    ) -> Result<Result<usize, E>> {
        if len > blocks::SIZE.saturating_sub(self.used) {
            return Err(EMSGSIZE);
        }
        let block = match self.block {
            Some(block) => block,
            // INVARIANT: `take` has returned the block with a reference for `self`; no bytes are
            // used.
            None => *self.block.insert(blocks::take()?),
        };
        let start = self.used;
        // SAFETY: By the type invariant, `self` owns the block, which has `len` bytes after the
        // used ones.
        let result = unsafe { PacketWriter::write(block.add(start), len, fill) };
        // INVARIANT: `write` has initialised all `len` bytes.
        Ok(result.map(|()| {
            self.used = start.wrapping_add(len);
            start
        }))
    }

    /// Returns `len` bytes from offset `start` on, or `None` if there are fewer.
    #[inline]
    pub fn fragment(&self, start: usize, len: usize) -> Option<Fragment<'_>> {
        let block = self.block?;
        let inside = start.checked_add(len).is_some_and(|end| end <= self.used);
        // SAFETY: By the type invariant, these bytes are inside the block and initialised. They do
        // not change while `self` is borrowed.
        inside.then(|| unsafe { Fragment::new(block.as_ptr().add(start), len) })
    }
}

impl Drop for PayloadArena {
    #[inline]
    fn drop(&mut self) {
        if let Some(block) = self.block {
            // SAFETY: By the type invariant, the block came from `take`, and `self` owns its
            // reference.
            unsafe { blocks::put(block) };
        }
    }
}

#[kernel::prelude::kunit_tests(linux_rdma_payload_arena)]
mod tests {
    use super::*;
    use crate::sync::BhGuard;

    /// Appended bytes stay at the offset that was returned. A failed or excessive append changes
    /// nothing.
    #[test]
    fn bytes_stay_where_they_are() -> Result {
        let _guard = BhGuard::new();
        let mut arena = PayloadArena::default();
        let mut starts = KVec::new();
        for number in 0..7u8 {
            let filled = arena.append(4096, |writer| writer.push(&[number; 4000]))?;
            starts.push(filled?, GFP_ATOMIC)?;
            let failed = arena.append(8, |_| Err::<(), Error>(EIO))?;
            assert!(failed.is_err());
        }
        assert!(arena.append(4097, |_| Ok::<(), Error>(())).is_err());
        for (number, start) in starts.iter().enumerate() {
            let mut bytes = [0xff; 4096 - 3990];
            let fragment = arena.fragment(*start + 3990, bytes.len());
            fragment.ok_or(EIO)?.copy_to(&mut bytes)?;
            assert_eq!(bytes.get(..10), Some([number as u8; 10].as_slice()));
            assert!(bytes.iter().skip(10).all(|byte| *byte == 0));
        }
        assert!(arena.fragment(7 * 4096 - 1, 2).is_none());
        assert!(arena.fragment(usize::MAX, 2).is_none());
        Ok(())
    }
}
