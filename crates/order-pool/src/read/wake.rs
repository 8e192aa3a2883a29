//! Wakes waiting readers; the writer wakes at most one thread, however many wait.
//!
//! Each subscription has one [`Waiter`]. A reader that found nothing arms it with the sequence
//! number that it waits to see exceeded, then looks at the head again; the writer publishes the
//! head, then looks at the waiters. Each has a `SeqCst` fence between the two, so one of them sees
//! the other, and no wake-up is lost. The writer wakes tasks itself (a push to their executor's
//! queue). Of the blocked threads it wakes one, and each thread that wakes up wakes two more before
//! it returns to its caller: until then it runs only our code, so no stuck caller can break the
//! chain.
//!
//! Loom tries the interleavings: `RUSTFLAGS="--cfg loom" cargo test -p order-pool --lib --release
//! loom`, with a target directory of its own.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::Ordering::{Relaxed, SeqCst},
    },
    task::{Context, Wake, Waker},
    time::Instant,
};

use arc_swap::ArcSwap;

use self::sync::{AtomicBool, AtomicU64, AtomicWaker, Parker, fence};

#[cfg(not(all(test, loom)))]
mod sync {
    pub(super) use futures::task::AtomicWaker;
    pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, fence};
    use std::{
        thread::{self, Thread},
        time::Duration,
    };

    /// Where one thread sleeps. An unpark before the park makes it return at once.
    pub(super) struct Parker(Thread);

    impl Parker {
        pub(super) fn of_this_thread() -> Self {
            Self(thread::current())
        }

        pub(super) fn park(&self, timeout: Option<Duration>) {
            timeout.map_or_else(thread::park, thread::park_timeout);
        }

        pub(super) fn unpark(&self) {
            self.0.unpark();
        }
    }
}

/// The same with loom's primitives, so that it can try every interleaving: also that the waker is
/// taken later than its waiter is disarmed. Loom's own `park` and `AtomicWaker` lose an unpark that
/// meets a contended lock, so both are built from its locks.
#[cfg(all(test, loom))]
mod sync {
    pub(super) use loom::sync::atomic::{AtomicBool, AtomicU64, fence};
    use loom::sync::{Condvar, Mutex};
    use std::{task::Waker, time::Duration};

    pub(super) struct Parker(Mutex<bool>, Condvar);

    impl Parker {
        pub(super) fn of_this_thread() -> Self {
            Self(Mutex::new(false), Condvar::new())
        }

        /// Loom has no time; its tests have no deadline.
        pub(super) fn park(&self, _: Option<Duration>) {
            let mut unparked = self.0.lock().unwrap();
            while !*unparked {
                unparked = self.1.wait(unparked).unwrap();
            }
            *unparked = false;
        }

        pub(super) fn unpark(&self) {
            *self.0.lock().unwrap() = true;
            self.1.notify_one();
        }
    }

    #[derive(Debug)]
    pub(super) struct AtomicWaker(Mutex<Option<Waker>>);

    impl AtomicWaker {
        pub(super) fn new() -> Self {
            Self(Mutex::new(None))
        }

        pub(super) fn register(&self, waker: &Waker) {
            *self.0.lock().unwrap() = Some(waker.clone());
        }

        pub(super) fn wake(&self) {
            let waker = self.0.lock().unwrap().take();
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

const IDLE: u64 = u64::MAX;

#[derive(Debug)]
pub(crate) struct Waiter {
    /// [`IDLE`], or how it waits. Whichever thread swaps it to [`IDLE`] has to wake it.
    armed: AtomicU64,
    /// Its reader needs nothing below this sequence number.
    position: AtomicU64,
    ended: AtomicBool,
    waker: AtomicWaker,
}

/// How a waiter waits, in one word: a subscription may be read by a thread and by a task in turn,
/// and the thread that wakes it must know which of them it woke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Armed(u64);

impl Armed {
    const fn new(above: u64, blocking: bool) -> Self {
        Self(above << 1 | blocking as u64)
    }

    /// The head it waits to see exceeded.
    const fn above(self) -> u64 {
        self.0 >> 1
    }

    const fn is_blocking(self) -> bool {
        self.0 & 1 == 1
    }
}

impl Waiter {
    fn arm(&self, waker: &Waker, above: u64, blocking: bool) {
        self.waker.register(waker);
        self.armed.store(Armed::new(above, blocking).0, SeqCst);
        fence(SeqCst);
    }

    /// How it waits, if it does.
    fn armed(&self) -> Option<Armed> {
        let word = self.armed.load(SeqCst);
        (word != IDLE).then_some(Armed(word))
    }

    /// Records that its reader needs nothing below `position`.
    pub(crate) fn read_up_to(&self, position: u64) {
        // A writer that sees it late only keeps memory longer than needed.
        self.position.store(position, Relaxed);
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.ended.load(SeqCst)
    }

    /// No more events follow for this waiter. Wakes without disarming: if the writer picked it at
    /// the same time, it passes the wake-up on.
    pub(crate) fn end(&self) {
        self.ended.store(true, SeqCst);
        fence(SeqCst);
        self.call();
    }

    /// Foreign code: if it panics (which its panic hook reports), neither its caller nor the readers
    /// behind it may suffer.
    fn call(&self) {
        let _ = catch_unwind(AssertUnwindSafe(|| self.waker.wake()));
    }

    fn disarm(&self) -> bool {
        self.armed.swap(IDLE, SeqCst) != IDLE
    }

    /// Wakes it if it waits as `armed` says, for less than `head`. If it has armed itself again
    /// meanwhile, it has looked at the head since.
    fn wake(&self, armed: Armed, head: u64) -> bool {
        let due = armed.above() < head
            && self.armed.compare_exchange(armed.0, IDLE, SeqCst, SeqCst).is_ok();
        if due {
            self.call();
        }
        due
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.unpark();
    }
}

/// The head of the log and the waiters for it to move.
#[derive(Debug, Default)]
pub(crate) struct Wakers {
    head: AtomicU64,
    closed: AtomicBool,
    waiters: ArcSwap<Vec<Arc<Waiter>>>,
}

impl Wakers {
    pub(crate) fn head(&self) -> u64 {
        self.head.load(SeqCst)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(SeqCst)
    }

    pub(crate) fn waiters(&self) -> usize {
        self.waiters.load().len()
    }

    /// Makes everything written before visible. Called under the writer's lock; [`Self::wake_readers`]
    /// follows without it.
    pub(crate) fn publish(&self, head: u64) {
        self.head.store(head, SeqCst);
    }

    /// Wakes the readers that wait for what was published.
    pub(crate) fn wake_readers(&self) {
        fence(SeqCst);
        let head = self.head();
        let mut woke_thread = false;
        for waiter in self.waiters.load().iter() {
            let Some(armed) = waiter.armed() else { continue };
            if !armed.is_blocking() {
                waiter.wake(armed, head);
            } else if !woke_thread {
                woke_thread = waiter.wake(armed, head);
            }
        }
    }

    /// No more events follow: wakes every waiter.
    pub(crate) fn close(&self) {
        self.closed.store(true, SeqCst);
        fence(SeqCst);
        // As with [`Waiter::end`]. One that arms itself again meanwhile sees that it is closed.
        self.waiters.load().iter().for_each(|waiter| waiter.call());
    }

    pub(crate) fn join(&self) -> Arc<Waiter> {
        let waiter = Arc::new(Waiter {
            armed: AtomicU64::new(IDLE),
            // Until its reader reports a position, everything is kept.
            position: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            waker: AtomicWaker::new(),
        });
        self.waiters.rcu(|waiters| {
            waiters.iter().cloned().chain([Arc::clone(&waiter)]).collect::<Vec<_>>()
        });
        fence(SeqCst);
        waiter
    }

    /// The lowest sequence number that some reader may need. Called by the writer alone. A reader
    /// that joins later begins at the head that is published now or a later one, because each side
    /// has a fence between what it writes (the head, the list of waiters) and what it reads.
    pub(crate) fn slowest(&self) -> u64 {
        fence(SeqCst);
        let positions = self.waiters.load();
        let positions = positions.iter().map(|waiter| waiter.position.load(Relaxed));
        positions.min().unwrap_or(u64::MAX).min(self.head())
    }

    pub(crate) fn leave(&self, waiter: &Arc<Waiter>) {
        self.waiters.rcu(|waiters| {
            waiters.iter().filter(|other| !Arc::ptr_eq(other, waiter)).cloned().collect::<Vec<_>>()
        });
    }

    /// Whether there is an event above `seq`, or never will be; if not, the task is woken when that
    /// changes.
    pub(crate) fn poll_above(&self, waiter: &Waiter, seq: u64, cx: &Context<'_>) -> bool {
        let ready = || self.head() > seq || self.is_closed() || waiter.is_ended();
        if ready() {
            return true;
        }
        waiter.arm(cx.waker(), seq, false);
        let ready = ready();
        if ready {
            waiter.disarm();
        }
        ready
    }

    /// Blocks this thread until there is an event above `seq`, or never will be, or the deadline
    /// has passed.
    pub(crate) fn wait_above(&self, waiter: &Waiter, seq: u64, deadline: Option<Instant>) {
        let ready = || self.head() > seq || self.is_closed() || waiter.is_ended();
        if ready() {
            return;
        }
        let parker = Arc::new(Parker::of_this_thread());
        let waker = Waker::from(Arc::clone(&parker));
        let mut picked = false;
        loop {
            // Armed anew in each round: a writer that picked this waiter in an earlier wait, and
            // was delayed before it woke it, consumes this round's waker.
            waiter.arm(&waker, seq, true);
            if ready() {
                break;
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                break;
            }
            parker.park(left);
            picked |= !waiter.disarm();
        }
        picked |= !waiter.disarm();
        // Only a thread that the writer picked passes the wake-up on; the others were woken by
        // another one.
        if picked {
            self.pass_on();
        }
    }

    fn pass_on(&self) {
        let head = self.head();
        let mut left = 2;
        for waiter in self.waiters.load().iter() {
            let armed = waiter.armed().filter(|armed| armed.is_blocking());
            if armed.is_some_and(|armed| waiter.wake(armed, head)) {
                left -= 1;
                if left == 0 {
                    break;
                }
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::{model::Builder, thread};

    /// A lost wake-up is a thread that never ends, which loom reports as a deadlock. Two threads are
    /// tried in every way, three threads up to `preemptions`.
    fn model(preemptions: Option<usize>, body: impl Fn() + Sync + Send + 'static) {
        let mut builder = Builder::new();
        builder.preemption_bound = preemptions;
        builder.check(body);
    }

    fn publish(wakers: &Wakers, head: u64) {
        wakers.publish(head);
        wakers.wake_readers();
    }

    /// For the first event, which another thread publishes.
    fn wait_as_task_for_a_writer(wakers: &Arc<Wakers>, waiter: &Waiter) {
        let of_writer = Arc::clone(wakers);
        let writer = thread::spawn(move || publish(&of_writer, 1));
        let parker = Arc::new(Parker::of_this_thread());
        let waker = Waker::from(Arc::clone(&parker));
        while !wakers.poll_above(waiter, 0, &Context::from_waker(&waker)) {
            parker.park(None);
        }
        writer.join().unwrap();
    }

    fn blocking_reader(wakers: &Arc<Wakers>, events: u64) -> thread::JoinHandle<()> {
        let (wakers, waiter) = (Arc::clone(wakers), wakers.join());
        thread::spawn(move || {
            let mut seen = 0;
            while seen < events && !wakers.is_closed() && !waiter.is_ended() {
                wakers.wait_above(&waiter, seen, None);
                seen = wakers.head();
            }
        })
    }

    #[test]
    fn loom_a_blocked_thread_sees_every_event() {
        model(None, || {
            let wakers = Arc::new(Wakers::default());
            let reader = blocking_reader(&wakers, 2);
            (1..=2).for_each(|head| publish(&wakers, head));
            reader.join().unwrap();
        });
    }

    #[test]
    fn loom_of_two_blocked_threads_one_wakes_the_other() {
        model(Some(4), || {
            let wakers = Arc::new(Wakers::default());
            let readers = [blocking_reader(&wakers, 1), blocking_reader(&wakers, 1)];
            publish(&wakers, 1);
            for reader in readers {
                reader.join().unwrap();
            }
        });
    }

    #[test]
    fn loom_closing_frees_a_blocked_thread() {
        model(None, || {
            let wakers = Arc::new(Wakers::default());
            let reader = blocking_reader(&wakers, 1);
            wakers.close();
            reader.join().unwrap();
        });
    }

    #[test]
    fn loom_ending_a_waiter_that_was_just_picked_does_not_lose_the_others_wake_up() {
        model(Some(4), || {
            let wakers = Arc::new(Wakers::default());
            let (ended, waiter) = (wakers.join(), wakers.join());
            let first = {
                let (wakers, ended) = (Arc::clone(&wakers), Arc::clone(&ended));
                thread::spawn(move || wakers.wait_above(&ended, 0, None))
            };
            let second = {
                let wakers = Arc::clone(&wakers);
                thread::spawn(move || {
                    while wakers.head() == 0 {
                        wakers.wait_above(&waiter, 0, None);
                    }
                })
            };
            publish(&wakers, 1);
            ended.end();
            first.join().unwrap();
            second.join().unwrap();
        });
    }

    #[test]
    fn loom_a_task_sees_every_event() {
        model(None, || {
            let wakers = Arc::new(Wakers::default());
            let waiter = wakers.join();
            wait_as_task_for_a_writer(&wakers, &waiter);
        });
    }

    /// A subscription that a thread has waited on, and that a task waits on now, was taken for a thread:
    /// the one thread that the writer wakes, and which wakes the others. The others slept on.
    #[test]
    fn loom_one_that_waits_as_a_thread_and_as_a_task_in_turn_does_not_take_a_threads_wake_up() {
        model(Some(4), || {
            let wakers = Arc::new(Wakers::default());
            let waiter = wakers.join();
            waiter.arm(Waker::noop(), 0, true);
            waiter.disarm();
            let thread = blocking_reader(&wakers, 1);
            wait_as_task_for_a_writer(&wakers, &waiter);
            thread.join().unwrap();
        });
    }
}
