// SPDX-License-Identifier: GPL-2.0

//! Bytes that are kept for a moment, in a block of the memory that packets are made of.

use super::{blocks, Fragment, Room};
use crate::vector::Vector;
use core::ptr::NonNull;
use kernel::prelude::*;

/// Up to 32 KiB, which are appended piece by piece, and read where they are. It takes no memory before there is something in
/// it.
///
/// # Invariants
///
/// `block` is from `blocks::take`, its reference is ours, and nobody else uses it. Its first `used` bytes are initialised.
pub struct Pocket {
    block: Option<NonNull<u8>>,
    used: usize,
}

// SAFETY: It is memory, which belongs to no thread.
unsafe impl Send for Pocket {}

impl Pocket {
    /// An empty one.
    #[inline]
    pub const fn new() -> Self {
        Self {
            block: None,
            used: 0,
        }
    }

    /// Appends `len` bytes, which `fill` writes; what it leaves out is zero. Returns where they begin. Where `fill` fails,
    /// nothing is appended. Any context.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE`: there is no room for as many. `ENOMEM`.
    #[inline]
    pub fn append<E>(
        &mut self,
        len: usize,
        vector: &Vector,
        fill: impl FnOnce(&mut Room<'_>) -> Result<(), E>,
    ) -> Result<Result<usize, E>> {
        if len > blocks::SIZE.saturating_sub(self.used) {
            return Err(EMSGSIZE);
        }
        let block = match self.block {
            Some(block) => block,
            None => {
                // INVARIANT: Taken just now, for us.
                let block = blocks::take()?;
                self.block = Some(block);
                block
            }
        };
        let start = self.used;
        // SAFETY: It is ours by the type invariant, and has `len` bytes behind the used ones.
        let mut room = unsafe { Room::new(block.as_ptr().add(start), len, vector) };
        let result = fill(&mut room);
        room.finish();
        // INVARIANT: `finish` has written what was not.
        Ok(result.map(|()| {
            self.used = start.wrapping_add(len);
            start
        }))
    }

    /// `len` of its bytes, from byte `start` on. `None` where there are not as many.
    #[inline]
    pub fn fragment<'a>(
        &'a self,
        start: usize,
        len: usize,
        vector: &'a Vector,
    ) -> Option<Fragment<'a>> {
        let block = self.block?;
        let inside = start.checked_add(len).is_some_and(|end| end <= self.used);
        // SAFETY: These bytes are inside the block, are initialised, and stay as they are while we
        // are borrowed, by the type invariant.
        inside.then(|| unsafe { Fragment::new(block.as_ptr().add(start), len, vector) })
    }
}

impl Default for Pocket {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Pocket {
    #[inline]
    fn drop(&mut self) {
        if let Some(block) = self.block {
            // SAFETY: From `take`, and the reference is ours, by the type invariant.
            unsafe { blocks::give_back(block) };
        }
    }
}

#[kernel::prelude::kunit_tests(linux_rdma_pocket)]
mod tests {
    use super::*;
    use crate::sync::BhGuard;

    /// What was put in is found where it was said to be; what failed leaves nothing, and what is too much is refused.
    #[test]
    fn bytes_stay_where_they_are() -> Result {
        let _guard = BhGuard::new();
        let vector = Vector::new();
        let mut pocket = Pocket::new();
        let mut starts = KVec::new();
        for number in 0..7u8 {
            let filled = pocket.append(4096, &vector, |room| room.push(&[number; 4000]))?;
            starts.push(filled?, GFP_ATOMIC)?;
            let failed = pocket.append(8, &vector, |_| Err::<(), Error>(EIO))?;
            assert!(failed.is_err());
        }
        assert!(pocket
            .append(4097, &vector, |_| Ok::<(), Error>(()))
            .is_err());
        for (number, start) in starts.iter().enumerate() {
            let mut bytes = [0xff; 4096 - 3990];
            let fragment = pocket.fragment(*start + 3990, bytes.len(), &vector);
            fragment.ok_or(EIO)?.copy_to(&mut bytes)?;
            assert_eq!(bytes.get(..10), Some([number as u8; 10].as_slice()));
            assert!(bytes.iter().skip(10).all(|byte| *byte == 0));
        }
        assert!(pocket.fragment(7 * 4096 - 1, 2, &vector).is_none());
        assert!(pocket.fragment(usize::MAX, 2, &vector).is_none());
        Ok(())
    }
}
