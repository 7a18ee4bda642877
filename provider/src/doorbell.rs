// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Doorbells: `POST_SEND` or `POST_RECV` with no work request in it tells the kernel to look at a
//! queue pair's ring.
//!
//! They are written to the uverbs file as they are, the shortest way into the kernel. That way is
//! closed to a process that changed its credentials after it opened the device; for it there is
//! the longer way by ioctl, which libibverbs' functions take.

use crate::ffi::command::{self, PostDoorbell};
use crate::ffi::driver::{ibv_cmd_post_recv, ibv_cmd_post_send};
use crate::ffi::os;
use crate::ffi::verbs::IbvQp;
use core::ffi::c_int;

/// Which queue of the pair to look at.
#[derive(Clone, Copy)]
pub(crate) enum Queue {
    /// The send queue.
    Send,
    /// The receive queue.
    Receive,
}

/// Rings for a queue pair. Errors: what the kernel answers.
///
/// # Safety
///
/// `qp` is a queue pair of an open rrxe device.
pub(crate) unsafe fn ring(qp: *mut IbvQp, queue: Queue) -> Result<(), c_int> {
    let (command, wqe_size) = match queue {
        Queue::Send => (command::POST_SEND, command::SEND_WR_SIZE),
        Queue::Receive => (command::POST_RECV, command::RECV_WR_SIZE),
    };
    let mut bad_wr: u32 = 0;
    // SAFETY: the caller's contract.
    let (cmd_fd, qp_handle) = unsafe { ((*(*qp).context).cmd_fd, (*qp).handle) };
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
    match unsafe { os::write_command(cmd_fd, &doorbell) } {
        // SAFETY: the caller's contract.
        Err(os::EACCES) => unsafe { by_ioctl(qp, queue) },
        result => result,
    }
}

/// The longer way.
///
/// # Safety
///
/// As for [`ring`].
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
