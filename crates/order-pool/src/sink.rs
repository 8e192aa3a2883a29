//! The push adapter: for code that wants to be called instead of reading.
//!
//! The lock of a sink's end is taken by the sink's thread once at its end, and by its guard when asked: for one
//! field, never during a call of the sink, and never together with the pool's.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
    time::Duration,
};

use chain_view::Head;

use crate::{
    error::{Lagged, StartError},
    event::{Event, RemoveReason},
    order::{Cancellation, Order},
    read::{Ender, Subscription},
};

/// How often a quiet subscription checks whether its sink is alive.
const ALIVE_INTERVAL: Duration = Duration::from_millis(500);

/// How many events are pushed between two checks whether the sink is alive.
const PUSH_BATCH: usize = 64;

/// Receives the pool's events by calls. Called from a thread that serves this sink alone, never
/// under a lock: a sink that panics, blocks or returns nonsense affects only itself. One that
/// blocks for ever keeps its thread and the one order it was called with.
///
/// Each of the four calls returns whether the sink wants more; `false` ends the subscription.
pub trait OrderSink: Send + 'static {
    /// The order is in the pool from now on.
    fn insert(&mut self, order: &Arc<Order>) -> bool;

    /// The order is no longer in the pool.
    fn remove(&mut self, order: &Arc<Order>, reason: RemoveReason) -> bool;

    /// No bundle of this key with this nonce or a lower one is valid any more.
    fn cancel(&mut self, cancellation: &Cancellation) -> bool;

    /// The chain has a new head; what was pushed before it is said at [`Event::Head`].
    /// The first call of all has the current head, if the pool knows one.
    fn head(&mut self, head: &Head) -> bool {
        let _ = head;
        true
    }

    /// Whether the sink still wants events. Called before each batch, and twice a second while
    /// nothing happens.
    fn is_alive(&self) -> bool {
        true
    }

    /// The sink was so slow that it missed events. On `true` the subscription starts again: the
    /// current head and all live orders are pushed anew, and the sink must discard what it held
    /// before. By default it ends.
    fn lagged(&mut self, lagged: Lagged) -> bool {
        let _ = lagged;
        false
    }
}

/// Why a sink gets no more events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SinkEndReason {
    /// Its guard was dropped or shut down.
    Unsubscribed,
    /// It returned `false`, or is not alive.
    Refused,
    /// It lagged and did not want to resync.
    Lagged(Lagged),
    /// It panicked.
    Panicked,
    /// The pool was dropped.
    PoolClosed,
}

/// The end of a sink's subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SinkEnd {
    /// Why it ended.
    pub reason: SinkEndReason,
    /// Whether the sink has returned and was dropped. A thread that is stuck in the sink cannot be
    /// freed.
    pub ended: bool,
}

/// Keeps a sink subscribed. Dropping it ends the subscription: no further event is pushed, and the
/// drop does not wait for a call that is running.
#[derive(Debug)]
#[must_use = "dropping the guard unsubscribes the sink"]
pub struct SinkGuard {
    state: Arc<State>,
    ender: Ender,
}

#[derive(Debug, Default)]
struct State {
    end: Mutex<Option<SinkEndReason>>,
    ended: Condvar,
}

impl SinkGuard {
    /// Why the sink gets no more events; `None` while it does.
    pub fn end(&self) -> Option<SinkEndReason> {
        *self.state.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Unsubscribes and waits until the sink has returned and was dropped, for at most `deadline`.
    pub fn shutdown(self, deadline: Duration) -> SinkEnd {
        self.ender.end();
        let end = self.state.end.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.state.ended.wait_timeout_while(end, deadline, |end| end.is_none());
        let end = *waited.unwrap_or_else(PoisonError::into_inner).0;
        SinkEnd { reason: end.unwrap_or(SinkEndReason::Unsubscribed), ended: end.is_some() }
    }
}

impl Drop for SinkGuard {
    fn drop(&mut self) {
        self.ender.end();
    }
}

impl Subscription {
    /// Pushes its events into a sink, from a thread of its own.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn push_into<S: OrderSink>(self, sink: S) -> Result<SinkGuard, StartError> {
        let state = Arc::new(State::default());
        let guard = SinkGuard { state: Arc::clone(&state), ender: self.ender() };
        let run = move || {
            // After a panic the sink is dropped, and it holds no state of ours.
            let run = AssertUnwindSafe(|| push_all(sink, self));
            let end = catch_unwind(run).unwrap_or(SinkEndReason::Panicked);
            *state.end.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
            state.ended.notify_all();
        };
        thread::Builder::new().name("order-sink".into()).spawn(run)?;
        Ok(guard)
    }
}

/// One event at a time, and not in place: a sink that blocks inside a call keeps the one order it
/// was called with, not the pool's tables.
fn push_all<S: OrderSink>(mut sink: S, mut reader: Subscription) -> SinkEndReason {
    loop {
        if !sink.is_alive() {
            return SinkEndReason::Refused;
        }
        for _ in 0..PUSH_BATCH {
            // Before reading: orders that were accepted before the end are pushed.
            let closed = reader.is_closed();
            let next = reader.next_timeout(ALIVE_INTERVAL);
            if reader.is_ended() {
                return SinkEndReason::Unsubscribed;
            }
            let wants_more = match next {
                None if closed => return SinkEndReason::PoolClosed,
                None => break,
                Some(Ok(event)) => push(&mut sink, &event),
                Some(Err(lagged)) if sink.lagged(lagged) => {
                    reader.resync();
                    true
                }
                Some(Err(lagged)) => return SinkEndReason::Lagged(lagged),
            };
            if reader.is_ended() {
                return SinkEndReason::Unsubscribed;
            }
            if !wants_more {
                return SinkEndReason::Refused;
            }
        }
    }
}

fn push<S: OrderSink>(sink: &mut S, event: &Event) -> bool {
    match event {
        Event::Added(order) => sink.insert(order),
        Event::Removed { order, reason } => sink.remove(order, *reason),
        Event::Cancelled(cancellation) => sink.cancel(cancellation),
        Event::BecamePublic(_)
        | Event::Held { .. }
        | Event::CancelledPrivate(_)
        | Event::CancellationForgotten(_) => true,
        Event::Head(head) => sink.head(head),
    }
}
