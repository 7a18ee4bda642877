// SPDX-License-Identifier: GPL-2.0

//! Kernel threads that end when their owner is dropped.
//!
//! C header: `include/linux/kthread.h`.

use crate::raw;
use core::ffi::{c_int, c_void};
use kernel::{
    error::{from_err_ptr, to_result},
    prelude::*,
    str::CStr,
    sync::{aref::ARef, Arc},
    task::Task,
    types::NotThreadSafe,
};

/// The code of a [`KThread`].
pub trait ThreadBody: Send + Sync + 'static {
    /// Called once, in the thread. It must return when [`CurrentThread::should_stop`] returns true,
    /// and may return earlier.
    ///
    /// It is not called if the thread is stopped before it first runs.
    fn run(&self, current: &CurrentThread);
}

/// A kernel thread. Dropping it stops the thread and waits until the thread has exited, which
/// sleeps.
///
/// The thread only borrows its body, so it does not keep the body alive. The body must not own its
/// thread, because the thread would then wait for itself.
///
/// # Invariants
///
/// - `task` was created by `kthread_create` and runs `main::<T>` with the address of `body`'s
///   contents.
/// - Only `self` stops the thread.
pub struct KThread<T: ThreadBody> {
    task: ARef<Task>,
    body: Arc<T>,
}

impl<T: ThreadBody> KThread<T> {
    /// Starts a thread with the caller's nice value, preferably on the CPUs that the caller may
    /// use. If none of these is available, the thread runs elsewhere.
    ///
    /// Returns `EINTR` if the caller is being killed. Sleeps.
    pub fn spawn(name: &CStr, body: Arc<T>) -> Result<Self> {
        // SAFETY: The name is copied before this returns (kernel/kthread.c,
        // `kthread_create_on_node()`). `main` gets the pointer that it requires: `body` is dropped
        // after the thread has ended.
        let task = from_err_ptr(unsafe {
            raw::shim_kthread_create(
                Some(main::<T>),
                Arc::as_ptr(&body).cast_mut().cast(),
                name.as_char_ptr(),
            )
        })?;
        // SAFETY: A new thread waits until it is woken or stopped, so the task is valid. `Task` is
        // a transparent wrapper.
        let task = ARef::from(unsafe { &*task.cast::<Task>() });
        // INVARIANT: The thread was created above for `main::<T>` and `body`, and only `self` has
        // it.
        let thread = Self { task, body };
        // SAFETY: `thread` holds a reference to the task, as set_user_nice()
        // (kernel/sched/syscalls.c) needs.
        unsafe { raw::shim_kthread_nice_as_current(thread.task.as_ptr()) };
        // SAFETY: The task is a kernel thread that was never woken, as `kthread_affine_preferred()`
        // (kernel/kthread.c) requires.
        to_result(unsafe { raw::shim_kthread_prefer_cpus_of_current(thread.task.as_ptr()) })?;
        thread.task.wake_up();
        Ok(thread)
    }

    /// Returns the body.
    pub fn body(&self) -> &Arc<T> {
        &self.body
    }

    /// Returns the task. The owner of a reference to it may wake the thread at any time, even after
    /// it has exited.
    pub fn task(&self) -> &ARef<Task> {
        &self.task
    }
}

impl<T: ThreadBody> Drop for KThread<T> {
    fn drop(&mut self) {
        // The return value only tells whether the body has run.
        // SAFETY: By the type invariants, `task` is a kernel thread to which `self` has a reference
        // and that nothing else stops.
        unsafe { raw::kthread_stop(self.task.as_ptr()) };
    }
}

/// Runs the body of a thread.
///
/// # Safety
///
/// Called by the thread of a [`KThread<T>`]. `body` points to the contents of its `body` field.
unsafe extern "C" fn main<T: ThreadBody>(body: *mut c_void) -> c_int {
    // SAFETY: `KThread::spawn` passes the contents of its `body` to `kthread_create()`. The
    // `KThread` drops its reference after it has waited for the thread to exit (`kthread_stop()`,
    // kernel/kthread.c).
    let body = unsafe { &*body.cast::<T>() };
    body.run(&CurrentThread(NotThreadSafe));
    0
}

/// Proof that the current task is the thread of a [`KThread`].
///
/// # Invariants
///
/// Each such thread has one, which does not leave the thread.
pub struct CurrentThread(NotThreadSafe);

impl CurrentThread {
    /// Returns whether the thread should end.
    #[inline]
    pub fn should_stop(&self) -> bool {
        // SAFETY: By the type invariant, the current task is a kernel thread, as
        // kthread_should_stop() requires.
        unsafe { raw::kthread_should_stop() }
    }

    /// Sleeps until `ready` returns true or the thread should stop. After making the condition
    /// true, the waker must wake the task.
    ///
    /// `ready` must not sleep. It is evaluated again after each wake-up.
    pub fn wait_until(&self, mut ready: impl FnMut() -> bool) {
        loop {
            // The state is set before the condition is checked, so that a later wake-up cannot be
            // missed.
            // SAFETY: Changes the state of the current task, which below either resets it or
            // sleeps.
            unsafe { raw::shim_set_current_idle() };
            if self.should_stop() || ready() {
                break;
            }
            // SAFETY: The thread is in process context, and the caller of this sleeping function
            // holds no spin lock.
            unsafe { raw::schedule() };
        }
        // SAFETY: Sets the state of the current task to running, which is always allowed.
        unsafe { raw::shim_set_current_running() };
    }

    /// Yields the CPU if the scheduler asks for it. A busy thread calls this periodically.
    #[inline]
    pub fn resched(&self) {
        // SAFETY: The thread is in process context and holds no spin lock, so it may be rescheduled
        // (cond_resched_tasks_rcu_qs(), linux/rcupdate.h).
        unsafe { raw::shim_cond_resched() };
    }

    /// Yields the CPU to any other runnable task. A polling thread that found no work calls this.
    #[inline]
    pub fn relax(&self) {
        // SAFETY: single_task_running() (kernel/sched/core.c) only reads the run queue of the
        // current CPU.
        if unsafe { raw::single_task_running() } {
            // SAFETY: cpu_relax() has no requirements.
            unsafe { raw::shim_cpu_relax() };
        } else {
            // SAFETY: The thread is in process context, holds no spin lock and is running, as
            // yield() (kernel/sched/syscalls.c) requires.
            unsafe { raw::yield_() };
        }
        self.resched();
    }
}
