// SPDX-License-Identifier: GPL-2.0

//! Poll mode: a thread for a context, which looks at the send rings of its queue pairs.
//!
//! A program that has asked for it makes no system call to send as long as the thread is awake. The thread
//! does for it what a doorbell does, wherever it finds that a producer counter has changed. Once it has found
//! nothing for the context's idle time it goes to sleep; the next doorbell wakes it.
//!
//! What a program can do by writing to its rings is to keep the thread busy, as it could keep itself busy by
//! calling: no look at a ring does more than a call.
//!
//! | who holds what | |
//! |---|---|
//! | ib_core's context | the [`Poller`]: the thread, which ends with it, and the [`Watch`] |
//! | ib_core's queue pair | its [`Seat`]: the [`Watch`], and the thread's task to wake it |
//! | [`Watch`] | queue pairs, until their destruction takes them out |

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

/// Whether programs may have it at all.
fn is_allowed() -> bool {
    linux_rdma::parameter::<u8>(crate::module_parameters::poll_mode.value()) != 0
}

/// One of the threads that a device may have.
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
    /// Starts the thread of a context that asks for such an idle time in microseconds: `None` where it asks for
    /// none, and where it can't have it. `EINVAL` where the time is too long.
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

    /// Has the thread look at the send ring of a queue pair.
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

/// A queue pair's place among those of its context.
pub(crate) struct Seat {
    watch: Arc<Watch>,
    task: ARef<Task>,
    qp: Arc<Qp>,
}

impl Seat {
    /// The program has called: from now on it need not.
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

    /// The thread looks at it no more. It may be running the send side yet, as may who has found a packet for it.
    pub(crate) fn leave(&self) {
        let gone = {
            let mut rings = self.watch.rings.lock();
            let at = rings.iter().position(|w| Arc::ptr_eq(&w.qp, &self.qp));
            at.and_then(|at| rings.remove(at).ok())
        };
        // Not with the mutex held: where it is the last to know the ring, that is unpinned.
        drop(gone);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.leave();
    }
}

/// A send ring that is looked at.
struct Watched {
    qp: Arc<Qp>,
    ring: Ring,
    /// The producer counter when it was looked at last.
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

/// What the thread looks at.
///
/// A ring wants no doorbells only while the thread is not asleep. Both change with `rings` locked.
#[pin_data]
pub(crate) struct Watch {
    /// Nanoseconds for which it goes on looking after it has found something.
    idle: u64,
    /// Not 0: the thread sleeps, or is about to.
    asleep: Atomic<u32>,
    #[pin]
    rings: Mutex<KVVec<Watched>>,
}

impl Watch {
    fn is_asleep(&self) -> bool {
        self.asleep.load(Relaxed) != 0
    }

    /// The next ring from a place on that has changed: its place and its queue pair.
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

    /// Looks at each ring once. Whether anything was found.
    fn look(&self, current: &CurrentThread) -> bool {
        let (mut from, mut found) = (0, false);
        while let Some((at, qp)) = self.next(from) {
            // Not with the mutex held: what is posted may take its time, and this one's destruction must not
            // wait for all others.
            Qp::doorbell(qp.as_arc_borrow());
            (from, found) = (at.wrapping_add(1), true);
            current.resched();
        }
        found
    }

    /// Has programs call from now on, unless something was posted before they could know.
    fn fall_asleep(&self) {
        let rings = self.rings.lock();
        want_doorbells(&rings, true);
        // Pairs with the fence between publishing and reading the doorbell word: either the program sees
        // that it must call, or we what it has posted.
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
