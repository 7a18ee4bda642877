// SPDX-License-Identifier: GPL-2.0

//! Receive queues, private or shared by several queue pairs. The driver fetches receive work
//! requests; this module checks how the core uses them.

use rrxe_core::Fault;
use std::collections::VecDeque;

/// A receive work request.
#[derive(Clone, Copy, Debug)]
pub struct Receive {
    /// Index of its queue, and the number of work requests posted to that queue before it.
    pub queue: usize,
    pub number: usize,
    pub len: u32,
    pub fault: Option<Fault>,
}

/// The state of a receive work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Waiting,
    /// Held by this queue pair.
    Taken(usize),
    Completed,
    /// Dropped because its queue pair was reset.
    Forgotten,
}

/// A receive queue.
pub struct ReceiveQueue {
    /// The SRQ number that XRC requests carry.
    pub number: u32,
    /// Several queue pairs take from it. It survives their errors and resets.
    pub shared: bool,
    /// Bytes of the longest message that may arrive.
    pub longest: u32,
    /// Receive work requests that its consumers keep posted before the end.
    pub keep: u32,
    waiting: VecDeque<Receive>,
    fates: Vec<Fate>,
}

impl ReceiveQueue {
    pub fn new(number: u32, shared: bool) -> ReceiveQueue {
        ReceiveQueue {
            number,
            shared,
            longest: 0,
            keep: 0,
            waiting: VecDeque::new(),
            fates: Vec::new(),
        }
    }

    /// Returns the number of receive work requests not yet taken.
    pub fn waiting(&self) -> u32 {
        self.waiting.len() as u32
    }

    /// Posts a receive work request. `queue` is the index of this queue.
    pub fn post(&mut self, queue: usize, len: u32, fault: Option<Fault>) {
        self.waiting.push_back(Receive {
            queue,
            number: self.fates.len(),
            len,
            fault,
        });
        self.fates.push(Fate::Waiting);
    }

    /// Takes the oldest receive work request for queue pair `qp`.
    pub fn take(&mut self, qp: usize) -> Option<Receive> {
        let receive = self.waiting.pop_front()?;
        self.fates[receive.number] = Fate::Taken(qp);
        Some(receive)
    }

    /// Completes a receive work request of queue pair `qp`. It must be held by `qp`, be completed
    /// only once, and precede every other one that `qp` holds.
    pub fn complete(&mut self, qp: usize, number: usize) {
        assert_eq!(
            self.fates[number],
            Fate::Taken(qp),
            "queue pair {qp} completes receive {number}"
        );
        self.fates[number] = Fate::Completed;
        let earlier = &self.fates[..number];
        assert!(
            !earlier.contains(&Fate::Taken(qp)),
            "queue pair {qp} completes receives out of order"
        );
    }

    /// Drops a receive work request that `qp` holds, because `qp` was reset.
    pub fn forget(&mut self, qp: usize, number: usize) {
        assert_eq!(self.fates[number], Fate::Taken(qp));
        self.fates[number] = Fate::Forgotten;
    }

    /// Flushes the waiting receive work requests because the queue pair is in Error. A shared queue
    /// keeps them for the other queue pairs (J-15).
    pub fn flush(&mut self) {
        self.empty(Fate::Completed);
    }

    /// Drops the waiting receive work requests because the queue pair was reset.
    pub fn discard(&mut self) {
        self.empty(Fate::Forgotten);
    }

    fn empty(&mut self, fate: Fate) {
        if self.shared {
            return;
        }
        for receive in self.waiting.drain(..) {
            self.fates[receive.number] = fate;
        }
    }

    /// Asserts that no receive work request was lost: each one is waiting, completed, or held by
    /// its queue pair, as reported by `current`.
    pub fn check(&self, current: impl Fn(usize) -> Option<usize>) {
        let mut waiting = 0;
        for (number, fate) in self.fates.iter().enumerate() {
            match *fate {
                Fate::Waiting => waiting += 1,
                Fate::Taken(qp) => assert_eq!(
                    current(qp),
                    Some(number),
                    "queue pair {qp} has lost receive {number} of queue {}",
                    self.number
                ),
                Fate::Completed | Fate::Forgotten => {}
            }
        }
        assert_eq!(waiting, self.waiting(), "queue {}", self.number);
    }
}
