// SPDX-License-Identifier: GPL-2.0

//! The state of a queue pair.
//!
//! Several contexts change the state concurrently: the consumer by MODIFY_QP, a packet or a timer
//! by an error. Each change therefore names the state that it starts from, and fails if the state
//! has changed meanwhile. Only the consumer takes the queue pair into or out of the Reset state,
//! with its attributes locked. The driver holds a side's lock when it enters a state in which that
//! side works: a later error waits for the lock, and stops the side.

use kernel::sync::atomic::{Acquire, Atomic, Full, Release};
use linux_rdma::rdma::qp::QpState;

/// The state of a queue pair.
pub(super) struct State(Atomic<u32>);

impl State {
    /// Returns the Reset state.
    pub(super) fn new() -> Self {
        Self(Atomic::new(QpState::Reset as u32))
    }

    /// Returns the current state.
    #[inline]
    pub(super) fn get(&self) -> QpState {
        QpState::from_raw(self.0.load(Acquire)).unwrap_or(QpState::Error)
    }

    /// Changes the state from `from` to `to`. Returns false if the state is not `from`.
    #[must_use]
    pub(super) fn change(&self, from: QpState, to: QpState) -> bool {
        self.0.cmpxchg(from as u32, to as u32, Full).is_ok()
    }

    /// Enters the Reset state from any other state.
    pub(super) fn reset(&self) {
        self.0.store(QpState::Reset as u32, Release);
    }

    /// Enters the Error state from any state except Reset. Returns false if the queue pair was in
    /// one of the two.
    pub(super) fn fail(&self) -> bool {
        loop {
            match self.get() {
                QpState::Reset | QpState::Error => return false,
                now if self.change(now, QpState::Error) => return true,
                _ => {}
            }
        }
    }

    /// Enters the Send Queue Error state if the send queue works.
    pub(super) fn fail_send_queue(&self) {
        for from in [QpState::Rts, QpState::Sqd, QpState::Rts] {
            if self.change(from, QpState::Sqe) {
                return;
            }
        }
    }
}

#[kernel::prelude::kunit_tests(rrxe_state)]
mod tests {
    use super::*;

    /// Returns a state after the given changes.
    fn state(steps: &[QpState]) -> State {
        let state = State::new();
        for step in steps {
            assert!(state.change(state.get(), *step));
        }
        state
    }

    #[test]
    fn a_late_change_is_refused() {
        let state = state(&[QpState::Init, QpState::Rtr, QpState::Rts]);
        // The consumer reads Ready to Send. Then a request fails.
        assert!(state.fail());
        assert!(!state.change(QpState::Rts, QpState::Sqd));
        assert_eq!(state.get(), QpState::Error);
        assert!(!state.fail());
    }

    #[test]
    fn a_late_failure_of_the_send_queue_is_forgotten() {
        for end in [QpState::Error, QpState::Reset] {
            let state = state(&[QpState::Init, QpState::Rtr, QpState::Rts, end]);
            state.fail_send_queue();
            assert_eq!(state.get(), end);
        }
        for works in [QpState::Rts, QpState::Sqd] {
            let state = state(&[works]);
            state.fail_send_queue();
            assert_eq!(state.get(), QpState::Sqe);
        }
    }

    #[test]
    fn what_is_reset_stays() {
        let state = state(&[QpState::Init]);
        state.reset();
        assert!(!state.fail());
        assert_eq!(state.get(), QpState::Reset);
    }
}
