// SPDX-License-Identifier: GPL-2.0

//! Poll mode: a thread for each context, which polls the send rings of the context's queue pairs.
//!
//! A program in poll mode makes no system call to send as long as the thread is awake. When the
//! thread finds that a producer counter has changed, it does the work of a doorbell. After it has
//! found nothing for the context's idle time, it goes to sleep, and the next doorbell wakes it.
//!
//! By writing to its rings a program can only keep the thread busy, as it could keep itself busy
//! with system calls: polling a ring costs at most as much as a system call.
//!
//! | owner | owned |
//! |---|---|
//! | ib_core's context | the [`Poller`]: the thread, which ends with it, and the [`Watch`] |
//! | ib_core's queue pair | its [`Seat`]: the [`Watch`], and the thread's task to wake it |
//! | [`Watch`] | queue pairs, until their destruction removes them |

use crate::{
    abi::MAX_POLL_IDLE_US, device::DeviceState, limits::MAX_POLL_THREADS, qp::Qp, ring::Ring,
};
use kernel::{
    c_str, new_mutex,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{Atomic, Full, Relaxed},
        Arc, Mutex,
    },
    task::Task,
};
use linux_rdma::{
    sync::{smp_mb, CurrentThread, KThread, ThreadBody},
    time::monotonic_ns,
};

/// Returns whether programs may use poll mode.
fn is_allowed() -> bool {
    linux_rdma::parameter::<u8>(crate::module_parameters::poll_mode.value()) != 0
}

/// A permit for one thread, from the device's quota of [`MAX_POLL_THREADS`].
struct Permit(Arc<DeviceState>);

impl Permit {
    fn new(device: &Arc<DeviceState>) -> Option<Self> {
        let before = device.poll_threads.fetch_add(1u32, Full);
        let permit = Self(device.clone());
        (before < MAX_POLL_THREADS).then_some(permit)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.poll_threads.fetch_sub(1u32, Full);
    }
}

/// The poll mode of a context.
pub(crate) struct Poller {
    // Dropped before the permit.
    thread: KThread<Watch>,
    _permit: Permit,
}

impl Poller {
    /// Starts the thread of a context with an idle time in microseconds. Returns `None` if the idle
    /// time is 0, or if the context can't have a thread. Returns `EINVAL` if the idle time is too
    /// long.
    pub(crate) fn new(device: &Arc<DeviceState>, idle_us: u32) -> Result<Option<Self>> {
        if idle_us > MAX_POLL_IDLE_US {
            return Err(EINVAL);
        }
        if idle_us == 0 || !is_allowed() {
            return Ok(None);
        }
        let Some(permit) = Permit::new(device) else {
            return Ok(None);
        };
        let watch = Arc::pin_init(
            pin_init!(Watch {
                idle: u64::from(idle_us).wrapping_mul(1000),
                asleep: Atomic::new(1),
                rings <- new_mutex!(KVVec::new(), "rrxe_poll_rings"),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        Ok(Some(Self {
            thread: KThread::spawn(c_str!("rrxe-poll"), watch)?,
            _permit: permit,
        }))
    }

    /// Adds the send ring of a queue pair to those that the thread polls.
    pub(crate) fn add(&self, qp: Arc<Qp>, ring: Ring) -> Result<Seat> {
        let watch = self.thread.body().clone();
        {
            let mut rings = watch.rings.lock();
            ring.want_doorbell(watch.is_asleep());
            let ring = Watched {
                qp: qp.clone(),
                ring,
                seen: 0,
            };
            rings.push(ring, GFP_KERNEL_ACCOUNT)?;
        }
        Ok(Seat {
            watch,
            task: self.thread.task().clone(),
            qp,
        })
    }
}

/// The registration of a queue pair with the poll thread of its context.
pub(crate) struct Seat {
    watch: Arc<Watch>,
    task: ARef<Task>,
    qp: Arc<Qp>,
}

impl Seat {
    /// Wakes the thread after a doorbell. The program needs no doorbells from now on.
    pub(crate) fn wake(&self) {
        let woken = {
            let rings = self.watch.rings.lock();
            let was_asleep = self.watch.is_asleep();
            if was_asleep {
                self.watch.asleep.store(0, Relaxed);
                want_doorbells(&rings, false);
            }
            was_asleep
        };
        if woken {
            self.task.wake_up();
        }
    }

    /// Ends the registration. The thread may still be running the send side, as may a CPU that
    /// received a packet for the queue pair.
    pub(crate) fn leave(&self) {
        let gone = {
            let mut rings = self.watch.rings.lock();
            let at = rings.iter().position(|w| Arc::ptr_eq(&w.qp, &self.qp));
            at.and_then(|at| rings.remove(at).ok())
        };
        // Dropped without the mutex: dropping the last reference to the ring unpins it.
        drop(gone);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.leave();
    }
}

/// A polled send ring.
struct Watched {
    qp: Arc<Qp>,
    ring: Ring,
    /// The producer counter at the last poll.
    seen: u32,
}

impl Watched {
    fn has_changed(&self) -> bool {
        self.ring.producer() != self.seen
    }
}

fn want_doorbells(rings: &KVVec<Watched>, wanted: bool) {
    for watched in rings {
        watched.ring.want_doorbell(wanted);
    }
}

/// The rings that a thread polls.
///
/// A ring wants no doorbells only while the thread is awake. Both change with `rings` locked.
#[pin_data]
pub(crate) struct Watch {
    /// Nanoseconds for which the thread continues to poll after it has found something.
    idle: u64,
    /// Not 0 if the thread sleeps or is about to.
    asleep: Atomic<u32>,
    #[pin]
    rings: Mutex<KVVec<Watched>>,
}

impl Watch {
    fn is_asleep(&self) -> bool {
        self.asleep.load(Relaxed) != 0
    }

    /// Returns the index and the queue pair of the next ring, from index `from` on, that has
    /// changed.
    fn next(&self, from: usize) -> Option<(usize, Arc<Qp>)> {
        let mut rings = self.rings.lock();
        let (at, watched) = rings
            .iter_mut()
            .enumerate()
            .skip(from)
            .find(|(_, watched)| watched.has_changed())?;
        watched.seen = watched.ring.producer();
        Some((at, watched.qp.clone()))
    }

    /// Polls each ring once. Returns whether anything was found.
    fn look(&self, current: &CurrentThread) -> bool {
        let (mut from, mut found) = (0, false);
        while let Some((at, qp)) = self.next(from) {
            // Not with the mutex held: the doorbell may take long, and the destruction of this
            // queue pair must not wait for all the others.
            Qp::doorbell(qp.as_arc_borrow());
            (from, found) = (at.wrapping_add(1), true);
            current.resched();
        }
        found
    }

    /// Asks programs to ring doorbells from now on, unless something was posted before they could
    /// know.
    fn fall_asleep(&self) {
        let rings = self.rings.lock();
        want_doorbells(&rings, true);
        // Pairs with the fence between publishing and reading the doorbell word: either the program
        // sees that it must call, or this thread sees the posted work requests.
        smp_mb();
        if rings.iter().any(Watched::has_changed) {
            want_doorbells(&rings, false);
        } else {
            self.asleep.store(1, Relaxed);
        }
    }
}

impl ThreadBody for Watch {
    fn run(&self, current: &CurrentThread) {
        let mut last = 0;
        while !current.should_stop() {
            if self.is_asleep() {
                current.wait_until(|| !self.is_asleep());
                last = monotonic_ns();
            } else if self.look(current) {
                last = monotonic_ns();
            } else if monotonic_ns().saturating_sub(last) < self.idle {
                current.relax();
            } else {
                self.fall_asleep();
            }
        }
    }
}
