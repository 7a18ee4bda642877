// SPDX-License-Identifier: GPL-2.0

//! Poll mode: a thread for each context, which polls the send rings of the context's queue pairs.
//!
//! When the thread finds that a producer counter has changed, it does the work of a doorbell. After
//! it has found nothing for the context's idle time, it sleeps until the next doorbell.
//!
//! The thread belongs to the process that opened the context: it counts for the process and its
//! control group, and ends with the process. If the process ends before the context (a child has
//! inherited the file), or executes another program, the queue pairs need doorbells from then on.
//!
//! By writing to its rings a program can only keep the thread busy, as it could keep itself busy
//! with system calls: polling a ring costs at most as much as a system call.

use super::Qp;
use crate::{
    config::Config,
    ring::{abi::MAX_POLL_IDLE_US, Ring},
};
use kernel::{
    c_str, new_mutex,
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc, Mutex,
    },
};
use linux_rdma::{
    sync::{smp_mb, CurrentThread, ThreadBody, UserThread},
    time::monotonic_ns,
};
use rrxe_core::{lengths::total, RingCounter, Span, Time};

/// The poll mode of a context: the thread, which ends with it.
pub(crate) struct Poller(Arc<UserThread<PollSet>>);

impl Poller {
    /// Starts the thread of a context with an idle time in microseconds, in the current process.
    /// Returns `None` if the idle time is 0, or if the process can't have a further thread. Returns
    /// `EINVAL` if the idle time is too long.
    pub(crate) fn new(idle_us: u32, config: &Config) -> Result<Option<Self>> {
        if idle_us > MAX_POLL_IDLE_US {
            return Err(EINVAL);
        }
        if idle_us == 0 || !config.poll_mode {
            return Ok(None);
        }
        let poll_set = Arc::pin_init(
            pin_init!(PollSet {
                idle: Span::from_us(idle_us),
                last: Atomic::new(0),
                state: Atomic::new(ASLEEP),
                rings <- new_mutex!(KVVec::new(), "rrxe_poll_rings"),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        match UserThread::spawn(c_str!("rrxe-poll"), poll_set) {
            Ok(thread) => Ok(Some(Self(Arc::new(thread, GFP_KERNEL_ACCOUNT)?))),
            // The program's system call is restarted after the signal.
            Err(e) if e == ERESTARTNOINTR || e == ENOMEM => Err(e),
            // A limit of the process or its control group, or a process that can't have further
            // threads, for example because its children are for another PID namespace.
            Err(_) => Ok(None),
        }
    }

    /// Adds the send ring of a queue pair to those that the thread polls.
    pub(crate) fn add(&self, qp: Arc<Qp>, ring: Ring) -> Result<PollRegistration> {
        let poll_set = self.0.body();
        {
            let mut rings = poll_set.rings.lock();
            ring.want_doorbell(!poll_set.is_awake());
            let (qp, seen) = (qp.clone(), RingCounter::default());
            rings.push(PollEntry { qp, ring, seen }, GFP_KERNEL_ACCOUNT)?;
        }
        Ok(PollRegistration {
            thread: self.0.clone(),
            qp,
        })
    }
}

/// The registration of a queue pair with the poll thread of its context. Ends at the latest when it
/// is dropped.
pub(crate) struct PollRegistration {
    thread: Arc<UserThread<PollSet>>,
    qp: Arc<Qp>,
}

impl PollRegistration {
    /// Wakes the thread after a doorbell. The program needs no doorbells from now on.
    pub(crate) fn wake(&self) {
        let poll_set = self.thread.body();
        let rings = poll_set.rings.lock();
        if poll_set.state.load(Relaxed) == ASLEEP {
            poll_set.last.store(monotonic_ns(), Relaxed);
            poll_set.state.store(AWAKE, Relaxed);
            want_doorbells(&rings, false);
            drop(rings);
            self.thread.wake();
        }
    }

    /// Ends the registration. The thread may still be running the send side, as may a CPU that
    /// received a packet for the queue pair.
    pub(crate) fn unregister(&self) {
        let gone = {
            let mut rings = self.thread.body().rings.lock();
            let at = rings.iter().position(|w| Arc::ptr_eq(&w.qp, &self.qp));
            at.and_then(|at| rings.remove(at).ok())
        };
        // Dropped without the mutex: dropping the last reference to the ring unpins it.
        drop(gone);
    }
}

impl Drop for PollRegistration {
    fn drop(&mut self) {
        self.unregister();
    }
}

/// A polled send ring.
struct PollEntry {
    qp: Arc<Qp>,
    ring: Ring,
    /// The producer counter at the last poll.
    seen: RingCounter,
}

impl PollEntry {
    fn has_changed(&self) -> bool {
        self.ring.producer() != self.seen
    }
}

fn want_doorbells(rings: &KVVec<PollEntry>, wanted: bool) {
    for entry in rings {
        entry.ring.want_doorbell(wanted);
    }
}

/// The thread polls, or is about to be woken.
const AWAKE: u32 = 0;
/// The thread sleeps, or is about to.
const ASLEEP: u32 = 1;
/// The thread was killed.
const DEAD: u32 = 2;

/// The rings that a thread polls.
///
/// A ring wants no doorbells only while the thread is awake. Both change with `rings` locked.
#[pin_data]
pub(crate) struct PollSet {
    /// Time for which the thread continues to poll after it has found something.
    idle: Span,
    /// Time at which the thread last found something or was woken, in nanoseconds.
    last: Atomic<u64>,
    /// [`AWAKE`], [`ASLEEP`] or [`DEAD`].
    state: Atomic<u32>,
    #[pin]
    rings: Mutex<KVVec<PollEntry>>,
}

impl PollSet {
    fn is_awake(&self) -> bool {
        self.state.load(Relaxed) == AWAKE
    }

    /// Returns the index and the queue pair of the next ring, from index `from` on, that has
    /// changed.
    fn next(&self, from: usize) -> Option<(usize, Arc<Qp>)> {
        let mut rings = self.rings.lock();
        let mut entries = rings.iter_mut().enumerate().skip(from);
        let (at, entry) = entries.find(|(_, entry)| entry.has_changed())?;
        entry.seen = entry.ring.producer();
        Some((at, entry.qp.clone()))
    }

    /// Polls each ring once. Returns whether anything was found.
    fn poll_once(&self, current: &CurrentThread) -> bool {
        let (mut from, mut found) = (0, false);
        while let Some((at, qp)) = self.next(from) {
            // Not with the mutex held: the doorbell may take long, and the destruction of this
            // queue pair must not wait for all the others.
            Qp::doorbell(qp.as_arc_borrow());
            (from, found) = (total([at, 1]), true);
            current.resched();
        }
        found
    }

    /// Asks programs to ring doorbells from now on, unless something was posted before they could
    /// know.
    fn sleep(&self) {
        let rings = self.rings.lock();
        want_doorbells(&rings, true);
        // Pairs with the fence between publishing and reading the doorbell word: either the program
        // sees that it must call, or this thread sees the posted work requests.
        smp_mb();
        if rings.iter().any(PollEntry::has_changed) {
            want_doorbells(&rings, false);
        } else {
            self.state.store(ASLEEP, Relaxed);
        }
    }
}

impl ThreadBody for PollSet {
    fn is_ready(&self) -> bool {
        self.is_awake()
    }

    fn work(&self, current: &CurrentThread) {
        let last = Time::from_ns(self.last.load(Relaxed));
        if self.poll_once(current) {
            self.last.store(monotonic_ns(), Relaxed);
        } else if Time::from_ns(monotonic_ns()).since(last) < self.idle {
            current.relax();
        } else {
            self.sleep();
        }
    }

    fn killed(&self) {
        let rings = self.rings.lock();
        self.state.store(DEAD, Relaxed);
        want_doorbells(&rings, true);
    }
}
