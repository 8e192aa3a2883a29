//! The push adapter: for code that wants to be called instead of reading.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use chain_view::Head;

use crate::{
    bundle::Cancellation,
    event::{EventRef, Lagged, RemoveReason},
    order::Order,
    pool::OrderPool,
    subscription::{Ender, Subscription},
};

/// How often a quiet subscription asks whether its sink still lives.
const ALIVE_INTERVAL: Duration = Duration::from_millis(500);

/// How many events are pushed between two questions whether the sink is alive.
const PUSH_BATCH: usize = 64;

/// Someone who wants to be told. Called from a thread that serves this sink alone, never under a
/// lock: one that panics, blocks or answers nonsense hurts itself only. One that blocks for ever
/// keeps its thread and the one order it was called with.
///
/// Each of the four calls says whether the sink wants more; `false` ends the subscription.
pub trait OrderSink: Send + 'static {
    /// An order may be built with from now on.
    fn insert(&mut self, order: &Arc<Order>) -> bool;

    /// An order may not be built with any more.
    fn remove(&mut self, order: &Arc<Order>, reason: RemoveReason) -> bool;

    /// No bundle of this key up to this nonce counts any more.
    fn cancel(&mut self, cancellation: &Cancellation) -> bool;

    /// The chain has a new head, and everything that its block's hashes changed has been told. Called
    /// first of all with the head of the moment, if the pool knows one.
    fn head(&mut self, head: &Head) -> bool {
        let _ = head;
        true
    }

    /// Whether the sink wants anything at all. Asked before each batch, and twice a second while
    /// nothing happens.
    fn is_alive(&self) -> bool {
        true
    }

    /// It was so slow that events were lost to it. On `true` everything starts anew: the head of the
    /// moment is told, all live orders are inserted again, and what it held before is void. By default it ends.
    fn lagged(&mut self, lagged: Lagged) -> bool {
        let _ = lagged;
        false
    }
}

/// Why a sink gets nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SinkEnd {
    /// Its guard was dropped.
    Unsubscribed,
    /// It said that it wants no more, or is not alive.
    Refused,
    /// It lagged and did not want to start anew.
    Lagged(Lagged),
    /// It panicked.
    Panicked,
    /// The pool is gone.
    PoolClosed,
}

/// Keeps a sink subscribed. Dropping it ends the subscription: a call that is running ends in its
/// own time, no further event is pushed, and the drop does not wait for it.
#[derive(Debug)]
#[must_use = "dropping the guard unsubscribes the sink"]
pub struct SinkGuard {
    state: Arc<State>,
    ender: Ender,
}

#[derive(Debug, Default)]
struct State {
    stop: AtomicBool,
    end: Mutex<Option<SinkEnd>>,
    ended: Condvar,
}

impl SinkGuard {
    /// Why the sink gets nothing more; `None` while it does.
    pub fn end(&self) -> Option<SinkEnd> {
        *self.state.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Unsubscribes and waits until the sink has returned and was dropped, but not longer than
    /// `timeout`: `None` then, since a thread that is stuck in the sink cannot be freed.
    pub fn stop(self, timeout: Duration) -> Option<SinkEnd> {
        self.unsubscribe();
        self.wait_end(timeout)
    }

    /// Waits until the sink has ended by itself, but not longer than `timeout`.
    pub fn wait_end(&self, timeout: Duration) -> Option<SinkEnd> {
        let end = self.state.end.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.state.ended.wait_timeout_while(end, timeout, |end| end.is_none());
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn unsubscribe(&self) {
        self.state.stop.store(true, SeqCst);
        self.ender.end();
    }
}

impl Drop for SinkGuard {
    fn drop(&mut self) {
        self.unsubscribe();
    }
}

impl OrderPool {
    /// Pushes what [`Self::subscribe`] would show into a sink, from a thread made for it.
    ///
    /// # Errors
    /// If the system refuses the thread.
    pub fn subscribe_sink<S: OrderSink>(&self, block: u64, sink: S) -> io::Result<SinkGuard> {
        self.push_from(self.subscribe(block), sink)
    }

    /// The same of what [`Self::subscribe_all`] would show: the orders of all blocks, with one thread.
    ///
    /// # Errors
    /// If the system refuses the thread.
    pub fn subscribe_sink_all<S: OrderSink>(&self, sink: S) -> io::Result<SinkGuard> {
        self.push_from(self.subscribe_all(), sink)
    }

    fn push_from<S: OrderSink>(
        &self,
        subscription: Subscription,
        sink: S,
    ) -> io::Result<SinkGuard> {
        let state = Arc::new(State::default());
        let guard = SinkGuard { state: Arc::clone(&state), ender: subscription.ender() };
        thread::Builder::new().name("order-sink".into()).spawn(move || {
            // The sink is lost with its panic, and nothing of ours is in its hands.
            let run = AssertUnwindSafe(|| push_all(sink, subscription, &state.stop));
            let end = catch_unwind(run).unwrap_or(SinkEnd::Panicked);
            *state.end.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
            state.ended.notify_all();
        })?;
        Ok(guard)
    }
}

/// One by one, and not in place: a sink that blocks inside a call keeps the one order it was called
/// with, not the tables it was found in.
fn push_all<S: OrderSink>(mut sink: S, mut reader: Subscription, stop: &AtomicBool) -> SinkEnd {
    loop {
        if stop.load(SeqCst) {
            return SinkEnd::Unsubscribed;
        }
        if !sink.is_alive() {
            return SinkEnd::Refused;
        }
        // Before reading: what was accepted before the end is pushed before the end.
        let closed = reader.is_closed();
        let mut read = 0;
        while read < PUSH_BATCH
            && let Some(next) = reader.try_next()
        {
            read += 1;
            let wants_more = match next {
                Ok(event) => push(&mut sink, event.as_ref()),
                Err(lagged) if sink.lagged(lagged) => {
                    reader.resync();
                    true
                }
                Err(lagged) => return SinkEnd::Lagged(lagged),
            };
            if stop.load(SeqCst) {
                return SinkEnd::Unsubscribed;
            }
            if !wants_more {
                return SinkEnd::Refused;
            }
        }
        if read == 0 {
            if closed {
                return SinkEnd::PoolClosed;
            }
            reader.wait_until(Instant::now() + ALIVE_INTERVAL);
        }
    }
}

fn push<S: OrderSink>(sink: &mut S, event: EventRef<'_>) -> bool {
    match event {
        EventRef::Added(order) => sink.insert(order),
        EventRef::Removed { order, reason } => sink.remove(order, reason),
        EventRef::Cancelled(cancellation) => sink.cancel(&cancellation),
        EventRef::CancellationForgotten(_) => true,
        EventRef::Head(head) => sink.head(head),
    }
}
