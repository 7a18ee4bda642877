// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Completion queues: create, poll, arm, resize, destroy.

use crate::abi;
use crate::completion_queue::{to_wc, CompletionQueue, STRIDE};
use crate::context;
use crate::cpu_yield;
use crate::cq_ex;
use crate::doorbell;
use crate::ffi::driver::{
    ibv_cmd_create_cq, ibv_cmd_destroy_cq, ibv_cmd_req_notify_cq, ibv_cmd_resize_cq, VerbsCq,
};
use crate::ffi::os::{EINVAL, EOPNOTSUPP};
use crate::ffi::verbs::*;
use crate::ffi::{command, pabi};
use crate::memlock;
use crate::object;
use crate::ring::Ring;
use core::cell::UnsafeCell;
use core::ffi::c_int;

/// Name of the object in messages.
const WHAT: &str = "a completion queue";

/// A completion queue.
#[repr(C)]
pub(crate) struct Cq {
    /// Public part, which libibverbs and the consumer write to.
    pub(crate) verbs: UnsafeCell<VerbsCq>,
    /// Part shared with the kernel.
    pub(crate) queue: CompletionQueue,
    /// The completion that the extended poll functions have reached. Used between `start_poll` and
    /// `end_poll`, under the queue's lock.
    pub(crate) current: UnsafeCell<abi::Cqe>,
}

impl Cq {
    /// Creates a completion queue that the kernel does not know yet.
    ///
    /// Fails with `EINVAL` if `cqe` is 0 or more than `max_cqe`, or with `ENOMEM`.
    pub(crate) fn new(cqe: u32, max_cqe: u32, shared: bool) -> Result<Box<Self>, c_int> {
        let ring = ring_for(cqe, max_cqe)?;
        Ok(Box::new(Self {
            // SAFETY: integers, pointers that may be null, optional functions.
            verbs: UnsafeCell::new(unsafe { command::zeroed() }),
            queue: CompletionQueue::new(ring, shared),
            current: UnsafeCell::new(abi::Cqe::default()),
        }))
    }

    /// Returns the completion queue that contains the public one.
    ///
    /// # Safety
    ///
    /// `cq` is a completion queue of rrxe (an [`IbvCq`] or [`IbvCqEx`]), and stays one for `'a`.
    pub(crate) unsafe fn of<'a, T>(cq: *mut T) -> &'a Self {
        // SAFETY: the public part is the first member of a `Cq`. The members that C code writes to
        // are in an `UnsafeCell`.
        unsafe { &*cq.cast::<Self>() }
    }

    /// Returns the create command's driver part.
    fn command(&self) -> abi::CreateCqCmd {
        abi::CreateCqCmd {
            ring: self.queue.ring().spec(),
        }
    }
}

/// Allocates a ring for `cqe` completions. Fails with `EINVAL` if `cqe` is 0 or more than
/// `max_cqe`, or with `ENOMEM`.
fn ring_for(cqe: u32, max_cqe: u32) -> Result<Ring, c_int> {
    if cqe == 0 || cqe > max_cqe {
        return Err(EINVAL);
    }
    Ring::allocate(cqe, STRIDE)
}

/// `ibv_create_cq`.
///
/// # Safety
///
/// Called by libibverbs with an open rrxe device.
pub(crate) unsafe extern "C" fn create_cq(
    context: *mut IbvContext,
    cqe: c_int,
    channel: *mut IbvCompChannel,
    comp_vector: c_int,
) -> *mut IbvCq {
    object::create(|| {
        // SAFETY: the caller's contract.
        let limits = unsafe { context::limits(context) };
        let cq = Cq::new(u32::try_from(cqe).unwrap_or(0), limits.max_cqe, true)?;
        let mut cmd = command::CreateCq::new(cq.command());
        let mut resp = command::CreateCqResp::zeroed();
        let verbs = cq.verbs.get().cast::<IbvCq>();
        // SAFETY: the caller's contract, and the buffers have the sizes given.
        object::check(unsafe {
            memlock::explained(
                context,
                WHAT,
                cq.queue.ring().pinned(),
                ibv_cmd_create_cq(
                    context,
                    cqe,
                    channel,
                    comp_vector,
                    verbs,
                    &mut cmd,
                    size_of_val(&cmd),
                    &mut resp,
                    size_of_val(&resp),
                ),
            )
        })?;
        Ok(cq)
    })
}

/// `ibv_create_cq_ex`.
///
/// # Safety
///
/// Called by libibverbs with an open rrxe device; `init_attr` may be read.
pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut IbvContext,
    init_attr: *mut IbvCqInitAttrEx,
) -> *mut IbvCqEx {
    object::create(|| {
        // SAFETY: the caller's contract.
        let (limits, mut attr) = unsafe { (context::limits(context), *init_attr) };
        if attr.comp_mask & !CQ_INIT_ATTR_MASK_FLAGS != 0 || attr.wc_flags & !cq_ex::WC_FLAGS != 0 {
            return Err(EOPNOTSUPP);
        }
        let wc_flags = attr.wc_flags;
        // The kernel puts a timestamp into every completion anyway.
        attr.wc_flags &= !cq_ex::TIMESTAMPS;
        let mut shared = true;
        if attr.comp_mask & CQ_INIT_ATTR_MASK_FLAGS != 0 {
            shared = attr.flags & CREATE_CQ_ATTR_SINGLE_THREADED == 0;
            attr.flags &= !CREATE_CQ_ATTR_SINGLE_THREADED;
        }
        let cq = Cq::new(attr.cqe, limits.max_cqe, shared)?;
        let mut cmd = command::CreateCqEx::new(cq.command());
        let mut resp = command::CreateCqExResp::zeroed();
        // SAFETY: the caller's contract, and the buffers have the sizes given.
        object::check(unsafe {
            memlock::explained(
                context,
                WHAT,
                cq.queue.ring().pinned(),
                pabi::ibv_cmd_create_cq_ex(
                    context,
                    &attr,
                    cq.verbs.get(),
                    &mut cmd,
                    size_of_val(&cmd),
                    &mut resp,
                    size_of_val(&resp),
                    0,
                ),
            )
        })?;
        // SAFETY: the queue is not yet shared.
        cq_ex::set_functions(unsafe { &mut (*cq.verbs.get()).cq_ex }, wc_flags);
        Ok(cq)
    })
}

/// `ibv_destroy_cq`.
///
/// # Safety
///
/// Called by libibverbs with a queue that a create function returned.
pub(crate) unsafe extern "C" fn destroy_cq(cq: *mut IbvCq) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { object::destroy::<Cq, _>(cq, ibv_cmd_destroy_cq(cq)) }
}

/// `ibv_poll_cq`.
///
/// # Safety
///
/// Called by the consumer with a completion queue of rrxe and room for `num_entries` at `wc`.
pub(crate) unsafe extern "C" fn poll_cq(
    cq: *mut IbvCq,
    num_entries: c_int,
    wc: *mut IbvWc,
) -> c_int {
    // SAFETY: the caller's contract.
    let queue = unsafe { &Cq::of(cq).queue };
    let room = u32::try_from(num_entries).unwrap_or(0);
    let count = queue.open().take(room, |i, entry| {
        // SAFETY: `i` is below `room`, and the caller has room for `room` completions.
        unsafe { wc.add(i as usize).write(to_wc(&entry)) }
    });
    queue.close();
    // SAFETY: the caller's contract.
    let context = unsafe { (*cq).context };
    // SAFETY: the caller's contract.
    let yield_after = unsafe { context::yield_after(context) };
    if count == 0 {
        // SAFETY: the caller's contract.
        unsafe { doorbell::ring_deferred(context) };
        cpu_yield::after_empty_poll(yield_after);
    } else {
        cpu_yield::after_completions(yield_after, count);
    }
    // The count is at most `room`, which came from a `c_int`.
    count as c_int
}

/// `ibv_req_notify_cq`.
///
/// # Safety
///
/// Called by the consumer with a completion queue of rrxe.
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut IbvCq, solicited_only: c_int) -> c_int {
    let request = if solicited_only == 0 {
        abi::ARM_ANY
    } else {
        abi::ARM_SOLICITED
    };
    // SAFETY: the caller's contract.
    unsafe { Cq::of(cq) }.queue.arm(request);
    // SAFETY: the caller's contract.
    unsafe {
        doorbell::ring_deferred((*cq).context);
        claim_event(cq, request)
    }
}

/// Has the kernel raise the event that is due for completions that waited when the queue was armed
/// with `request`: see [`crate::abi`]. Returns 0 or an error.
///
/// # Safety
///
/// `cq` is a completion queue of rrxe.
unsafe fn claim_event(cq: *mut IbvCq, request: u32) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        if (*cq).channel.is_null()
            || !Cq::of(cq).queue.is_event_due(request)
            || !context::notifies_waiting((*cq).context)
        {
            return 0;
        }
        ibv_cmd_req_notify_cq(cq, c_int::from(request & abi::ARM_ANY == 0))
    }
}

/// `ibv_resize_cq`.
///
/// # Safety
///
/// Called by libibverbs with a completion queue of rrxe.
pub(crate) unsafe extern "C" fn resize_cq(cq: *mut IbvCq, cqe: c_int) -> c_int {
    // SAFETY: the caller's contract.
    let (this, limits) = unsafe { (Cq::of(cq), context::limits((*cq).context)) };
    let ring = match ring_for(u32::try_from(cqe).unwrap_or(0), limits.max_cqe) {
        Ok(ring) => ring,
        Err(error) => return error,
    };
    let pinned = ring.pinned();
    let mut cmd = command::ResizeCq::new(abi::CreateCqCmd { ring: ring.spec() });
    let mut resp = command::ResizeCqResp::zeroed();
    let resized = this.queue.resize(ring, || {
        // SAFETY: the caller's contract, and the buffers have the sizes given.
        unsafe {
            memlock::explained(
                (*cq).context,
                WHAT,
                pinned,
                ibv_cmd_resize_cq(
                    cq,
                    cqe,
                    &mut cmd,
                    size_of_val(&cmd),
                    &mut resp,
                    size_of_val(&resp),
                ),
            )
        }
    });
    match resized {
        Ok(0) => 0,
        // SAFETY: the caller's contract.
        Ok(late) => unsafe { claim_event(cq, late) },
        Err(error) => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::completion_queue::tests::produce;
    use core::mem::MaybeUninit;

    #[test]
    fn sizes_are_checked() {
        assert_eq!(Cq::new(0, 100, true).err(), Some(EINVAL));
        assert_eq!(Cq::new(101, 100, true).err(), Some(EINVAL));
        assert_eq!(
            Cq::new(100, 100, true)
                .ok()
                .unwrap()
                .queue
                .ring()
                .capacity(),
            128
        );
    }

    #[test]
    fn polls_through_the_c_interface() {
        let cq = Cq::new(4, 100, true).ok().unwrap();
        for wr_id in 1..=3 {
            produce(
                &cq.queue,
                abi::Cqe {
                    wr_id,
                    ..abi::Cqe::default()
                },
            );
        }
        let mut wc = [const { MaybeUninit::<IbvWc>::uninit() }; 2];
        let pointer = cq.verbs.get().cast::<IbvCq>();
        // SAFETY: the queue lives, and there is room for two.
        unsafe {
            assert_eq!(poll_cq(pointer, -1, wc.as_mut_ptr().cast()), 0);
            assert_eq!(poll_cq(pointer, 2, wc.as_mut_ptr().cast()), 2);
            assert_eq!(wc.map(|wc| wc.assume_init().wr_id), [1, 2]);
            assert_eq!(poll_cq(pointer, 2, wc.as_mut_ptr().cast()), 1);
            assert_eq!(poll_cq(pointer, 2, wc.as_mut_ptr().cast()), 0);
        }
    }
}
