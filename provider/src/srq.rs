// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Shared receive queues: create, modify, query, destroy, post.

use crate::abi;
use crate::context::{self, Limits};
use crate::ffi::command;
use crate::ffi::driver::*;
use crate::ffi::os::{EINVAL, EOPNOTSUPP};
use crate::ffi::verbs::*;
use crate::lock::Lock;
use crate::memlock;
use crate::object;
use crate::post;
use crate::recv_queue::{RecvLimits, RecvQueue};
use crate::ring::Ring;
use core::cell::UnsafeCell;
use core::ffi::c_int;

/// Name of the object in messages.
const WHAT: &str = "a shared receive queue";

/// A shared receive queue.
#[repr(C)]
pub(crate) struct Srq {
    /// Public part, which libibverbs and the consumer write to.
    verbs: UnsafeCell<VerbsSrq>,
    lock: Lock,
    /// Protected by the lock: resizing replaces the ring.
    queue: UnsafeCell<RecvQueue>,
}

// SAFETY: `queue` is only accessed under the lock; `verbs` belongs to libibverbs.
unsafe impl Sync for Srq {}

/// Allocates a ring for a shared receive queue of `max_wr` work requests. Fails with `EINVAL` if
/// `max_wr` is 0 or a size exceeds the limits of the device, or with `ENOMEM`.
fn ring(max_wr: u32, max_sge: u32, device: Limits) -> Result<Ring, c_int> {
    if max_wr == 0 || max_wr > device.max_srq_wr || max_sge > device.max_srq_sge {
        return Err(EINVAL);
    }
    let stride = device.stride(abi::recv_stride(max_sge))?;
    Ring::allocate(max_wr, stride)
}

impl Srq {
    /// Creates a shared receive queue that the kernel does not know yet. Sets `attr.max_wr` to the
    /// capacity of its ring.
    fn new(attr: &mut IbvSrqAttr, device: Limits) -> Result<Box<Self>, c_int> {
        let ring = ring(attr.max_wr, attr.max_sge, device)?;
        attr.max_wr = ring.capacity();
        let limits = RecvLimits {
            depth: attr.max_wr,
            max_sge: attr.max_sge,
        };
        Ok(Box::new(Self {
            // SAFETY: integers, and pointers that may be null.
            verbs: UnsafeCell::new(unsafe { command::zeroed() }),
            lock: Lock::new(true),
            queue: UnsafeCell::new(RecvQueue::unshared(ring, limits)),
        }))
    }

    /// Returns the queue that contains the public one.
    ///
    /// # Safety
    ///
    /// `srq` is a shared receive queue of rrxe, and stays one for `'a`.
    unsafe fn of<'a>(srq: *mut IbvSrq) -> &'a Self {
        // SAFETY: the public part is the first member of a `Srq`. The members that C code writes to
        // are in an `UnsafeCell`.
        unsafe { &*srq.cast::<Self>() }
    }

    /// Runs `body` with the receive queue, under the lock.
    fn with<T>(&self, body: impl FnOnce(&mut RecvQueue) -> T) -> T {
        self.lock.with(|| {
            // SAFETY: under the lock, so this is the only reference.
            body(unsafe { &mut *self.queue.get() })
        })
    }

    /// Returns the address and size in bytes of the memory that the kernel pins.
    fn pinned(&self) -> (u64, usize) {
        self.with(|queue| queue.ring().pinned())
    }

    /// Returns the create command's driver part.
    fn command(&self) -> abi::CreateSrqCmd {
        abi::CreateSrqCmd {
            ring: self.with(|queue| queue.ring().spec()),
        }
    }

    /// Replaces the ring by `ring` if `command` has the kernel do so; the kernel copies the waiting
    /// work requests. Returns the result of `command`.
    fn resize(&self, ring: Ring, command: impl FnOnce(abi::RingSpec) -> c_int) -> c_int {
        self.with(|queue| {
            let error = command(ring.spec());
            if error == 0 {
                queue.replace_ring(ring);
            }
            error
        })
    }
}

/// `ibv_create_srq`.
///
/// # Safety
///
/// Called by libibverbs with a protection domain of an open rrxe device; `init` may be read and
/// written.
pub(crate) unsafe extern "C" fn create_srq(
    pd: *mut IbvPd,
    init: *mut IbvSrqInitAttr,
) -> *mut IbvSrq {
    object::create(|| {
        // SAFETY: the caller's contract.
        let (limits, mut local) = unsafe { (context::limits((*pd).context), init.read()) };
        let srq = Srq::new(&mut local.attr, limits)?;
        let mut cmd = command::CreateSrq::new(srq.command());
        let mut resp = command::CreateSrqResp::zeroed();
        // SAFETY: the caller's contract, and the buffers have the sizes given.
        object::check(unsafe {
            memlock::explained(
                (*pd).context,
                WHAT,
                srq.pinned(),
                ibv_cmd_create_srq(
                    pd,
                    srq.verbs.get().cast(),
                    &mut local,
                    &mut cmd,
                    size_of_val(&cmd),
                    &mut resp,
                    size_of_val(&resp),
                ),
            )
        })?;
        // SAFETY: the caller's contract.
        unsafe { (*init).attr = local.attr };
        Ok(srq)
    })
}

/// `ibv_create_srq_ex`: creates a queue for XRC. (For basic queues libibverbs calls
/// `ibv_create_srq`.)
///
/// # Safety
///
/// Called by libibverbs with an open rrxe device; `init` may be read and written.
pub(crate) unsafe extern "C" fn create_srq_ex(
    context: *mut IbvContext,
    init: *mut IbvSrqInitAttrEx,
) -> *mut IbvSrq {
    object::create(|| {
        // SAFETY: the caller's contract.
        let (limits, mut local) = unsafe { (context::limits(context), init.read()) };
        let needed =
            srq_init_attr::TYPE | srq_init_attr::PD | srq_init_attr::XRCD | srq_init_attr::CQ;
        if local.comp_mask & srq_init_attr::TYPE == 0 || local.srq_type != SRQ_TYPE_XRC {
            return Err(EOPNOTSUPP);
        }
        if local.comp_mask != needed {
            return Err(EINVAL);
        }
        let mut srq = Srq::new(&mut local.attr, limits)?;
        let mut cmd = command::CreateXsrq::new(srq.command());
        let mut resp = command::CreateSrqResp::zeroed();
        // SAFETY: the caller's contract, and the buffers have the sizes given.
        object::check(unsafe {
            memlock::explained(
                context,
                WHAT,
                srq.pinned(),
                ibv_cmd_create_srq_ex(
                    context,
                    srq.verbs.get(),
                    &mut local,
                    &mut cmd,
                    size_of_val(&cmd),
                    &mut resp,
                    size_of_val(&resp),
                ),
            )
        })?;
        // libibverbs sets these members only for a basic queue.
        let public = &mut srq.verbs.get_mut().srq;
        public.srq_context = local.srq_context;
        public.pd = local.pd;
        // SAFETY: the caller's contract.
        unsafe { (*init).attr = local.attr };
        Ok(srq)
    })
}

/// `ibv_get_srq_num`. Returns `EOPNOTSUPP` for a queue that is not for XRC.
///
/// # Safety
///
/// Called by libibverbs with a shared receive queue of rrxe; `number` may be written.
pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut IbvSrq, number: *mut u32) -> c_int {
    // SAFETY: the caller's contract; nothing writes these members after creation.
    unsafe {
        let verbs = Srq::of(srq).verbs.get();
        if (*verbs).srq_type != SRQ_TYPE_XRC {
            return EOPNOTSUPP;
        }
        *number = (*verbs).srq_num;
    }
    0
}

/// `ibv_modify_srq`.
///
/// # Safety
///
/// Called by libibverbs with a shared receive queue of rrxe; `attr` may be read.
pub(crate) unsafe extern "C" fn modify_srq(
    srq: *mut IbvSrq,
    attr: *mut IbvSrqAttr,
    mask: c_int,
) -> c_int {
    if mask & SRQ_MAX_WR == 0 {
        let mut cmd = command::ModifySrq::zeroed();
        // SAFETY: the caller's contract, and the command has the size given.
        return unsafe {
            ibv_cmd_modify_srq(srq, attr, mask, (&raw mut cmd).cast(), size_of_val(&cmd))
        };
    }
    // SAFETY: the caller's contract.
    let (this, limits, max_wr) = unsafe {
        (
            Srq::of(srq),
            context::limits((*srq).context),
            (*attr).max_wr,
        )
    };
    let max_sge = this.with(|queue| queue.limits().max_sge);
    let new = match ring(max_wr, max_sge, limits) {
        Ok(ring) => ring,
        Err(error) => return error,
    };
    let pinned = new.pinned();
    this.resize(new, |ring| {
        let mut cmd = command::ResizeSrq::new(abi::CreateSrqCmd { ring });
        // SAFETY: the caller's contract, and the command has the size given.
        unsafe {
            let error =
                ibv_cmd_modify_srq(srq, attr, mask, (&raw mut cmd).cast(), size_of_val(&cmd));
            memlock::explained((*srq).context, WHAT, pinned, error)
        }
    })
}

/// `ibv_query_srq`.
///
/// # Safety
///
/// Called by libibverbs with a shared receive queue of rrxe; `attr` may be written.
pub(crate) unsafe extern "C" fn query_srq(srq: *mut IbvSrq, attr: *mut IbvSrqAttr) -> c_int {
    let mut cmd = command::QuerySrq::zeroed();
    // SAFETY: the caller's contract, and the command has the size given.
    unsafe { ibv_cmd_query_srq(srq, attr, &mut cmd, size_of_val(&cmd)) }
}

/// `ibv_destroy_srq`.
///
/// # Safety
///
/// Called by libibverbs with a queue that a create function returned.
pub(crate) unsafe extern "C" fn destroy_srq(srq: *mut IbvSrq) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { object::destroy::<Srq, _>(srq, ibv_cmd_destroy_srq(srq)) }
}

/// `ibv_post_srq_recv`. Work requests before a bad one are posted. Returns `EINVAL` if a work
/// request has too many segments, or `ENOMEM` if the queue is full.
///
/// # Safety
///
/// Called by the consumer with a shared receive queue of rrxe and a list of work requests; all
/// pointers in it are valid.
pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut IbvSrq,
    wr: *mut IbvRecvWr,
    bad_wr: *mut *mut IbvRecvWr,
) -> c_int {
    // SAFETY: the caller's contract.
    let this = unsafe { Srq::of(srq) };
    // SAFETY: the caller's contract.
    let (result, _) = this.with(|queue| queue.post(|adder| unsafe { adder.add_list(wr) }));
    // SAFETY: the caller's contract.
    unsafe { post::posted(result, bad_wr) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::os::ENOMEM;
    use core::ptr::null_mut;
    use core::sync::atomic::Ordering;

    const DEVICE: Limits = Limits {
        max_srq_wr: 64,
        max_srq_sge: 4,
        ..crate::qp::tests::DEVICE
    };

    fn srq(max_wr: u32, max_sge: u32) -> Result<Box<Srq>, c_int> {
        let mut attr = IbvSrqAttr {
            max_wr,
            max_sge,
            srq_limit: 0,
        };
        let srq = Srq::new(&mut attr, DEVICE)?;
        assert_eq!(attr.max_wr, max_wr.next_power_of_two());
        Ok(srq)
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
        let error = unsafe { post_srq_recv(srq.verbs.get().cast(), &mut wr, &mut bad) };
        assert_eq!(bad.is_null(), error == 0);
        error
    }

    fn id(srq: &Srq, counter: u32) -> u64 {
        // SAFETY: the test is the consumer of a published entry.
        srq.with(|queue| unsafe { queue.ring().slot(counter).cast::<abi::RecvWqe>().read() })
            .wr_id
    }

    #[test]
    fn sizes_are_checked() {
        for (max_wr, max_sge) in [(0, 1), (65, 1), (1, 5), (u32::MAX, u32::MAX)] {
            assert_eq!(srq(max_wr, max_sge).err(), Some(EINVAL));
        }
        assert!(srq(64, 4).is_ok() && srq(1, 0).is_ok());
    }

    #[test]
    fn full_is_enomem() {
        let srq = srq(3, 2).unwrap();
        assert_eq!(post(&srq, 0, 3), EINVAL);
        for i in 0..4 {
            assert_eq!(post(&srq, i, 2), 0);
        }
        assert_eq!(post(&srq, 4, 2), ENOMEM);
        srq.with(|queue| queue.ring().consumer().store(1, Ordering::Release));
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
        let new = || ring(8, 1, DEVICE).ok().unwrap();
        assert_eq!(srq.resize(new(), |_| EINVAL), EINVAL);
        assert_eq!(post(&srq, 2, 0), ENOMEM);
        // The kernel has taken one work request and moves the other.
        let done = srq.resize(new(), |spec| {
            assert_eq!(spec.capacity, 8);
            0
        });
        assert_eq!(done, 0);
        srq.with(|queue| queue.ring().consumer().store(1, Ordering::Release));
        for i in 2..9 {
            assert_eq!(post(&srq, i, 1), 0);
        }
        assert_eq!(post(&srq, 9, 1), ENOMEM);
        srq.with(|queue| assert_eq!(queue.ring().producer().load(Ordering::Relaxed), 9));
        assert_eq!((id(&srq, 2), id(&srq, 8)), (2, 8));
    }
}
