// SPDX-License-Identifier: GPL-2.0

//! Temporary storage of bytes.

use super::{Fragment, PacketWriter};
use core::ptr::NonNull;
use kernel::{alloc::flags::__GFP_NOWARN, prelude::*};

/// Maximum number of bytes. The memory for them may be twice as large, 32 KiB.
const SIZE: usize = 16 << 10;

/// A buffer of up to 16 KiB. Callers append pieces and read them in place. Its memory grows with
/// the pieces, because the kernel may clear all memory that it allocates.
#[derive(Default)]
pub struct PayloadArena(KVec<u8>);

impl PayloadArena {
    /// Appends `len` bytes that `fill` writes, and returns their offset. Bytes that it does not
    /// write are zero. If `fill` fails, nothing is appended. Any context.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE`: fewer than `len` bytes are left. `ENOMEM`. The inner result is that of `fill`.
    #[inline]
    pub fn append<E>(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut PacketWriter<'_>) -> Result<(), E>,
    ) -> Result<Result<usize, E>> {
        let start = self.0.len();
        if len > SIZE.saturating_sub(start) {
            return Err(EMSGSIZE);
        }
        self.0.reserve(len, GFP_ATOMIC | __GFP_NOWARN)?;
        let to = NonNull::from(self.0.spare_capacity_mut()).cast();
        // SAFETY: The vector has capacity for `len` more bytes, which nothing else uses, and which
        // `write` initialises.
        let result = unsafe { PacketWriter::write(to, len, fill) };
        if result.is_ok() {
            // SAFETY: As above.
            unsafe { self.0.inc_len(len) };
        }
        Ok(result.map(|()| start))
    }

    /// Returns `len` bytes from offset `start` on, or `None` if there are fewer.
    #[inline]
    pub fn fragment(&self, start: usize, len: usize) -> Option<Fragment<'_>> {
        let end = start.checked_add(len)?;
        self.0.get(start..end).map(Fragment::of)
    }
}

#[kernel::prelude::kunit_tests(linux_rdma_payload_arena)]
mod tests {
    use super::*;

    /// Appended bytes stay at the offset that was returned. A failed or excessive append changes
    /// nothing.
    #[test]
    fn bytes_stay_where_they_are() -> Result {
        let mut arena = PayloadArena::default();
        let mut starts = KVec::new();
        for number in 0..3u8 {
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
        assert!(arena.fragment(3 * 4096 - 1, 2).is_none());
        assert!(arena.fragment(usize::MAX, 2).is_none());
        Ok(())
    }
}
