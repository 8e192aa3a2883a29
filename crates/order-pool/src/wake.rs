//! Waking readers that wait, at a cost to the writer that does not grow with system calls.
//!
//! Each subscription has one [`Waiter`]. A reader that found nothing arms it with the number it
//! waits to see exceeded, then looks at the head again; the writer publishes the head, then looks
//! at the waiters. All four accesses are `SeqCst`: one of the two sees the other, so no wake-up is
//! lost. Tasks are woken by the writer (a push to their executor's queue). Of the blocked threads
//! it wakes one, and each thread that wakes wakes two more before it returns to its caller: it is
//! in our code, so no stuck caller can break the chain.
//!
//! Loom tries the interleavings: `RUSTFLAGS="--cfg loom" cargo test -p order-pool --lib --release
//! loom`, with a target directory of its own.

use self::sync::{AtomicBool, AtomicU64, AtomicWaker, Thread, thread};
use arc_swap::ArcSwap;
use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    task::{Context, Wake, Waker},
    time::Instant,
};

/// Under `--cfg loom` loom's, so that it can try every interleaving.
mod sync {
    #[cfg(all(test, loom))]
    pub(super) use loom::{
        future::AtomicWaker,
        sync::atomic::{AtomicBool, AtomicU64},
        thread::{self, Thread},
    };
    #[cfg(not(all(test, loom)))]
    pub(super) use {
        futures::task::AtomicWaker,
        std::{
            sync::atomic::{AtomicBool, AtomicU64},
            thread::{self, Thread},
        },
    };
}

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
        #[cfg(not(all(test, loom)))]
        self.waker.register(waker);
        #[cfg(all(test, loom))]
        self.waker.register_by_ref(waker);
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
                // Loom has no time; its tests have no deadline.
                #[cfg(not(all(test, loom)))]
                Some(left) => thread::park_timeout(left),
                #[cfg(all(test, loom))]
                Some(_) => thread::park(),
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

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::{model::Builder, thread};

    /// A lost wake-up is a thread that never ends, which loom reports as a deadlock.
    fn model(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
        let mut builder = Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.check(body);
    }

    fn blocking_reader(bell: &Arc<Bell>, events: u64) -> thread::JoinHandle<()> {
        let (bell, waiter) = (Arc::clone(bell), bell.join());
        thread::spawn(move || {
            while bell.head() < events && !bell.is_closed() && !waiter.is_ended() {
                bell.wait_above(&waiter, bell.head(), None);
            }
        })
    }

    #[test]
    fn loom_a_blocked_thread_sees_every_event() {
        model(3, || {
            let bell = Arc::new(Bell::default());
            let reader = blocking_reader(&bell, 2);
            for head in 1..=2 {
                bell.publish(head);
                bell.ring();
            }
            reader.join().unwrap();
        });
    }

    #[test]
    fn loom_of_two_blocked_threads_one_wakes_the_other() {
        model(2, || {
            let bell = Arc::new(Bell::default());
            let readers = [blocking_reader(&bell, 1), blocking_reader(&bell, 1)];
            bell.publish(1);
            bell.ring();
            for reader in readers {
                reader.join().unwrap();
            }
        });
    }

    #[test]
    fn loom_closing_frees_a_blocked_thread() {
        model(3, || {
            let bell = Arc::new(Bell::default());
            let reader = blocking_reader(&bell, 1);
            bell.close();
            reader.join().unwrap();
        });
    }

    #[test]
    fn loom_ending_a_waiter_that_was_just_picked_does_not_lose_the_others_wake_up() {
        model(2, || {
            let bell = Arc::new(Bell::default());
            let (ended, waiter) = (bell.join(), bell.join());
            let first = {
                let (bell, ended) = (Arc::clone(&bell), Arc::clone(&ended));
                thread::spawn(move || bell.wait_above(&ended, 0, None))
            };
            let second = {
                let bell = Arc::clone(&bell);
                thread::spawn(move || {
                    while bell.head() == 0 {
                        bell.wait_above(&waiter, 0, None);
                    }
                })
            };
            bell.publish(1);
            bell.ring();
            ended.end();
            first.join().unwrap();
            second.join().unwrap();
        });
    }

    #[test]
    fn loom_a_task_sees_every_event() {
        model(3, || {
            let bell = Arc::new(Bell::default());
            let writer = Arc::clone(&bell);
            let waiter = bell.join();
            let thread = thread::spawn(move || {
                writer.publish(1);
                writer.ring();
            });
            loom::future::block_on(std::future::poll_fn(|cx| {
                match bell.poll_above(&waiter, 0, cx) {
                    true => std::task::Poll::Ready(()),
                    false => std::task::Poll::Pending,
                }
            }));
            thread.join().unwrap();
        });
    }
}
