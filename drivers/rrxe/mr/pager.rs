// SPDX-License-Identifier: GPL-2.0

//! On-demand paging: how absent pages come in.
//!
//! The data path never sleeps. A half of a queue pair that finds a page absent stops, and its
//! [`PageWait`] joins the queue of the [`Pager`] of the context that has registered the memory. A
//! thread of the program brings in one range after the other, and has the half continue. So the
//! time that a page takes is the program's own: it counts for its control groups, no page comes in
//! while the program is stopped or frozen, and a page that never comes delays no other program.
//!
//! The queue has at most one entry for each half, and a limited number for advice. If the process
//! cannot have a page, or if the thread was killed, the access fails like one to memory that is not
//! registered.

use kernel::{
    c_str,
    list::{
        impl_list_arc_safe, impl_list_item, AtomicTracker, List, ListArc, ListLinks, TryNewListArc,
    },
    new_mutex, new_spinlock,
    prelude::*,
    sync::{Arc, Mutex, SpinLock},
};
use linux_rdma::{
    errno::not_supported,
    rdma::memory::{self, current_mm, OnDemand, Paging},
    sync::{lock_bh, CurrentThread, ThreadBody, UserThread},
};
use rrxe_core::{Fault, Increment};

/// Bytes of a message that come in together, and cost one interruption of it.
pub(crate) const WINDOW: u32 = memory::WINDOW as u32;

/// Waits in a queue beyond which advice is ignored.
const MAX_ADVICE: u32 = 1024;

/// A range of on-demand memory that a half cannot access now.
#[derive(Clone)]
pub(crate) struct Absent {
    pub(super) pages: Arc<OnDemand>,
    pub(super) pager: Arc<Pager>,
    /// Offset of the first byte in the memory.
    pub(super) offset: u64,
    /// Bytes.
    pub(super) len: u64,
    pub(super) write: bool,
}

impl Absent {
    /// Returns whether this begins in the first page of another range, which could not be brought
    /// in.
    fn begins(&self, failed: &Self) -> bool {
        let page = |range: &Self| range.pages.end_of_page(range.offset);
        self.is_like(failed) && page(self) == page(failed)
    }

    /// Returns whether both ranges are in the same memory and for the same kind of access.
    fn is_like(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.pages, &other.pages) && self.write == other.write
    }

    /// Extends the range to `len` bytes, as far as the memory and [`WINDOW`] reach: the access will
    /// go on there.
    pub(crate) fn extended(mut self, len: u64) -> Self {
        let (_, size) = self.pages.range();
        let left = size.saturating_sub(self.offset);
        self.len = self.len.max(len).min(left).min(WINDOW.into());
        self
    }

    /// Brings in the range later, in the thread of the pager. Whether that succeeds shows when it
    /// is accessed. Does nothing if the queue is long.
    pub(super) fn bring_in_later(self) -> Result {
        if self.len != 0 && self.pager.accepts_advice() {
            PageWait::begin(&PageWait::new(ADVICE, false, false)?, self);
        }
        Ok(())
    }

    /// Returns the part of the range that is absent and begins at its first absent page.
    fn rest(&self) -> Option<Self> {
        let at = self.pages.first_absent(self.offset, self.len, self.write)?;
        let end = self.offset.saturating_add(self.len);
        Some(Self {
            offset: at,
            len: end.saturating_sub(at),
            ..self.clone()
        })
    }

    /// Brings in the range, or its beginning if it is long.
    fn bring_in(&self, paging: Paging) -> Result {
        let (offset, len) = (self.offset, self.len);
        self.pages.bring_in(offset, len, self.write, paging)
    }

    /// Brings in the whole range, page by page if absent pages are left out.
    pub(super) fn bring_in_all(mut self, paging: Paging) -> Result {
        let end = self.offset.saturating_add(self.len);
        while let Some(rest) = self.rest() {
            self = rest;
            match (self.bring_in(paging), paging) {
                (Ok(()) | Err(EAGAIN), _) => {}
                (Err(e), Paging::NoFault) if e != EINTR => {
                    // The next page.
                    let next = self.pages.end_of_page(self.offset).min(end);
                    (self.offset, self.len) = (next, end.saturating_sub(next));
                }
                (error, _) => return error,
            }
        }
        Ok(())
    }
}

/// The memory that a half of a queue pair waits for.
#[derive(Default)]
enum State {
    #[default]
    Nothing,
    Pages(Absent),
    /// The first page of this range could not be brought in.
    Failed(Absent),
}

/// In place of the number of a queue pair: advice of the program. No queue pair has this number.
const ADVICE: u32 = 0;

/// The place of a half of a queue pair, or of advice, in the queue of a pager.
#[pin_data]
pub(crate) struct PageWait {
    /// Number of the queue pair, or [`ADVICE`].
    qpn: u32,
    /// It is the receive half.
    is_recv: bool,
    /// The half repeats an access that has failed, and must then learn why.
    repeats: bool,
    #[pin]
    state: SpinLock<State>,
    #[pin]
    links: ListLinks,
    #[pin]
    tracker: AtomicTracker,
}

impl_list_arc_safe! {
    impl ListArcSafe<0> for PageWait { tracked_by tracker: AtomicTracker; }
}

impl_list_item! {
    impl ListItem<0> for PageWait { using ListLinks { self.links }; }
}

impl PageWait {
    pub(crate) fn new(qpn: u32, is_recv: bool, repeats: bool) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                qpn,
                is_recv,
                repeats,
                state <- new_spinlock!(State::Nothing, "rrxe_page_wait"),
                links <- ListLinks::new(),
                tracker <- AtomicTracker::new(),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Waits for a range. Returns the fault of the access: [`Fault::NotPresent`] if the half will
    /// continue once the range is present, or [`Fault::Protection`] if it cannot be brought in.
    #[cold]
    pub(crate) fn begin(this: &Arc<Self>, absent: Absent) -> Fault {
        let pager = absent.pager.clone();
        {
            let mut state = lock_bh(&this.state);
            if matches!(&*state, State::Failed(failed) if absent.begins(failed)) {
                *state = State::Nothing;
                return Fault::Protection;
            }
            *state = State::Pages(absent);
        }
        if pager.add(this.clone()) {
            return Fault::NotPresent;
        }
        *lock_bh(&this.state) = State::Nothing;
        Fault::Protection
    }

    /// Returns whether the half waits for a page.
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(&*lock_bh(&self.state), State::Pages(_))
    }

    /// Ends the wait: the half is reset.
    pub(crate) fn cancel(&self) {
        let before = core::mem::take(&mut *lock_bh(&self.state));
        if let State::Pages(absent) = before {
            absent.pager.on_cancel();
        }
    }

    /// Returns the range that the half waits for.
    fn absent(&self) -> Option<Absent> {
        match &*lock_bh(&self.state) {
            State::Pages(absent) => Some(absent.clone()),
            _ => None,
        }
    }

    /// Continues advice with the absent part of its range after another part was brought in.
    /// Returns whether there is an absent part. A half of a queue pair repeats its access instead.
    fn proceed(&self, absent: &Absent) -> bool {
        let rest = absent.rest().filter(|_| self.qpn == ADVICE);
        let proceeds = rest.is_some();
        if let Some(rest) = rest {
            *lock_bh(&self.state) = State::Pages(rest);
        }
        proceeds
    }

    /// Ends the wait for `absent` if the half waits for nothing else meanwhile. The half continues.
    fn end(&self, absent: Absent, result: Result, resume: &dyn Resume) {
        {
            let mut state = lock_bh(&self.state);
            let is_same = |now: &Absent| now.is_like(&absent) && now.offset == absent.offset;
            if matches!(&*state, State::Pages(now) if is_same(now)) {
                *state = match result {
                    Err(_) if self.repeats => State::Failed(absent),
                    _ => State::Nothing,
                };
            }
        }
        resume.resume(self.qpn, self.is_recv);
    }
}

/// Has the halves of queue pairs continue.
pub(crate) trait Resume: Send + Sync {
    /// Called when the memory that a half of the queue pair with this number has waited for is
    /// present, or will not be. Process context.
    fn resume(&self, qpn: u32, is_recv: bool);
}

/// The halves that wait for pages.
struct Queue {
    waits: List<PageWait>,
    len: u32,
    /// Upper bound of the cancelled waits in the list.
    cancelled: u32,
    /// The thread was killed, or the context is closed.
    is_closed: bool,
}

impl Queue {
    fn pop(&mut self) -> Option<Arc<PageWait>> {
        let wait = self.waits.pop_front().map(ListArc::into_arc)?;
        self.len = self.len.saturating_sub(1);
        Some(wait)
    }

    /// Appends a half, unless it is in the list.
    fn push(&mut self, wait: Arc<PageWait>) {
        if let Ok(wait) = ListArc::try_from_arc(wait) {
            self.waits.push_back(wait);
            self.len.increment();
        }
    }

    /// Removes the cancelled waits.
    fn purge(&mut self) {
        self.cancelled = 0;
        for _ in 0..self.len {
            match self.pop() {
                Some(wait) if wait.absent().is_some() => self.push(wait),
                _ => {}
            }
        }
    }
}

/// Brings in the absent pages of the memory that a context has registered.
#[pin_data]
pub(crate) struct Pager {
    #[pin]
    queue: SpinLock<Queue>,
    /// Started when the first region is registered.
    #[pin]
    thread: SpinLock<Option<UserThread<Pager>>>,
    /// The process of the thread, by its memory.
    #[pin]
    mm: Mutex<Option<usize>>,
    resume: Arc<dyn Resume>,
}

/// The pager of a context. Dropping it ends its thread.
pub(crate) struct PagerOwner(pub(crate) Arc<Pager>);

impl PagerOwner {
    pub(crate) fn new(resume: Arc<dyn Resume>) -> Result<Self> {
        let queue = Queue {
            waits: List::new(),
            len: 0,
            cancelled: 0,
            is_closed: false,
        };
        let pager = Arc::pin_init(
            pin_init!(Pager {
                queue <- new_spinlock!(queue, "rrxe_page_queue"),
                thread <- new_spinlock!(None, "rrxe_page_thread"),
                mm <- new_mutex!(None, "rrxe_pager"),
                resume,
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        Ok(Self(pager))
    }
}

impl Drop for PagerOwner {
    fn drop(&mut self) {
        self.0.close();
        let thread = lock_bh(&self.0.thread).take();
        // Sleeps.
        drop(thread);
    }
}

impl Pager {
    /// Starts the thread, in the process that registers the first region. Returns `EOPNOTSUPP` in
    /// another process that has inherited the context, and the errors of [`UserThread::spawn`].
    pub(super) fn start(this: &Arc<Self>) -> Result {
        let mut mm = this.mm.lock();
        let current = current_mm()?;
        match *mm {
            Some(other) if other != current => Err(not_supported()),
            Some(_) => Ok(()),
            None => {
                let thread = UserThread::spawn(c_str!("rrxe-pager"), this.clone())?;
                *lock_bh(&this.thread) = Some(thread);
                *mm = Some(current);
                Ok(())
            }
        }
    }

    /// Returns whether the queue is short enough for advice.
    fn accepts_advice(&self) -> bool {
        lock_bh(&self.queue).len < MAX_ADVICE
    }

    /// Appends a half to the queue. Returns false if the queue is closed.
    fn add(&self, wait: Arc<PageWait>) -> bool {
        {
            let mut queue = lock_bh(&self.queue);
            if queue.is_closed {
                return false;
            }
            queue.push(wait);
        }
        if let Some(thread) = &*lock_bh(&self.thread) {
            thread.wake();
        }
        true
    }

    /// Notes that a wait in the queue may be cancelled. The queue never has more cancelled waits
    /// than others, however many queue pairs a program creates and destroys meanwhile.
    fn on_cancel(&self) {
        {
            let mut queue = lock_bh(&self.queue);
            queue.cancelled.increment();
            if queue.cancelled > queue.len / 2 {
                queue.purge();
            }
        }
        self.interrupt();
    }

    /// Ends the current wait of the thread, which then looks at the queue again: its page may have
    /// become superfluous.
    pub(super) fn interrupt(&self) {
        if let Some(thread) = &*lock_bh(&self.thread) {
            thread.interrupt();
        }
    }

    /// Closes the queue, and ends all waits in it.
    fn close(&self) {
        lock_bh(&self.queue).is_closed = true;
        loop {
            let Some(wait) = lock_bh(&self.queue).pop() else {
                break;
            };
            if let Some(absent) = self.own_or_forward(&wait) {
                wait.end(absent, Err(EFAULT), &*self.resume);
            }
        }
    }

    /// Returns the range that a half waits for, if this pager brings it in. XRC: the half may wait
    /// for memory of another context by now, and then goes there.
    fn own_or_forward(&self, wait: &Arc<PageWait>) -> Option<Absent> {
        let absent = wait.absent()?;
        if core::ptr::eq(Arc::as_ptr(&absent.pager), self) {
            return Some(absent);
        }
        if !absent.pager.add(wait.clone()) {
            wait.end(absent, Err(EFAULT), &*self.resume);
        }
        None
    }
}

impl ThreadBody for Pager {
    fn is_ready(&self) -> bool {
        !lock_bh(&self.queue).waits.is_empty()
    }

    fn work(&self, _: &CurrentThread) {
        let next = lock_bh(&self.queue).pop();
        let Some(wait) = next else {
            return;
        };
        let Some(absent) = self.own_or_forward(&wait) else {
            return;
        };
        let result = absent.bring_in(Paging::Fault);
        let goes_on = match result {
            Ok(()) => wait.proceed(&absent),
            Err(e) => e == EINTR || e == EAGAIN,
        };
        if goes_on {
            // The thread handles its signals before the next call.
            let mut queue = lock_bh(&self.queue);
            if !queue.is_closed {
                return queue.push(wait);
            }
        }
        wait.end(absent, result, &*self.resume);
    }

    fn killed(&self) {
        self.close();
    }
}
