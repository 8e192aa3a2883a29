//! Counts the notifications of a subscription: how many were read, how many wait, and since when.
//!
//! # Locks
//! | lock | who takes it | for how long |
//! |---|---|---|
//! | state | the reader of the subscription, `status()`, the ticks of its source | a few fields |

use std::{
    collections::VecDeque,
    sync::Mutex,
    time::{Duration, Instant},
};

use serde_json::value::RawValue;
use tokio::sync::broadcast;

use crate::sync::lock;

/// How exactly the time at which a notification was read is known.
const RESOLUTION: Duration = Duration::from_millis(1);

/// What is known of the broadcast buffer of one subscription.
///
/// A broadcast channel tells its reader neither how many messages were sent before it looked nor when.
/// A second receiver that never receives knows the first, and its length at several times the second.
/// It holds no memory that alloy's own first receiver, which it keeps, does not hold.
pub(crate) struct Meter {
    state: Mutex<State>,
}

struct State {
    /// How many were sent.
    sent: Box<dyn Fn() -> u64 + Send>,
    /// Taken out, or lost.
    taken: u64,
    /// Places of the buffer.
    capacity: u64,
    /// How many the reader knows to be lost.
    skipped: u64,
    /// How many losses are counted, known to the reader or not.
    lost: u64,
    /// How many had been sent at some times before now, ascending. Those up to the latest one taken are
    /// of no use any more, except the last.
    sent_at: VecDeque<(u64, Instant)>,
    looked_at: Instant,
}

impl Meter {
    /// `sent` counts what is sent.
    pub(crate) fn new(capacity: usize, sent: impl Fn() -> u64 + Send + 'static) -> Self {
        let now = Instant::now();
        let state = State {
            sent: Box::new(sent),
            taken: 0,
            // tokio rounds up.
            capacity: capacity.next_power_of_two() as u64,
            skipped: 0,
            lost: 0,
            sent_at: VecDeque::from([(0, now)]),
            looked_at: now,
        };
        Self { state: state.into() }
    }

    /// For the subscription of which `receiver` has not taken anything.
    pub(super) fn of_subscription(
        capacity: usize,
        receiver: &broadcast::Receiver<Box<RawValue>>,
    ) -> Self {
        let (sent_before, observer) = (receiver.len() as u64, receiver.resubscribe());
        Self::new(capacity, move || sent_before + observer.len() as u64)
    }

    /// How many notifications were read from the socket.
    pub(crate) fn sent(&self) -> u64 {
        (lock(&self.state).sent)()
    }

    /// How many of them wait in the buffer, or were lost there without the reader's knowledge.
    pub(crate) fn waiting(&self) -> u64 {
        let state = lock(&self.state);
        (state.sent)().saturating_sub(state.taken)
    }

    /// Notes how many notifications have been sent until now.
    pub(super) fn look(&self) {
        let mut state = lock(&self.state);
        let (sent, now) = ((state.sent)(), Instant::now());
        let is_due = now.duration_since(state.looked_at) >= RESOLUTION;
        if is_due && state.sent_at.back().is_some_and(|(before, _)| *before < sent) {
            state.sent_at.push_back((sent, now));
        }
        state.looked_at = now;
    }

    /// Counts a notification that was taken out of the buffer. Returns when it was read from the socket;
    /// if that is not known exactly, the latest time at which it was not there yet.
    pub(super) fn take(&self) -> Instant {
        let mut state = lock(&self.state);
        state.taken += 1;
        let taken = state.taken;
        while state.sent_at.get(1).is_some_and(|(sent, _)| *sent < taken) {
            state.sent_at.pop_front();
        }
        let has_waited = state.sent_at.get(1).is_some();
        match state.sent_at.front() {
            Some((_, before)) if has_waited => *before,
            _ => Instant::now(),
        }
    }

    /// Counts a notification that was taken out and of which the time does not matter.
    pub(crate) fn taken(&self) {
        lock(&self.state).taken += 1;
    }

    /// Counts notifications of which the reader has learned that the buffer has lost them.
    pub(crate) fn skip(&self, count: u64) {
        let mut state = lock(&self.state);
        state.taken += count;
        state.skipped += count;
    }

    /// How many notifications the buffer has lost since this was called the last time. It knows them
    /// as soon as they are lost: a reader that waits for a slot learns of them only when it reads on.
    pub(crate) fn newly_lost(&self) -> u64 {
        let mut state = lock(&self.state);
        let overrun = (state.sent)().saturating_sub(state.taken).saturating_sub(state.capacity);
        let lost = (state.skipped + overrun).max(state.lost);
        lost - std::mem::replace(&mut state.lost, lost)
    }

    /// How many notifications wait that the buffer has not lost.
    pub(crate) fn left(&self) -> u64 {
        self.waiting().min(lock(&self.state).capacity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::broadcast::error::TryRecvError;

    #[test]
    fn a_notification_that_waited_has_the_time_before_it_was_there() {
        let (sender, receiver) = broadcast::channel(16);
        let meter = Meter::of_subscription(16, &receiver);
        let send = || sender.send(RawValue::NULL.to_owned()).unwrap();
        send();
        let before_take = Instant::now();
        assert!(meter.take() >= before_take, "it was waited for");

        // Three come while the reader is busy.
        let busy_since = Instant::now();
        for _ in 0..3 {
            std::thread::sleep(RESOLUTION);
            send();
        }
        std::thread::sleep(RESOLUTION);
        assert_eq!((meter.sent(), meter.waiting()), (4, 3));
        meter.look();
        let looked_at = Instant::now();
        assert!(meter.take() <= busy_since && meter.take() <= busy_since);
        std::thread::sleep(RESOLUTION);
        send();
        meter.look();
        assert!(meter.take() <= busy_since, "the last of the three");
        let at = meter.take();
        assert!(at > busy_since && at <= looked_at, "sent after the first look");
        assert_eq!((meter.sent(), meter.waiting()), (5, 0));
        let before_take = Instant::now();
        send();
        assert!(meter.take() >= before_take);
    }

    #[test]
    fn a_loss_is_known_before_the_reader_learns_of_it_and_counts_once() {
        let (sender, mut receiver) = broadcast::channel(4);
        let meter = Meter::of_subscription(4, &receiver);
        let send = |count| (0..count).for_each(|_| _ = sender.send(RawValue::NULL.to_owned()));
        send(4);
        assert_eq!((meter.newly_lost(), meter.left()), (0, 4));
        send(3);
        assert_eq!((meter.newly_lost(), meter.newly_lost(), meter.left()), (3, 0, 4));
        send(2);
        let Err(TryRecvError::Lagged(count)) = receiver.try_recv() else { panic!("it overran") };
        meter.skip(count);
        assert_eq!((count, meter.newly_lost(), meter.left()), (5, 2, 4));
    }
}
