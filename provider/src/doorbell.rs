// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Doorbells: a `POST_SEND` or `POST_RECV` command without work requests makes the kernel
//! check a queue pair's ring.
//!
//! Doorbells of send queues are written to the uverbs file, which is the shortest path into the
//! kernel. A process that changed its credentials after it opened the device, or that has imported
//! the context of another process, cannot use that path; for it, and for the rare doorbells of
//! receive queues, the provider calls libibverbs' functions, which use the longer ioctl path.
//!
//! A send ring has an event index, as the rings of virtio have: the kernel writes the producer
//! counter that requires the next doorbell. If a program posts in a stream, the kernel moves the
//! index ahead and checks the ring on its own, though later. So the context records the queue pair
//! that has published entries without a doorbell, and rings for it when the program begins to wait:
//! when it finds no completion or requests an event.
//!
//! In poll mode a flag of the ring says whether the kernel must be called; it need not be while the
//! polling thread is awake.

use crate::abi;
use crate::ffi::command::{self, PostDoorbell};
use crate::ffi::driver::{ibv_cmd_post_recv, ibv_cmd_post_send};
use crate::ffi::os::{self, check};
use crate::ffi::ptr::Ptr;
use crate::ffi::verbs::IbvQp;
use crate::ring::Ring;
use crate::send_queue::Published;
use core::ffi::c_int;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The doorbells of a context.
pub(crate) struct Doorbells {
    /// The uverbs file.
    cmd_fd: c_int,
    /// Poll mode: while its polling thread is awake, the kernel checks send queues on its own.
    polled: bool,
    /// The kernel has refused a write to the uverbs file, so that each doorbell is an ioctl. None
    /// is deferred then, because a deferred one has only a handle.
    is_write_refused: AtomicBool,
    /// The handle of the queue pair whose doorbell was deferred, and [`VALID`]; 0 means none.
    deferred: AtomicU64,
}

/// Marks a handle as valid: it may be 0.
const VALID: u64 = 1 << 32;

impl Doorbells {
    /// Creates the doorbells of a context.
    pub(crate) const fn new(cmd_fd: c_int, polled: bool) -> Self {
        Self {
            cmd_fd,
            polled,
            is_write_refused: AtomicBool::new(false),
            deferred: AtomicU64::new(0),
        }
    }

    /// Returns the uverbs file of the context.
    pub(crate) fn cmd_fd(&self) -> c_int {
        self.cmd_fd
    }

    /// Rings the doorbell of the send queue of a queue pair of this context. Fails with the
    /// kernel's error.
    fn ring(&self, qp: Ptr<IbvQp>, handle: u32) -> Result<(), c_int> {
        let written = match self.is_write_refused.load(Ordering::Relaxed) {
            true => Err(os::EACCES),
            false => self.by_write(handle),
        };
        match written {
            // SAFETY: the list of work requests is empty, which is allowed.
            Err(os::EACCES) => check(unsafe { ibv_cmd_post_send(qp, null_mut(), &mut null_mut()) }),
            result => result,
        }
    }

    /// Rings the doorbell of a send queue by a write to the uverbs file. Fails with the kernel's
    /// error, which is `EACCES` if the process may not use this path.
    fn by_write(&self, qp_handle: u32) -> Result<(), c_int> {
        let mut bad_wr: u32 = 0;
        let size = size_of::<PostDoorbell>();
        let doorbell = PostDoorbell {
            command: command::POST_SEND,
            in_words: (size / 4) as u16,
            out_words: 1,
            response: &raw mut bad_wr as u64,
            qp_handle,
            wr_count: 0,
            sge_count: 0,
            wqe_size: command::SEND_WR_SIZE,
        };
        // SAFETY: the command is readable for its size, and complete; its response goes to
        // `bad_wr`. The kernel accepts it as a whole (`ib_uverbs_write`).
        match unsafe { os::write(self.cmd_fd, (&raw const doorbell).cast(), size) } {
            0.. => Ok(()),
            _ => {
                let error = os::errno();
                if error == os::EACCES {
                    self.is_write_refused.store(true, Ordering::Relaxed);
                }
                Err(error)
            }
        }
    }

    /// Notifies the kernel of published send work requests: immediately, or by a deferred
    /// doorbell if the program posts in a stream. `is_armed` returns whether an event of the
    /// completion queue is requested. Fails with the kernel's error.
    #[inline]
    pub(crate) fn notify(
        &self,
        qp: Ptr<IbvQp>,
        ring: &Ring,
        published: Published,
        is_armed: impl FnOnce() -> bool,
    ) -> Result<(), c_int> {
        // SAFETY: the queue pair is alive, and nothing writes its handle after creation.
        let handle = unsafe { (*qp.as_ptr()).handle };
        if self.polled {
            return if ring.wants_doorbell() {
                self.ring(qp, handle)
            } else {
                Ok(())
            };
        }
        if ring.needs_doorbell(published.counter)
            || is_waited_for(published, is_armed)
            || self.is_write_refused.load(Ordering::Relaxed)
        {
            self.forget(handle);
            return self.ring(qp, handle);
        }
        if let Some(other) = self.defer(handle) {
            self.ring_by_handle(other);
        }
        Ok(())
    }

    /// Rings the deferred doorbell, if there is one. Called when the program is about to wait.
    #[inline]
    pub(crate) fn ring_deferred(&self) {
        if let Some(handle) = self.take() {
            self.ring_by_handle(handle);
        }
    }

    /// Rings a deferred doorbell. The queue pair may be gone. Errors are ignored because the kernel
    /// will check the ring on its own, only later.
    #[cold]
    fn ring_by_handle(&self, handle: u32) {
        let _ = self.by_write(handle);
    }

    /// Defers the doorbell of the queue pair `handle`. Returns the queue pair whose doorbell was
    /// deferred before, if it is another one.
    fn defer(&self, handle: u32) -> Option<u32> {
        let new = VALID | u64::from(handle);
        if self.deferred.load(Ordering::Relaxed) == new {
            // The thread that rings the deferred doorbell has not called the kernel yet. A fence
            // has been executed since the entries were published, so the kernel will see them.
            return None;
        }
        let old = self.deferred.swap(new, Ordering::SeqCst);
        (old != 0 && old != new).then_some(old as u32)
    }

    /// Forgets the deferred doorbell of the queue pair `handle`, which has called the kernel.
    fn forget(&self, handle: u32) {
        let it = VALID | u64::from(handle);
        if self.deferred.load(Ordering::Relaxed) == it {
            let _ = self
                .deferred
                .compare_exchange(it, 0, Ordering::SeqCst, Ordering::Relaxed);
        }
    }

    /// Takes the queue pair whose doorbell was deferred. The caller must ring it.
    fn take(&self) -> Option<u32> {
        if self.deferred.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let old = self.deferred.swap(0, Ordering::SeqCst);
        (old != 0).then_some(old as u32)
    }
}

/// Rings the doorbell of the receive queue of a queue pair. Fails with the kernel's error.
#[cold]
pub(crate) fn ring_recv(qp: Ptr<IbvQp>) -> Result<(), c_int> {
    // SAFETY: the list of work requests is empty, which is allowed.
    check(unsafe { ibv_cmd_post_recv(qp, null_mut(), &mut null_mut()) })
}

/// Returns whether a program may be waiting for the published work requests: the peer's consumer
/// (solicited), a consumer that has requested an event, or one that signals only the last of
/// several work requests. A consumer that signals every work request and polls rings the deferred
/// doorbell when it finds no completion.
#[inline]
fn is_waited_for(published: Published, is_armed: impl FnOnce() -> bool) -> bool {
    let Published { flags, .. } = published;
    let signaled = flags & abi::WQE_SIGNALED != 0;
    flags & abi::WQE_SOLICITED != 0 || signaled && (!published.follows_signaled || is_armed())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{wr_opcode, SendWqe};
    use crate::{completion_queue, send_queue};

    #[test]
    fn waiting_programs_need_doorbells() {
        let (queue, completions) = (
            send_queue::tests::queue(),
            completion_queue::tests::queue(4),
        );
        let mut counter: u32 = 0;
        let mut waits = |all: &[u8]| {
            let mut batch = queue.open(0);
            for &flags in all {
                let wqe = SendWqe {
                    opcode: wr_opcode::SEND,
                    flags,
                    ..SendWqe::default()
                };
                assert!(batch.push(wqe).is_ok());
            }
            let published = batch.publish().unwrap();
            for _ in all {
                send_queue::tests::take(&queue, counter);
                counter = counter.wrapping_add(1);
            }
            is_waited_for(published, || completions.ring().is_armed())
        };
        let (signaled, solicited) = (abi::WQE_SIGNALED, abi::WQE_SOLICITED);
        // A batch in which one of several work requests is signaled, then batches in which each is.
        assert!(!waits(&[0]) && waits(&[signaled]) && !waits(&[signaled, 0]));
        assert!(!waits(&[signaled]) && !waits(&[0, 0]) && waits(&[0, signaled]));
        assert!(waits(&[solicited]) && waits(&[solicited, 0]) && !waits(&[0]));
        completions.arm(abi::ARM_ANY);
        assert!(waits(&[signaled]) && waits(&[signaled, 0]) && !waits(&[0, 0]));
        completions.ring().disarm();
        assert!(waits(&[signaled]) && !waits(&[signaled]));
    }

    #[test]
    fn one_doorbell_is_deferred() {
        let deferred = Doorbells::new(-1, false);
        assert_eq!(deferred.take(), None);
        assert_eq!(deferred.defer(0), None);
        assert_eq!(deferred.defer(0), None);
        assert_eq!(deferred.take(), Some(0));
        assert_eq!(deferred.take(), None);
        // If a second queue pair defers a doorbell, the first one's is rung at once.
        assert_eq!(deferred.defer(7), None);
        assert_eq!(deferred.defer(u32::MAX), Some(7));
        deferred.forget(7);
        assert_eq!(deferred.take(), Some(u32::MAX));
        assert_eq!(deferred.defer(7), None);
        deferred.forget(7);
        assert_eq!(deferred.take(), None);
    }
}
