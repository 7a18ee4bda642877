// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Queue pairs: create, modify, query, destroy.

use crate::abi::{self, wr_opcode};
use crate::context::{self, Limits};
use crate::cq::Cq;
use crate::ffi::driver::*;
use crate::ffi::os::{EINVAL, EOPNOTSUPP};
use crate::ffi::verbs::*;
use crate::ffi::{command, pabi};
use crate::memlock;
use crate::object;
use crate::quota;
use crate::recv_queue::{RecvLimits, RecvQueue};
use crate::ring::{Ring, Shape};
use crate::send_queue::{only, Opcodes, SendLimits, SendQueue};
use crate::wr;
use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::ptr::addr_of_mut;
use core::sync::atomic::{AtomicU32, Ordering};

/// A queue pair.
#[repr(C)]
pub(crate) struct Qp {
    /// Public part, which libibverbs and the consumer write to.
    pub(crate) verbs: UnsafeCell<VerbsQp>,
    pub(crate) sq: SendQueue,
    /// `None` if no receive can be posted.
    pub(crate) rq: Option<RecvQueue>,
    pub(crate) rules: Rules,
    /// `enum ibv_qp_state` as the consumer last set or queried it. In the kernel the queue pair may
    /// have moved to Error since.
    state: AtomicU32,
}

/// Name of the object in messages.
const WHAT: &str = "a queue pair";

/// Rules for the types of queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    /// Opcodes that can be posted to the send queue.
    pub(crate) opcodes: Opcodes,
    /// Whether each send has a destination of its own.
    pub(crate) datagram: bool,
    /// Whether each send names the shared receive queue of the peer.
    pub(crate) xrc: bool,
}

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

impl Rules {
    /// Returns the rules of a type of queue pair (IBA 9.8.1, table of transport functions). Fails
    /// with `EOPNOTSUPP` for a type that rrxe does not support.
    pub(crate) fn of(qp_type: u32) -> Result<Self, c_int> {
        let (opcodes, datagram, xrc) = match qp_type {
            qp_type::RC => (RC_OPCODES, false, false),
            qp_type::UC => (UC_OPCODES, false, false),
            qp_type::UD => (UD_OPCODES, true, false),
            qp_type::XRC_SEND => (RC_OPCODES, false, true),
            // It only receives, into shared receive queues.
            qp_type::XRC_RECV => (0, false, false),
            _ => return Err(EOPNOTSUPP),
        };
        Ok(Self {
            opcodes,
            datagram,
            xrc,
        })
    }
}

impl Qp {
    /// Creates a queue pair that the kernel does not know yet, with rings for the capacities in
    /// `cap`. Sets `cap.max_inline_data` to the bytes that an entry has room for.
    ///
    /// Fails with `EINVAL` if `cap` exceeds the limits of the device, with `EOPNOTSUPP`, or with
    /// `ENOMEM`.
    pub(crate) fn new(
        qp_type: u32,
        cap: &mut IbvQpCap,
        has_rq: bool,
        device: Limits,
    ) -> Result<Box<Self>, c_int> {
        let rules = Rules::of(qp_type)?;
        // These types ignore the requested capacities.
        match qp_type {
            qp_type::XRC_RECV => *cap = IbvQpCap::default(),
            qp_type::XRC_SEND => (cap.max_recv_wr, cap.max_recv_sge) = (0, 0),
            _ if !has_rq => (cap.max_recv_wr, cap.max_recv_sge) = (0, 0),
            _ => {}
        }
        if cap.max_send_wr.max(cap.max_recv_wr) > device.max_qp_wr
            || cap.max_send_sge.max(cap.max_recv_sge) > device.max_sge
            || cap.max_inline_data > device.max_inline
        {
            return Err(EINVAL);
        }

        let send = Shape {
            entries: cap.max_send_wr.max(1),
            stride: device.stride(abi::send_stride(cap.max_send_sge, cap.max_inline_data))?,
        };
        let recv = Shape {
            entries: cap.max_recv_wr,
            stride: device.stride(abi::recv_stride(cap.max_recv_sge))?,
        };
        let (ring, recv_ring) = match (cap.max_send_wr, cap.max_recv_wr) {
            (_, 0) => (Ring::allocate(send.entries, send.stride)?, None),
            // The kernel does not pin the send ring, so the receive ring needs pages of its own.
            (0, _) => {
                let (ring, recv_ring) = Ring::pair(send, recv, false)?;
                (ring, Some(recv_ring))
            }
            _ => {
                let (ring, recv_ring) = Ring::pair(send, recv, device.packed)?;
                (ring, Some(recv_ring))
            }
        };
        let asked = SendLimits {
            depth: cap.max_send_wr,
            max_sge: cap.max_send_sge,
            max_inline: device.max_inline,
        };
        let sq = SendQueue::new(ring, asked);
        cap.max_inline_data = sq.limits().max_inline;

        let asked = RecvLimits {
            depth: cap.max_recv_wr,
            max_sge: cap.max_recv_sge,
        };
        let rq = recv_ring.map(|ring| RecvQueue::new(ring, asked));
        Ok(Box::new(Self {
            // SAFETY: integers, pointers that may be null, optional functions.
            verbs: UnsafeCell::new(unsafe { command::zeroed() }),
            sq,
            rq,
            rules,
            state: AtomicU32::new(qp_state::RESET),
        }))
    }

    /// Returns the queue pair that contains the public one.
    ///
    /// # Safety
    ///
    /// `qp` is a queue pair of rrxe (an [`IbvQp`] or [`IbvQpEx`]), and stays one for `'a`.
    pub(crate) unsafe fn of<'a, T>(qp: *mut T) -> &'a Self {
        // SAFETY: the public part is the first member of a `Qp`. The members that C code writes to
        // are in an `UnsafeCell`.
        unsafe { &*qp.cast::<Self>() }
    }

    /// Returns the create command's driver part. It omits the ring of a send queue to which nothing
    /// can be posted.
    fn command(&self) -> abi::CreateQpCmd {
        abi::CreateQpCmd {
            sq: match self.sq.limits().depth {
                0 => abi::RingSpec::default(),
                _ => self.sq.ring().spec(),
            },
            rq: self
                .rq
                .as_ref()
                .map(|rq| rq.ring().spec())
                .unwrap_or_default(),
        }
    }

    /// Returns the address and size in bytes of the memory that the kernel pins.
    fn pinned(&self) -> (u64, usize) {
        let command = self.command();
        let of = |spec: &abi::RingSpec| match spec.addr {
            0 => 0,
            _ => spec.size().unwrap_or(0),
        };
        match command.sq.addr {
            0 => (command.rq.addr, of(&command.rq)),
            // From the start of the first ring to the end of the second.
            addr => {
                let offset = command.sq.next_ring().unwrap_or(0);
                let bytes = match command.rq.addr {
                    0 => of(&command.sq),
                    _ => offset.saturating_add(of(&command.rq)),
                };
                (addr, bytes)
            }
        }
    }

    /// Adopts the capacities that the kernel granted: at least those requested, and at most those
    /// of the rings. Sets `cap` to the result.
    fn grant(&mut self, cap: &mut IbvQpCap) {
        let asked = self.cap();
        self.sq.set_limits(SendLimits {
            depth: match asked.max_send_wr {
                // The kernel does not know the ring.
                0 => 0,
                depth => depth.max(cap.max_send_wr),
            },
            max_sge: asked.max_send_sge.max(cap.max_send_sge),
            max_inline: asked.max_inline_data,
        });
        if let Some(rq) = &mut self.rq {
            rq.set_limits(RecvLimits {
                depth: asked.max_recv_wr.max(cap.max_recv_wr),
                max_sge: asked.max_recv_sge.max(cap.max_recv_sge),
            });
        }
        *cap = self.cap();
    }

    /// Returns the capacities of the queue pair.
    fn cap(&self) -> IbvQpCap {
        let sq = self.sq.limits();
        let rq = self.rq.as_ref().map(RecvQueue::limits);
        let rq = rq.unwrap_or(RecvLimits {
            depth: 0,
            max_sge: 0,
        });
        IbvQpCap {
            max_send_wr: sq.depth,
            max_recv_wr: rq.depth,
            max_send_sge: sq.max_sge,
            max_recv_sge: rq.max_sge,
            max_inline_data: sq.max_inline,
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
    ///
    /// # Safety
    ///
    /// The kernel created the queue pair, and the completion queues still exist.
    unsafe fn remove_completions(&self) {
        // SAFETY: libibverbs filled in the public part and does not change these members; the
        // consumer cannot destroy the completion queues before the queue pair.
        unsafe {
            let qp = self.verbs.get().cast::<IbvQp>();
            let (send_cq, recv_cq, qp_num) = ((*qp).send_cq, (*qp).recv_cq, (*qp).qp_num);
            if !send_cq.is_null() {
                Cq::of(send_cq).queue.remove(qp_num);
            }
            if !recv_cq.is_null() && recv_cq != send_cq {
                Cq::of(recv_cq).queue.remove(qp_num);
            }
        }
    }
}

/// `ibv_create_qp`.
///
/// # Safety
///
/// Called by libibverbs with a protection domain of an open rrxe device; `attr` may be read and
/// written.
pub(crate) unsafe extern "C" fn create_qp(pd: *mut IbvPd, attr: *mut IbvQpInitAttr) -> *mut IbvQp {
    object::create(|| {
        // SAFETY: the caller's contract.
        let (limits, mut local) = unsafe { (context::limits((*pd).context), attr.read()) };
        let has_rq = local.srq.is_null();
        let mut qp = Qp::new(local.qp_type, &mut local.cap, has_rq, limits)?;
        qp.sq.set_signal_all(local.sq_sig_all != 0);
        let mut cmd = command::CreateQp::new(qp.command());
        let mut resp = command::CreateQpResp::zeroed();
        // SAFETY: the caller's contract, and the buffers have the sizes given.
        object::check(unsafe {
            memlock::explained(
                (*pd).context,
                WHAT,
                qp.pinned(),
                ibv_cmd_create_qp(
                    pd,
                    qp.verbs.get().cast(),
                    &mut local,
                    &mut cmd,
                    size_of_val(&cmd),
                    &mut resp,
                    size_of_val(&resp),
                ),
            )
        })?;
        qp.grant(&mut local.cap);
        // SAFETY: the caller's contract.
        unsafe { (*attr).cap = local.cap };
        Ok(qp)
    })
}

/// `ibv_create_qp_ex`.
///
/// # Safety
///
/// Called by libibverbs with an open rrxe device; `attr` may be read and written.
pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut IbvContext,
    attr: *mut IbvQpInitAttrEx,
) -> *mut IbvQp {
    object::create(|| {
        const COMP_MASK: u32 = qp_init_attr::PD
            | qp_init_attr::XRCD
            | qp_init_attr::CREATE_FLAGS
            | qp_init_attr::SEND_OPS_FLAGS;
        // SAFETY: the caller's contract.
        let (limits, mut local) = unsafe { (context::limits(context), attr.read()) };
        if local.comp_mask & !COMP_MASK != 0
            || (local.comp_mask & qp_init_attr::CREATE_FLAGS != 0 && local.create_flags != 0)
        {
            return Err(EOPNOTSUPP);
        }
        let has_rq = local.srq.is_null();
        let mut qp = Qp::new(local.qp_type, &mut local.cap, has_rq, limits)?;
        qp.sq.set_signal_all(local.sq_sig_all != 0);
        let send_ops =
            (local.comp_mask & qp_init_attr::SEND_OPS_FLAGS != 0).then_some(local.send_ops_flags);
        if send_ops.is_some_and(|flags| !wr::supports(qp.rules, flags)) {
            return Err(EOPNOTSUPP);
        }
        let mut cmd = command::CreateQpEx::new(qp.command());
        let mut resp = command::CreateQpExResp::zeroed();
        let verbs = qp.verbs.get();
        // SAFETY: the caller's contract, and the buffers have the sizes given.
        object::check(unsafe {
            memlock::explained(
                context,
                WHAT,
                qp.pinned(),
                pabi::ibv_cmd_create_qp_ex2(
                    context,
                    verbs,
                    &mut local,
                    &mut cmd,
                    size_of_val(&cmd),
                    &mut resp,
                    size_of_val(&resp),
                ),
            )
        })?;
        qp.grant(&mut local.cap);
        // SAFETY: the queue pair is not yet shared; the rest is the caller's contract.
        unsafe {
            if let Some(flags) = send_ops {
                wr::set_functions(&mut (*verbs).qp_ex, flags);
                (*verbs).comp_mask |= VERBS_QP_EX;
            }
            (*attr).cap = local.cap;
        }
        Ok(qp)
    })
}

/// `ibv_open_qp`: creates another handle of an XRC target queue pair.
///
/// # Safety
///
/// Called by libibverbs with an open rrxe device; `attr` may be read.
pub(crate) unsafe extern "C" fn open_qp(
    context: *mut IbvContext,
    attr: *mut IbvQpOpenAttr,
) -> *mut IbvQp {
    object::create(|| {
        // SAFETY: the caller's contract.
        let limits = unsafe { context::limits(context) };
        let mut cap = IbvQpCap::default();
        let qp = Qp::new(qp_type::XRC_RECV, &mut cap, false, limits)?;
        let mut cmd = command::OpenQp::zeroed();
        let mut resp = command::CreateQpResp::zeroed();
        // SAFETY: the caller's contract, and all buffers have the sizes given.
        object::check(unsafe {
            ibv_cmd_open_qp(
                context,
                qp.verbs.get(),
                size_of::<VerbsQp>() as c_int,
                attr,
                &mut cmd,
                size_of_val(&cmd),
                &mut resp,
                size_of_val(&resp),
            )
        })?;
        Ok(qp)
    })
}

/// `ibv_modify_qp`.
///
/// # Safety
///
/// Called by libibverbs with a queue pair of rrxe; `attr` may be read.
pub(crate) unsafe extern "C" fn modify_qp(
    qp: *mut IbvQp,
    attr: *mut IbvQpAttr,
    attr_mask: c_int,
) -> c_int {
    let mut cmd = command::ModifyQp::zeroed();
    // SAFETY: the caller's contract, and the command has the size given.
    let error = unsafe { ibv_cmd_modify_qp(qp, attr, attr_mask, &mut cmd, size_of_val(&cmd)) };
    if error != 0 || attr_mask & QP_ATTR_STATE == 0 {
        return error;
    }
    // SAFETY: the caller's contract.
    let (this, state) = unsafe { (Qp::of(qp), (*attr).qp_state) };
    this.set_state(state);
    if state == qp_state::RESET {
        // SAFETY: the kernel created the queue pair; the consumer keeps the completion queues.
        unsafe { this.remove_completions() };
        this.sq.reset();
        if let Some(rq) = &this.rq {
            rq.reset();
        }
    }
    0
}

/// `ibv_query_qp`.
///
/// # Safety
///
/// Called by libibverbs with a queue pair of rrxe; `attr` and `init_attr` may be written.
pub(crate) unsafe extern "C" fn query_qp(
    qp: *mut IbvQp,
    attr: *mut IbvQpAttr,
    attr_mask: c_int,
    init_attr: *mut IbvQpInitAttr,
) -> c_int {
    let mut cmd = command::QueryQp::zeroed();
    // SAFETY: the caller's contract, and the command has the size given.
    let error =
        unsafe { ibv_cmd_query_qp(qp, attr, attr_mask, init_attr, &mut cmd, size_of_val(&cmd)) };
    if error != 0 {
        return error;
    }
    // SAFETY: the caller's contract.
    unsafe {
        let this = Qp::of(qp);
        // This side allocated the rings, so it knows their capacities.
        (*attr).cap = this.cap();
        (*init_attr).cap = this.cap();
        if attr_mask & QP_ATTR_STATE != 0 {
            this.set_state((*attr).qp_state);
        }
    }
    0
}

/// `ibv_destroy_qp`. Also removes the queue pair's completions from its completion queues, as the
/// verbs allow, so that no completion names a destroyed queue pair.
///
/// # Safety
///
/// Called by libibverbs with a queue pair that a create function returned.
pub(crate) unsafe extern "C" fn destroy_qp(qp: *mut IbvQp) -> c_int {
    // SAFETY: the caller's contract; the consumer gives up the queue pair, but its completion
    // queues still exist.
    unsafe {
        let error = ibv_cmd_destroy_qp(qp);
        if error == 0 {
            Qp::of(qp).remove_completions();
        }
        object::destroy::<Qp, _>(qp, error)
    }
}

/// `ibv_attach_mcast`.
///
/// # Safety
///
/// Called by libibverbs with a queue pair of rrxe; `gid` may be read.
pub(crate) unsafe extern "C" fn attach_mcast(
    qp: *mut IbvQp,
    gid: *const IbvGid,
    lid: u16,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        let error = ibv_cmd_attach_mcast(qp, gid, lid);
        quota::explained((*qp).context, "a multicast membership", error)
    }
}

/// Returns the public part of a queue pair, for the C interface.
pub(crate) fn public(qp: &Qp) -> *mut IbvQp {
    // SAFETY: only an address is taken.
    unsafe { addr_of_mut!((*qp.verbs.get()).qp_ex.qp_base) }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const DEVICE: Limits = Limits {
        max_qp_wr: 1024,
        max_sge: 32,
        max_inline: 512,
        max_cqe: 1024,
        max_srq_wr: 1024,
        max_srq_sge: 32,
        packed: true,
    };
    const ASKED: IbvQpCap = IbvQpCap {
        max_send_wr: 10,
        max_recv_wr: 5,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    };

    /// Creates a queue pair without a device. It is in Ready to Send, but the kernel never takes an
    /// entry, and it needs no doorbell.
    pub(crate) fn ready(qp_type: u32, cap: IbvQpCap) -> Box<Qp> {
        let mut cap = cap;
        let qp = Qp::new(qp_type, &mut cap, true, DEVICE).ok().unwrap();
        qp.set_state(qp_state::RTS);
        qp.sq.ring().set_doorbell_event(1 << 30);
        qp
    }

    pub(crate) fn small(qp_type: u32) -> Box<Qp> {
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
        let mut qp = Qp::new(qp_type::RC, &mut cap, true, DEVICE).ok().unwrap();
        // A data segment leaves 16 bytes for inline data.
        assert_eq!(cap.max_inline_data, 16);
        let command = qp.command();
        assert_eq!((command.sq.capacity, command.sq.stride), (16, 80));
        assert_eq!((command.rq.capacity, command.rq.stride), (8, 32));
        let offset = command.sq.next_ring().unwrap() as u64;
        assert_eq!(command.rq.addr, command.sq.addr + offset);

        // A kernel that grants what it was asked for.
        qp.grant(&mut cap);
        assert_eq!(
            cap,
            IbvQpCap {
                max_inline_data: 16,
                ..ASKED
            }
        );
        // A kernel that grants more than the rings hold.
        let much = IbvQpCap {
            max_send_wr: 1000,
            max_recv_wr: 1000,
            max_send_sge: 1000,
            max_recv_sge: 1000,
            max_inline_data: 1000,
        };
        let mut cap = much;
        qp.grant(&mut cap);
        let expected = IbvQpCap {
            max_send_wr: 16,
            max_recv_wr: 8,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 16,
        };
        assert_eq!(cap, expected);
        // A kernel that grants nothing.
        let mut cap = IbvQpCap::default();
        qp.grant(&mut cap);
        assert_eq!(cap, expected);
    }

    #[test]
    fn padded_for_a_kernel_that_wants_that() {
        let device = Limits {
            packed: false,
            ..DEVICE
        };
        let mut cap = ASKED;
        let qp = Qp::new(qp_type::RC, &mut cap, true, device).ok().unwrap();
        assert_eq!(cap.max_inline_data, 64);
        let command = qp.command();
        assert_eq!((command.sq.stride, command.rq.stride), (128, 32));
        assert_eq!((command.sq.addr % 4096, command.rq.addr % 4096), (0, 0));
    }

    #[test]
    fn no_send_ring_where_nothing_is_sent() {
        for (qp_type, max_recv_wr, capacity) in [(qp_type::XRC_RECV, 0, 0), (qp_type::RC, 5, 8)] {
            let mut cap = IbvQpCap {
                max_send_wr: 0,
                max_recv_wr,
                ..ASKED
            };
            let qp = Qp::new(qp_type, &mut cap, true, DEVICE).ok().unwrap();
            let command = qp.command();
            assert_eq!((command.sq.addr, command.sq.capacity), (0, 0));
            assert_eq!(command.rq.capacity, capacity);
            assert_eq!(command.rq.addr % 4096, 0);
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
            assert_eq!(
                Qp::new(qp_type::RC, &mut cap, true, DEVICE).err(),
                Some(EINVAL)
            );
        }
        let mut cap = ASKED;
        assert_eq!(Qp::new(8, &mut cap, true, DEVICE).err(), Some(EOPNOTSUPP));
    }

    #[test]
    fn no_receive_queue_where_none_is_used() {
        let mut cap = IbvQpCap {
            max_recv_wr: u32::MAX,
            ..ASKED
        };
        let qp = Qp::new(qp_type::RC, &mut cap, false, DEVICE).ok().unwrap();
        assert_eq!((cap.max_recv_wr, cap.max_recv_sge), (0, 0));
        assert_eq!((qp.command().rq.addr, qp.command().rq.capacity), (0, 0));
        let mut cap = IbvQpCap {
            max_recv_wr: 0,
            ..ASKED
        };
        assert!(Qp::new(qp_type::RC, &mut cap, true, DEVICE)
            .ok()
            .unwrap()
            .rq
            .is_none());
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
