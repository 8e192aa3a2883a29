//! Waking readers that wait, at a cost to the writer that does not grow with system calls.
//!
//! Each subscription has one [`Waiter`]. A reader that found nothing arms it with the number it
//! waits to see exceeded, then looks at the head again; the writer publishes the head, then looks
//! at the waiters. All four accesses are `SeqCst`: one of the two sees the other, so no wake-up is
//! lost. Tasks are woken by the writer (a push to their executor's queue). Of the blocked threads
//! it wakes one, and each thread that wakes wakes two more before it returns to its caller: it is
//! in our code, so no stuck caller can break the chain.

use arc_swap::ArcSwap;
use futures::task::AtomicWaker;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    task::{Context, Wake, Waker},
    thread::{self, Thread},
    time::Instant,
};

const IDLE: u64 = u64::MAX;

#[derive(Debug)]
pub(crate) struct Waiter {
    /// [`IDLE`], or the head it waits to see exceeded. Whoever swaps it to [`IDLE`] has to wake it.
    above: AtomicU64,
    blocking: AtomicBool,
    ended: AtomicBool,
    waker: AtomicWaker,
}

impl Waiter {
    fn arm(&self, waker: &Waker, above: u64, blocking: bool) {
        self.waker.register(waker);
        self.blocking.store(blocking, SeqCst);
        self.above.store(above, SeqCst);
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.ended.load(SeqCst)
    }

    /// There will be no more events for this one. Wakes without disarming: if the writer picked it
    /// at the same time, it passes that on.
    pub(crate) fn end(&self) {
        self.ended.store(true, SeqCst);
        self.waker.wake();
    }

    /// Whether it was still armed.
    fn disarm(&self) -> bool {
        self.above.swap(IDLE, SeqCst) != IDLE
    }

    /// Wakes it if it waits for less than `head`.
    fn wake(&self, head: u64) -> bool {
        let above = self.above.load(SeqCst);
        let due = above != IDLE
            && above < head
            && self.above.compare_exchange(above, IDLE, SeqCst, SeqCst).is_ok();
        if due {
            self.waker.wake();
        }
        due
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The head of the log and who waits for it to move.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    head: AtomicU64,
    closed: AtomicBool,
    waiters: ArcSwap<Vec<Arc<Waiter>>>,
}

impl Bell {
    pub(crate) fn head(&self) -> u64 {
        self.head.load(SeqCst)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(SeqCst)
    }

    pub(crate) fn waiters(&self) -> usize {
        self.waiters.load().len()
    }

    /// Makes everything written before visible. Called under the writer's lock; [`Self::ring`]
    /// follows outside of it.
    pub(crate) fn publish(&self, head: u64) {
        self.head.store(head, SeqCst);
    }

    /// Wakes who waits for what was published.
    pub(crate) fn ring(&self) {
        let head = self.head();
        let mut woke_thread = false;
        for waiter in self.waiters.load().iter() {
            if !waiter.blocking.load(SeqCst) {
                waiter.wake(head);
            } else if !woke_thread {
                woke_thread = waiter.wake(head);
            }
        }
    }

    /// There will be no more events: everyone who waits learns it.
    pub(crate) fn close(&self) {
        self.closed.store(true, SeqCst);
        for waiter in self.waiters.load().iter() {
            waiter.wake(IDLE);
        }
    }

    pub(crate) fn join(&self) -> Arc<Waiter> {
        let waiter = Arc::new(Waiter {
            above: AtomicU64::new(IDLE),
            blocking: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            waker: AtomicWaker::new(),
        });
        self.waiters.rcu(|waiters| {
            waiters.iter().cloned().chain([Arc::clone(&waiter)]).collect::<Vec<_>>()
        });
        waiter
    }

    pub(crate) fn leave(&self, waiter: &Arc<Waiter>) {
        self.waiters.rcu(|waiters| {
            waiters.iter().filter(|other| !Arc::ptr_eq(other, waiter)).cloned().collect::<Vec<_>>()
        });
    }

    /// Whether there is something above `seq`, or never will be; if not, the task is woken when it
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

    /// Blocks this thread until there is something above `seq`, or never will be, or the deadline
    /// has passed.
    pub(crate) fn wait_above(&self, waiter: &Waiter, seq: u64, deadline: Option<Instant>) {
        let ready = || self.head() > seq || self.is_closed() || waiter.is_ended();
        if ready() {
            return;
        }
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        waiter.arm(&waker, seq, true);
        while !ready() {
            match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                None => thread::park(),
                Some(left) if left.is_zero() => break,
                Some(left) => thread::park_timeout(left),
            }
        }
        // Only who was picked passes it on; everyone else has someone else to wake them.
        if !waiter.disarm() {
            self.pass_on();
        }
    }

    fn pass_on(&self) {
        let head = self.head();
        let mut left = 2;
        for waiter in self.waiters.load().iter() {
            if waiter.blocking.load(SeqCst) && waiter.wake(head) {
                left -= 1;
                if left == 0 {
                    break;
                }
            }
        }
    }
}
