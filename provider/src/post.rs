// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Posting lists of work requests: `ibv_post_send` and `ibv_post_recv`. Also `ibv_bind_mw`, which
//! posts one.
//!
//! Work requests before a bad one are posted. The functions return `EINVAL` if a work request is
//! not allowed, `ENOMEM` if the queue is full, or the kernel's error if a doorbell was needed.

use crate::abi::{wr_opcode, SendWqe, WqeOp};
use crate::doorbell;
use crate::ffi::os::EINVAL;
use crate::ffi::ptr::Ptr;
use crate::ffi::verbs::*;
use crate::mw;
use crate::object::status;
use crate::qp::Qp;
use crate::send_queue::{contains, Batch, PASSED_FLAGS, SEND_INLINE};
use crate::wr::remote;
use core::ffi::c_int;

/// `ibv_post_send`.
///
/// # Safety
///
/// `wr` is a list of work requests, and all pointers in it are valid. `bad_wr` may be written, or
/// is null.
pub(crate) unsafe extern "C" fn post_send(
    qp: Ptr<IbvQp>,
    wr: *mut IbvSendWr,
    bad_wr: *mut *mut IbvSendWr,
) -> c_int {
    let mut batch = qp.sq.open(qp.send_error());
    let (mut next, mut result) = (wr, Ok(()));
    // SAFETY: each element of the list is a work request or null, with valid pointers.
    unsafe {
        while let Some(request) = next.as_ref() {
            if let Err(error) = add(&mut batch, &qp, request) {
                result = Err((error, next));
                break;
            }
            next = request.next;
        }
    }
    let rung = Qp::publish(qp, batch);
    let result = result.and(rung.map_err(|error| (error, wr)));
    // SAFETY: `bad_wr` may be written, or is null.
    unsafe { posted(result, bad_wr) }
}

/// Adds one work request to the batch, or nothing if that fails.
///
/// # Safety
///
/// All pointers in `wr` are valid.
#[inline]
unsafe fn add(batch: &mut Batch<'_>, qp: &Qp, wr: &IbvSendWr) -> Result<(), c_int> {
    let unknown = wr.send_flags & !(PASSED_FLAGS | SEND_INLINE);
    if !contains(qp.opcodes, wr.opcode) || unknown != 0 {
        return Err(EINVAL);
    }
    let count = usize::try_from(wr.num_sge).map_err(|_| EINVAL)?;
    // SAFETY: all pointers are valid, and the opcode is one that the queue pair allows.
    let mut wqe = unsafe { encode(qp.qp_type, wr)? };
    wqe.flags = (wr.send_flags & PASSED_FLAGS) as u8;
    let mut slot = batch.push(wqe)?;
    // SAFETY: the list has `count` segments; those of inline data are in the program's memory.
    let result = unsafe {
        if wr.send_flags & SEND_INLINE == 0 {
            slot.set_sges(wr.sg_list, count)
        } else {
            slot.set_inline().and_then(|()| {
                elements(wr.sg_list, count).iter().try_for_each(|segment| {
                    let from = core::ptr::with_exposed_provenance(segment.addr as usize);
                    slot.append_inline(from, segment.length as usize)
                })
            })
        }
    };
    if result.is_err() {
        batch.pop();
    }
    result
}

/// Returns the elements of a C array.
///
/// # Safety
///
/// `array` points to `count` elements, if `count` is not 0; nothing writes to them for `'a`.
#[inline]
pub(crate) unsafe fn elements<'a, T>(array: *const T, count: usize) -> &'a [T] {
    if count == 0 {
        &[]
    } else {
        // SAFETY: there are that many elements.
        unsafe { core::slice::from_raw_parts(array, count) }
    }
}

/// `ibv_bind_mw`: posts a work request that binds a window of type 1, which changes its key.
pub(crate) extern "C" fn bind_mw(qp: Ptr<IbvQp>, mw: Ptr<IbvMw>, bind: &IbvMwBind) -> c_int {
    let (opcode, flags) = (wr_opcode::BIND_MW, bind.send_flags);
    if !contains(qp.opcodes, u32::from(opcode)) || flags & !PASSED_FLAGS != 0 {
        return EINVAL;
    }
    let rkey = mw::next_key(mw.rkey.get());
    let wqe = SendWqe {
        wr_id: bind.wr_id,
        opcode,
        flags: flags as u8,
        op: mw::operands(rkey, &bind.bind_info),
        ..SendWqe::default()
    };
    let mut batch = qp.sq.open(qp.send_error());
    let pushed = batch.push(wqe).map(|_| ());
    let bound = pushed.and(Qp::publish(qp, batch));
    if bound.is_ok() {
        mw.rkey.set(rkey);
    }
    status(bound)
}

/// Returns the fixed part of a work queue entry, without flags and data.
///
/// # Safety
///
/// `wr` is a work request of a consumer for a queue pair of this type, which allows its opcode.
#[inline]
unsafe fn encode(qp_type: u32, wr: &IbvSendWr) -> Result<SendWqe, c_int> {
    // No type allows opcodes above 15.
    let opcode = wr.opcode as u8;
    let mut wqe = SendWqe {
        wr_id: wr.wr_id,
        opcode,
        ..SendWqe::default()
    };
    match opcode {
        // `struct ibv_send_wr` has no members for their arguments.
        wr_opcode::FLUSH | wr_opcode::ATOMIC_WRITE => return Err(EINVAL),
        wr_opcode::RDMA_WRITE | wr_opcode::RDMA_WRITE_WITH_IMM | wr_opcode::RDMA_READ => {
            // SAFETY: the member for this opcode.
            let rdma = unsafe { wr.wr.rdma };
            wqe.op = remote(rdma.rkey, rdma.remote_addr);
        }
        wr_opcode::ATOMIC_CMP_AND_SWP | wr_opcode::ATOMIC_FETCH_AND_ADD => {
            // SAFETY: the member for this opcode.
            let atomic = unsafe { wr.wr.atomic };
            wqe.op = WqeOp {
                compare_add: atomic.compare_add,
                swap: atomic.swap,
                ..remote(atomic.rkey, atomic.remote_addr)
            };
        }
        wr_opcode::BIND_MW => {
            // SAFETY: the member for this opcode.
            let bind = unsafe { wr.extra.bind_mw };
            wqe.op = mw::encode(bind.mw, bind.rkey, &bind.bind_info)?;
        }
        _ if qp_type == qp_type::UD => {
            // SAFETY: the member for datagrams.
            let ud = unsafe { wr.wr.ud };
            wqe.ah = ud.ah.ok_or(EINVAL)?.number;
            wqe.op.remote_qpn = ud.remote_qpn;
            wqe.op.rkey_or_qkey = ud.remote_qkey;
        }
        _ => {}
    }
    if qp_type == qp_type::XRC_SEND {
        wqe.op.remote_qpn = wr.remote_srqn;
    }
    if matches!(
        opcode,
        wr_opcode::RDMA_WRITE_WITH_IMM
            | wr_opcode::SEND_WITH_IMM
            | wr_opcode::SEND_WITH_INV
            | wr_opcode::LOCAL_INV
    ) {
        wqe.imm_or_key = wr.imm_data;
    }
    Ok(wqe)
}

/// `ibv_post_recv`.
///
/// # Safety
///
/// `wr` is a list of work requests, and all pointers in it are valid. `bad_wr` may be written, or
/// is null.
pub(crate) unsafe extern "C" fn post_recv(
    qp: Ptr<IbvQp>,
    wr: *mut IbvRecvWr,
    bad_wr: *mut *mut IbvRecvWr,
) -> c_int {
    let result = match &qp.rq {
        Some(rq) if qp.recv_error() == 0 => {
            let mut queue = rq.lock();
            // SAFETY: all pointers in the list are valid.
            let added = unsafe { queue.add_list(wr) };
            let wants_doorbell = queue.publish() && queue.ring().wants_doorbell();
            drop(queue);
            let rung = if wants_doorbell {
                doorbell::ring_recv(qp)
            } else {
                Ok(())
            };
            added.and(rung.map_err(|error| (error, wr)))
        }
        _ if wr.is_null() => Ok(()),
        _ => Err((EINVAL, wr)),
    };
    // SAFETY: `bad_wr` may be written, or is null.
    unsafe { posted(result, bad_wr) }
}

/// Returns the result of a verb that posts: 0 or an error number. Sets `bad_wr` to the work request
/// that was refused.
///
/// # Safety
///
/// `bad_wr` may be written, or is null.
#[inline]
pub(crate) unsafe fn posted<W>(result: Result<(), (c_int, *mut W)>, bad_wr: *mut *mut W) -> c_int {
    let Err((error, wr)) = result else {
        return 0;
    };
    if !bad_wr.is_null() {
        // SAFETY: it may be written if it is not null.
        unsafe { *bad_wr = wr };
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi;
    use crate::ah;
    use crate::entry::{LocalOp, NewKey};
    use crate::ffi::command::zeroed;
    use crate::ffi::os::ENOMEM;
    use crate::qp::tests::{public, small};
    use crate::send_queue::tests::{decode, take};
    use core::ptr::null_mut;
    use core::sync::atomic::Ordering;
    use rrxe_core::wire::ImmDt;
    use rrxe_core::{AtomicOp, Destination, Fence, Remote, SendExt, SendOp, Service};

    fn request(wr_id: u64, opcode: u8) -> IbvSendWr {
        // SAFETY: integers, and pointers that may be null.
        let wr: IbvSendWr = unsafe { zeroed() };
        IbvSendWr {
            wr_id,
            opcode: u32::from(opcode),
            ..wr
        }
    }

    /// Posts one work request.
    fn post(qp: &Qp, mut wr: IbvSendWr) -> c_int {
        let mut bad = null_mut();
        // SAFETY: the queue pair and the request live.
        let error = unsafe { post_send(public(qp), &mut wr, &mut bad) };
        assert_eq!(bad.is_null(), error == 0);
        error
    }

    #[test]
    fn a_list_up_to_the_first_bad_one() {
        let qp = small(qp_type::RC);
        let mut third = request(3, wr_opcode::SEND);
        let mut second = request(2, 20);
        second.next = &mut third;
        let mut first = request(1, wr_opcode::SEND);
        first.next = &mut second;
        let mut bad = null_mut();
        // SAFETY: the queue pair and the requests live.
        let error = unsafe { post_send(public(&qp), &mut first, &mut bad) };
        assert_eq!(error, EINVAL);
        assert_eq!(bad, &raw mut second);
        assert_eq!(take(&qp.sq, 0).0.wr_id, 1);
        assert_eq!(qp.sq.ring().producer().load(Ordering::Relaxed), 1);
    }

    #[test]
    fn full_is_enomem_and_wrong_state_is_einval() {
        let qp = small(qp_type::RC);
        for i in 0..4 {
            assert_eq!(post(&qp, request(i, wr_opcode::SEND)), 0);
        }
        assert_eq!(post(&qp, request(4, wr_opcode::SEND)), ENOMEM);
        take(&qp.sq, 0);
        assert_eq!(post(&qp, request(4, wr_opcode::SEND)), 0);
        take(&qp.sq, 1);
        qp.set_state(2);
        assert_eq!(post(&qp, request(5, wr_opcode::SEND)), EINVAL);
    }

    #[test]
    fn each_type_has_its_opcodes() {
        let allowed = |kind| {
            (0..=255)
                .filter(|&opcode| {
                    let qp = small(kind);
                    let mut wr = request(1, opcode);
                    if kind == qp_type::UD {
                        let ah = ah::tests::numbered(1);
                        wr.wr.ud = WrUd {
                            ah: Some(ah),
                            remote_qpn: 1,
                            remote_qkey: 2,
                        };
                    }
                    post(&qp, wr) == 0
                })
                .collect::<Vec<u8>>()
        };
        // BIND_MW is refused because these work requests name no window.
        assert_eq!(allowed(qp_type::RC), [0, 1, 2, 3, 4, 5, 6, 7, 9]);
        assert_eq!(allowed(qp_type::UC), [0, 1, 2, 3, 7]);
        assert_eq!(allowed(qp_type::UD), [2, 3]);
        assert_eq!(allowed(qp_type::XRC_SEND), allowed(qp_type::RC));
        assert_eq!(allowed(qp_type::XRC_RECV), []);
    }

    #[test]
    fn windows_are_bound_and_keys_invalidated() {
        let qp = small(qp_type::RC);
        let mut wr = request(1, wr_opcode::BIND_MW);
        wr.extra.bind_mw = WrBindMw {
            mw: mw::tests::window(MW_TYPE_2, 0x1200),
            rkey: 0x1234,
            bind_info: IbvMwBindInfo {
                mr: None,
                addr: 1,
                length: 2,
                mw_access_flags: 3,
            },
        };
        assert_eq!(post(&qp, wr), 0);
        let mut wr = request(2, wr_opcode::LOCAL_INV);
        wr.imm_data = 0x1234;
        assert_eq!(post(&qp, wr), 0);
        let bind = decode(&qp.sq, 0, Service::Rc);
        let key = NewKey {
            key: 0x1234,
            lkey: 0,
            address: 1,
            length: 2,
            access: 3,
        };
        assert_eq!(bind.local.wr_id, 1);
        assert_eq!(bind.op, SendOp::Local(LocalOp::BindMw(key)));
        let invalidate = decode(&qp.sq, 1, Service::Rc);
        assert_eq!(invalidate.op, SendOp::Local(LocalOp::Invalidate(0x1234)));
        assert_eq!(invalidate.fence, Fence::All);
    }

    #[test]
    fn a_bound_window_of_type_1_gets_its_next_key() {
        let qp = small(qp_type::RC);
        let mw = mw::tests::window(1, 0x12ff).unwrap();
        let mut bind = IbvMwBind {
            wr_id: 7,
            send_flags: abi::WQE_SIGNALED.into(),
            bind_info: IbvMwBindInfo {
                mr: None,
                addr: 1,
                length: 2,
                mw_access_flags: 3,
            },
        };
        assert_eq!(bind_mw(public(&qp), mw, &bind), 0);
        assert_eq!(mw.rkey.get(), 0x1200);
        let wqe = take(&qp.sq, 0).0;
        assert_eq!((wqe.wr_id, wqe.opcode), (7, wr_opcode::BIND_MW));
        assert_eq!((wqe.flags, wqe.op.rkey_or_qkey), (2, 0x1200));
        bind.send_flags = SEND_INLINE;
        assert_eq!(bind_mw(public(&qp), mw, &bind), EINVAL);
        bind.send_flags = 0;
        qp.set_state(qp_state::RESET);
        assert_eq!(bind_mw(public(&qp), mw, &bind), EINVAL);
        assert_eq!(mw.rkey.get(), 0x1200);
    }

    /// `ibv_post_send`: each operation, with the work request that the kernel decodes from it.
    #[test]
    fn the_kernel_decodes_each_operation() {
        let imm = ImmDt([1, 2, 3, 4]);
        let to = Remote {
            va: 0x1000,
            rkey: 9,
        };
        let swap = AtomicOp::CompareSwap {
            compare: 1,
            swap: 2,
        };
        let send = |ext| SendOp::Send { ext };
        for (opcode, op) in [
            (wr_opcode::SEND, send(SendExt::None)),
            (wr_opcode::SEND_WITH_IMM, send(SendExt::Imm(imm))),
            (
                wr_opcode::SEND_WITH_INV,
                send(SendExt::Invalidate(imm.to_verbs())),
            ),
            (wr_opcode::RDMA_WRITE, SendOp::Write { to, imm: None }),
            (
                wr_opcode::RDMA_WRITE_WITH_IMM,
                SendOp::Write { to, imm: Some(imm) },
            ),
            (wr_opcode::RDMA_READ, SendOp::Read { from: to }),
            (
                wr_opcode::ATOMIC_CMP_AND_SWP,
                SendOp::Atomic { at: to, op: swap },
            ),
            (
                wr_opcode::ATOMIC_FETCH_AND_ADD,
                SendOp::Atomic {
                    at: to,
                    op: AtomicOp::FetchAdd { add: 1 },
                },
            ),
        ] {
            let qp = small(qp_type::XRC_SEND);
            let mut wr = request(1, opcode);
            wr.imm_data = imm.to_verbs();
            wr.send_flags = PASSED_FLAGS;
            wr.remote_srqn = 55;
            if matches!(op, SendOp::Atomic { .. }) {
                wr.wr.atomic = WrAtomic {
                    remote_addr: to.va,
                    compare_add: 1,
                    swap: 2,
                    rkey: to.rkey,
                };
            } else {
                wr.wr.rdma = WrRdma {
                    remote_addr: to.va,
                    rkey: to.rkey,
                };
            }
            assert_eq!(post(&qp, wr), 0);
            let slot = decode(&qp.sq, 0, Service::Xrc);
            assert_eq!((slot.op, slot.fence, slot.srqn), (op, Fence::Reads, 55));
            assert!(slot.signaled && slot.solicited);
        }
    }

    #[test]
    fn the_kernel_decodes_datagrams() {
        let qp = small(qp_type::UD);
        let imm = ImmDt([1, 2, 3, 4]);
        let to = Destination {
            ah: 77,
            qpn: 17,
            qkey: 0x8001_0000,
        };
        assert_eq!(post(&qp, request(1, wr_opcode::SEND)), EINVAL);
        for (counter, imm) in [(0, None), (1, Some(imm))] {
            let opcode = match imm {
                None => wr_opcode::SEND,
                Some(_) => wr_opcode::SEND_WITH_IMM,
            };
            let mut wr = request(2, opcode);
            wr.imm_data = imm.map_or(9, ImmDt::to_verbs);
            wr.wr.ud = WrUd {
                ah: Some(ah::tests::numbered(to.ah)),
                remote_qpn: to.qpn,
                remote_qkey: to.qkey,
            };
            assert_eq!(post(&qp, wr), 0);
            let slot = decode(&qp.sq, counter, Service::Ud);
            assert_eq!(slot.op, SendOp::Datagram { imm, to });
        }
    }

    #[test]
    fn data_inline_and_not() {
        let qp = small(qp_type::RC);
        let bytes = *b"0123456789";
        let segment = |length| IbvSge {
            addr: bytes.as_ptr().expose_provenance() as u64,
            length,
            lkey: 4,
        };
        let mut list = [segment(3), segment(10), segment(1)];
        let with = |flags, count, opcode| {
            let mut wr = request(1, opcode);
            (wr.sg_list, wr.num_sge, wr.send_flags) = (list.as_ptr(), count, flags);
            wr
        };
        assert_eq!(post(&qp, with(SEND_INLINE, 2, wr_opcode::SEND)), 0);
        let (wqe, data) = take(&qp.sq, 0);
        assert_eq!(
            (wqe.flags, wqe.num_sge, wqe.inline_length),
            (abi::WQE_INLINE, 0, 13)
        );
        assert_eq!(data.get(..13), Some(b"0120123456789".as_slice()));

        assert_eq!(post(&qp, with(0, 2, wr_opcode::SEND)), 0);
        let (wqe, data) = take(&qp.sq, 1);
        assert_eq!((wqe.flags, wqe.num_sge, wqe.inline_length), (0, 2, 0));
        assert_eq!(data.get(24..28), Some(10_u32.to_ne_bytes().as_slice()));

        assert_eq!(
            post(
                &qp,
                with(0, qp.cap.max_send_sge as i32 + 1, wr_opcode::SEND)
            ),
            EINVAL
        );
        assert_eq!(post(&qp, with(0, -1, wr_opcode::SEND)), EINVAL);
        assert_eq!(post(&qp, with(16, 1, wr_opcode::SEND)), EINVAL);
        assert_eq!(
            post(&qp, with(SEND_INLINE, 1, wr_opcode::RDMA_READ)),
            EINVAL
        );
        if let Some(last) = list.last_mut() {
            last.length = u32::MAX;
        }
        let mut wr = request(1, wr_opcode::SEND);
        (wr.sg_list, wr.num_sge, wr.send_flags) = (list.as_ptr(), 3, SEND_INLINE);
        assert_eq!(post(&qp, wr), EINVAL);
        // The refused work requests left nothing in the queue.
        assert_eq!(qp.sq.ring().producer().load(Ordering::Relaxed), 2);
    }

    #[test]
    fn receives_need_a_state_and_a_queue() {
        let qp = small(qp_type::RC);
        let mut second = IbvRecvWr {
            wr_id: 2,
            next: null_mut(),
            sg_list: null_mut(),
            num_sge: 50,
        };
        let mut first = IbvRecvWr {
            wr_id: 1,
            next: &mut second,
            sg_list: null_mut(),
            num_sge: 0,
        };
        let mut bad = null_mut();
        // SAFETY: the queue pair and the requests live.
        unsafe {
            assert_eq!(post_recv(public(&qp), &mut first, &mut bad), EINVAL);
            assert_eq!(bad, &raw mut second);
            let rq = qp.rq.as_ref().unwrap();
            assert_eq!(rq.lock().ring().producer().load(Ordering::Relaxed), 1);

            qp.set_state(qp_state::RESET);
            assert_eq!(post_recv(public(&qp), &mut first, &mut bad), EINVAL);
            assert_eq!(bad, &raw mut first);
            assert_eq!(post_recv(public(&qp), null_mut(), &mut bad), 0);
        }
    }
}
