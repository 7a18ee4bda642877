// SPDX-License-Identifier: GPL-2.0

//! Kernel threads that belong to a process: they are in its control groups, count toward its
//! limits, and die with it.
//!
//! C header: `include/linux/sched/vhost_task.h`.

use super::{
    gate::GateGuard, long_calls::interrupt_task, smp_mb, Gate, ModuleWorkqueue, OpenWorkqueue,
    Placement,
};
use crate::{errno, raw};
use core::{ffi::c_void, ptr};
use kernel::{
    error::from_err_ptr,
    impl_has_work, new_mutex,
    prelude::*,
    processor::cpu_relax,
    str::CStr,
    sync::{
        aref::ARef,
        atomic::{Acquire, Atomic, Full, Relaxed},
        Arc, ArcBorrow, Mutex, SetOnce,
    },
    task::Task,
    types::NotThreadSafe,
    workqueue::{new_work, Work, WorkItem},
};

/// The code of a [`UserThread`].
pub trait ThreadBody: Send + Sync + 'static {
    /// Returns whether there is work to do. After making this true, the waker calls
    /// [`UserThread::wake`].
    ///
    /// This must not sleep, because the thread calls it when it is about to sleep.
    fn is_ready(&self) -> bool;

    /// Does a part of the work. The thread handles its signals before the next call.
    fn work(&self, current: &CurrentThread);

    /// Called by the thread, as the last call, if it is killed.
    ///
    /// The thread is killed with its process, and if the process executes another program.
    fn killed(&self);
}

/// The thread runs.
const ALIVE: u32 = 0;
/// The thread's owner is gone, and the thread has not noticed yet.
const ENDING: u32 = 1;
/// The thread was killed.
const DEAD: u32 = 2;
/// A work item waits for the thread to exit and releases it.
const REAPED: u32 = 3;

/// Threads are inside until they are released. Open while [`UserThreads`] exists.
static LIVE: Gate = Gate::closed();

/// The work items that release threads. They wait if a process is stopped, so no other work items
/// are queued here.
static REAPER: ModuleWorkqueue = ModuleWorkqueue::closed();

/// Lets the module have threads. Dropping this waits until all of them have exited, which sleeps,
/// and takes as long as a process that had a thread is stopped or frozen.
pub struct UserThreads(#[expect(dead_code, reason = "closes the queue")] OpenWorkqueue);

impl UserThreads {
    /// Returns `EBUSY` on the second call.
    pub fn new() -> Result<Self> {
        let reaper = REAPER.open(c"rrxe_reaper", Placement::Anywhere)?;
        LIVE.reopen();
        Ok(Self(reaper))
    }
}

impl Drop for UserThreads {
    fn drop(&mut self) {
        // The last thread ends soon: the owners of all threads are gone.
        LIVE.close();
    }
}

/// A thread of the process that created it. Dropping this ends the thread without waiting for it,
/// because the process may be stopped or frozen for any time. Of the body, the thread then only
/// finishes a call of [`ThreadBody::work`] that has already begun, in which a signal is pending
/// from now on.
pub struct UserThread<T: ThreadBody>(Arc<Shared<T>>);

/// The data that a thread shares with its owner.
///
/// # Invariants
///
/// - `task` is null until `spawn` has set it to what `vhost_task_create()` returned for this
///   object. It is valid until the work item passes it to `vhost_task_stop()`, which happens after
///   `phase` has become [`REAPED`] and while `ending` is not locked.
/// - The thread owns a reference, which the work item drops after the thread has exited.
#[pin_data]
struct Shared<T: ThreadBody> {
    body: Arc<T>,
    task: Atomic<*mut raw::vhost_task>,
    /// The thread itself, once it has begun.
    thread: SetOnce<ARef<Task>>,
    /// Changes from [`ALIVE`] to [`ENDING`] or [`DEAD`], and from there to [`REAPED`].
    phase: Atomic<u32>,
    /// Locked by the owner while it changes the phase and wakes the thread.
    #[pin]
    ending: Mutex<()>,
    #[pin]
    work: Work<Shared<T>>,
    /// Dropped last.
    _live: GateGuard<'static>,
}

impl_has_work! {
    impl{T: ThreadBody} HasWork<Self> for Shared<T> { self.work }
}

impl<T: ThreadBody> UserThread<T> {
    /// Starts a thread of the current process. The thread inherits scheduling policy, nice value,
    /// CPU affinity and control groups of the caller. Of all signals it receives only SIGKILL and
    /// SIGSTOP.
    ///
    /// Returns `EAGAIN` at a limit of the process or of its control group. Returns `ERESTARTNOINTR`
    /// if a signal is pending; the system call that fails with this is restarted after the signal
    /// was handled. Returns `EOPNOTSUPP` without [`HAS_USER_THREADS`], and `ENODEV` without
    /// [`UserThreads`].
    pub fn spawn(name: &CStr, body: Arc<T>) -> Result<Self> {
        if !HAS_USER_THREADS {
            return Err(errno::not_supported());
        }
        let live = LIVE.enter().ok_or(ENODEV)?;
        let shared = Arc::pin_init(
            pin_init!(Shared {
                body,
                task: Atomic::new(ptr::null_mut()),
                thread: SetOnce::new(),
                phase: Atomic::new(ALIVE),
                ending <- new_mutex!((), "rrxe_thread"),
                work <- new_work!("rrxe_thread"),
                _live: live,
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        let data = Arc::as_ptr(&shared).cast_mut().cast();
        // SAFETY: The name is copied before this returns (kernel/fork.c, `copy_process()`). The
        // functions are called only after the start below.
        let task = from_err_ptr(unsafe {
            raw::vhost_task_create(Some(turn::<T>), Some(killed::<T>), data, name.as_char_ptr())
        })?;
        // INVARIANT: The task was created for `shared`, and its thread owns a reference.
        shared.task.store(task, Relaxed);
        let _ = Arc::into_raw(shared.clone());
        // SAFETY: The task is new, and it is started only here.
        unsafe { raw::vhost_task_start(task) };
        Ok(Self(shared))
    }

    /// Returns the body.
    pub fn body(&self) -> &Arc<T> {
        &self.0.body
    }

    /// Ends a wait of the thread that signals can interrupt.
    pub fn interrupt(&self) {
        if let Some(thread) = self.0.thread.as_ref() {
            interrupt_task(thread);
        }
    }

    /// Has the thread call [`ThreadBody::is_ready`] if it sleeps.
    pub fn wake(&self) {
        if HAS_USER_THREADS {
            // SAFETY: The task is valid: `turn` and `killed` reap it in the phase `ENDING`, which
            // `drop` sets, and the work item waits until `drop` has unlocked `ending`; otherwise
            // `drop` reaps it. `vhost_task_wake()` (kernel/vhost_task.c) may be called after the
            // thread was killed.
            unsafe { raw::vhost_task_wake(self.0.task.load(Relaxed)) };
        }
    }
}

impl<T: ThreadBody> Drop for UserThread<T> {
    fn drop(&mut self) {
        let shared = &self.0;
        let _ending = shared.ending.lock();
        if shared.phase.cmpxchg(ALIVE, ENDING, Full).is_ok() {
            self.wake();
            self.interrupt();
        } else {
            reap(shared, DEAD);
        }
    }
}

/// Queues the release of a thread if this is its phase.
fn reap<T: ThreadBody>(shared: &Arc<Shared<T>>, phase: u32) {
    if shared.phase.cmpxchg(phase, REAPED, Full).is_ok() {
        REAPER.enqueue(shared.clone());
    }
}

impl<T: ThreadBody> WorkItem for Shared<T> {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        // Waits for the owner, which may be about to wake the thread.
        drop(this.ending.lock());
        if HAS_USER_THREADS {
            // SAFETY: By the type invariant the task is valid. This work item is queued once, by
            // the change of the phase to `REAPED`. It runs on a thread of the workqueue, which is
            // not the one that `vhost_task_stop()` (kernel/vhost_task.c) waits for, and which owned
            // a reference that came from `into_raw`. The thread may have been killed before.
            unsafe {
                raw::vhost_task_stop(this.task.load(Relaxed));
                drop(Arc::from_raw(Arc::as_ptr(&this)));
            }
        }
    }
}

/// Called by `vhost_task_fn()` (kernel/vhost_task.c) in a loop. If this returns false, the thread
/// sleeps until it is woken, unless it was woken since the call began.
///
/// # Safety
///
/// Called by the thread of a [`Shared<T>`] to which `data` points, in the state TASK_INTERRUPTIBLE.
unsafe extern "C" fn turn<T: ThreadBody>(data: *mut c_void) -> bool {
    // SAFETY: `data` points to a `Shared<T>` of which the thread owns a reference, which came from
    // `into_raw`.
    let shared = unsafe { ArcBorrow::<Shared<T>>::from_raw(data.cast()) };
    if shared.thread.as_ref().is_none() {
        shared.thread.populate(ARef::from(&**kernel::current!()));
        // Pairs with the exchange in `drop`: either the owner finds the thread, or the thread finds
        // that it ends.
        smp_mb();
    }
    if shared.phase.load(Acquire) != ALIVE {
        // The thread sleeps until the work item stops it.
        reap(&shared.into(), ENDING);
        return false;
    }
    if !shared.body.is_ready() {
        return false;
    }
    raw::safe::shim_set_current_running();
    let current = CurrentThread(NotThreadSafe);
    shared.body.work(&current);
    // `vhost_task_fn()` runs the work that is due before the return to user mode, to which this
    // thread never returns, if it finds this flag by `signal_pending()`; `get_signal()`
    // (kernel/signal.c) clears it. The scheduler throttles a task of a control group that has used
    // up its `cpu.max` by such work (`task_throttle_setup_work()`, kernel/sched/fair.c).
    if raw::safe::shim_take_notify_resume() {
        raw::safe::shim_set_notify_signal();
    }
    true
}

/// Called by `vhost_task_fn()` (kernel/vhost_task.c) if the thread is killed before it is stopped,
/// instead of any further call of [`turn`].
///
/// # Safety
///
/// Called by the thread of a [`Shared<T>`] to which `data` points.
unsafe extern "C" fn killed<T: ThreadBody>(data: *mut c_void) {
    // SAFETY: `data` points to a `Shared<T>` of which the thread owns a reference, which came from
    // `into_raw`.
    let shared = unsafe { ArcBorrow::<Shared<T>>::from_raw(data.cast()) };
    shared.body.killed();
    if shared.phase.cmpxchg(ALIVE, DEAD, Full).is_err() {
        reap(&shared.into(), ENDING);
    }
}

/// Proof that the current task is the thread of a [`UserThread`].
///
/// # Invariants
///
/// Each such thread has one, which does not leave the thread.
pub struct CurrentThread(NotThreadSafe);

impl CurrentThread {
    /// Yields the CPU if the scheduler asks for it. A busy thread calls this periodically.
    #[inline]
    pub fn resched(&self) {
        raw::safe::shim_cond_resched();
    }

    /// Yields the CPU to any other runnable task. A polling thread that found no work calls this.
    #[inline]
    pub fn relax(&self) {
        if raw::safe::single_task_running() {
            cpu_relax();
        } else {
            raw::safe::yield_();
        }
        self.resched();
    }
}

/// Whether the kernel has such threads (CONFIG_VHOST_TASK). If not, the functions of vhost_task.h
/// do not exist, and the compiler removes the code that calls them.
pub const HAS_USER_THREADS: bool = cfg!(CONFIG_VHOST_TASK);
