// SPDX-License-Identifier: GPL-2.0

//! Kernel threads that end with who owns them.
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

/// What a [`KThread`] runs.
pub trait ThreadBody: Send + Sync + 'static {
    /// Called once, in the thread. It returns where [`CurrentThread::should_stop`] says so, or earlier.
    ///
    /// It is not called at all where the thread is stopped before it has come to run.
    fn run(&self, current: &CurrentThread);
}

/// A kernel thread. Dropping this stops the thread and waits for its end, which sleeps.
///
/// The thread only borrows its body, so that none of them keeps itself alive. The body must not own its
/// thread: it would wait for itself.
///
/// # Invariants
///
/// - `task` was created by `kthread_create` and runs `main::<T>` with the address of `body`'s contents.
/// - Nobody else stops it.
pub struct KThread<T: ThreadBody> {
    task: ARef<Task>,
    body: Arc<T>,
}

impl<T: ThreadBody> KThread<T> {
    /// Starts a thread, with the nice value of the caller and on the CPUs that the caller may use.
    /// (The latter is a preference: where none of them can take it, it runs elsewhere.)
    ///
    /// `EINTR` where the caller is being killed. Sleeps.
    pub fn spawn(name: &CStr, body: Arc<T>) -> Result<Self> {
        // SAFETY: The name is copied before this returns (kernel/kthread.c, `kthread_create_on_node()`),
        // and `main` gets the pointer that it wants: `body` is dropped after the thread has ended.
        let task = from_err_ptr(unsafe {
            raw::shim_kthread_create(
                Some(main::<T>),
                Arc::as_ptr(&body).cast_mut().cast(),
                name.as_char_ptr(),
            )
        })?;
        // SAFETY: A new thread waits until it is woken or stopped; so the task is there. `Task` is a
        // transparent wrapper.
        let task = ARef::from(unsafe { &*task.cast::<Task>() });
        // INVARIANT: By the above.
        let thread = Self { task, body };
        // SAFETY: The task is there.
        unsafe { raw::shim_kthread_nice_as_current(thread.task.as_ptr()) };
        // SAFETY: The task is a kernel thread that was never woken, as `kthread_affine_preferred()`
        // demands (kernel/kthread.c).
        to_result(unsafe { raw::shim_kthread_prefer_cpus_of_current(thread.task.as_ptr()) })?;
        thread.task.wake_up();
        Ok(thread)
    }

    /// What it runs.
    pub fn body(&self) -> &Arc<T> {
        &self.body
    }

    /// The task: who keeps a reference to it may wake the thread whenever he likes, also after its end.
    pub fn task(&self) -> &ARef<Task> {
        &self.task
    }
}

impl<T: ThreadBody> Drop for KThread<T> {
    fn drop(&mut self) {
        // Its result says no more than whether the body has run.
        // SAFETY: A kernel thread whose task we have a reference to, and that nobody else stops, by
        // the type invariants.
        unsafe { raw::kthread_stop(self.task.as_ptr()) };
    }
}

/// # Safety
///
/// Called by a thread of a [`KThread<T>`]; `body` is what its `body` points to.
unsafe extern "C" fn main<T: ThreadBody>(body: *mut c_void) -> c_int {
    // SAFETY: `KThread::spawn` passes the contents of its `body` to `kthread_create()`, and drops
    // its reference after it has waited for the thread's end (`kthread_stop()`, kernel/kthread.c).
    let body = unsafe { &*body.cast::<T>() };
    body.run(&CurrentThread(NotThreadSafe));
    0
}

/// Evidence that a [`KThread`] is what runs.
///
/// # Invariants
///
/// There is one in each such thread, which does not leave it.
pub struct CurrentThread(NotThreadSafe);

impl CurrentThread {
    /// Whether the thread is to end.
    #[inline]
    pub fn should_stop(&self) -> bool {
        // SAFETY: The current task is a kernel thread by the type invariant.
        unsafe { raw::kthread_should_stop() }
    }

    /// Sleeps until `ready` or until the thread is to end. Who makes it ready wakes the task afterwards.
    ///
    /// `ready` must not sleep. It is asked again after each time the task was woken.
    pub fn wait_until(&self, mut ready: impl FnMut() -> bool) {
        loop {
            // Before it is asked: so who wakes the task after that finds it asleep, or makes it run on.
            // SAFETY: Changes the state of the current task, which goes on to set it back or to sleep.
            unsafe { raw::shim_set_current_idle() };
            if self.should_stop() || ready() {
                break;
            }
            // SAFETY: The thread is in process context and holds no lock that forbids it, or could not
            // call what sleeps.
            unsafe { raw::schedule() };
        }
        // SAFETY: Changes the state of the current task, which runs.
        unsafe { raw::shim_set_current_running() };
    }

    /// Lets others have the CPU, if it is their turn. A thread that works does this from time to time.
    #[inline]
    pub fn resched(&self) {
        // SAFETY: As in `wait_until`.
        unsafe { raw::shim_cond_resched() };
    }

    /// The thread has found nothing to do and looks again soon: whoever else wants the CPU has it first.
    #[inline]
    pub fn relax(&self) {
        // SAFETY: Looks at the run queue of the current CPU only.
        if unsafe { raw::single_task_running() } {
            // SAFETY: No requirements.
            unsafe { raw::shim_cpu_relax() };
        } else {
            // SAFETY: As in `wait_until`.
            unsafe { raw::yield_() };
        }
        self.resched();
    }
}
