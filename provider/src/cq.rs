// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Completion queues: create, poll, arm, resize.

use crate::abi;
use crate::clock::Wallclock;
use crate::completion_queue::{to_wc, CompletionQueue, STRIDE};
use crate::context::Context;
use crate::cpu_yield;
use crate::cq_ex;
use crate::domain::Allocator;
use crate::ffi::command;
use crate::ffi::driver::ibv_cmd_req_notify_cq;
use crate::ffi::os::{EINVAL, EOPNOTSUPP};
use crate::ffi::ptr::{Foreign, Ptr, Public};
use crate::ffi::verbs::*;
use crate::memory::Owned;
use crate::object;
use crate::ring::Ring;
use crate::shortage::report_limit;
use core::cell::UnsafeCell;
use core::ffi::c_int;

/// Name of the object in messages.
const WHAT: &str = "a completion queue";

/// A completion queue.
#[repr(C)]
pub(crate) struct Cq {
    /// Public part, which libibverbs and the program write to.
    pub(crate) verbs: UnsafeCell<IbvCqEx>,
    pub(crate) context: Ptr<IbvContext>,
    /// Whether events go to a completion channel.
    has_channel: bool,
    /// Part shared with the kernel.
    pub(crate) queue: CompletionQueue,
    /// The completion that the extended poll functions have reached. Used between `start_poll` and
    /// `end_poll`, under the queue's lock.
    pub(crate) current: UnsafeCell<abi::Cqe>,
    /// Used between `start_poll` and `end_poll`, like `current`.
    pub(crate) wallclock: Wallclock,
    /// Allocates the rings, if the program does.
    allocator: Option<Allocator>,
}

// SAFETY: the public part is the first member.
unsafe impl Public for IbvCq {
    type Object = Cq;
}
// SAFETY: as above.
unsafe impl Public for IbvCqEx {
    type Object = Cq;
}

impl Cq {
    /// Creates a completion queue that the kernel does not know yet. Fails with `EINVAL` if
    /// `cqe` is 0 or more than the device's limit, or with `ENOMEM`.
    pub(crate) fn new(
        context: Ptr<IbvContext>,
        cqe: u32,
        has_channel: bool,
        shared: bool,
        allocator: Option<Allocator>,
    ) -> Result<Owned<Self>, c_int> {
        let ring = ring_for(&context, allocator.as_ref(), capacity(&context, cqe)?)?;
        Owned::new(Self {
            // SAFETY: integers, pointers that may be null, optional functions.
            verbs: UnsafeCell::new(unsafe { command::zeroed() }),
            context,
            has_channel,
            queue: CompletionQueue::new(ring, shared)?,
            current: UnsafeCell::new(abi::Cqe::default()),
            wallclock: Wallclock::default(),
            allocator,
        })
    }

    /// Acts on the result of a poll, which found `count` completions. If it found none, the program
    /// may begin to wait: rings the deferred doorbell, and yields the CPU if that is due.
    #[inline]
    pub(crate) fn polled(&self, count: u32) {
        let context = &self.context;
        if count == 0 {
            context.doorbells.ring_deferred();
            cpu_yield::after_empty_poll(context.yield_after);
        } else {
            cpu_yield::after_completions(context.yield_after, count);
        }
    }
}

/// Returns the capacity of a ring for `cqe` completions. Fails with `EINVAL` if `cqe` is 0 or more
/// than the device's limit.
fn capacity(context: &Context, cqe: u32) -> Result<u32, c_int> {
    if cqe == 0 || cqe > context.device.max_cqe {
        return Err(EINVAL);
    }
    cqe.checked_next_power_of_two().ok_or(EINVAL)
}

/// Allocates a ring of a capacity. Fails with `ENOMEM`.
fn ring_for(
    context: &Context,
    allocator: Option<&Allocator>,
    capacity: u32,
) -> Result<Ring, c_int> {
    let ring = Ring::allocate_in(allocator, capacity, STRIDE)?;
    set_flags(context, &ring);
    Ok(ring)
}

/// Sets the flags of an empty ring.
fn set_flags(context: &Context, ring: &Ring) {
    if context.kernel.features & abi::FEATURE_EVENT_LIMIT != 0 {
        ring.count_events();
    }
}

/// Creates a completion queue for `cqe` completions, in a parent domain if there is one. If
/// `shared` is false, the consumer promises to use one thread only.
fn create(
    context: Ptr<IbvContext>,
    cqe: u32,
    channel: Option<Foreign<IbvCompChannel>>,
    comp_vector: c_int,
    shared: bool,
    domain: Option<Ptr<IbvPd>>,
) -> Result<Owned<Cq>, c_int> {
    let shared = shared && !domain.is_some_and(|domain| domain.is_of_one_thread());
    let allocator = domain.and_then(|domain| domain.allocator());
    let cq = Cq::new(context, cqe, channel.is_some(), shared, allocator)?;
    let ring = cq.queue.ring();
    let spec = ring.spec();
    // `cqe` is at most the device's limit.
    let cqe = cqe as c_int;
    let error = command::create_cq(context, cqe, channel, comp_vector, &cq.verbs, spec);
    report_limit(WHAT, ring.pinned(), error)?;
    Ok(cq)
}

/// `ibv_create_cq`.
pub(crate) extern "C" fn create_cq(
    context: Ptr<IbvContext>,
    cqe: c_int,
    channel: Option<Foreign<IbvCompChannel>>,
    comp_vector: c_int,
) -> *mut IbvCq {
    let cqe = u32::try_from(cqe).unwrap_or(0);
    object::create(|| create(context, cqe, channel, comp_vector, true, None))
}

/// `ibv_create_cq_ex`. None of the flags concerns the kernel: it puts a timestamp into every
/// completion. Of the flags of `enum ibv_create_cq_attr_flags` it has `SINGLE_THREADED`: a queue
/// always passes to the error state if it overruns (IBA 10.8.1).
///
/// # Safety
///
/// `attr` has the members up to `comp_mask`, and those that `comp_mask` names.
pub(crate) unsafe extern "C" fn create_cq_ex(
    context: Ptr<IbvContext>,
    attr: *const IbvCqInitAttrEx,
) -> *mut IbvCqEx {
    object::create(|| {
        // SAFETY: the caller's contract.
        let (cqe, channel, comp_vector) =
            unsafe { ((*attr).cqe, (*attr).channel, (*attr).comp_vector) };
        // SAFETY: as above.
        let (wc_flags, comp_mask) = unsafe { ((*attr).wc_flags, (*attr).comp_mask) };
        let known = CQ_INIT_ATTR_MASK_FLAGS | CQ_INIT_ATTR_MASK_PD;
        if comp_mask & !known != 0 || wc_flags & !cq_ex::WC_FLAGS != 0 {
            return Err(EOPNOTSUPP);
        }
        let domain = match comp_mask & CQ_INIT_ATTR_MASK_PD {
            0 => None,
            // SAFETY: `comp_mask` names the member.
            _ => Some(unsafe { (*attr).parent_domain }.ok_or(EINVAL)?),
        };
        let flags = match comp_mask & CQ_INIT_ATTR_MASK_FLAGS {
            0 => 0,
            // SAFETY: `comp_mask` names the member.
            _ => unsafe { (*attr).flags },
        };
        if flags & !CREATE_CQ_ATTR_SINGLE_THREADED != 0 {
            return Err(EOPNOTSUPP);
        }
        let shared = flags & CREATE_CQ_ATTR_SINGLE_THREADED == 0;
        let mut cq = create(context, cqe, channel, comp_vector as c_int, shared, domain)?;
        cq_ex::set_functions(cq.verbs.get_mut(), wc_flags);
        Ok(cq)
    })
}

/// `ibv_poll_cq`.
///
/// # Safety
///
/// There is room for `num_entries` completions at `wc`.
pub(crate) unsafe extern "C" fn poll_cq(
    cq: Ptr<IbvCq>,
    num_entries: c_int,
    wc: *mut IbvWc,
) -> c_int {
    let room = u32::try_from(num_entries).unwrap_or(0);
    let count = cq.queue.open().take(room, |i, entry| {
        // SAFETY: `i` is below `room`, and the caller has room for `room` completions.
        unsafe { wc.add(i as usize).write(to_wc(&entry)) }
    });
    cq.polled(count);
    // The count is at most `room`, which came from a `c_int`.
    count as c_int
}

/// `ibv_req_notify_cq`.
pub(crate) extern "C" fn req_notify_cq(cq: Ptr<IbvCq>, solicited_only: c_int) -> c_int {
    let request = if solicited_only == 0 {
        abi::ARM_ANY
    } else {
        abi::ARM_SOLICITED
    };
    // Before the arming, so that the kernel raises no event for completions that the program does
    // not ask for.
    let mut error = 0;
    if cq.has_channel && cq.queue.is_at_limit() {
        error = ibv_cmd_req_notify_cq(cq, solicited_only);
    }
    cq.queue.arm(request);
    cq.context.doorbells.ring_deferred();
    match error {
        0 => claim_event(cq, request),
        error => error,
    }
}

/// Calls the kernel after the queue was armed with `request` if an event is due for completions
/// that waited then, or if the queue has come to the limit of events meanwhile: see [`crate::abi`].
/// Returns 0 or an error.
fn claim_event(cq: Ptr<IbvCq>, request: u32) -> c_int {
    if !cq.has_channel || !(cq.queue.is_event_due(request) || cq.queue.is_at_limit()) {
        return 0;
    }
    ibv_cmd_req_notify_cq(cq, c_int::from(request & abi::ARM_ANY == 0))
}

/// `ibv_resize_cq`.
pub(crate) extern "C" fn resize_cq(cq: Ptr<IbvCq>, cqe: c_int) -> c_int {
    let resized = capacity(&cq.context, u32::try_from(cqe).unwrap_or(0)).and_then(|capacity| {
        let allocate = || Ring::allocate_in(cq.allocator.as_ref(), capacity, STRIDE);
        cq.queue.resize(capacity, allocate, |ring| {
            set_flags(&cq.context, ring);
            let error = command::resize_cq(cq, cqe, ring.spec());
            report_limit(WHAT, ring.pinned(), error)
        })
    });
    match resized {
        Ok(0) => 0,
        Ok(late) => claim_event(cq, late),
        Err(error) => error,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::completion_queue::tests::produce;
    use crate::context::tests::context;
    use core::mem::MaybeUninit;

    /// Returns the address of the public part of a completion queue.
    pub(crate) fn public<P: Public<Object = Cq>>(cq: &Cq) -> Ptr<P> {
        // SAFETY: the public part is the first member; tests use no address after the queue.
        unsafe { Ptr::new(core::ptr::from_ref(cq).cast_mut().cast()) }
    }

    #[test]
    fn sizes_are_checked() {
        assert_eq!(Cq::new(context(), 0, false, true, None).err(), Some(EINVAL));
        assert_eq!(
            Cq::new(context(), 1025, false, true, None).err(),
            Some(EINVAL)
        );
        let cq = Cq::new(context(), 100, false, true, None).ok().unwrap();
        assert_eq!(cq.queue.ring().capacity(), 128);
    }

    /// A kernel without the limit finds zero in the word, which it does not know.
    #[test]
    fn counts_events_for_kernels_that_limit_them() {
        for (features, counts) in [
            (0, false),
            (abi::FEATURE_POLL, false),
            (abi::FEATURE_EVENT_LIMIT | abi::FEATURE_POLL, true),
        ] {
            let context = context();
            // SAFETY: the context is that of this test alone, and lives as long as the program.
            let object = unsafe { context.as_ptr().cast::<Context>().as_mut() };
            object.unwrap().kernel.features = features;
            let cq = Cq::new(context, 4, true, true, None).ok().unwrap();
            assert_eq!(cq.queue.ring().counts_events(), counts);
        }
    }

    /// A program's structure may end where a member begins that it does not name.
    #[test]
    fn flags_that_are_not_supported_are_refused() {
        let end = crate::ring::tests::start_of_a_hole();
        let offset = core::mem::offset_of!(IbvCqInitAttrEx, flags);
        for (comp_mask, wc_flags, flags) in [(4, 0, None), (0, 1 << 30, None)]
            .into_iter()
            .chain((1..32).map(|bit| (CQ_INIT_ATTR_MASK_FLAGS, 0, Some(1_u32 << bit))))
        {
            let length = flags.map_or(offset.next_multiple_of(8), |_| offset + 4);
            let attr = end.wrapping_sub(length).cast::<IbvCqInitAttrEx>();
            // SAFETY: the members up to `length` are mapped.
            unsafe {
                attr.cast::<u8>().write_bytes(0, length);
                (*attr).cqe = 1;
                (*attr).wc_flags = wc_flags;
                (*attr).comp_mask = comp_mask;
                if let Some(flags) = flags {
                    (*attr).flags = flags;
                }
                assert!(create_cq_ex(context(), attr).is_null());
            }
            assert_eq!(crate::ffi::os::errno(), EOPNOTSUPP);
        }
    }

    #[test]
    fn polls_through_the_c_interface() {
        let cq = Cq::new(context(), 4, false, true, None).ok().unwrap();
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
        let pointer = public(&cq);
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
