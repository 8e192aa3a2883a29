//! A reader of the pool: first the live orders, then every later event.

use std::{
    ops::ControlFlow,
    pin::Pin,
    sync::{Arc, atomic::Ordering::SeqCst},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use chain_view::Head;
use futures::Stream;

use super::{Tables, wake::Waiter};
use crate::{error::Lagged, event::Event};

/// A reader of the pool: the orders at one moment, then every later event.
///
/// It holds a position in the event log and no order, so a subscription that is never read keeps no
/// order alive. Dropping it ends it. It outlives the pool: accepted orders can still be read, then
/// it ends.
///
/// ```
/// use order_pool::{Event, OrderPool, PoolConfig};
///
/// let pool = OrderPool::new(PoolConfig::default())?;
/// let mut subscription = pool.subscribe(2);
/// while let Some(next) = subscription.try_next() {
///     match next {
///         Ok(Event::Added(order)) => println!("{} of {} bytes", order.id(), order.size_bytes()),
///         Ok(_) => {}
///         // Too slow: begin again with the orders that the pool holds now.
///         Err(_lagged) => subscription.resync(),
///     }
/// }
/// # Ok::<(), order_pool::ConfigError>(())
/// ```
///
/// Read it as a [`Stream`], with [`Self::blocking`] from a thread, one by one with
/// [`Self::try_next`], or by reference with [`Self::visit`], which is by far the fastest.
#[derive(Debug)]
pub struct Subscription {
    tables: Arc<Tables>,
    waiter: Arc<Waiter>,
    /// The block that it is for; `None` for all blocks.
    block: Option<u64>,
    /// The replay shows the pool as of this sequence number, and the log is read from it on.
    next: u64,
    /// The next entry of the replay; `None` once it is finished.
    replay_from: Option<u64>,
    /// The head with which the replay begins.
    replay_head: Option<Arc<Head>>,
    /// The replay has to show that no source feeds the pool any more.
    shows_feed_ended: bool,
}

impl Subscription {
    pub(crate) fn new(tables: Arc<Tables>, block: Option<u64>) -> Self {
        let waiter = tables.wakers.join();
        // It has joined before, so from here on the writer frees nothing that this reader needs.
        let (next, replay_head) = tables.heads.as_of(|| tables.wakers.head());
        waiter.read_up_to(next);
        // Read after the position: if the feed ends only now, the log has the event.
        let shows_feed_ended = tables.has_feed_ended.load(SeqCst);
        let replay_from = Some(0);
        Self { tables, waiter, block, next, replay_from, replay_head, shows_feed_ended }
    }

    /// Starts again, for instance after [`Lagged`]: the current head and the live orders, then
    /// every later event.
    pub fn resync(&mut self) {
        (self.next, self.replay_head) = self.tables.heads.as_of(|| self.tables.wakers.head());
        self.shows_feed_ended = self.tables.has_feed_ended.load(SeqCst);
        self.replay_from = Some(0);
        self.waiter.read_up_to(self.next);
    }

    /// Whether the replay (the head and the orders at the start) is not finished yet.
    pub const fn is_replaying(&self) -> bool {
        self.replay_from.is_some()
    }

    /// Returns the number of log events that it has not read, with those for other blocks, and
    /// without the rest of a replay.
    pub fn behind(&self) -> u64 {
        self.tables.wakers.head() - self.next
    }

    /// Visits at most `max` events in place. Nothing is cloned, so readers do not slow each other
    /// down, and no lock is held meanwhile. Returns the number of visited events. It may be below
    /// `max` at the end of a segment; zero means that there is nothing to read now.
    ///
    /// During a call of `visit` the pool's tables of that moment stay in memory, and with them
    /// orders that were removed since. A reader that may block for long should use
    /// [`Self::try_next`] or one of the other methods instead, which keep only one order alive.
    ///
    /// # Errors
    /// [`Lagged`] if the log has dropped the next event. The next read continues with the rest of
    /// the replay, as of the oldest event in the log, and then with that event. [`Self::resync`]
    /// starts again instead.
    pub fn visit(&mut self, max: usize, mut visit: impl FnMut(&Event)) -> Result<usize, Lagged> {
        let mut count = 0;
        if let Some(first) = self.replay_from {
            count = self.visit_replay(first, max, &mut visit)?;
        }
        while count < max && self.replay_from.is_none() && self.next < self.tables.wakers.head() {
            count += self.visit_log(max - count, &mut visit)?;
            self.waiter.read_up_to(self.next);
        }
        Ok(count)
    }

    fn visit_replay(
        &mut self,
        first: u64,
        max: usize,
        visit: &mut impl FnMut(&Event),
    ) -> Result<usize, Lagged> {
        if max == 0 {
            return Ok(0);
        }
        // The fields are borrowed one by one, so that nothing is cloned. If all readers wrote one
        // reference count, each would wait for the others' caches.
        let Self { tables, next, replay_from, replay_head, shows_feed_ended, block, .. } = self;
        // The live table is loaded first. Its writer frees an entry only after the log has dropped
        // the entry's removal, so this table still holds everything that the log covers.
        let live = tables.live.load();
        skip_to_tail_if_lagged(tables, next, true, tables.log.load().tail())?;
        let mut count = 0;
        if let Some(head) = replay_head.take() {
            count += 1;
            visit(&Event::Head(head));
        }
        if *shows_feed_ended {
            if count == max {
                return Ok(count);
            }
            *shows_feed_ended = false;
            count += 1;
            visit(&Event::FeedEnded);
        }
        let end = live.visit(*next, first, |seq, event| {
            if count == max {
                return ControlFlow::Break(());
            }
            // This is set before the call: if the call panics, the order counts as visited.
            *replay_from = Some(seq + 1);
            if let (Event::Added(order), Some(block)) = (event, *block)
                && !order.may_go_into(block)
            {
                return ControlFlow::Continue(());
            }
            count += 1;
            visit(event);
            ControlFlow::Continue(())
        });
        if end.is_continue() {
            *replay_from = None;
        }
        Ok(count)
    }

    fn visit_log(&mut self, max: usize, visit: &mut impl FnMut(&Event)) -> Result<usize, Lagged> {
        let Self { tables, next, block, .. } = self;
        let head = tables.wakers.head();
        let table = tables.log.load();
        skip_to_tail_if_lagged(tables, next, false, table.tail())?;
        let mut count = 0;
        for slot in table.slots_from(*next) {
            // Slots from the head on are written but not published.
            if count == max || *next >= head {
                break;
            }
            *next += 1;
            if block.is_none_or(|block| slot.block.is_none_or(|only| only == block)) {
                count += 1;
                visit(&slot.event);
            }
        }
        Ok(count)
    }

    /// Returns the next event, if there is one now.
    pub fn try_next(&mut self) -> Option<Result<Event, Lagged>> {
        let mut event = None;
        match self.visit(1, |next| event = Some(next.clone())) {
            Ok(_) => event.map(Ok),
            Err(lagged) => Some(Err(lagged)),
        }
    }

    /// Waits for the next event. Returns `None` once the pool is dropped and everything is read.
    pub fn next_blocking(&mut self) -> Option<Result<Event, Lagged>> {
        self.wait(None)
    }

    /// Waits for the next event for at most `timeout`. Returns `None` also after the time-out.
    pub fn next_timeout(&mut self, timeout: Duration) -> Option<Result<Event, Lagged>> {
        self.wait(Instant::now().checked_add(timeout))
    }

    fn wait(&mut self, deadline: Option<Instant>) -> Option<Result<Event, Lagged>> {
        loop {
            let is_last = self.is_pool_closed() || self.is_closed();
            if let Some(next) = self.try_next() {
                return Some(next);
            }
            if is_last || deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return None;
            }
            self.tables.wakers.wait_above(&self.waiter, self.next, deadline);
        }
    }

    /// Whether a [`CloseHandle`] has closed it.
    pub(crate) fn is_closed(&self) -> bool {
        self.waiter.is_ended()
    }

    pub(crate) fn is_pool_closed(&self) -> bool {
        self.tables.wakers.is_closed()
    }

    /// Returns a handle that closes this subscription from another thread, for instance to free a
    /// thread that waits in [`Self::next_blocking`].
    pub fn close_handle(&self) -> CloseHandle {
        CloseHandle { waiter: Arc::clone(&self.waiter) }
    }

    /// Returns an iterator that blocks its thread for the next event and ends when the pool is
    /// dropped.
    pub fn blocking(&mut self) -> impl Iterator<Item = Result<Event, Lagged>> {
        std::iter::from_fn(|| self.next_blocking())
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.tables.wakers.leave(&self.waiter);
    }
}

/// If the log has dropped the event at `next`, moves `next` to `tail`, the oldest event in the log.
/// A replay then shows the pool as of that event, because the live table still has every order
/// whose removal is in the log.
///
/// # Errors
/// [`Lagged`] if events were skipped. They are counted.
fn skip_to_tail_if_lagged(
    tables: &Tables,
    next: &mut u64,
    is_replaying: bool,
    tail: u64,
) -> Result<(), Lagged> {
    if *next >= tail {
        return Ok(());
    }
    let lagged = Lagged { missed: tail - *next, replay_unfinished: is_replaying };
    *next = tail;
    tables.counters.lagged.add(1);
    tables.counters.missed_events.add(lagged.missed);
    Err(lagged)
}

/// Ends once the pool is dropped and everything is read.
///
/// # Cancel safety
/// An event is consumed only by the poll that returns it.
impl Stream for Subscription {
    type Item = Result<Event, Lagged>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            // This is read before the event, so that events which were accepted before the end are
            // returned.
            let is_last = self.is_pool_closed() || self.is_closed();
            if let Some(next) = self.try_next() {
                return Poll::Ready(Some(next));
            }
            if is_last {
                return Poll::Ready(None);
            }
            if !self.tables.wakers.poll_above(&self.waiter, self.next, cx) {
                return Poll::Pending;
            }
        }
    }
}

/// Closes a subscription: see [`Subscription::close_handle`].
#[derive(Clone, Debug)]
pub struct CloseHandle {
    waiter: Arc<Waiter>,
}

impl CloseHandle {
    /// Closes the subscription. A waiting reader is woken. Unread events can still be read, then it
    /// ends.
    pub fn close(&self) {
        self.waiter.end();
    }
}
