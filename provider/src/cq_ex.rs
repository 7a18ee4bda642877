// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The extended way to poll a completion queue: `ibv_start_poll`, `ibv_next_poll`, `ibv_end_poll`
//! and a function for each field.
//!
//! The queue's lock is held from a successful `start_poll` to `end_poll`. The other functions are
//! called in between (`ibv_create_cq_ex(3)`).

use crate::abi::Cqe;
use crate::completion_queue::{service_level, wc_flags};
use crate::cq::Cq;
use crate::ffi::os::{EINVAL, ENOENT};
use crate::ffi::ptr::Ptr;
use crate::ffi::verbs::{wc_ex, IbvCqEx, IbvPollCqAttr};
use core::ffi::{c_int, c_uint};
use core::mem::ManuallyDrop;

/// Makes `entry` the current completion.
///
/// # Safety
///
/// The caller holds the lock of the queue.
unsafe fn show(current: Ptr<IbvCqEx>, entry: Cqe) {
    let public = current.as_ptr();
    // SAFETY: under the lock there is no other access to these members.
    unsafe {
        (*public).status = u32::from(entry.status);
        (*public).wr_id = entry.wr_id;
        *current.current.get() = entry;
    }
}

/// `ibv_start_poll`. Returns `ENOENT` if the queue is empty.
extern "C" fn start_poll(current: Ptr<IbvCqEx>, attr: Option<&IbvPollCqAttr>) -> c_int {
    if attr.is_some_and(|attr| attr.comp_mask != 0) {
        return EINVAL;
    }
    let reader = current.queue.open();
    let Some(entry) = reader.peek() else {
        drop(reader);
        current.polled(0);
        return ENOENT;
    };
    let count = reader.available();
    core::mem::forget(reader);
    // SAFETY: `open` took the lock.
    unsafe { show(current, entry) };
    current.polled(count);
    0
}

/// `ibv_next_poll`. Returns `ENOENT` if there is no further completion.
///
/// # Safety
///
/// Called after a successful `start_poll`.
unsafe extern "C" fn next_poll(current: Ptr<IbvCqEx>) -> c_int {
    // SAFETY: the lock is held, and there is no other reader.
    unsafe {
        match current.queue.current().peek_next() {
            Some(entry) => {
                show(current, entry);
                0
            }
            None => ENOENT,
        }
    }
}

/// `ibv_end_poll`.
///
/// # Safety
///
/// Called after a successful `start_poll`.
unsafe extern "C" fn end_poll(current: Ptr<IbvCqEx>) {
    // SAFETY: the lock is held, and there is no other reader.
    let mut reader = ManuallyDrop::into_inner(unsafe { current.queue.current() });
    reader.release(1);
}

/// Defines the functions that read a field of the current completion, [`WC_FLAGS`] and
/// [`set_functions`]. A field that not every queue has is named with the flag that asks for it.
macro_rules! readers {
    ($(
        $(#[$doc:meta])*
        $name:ident $(if $flag:path)?, |$entry:ident $(, $cq:ident)?| -> $type:ty { $value:expr }
    )*) => {
        $(
            #[doc = concat!("`ibv_wc_", stringify!($name), "`.")]
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// Called between `start_poll` and `end_poll`.
            unsafe extern "C" fn $name(current: Ptr<IbvCqEx>) -> $type {
                // SAFETY: `show` put the entry there, and nothing changes it meanwhile.
                let $entry = unsafe { &*current.current.get() };
                $(let $cq: &Cq = &current;)?
                $value
            }
        )*

        /// Fields that a program can ask for.
        pub(crate) const WC_FLAGS: u64 = 0 $($(| $flag)?)*;

        /// Sets the functions for the fields in `flags` and those that every queue has.
        pub(crate) fn set_functions(cq: &mut IbvCqEx, flags: u64) {
            cq.start_poll = Some(start_poll);
            cq.next_poll = Some(next_poll);
            cq.end_poll = Some(end_poll);
            $(
                $(if flags & $flag != 0)? {
                    cq.$name = Some($name);
                }
            )*
        }
    };
}

readers! {
    read_opcode, |entry| -> c_uint { c_uint::from(entry.opcode) }
    read_vendor_err, |entry| -> u32 { entry.vendor_err }
    read_wc_flags, |entry| -> c_uint { wc_flags(entry) }
    read_byte_len if wc_ex::BYTE_LEN, |entry| -> u32 { entry.byte_len }
    /// Also `ibv_wc_read_invalidated_rkey`.
    read_imm_data if wc_ex::IMM, |entry| -> u32 { entry.imm_or_key }
    read_qp_num if wc_ex::QP_NUM, |entry| -> u32 { entry.qp_num }
    read_src_qp if wc_ex::SRC_QP, |entry| -> u32 { entry.src_qp }
    /// RoCE has no LIDs.
    read_slid if wc_ex::SLID, |_entry| -> u32 { 0 }
    read_sl if wc_ex::SL, |entry| -> u8 { service_level(entry) }
    /// RoCE has no LIDs.
    read_dlid_path_bits if wc_ex::DLID_PATH_BITS, |_entry| -> u8 { 0 }
    /// Ticks of `crate::clock`.
    read_completion_ts if wc_ex::COMPLETION_TIMESTAMP, |entry| -> u64 { entry.timestamp }
    read_completion_wallclock_ns if wc_ex::COMPLETION_TIMESTAMP_WALLCLOCK, |entry, cq| -> u64 {
        cq.wallclock.convert(entry.timestamp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::completion_queue::tests::produce;
    use crate::context::tests::context;
    use crate::cq::tests::public;
    use crate::memory::Owned;
    use core::sync::atomic::Ordering;

    fn queue(flags: u64) -> Owned<Cq> {
        let mut cq = Cq::new(context(), 4, false, true, None).ok().unwrap();
        set_functions(cq.verbs.get_mut(), flags);
        cq
    }

    #[test]
    fn only_the_fields_asked_for_are_there() {
        let mut cq = queue(wc_ex::SL);
        let functions = cq.verbs.get_mut();
        assert!(functions.read_sl.is_some() && functions.read_opcode.is_some());
        assert!(functions.read_byte_len.is_none() && functions.read_completion_ts.is_none());
    }

    fn completion(status: u8) -> Cqe {
        Cqe {
            wr_id: 10 | u64::from(status),
            status,
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
        }
    }

    #[test]
    fn walks_the_queue() {
        let cq = queue(WC_FLAGS);
        let ex = public(&cq);
        let shown = || {
            // SAFETY: the queue lives, and nothing else accesses these members.
            let public = unsafe { &*cq.verbs.get() };
            (public.wr_id, public.status)
        };
        let attr = IbvPollCqAttr { comp_mask: 0 };
        let consumed = || cq.queue.ring().consumer().load(Ordering::Relaxed);
        // SAFETY: the queue lives, and the calls are in the order that the verbs require.
        unsafe {
            assert_eq!(
                start_poll(ex, Some(&IbvPollCqAttr { comp_mask: 1 })),
                EINVAL
            );
            for round in 0..3 {
                assert_eq!(start_poll(ex, Some(&attr)), ENOENT);
                [0, 1, 4].map(|status| produce(&cq.queue, completion(status)));
                assert_eq!(start_poll(ex, Some(&attr)), 0);
                assert_eq!(shown(), (10, 0));
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
                assert_eq!(shown(), (11, 1));
                end_poll(ex);
                assert_eq!(consumed(), round * 3 + 2);
                assert_eq!(start_poll(ex, None), 0);
                assert_eq!(shown(), (14, 4));
                assert_eq!(next_poll(ex), ENOENT);
                assert_eq!(next_poll(ex), ENOENT);
                end_poll(ex);
                assert_eq!(consumed(), round * 3 + 3);
            }
        }
    }
}
