//! Pushes events into a host's sink, from a thread of its own.
//!
//! The lock of `State::end` is taken by the sink's thread once, when it ends, and by the guard,
//! which reads the field or waits for it: never during a call of the sink, and never together with
//! the pool's lock.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
    time::Duration,
};

use chain_view::Head;
use parking_lot::{Condvar, Mutex};

use crate::{
    error::{Lagged, StartError},
    event::{Event, RemoveReason},
    order::{Cancellation, Order},
    read::{CloseHandle, Subscription},
};

/// How often a quiet subscription checks whether its sink is alive.
const ALIVE_INTERVAL: Duration = Duration::from_millis(500);

/// The number of events that are pushed between two checks whether the sink is alive.
const PUSH_BATCH: usize = 64;

/// Receives the pool's events as calls.
///
/// Each sink has a thread of its own, which makes the calls and holds no lock during them. So a
/// sink that panics or blocks affects no other sink and not the pool. A sink that blocks for ever
/// keeps its thread and the one order that it was called with.
///
/// With a new subscription, and again after [`Self::lagged`] returned `true`, the sink first
/// receives the current head and the orders in the pool, and then every change.
///
/// `insert`, `remove`, `cancel`, `head` and `feed_ended` return whether the sink wants more events;
/// `false` ends the subscription.
pub trait OrderSink: Send + 'static {
    /// The order is in the pool: it was added, or was in the pool already at the start of the
    /// subscription. Clone the `Arc` to keep the order.
    fn insert(&mut self, order: &Arc<Order>) -> bool;

    /// The order is no longer in the pool.
    fn remove(&mut self, order: &Arc<Order>, reason: RemoveReason) -> bool;

    /// No bundle of this key with this nonce or a lower one is valid any more.
    fn cancel(&mut self, cancellation: &Cancellation) -> bool;

    /// The chain has a new head; [`Event::Head`] says which events were pushed before it. The very
    /// first call of the sink is this one with the current head, if the pool knows one.
    fn head(&mut self, head: &Head) -> bool {
        let _ = head;
        true
    }

    /// No source feeds the pool with the node's transactions and heads any more, see
    /// [`Event::FeedEnded`]. By default this is ignored.
    fn feed_ended(&mut self) -> bool {
        true
    }

    /// Whether the sink still wants events. Called before each batch of events, and twice a second
    /// while there are none.
    fn is_alive(&self) -> bool {
        true
    }

    /// The sink was so slow that it missed events. If it returns `true` the subscription starts
    /// again: the sink must discard all orders, then the current head and all live orders are
    /// pushed anew. By default the subscription ends.
    fn lagged(&mut self, lagged: Lagged) -> bool {
        let _ = lagged;
        false
    }
}

/// Why a sink receives no more events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SinkEndReason {
    /// Its guard was dropped or shut down.
    Unsubscribed,
    /// The sink returned `false`, or is not alive.
    Refused,
    /// The sink lagged and did not want to start again.
    Lagged(Lagged),
    /// The sink panicked.
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

/// Keeps a sink subscribed. Dropping it ends the subscription: no further event is pushed. The drop
/// does not wait for a call that is running.
#[derive(Debug)]
#[must_use = "dropping the guard unsubscribes the sink"]
pub struct SinkGuard {
    state: Arc<State>,
    close: CloseHandle,
}

#[derive(Debug, Default)]
struct State {
    /// Why the sink's thread has ended; `None` while it runs.
    end: Mutex<Option<SinkEndReason>>,
    /// Notified when `end` is set.
    ended: Condvar,
}

impl SinkGuard {
    /// Returns why the sink receives no more events; `None` while it does.
    pub fn end(&self) -> Option<SinkEndReason> {
        *self.state.end.lock()
    }

    /// Unsubscribes the sink, and waits for at most `deadline` until it has returned and was
    /// dropped.
    pub fn shutdown(self, deadline: Duration) -> SinkEnd {
        self.close.close();
        let mut end = self.state.end.lock();
        let _timed_out = self.state.ended.wait_while_for(&mut end, |end| end.is_none(), deadline);
        SinkEnd { reason: end.unwrap_or(SinkEndReason::Unsubscribed), ended: end.is_some() }
    }
}

impl Drop for SinkGuard {
    fn drop(&mut self) {
        self.close.close();
    }
}

impl Subscription {
    /// Pushes the subscription's events into a sink, from a thread of its own.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn push_into<S: OrderSink>(self, sink: S) -> Result<SinkGuard, StartError> {
        let state = Arc::new(State::default());
        let guard = SinkGuard { state: Arc::clone(&state), close: self.close_handle() };
        let run = move || {
            // After a panic the sink is dropped, and it has no state of this crate.
            let run = AssertUnwindSafe(|| push_all(sink, self));
            let end = catch_unwind(run).unwrap_or(SinkEndReason::Panicked);
            *state.end.lock() = Some(end);
            state.ended.notify_all();
        };
        thread::Builder::new().name("order-sink".into()).spawn(run)?;
        Ok(guard)
    }
}

/// Clones one event at a time instead of visiting events in place. So a sink that blocks inside a
/// call keeps the one order that it was called with, and not the pool's tables.
fn push_all<S: OrderSink>(mut sink: S, mut reader: Subscription) -> SinkEndReason {
    loop {
        if !sink.is_alive() {
            return SinkEndReason::Refused;
        }
        for _ in 0..PUSH_BATCH {
            // Read before the event, so that orders which were accepted before the end are pushed.
            let is_last = reader.is_pool_closed();
            let next = reader.next_timeout(ALIVE_INTERVAL);
            if reader.is_closed() {
                return SinkEndReason::Unsubscribed;
            }
            let wants_more = match next {
                None if is_last => return SinkEndReason::PoolClosed,
                None => break,
                Some(Ok(event)) => push(&mut sink, &event),
                Some(Err(lagged)) if sink.lagged(lagged) => {
                    reader.resync();
                    true
                }
                Some(Err(lagged)) => return SinkEndReason::Lagged(lagged),
            };
            if reader.is_closed() {
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
        Event::FeedEnded => sink.feed_ended(),
    }
}
