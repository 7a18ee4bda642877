// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Posting by function calls: the `ibv_wr_*` family (`ibv_wr_post(3)`).
//!
//! `wr_start` opens a batch, each builder adds a work request to it, and setters complete the last
//! one. `wr_complete` publishes the whole batch, or nothing if any call failed. An inline setter
//! alone makes the data inline; the flag is not needed.

use crate::abi::{wr_opcode, SendWqe, WqeOp};
use crate::ah;
use crate::doorbell;
use crate::ffi::os::EINVAL;
use crate::ffi::verbs::*;
use crate::mw;
use crate::qp::{Qp, Rules};
use crate::send_queue::{contains, Batch, Slot, PASSED_FLAGS};
use core::ffi::{c_int, c_void};
use core::slice;

/// The opcode of each operation in [`send_ops`].
const OPERATIONS: [(u64, u8); 12] = [
    (send_ops::RDMA_WRITE, wr_opcode::RDMA_WRITE),
    (
        send_ops::RDMA_WRITE_WITH_IMM,
        wr_opcode::RDMA_WRITE_WITH_IMM,
    ),
    (send_ops::SEND, wr_opcode::SEND),
    (send_ops::SEND_WITH_IMM, wr_opcode::SEND_WITH_IMM),
    (send_ops::RDMA_READ, wr_opcode::RDMA_READ),
    (send_ops::ATOMIC_CMP_AND_SWP, wr_opcode::ATOMIC_CMP_AND_SWP),
    (
        send_ops::ATOMIC_FETCH_AND_ADD,
        wr_opcode::ATOMIC_FETCH_AND_ADD,
    ),
    (send_ops::SEND_WITH_INV, wr_opcode::SEND_WITH_INV),
    (send_ops::FLUSH, wr_opcode::FLUSH),
    (send_ops::ATOMIC_WRITE, wr_opcode::ATOMIC_WRITE),
    (send_ops::LOCAL_INV, wr_opcode::LOCAL_INV),
    (send_ops::BIND_MW, wr_opcode::BIND_MW),
];

/// Returns whether all of `flags` ([`send_ops`]) can be posted to a queue pair with these rules.
pub(crate) fn supports(rules: Rules, flags: u64) -> bool {
    let supported = OPERATIONS
        .iter()
        .filter(|&&(_, opcode)| contains(rules.opcodes, u32::from(opcode)))
        .fold(0, |all, &(flag, _)| all | flag);
    flags & !supported == 0
}

/// Sets the builders for `flags` ([`send_ops`]) and the functions that every queue pair has.
pub(crate) fn set_functions(qp: &mut IbvQpEx, flags: u64) {
    let has = |flag| flags & flag != 0;
    if has(send_ops::RDMA_WRITE) {
        qp.wr_rdma_write = Some(wr_rdma_write);
    }
    if has(send_ops::RDMA_WRITE_WITH_IMM) {
        qp.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    }
    if has(send_ops::SEND) {
        qp.wr_send = Some(wr_send);
    }
    if has(send_ops::SEND_WITH_IMM) {
        qp.wr_send_imm = Some(wr_send_imm);
    }
    if has(send_ops::RDMA_READ) {
        qp.wr_rdma_read = Some(wr_rdma_read);
    }
    if has(send_ops::ATOMIC_CMP_AND_SWP) {
        qp.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    }
    if has(send_ops::ATOMIC_FETCH_AND_ADD) {
        qp.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    }
    if has(send_ops::SEND_WITH_INV) {
        qp.wr_send_inv = Some(wr_send_inv);
    }
    if has(send_ops::FLUSH) {
        qp.wr_flush = Some(wr_flush);
    }
    if has(send_ops::ATOMIC_WRITE) {
        qp.wr_atomic_write = Some(wr_atomic_write);
    }
    if has(send_ops::LOCAL_INV) {
        qp.wr_local_inv = Some(wr_local_inv);
    }
    if has(send_ops::BIND_MW) {
        qp.wr_bind_mw = Some(wr_bind_mw);
    }
    qp.wr_set_ud_addr = Some(wr_set_ud_addr);
    qp.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    qp.wr_set_inline_data = Some(wr_set_inline_data);
    qp.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    qp.wr_set_sge = Some(wr_set_sge);
    qp.wr_set_sge_list = Some(wr_set_sge_list);
    qp.wr_start = Some(wr_start);
    qp.wr_complete = Some(wr_complete);
    qp.wr_abort = Some(wr_abort);
}

/// `ibv_wr_start`.
///
/// # Safety
///
/// Called by the consumer with a queue pair of rrxe. The same thread calls the other functions of
/// this file after this one and up to [`wr_complete`] or [`wr_abort`].
unsafe extern "C" fn wr_start(qp: *mut IbvQpEx) {
    // SAFETY: the caller's contract.
    let this = unsafe { Qp::of(qp) };
    this.sq.open(this.send_error());
}

/// `ibv_wr_complete`. Returns `EINVAL` if a work request was not allowed, or `ENOMEM` if the queue
/// was full; nothing is posted then. Also returns the kernel's error if a doorbell was needed.
///
/// # Safety
///
/// Called after [`wr_start`], by the same thread.
unsafe extern "C" fn wr_complete(qp: *mut IbvQpEx) -> c_int {
    // SAFETY: the caller's contract.
    let this = unsafe { Qp::of(qp) };
    // SAFETY: the caller's contract: the batch is open.
    let mut batch = unsafe { this.sq.current() };
    let error = batch.error();
    let published = if error == 0 { batch.publish() } else { None };
    this.sq.close();
    if let Some(published) = published {
        // SAFETY: the queue pair is of an open device.
        if let Err(error) = unsafe { doorbell::notify(this, published) } {
            return error;
        }
    }
    error
}

/// `ibv_wr_abort`.
///
/// # Safety
///
/// Called after [`wr_start`], by the same thread.
unsafe extern "C" fn wr_abort(qp: *mut IbvQpEx) {
    // SAFETY: the caller's contract.
    unsafe { Qp::of(qp) }.sq.close();
}

/// Adds a work request to the batch.
///
/// # Safety
///
/// Called after [`wr_start`], by the same thread.
#[inline]
unsafe fn build(qp: *mut IbvQpEx, opcode: u8, imm_or_key: u32, op: WqeOp) {
    // SAFETY: the caller's contract: the batch is open, and the consumer's thread is this one.
    let (mut batch, wr_id, flags) =
        unsafe { (Qp::of(qp).sq.current(), (*qp).wr_id, (*qp).wr_flags) };
    if flags & !(PASSED_FLAGS | send_flags::INLINE) != 0 {
        batch.fail(EINVAL);
        return;
    }
    let wqe = SendWqe {
        wr_id,
        opcode,
        flags: (flags & PASSED_FLAGS) as u8,
        imm_or_key,
        op,
        ..SendWqe::default()
    };
    if let Err(error) = batch.push(wqe) {
        batch.fail(error);
    }
}

/// Changes the last work request. An error fails the batch.
///
/// # Safety
///
/// Called after [`wr_start`], by the same thread.
#[inline]
unsafe fn set(qp: *mut IbvQpEx, body: impl FnOnce(&mut Slot<'_>) -> Result<(), c_int>) {
    // SAFETY: the caller's contract: the batch is open.
    let mut batch: Batch<'_> = unsafe { Qp::of(qp).sq.current() };
    if let Some(mut slot) = batch.last() {
        if let Err(error) = body(&mut slot) {
            batch.fail(error);
        }
    }
}

/// Defines builders: functions that add a work request.
macro_rules! builders {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*) = $opcode:ident, $imm:expr, $op:expr;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// Called after [`wr_start`], by the same thread.
            unsafe extern "C" fn $name(qp: *mut IbvQpEx, $($arg: $type),*) {
                // SAFETY: the caller's contract.
                unsafe { build(qp, wr_opcode::$opcode, $imm, $op) }
            }
        )*
    };
}

builders! {
    /// `ibv_wr_send`.
    wr_send() = SEND, 0, WqeOp::default();
    /// `ibv_wr_send_imm`.
    wr_send_imm(imm_data: u32) = SEND_WITH_IMM, imm_data, WqeOp::default();
    /// `ibv_wr_send_inv`.
    wr_send_inv(rkey: u32) = SEND_WITH_INV, rkey, WqeOp::default();
    /// `ibv_wr_local_inv`.
    wr_local_inv(rkey: u32) = LOCAL_INV, rkey, WqeOp::default();
    /// `ibv_wr_rdma_write`.
    wr_rdma_write(rkey: u32, remote_addr: u64) = RDMA_WRITE, 0, remote(rkey, remote_addr);
    /// `ibv_wr_rdma_write_imm`.
    wr_rdma_write_imm(rkey: u32, remote_addr: u64, imm_data: u32) =
        RDMA_WRITE_WITH_IMM, imm_data, remote(rkey, remote_addr);
    /// `ibv_wr_rdma_read`.
    wr_rdma_read(rkey: u32, remote_addr: u64) = RDMA_READ, 0, remote(rkey, remote_addr);
    /// `ibv_wr_atomic_cmp_swp`.
    wr_atomic_cmp_swp(rkey: u32, remote_addr: u64, compare: u64, swap: u64) =
        ATOMIC_CMP_AND_SWP, 0, WqeOp { compare_add: compare, swap, ..remote(rkey, remote_addr) };
    /// `ibv_wr_atomic_fetch_add`.
    wr_atomic_fetch_add(rkey: u32, remote_addr: u64, add: u64) =
        ATOMIC_FETCH_AND_ADD, 0, WqeOp { compare_add: add, ..remote(rkey, remote_addr) };
    /// `ibv_wr_flush`.
    wr_flush(rkey: u32, remote_addr: u64, len: usize, kind: u8, level: u8) =
        FLUSH, flush_bits(kind, level),
        WqeOp { compare_add: len as u64, ..remote(rkey, remote_addr) };
}

/// `ibv_wr_atomic_write`.
///
/// # Safety
///
/// Called after [`wr_start`], by the same thread; `atomic_wr` points to eight readable bytes.
unsafe extern "C" fn wr_atomic_write(
    qp: *mut IbvQpEx,
    rkey: u32,
    remote_addr: u64,
    atomic_wr: *const c_void,
) {
    // SAFETY: the caller's contract; the bytes need not be aligned.
    let bytes = unsafe { atomic_wr.cast::<[u8; 8]>().read() };
    let op = WqeOp {
        swap: u64::from_ne_bytes(bytes),
        ..remote(rkey, remote_addr)
    };
    // SAFETY: the caller's contract.
    unsafe { build(qp, wr_opcode::ATOMIC_WRITE, 0, op) }
}

/// Encodes the placement type and selectivity level for an entry. A value that does not fit its
/// field becomes the field's maximum, which every peer refuses.
fn flush_bits(kind: u8, level: u8) -> u32 {
    u32::from(kind.min(0x0f)) | (u32::from(level.min(3)) << 4)
}

/// `ibv_wr_bind_mw`: binds a window of type 2.
///
/// # Safety
///
/// Called after [`wr_start`], by the same thread; `mw` and the memory region in `bind_info` are
/// rrxe's.
unsafe extern "C" fn wr_bind_mw(
    qp: *mut IbvQpEx,
    mw: *mut IbvMw,
    rkey: u32,
    bind_info: *const IbvMwBindInfo,
) {
    // SAFETY: the caller's contract.
    unsafe {
        match mw::encode(mw, rkey, &*bind_info) {
            Ok(op) => build(qp, wr_opcode::BIND_MW, 0, op),
            Err(error) => Qp::of(qp).sq.current().fail(error),
        }
    }
}

/// Returns the operands for remote memory.
fn remote(rkey: u32, remote_addr: u64) -> WqeOp {
    WqeOp {
        remote_addr,
        rkey_or_qkey: rkey,
        ..WqeOp::default()
    }
}

/// `ibv_wr_set_ud_addr`.
///
/// # Safety
///
/// Called after [`wr_start`], by the same thread; `ah` is an address handle of rrxe or null.
unsafe extern "C" fn wr_set_ud_addr(
    qp: *mut IbvQpEx,
    ah: *mut IbvAh,
    remote_qpn: u32,
    remote_qkey: u32,
) {
    // SAFETY: the caller's contract.
    unsafe {
        set(qp, |slot| {
            if ah.is_null() {
                return Err(EINVAL);
            }
            slot.set_destination(ah::number(ah), remote_qpn, remote_qkey);
            Ok(())
        })
    }
}

/// `ibv_wr_set_xrc_srqn`.
///
/// # Safety
///
/// Called after [`wr_start`], by the same thread.
unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut IbvQpEx, remote_srqn: u32) {
    // SAFETY: the caller's contract.
    unsafe {
        let xrc = Qp::of(qp).rules.xrc;
        set(qp, |slot| {
            if !xrc {
                return Err(EINVAL);
            }
            slot.set_xrc_srqn(remote_srqn);
            Ok(())
        })
    }
}

/// `ibv_wr_set_sge`.
///
/// # Safety
///
/// Called after [`wr_start`], by the same thread.
unsafe extern "C" fn wr_set_sge(qp: *mut IbvQpEx, lkey: u32, addr: u64, length: u32) {
    let segment = IbvSge { addr, length, lkey };
    // SAFETY: the caller's contract; one segment.
    unsafe { set(qp, |slot| slot.set_sges(&segment, 1)) }
}

/// `ibv_wr_set_sge_list`.
///
/// # Safety
///
/// Called after [`wr_start`], by the same thread; `sg_list` points to `num_sge` segments.
unsafe extern "C" fn wr_set_sge_list(qp: *mut IbvQpEx, num_sge: usize, sg_list: *const IbvSge) {
    // SAFETY: the caller's contract.
    unsafe { set(qp, |slot| slot.set_sges(sg_list, num_sge)) }
}

/// `ibv_wr_set_inline_data`.
///
/// # Safety
///
/// Called after [`wr_start`], by the same thread; `addr` points to `length` readable bytes.
unsafe extern "C" fn wr_set_inline_data(qp: *mut IbvQpEx, addr: *const c_void, length: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        set(qp, |slot| {
            slot.set_inline()
                .and_then(|()| slot.append_inline(addr.cast(), length))
        })
    }
}

/// `ibv_wr_set_inline_data_list`.
///
/// # Safety
///
/// Called after [`wr_start`], by the same thread; `buf_list` points to `num_buf` buffers of
/// readable bytes.
unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut IbvQpEx,
    num_buf: usize,
    buf_list: *const IbvDataBuf,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let buffers = if num_buf == 0 {
            &[]
        } else {
            slice::from_raw_parts(buf_list, num_buf)
        };
        set(qp, |slot| {
            slot.set_inline()?;
            buffers
                .iter()
                .try_for_each(|buf| slot.append_inline(buf.addr.cast(), buf.length))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi;
    use crate::ffi::os::ENOMEM;
    use crate::qp::tests::small;
    use crate::send_queue::tests::take;
    use core::sync::atomic::Ordering;

    fn ex(qp: &Qp) -> *mut IbvQpEx {
        qp.verbs.get().cast()
    }

    fn produced(qp: &Qp) -> u32 {
        qp.sq.ring().producer().load(Ordering::Relaxed)
    }

    #[test]
    fn says_which_shared_receive_queue() {
        for (kind, error, srqn) in [(qp_type::XRC_SEND, 0, 99), (qp_type::RC, EINVAL, 0)] {
            let qp = small(kind);
            // SAFETY: the queue pair lives, and the calls are in the order that the verbs require.
            unsafe {
                wr_start(ex(&qp));
                wr_rdma_write(ex(&qp), 5, 0x2000);
                wr_set_xrc_srqn(ex(&qp), 99);
                assert_eq!(wr_complete(ex(&qp)), error);
            }
            if error == 0 {
                let op = take(&qp.sq, 0).0.op;
                assert_eq!((op.remote_qpn, op.rkey_or_qkey), (srqn, 5));
            }
        }
    }

    #[test]
    fn operations_follow_the_type() {
        let rules = |qp_type| Rules::of(qp_type).ok().unwrap();
        assert!(supports(rules(qp_type::RC), 0x1bff));
        assert!(!supports(rules(qp_type::RC), 1 << 10));
        assert!(!supports(rules(qp_type::UD), send_ops::LOCAL_INV));
        assert!(!supports(rules(qp_type::UC), send_ops::RDMA_READ));
        assert!(!supports(rules(qp_type::UC), send_ops::FLUSH));
        assert!(!supports(rules(qp_type::UC), send_ops::ATOMIC_WRITE));
        assert!(supports(
            rules(qp_type::UD),
            send_ops::SEND | send_ops::SEND_WITH_IMM
        ));
        assert!(!supports(rules(qp_type::UD), send_ops::RDMA_WRITE));

        let qp = small(qp_type::RC);
        // SAFETY: the queue pair is not shared.
        let functions = unsafe { &mut *ex(&qp) };
        set_functions(functions, send_ops::SEND);
        assert!(functions.wr_send.is_some() && functions.wr_start.is_some());
        assert!(functions.wr_rdma_read.is_none() && functions.wr_bind_mw.is_none());
    }

    #[test]
    fn builds_and_publishes_a_batch() {
        let qp = small(qp_type::RC);
        let bytes = *b"abcdef";
        // SAFETY: the queue pair lives, and the calls are in the order that the verbs require.
        unsafe {
            let ex = ex(&qp);
            wr_start(ex);
            (*ex).wr_id = 1;
            (*ex).wr_flags = send_flags::SIGNALED;
            wr_rdma_write_imm(ex, 5, 0x2000, 0xfeed);
            wr_set_sge(ex, 6, 0x3000, 0);
            (*ex).wr_id = 2;
            (*ex).wr_flags = send_flags::INLINE;
            wr_send(ex);
            let list = [
                IbvDataBuf {
                    addr: bytes.as_ptr().cast_mut().cast(),
                    length: 2,
                },
                IbvDataBuf {
                    addr: bytes.as_ptr().cast_mut().cast(),
                    length: 6,
                },
            ];
            wr_set_inline_data_list(ex, 2, list.as_ptr());
            (*ex).wr_id = 3;
            (*ex).wr_flags = send_flags::FENCE;
            wr_atomic_cmp_swp(ex, 7, 8, 9, 10);
            let segments = [IbvSge {
                addr: 1,
                length: 8,
                lkey: 2,
            }; 2];
            wr_set_sge_list(ex, 2, segments.as_ptr());
            assert_eq!(produced(&qp), 0);
            assert_eq!(wr_complete(ex), 0);
        }
        assert_eq!(produced(&qp), 3);

        let (wqe, data) = take(&qp.sq, 0);
        assert_eq!(
            (wqe.wr_id, wqe.opcode, wqe.flags),
            (1, 1, abi::WQE_SIGNALED)
        );
        assert_eq!(
            (wqe.imm_or_key, wqe.op.remote_addr, wqe.op.rkey_or_qkey),
            (0xfeed, 0x2000, 5)
        );
        assert_eq!(
            (wqe.num_sge, data.get(12..16)),
            (1, Some(6_u32.to_ne_bytes().as_slice()))
        );
        let (wqe, data) = take(&qp.sq, 1);
        assert_eq!((wqe.wr_id, wqe.opcode, wqe.flags), (2, 2, abi::WQE_INLINE));
        assert_eq!((wqe.num_sge, wqe.inline_length), (0, 8));
        assert_eq!(data.get(..8), Some(b"ababcdef".as_slice()));
        let (wqe, _) = take(&qp.sq, 2);
        assert_eq!(
            (wqe.wr_id, wqe.opcode, wqe.flags, wqe.num_sge),
            (3, 5, abi::WQE_FENCE, 2)
        );
        assert_eq!((wqe.op.remote_addr, wqe.op.rkey_or_qkey), (8, 7));
        assert_eq!((wqe.op.compare_add, wqe.op.swap), (9, 10));
    }

    #[test]
    fn flush_and_atomic_write() {
        let qp = small(qp_type::RC);
        // SAFETY: the queue pair lives, and the calls are in the order that the verbs require.
        unsafe {
            let ex = ex(&qp);
            wr_start(ex);
            (*ex).wr_id = 1;
            wr_flush(ex, 5, 0x2000, 0x1_0000_0001, 2, 1);
            (*ex).wr_id = 2;
            (*ex).wr_flags = send_flags::FENCE;
            // The value is at an odd address.
            let bytes = *b"-01234567";
            wr_atomic_write(ex, 6, 0x3000, bytes.as_ptr().add(1).cast());
            assert_eq!(wr_complete(ex), 0);
        }
        let (wqe, _) = take(&qp.sq, 0);
        assert_eq!((wqe.wr_id, wqe.opcode, wqe.imm_or_key), (1, 14, 0x12));
        assert_eq!((wqe.op.remote_addr, wqe.op.rkey_or_qkey), (0x2000, 5));
        assert_eq!((wqe.op.compare_add, wqe.num_sge), (0x1_0000_0001, 0));
        let (wqe, _) = take(&qp.sq, 1);
        assert_eq!((wqe.wr_id, wqe.opcode, wqe.flags), (2, 15, abi::WQE_FENCE));
        assert_eq!((wqe.op.remote_addr, wqe.op.rkey_or_qkey), (0x3000, 6));
        assert_eq!(wqe.op.swap.to_ne_bytes(), *b"01234567");
        assert_eq!((wqe.num_sge, wqe.inline_length), (0, 0));
    }

    #[test]
    fn one_failure_fails_the_batch_and_only_that() {
        let qp = small(qp_type::RC);
        let big = [0_u8; 200];
        // SAFETY: the queue pair lives, and the calls are in the order that the verbs require.
        unsafe {
            let ex = ex(&qp);
            let fails = |calls: &dyn Fn()| {
                wr_start(ex);
                wr_send(ex);
                calls();
                wr_send(ex);
                let error = wr_complete(ex);
                assert_eq!(produced(&qp), 0);
                error
            };
            assert_eq!(
                fails(&|| wr_set_inline_data(ex, big.as_ptr().cast(), 200)),
                EINVAL
            );
            assert_eq!(
                fails(&|| wr_set_sge_list(ex, 100, core::ptr::null())),
                EINVAL
            );
            assert_eq!(
                fails(&|| wr_set_ud_addr(ex, core::ptr::null_mut(), 1, 1)),
                EINVAL
            );
            assert_eq!(fails(&|| (0..4).for_each(|_| wr_send(ex))), ENOMEM);
            qp.set_state(2);
            assert_eq!(fails(&|| ()), EINVAL);
            qp.set_state(qp_state::RTS);

            wr_start(ex);
            wr_send(ex);
            wr_abort(ex);
            assert_eq!(produced(&qp), 0);
            wr_start(ex);
            assert_eq!(wr_complete(ex), 0);
            wr_start(ex);
            (*ex).wr_id = 42;
            wr_send(ex);
            assert_eq!(wr_complete(ex), 0);
        }
        assert_eq!(take(&qp.sq, 0).0.wr_id, 42);
    }
}
