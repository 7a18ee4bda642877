// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Queue pairs: create, modify, query, destroy.

use crate::abi::{self, wr_opcode};
use crate::context::Context;
use crate::ffi::command;
use crate::ffi::driver::*;
use crate::ffi::os::{check, EINVAL, EOPNOTSUPP};
use crate::ffi::ptr::{Foreign, Ptr, Public};
use crate::ffi::verbs::*;
use crate::lock::Lock;
use crate::memory::Owned;
use crate::object::{self, status};
use crate::recv_queue::RecvQueue;
use crate::ring::{Ring, Shape};
use crate::send_queue::{only, Batch, Opcodes, SendQueue};
use crate::shortage::{report_limit, NOT_PINNED};
use crate::wr;
use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::mem::{offset_of, MaybeUninit};
use core::sync::atomic::{AtomicU32, Ordering};

/// A queue pair.
#[repr(C)]
pub(crate) struct Qp {
    /// Public part, which libibverbs and the program write to.
    pub(crate) verbs: UnsafeCell<VerbsQp>,
    pub(crate) context: Ptr<IbvContext>,
    send_cq: Option<Ptr<IbvCq>>,
    recv_cq: Option<Ptr<IbvCq>>,
    pub(crate) sq: SendQueue,
    /// `None` if no receive can be posted. Its ring owns the memory of both, so it is dropped last.
    pub(crate) rq: Option<Lock<RecvQueue>>,
    /// The capacities. The kernel grants what it was asked for.
    pub(crate) cap: IbvQpCap,
    pub(crate) qp_type: u32,
    /// Opcodes that can be posted to the send queue.
    pub(crate) opcodes: Opcodes,
    /// `enum ibv_qp_state` as the program last set or queried it. In the kernel the queue pair may
    /// have moved to Error since.
    state: AtomicU32,
}

// SAFETY: the public part is the first member.
unsafe impl Public for IbvQp {
    type Object = Qp;
}
// SAFETY: as above.
unsafe impl Public for IbvQpEx {
    type Object = Qp;
}

impl Ptr<IbvQpEx> {
    /// Returns the address of the queue pair for the verbs without `ex`.
    #[inline]
    pub(crate) fn base(self) -> Ptr<IbvQp> {
        // SAFETY: the one structure is the first member of the other.
        unsafe { Ptr::new(self.as_ptr().cast()) }
    }
}

/// Name of the object in messages.
const WHAT: &str = "a queue pair";

const UD_OPCODES: Opcodes = only(wr_opcode::SEND) | only(wr_opcode::SEND_WITH_IMM);
const UC_OPCODES: Opcodes = UD_OPCODES
    | only(wr_opcode::RDMA_WRITE)
    | only(wr_opcode::RDMA_WRITE_WITH_IMM)
    | only(wr_opcode::LOCAL_INV)
    | only(wr_opcode::BIND_MW);
const RC_OPCODES: Opcodes = UC_OPCODES
    | only(wr_opcode::SEND_WITH_INV)
    | only(wr_opcode::RDMA_READ)
    | only(wr_opcode::ATOMIC_CMP_AND_SWP)
    | only(wr_opcode::ATOMIC_FETCH_AND_ADD)
    | only(wr_opcode::FLUSH)
    | only(wr_opcode::ATOMIC_WRITE);

/// Returns the opcodes that a type of queue pair can send (IBA 9.8.1, table of transport
/// functions). Fails with `EOPNOTSUPP` for a type that rrxe does not support.
pub(crate) fn opcodes(qp_type: u32) -> Result<Opcodes, c_int> {
    match qp_type {
        qp_type::RC | qp_type::XRC_SEND => Ok(RC_OPCODES),
        qp_type::UC => Ok(UC_OPCODES),
        qp_type::UD => Ok(UD_OPCODES),
        // It only receives, into shared receive queues.
        qp_type::XRC_RECV => Ok(0),
        _ => Err(EOPNOTSUPP),
    }
}

impl Qp {
    /// Creates a queue pair that the kernel does not know yet, with rings for the capacities in
    /// `attr.cap`. Sets `attr.cap.max_inline_data` to the capacity of an entry.
    ///
    /// Fails with `EOPNOTSUPP` if the device lacks this type of queue pair, with `EINVAL` if
    /// `attr.cap` exceeds the limits of the device, or with `ENOMEM`.
    fn new(context: Ptr<IbvContext>, attr: &mut IbvQpInitAttrEx) -> Result<Owned<Self>, c_int> {
        let opcodes = opcodes(attr.qp_type)?;
        let cap = &mut attr.cap;
        let (mut send_cq, mut recv_cq) = (attr.send_cq, attr.recv_cq);
        // These types ignore the requested capacities, and the completion queues.
        match attr.qp_type {
            qp_type::XRC_RECV => (*cap, send_cq, recv_cq) = (IbvQpCap::default(), None, None),
            qp_type::XRC_SEND => (cap.max_recv_wr, cap.max_recv_sge, recv_cq) = (0, 0, None),
            _ if attr.srq.is_some() => (cap.max_recv_wr, cap.max_recv_sge) = (0, 0),
            _ => {}
        }
        // SAFETY: `sq` uses the first one, and is dropped before `rq`.
        let (ring, recv_ring) = unsafe { rings(&context, attr.pd, cap)? };
        cap.max_inline_data = context.kernel.max_inline;
        let shared = !attr.pd.is_some_and(|pd| pd.is_of_one_thread());
        let sq = SendQueue::new(ring, cap, attr.sq_sig_all != 0, shared);
        cap.max_inline_data = sq.max_inline();
        let rq = |ring| Lock::shared_if(shared, RecvQueue::new(ring, cap.max_recv_wr));
        let rq = recv_ring.map(rq);
        Owned::new(Self {
            // SAFETY: integers, pointers that may be null, optional functions.
            verbs: UnsafeCell::new(unsafe { command::zeroed() }),
            context,
            send_cq,
            recv_cq,
            sq,
            cap: IbvQpCap {
                max_recv_sge: rq.as_ref().map_or(0, |_| cap.max_recv_sge),
                ..*cap
            },
            rq,
            qp_type: attr.qp_type,
            opcodes,
            state: AtomicU32::new(qp_state::RESET),
        })
    }

    /// Publishes and closes a batch of the send queue, and notifies the kernel of it. Fails with
    /// the kernel's error.
    #[inline]
    pub(crate) fn publish(qp: Ptr<IbvQp>, mut batch: Batch<'_>) -> Result<(), c_int> {
        let published = batch.publish();
        drop(batch);
        let Some(published) = published else {
            return Ok(());
        };
        let is_armed = || qp.send_cq.is_some_and(|cq| cq.queue.ring().is_armed());
        let doorbells = &qp.context.doorbells;
        doorbells.notify(qp, qp.sq.ring(), published, is_armed)
    }

    /// Returns the create command's driver part. It omits the ring of a send queue to which nothing
    /// can be posted.
    fn command(&self) -> abi::CreateQpCmd {
        let rq = self.rq.as_ref().map(|rq| rq.lock().ring().spec());
        abi::CreateQpCmd {
            sq: match self.cap.max_send_wr {
                0 => abi::RingSpec::default(),
                _ => self.sq.ring().spec(),
            },
            rq: rq.unwrap_or_default(),
        }
    }

    /// Returns the address and size in bytes of the memory that the kernel pins.
    fn pinned(&self) -> (u64, usize) {
        match &self.rq {
            // Two rings that the kernel pins are in one mapping.
            Some(rq) => rq.lock().ring().pinned(),
            None if self.cap.max_send_wr == 0 => NOT_PINNED,
            None => self.sq.ring().pinned(),
        }
    }

    /// Returns the error of posting to the send queue in the current state, or 0. Posting is an
    /// immediate error in Reset, Init and Ready to Receive (IBA 10.3.1).
    #[inline]
    pub(crate) fn send_error(&self) -> c_int {
        if self.state.load(Ordering::Relaxed) < qp_state::RTS {
            EINVAL
        } else {
            0
        }
    }

    /// Returns the error of posting to the receive queue in the current state, or 0. Posting is an
    /// immediate error in Reset (IBA 10.3.1).
    #[inline]
    pub(crate) fn recv_error(&self) -> c_int {
        if self.state.load(Ordering::Relaxed) == qp_state::RESET {
            EINVAL
        } else {
            0
        }
    }

    /// Records the state that the consumer set or queried.
    pub(crate) fn set_state(&self, state: u32) {
        self.state.store(state, Ordering::Relaxed);
    }

    /// Removes the completions of the queue pair from its completion queues. The queue pair cannot
    /// complete further work requests: it was destroyed or is in Reset.
    fn remove_completions(&self) {
        // SAFETY: libibverbs wrote the number when it created the queue pair.
        let qp_num = unsafe { (*self.verbs.get()).qp_ex.qp_base.qp_num };
        for cq in [self.send_cq, self.recv_cq].into_iter().flatten() {
            cq.queue.open().remove(qp_num);
        }
    }
}

/// Allocates the rings of a queue pair; the receive ring only if something can be posted to it.
/// Fails with `EINVAL` if `cap` exceeds the limits of the device, or with `ENOMEM`.
///
/// # Safety
///
/// Nothing uses the first ring after the second is dropped.
unsafe fn rings(
    context: &Context,
    pd: Option<Ptr<IbvPd>>,
    cap: &IbvQpCap,
) -> Result<(Ring, Option<Ring>), c_int> {
    let Context { device, kernel, .. } = context;
    if cap.max_send_wr.max(cap.max_recv_wr) > device.max_qp_wr
        || cap.max_send_sge.max(cap.max_recv_sge) > kernel.max_sge
        || cap.max_inline_data > kernel.max_inline
    {
        return Err(EINVAL);
    }
    let send = Shape {
        entries: cap.max_send_wr.max(1),
        stride: abi::send_stride(cap.max_send_sge, cap.max_inline_data).ok_or(EINVAL)?,
    };
    let recv = Shape {
        entries: cap.max_recv_wr,
        stride: abi::recv_stride(cap.max_recv_sge).ok_or(EINVAL)?,
    };
    let allocator = pd.and_then(|pd| pd.allocator());
    let allocator = allocator.as_ref();
    if cap.max_send_wr != 0 && cap.max_recv_wr != 0 {
        // SAFETY: the caller drops the receive ring last.
        let (ring, recv_ring) = unsafe { Ring::pair(allocator, send, recv)? };
        return Ok((ring, Some(recv_ring)));
    }
    // The kernel does not pin a send ring without entries.
    let ring = Ring::allocate_in(allocator, send.entries, send.stride)?;
    let recv_ring = match cap.max_recv_wr {
        0 => None,
        _ => Some(Ring::allocate_in(allocator, recv.entries, recv.stride)?),
    };
    Ok((ring, recv_ring))
}

/// Creates a queue pair. Sets `attr.cap` to its capacities.
fn create(context: Ptr<IbvContext>, attr: &mut IbvQpInitAttrEx) -> Result<Owned<Qp>, c_int> {
    let mut qp = Qp::new(context, attr)?;
    let ops = attr.send_ops_flags;
    let has_ops = attr.comp_mask & qp_init_attr::SEND_OPS_FLAGS != 0;
    if has_ops && !wr::supports(qp.opcodes, ops) {
        return Err(EOPNOTSUPP);
    }
    let error = command::create_qp_ex(context, &qp.verbs, attr, qp.command());
    report_limit(WHAT, qp.pinned(), error)?;
    if has_ops {
        let verbs = qp.verbs.get_mut();
        wr::set_functions(&mut verbs.qp_ex, ops);
        verbs.comp_mask |= VERBS_QP_EX;
    }
    attr.cap = qp.cap;
    Ok(qp)
}

/// `ibv_create_qp`.
pub(crate) extern "C" fn create_qp(pd: Ptr<IbvPd>, attr: &mut IbvQpInitAttr) -> *mut IbvQp {
    object::create(|| {
        // SAFETY: integers, and pointers that may be null.
        let zeroed: IbvQpInitAttrEx = unsafe { command::zeroed() };
        let mut extended = IbvQpInitAttrEx {
            qp_context: attr.qp_context,
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            srq: attr.srq,
            cap: attr.cap,
            qp_type: attr.qp_type,
            sq_sig_all: attr.sq_sig_all,
            comp_mask: qp_init_attr::PD,
            pd: Some(pd),
            ..zeroed
        };
        let qp = create(pd.context(), &mut extended)?;
        attr.cap = extended.cap;
        Ok(qp)
    })
}

/// `ibv_create_qp_ex`.
///
/// # Safety
///
/// `attr` has the members up to `comp_mask`, and those that `comp_mask` names. It may be written.
pub(crate) unsafe extern "C" fn create_qp_ex(
    context: Ptr<IbvContext>,
    attr: *mut IbvQpInitAttrEx,
) -> *mut IbvQp {
    object::create(|| {
        // SAFETY: the caller's contract.
        let mut local = unsafe { known_members(attr)? };
        let qp = create(context, &mut local)?;
        // SAFETY: as above.
        unsafe { (*attr).cap = local.cap };
        Ok(qp)
    })
}

/// Returns a copy of the members that `comp_mask` names; the others are zero. The program may have
/// been compiled with a header in which the structure is shorter. Fails with `EOPNOTSUPP` if the
/// program asks for something that rrxe does not have.
///
/// # Safety
///
/// `attr` has the members up to `comp_mask`, and those that `comp_mask` names.
unsafe fn known_members(attr: *const IbvQpInitAttrEx) -> Result<IbvQpInitAttrEx, c_int> {
    const COMP_MASK: u32 = qp_init_attr::PD
        | qp_init_attr::XRCD
        | qp_init_attr::CREATE_FLAGS
        | qp_init_attr::SEND_OPS_FLAGS;
    // SAFETY: the caller's contract. Of the copy, all bytes zero are valid: integers, and pointers
    // that may be null.
    unsafe {
        let mut local: IbvQpInitAttrEx = command::zeroed();
        attr.cast::<u8>().copy_to_nonoverlapping(
            (&raw mut local).cast::<u8>(),
            offset_of!(IbvQpInitAttrEx, pd),
        );
        let mask = local.comp_mask;
        if mask & qp_init_attr::PD != 0 {
            local.pd = (*attr).pd;
        }
        if mask & qp_init_attr::XRCD != 0 {
            local.xrcd = (*attr).xrcd;
        }
        if mask & qp_init_attr::SEND_OPS_FLAGS != 0 {
            local.send_ops_flags = (*attr).send_ops_flags;
        }
        if mask & !COMP_MASK != 0
            || mask & qp_init_attr::CREATE_FLAGS != 0 && (*attr).create_flags != 0
        {
            return Err(EOPNOTSUPP);
        }
        local.comp_mask &= !qp_init_attr::CREATE_FLAGS;
        Ok(local)
    }
}

/// `ibv_open_qp`: creates another handle of an XRC target queue pair.
pub(crate) extern "C" fn open_qp(
    context: Ptr<IbvContext>,
    attr: Foreign<IbvQpOpenAttr>,
) -> *mut IbvQp {
    object::create(|| {
        // SAFETY: integers, and pointers that may be null.
        let mut attributes: IbvQpInitAttrEx = unsafe { command::zeroed() };
        attributes.qp_type = qp_type::XRC_RECV;
        let qp = Qp::new(context, &mut attributes)?;
        let size = size_of::<VerbsQp>() as c_int;
        check(command::open_qp(context, &qp.verbs, size, attr))?;
        Ok(qp)
    })
}

/// `ibv_modify_qp`.
pub(crate) extern "C" fn modify_qp(qp: Ptr<IbvQp>, attr: &IbvQpAttr, attr_mask: c_int) -> c_int {
    let error = command::modify_qp(qp, attr, attr_mask);
    if error != 0 || attr_mask & QP_ATTR_STATE == 0 {
        return error;
    }
    qp.set_state(attr.qp_state);
    if attr.qp_state == qp_state::RESET {
        qp.remove_completions();
        qp.sq.reset();
        if let Some(rq) = &qp.rq {
            rq.lock().reset();
        }
    }
    0
}

/// `ibv_query_qp`.
pub(crate) extern "C" fn query_qp(
    qp: Ptr<IbvQp>,
    attr: &mut MaybeUninit<IbvQpAttr>,
    attr_mask: c_int,
    init_attr: &mut MaybeUninit<IbvQpInitAttr>,
) -> c_int {
    let error = command::query_qp(qp, attr, attr_mask, init_attr);
    if error != 0 {
        return error;
    }
    let (attr, init_attr) = (attr.as_mut_ptr(), init_attr.as_mut_ptr());
    // SAFETY: the command has written both. This side allocated the rings, so it knows their
    // capacities.
    unsafe {
        (*attr).cap = qp.cap;
        (*init_attr).cap = qp.cap;
        if attr_mask & QP_ATTR_STATE != 0 {
            qp.set_state((*attr).qp_state);
        }
    }
    0
}

/// `ibv_destroy_qp`. Also removes the queue pair's completions from its completion queues, as the
/// verbs allow, so that no completion names a destroyed queue pair.
///
/// # Safety
///
/// Unless the call fails, nothing uses the queue pair afterwards.
pub(crate) unsafe extern "C" fn destroy_qp(qp: Ptr<IbvQp>) -> c_int {
    let error = ibv_cmd_destroy_qp(qp);
    if error == 0 {
        qp.remove_completions();
    }
    // SAFETY: a create function created the queue pair; the rest is this function's contract.
    unsafe { object::destroy(qp, error) }
}

/// `ibv_attach_mcast`.
pub(crate) extern "C" fn attach_mcast(qp: Ptr<IbvQp>, gid: Foreign<IbvGid>, lid: u16) -> c_int {
    let error = ibv_cmd_attach_mcast(qp, gid, lid);
    status(report_limit("a multicast membership", NOT_PINNED, error))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::context::tests::context;

    const ASKED: IbvQpCap = IbvQpCap {
        max_send_wr: 10,
        max_recv_wr: 5,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    };

    /// Returns the address of the public part of a queue pair.
    pub(crate) fn public<P: Public<Object = Qp>>(qp: &Qp) -> Ptr<P> {
        // SAFETY: the public part is the first member; tests use no address after the queue pair.
        unsafe { Ptr::new(core::ptr::from_ref(qp).cast_mut().cast()) }
    }

    fn create(
        qp_type: u32,
        cap: &mut IbvQpCap,
        srq: Option<Ptr<IbvSrq>>,
    ) -> Result<Owned<Qp>, c_int> {
        // SAFETY: integers, and pointers that may be null.
        let mut attr: IbvQpInitAttrEx = unsafe { command::zeroed() };
        (attr.qp_type, attr.cap, attr.srq) = (qp_type, *cap, srq);
        let qp = Qp::new(context(), &mut attr);
        *cap = attr.cap;
        qp
    }

    fn new(qp_type: u32, cap: &mut IbvQpCap) -> Result<Owned<Qp>, c_int> {
        create(qp_type, cap, None)
    }

    /// Creates a queue pair without a device. It is in Ready to Send, but the kernel never consumes
    /// an entry, and it needs no doorbell.
    fn ready(qp_type: u32, mut cap: IbvQpCap) -> Owned<Qp> {
        let qp = new(qp_type, &mut cap).ok().unwrap();
        qp.set_state(qp_state::RTS);
        qp.sq.ring().set_doorbell_event(1 << 30);
        qp
    }

    pub(crate) fn small(qp_type: u32) -> Owned<Qp> {
        ready(
            qp_type,
            IbvQpCap {
                max_send_wr: 4,
                max_recv_wr: 4,
                max_send_sge: 2,
                ..ASKED
            },
        )
    }

    #[test]
    fn rings_have_room_for_what_was_asked() {
        let mut cap = ASKED;
        let qp = new(qp_type::RC, &mut cap).ok().unwrap();
        // A data segment leaves 16 bytes for inline data.
        assert_eq!(cap.max_inline_data, 16);
        let command = qp.command();
        assert_eq!((command.sq.capacity, command.sq.stride), (16, 80));
        assert_eq!((command.rq.capacity, command.rq.stride), (8, 32));
        let offset = command.sq.next_ring().unwrap() as u64;
        assert_eq!(command.rq.addr, command.sq.addr + offset);

        let expected = IbvQpCap {
            max_inline_data: 16,
            ..ASKED
        };
        assert_eq!(qp.cap, expected);
    }

    #[test]
    fn no_send_ring_where_nothing_is_sent() {
        for (qp_type, max_recv_wr, capacity) in [(qp_type::XRC_RECV, 0, 0), (qp_type::RC, 5, 8)] {
            let mut cap = IbvQpCap {
                max_send_wr: 0,
                max_recv_wr,
                ..ASKED
            };
            let qp = new(qp_type, &mut cap).ok().unwrap();
            let command = qp.command();
            assert_eq!((command.sq.addr, command.sq.capacity), (0, 0));
            assert_eq!(command.rq.capacity, capacity);
            assert_eq!(command.rq.addr % 4096, 0);
        }
    }

    /// An old program's structure may end where a member begins that it does not name.
    #[test]
    fn only_members_that_are_named_are_read() {
        use core::ptr::addr_of_mut;

        let end = crate::ring::tests::start_of_a_hole();
        for (comp_mask, length) in [
            (0, offset_of!(IbvQpInitAttrEx, pd)),
            (qp_init_attr::PD, offset_of!(IbvQpInitAttrEx, xrcd)),
            (
                qp_init_attr::XRCD,
                offset_of!(IbvQpInitAttrEx, create_flags),
            ),
            (
                qp_init_attr::CREATE_FLAGS,
                offset_of!(IbvQpInitAttrEx, unused_from_rwq_ind_tbl),
            ),
            (qp_init_attr::SEND_OPS_FLAGS, size_of::<IbvQpInitAttrEx>()),
            (1 << 30, offset_of!(IbvQpInitAttrEx, pd)),
        ] {
            let attr = end.wrapping_sub(length).cast::<IbvQpInitAttrEx>();
            // SAFETY: the members up to `length` are mapped.
            let copy = unsafe {
                attr.cast::<u8>().write_bytes(0, length);
                addr_of_mut!((*attr).comp_mask).write(comp_mask);
                addr_of_mut!((*attr).cap.max_send_wr).write(17);
                known_members(attr)
            };
            match copy {
                Ok(copy) => assert_eq!(copy.cap.max_send_wr, 17),
                Err(error) => assert_eq!((error, comp_mask), (EOPNOTSUPP, 1 << 30)),
            }
        }
    }

    #[test]
    fn more_than_the_device_has_is_refused() {
        let bad = [
            IbvQpCap {
                max_send_wr: 1025,
                ..ASKED
            },
            IbvQpCap {
                max_recv_wr: u32::MAX,
                ..ASKED
            },
            IbvQpCap {
                max_send_sge: 33,
                ..ASKED
            },
            IbvQpCap {
                max_recv_sge: u32::MAX,
                ..ASKED
            },
            IbvQpCap {
                max_inline_data: 513,
                ..ASKED
            },
        ];
        for mut cap in bad {
            assert_eq!(new(qp_type::RC, &mut cap).err(), Some(EINVAL));
        }
        let mut cap = ASKED;
        assert_eq!(new(8, &mut cap).err(), Some(EOPNOTSUPP));
    }

    #[test]
    fn no_receive_queue_where_none_is_used() {
        let mut cap = IbvQpCap {
            max_recv_wr: u32::MAX,
            ..ASKED
        };
        let srq = Some(crate::srq::tests::shared());
        let qp = create(qp_type::RC, &mut cap, srq).ok().unwrap();
        assert_eq!((cap.max_recv_wr, cap.max_recv_sge), (0, 0));
        assert_eq!((qp.command().rq.addr, qp.command().rq.capacity), (0, 0));
        let mut cap = IbvQpCap {
            max_recv_wr: 0,
            ..ASKED
        };
        assert!(new(qp_type::RC, &mut cap).ok().unwrap().rq.is_none());
    }

    #[test]
    fn states_say_what_can_be_posted() {
        let qp = small(qp_type::RC);
        for (state, send, recv) in [
            (0, EINVAL, EINVAL),
            (1, EINVAL, 0),
            (2, EINVAL, 0),
            (3, 0, 0),
            (4, 0, 0),
            (5, 0, 0),
            (6, 0, 0),
        ] {
            qp.set_state(state);
            assert_eq!(
                (qp.send_error(), qp.recv_error()),
                (send, recv),
                "state {state}"
            );
        }
    }
}
