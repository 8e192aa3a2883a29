//! Counts the notifications of a subscription: how many were read from the socket, how many wait
//! and since when, and how many were lost.
//!
//! # Locks
//! | lock | taken by | for how long |
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

/// The precision of the time at which a notification was read.
const RESOLUTION: Duration = Duration::from_millis(1);

/// Measures the broadcast buffer of one subscription.
///
/// The receiver of a broadcast channel does not say how many messages were sent, nor when. The
/// length of a second receiver that never receives is the number of messages sent, and samples of
/// it at several times bound the time of each message. The second receiver keeps no message in
/// memory for longer than alloy's own first receiver does.
pub(crate) struct Meter {
    state: Mutex<State>,
}

struct State {
    /// Returns the number of notifications sent to the buffer.
    sent: Box<dyn Fn() -> u64 + Send>,
    /// The number of notifications that the reader took out, or knows to be lost.
    taken: u64,
    /// The capacity of the buffer.
    capacity: u64,
    /// The number of notifications that the reader knows to be lost.
    skipped: u64,
    /// The number of losses that were counted, known to the reader or not.
    lost: u64,
    /// The number sent at several times, in ascending order. Of the samples before the latest
    /// notification taken, only the last one is kept.
    samples: VecDeque<(u64, Instant)>,
    sampled_at: Instant,
}

impl Meter {
    /// Makes a meter. `sent` returns the number of notifications sent to the buffer.
    pub(crate) fn new(capacity: usize, sent: impl Fn() -> u64 + Send + 'static) -> Self {
        let now = Instant::now();
        let state = State {
            sent: Box::new(sent),
            taken: 0,
            // tokio rounds the capacity up.
            capacity: capacity.next_power_of_two() as u64,
            skipped: 0,
            lost: 0,
            samples: VecDeque::from([(0, now)]),
            sampled_at: now,
        };
        Self { state: state.into() }
    }

    /// Makes a meter for a subscription whose `receiver` has not taken any notification yet.
    pub(super) fn for_subscription(
        capacity: usize,
        receiver: &broadcast::Receiver<Box<RawValue>>,
    ) -> Self {
        let (sent_before, observer) = (receiver.len() as u64, receiver.resubscribe());
        Self::new(capacity, move || sent_before + observer.len() as u64)
    }

    /// Returns the number of notifications that were read from the socket.
    pub(crate) fn sent(&self) -> u64 {
        (lock(&self.state).sent)()
    }

    /// Returns the number of these that wait in the buffer, or were lost there without the reader's
    /// knowledge.
    pub(crate) fn waiting(&self) -> u64 {
        let state = lock(&self.state);
        (state.sent)().saturating_sub(state.taken)
    }

    /// Takes a sample of the number of notifications sent until now.
    pub(super) fn sample(&self) {
        let mut state = lock(&self.state);
        let (sent, now) = ((state.sent)(), Instant::now());
        let is_due = now.duration_since(state.sampled_at) >= RESOLUTION;
        if is_due && state.samples.back().is_some_and(|(before, _)| *before < sent) {
            state.samples.push_back((sent, now));
        }
        state.sampled_at = now;
    }

    /// Counts a notification that was taken out of the buffer. Returns when it was read from the
    /// socket: now, or, if it has waited, the latest sampled time at which it was not there yet.
    pub(super) fn take(&self) -> Instant {
        let mut state = lock(&self.state);
        state.taken += 1;
        let taken = state.taken;
        while state.samples.get(1).is_some_and(|(sent, _)| *sent < taken) {
            state.samples.pop_front();
        }
        // The notification was there at the second sample, and not yet at the first one.
        let has_waited = state.samples.get(1).is_some();
        match state.samples.front() {
            Some((_, before)) if has_waited => *before,
            _ => Instant::now(),
        }
    }

    /// Counts a notification that was taken out of the buffer and whose time does not matter.
    pub(crate) fn count_taken(&self) {
        lock(&self.state).taken += 1;
    }

    /// Counts notifications that the buffer has lost, when the reader learns of it.
    pub(crate) fn skip(&self, count: u64) {
        let mut state = lock(&self.state);
        state.taken += count;
        state.skipped += count;
    }

    /// Returns the number of notifications that the buffer has lost since the previous call. Losses
    /// are known at once, while a reader that waits for a slot learns of them only at its next
    /// read.
    pub(crate) fn newly_lost(&self) -> u64 {
        let mut state = lock(&self.state);
        let overrun = (state.sent)().saturating_sub(state.taken).saturating_sub(state.capacity);
        let lost = (state.skipped + overrun).max(state.lost);
        lost - std::mem::replace(&mut state.lost, lost)
    }

    /// Returns the number of notifications that wait in the buffer and are not lost.
    pub(crate) fn left(&self) -> u64 {
        self.waiting().min(lock(&self.state).capacity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::broadcast::error::TryRecvError;

    #[test]
    fn a_notification_that_waited_has_a_time_before_it_was_sent() {
        let (sender, receiver) = broadcast::channel(16);
        let meter = Meter::for_subscription(16, &receiver);
        let send = || sender.send(RawValue::NULL.to_owned()).unwrap();
        send();
        let before_take = Instant::now();
        assert!(meter.take() >= before_take, "it did not wait");

        // Three come while the reader is busy.
        let busy_since = Instant::now();
        for _ in 0..3 {
            std::thread::sleep(RESOLUTION);
            send();
        }
        std::thread::sleep(RESOLUTION);
        assert_eq!((meter.sent(), meter.waiting()), (4, 3));
        meter.sample();
        let sampled_at = Instant::now();
        assert!(meter.take() <= busy_since && meter.take() <= busy_since);
        std::thread::sleep(RESOLUTION);
        send();
        meter.sample();
        assert!(meter.take() <= busy_since, "the last of the three");
        let read_at = meter.take();
        assert!(read_at > busy_since && read_at <= sampled_at, "sent after the first sample");
        assert_eq!((meter.sent(), meter.waiting()), (5, 0));
        let before_take = Instant::now();
        send();
        assert!(meter.take() >= before_take);
    }

    #[test]
    fn a_loss_is_known_before_its_reader_learns_of_it() {
        let (sender, mut receiver) = broadcast::channel(4);
        let meter = Meter::for_subscription(4, &receiver);
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
