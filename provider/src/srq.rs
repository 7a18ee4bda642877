// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Shared receive queues: create, modify, query, post.

use crate::abi;
use crate::context::Context;
use crate::domain::Allocator;
use crate::ffi::command;
use crate::ffi::driver::VerbsSrq;
use crate::ffi::os::{EINVAL, EOPNOTSUPP};
use crate::ffi::ptr::{Ptr, Public};
use crate::ffi::verbs::*;
use crate::lock::Lock;
use crate::memory::Owned;
use crate::object::{self, status};
use crate::post;
use crate::recv_queue::RecvQueue;
use crate::ring::Ring;
use crate::shortage::report_limit;
use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::mem::MaybeUninit;

/// Name of the object in messages.
const WHAT: &str = "a shared receive queue";

/// A shared receive queue.
#[repr(C)]
pub(crate) struct Srq {
    /// Public part, which libibverbs and the program write to.
    verbs: UnsafeCell<VerbsSrq>,
    context: Ptr<IbvContext>,
    /// Allocates the rings, if the program does.
    allocator: Option<Allocator>,
    /// Resizing replaces the ring.
    queue: Lock<RecvQueue>,
}

// SAFETY: the public part is the first member.
unsafe impl Public for IbvSrq {
    type Object = Srq;
}

/// Allocates a ring for a shared receive queue of `max_wr` work requests. Fails with `EINVAL` if
/// `max_wr` is 0 or a size exceeds the limits of the device, or with `ENOMEM`.
fn ring(
    context: &Context,
    allocator: Option<&Allocator>,
    max_wr: u32,
    max_sge: u32,
) -> Result<Ring, c_int> {
    let device = &context.device;
    if max_wr == 0 || max_wr > device.max_srq_wr || max_sge > device.max_srq_sge {
        return Err(EINVAL);
    }
    let stride = abi::recv_stride(max_sge).ok_or(EINVAL)?;
    Ring::allocate_in(allocator, max_wr, stride)
}

impl Srq {
    /// Creates a shared receive queue that the kernel does not know yet. Sets `attr.max_wr` to the
    /// capacity of its ring.
    fn new(
        context: Ptr<IbvContext>,
        pd: Option<Ptr<IbvPd>>,
        attr: &mut IbvSrqAttr,
    ) -> Result<Owned<Self>, c_int> {
        let allocator = pd.and_then(|pd| pd.allocator());
        let ring = ring(&context, allocator.as_ref(), attr.max_wr, attr.max_sge)?;
        attr.max_wr = ring.capacity();
        Owned::new(Self {
            // SAFETY: integers, and pointers that may be null.
            verbs: UnsafeCell::new(unsafe { command::zeroed() }),
            context,
            queue: Lock::shared_if(
                !pd.is_some_and(|pd| pd.is_of_one_thread()),
                RecvQueue::new(ring, attr.max_wr),
            ),
            allocator,
        })
    }

    /// Replaces the ring by `ring` if `command` has the kernel do so; the kernel copies the waiting
    /// work requests. Returns the result of `command`, 0 or an error number.
    fn resize(
        &self,
        ring: Ring,
        command: impl FnOnce(abi::RingSpec) -> c_int,
    ) -> Result<(), c_int> {
        let mut queue = self.queue.lock();
        report_limit(WHAT, ring.pinned(), command(ring.spec()))?;
        queue.replace_ring(ring);
        Ok(())
    }
}

/// Creates a shared receive queue. Sets `init.attr` to its capacities.
fn create(context: Ptr<IbvContext>, init: &mut IbvSrqInitAttrEx) -> Result<Owned<Srq>, c_int> {
    let mut srq = Srq::new(context, init.pd, &mut init.attr)?;
    let queue = srq.queue.lock();
    let ring = queue.ring();
    let error = command::create_srq_ex(context, &srq.verbs, init, ring.spec());
    report_limit(WHAT, ring.pinned(), error)?;
    drop(queue);
    // libibverbs sets these members only for a basic queue.
    let public = &mut srq.verbs.get_mut().srq;
    public.srq_context = init.srq_context;
    public.pd = init.pd;
    Ok(srq)
}

/// `ibv_create_srq`.
pub(crate) extern "C" fn create_srq(pd: Ptr<IbvPd>, init: &mut IbvSrqInitAttr) -> *mut IbvSrq {
    object::create(|| {
        let mut extended = IbvSrqInitAttrEx {
            srq_context: init.srq_context,
            attr: init.attr,
            comp_mask: srq_init_attr::PD,
            srq_type: 0,
            pd: Some(pd),
            xrcd: None,
            cq: None,
            tm_cap: [0; 2],
        };
        let srq = create(pd.context(), &mut extended)?;
        init.attr = extended.attr;
        Ok(srq)
    })
}

/// `ibv_create_srq_ex`: creates a queue for XRC. (For basic queues libibverbs calls
/// `ibv_create_srq`.)
///
/// # Safety
///
/// `init` has the members up to `comp_mask`, and those that `comp_mask` names. It may be written.
pub(crate) unsafe extern "C" fn create_srq_ex(
    context: Ptr<IbvContext>,
    init: *mut IbvSrqInitAttrEx,
) -> *mut IbvSrq {
    object::create(|| {
        let needed =
            srq_init_attr::TYPE | srq_init_attr::PD | srq_init_attr::XRCD | srq_init_attr::CQ;
        // SAFETY: the caller's contract. A queue for XRC has all members up to `cq`.
        let mut local = unsafe {
            let comp_mask = (*init).comp_mask;
            if comp_mask & srq_init_attr::TYPE == 0 || (*init).srq_type != SRQ_TYPE_XRC {
                return Err(EOPNOTSUPP);
            }
            if comp_mask != needed {
                return Err(EINVAL);
            }
            IbvSrqInitAttrEx {
                srq_context: (*init).srq_context,
                attr: (*init).attr,
                comp_mask,
                srq_type: (*init).srq_type,
                pd: (*init).pd,
                xrcd: (*init).xrcd,
                cq: (*init).cq,
                tm_cap: [0; 2],
            }
        };
        let srq = create(context, &mut local)?;
        // SAFETY: as above.
        unsafe { (*init).attr = local.attr };
        Ok(srq)
    })
}

/// `ibv_get_srq_num`. Returns `EOPNOTSUPP` for a queue that is not for XRC.
pub(crate) extern "C" fn get_srq_num(srq: Ptr<IbvSrq>, number: &mut MaybeUninit<u32>) -> c_int {
    let verbs = srq.verbs.get();
    // SAFETY: nothing writes these members after creation.
    let (srq_type, srq_num) = unsafe { ((*verbs).srq_type, (*verbs).srq_num) };
    if srq_type != SRQ_TYPE_XRC {
        return EOPNOTSUPP;
    }
    number.write(srq_num);
    0
}

/// `ibv_modify_srq`.
pub(crate) extern "C" fn modify_srq(srq: Ptr<IbvSrq>, attr: &IbvSrqAttr, mask: c_int) -> c_int {
    if mask & SRQ_MAX_WR == 0 {
        return command::modify_srq(srq, attr, mask);
    }
    let max_sge = srq.queue.lock().max_sge();
    let resized = ring(&srq.context, srq.allocator.as_ref(), attr.max_wr, max_sge)
        .and_then(|new| srq.resize(new, |ring| command::resize_srq(srq, attr, mask, ring)));
    status(resized)
}

/// `ibv_post_srq_recv`. Work requests before a bad one are posted. Returns `EINVAL` if a work
/// request has too many segments, or `ENOMEM` if the queue is full.
///
/// # Safety
///
/// `wr` is a list of work requests, and all pointers in it are valid. `bad_wr` may be written, or
/// is null.
pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: Ptr<IbvSrq>,
    wr: *mut IbvRecvWr,
    bad_wr: *mut *mut IbvRecvWr,
) -> c_int {
    let mut queue = srq.queue.lock();
    // SAFETY: all pointers in the list are valid.
    let added = unsafe { queue.add_list(wr) };
    queue.publish();
    drop(queue);
    // SAFETY: `bad_wr` may be written, or is null.
    unsafe { post::posted(added, bad_wr) }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::context::tests::context;
    use crate::ffi::os::ENOMEM;
    use core::ptr::null_mut;
    use core::sync::atomic::Ordering;

    fn srq(max_wr: u32, max_sge: u32) -> Result<Owned<Srq>, c_int> {
        let mut attr = IbvSrqAttr {
            max_wr,
            max_sge,
            srq_limit: 0,
        };
        let srq = Srq::new(context(), None, &mut attr)?;
        assert_eq!(attr.max_wr, max_wr.next_power_of_two());
        Ok(srq)
    }

    /// Creates a queue without a device, which lives as long as the test program.
    pub(crate) fn shared() -> Ptr<IbvSrq> {
        // SAFETY: the public part is the first member, and the queue is never freed.
        unsafe { Ptr::new(srq(1, 1).ok().unwrap().into_raw().cast()) }
    }

    fn post(srq: &Srq, wr_id: u64, num_sge: c_int) -> c_int {
        let sge = [IbvSge {
            addr: 0,
            length: 0,
            lkey: 0,
        }; 8];
        let mut wr = IbvRecvWr {
            wr_id,
            next: null_mut(),
            sg_list: sge.as_ptr(),
            num_sge,
        };
        let mut bad = null_mut();
        // SAFETY: the queue and the request live.
        let error = unsafe {
            let public = Ptr::new(core::ptr::from_ref(srq).cast_mut().cast());
            post_srq_recv(public, &mut wr, &mut bad)
        };
        assert_eq!(bad.is_null(), error == 0);
        error
    }

    fn id(srq: &Srq, counter: u32) -> u64 {
        // SAFETY: the test is the consumer of a published entry.
        let wqe = unsafe {
            srq.queue
                .lock()
                .ring()
                .slot(counter)
                .cast::<abi::RecvWqe>()
                .read()
        };
        wqe.wr_id
    }

    #[test]
    fn sizes_are_checked() {
        for (max_wr, max_sge) in [(0, 1), (65, 1), (1, 5), (u32::MAX, u32::MAX)] {
            assert_eq!(srq(max_wr, max_sge).err(), Some(EINVAL));
        }
        assert!(srq(64, 4).is_ok() && srq(1, 0).is_ok());
    }

    /// An old program's structure ends where a member begins that it does not name.
    #[test]
    fn only_members_that_are_named_are_read() {
        let end = crate::ring::tests::start_of_a_hole();
        for (comp_mask, length) in [(0, 24), (srq_init_attr::TYPE, 32)] {
            let init = end.wrapping_sub(length).cast::<IbvSrqInitAttrEx>();
            // SAFETY: the members up to `length` are mapped.
            unsafe {
                init.cast::<u8>().write_bytes(0, length);
                (*init).comp_mask = comp_mask;
                assert!(create_srq_ex(context(), init).is_null());
            }
            assert_eq!(crate::ffi::os::errno(), EOPNOTSUPP);
        }
    }

    #[test]
    fn full_is_enomem() {
        let srq = srq(3, 2).unwrap();
        assert_eq!(post(&srq, 0, 3), EINVAL);
        for i in 0..4 {
            assert_eq!(post(&srq, i, 2), 0);
        }
        assert_eq!(post(&srq, 4, 2), ENOMEM);
        srq.queue
            .lock()
            .ring()
            .consumer()
            .store(1, Ordering::Release);
        assert_eq!(post(&srq, 5, 0), 0);
        assert_eq!(post(&srq, 6, 0), ENOMEM);
        assert_eq!((id(&srq, 1), id(&srq, 4)), (1, 5));
    }

    #[test]
    fn counts_on_in_a_larger_ring() {
        let srq = srq(2, 1).unwrap();
        for i in 0..2 {
            assert_eq!(post(&srq, i, 0), 0);
        }
        let new = || ring(&context(), None, 8, 1).ok().unwrap();
        assert_eq!(srq.resize(new(), |_| EINVAL), Err(EINVAL));
        assert_eq!(post(&srq, 2, 0), ENOMEM);
        // The kernel has consumed one work request and moves the other.
        let done = srq.resize(new(), |spec| {
            assert_eq!(spec.capacity, 8);
            0
        });
        assert_eq!(done, Ok(()));
        srq.queue
            .lock()
            .ring()
            .consumer()
            .store(1, Ordering::Release);
        for i in 2..9 {
            assert_eq!(post(&srq, i, 1), 0);
        }
        assert_eq!(post(&srq, 9, 1), ENOMEM);
        assert_eq!(
            srq.queue.lock().ring().producer().load(Ordering::Relaxed),
            9
        );
        assert_eq!((id(&srq, 2), id(&srq, 8)), (2, 8));
    }
}
