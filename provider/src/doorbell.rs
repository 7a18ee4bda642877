// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Doorbells: a `POST_SEND` or `POST_RECV` command without work requests tells the kernel to look
//! at a queue pair's ring.
//!
//! Doorbells are written to the uverbs file, which is the shortest path into the kernel. A process
//! that changed its credentials after it opened the device cannot use that path; for it the
//! provider calls libibverbs' functions, which use the longer ioctl path.
//!
//! A program that posts in a stream skips most doorbells: the kernel looks at the ring by itself,
//! though later. The context remembers the queue pair whose doorbell was deferred, and rings it
//! when the program begins to wait, that is, when it finds no completion or requests an event.
//!
//! In poll mode the send ring itself says whether the kernel must be called; it need not be while
//! the polling thread is awake.

use crate::completion_queue::CompletionQueue;
use crate::context;
use crate::cq::Cq;
use crate::ffi::command::{self, PostDoorbell};
use crate::ffi::driver::{ibv_cmd_post_recv, ibv_cmd_post_send};
use crate::ffi::os;
use crate::ffi::verbs::{IbvContext, IbvQp};
use crate::qp::{public, Qp};
use crate::send_queue::Published;
use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};

/// The queue of a pair that the kernel should look at.
#[derive(Clone, Copy)]
pub(crate) enum Queue {
    /// The send queue.
    Send,
    /// The receive queue.
    Receive,
}

/// Rings the doorbell of a queue pair. Fails with the kernel's error.
///
/// # Safety
///
/// `qp` is a queue pair of an open rrxe device.
pub(crate) unsafe fn ring(qp: *mut IbvQp, queue: Queue) -> Result<(), c_int> {
    // SAFETY: the caller's contract.
    let (cmd_fd, qp_handle) = unsafe { ((*(*qp).context).cmd_fd, (*qp).handle) };
    match by_write(cmd_fd, qp_handle, queue) {
        // SAFETY: the caller's contract.
        Err(os::EACCES) => unsafe { by_ioctl(qp, queue) },
        result => result,
    }
}

/// Rings the doorbell by a write to the uverbs file. Fails with the kernel's error, which is
/// `EACCES` if the process may not use this path.
fn by_write(cmd_fd: c_int, qp_handle: u32, queue: Queue) -> Result<(), c_int> {
    let (command, wqe_size) = match queue {
        Queue::Send => (command::POST_SEND, command::SEND_WR_SIZE),
        Queue::Receive => (command::POST_RECV, command::RECV_WR_SIZE),
    };
    let mut bad_wr: u32 = 0;
    let doorbell = PostDoorbell {
        command,
        in_words: command::POST_DOORBELL_WORDS,
        out_words: 1,
        response: &raw mut bad_wr as u64,
        qp_handle,
        wr_count: 0,
        sge_count: 0,
        wqe_size,
    };
    // SAFETY: the command is complete, and its response goes to `bad_wr`.
    unsafe { os::write_command(cmd_fd, &doorbell) }
}

/// Rings the doorbell by ioctl.
///
/// # Safety
///
/// `qp` is a queue pair of an open rrxe device.
#[cold]
unsafe fn by_ioctl(qp: *mut IbvQp, queue: Queue) -> Result<(), c_int> {
    let none = core::ptr::null_mut();
    // SAFETY: the caller's contract. An empty list is allowed.
    let error = unsafe {
        match queue {
            Queue::Send => ibv_cmd_post_send(qp, none, &mut core::ptr::null_mut()),
            Queue::Receive => {
                ibv_cmd_post_recv(qp, core::ptr::null_mut(), &mut core::ptr::null_mut())
            }
        }
    };
    if error == 0 {
        Ok(())
    } else {
        Err(error)
    }
}

/// The queue pair of a context whose doorbell was deferred. All zeros means none.
#[repr(transparent)]
pub(crate) struct DeferredDoorbell(AtomicU64);

/// Marks an entry as valid: the handle of a queue pair may be 0.
const VALID: u64 = 1 << 32;

impl DeferredDoorbell {
    /// Defers the doorbell of the queue pair `handle`. Returns the queue pair whose doorbell was
    /// deferred before, if it is another one.
    fn defer(&self, handle: u32) -> Option<u32> {
        let new = VALID | u64::from(handle);
        if self.0.load(Ordering::Relaxed) == new {
            // The thread that rings the deferred doorbell has not called the kernel yet. A fence
            // has been executed since the entries were published, so the kernel will see them.
            return None;
        }
        let old = self.0.swap(new, Ordering::SeqCst);
        (old != 0 && old != new).then_some(old as u32)
    }

    /// Forgets the deferred doorbell of the queue pair `handle`, which has called the kernel.
    fn forget(&self, handle: u32) {
        let it = VALID | u64::from(handle);
        if self.0.load(Ordering::Relaxed) == it {
            let _ = self
                .0
                .compare_exchange(it, 0, Ordering::SeqCst, Ordering::Relaxed);
        }
    }

    /// Takes the queue pair whose doorbell was deferred. The caller must ring it.
    fn take(&self) -> Option<u32> {
        if self.0.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let old = self.0.swap(0, Ordering::SeqCst);
        (old != 0).then_some(old as u32)
    }
}

/// Returns whether a program may be waiting for the published work requests: the peer's consumer
/// (solicited), a consumer that has requested an event, or one that signals only the last of
/// several work requests. A consumer that signals every work request and polls rings the deferred
/// doorbell when it finds no completion.
#[inline]
fn is_waited_for<'a>(
    published: Published,
    completions: impl FnOnce() -> Option<&'a CompletionQueue>,
) -> bool {
    let armed = || completions().is_some_and(|queue| queue.ring().is_armed());
    published.is_solicited() || published.ends_group() || published.is_signaled() && armed()
}

/// Notifies the kernel of published send work requests: at once, or by a deferred doorbell if the
/// program posts in a stream. Fails with the kernel's error.
///
/// # Safety
///
/// `qp` is a queue pair of an open rrxe device.
#[inline]
pub(crate) unsafe fn notify(qp: &Qp, published: Published) -> Result<(), c_int> {
    let public = public(qp);
    // SAFETY: the caller's contract.
    if unsafe { context::is_polled((*public).context) } {
        return if qp.sq.ring().wants_doorbell() {
            // SAFETY: the caller's contract.
            unsafe { ring(public, Queue::Send) }
        } else {
            Ok(())
        };
    }
    // SAFETY: the caller's contract. The completion queue, if there is one, outlives the queue
    // pair.
    let completions = || unsafe {
        let cq = (*public).send_cq;
        (!cq.is_null()).then(|| &Cq::of(cq).queue)
    };
    let now =
        qp.sq.ring().needs_doorbell(published.counter) || is_waited_for(published, completions);
    // SAFETY: the caller's contract.
    let (context, handle) = unsafe { ((*public).context, (*public).handle) };
    // SAFETY: the caller's contract.
    let Some(deferred) = (unsafe { context::deferred_doorbell(context) }) else {
        return Ok(());
    };
    if now {
        deferred.forget(handle);
        // SAFETY: the caller's contract.
        return unsafe { ring(public, Queue::Send) };
    }
    if let Some(other) = deferred.defer(handle) {
        // SAFETY: the caller's contract.
        ring_by_handle(unsafe { (*context).cmd_fd }, other);
    }
    Ok(())
}

/// Rings the deferred doorbell of the context, if there is one. Called when the program is about to
/// wait.
///
/// # Safety
///
/// `context` is an open rrxe device, or null.
#[inline]
pub(crate) unsafe fn ring_deferred(context: *mut IbvContext) {
    // SAFETY: the caller's contract.
    let deferred = unsafe { context::deferred_doorbell(context) };
    if let Some(handle) = deferred.and_then(DeferredDoorbell::take) {
        // SAFETY: the caller's contract, and the context is not null.
        ring_by_handle(unsafe { (*context).cmd_fd }, handle);
    }
}

/// Rings a deferred doorbell. The queue pair may be gone. Errors are ignored because the kernel
/// will look at the ring by itself, only later.
#[cold]
fn ring_by_handle(cmd_fd: c_int, handle: u32) {
    let _ = by_write(cmd_fd, handle, Queue::Send);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{self, wr_opcode, SendWqe};
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
            queue.close();
            for _ in all {
                send_queue::tests::take(&queue, counter);
                counter = counter.wrapping_add(1);
            }
            is_waited_for(published, || Some(&completions))
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
        let deferred = DeferredDoorbell(AtomicU64::new(0));
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
