// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Posting by function calls: the `ibv_wr_*` family (`ibv_wr_post(3)`).
//!
//! `wr_start` opens a batch, each builder adds a work request to it, and setters complete the last
//! one. `wr_complete` publishes the whole batch, or nothing if any call failed. An inline setter
//! alone makes the data inline; the flag is not needed.
//!
//! The thread that called `wr_start` calls the other functions, up to `wr_complete` or `wr_abort`.
//! This is the safety contract of all of them: the batch is open, and no other function uses it.

use crate::abi::{wr_opcode, SendWqe, WqeOp};
use crate::ffi::os::EINVAL;
use crate::ffi::ptr::Ptr;
use crate::ffi::verbs::*;
use crate::mw;
use crate::object::status;
use crate::post::elements;
use crate::qp::Qp;
use crate::send_queue::{contains, Opcodes, Slot, PASSED_FLAGS, SEND_INLINE};
use core::ffi::{c_int, c_void};
use core::mem::ManuallyDrop;

/// Returns the bit of an opcode in `enum ibv_qp_create_send_ops_flags`.
const fn operation(opcode: u8) -> u64 {
    match opcode {
        wr_opcode::FLUSH => 1 << 11,
        wr_opcode::ATOMIC_WRITE => 1 << 12,
        _ => 1_u64.wrapping_shl(opcode as u32),
    }
}

/// Returns whether all of `flags` ([`operation`]) are for one of `opcodes`.
pub(crate) fn supports(opcodes: Opcodes, flags: u64) -> bool {
    let supported = (0..16_u8)
        .filter(|&opcode| contains(opcodes, u32::from(opcode)))
        .fold(0, |all, opcode| all | operation(opcode));
    flags & !supported == 0
}

/// `ibv_wr_start`.
extern "C" fn wr_start(qp: Ptr<IbvQpEx>) {
    core::mem::forget(qp.sq.open(qp.send_error()));
}

/// `ibv_wr_complete`. Returns `EINVAL` if a work request was not allowed, or `ENOMEM` if the queue
/// was full; nothing is posted then. Also returns the kernel's error if a doorbell was needed.
///
/// # Safety
///
/// The batch is open.
unsafe extern "C" fn wr_complete(qp: Ptr<IbvQpEx>) -> c_int {
    // SAFETY: the batch is open.
    let batch = ManuallyDrop::into_inner(unsafe { qp.sq.current() });
    match batch.error() {
        0 => status(Qp::publish(qp.base(), batch)),
        error => error,
    }
}

/// `ibv_wr_abort`.
///
/// # Safety
///
/// The batch is open.
unsafe extern "C" fn wr_abort(qp: Ptr<IbvQpEx>) {
    // SAFETY: the batch is open.
    drop(ManuallyDrop::into_inner(unsafe { qp.sq.current() }));
}

/// Adds a work request to the batch, or fails the batch if there is no `op`.
///
/// # Safety
///
/// The batch is open.
#[inline]
unsafe fn build(qp: Ptr<IbvQpEx>, opcode: u8, imm_or_key: u32, op: Result<WqeOp, c_int>) {
    let public = qp.as_ptr();
    // SAFETY: the batch is open, so the program's thread is this one.
    let (mut batch, wr_id, flags) =
        unsafe { (qp.sq.current(), (*public).wr_id, (*public).wr_flags) };
    if flags & !(PASSED_FLAGS | SEND_INLINE) != 0 {
        batch.fail(EINVAL);
        return;
    }
    let pushed = op.and_then(|op| {
        batch.push(SendWqe {
            wr_id,
            opcode,
            flags: (flags & PASSED_FLAGS) as u8,
            imm_or_key,
            op,
            ..SendWqe::default()
        })
    });
    if let Err(error) = pushed {
        batch.fail(error);
    }
}

/// Changes the last work request. An error fails the batch.
///
/// # Safety
///
/// The batch is open.
#[inline]
unsafe fn set(qp: Ptr<IbvQpEx>, body: impl FnOnce(&mut Slot<'_>) -> Result<(), c_int>) {
    // SAFETY: the batch is open.
    let mut batch = unsafe { qp.sq.current() };
    if let Some(mut slot) = batch.last() {
        if let Err(error) = body(&mut slot) {
            batch.fail(error);
        }
    }
}

/// Defines builders, functions that add a work request: the opcode, immediate data or key, and
/// operands. Also defines [`set_functions`].
macro_rules! builders {
    ($(
        $(#[$doc:meta])*
        $name:ident($($arg:ident: $type:ty),*) = $opcode:ident, $imm:expr, $op:expr;
    )*) => {
        $(
            #[doc = concat!("`ibv_", stringify!($name), "`.")]
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// The batch is open. Pointers are valid.
            unsafe extern "C" fn $name(qp: Ptr<IbvQpEx>, $($arg: $type),*) {
                // SAFETY: the batch is open, and pointers are valid.
                unsafe { build(qp, wr_opcode::$opcode, $imm, $op) }
            }
        )*

        /// Sets the builders for `flags` ([`operation`]) and the functions that every queue pair
        /// has.
        pub(crate) fn set_functions(qp: &mut IbvQpEx, flags: u64) {
            $(
                if flags & operation(wr_opcode::$opcode) != 0 {
                    qp.$name = Some($name);
                }
            )*
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
    };
}

builders! {
    wr_send() = SEND, 0, Ok(WqeOp::default());
    wr_send_imm(imm_data: u32) = SEND_WITH_IMM, imm_data, Ok(WqeOp::default());
    wr_send_inv(rkey: u32) = SEND_WITH_INV, rkey, Ok(WqeOp::default());
    wr_local_inv(rkey: u32) = LOCAL_INV, rkey, Ok(WqeOp::default());
    wr_rdma_write(rkey: u32, remote_addr: u64) = RDMA_WRITE, 0, Ok(remote(rkey, remote_addr));
    wr_rdma_write_imm(rkey: u32, remote_addr: u64, imm_data: u32) =
        RDMA_WRITE_WITH_IMM, imm_data, Ok(remote(rkey, remote_addr));
    wr_rdma_read(rkey: u32, remote_addr: u64) = RDMA_READ, 0, Ok(remote(rkey, remote_addr));
    wr_atomic_cmp_swp(rkey: u32, remote_addr: u64, compare: u64, swap: u64) =
        ATOMIC_CMP_AND_SWP, 0,
        Ok(WqeOp { compare_add: compare, swap, ..remote(rkey, remote_addr) });
    wr_atomic_fetch_add(rkey: u32, remote_addr: u64, add: u64) =
        ATOMIC_FETCH_AND_ADD, 0, Ok(WqeOp { compare_add: add, ..remote(rkey, remote_addr) });
    wr_flush(rkey: u32, remote_addr: u64, len: usize, kind: u8, level: u8) =
        FLUSH, flush_bits(kind, level),
        Ok(WqeOp { compare_add: len as u64, ..remote(rkey, remote_addr) });
    /// Writes the eight bytes at `atomic_wr`, which need not be aligned.
    wr_atomic_write(rkey: u32, remote_addr: u64, atomic_wr: *const c_void) =
        ATOMIC_WRITE, 0, Ok(WqeOp {
            swap: u64::from_ne_bytes(atomic_wr.cast::<[u8; 8]>().read()),
            ..remote(rkey, remote_addr)
        });
    /// Binds a window of type 2.
    wr_bind_mw(mw: Option<Ptr<IbvMw>>, rkey: u32, bind_info: &IbvMwBindInfo) =
        BIND_MW, 0, mw::encode(mw, rkey, bind_info);
}

/// Encodes the placement type and selectivity level for an entry. A value that does not fit its
/// field becomes the field's maximum, which every peer refuses.
fn flush_bits(kind: u8, level: u8) -> u32 {
    u32::from(kind.min(0x0f)) | (u32::from(level.min(3)) << 4)
}

/// Returns the operands for remote memory.
#[inline]
pub(crate) fn remote(rkey: u32, remote_addr: u64) -> WqeOp {
    WqeOp {
        remote_addr,
        rkey_or_qkey: rkey,
        ..WqeOp::default()
    }
}

/// Defines setters, functions that change the last work request.
macro_rules! setters {
    ($(
        $(#[$doc:meta])*
        $name:ident($($arg:ident: $type:ty),*) = |$qp:ident, $slot:ident| $body:expr;
    )*) => {
        $(
            #[doc = concat!("`ibv_", stringify!($name), "`.")]
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// The batch is open. Pointers are valid for the number of elements or bytes given.
            unsafe extern "C" fn $name($qp: Ptr<IbvQpEx>, $($arg: $type),*) {
                // SAFETY: the batch is open, and pointers are valid.
                unsafe { set($qp, |$slot| $body) }
            }
        )*
    };
}

setters! {
    wr_set_ud_addr(ah: Option<Ptr<IbvAh>>, remote_qpn: u32, remote_qkey: u32) = |qp, slot| {
        let wqe = slot.wqe();
        wqe.ah = ah.ok_or(EINVAL)?.number;
        wqe.op.remote_qpn = remote_qpn;
        wqe.op.rkey_or_qkey = remote_qkey;
        Ok(())
    };
    wr_set_xrc_srqn(remote_srqn: u32) = |qp, slot| {
        if qp.qp_type != qp_type::XRC_SEND {
            return Err(EINVAL);
        }
        slot.wqe().op.remote_qpn = remote_srqn;
        Ok(())
    };
    wr_set_sge(lkey: u32, addr: u64, length: u32) = |qp, slot| {
        slot.set_sges(&IbvSge { addr, length, lkey }, 1)
    };
    wr_set_sge_list(num_sge: usize, sg_list: *const IbvSge) = |qp, slot| {
        slot.set_sges(sg_list, num_sge)
    };
    wr_set_inline_data(addr: *const c_void, length: usize) = |qp, slot| {
        slot.set_inline()?;
        slot.append_inline(addr.cast(), length)
    };
    wr_set_inline_data_list(num_buf: usize, buf_list: *const IbvDataBuf) = |qp, slot| {
        slot.set_inline()?;
        elements(buf_list, num_buf)
            .iter()
            .try_for_each(|buf| slot.append_inline(buf.addr.cast(), buf.length))
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi;
    use crate::entry::{LocalOp, NewKey};
    use crate::ffi::os::ENOMEM;
    use crate::qp::tests::{public, small};
    use crate::send_queue::tests::{decode, take};
    use core::sync::atomic::Ordering;
    use rrxe_core::wire::{Feth, ImmDt};
    use rrxe_core::{AtomicOp, Remote, SendExt, SendOp, Service};

    fn produced(qp: &Qp) -> u32 {
        qp.sq.ring().producer().load(Ordering::Relaxed)
    }

    #[test]
    fn says_which_shared_receive_queue() {
        for (kind, error, srqn) in [(qp_type::XRC_SEND, 0, 99), (qp_type::RC, EINVAL, 0)] {
            let qp = small(kind);
            // SAFETY: the queue pair lives, and the calls are in the order that the verbs require.
            unsafe {
                wr_start(public(&qp));
                wr_rdma_write(public(&qp), 5, 0x2000);
                wr_set_xrc_srqn(public(&qp), 99);
                assert_eq!(wr_complete(public(&qp)), error);
            }
            if error == 0 {
                let slot = decode(&qp.sq, 0, Service::Xrc);
                let to = Remote {
                    va: 0x2000,
                    rkey: 5,
                };
                assert_eq!(
                    (slot.srqn, slot.op),
                    (srqn, SendOp::Write { to, imm: None })
                );
            }
        }
    }

    #[test]
    fn operations_follow_the_type() {
        let opcodes = |qp_type| crate::qp::opcodes(qp_type).ok().unwrap();
        let [rc, uc, ud] = [qp_type::RC, qp_type::UC, qp_type::UD].map(opcodes);
        assert!(supports(rc, 0x1bff));
        assert!(!supports(rc, 1 << 10));
        assert!(!supports(ud, operation(wr_opcode::LOCAL_INV)));
        assert!(!supports(uc, operation(wr_opcode::RDMA_READ)));
        assert!(!supports(uc, operation(wr_opcode::FLUSH)));
        assert!(!supports(uc, operation(wr_opcode::ATOMIC_WRITE)));
        assert!(supports(
            ud,
            operation(wr_opcode::SEND) | operation(wr_opcode::SEND_WITH_IMM)
        ));
        assert!(!supports(ud, operation(wr_opcode::RDMA_WRITE)));

        let mut qp = small(qp_type::RC);
        let functions = &mut qp.verbs.get_mut().qp_ex;
        set_functions(functions, operation(wr_opcode::SEND));
        assert!(functions.wr_send.is_some() && functions.wr_start.is_some());
        assert!(functions.wr_rdma_read.is_none() && functions.wr_bind_mw.is_none());
    }

    #[test]
    fn builds_and_publishes_a_batch() {
        let qp = small(qp_type::RC);
        let bytes = *b"abcdef";
        // SAFETY: the queue pair lives, and the calls are in the order that the verbs require.
        unsafe {
            let ex: Ptr<IbvQpEx> = public(&qp);
            wr_start(ex);
            (*ex.as_ptr()).wr_id = 1;
            (*ex.as_ptr()).wr_flags = abi::WQE_SIGNALED.into();
            wr_rdma_write_imm(ex, 5, 0x2000, 0xfeed);
            wr_set_sge(ex, 6, 0x3000, 0);
            (*ex.as_ptr()).wr_id = 2;
            (*ex.as_ptr()).wr_flags = SEND_INLINE;
            wr_send(ex);
            let list = [2, 6].map(|length| IbvDataBuf {
                addr: bytes.as_ptr().cast_mut().cast(),
                length,
            });
            wr_set_inline_data_list(ex, 2, list.as_ptr());
            (*ex.as_ptr()).wr_id = 3;
            (*ex.as_ptr()).wr_flags = abi::WQE_FENCE.into();
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

    /// Each builder, with the work request that the kernel decodes from its entry.
    #[test]
    fn the_kernel_decodes_each_operation() {
        let at = Remote {
            va: 0x2000,
            rkey: 5,
        };
        let imm = ImmDt([1, 2, 3, 4]);
        let imm_data = imm.to_verbs();
        let info = IbvMwBindInfo {
            mr: None,
            addr: 7,
            length: 8,
            mw_access_flags: 9,
        };
        let new_key = NewKey {
            key: 0x1234,
            lkey: 0,
            address: 7,
            length: 8,
            access: 9,
        };
        let mw = mw::tests::window(MW_TYPE_2, 0x1200);
        // The value is at an odd address.
        let bytes = *b"-01234567";
        let send = |ext| SendOp::Send { ext };
        let write = |imm| SendOp::Write { to: at, imm };
        let atomic = |op| SendOp::Atomic { at, op };
        let flush = SendOp::Flush {
            at,
            feth: Feth {
                placement: Feth::PERSISTENT,
                level: Feth::RANGE,
            },
        };
        let swap = AtomicOp::CompareSwap {
            compare: 9,
            swap: 10,
        };
        let atomic_write = SendOp::AtomicWrite {
            to: at,
            value: *b"01234567",
        };
        type Builder<'a> = &'a dyn Fn(Ptr<IbvQpEx>);
        // SAFETY: the queue pair lives, and the calls are in the order that the verbs require.
        let cases: [(Builder<'_>, SendOp<LocalOp>, u32); 13] = unsafe {
            [
                (&|ex| wr_send(ex), send(SendExt::None), 0),
                (&|ex| wr_send_imm(ex, imm_data), send(SendExt::Imm(imm)), 0),
                (&|ex| wr_send_inv(ex, 6), send(SendExt::Invalidate(6)), 0),
                (&|ex| wr_rdma_write(ex, 5, 0x2000), write(None), 0),
                (
                    &|ex| wr_rdma_write_imm(ex, 5, 0x2000, imm_data),
                    write(Some(imm)),
                    0,
                ),
                (
                    &|ex| wr_rdma_read(ex, 5, 0x2000),
                    SendOp::Read { from: at },
                    0,
                ),
                (
                    &|ex| wr_atomic_cmp_swp(ex, 5, 0x2000, 9, 10),
                    atomic(swap),
                    0,
                ),
                (
                    &|ex| wr_atomic_fetch_add(ex, 5, 0x2000, 11),
                    atomic(AtomicOp::FetchAdd { add: 11 }),
                    0,
                ),
                (&|ex| wr_flush(ex, 5, 0x2000, 99, 2, 0), flush, 99),
                // Longer than a message may be, which the requester refuses.
                (
                    &|ex| wr_flush(ex, 5, 0x2000, 1 << 32, 2, 0),
                    flush,
                    u32::MAX,
                ),
                (
                    &|ex| wr_atomic_write(ex, 5, 0x2000, bytes.as_ptr().add(1).cast()),
                    atomic_write,
                    0,
                ),
                (
                    &|ex| wr_local_inv(ex, 6),
                    SendOp::Local(LocalOp::Invalidate(6)),
                    0,
                ),
                (
                    &|ex| wr_bind_mw(ex, mw, 0x1234, &info),
                    SendOp::Local(LocalOp::BindMw(new_key)),
                    0,
                ),
            ]
        };
        for (build, op, length) in cases {
            let qp = small(qp_type::RC);
            wr_start(public(&qp));
            build(public(&qp));
            // SAFETY: the batch is open.
            assert_eq!(unsafe { wr_complete(public(&qp)) }, 0);
            let slot = decode(&qp.sq, 0, Service::Rc);
            assert_eq!((slot.op, slot.length), (op, length));
        }
    }

    #[test]
    fn one_failure_fails_the_batch_and_only_that() {
        let qp = small(qp_type::RC);
        let big = [0_u8; 200];
        // SAFETY: the queue pair lives, and the calls are in the order that the verbs require.
        unsafe {
            let ex: Ptr<IbvQpEx> = public(&qp);
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
            assert_eq!(fails(&|| wr_set_ud_addr(ex, None, 1, 1)), EINVAL);
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
            (*ex.as_ptr()).wr_id = 42;
            wr_send(ex);
            assert_eq!(wr_complete(ex), 0);
        }
        assert_eq!(take(&qp.sq, 0).0.wr_id, 42);
    }
}
