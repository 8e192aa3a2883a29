//! Wakes waiting readers; the writer wakes at most one thread, however many wait.
//!
//! Each subscription has one [`Waiter`]. A reader that found nothing arms it with the sequence
//! number that the head must exceed, then reads the head again. The writer publishes the head, then
//! reads the waiters. Each has a `SeqCst` fence between the two, so at least one sees the other,
//! and no wake-up is lost. The writer wakes tasks itself, which is a push to their executor's
//! queue. Of the blocked threads it wakes one, and each thread that wakes up wakes two more before
//! it returns to its caller. Until then it runs only this crate's code, so no stuck caller can
//! break the chain.
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

    /// Lets one thread sleep. An unpark before the park makes the park return at once.
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

/// The same with loom's primitives, so that loom can try every interleaving, including that the
/// waker is taken after its waiter was disarmed. Loom's own `park` and `AtomicWaker` lose an unpark
/// that meets a contended lock, so both are built from its locks.
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

        /// Loom has no time, so its tests have no deadline.
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

/// A waiter that is not armed.
const IDLE: u64 = u64::MAX;

/// A subscription that may wait for the head to move.
#[derive(Debug)]
pub(crate) struct Waiter {
    /// [`IDLE`], or an [`Armed`]. The thread that swaps it to [`IDLE`] has to wake the waiter.
    armed: AtomicU64,
    /// The reader needs nothing below this sequence number.
    position: AtomicU64,
    ended: AtomicBool,
    waker: AtomicWaker,
}

/// How a waiter waits, in one word. A thread and a task may read a subscription in turn, and the
/// thread that wakes it must know which of them it woke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Armed(u64);

impl Armed {
    const fn new(above: u64, is_blocking: bool) -> Self {
        Self(above << 1 | is_blocking as u64)
    }

    /// Returns the sequence number that the head must exceed.
    const fn above(self) -> u64 {
        self.0 >> 1
    }

    const fn is_blocking(self) -> bool {
        self.0 & 1 == 1
    }
}

impl Waiter {
    fn arm(&self, waker: &Waker, above: u64, is_blocking: bool) {
        self.waker.register(waker);
        self.armed.store(Armed::new(above, is_blocking).0, SeqCst);
        fence(SeqCst);
    }

    /// Returns how it waits, if it does.
    fn armed(&self) -> Option<Armed> {
        let word = self.armed.load(SeqCst);
        (word != IDLE).then_some(Armed(word))
    }

    /// Records that the reader needs nothing below `position`.
    pub(crate) fn read_up_to(&self, position: u64) {
        // If the writer sees it late, it only keeps memory longer than needed.
        self.position.store(position, Relaxed);
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.ended.load(SeqCst)
    }

    /// Ends the waiter: its reader waits for no more events. Wakes it without disarming it, so if
    /// the writer picked it at the same time, it passes the wake-up on.
    pub(crate) fn end(&self) {
        self.ended.store(true, SeqCst);
        fence(SeqCst);
        self.call_waker();
    }

    /// Calls the waker, which is foreign code. If it panics, which its panic hook reports, neither
    /// the caller nor the next readers may suffer.
    fn call_waker(&self) {
        let _ = catch_unwind(AssertUnwindSafe(|| self.waker.wake()));
    }

    fn disarm(&self) -> bool {
        self.armed.swap(IDLE, SeqCst) != IDLE
    }

    /// Wakes it if it still waits as `armed` says, and `head` is high enough. If it has armed
    /// itself again meanwhile, it has read the head since. Returns whether it woke it.
    fn wake(&self, armed: Armed, head: u64) -> bool {
        let is_due = armed.above() < head
            && self.armed.compare_exchange(armed.0, IDLE, SeqCst, SeqCst).is_ok();
        if is_due {
            self.call_waker();
        }
        is_due
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.unpark();
    }
}

/// The head of the log, and the readers that wait for it to move.
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

    /// Makes everything that was written before visible. The writer calls it under its lock, and
    /// [`Self::wake_readers`] afterwards without it.
    pub(crate) fn publish(&self, head: u64) {
        self.head.store(head, SeqCst);
    }

    /// Wakes the readers that wait for the published events.
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

    /// Closes the pool: no more events follow. Wakes every waiter.
    pub(crate) fn close(&self) {
        self.closed.store(true, SeqCst);
        fence(SeqCst);
        // Without disarming, as in [`Waiter::end`]. A waiter that arms itself again meanwhile sees
        // that the pool is closed.
        self.waiters.load().iter().for_each(|waiter| waiter.call_waker());
    }

    pub(crate) fn join(&self) -> Arc<Waiter> {
        let waiter = Arc::new(Waiter {
            armed: AtomicU64::new(IDLE),
            // Everything is kept until the reader reports a position.
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

    /// Returns the lowest sequence number that some reader may need. Only the writer calls it. A
    /// reader that joins later begins at the head that is published now or at a later one, because
    /// each side has a fence between its write (the head, the list of waiters) and its read.
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

    /// Returns whether there is an event above `seq`, or never will be. If not, the task is woken
    /// when that changes.
    pub(crate) fn poll_above(&self, waiter: &Waiter, seq: u64, cx: &Context<'_>) -> bool {
        if self.is_ready(waiter, seq) {
            return true;
        }
        waiter.arm(cx.waker(), seq, false);
        let is_ready = self.is_ready(waiter, seq);
        if is_ready {
            waiter.disarm();
        }
        is_ready
    }

    fn is_ready(&self, waiter: &Waiter, seq: u64) -> bool {
        self.head() > seq || self.is_closed() || waiter.is_ended()
    }

    /// Blocks this thread until there is an event above `seq`, or never will be, or until the
    /// deadline.
    pub(crate) fn wait_above(&self, waiter: &Waiter, seq: u64, deadline: Option<Instant>) {
        if self.is_ready(waiter, seq) {
            return;
        }
        let parker = Arc::new(Parker::of_this_thread());
        let waker = Waker::from(Arc::clone(&parker));
        let mut was_picked = false;
        loop {
            // Armed anew in each round, because a writer that picked this waiter in an earlier
            // wait, and was delayed before it woke it, consumes this round's waker.
            waiter.arm(&waker, seq, true);
            if self.is_ready(waiter, seq) {
                break;
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                break;
            }
            parker.park(left);
            was_picked |= !waiter.disarm();
        }
        was_picked |= !waiter.disarm();
        // Only a thread that was picked passes the wake-up on. The others were woken by another
        // thread.
        if was_picked {
            self.wake_two();
        }
    }

    /// Wakes at most two blocked threads.
    fn wake_two(&self) {
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

    /// A lost wake-up is a thread that never ends, which loom reports as a deadlock. Loom tries two
    /// threads in every interleaving, and three threads up to `preemptions`.
    fn model(preemptions: Option<usize>, body: impl Fn() + Sync + Send + 'static) {
        let mut builder = Builder::new();
        builder.preemption_bound = preemptions;
        builder.check(body);
    }

    fn publish(wakers: &Wakers, head: u64) {
        wakers.publish(head);
        wakers.wake_readers();
    }

    /// Waits for the first event, which another thread publishes.
    fn wait_as_task_for_a_writer(wakers: &Arc<Wakers>, waiter: &Waiter) {
        let published = Arc::clone(wakers);
        let writer = thread::spawn(move || publish(&published, 1));
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
    fn loom_ending_a_picked_waiter_loses_no_other_wake_up() {
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

    /// A subscription on which a thread had waited, and on which a task waits now, was taken for a
    /// thread: for the one thread that the writer wakes, and that wakes the others. The others
    /// slept on.
    #[test]
    fn loom_a_task_that_was_a_thread_takes_no_threads_wake_up() {
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
