// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The extended way to poll a completion queue: `ibv_start_poll`, `ibv_next_poll`, `ibv_end_poll`
//! and a function for each field.
//!
//! The queue's lock is held from a successful `start_poll` to `end_poll`.

use crate::abi::Cqe;
use crate::clock;
use crate::completion_queue::{service_level, wc_flags};
use crate::context;
use crate::cpu_yield;
use crate::cq::Cq;
use crate::doorbell;
use crate::ffi::os::{EINVAL, ENOENT};
use crate::ffi::verbs::{wc_ex, IbvCqEx, IbvPollCqAttr};
use core::ffi::{c_int, c_uint};

/// Both kinds of timestamp.
pub(crate) const TIMESTAMPS: u64 =
    wc_ex::COMPLETION_TIMESTAMP | wc_ex::COMPLETION_TIMESTAMP_WALLCLOCK;

/// Fields that a consumer can ask for.
pub(crate) const WC_FLAGS: u64 = wc_ex::BYTE_LEN
    | wc_ex::IMM
    | wc_ex::QP_NUM
    | wc_ex::SRC_QP
    | wc_ex::SLID
    | wc_ex::SL
    | wc_ex::DLID_PATH_BITS
    | TIMESTAMPS;

/// Sets the functions for the fields in `flags` and those that every queue has.
pub(crate) fn set_functions(cq: &mut IbvCqEx, flags: u64) {
    cq.start_poll = Some(start_poll);
    cq.next_poll = Some(next_poll);
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_vendor_err);
    cq.read_wc_flags = Some(read_wc_flags);

    let has = |flag| flags & flag != 0;
    if has(wc_ex::BYTE_LEN) {
        cq.read_byte_len = Some(read_byte_len);
    }
    if has(wc_ex::IMM) {
        cq.read_imm_data = Some(read_imm_data);
    }
    if has(wc_ex::QP_NUM) {
        cq.read_qp_num = Some(read_qp_num);
    }
    if has(wc_ex::SRC_QP) {
        cq.read_src_qp = Some(read_src_qp);
    }
    if has(wc_ex::SLID) {
        cq.read_slid = Some(read_slid);
    }
    if has(wc_ex::SL) {
        cq.read_sl = Some(read_sl);
    }
    if has(wc_ex::DLID_PATH_BITS) {
        cq.read_dlid_path_bits = Some(read_dlid_path_bits);
    }
    if has(wc_ex::COMPLETION_TIMESTAMP) {
        cq.read_completion_ts = Some(read_completion_ts);
    }
    if has(wc_ex::COMPLETION_TIMESTAMP_WALLCLOCK) {
        cq.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
    }
}

/// Makes `entry` the current completion.
///
/// # Safety
///
/// `current` is a completion queue of rrxe whose lock the caller holds.
unsafe fn show(current: *mut IbvCqEx, entry: Cqe) {
    // SAFETY: the caller's contract; under the lock there is no other access to these members.
    unsafe {
        (*current).status = u32::from(entry.status);
        (*current).wr_id = entry.wr_id;
        *Cq::of(current).current.get() = entry;
    }
}

/// `ibv_start_poll`. Returns `ENOENT` if the queue is empty.
///
/// # Safety
///
/// Called by the consumer with a completion queue of rrxe; `attr` may be read or is null.
unsafe extern "C" fn start_poll(current: *mut IbvCqEx, attr: *const IbvPollCqAttr) -> c_int {
    // SAFETY: the caller's contract.
    if unsafe { attr.as_ref() }.is_some_and(|attr| attr.comp_mask != 0) {
        return EINVAL;
    }
    // SAFETY: the caller's contract.
    let (queue, context) = unsafe { (&Cq::of(current).queue, (*current).base.context) };
    // SAFETY: the caller's contract.
    let yield_after = unsafe { context::yield_after(context) };
    let reader = queue.open();
    match reader.peek() {
        Some(entry) => {
            let count = reader.available();
            // SAFETY: `open` took the lock.
            unsafe { show(current, entry) };
            cpu_yield::after_completions(yield_after, count);
            0
        }
        None => {
            queue.close();
            // SAFETY: the caller's contract.
            unsafe { doorbell::ring_deferred(context) };
            cpu_yield::after_empty_poll(yield_after);
            ENOENT
        }
    }
}

/// `ibv_next_poll`. Returns `ENOENT` if there is no further completion.
///
/// # Safety
///
/// Called by the consumer after a successful `start_poll`.
unsafe extern "C" fn next_poll(current: *mut IbvCqEx) -> c_int {
    // SAFETY: the caller's contract: the lock is held, and there is no other reader.
    let next = unsafe {
        let mut reader = Cq::of(current).queue.current();
        reader.peek_next()
    };
    match next {
        Some(entry) => {
            // SAFETY: the lock is held.
            unsafe { show(current, entry) };
            0
        }
        None => ENOENT,
    }
}

/// `ibv_end_poll`.
///
/// # Safety
///
/// Called by the consumer after a successful `start_poll`.
unsafe extern "C" fn end_poll(current: *mut IbvCqEx) {
    // SAFETY: the caller's contract: the lock is held, and there is no other reader.
    unsafe {
        let queue = &Cq::of(current).queue;
        queue.current().advance();
        queue.close();
    }
}

/// Returns the completion that the consumer has reached.
///
/// # Safety
///
/// Called by the consumer between `start_poll` and `end_poll`.
unsafe fn entry<'a>(current: *mut IbvCqEx) -> &'a Cqe {
    // SAFETY: the caller's contract; `show` put it there, and nothing changes it meanwhile.
    unsafe { &*Cq::of(current).current.get() }
}

/// Defines functions that read a field of the current completion.
macro_rules! readers {
    ($($(#[$doc:meta])* $name:ident -> $type:ty = |$entry:ident| $value:expr;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// Called by the consumer between `start_poll` and `end_poll`.
            unsafe extern "C" fn $name(current: *mut IbvCqEx) -> $type {
                // SAFETY: the caller's contract.
                let $entry = unsafe { entry(current) };
                $value
            }
        )*
    };
}

readers! {
    /// `ibv_wc_read_opcode`.
    read_opcode -> c_uint = |entry| c_uint::from(entry.opcode);
    /// `ibv_wc_read_vendor_err`.
    read_vendor_err -> u32 = |entry| entry.vendor_err;
    /// `ibv_wc_read_byte_len`.
    read_byte_len -> u32 = |entry| entry.byte_len;
    /// `ibv_wc_read_imm_data` and `ibv_wc_read_invalidated_rkey`.
    read_imm_data -> u32 = |entry| entry.imm_or_key;
    /// `ibv_wc_read_qp_num`.
    read_qp_num -> u32 = |entry| entry.qp_num;
    /// `ibv_wc_read_src_qp`.
    read_src_qp -> u32 = |entry| entry.src_qp;
    /// `ibv_wc_read_wc_flags`.
    read_wc_flags -> c_uint = |entry| wc_flags(entry);
    /// `ibv_wc_read_slid`: RoCE has no LIDs.
    read_slid -> u32 = |_entry| 0;
    /// `ibv_wc_read_sl`.
    read_sl -> u8 = |entry| service_level(entry);
    /// `ibv_wc_read_dlid_path_bits`: RoCE has no LIDs.
    read_dlid_path_bits -> u8 = |_entry| 0;
    /// `ibv_wc_read_completion_ts`: ticks of `crate::clock`.
    read_completion_ts -> u64 = |entry| entry.timestamp;
    /// `ibv_wc_read_completion_wallclock_ns`.
    read_completion_wallclock_ns -> u64 = |entry| clock::to_wallclock(entry.timestamp);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::completion_queue::tests::produce;
    use core::sync::atomic::Ordering;

    fn queue(flags: u64) -> Box<Cq> {
        let cq = Cq::new(4, 100, true).ok().unwrap();
        // SAFETY: the queue is not shared.
        set_functions(unsafe { &mut (*cq.verbs.get()).cq_ex }, flags);
        cq
    }

    #[test]
    fn only_the_fields_asked_for_are_there() {
        let cq = queue(wc_ex::SL);
        // SAFETY: the queue is not shared.
        let functions = unsafe { &(*cq.verbs.get()).cq_ex };
        assert!(functions.read_sl.is_some() && functions.read_opcode.is_some());
        assert!(functions.read_byte_len.is_none() && functions.read_completion_ts.is_none());
    }

    #[test]
    fn walks_the_queue() {
        let cq = queue(WC_FLAGS);
        let ex = cq.verbs.get().cast::<IbvCqEx>();
        let attr = IbvPollCqAttr { comp_mask: 0 };
        let consumed = || cq.queue.ring().consumer().load(Ordering::Relaxed);
        // SAFETY: the queue lives, and the calls are in the order that the verbs require.
        unsafe {
            assert_eq!(start_poll(ex, &IbvPollCqAttr { comp_mask: 1 }), EINVAL);
            for round in 0..3 {
                assert_eq!(start_poll(ex, &attr), ENOENT);
                for i in 0..3 {
                    produce(
                        &cq.queue,
                        Cqe {
                            wr_id: 10 + i,
                            status: i as u8,
                            opcode: 128,
                            byte_len: 100,
                            imm_or_key: 5,
                            qp_num: 6,
                            src_qp: 7,
                            flags: 0xff,
                            timestamp: 8,
                            vendor_err: 9,
                            sl: 3,
                            ..Cqe::default()
                        },
                    );
                }
                assert_eq!(start_poll(ex, &attr), 0);
                assert_eq!(((*ex).wr_id, (*ex).status), (10, 0));
                assert_eq!(
                    (read_opcode(ex), read_vendor_err(ex), read_byte_len(ex)),
                    (128, 9, 100)
                );
                assert_eq!(
                    (read_imm_data(ex), read_qp_num(ex), read_src_qp(ex)),
                    (5, 6, 7)
                );
                assert_eq!((read_wc_flags(ex), read_slid(ex), read_sl(ex)), (11, 0, 3));
                assert_eq!((read_dlid_path_bits(ex), read_completion_ts(ex)), (0, 8));
                assert_eq!(next_poll(ex), 0);
                assert_eq!(((*ex).wr_id, (*ex).status), (11, 1));
                end_poll(ex);
                assert_eq!(consumed(), round * 3 + 2);
                assert_eq!(start_poll(ex, core::ptr::null()), 0);
                assert_eq!((*ex).wr_id, 12);
                assert_eq!(next_poll(ex), ENOENT);
                assert_eq!(next_poll(ex), ENOENT);
                end_poll(ex);
                assert_eq!(consumed(), round * 3 + 3);
            }
        }
    }
}
