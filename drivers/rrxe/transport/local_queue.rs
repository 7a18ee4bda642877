// SPDX-License-Identifier: GPL-2.0

//! Packets that are queued on this host: in the queueing discipline of a network device, and in the
//! ring of its hardware.
//!
//! The stack accepts packets at any rate, and drops those that do not fit into its queues. Each
//! device therefore counts the packets that it has handed over and that have not left yet, as TCP
//! does for each socket (TCP small queues), and hands over only what the network device needs to
//! stay busy (the kernel's dynamic queue limits). A queue pair that finds no space becomes a
//! [`Waiter`] in a list; a packet that leaves wakes the first one.
//!
//! ACKs do not count, because the received packets bound their number. A veth or loopback device
//! without a queueing discipline has no queue, so nothing is counted there.

use kernel::{
    list::{List, ListArc, ListItem, TryNewListArc},
    new_spinlock,
    prelude::*,
    static_lock_class,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc, ArcBorrow, SpinLock,
    },
};
use linux_rdma::{
    impl_has_serial_work,
    net::{QueueLimit, TxOwner},
    sync::{with_lock_irqsave, SerialTask, SerialWork},
};

/// Smallest limit of queued packets.
const MIN_QUEUED: u32 = 8;
/// Largest limit of queued packets: half of the default length of a queueing discipline
/// (`txqueuelen`).
const MAX_QUEUED: u32 = 500;

/// A sender that can wait for space in the local queue: a queue pair.
pub(crate) trait Waiter: ListItem + TryNewListArc + Send + Sync + 'static {
    /// Sends the packets that waited for space.
    fn on_space(this: ArcBorrow<'_, Self>);
}

/// The packets of a device that are queued on this host.
#[pin_data]
pub(crate) struct LocalQueue<W: Waiter> {
    #[pin]
    state: SpinLock<State<W>>,
    /// Admits the first waiters.
    #[pin]
    admission: SerialWork<LocalQueue<W>>,
}

/// The limit of the host's queue, and the senders that it holds up.
struct State<W: Waiter> {
    limit: QueueLimit,
    waiters: List<W>,
}

impl_has_serial_work! {
    impl{W: Waiter} HasSerialWork<0> for LocalQueue<W> { self.admission }
}

impl<W: Waiter> LocalQueue<W> {
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                state <- new_spinlock!(State {
                    limit: QueueLimit::new(MIN_QUEUED, MAX_QUEUED),
                    waiters: List::new(),
                }, "rrxe_local_queue"),
                admission <- SerialWork::new(c"rrxe_local_queue", static_lock_class!()),
            }),
            GFP_KERNEL,
        )
    }

    /// Removes and returns the first waiter, if there is capacity for its packets.
    fn next(&self) -> Option<Arc<W>> {
        with_lock_irqsave(&self.state, |state| {
            if state.limit.space() == 0 {
                return None;
            }
            state.waiters.pop_front().map(ListArc::into_arc)
        })
    }

    /// Ends the admission of waiters. On return, the list is empty, and only the counting of
    /// packets that leave continues. Sleeps.
    pub(crate) fn close(this: &Arc<Self>) {
        SerialWork::close(this.as_arc_borrow());
        loop {
            let next = with_lock_irqsave(&this.state, |state| state.waiters.pop_front());
            if next.is_none() {
                break;
            }
        }
    }
}

impl<W: Waiter> SerialTask for LocalQueue<W> {
    fn round(this: ArcBorrow<'_, Self>, _: u32) -> bool {
        let Some(waiter) = this.next() else {
            return false;
        };
        // It uses space, unless it has nothing to send or another context sends for it.
        W::on_space(waiter.as_arc_borrow());
        true
    }
}

/// The packets of a queue pair that are queued on this host.
pub(crate) struct LocalShare<W: Waiter> {
    queue: Arc<LocalQueue<W>>,
    packets: Atomic<i32>,
    /// The queue pair waits for space.
    waits: Atomic<u32>,
    /// The queue pair was the first waiting one, and may send.
    admitted: Atomic<u32>,
}

impl<W: Waiter> LocalShare<W> {
    pub(crate) fn new(queue: &Arc<LocalQueue<W>>) -> Result<Arc<Self>> {
        Ok(Arc::new(
            Self {
                queue: queue.clone(),
                packets: Atomic::new(0),
                waits: Atomic::new(0),
                admitted: Atomic::new(0),
            },
            GFP_KERNEL_ACCOUNT,
        )?)
    }

    /// Returns whether packets of the queue pair are queued, or wait for space. The packet that
    /// asks for an ACK may be one of these.
    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        self.packets.load(Relaxed) != 0 || self.waits.load(Relaxed) != 0
    }

    /// Returns the number of packets of the queue pair that are queued.
    pub(crate) fn len(&self) -> u32 {
        // Packets may leave before they are counted.
        self.packets.load(Relaxed).max(0).unsigned_abs()
    }

    /// Returns whether the queue pair waits for space.
    pub(crate) fn is_blocked(&self) -> bool {
        self.waits.load(Relaxed) != 0
    }

    /// Lets the queue pair send before those that wait.
    pub(crate) fn admit(&self) {
        self.waits.store(0, Relaxed);
        self.admitted.store(1, Relaxed);
    }

    /// Returns the number of packets that may be handed over now.
    pub(crate) fn space(&self) -> u32 {
        with_lock_irqsave(&self.queue.state, |state| {
            if !state.waiters.is_empty() && self.admitted.load(Relaxed) == 0 {
                return 0;
            }
            self.admitted.store(0, Relaxed);
            state.limit.space()
        })
    }

    /// Counts packets that are about to be handed over, each with a reference to this as its owner.
    pub(crate) fn queued(&self, packets: u16) {
        self.packets.add(packets.into(), Relaxed);
        with_lock_irqsave(&self.queue.state, |state| state.limit.queued(packets));
    }

    /// Appends the queue pair to the list of those that wait for space, unless it is in the list.
    pub(crate) fn wait(&self, qp: Arc<W>) {
        self.waits.store(1, Relaxed);
        let space = with_lock_irqsave(&self.queue.state, |state| {
            if let Ok(waiter) = ListArc::try_from_arc(qp) {
                state.waiters.push_back(waiter);
            }
            state.limit.space()
        });
        if space != 0 {
            SerialWork::<LocalQueue<W>>::queue(self.queue.as_arc_borrow(), 0);
        }
    }
}

impl<W: Waiter> TxOwner for LocalShare<W> {
    fn packet_left(&self) {
        self.packets.add(-1, Relaxed);
        let wake = with_lock_irqsave(&self.queue.state, |state| {
            state.limit.completed();
            !state.waiters.is_empty() && state.limit.space() != 0
        });
        if wake {
            SerialWork::<LocalQueue<W>>::queue(self.queue.as_arc_borrow(), 0);
        }
    }
}
