// SPDX-License-Identifier: GPL-2.0

//! Receive queues: a queue pair's own, and those that several queue pairs share. Handing receive
//! work requests out is the driver's doing; what the core does with them is judged here.

use rrxe_core::Fault;
use std::collections::VecDeque;

/// A receive work request.
#[derive(Clone, Copy, Debug)]
pub struct Receive {
    /// Its queue, and how many were posted to that before.
    pub queue: usize,
    pub number: usize,
    pub len: u32,
    pub fault: Option<Fault>,
}

/// What has become of a receive work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Waiting,
    /// It is this queue pair's alone.
    Taken(usize),
    Completed,
    /// Its queue pair was reset.
    Forgotten,
}

/// A receive queue.
pub struct ReceiveQueue {
    /// Its number, by which XRC requests name it.
    pub number: u32,
    /// Several queue pairs take from it. It outlives their errors and resets.
    pub shared: bool,
    /// Bytes of the longest message that may come.
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

    /// Receive work requests that nobody has taken.
    pub fn waiting(&self) -> u32 {
        self.waiting.len() as u32
    }

    /// Posts a receive work request. `queue`: this queue.
    pub fn post(&mut self, queue: usize, len: u32, fault: Option<Fault>) {
        self.waiting.push_back(Receive {
            queue,
            number: self.fates.len(),
            len,
            fault,
        });
        self.fates.push(Fate::Waiting);
    }

    /// Queue pair `qp` takes the oldest one.
    pub fn take(&mut self, qp: usize) -> Option<Receive> {
        let receive = self.waiting.pop_front()?;
        self.fates[receive.number] = Fate::Taken(qp);
        Some(receive)
    }

    /// Queue pair `qp` completes one: once, one that it has taken, and before those that it took
    /// later.
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

    /// Queue pair `qp`, which has taken it, was reset.
    pub fn forget(&mut self, qp: usize, number: usize) {
        assert_eq!(self.fates[number], Fate::Taken(qp));
        self.fates[number] = Fate::Forgotten;
    }

    /// The queue pair is in Error: those that wait are flushed. But a shared queue has them for
    /// others (J-15).
    pub fn flush(&mut self) {
        self.empty(Fate::Completed);
    }

    /// The queue pair is reset.
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

    /// None is lost: each waits, was completed, or is what `current` says of its queue pair.
    pub fn judge(&self, current: impl Fn(usize) -> Option<usize>) {
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
