// SPDX-License-Identifier: GPL-2.0

//! KUnit tests of the `sync` module.

#[kernel::prelude::kunit_tests(linux_rdma_sync)]
mod cases {
    use crate::{
        impl_has_serial_work,
        sync::{burst::Bursts, wait_for_bursts, BurstGuard, SerialTask, SerialWork},
        sync::{irqs_disabled, with_lock_irqsave, BurstArc, RcuListEntry, RcuLists, TimerCallback},
        sync::{rcu_barrier, Gate, IndexPool, Nesting, RcuTable, SoftTimer},
        sync::{BhGuard, ModuleWorkqueue, Placement},
        time,
    };
    use kernel::{
        new_spinlock,
        prelude::*,
        static_lock_class,
        sync::{
            atomic::{Atomic, Full, Relaxed},
            rcu, Arc, ArcBorrow, Completion,
        },
        time::{delay::fsleep, Delta},
        workqueue::{self, impl_has_work, new_work, Work, WorkItem},
    };

    /// A delay in nanoseconds that is longer than any test.
    const NEVER: u64 = 3_600_000_000_000;

    /// Increments a counter when it is dropped.
    struct Counted {
        id: u32,
        drops: Arc<Atomic<u32>>,
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.drops.fetch_add(1u32, Full);
        }
    }

    fn counter() -> Result<Arc<Atomic<u32>>> {
        Ok(Arc::new(Atomic::new(0), GFP_KERNEL)?)
    }

    fn counted(id: u32, drops: &Arc<Atomic<u32>>) -> Result<Arc<Counted>> {
        let drops = drops.clone();
        Ok(Arc::new(Counted { id, drops }, GFP_KERNEL)?)
    }

    /// Returns the identifier of the entry at an index.
    fn id_at(table: &RcuTable<Counted>, index: u32) -> Option<u32> {
        let guard = rcu::read_lock();
        table.get(index, &guard).map(|entry| entry.id)
    }

    #[test]
    fn interrupts_are_restored() -> Result {
        // Two classes for lockdep, one for each macro.
        let outer = KBox::pin_init(new_spinlock!(1), GFP_KERNEL)?;
        let inner = KBox::pin_init(new_spinlock!(2), GFP_KERNEL)?;
        assert!(!irqs_disabled());
        with_lock_irqsave(&outer, |first| {
            assert!(irqs_disabled());
            *first += with_lock_irqsave(&inner, |second| *second);
            assert!(irqs_disabled());
        });
        assert!(!irqs_disabled());
        // Both locks are free.
        assert_eq!((*outer.lock(), *inner.lock()), (3, 2));
        Ok(())
    }

    #[test]
    fn nested_calls_are_counted() -> Result {
        let nesting = Nesting::new()?;
        assert_eq!(nesting.depth(), 0);
        {
            let _first = nesting.enter();
            assert_eq!(nesting.depth(), 1);
            let second = nesting.enter();
            assert_eq!(nesting.depth(), 2);
            drop(second);
            assert_eq!(nesting.depth(), 1);
        }
        assert_eq!(nesting.depth(), 0);
        Ok(())
    }

    #[test]
    fn bursts_nest_and_end_with_the_last_guard() {
        let cpu = Bursts::none();
        let idle = cpu.now();
        assert!(cpu.is_over(idle));
        cpu.enter();
        let outside = cpu.now();
        assert!(cpu.is_over(idle) && !cpu.is_over(outside));
        cpu.enter();
        let inside = cpu.now();
        assert!(!cpu.is_over(outside) && !cpu.is_over(inside));
        cpu.leave();
        assert!(!cpu.is_over(outside) && !cpu.is_over(inside));
        cpu.leave();
        assert!(cpu.is_over(outside) && cpu.is_over(inside));
        // The next burst is another one.
        cpu.enter();
        assert!(cpu.is_over(idle) && cpu.is_over(outside) && cpu.is_over(inside));
        assert!(!cpu.is_over(cpu.now()));
        cpu.leave();
    }

    #[test]
    fn guards_of_a_burst_may_be_dropped_in_any_order() {
        let first = BurstGuard::enter();
        let cpu = Bursts::of_this_cpu();
        let burst = cpu.now();
        let second = BurstGuard::enter();
        drop(first);
        assert!(!cpu.is_over(burst));
        drop(second);
        assert!(cpu.is_over(burst));
        wait_for_bursts();
    }

    /// A work item that has one burst.
    #[pin_data]
    struct Visitor {
        inside: Atomic<u32>,
        ended: Atomic<u32>,
        #[pin]
        work: Work<Visitor>,
    }

    impl_has_work! {
        impl HasWork<Self> for Visitor { self.work }
    }

    impl WorkItem for Visitor {
        type Pointer = Arc<Visitor>;

        fn run(this: Arc<Visitor>) {
            let burst = BurstGuard::enter();
            this.inside.store(1, Relaxed);
            let begin = time::monotonic_ns();
            while time::monotonic_ns() < begin + 500_000 {}
            this.ended.store(1, Relaxed);
            drop(burst);
        }
    }

    /// The work item usually runs on another CPU. On this one it delays this thread.
    #[test]
    fn waiting_for_bursts_ends_after_them() -> Result {
        for _ in 0..50 {
            let visitor = Arc::pin_init(
                pin_init!(Visitor {
                    inside: Atomic::new(0),
                    ended: Atomic::new(0),
                    work <- new_work!("Visitor"),
                }),
                GFP_KERNEL,
            )?;
            assert!(workqueue::system_unbound().enqueue(visitor.clone()).is_ok());
            while visitor.inside.load(Relaxed) == 0 {
                fsleep(Delta::from_micros(20));
            }
            wait_for_bursts();
            assert_eq!(visitor.ended.load(Relaxed), 1);
        }
        Ok(())
    }

    #[test]
    fn table_finds_what_was_inserted() -> Result {
        let drops = counter()?;
        let table = RcuTable::new()?;
        let indices = [0, 1, 255, 256, 65_535, 65_536, (1 << 24) - 1];
        for index in indices {
            table.insert(index, counted(index, &drops)?, GFP_KERNEL)?;
        }
        for index in indices {
            assert_eq!(id_at(&table, index), Some(index));
        }
        for index in [2, 254, 257, 1 << 23, 1 << 24, u32::MAX] {
            assert_eq!(id_at(&table, index), None);
        }
        drop(table);
        assert_eq!(drops.load(Relaxed), 7);
        Ok(())
    }

    fn lists() -> Result<Arc<RcuLists<Arc<Counted>, 2>>> {
        // SAFETY: Each test drops its lists, and `SharedState` of the driver waits for RCU
        // callbacks before the module is unloaded.
        let lists = unsafe { RcuLists::new(c"test", kernel::static_lock_class!()) };
        Arc::pin_init(lists, GFP_KERNEL)
    }

    #[test]
    fn lists_drop_what_is_removed_after_its_readers() -> Result {
        let drops = counter()?;
        let lists = lists()?;
        let ids = |list| {
            let guard = rcu::read_lock();
            lists
                .iter(list, &guard)
                .fold(0, |ids, entry| ids * 10 + entry.id)
        };
        let add = |list, id| -> Result {
            let entry = RcuListEntry::new(counted(id, &drops)?, GFP_KERNEL)?;
            lists.lock().push(list, entry);
            Ok(())
        };
        let remove = |list, id| lists.lock().remove(list, |entry| entry.id == id);
        for id in 1..=4 {
            add(0, id)?;
        }
        add(1, 5)?;
        assert_eq!((ids(0), ids(1), ids(2)), (4321, 5, 0));
        // Remove from the middle, the end and the front; a missing entry, and a missing list.
        assert!(remove(0, 3) && ids(0) == 421);
        assert!(remove(0, 1) && ids(0) == 42);
        assert!(remove(0, 4) && ids(0) == 2);
        assert!(!remove(0, 4) && !remove(1, 2) && !remove(2, 2));
        rcu_barrier();
        assert_eq!(drops.load(Relaxed), 3);
        // An entry for a list that does not exist is dropped immediately.
        add(2, 6)?;
        assert_eq!(drops.load(Relaxed), 4);
        drop(lists);
        assert_eq!(drops.load(Relaxed), 6);
        Ok(())
    }

    /// The owner of lists may itself be dropped by an RCU callback.
    #[test]
    fn an_rcu_callback_drops_lists() -> Result {
        let drops = counter()?;
        let table = RcuTable::new()?;
        let lists = lists()?;
        lists
            .lock()
            .push(0, RcuListEntry::new(counted(1, &drops)?, GFP_KERNEL)?);
        table.insert(7, lists, GFP_KERNEL)?;
        assert!(table.remove(7));
        rcu_barrier();
        assert_eq!(drops.load(Relaxed), 1);
        Ok(())
    }

    #[test]
    fn burst_arc_holds_one_object_at_a_time() -> Result {
        let drops = counter()?;
        let place = BurstArc::empty();
        let id = |place: &BurstArc<Counted>| place.get(&BurstGuard::enter()).map(|found| found.id);
        assert!(place.is_empty());
        assert!(place.take().is_none());
        let first = counted(1, &drops)?;
        place.set(first.clone())?;
        assert_eq!(place.set(counted(2, &drops)?), Err(EBUSY));
        assert_eq!(drops.load(Relaxed), 1);
        assert_eq!(id(&place), Some(1));
        assert!(!place.is_empty());
        drop(first);
        assert_eq!(drops.load(Relaxed), 1);
        assert_eq!(place.take().map(|taken| taken.id), Some(1));
        assert_eq!(drops.load(Relaxed), 2);
        assert_eq!(id(&place), None);
        place.set(counted(3, &drops)?)?;
        drop(place);
        assert_eq!(drops.load(Relaxed), 3);
        Ok(())
    }

    #[test]
    fn table_refuses_taken_and_impossible_indices() -> Result {
        let drops = counter()?;
        let table = RcuTable::new()?;
        table.insert(5, counted(1, &drops)?, GFP_KERNEL)?;
        assert_eq!(table.insert(5, counted(2, &drops)?, GFP_ATOMIC), Err(EBUSY));
        assert_eq!(
            table.insert(1 << 24, counted(3, &drops)?, GFP_KERNEL),
            Err(EINVAL)
        );
        assert_eq!(id_at(&table, 5), Some(1));
        assert_eq!(drops.load(Relaxed), 2);
        Ok(())
    }

    #[test]
    fn table_drops_what_was_removed_after_a_grace_period() -> Result {
        let drops = counter()?;
        let table = RcuTable::new()?;
        table.insert(7, counted(1, &drops)?, GFP_KERNEL)?;
        {
            let guard = rcu::read_lock();
            let seen = table.get(7, &guard);
            assert!(table.remove(7));
            // The entry is out of the table, but still valid for a reader that found it before.
            assert_eq!(seen.map(|entry| entry.id), Some(1));
            assert_eq!(drops.load(Relaxed), 0);
        }
        assert!(!table.remove(7));
        rcu_barrier();
        assert_eq!(drops.load(Relaxed), 1);
        // The index can be reused.
        table.insert(7, counted(2, &drops)?, GFP_KERNEL)?;
        assert_eq!(id_at(&table, 7), Some(2));
        Ok(())
    }

    #[test]
    fn pool_gives_lowest_free_and_wraps_from_a_hint() -> Result {
        let pool = KBox::pin_init(IndexPool::new(), GFP_KERNEL)?;
        assert_eq!(pool.alloc(2..=5, GFP_KERNEL), Ok(2));
        assert_eq!(pool.alloc(2..=5, GFP_KERNEL), Ok(3));
        pool.free(2);
        assert_eq!(pool.alloc_from(4, 2..=5, GFP_ATOMIC), Ok(4));
        assert_eq!(pool.alloc_from(5, 2..=5, GFP_KERNEL), Ok(5));
        assert_eq!(pool.alloc_from(6, 2..=5, GFP_KERNEL), Ok(2));
        assert_eq!(pool.alloc(2..=5, GFP_KERNEL), Err(ENOSPC));
        assert_eq!(pool.alloc(0..=u32::MAX, GFP_KERNEL), Err(EINVAL));
        Ok(())
    }

    /// An object with a timer, a gate and a work item.
    #[pin_data(PinnedDrop)]
    struct Owner {
        fired: Atomic<u32>,
        /// Number of times that the callback will arm the timer again.
        again: Atomic<u32>,
        /// Time of the last callback, in nanoseconds.
        last: Atomic<u64>,
        drops: Arc<Atomic<u32>>,
        #[pin]
        timer: SoftTimer<Self>,
        gate: Gate,
        #[pin]
        inside: Completion,
        #[pin]
        work: Work<Owner>,
    }

    impl_has_work! {
        impl HasWork<Self> for Owner { self.work }
    }

    impl Owner {
        fn new(drops: &Arc<Atomic<u32>>) -> Result<Arc<Self>> {
            Arc::pin_init(
                pin_init!(Self {
                    fired: Atomic::new(0),
                    again: Atomic::new(0),
                    last: Atomic::new(0),
                    drops: drops.clone(),
                    timer <- SoftTimer::new(),
                    gate: Gate::open(),
                    inside <- Completion::new(),
                    work <- new_work!("Owner"),
                }),
                GFP_KERNEL,
            )
        }

        /// Waits up to 10 s until the timer has fired `times` times.
        fn wait(&self, times: u32) -> bool {
            for _ in 0..10_000 {
                if self.fired.load(Relaxed) >= times {
                    return true;
                }
                fsleep(Delta::from_millis(1));
            }
            false
        }
    }

    #[pinned_drop]
    impl PinnedDrop for Owner {
        fn drop(self: Pin<&mut Self>) {
            self.drops.fetch_add(1u32, Full);
        }
    }

    impl TimerCallback for Owner {
        fn timer(&self) -> &SoftTimer<Self> {
            &self.timer
        }

        fn expired(this: ArcBorrow<'_, Self>) {
            this.last.store(time::monotonic_ns(), Relaxed);
            let again = this.again.load(Relaxed);
            if again > 0 {
                this.again.store(again - 1, Relaxed);
                SoftTimer::arm(this, time::monotonic_ns() + 50_000);
            }
            this.fired.fetch_add(1u32, Full);
        }
    }

    impl WorkItem for Owner {
        type Pointer = Arc<Owner>;

        fn run(this: Arc<Owner>) {
            let outer = this.gate.enter();
            let inner = this.gate.enter();
            this.inside.complete_all();
            fsleep(Delta::from_millis(20));
            this.fired.fetch_add(1u32, Full);
            drop(inner);
            drop(outer);
        }
    }

    static QUEUE: ModuleWorkqueue = ModuleWorkqueue::closed();

    #[test]
    fn closing_a_queue_waits_for_its_work_items() -> Result {
        let drops = counter()?;
        let owner = Owner::new(&drops)?;
        for (placement, round) in [
            (Placement::Anywhere, 1),
            (Placement::QueueingCpu, 2),
            (Placement::Anywhere, 3),
        ] {
            let open = QUEUE.open(c"rrxe_test", placement)?;
            assert_eq!(QUEUE.open(c"rrxe_test", placement).err(), Some(EBUSY));
            QUEUE.enqueue(owner.clone());
            drop(open);
            assert_eq!(owner.fired.load(Relaxed), round);
        }
        // A closed queue drops a work item.
        QUEUE.enqueue(owner.clone());
        assert_eq!(owner.fired.load(Relaxed), 3);
        drop(owner);
        assert_eq!(drops.load(Relaxed), 1);
        Ok(())
    }

    #[test]
    fn timer_takes_the_earliest_deadline() -> Result {
        let owner = Owner::new(&counter()?)?;
        let never = time::monotonic_ns() + NEVER;
        assert_eq!(SoftTimer::deadline(&*owner), None);
        SoftTimer::arm(owner.as_arc_borrow(), never);
        SoftTimer::arm(owner.as_arc_borrow(), never + NEVER);
        assert_eq!(SoftTimer::deadline(&*owner), Some(never));

        let deadline = time::monotonic_ns() + 1_000_000;
        SoftTimer::arm(owner.as_arc_borrow(), deadline);
        assert!(owner.wait(1));
        assert!(owner.last.load(Relaxed) >= deadline);
        assert_eq!(SoftTimer::deadline(&*owner), None);
        Ok(())
    }

    #[test]
    fn timer_can_be_armed_by_its_callback() -> Result {
        let owner = Owner::new(&counter()?)?;
        owner.again.store(20, Relaxed);
        SoftTimer::arm(owner.as_arc_borrow(), 0);
        assert!(owner.wait(21));
        SoftTimer::cancel_sync(owner.as_arc_borrow());
        assert_eq!(owner.fired.load(Relaxed), 21);
        Ok(())
    }

    #[test]
    fn timer_does_not_fire_after_it_was_cancelled() -> Result {
        let drops = counter()?;
        let owner = Owner::new(&drops)?;
        SoftTimer::arm(owner.as_arc_borrow(), time::monotonic_ns() + NEVER);
        SoftTimer::cancel_sync(owner.as_arc_borrow());
        SoftTimer::cancel_sync(owner.as_arc_borrow());
        assert_eq!(SoftTimer::deadline(&*owner), None);

        // Both the callback and this thread arm the timer repeatedly.
        owner.again.store(u32::MAX, Relaxed);
        SoftTimer::arm(owner.as_arc_borrow(), 0);
        for round in 1..50 {
            SoftTimer::arm(owner.as_arc_borrow(), time::monotonic_ns());
            assert!(owner.wait(round));
        }
        owner.again.store(0, Relaxed);
        SoftTimer::cancel_sync(owner.as_arc_borrow());
        let fired = owner.fired.load(Relaxed);
        fsleep(Delta::from_millis(5));
        assert_eq!(owner.fired.load(Relaxed), fired);
        assert_eq!(drops.load(Relaxed), 0);
        drop(owner);
        assert_eq!(drops.load(Relaxed), 1);
        Ok(())
    }

    #[test]
    fn armed_timer_keeps_its_owner() -> Result {
        let drops = counter()?;
        let owner = Owner::new(&drops)?;
        SoftTimer::arm(owner.as_arc_borrow(), time::monotonic_ns() + 20_000_000);
        drop(owner);
        assert_eq!(drops.load(Relaxed), 0);
        for _ in 0..10_000 {
            if drops.load(Relaxed) == 1 {
                break;
            }
            fsleep(Delta::from_millis(1));
        }
        assert_eq!(drops.load(Relaxed), 1);
        Ok(())
    }

    #[test]
    fn closing_a_gate_waits_for_who_is_inside() -> Result {
        let owner = Owner::new(&counter()?)?;
        if workqueue::system_long().enqueue(owner.clone()).is_err() {
            return Err(EBUSY);
        }
        owner.inside.wait_for_completion();
        owner.gate.close();
        assert_eq!(owner.fired.load(Relaxed), 1);
        assert!(owner.gate.enter().is_none());
        owner.gate.close();
        Ok(())
    }

    /// Work that counts its rounds.
    #[pin_data]
    struct Worker {
        rounds: Atomic<u32>,
        kinds: Atomic<u32>,
        /// Number of rounds that are left to do.
        left: Atomic<u32>,
        /// Number of rounds that will start the work again.
        again: Atomic<u32>,
        /// A round is running.
        inside: Atomic<u32>,
        overlaps: Atomic<u32>,
        #[pin]
        work: SerialWork<Worker>,
    }

    impl_has_serial_work! {
        impl HasSerialWork<0> for Worker { self.work }
    }

    impl Worker {
        fn new() -> Result<Arc<Self>> {
            Arc::pin_init(
                pin_init!(Self {
                    rounds: Atomic::new(0),
                    kinds: Atomic::new(0),
                    left: Atomic::new(0),
                    again: Atomic::new(0),
                    inside: Atomic::new(0),
                    overlaps: Atomic::new(0),
                    work <- SerialWork::new(c"Worker", static_lock_class!()),
                }),
                GFP_KERNEL,
            )
        }

        /// Waits until no context does the work, and the work item is not queued.
        fn finish(worker: &Arc<Self>) {
            while worker.work.is_running() {
                fsleep(Delta::from_micros(20));
            }
        }

        fn count_down(counter: &Atomic<u32>) -> bool {
            let left = counter.load(Relaxed);
            counter.store(left.saturating_sub(1), Relaxed);
            left != 0
        }
    }

    impl SerialTask for Worker {
        const ROUNDS: u32 = 4;

        fn round(this: ArcBorrow<'_, Self>, kinds: u32) -> bool {
            this.overlaps.add(this.inside.xchg(1, Full), Relaxed);
            this.kinds.store(this.kinds.load(Relaxed) | kinds, Relaxed);
            if Self::count_down(&this.again) {
                SerialWork::<Self>::queue(this, 0);
            }
            this.inside.xchg(0, Full);
            this.rounds.fetch_add(1u32, Full);
            Self::count_down(&this.left)
        }
    }

    #[test]
    fn work_started_in_a_round_runs_after_it() -> Result {
        let worker = Worker::new()?;
        worker.again.store(10, Relaxed);
        SerialWork::<Worker>::queue(worker.as_arc_borrow(), 0);
        Worker::finish(&worker);
        assert_eq!(worker.rounds.load(Relaxed), 11);
        assert_eq!(worker.overlaps.load(Relaxed), 0);
        Ok(())
    }

    #[test]
    fn closed_work_is_not_done() -> Result {
        let worker = Worker::new()?;
        worker.left.store(1000, Relaxed);
        SerialWork::<Worker>::queue(worker.as_arc_borrow(), 0);
        Worker::finish(&worker);
        assert_eq!(worker.rounds.load(Relaxed), 1001);
        SerialWork::close(worker.as_arc_borrow());
        SerialWork::<Worker>::queue(worker.as_arc_borrow(), 1);
        assert!(!worker.work.is_running());
        assert_eq!(worker.rounds.load(Relaxed), 1001);
        Ok(())
    }

    #[test]
    fn closing_work_takes_it_out_of_its_queue() -> Result {
        let worker = Worker::new()?;
        {
            // The work item cannot begin.
            let _bh = BhGuard::new();
            SerialWork::<Worker>::queue(worker.as_arc_borrow(), 1);
            SerialWork::close(worker.as_arc_borrow());
        }
        assert_eq!(worker.rounds.load(Relaxed), 0);
        // The work item gave up its reference.
        assert!(Arc::into_unique_or_drop(worker).is_some());
        Ok(())
    }

    #[test]
    fn closing_work_waits_for_the_context_that_does_it() -> Result {
        for left in [0, 1, 100, 100_000] {
            let worker = Worker::new()?;
            worker.left.store(left, Relaxed);
            SerialWork::<Worker>::queue(worker.as_arc_borrow(), 1);
            fsleep(Delta::from_micros(5));
            SerialWork::close(worker.as_arc_borrow());
            assert!(!worker.work.is_running());
            let rounds = worker.rounds.load(Relaxed);
            SerialWork::<Worker>::queue(worker.as_arc_borrow(), 1);
            // A second call returns at once.
            SerialWork::close(worker.as_arc_borrow());
            assert_eq!(worker.rounds.load(Relaxed), rounds);
            assert_eq!(worker.overlaps.load(Relaxed), 0);
        }
        Ok(())
    }

    #[test]
    fn work_gets_all_its_marks() -> Result {
        let worker = Worker::new()?;
        worker.work.mark(1);
        worker.work.mark(4);
        assert!(worker.work.is_marked());
        assert_eq!(worker.rounds.load(Relaxed), 0);
        SerialWork::<Worker>::queue(worker.as_arc_borrow(), 2);
        Worker::finish(&worker);
        assert!(!worker.work.is_marked());
        assert_eq!(worker.kinds.load(Relaxed), 7);
        Ok(())
    }
}
