//! Replays a recording in place of a node.

use std::{
    fmt,
    num::NonZeroU32,
    str::FromStr,
    sync::{
        Arc, OnceLock,
        mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TryRecvError},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use futures::executor::block_on;
use txpool_fetcher::{Delivery, FetchedTransaction, TransactionSink};

use crate::{
    error::ReplayError,
    metrics::{ReplayCounters, ReplayCounts},
    recording::Recording,
};

/// How fast a recording is replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speed {
    /// This many times as fast as it was recorded.
    Times(NonZeroU32),
    /// As fast as the sink accepts it.
    Max,
}

impl Speed {
    /// As it was recorded.
    pub const RECORDED: Self = Self::Times(NonZeroU32::MIN);
}

impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Times(times) => times.fmt(f),
            Self::Max => f.write_str("max"),
        }
    }
}

/// The text is not a [`Speed`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("speed {found:?} is neither a whole number from 1 nor max")]
pub struct SpeedError {
    /// The text.
    pub found: String,
}

impl FromStr for Speed {
    type Err = SpeedError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "max" {
            return Ok(Self::Max);
        }
        text.parse().map(Self::Times).map_err(|_| SpeedError { found: text.to_owned() })
    }
}

/// Why a [`Replay`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplayEndReason {
    /// The whole recording was delivered.
    Finished,
    /// It was stopped or dropped.
    Stopped,
    /// The sink accepts no more transactions.
    SinkClosed,
}

/// The end of a [`Replay`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplayEnd {
    /// Why it ended.
    pub reason: ReplayEndReason,
    /// The final counts.
    pub counts: ReplayCounts,
    /// Whether its thread ended before the deadline: one that is stuck in the sink cannot be freed.
    pub ended: bool,
}

/// Delivers a recording to a sink, such as an `OrderPool`, from a thread of its own: one
/// transaction after the other, in the order of the recording. When dropped, it ends after the
/// transaction that it is delivering.
///
/// Times are those of the replay: a transaction's first-seen time is when it is delivered. Due
/// transactions are delivered at once, so a sink that blocks delays the rest but loses nothing.
#[derive(Debug)]
pub struct Replay {
    stop: SyncSender<()>,
    /// Closed when it has ended.
    ended: Receiver<()>,
    end: Arc<OnceLock<(ReplayEndReason, Instant)>>,
    start: Instant,
    counters: Arc<ReplayCounters>,
}

impl Replay {
    /// Starts replaying.
    ///
    /// # Errors
    /// [`ReplayError::Thread`] if the thread cannot be started.
    pub fn start(
        recording: Recording,
        speed: Speed,
        sink: impl TransactionSink,
    ) -> Result<Self, ReplayError> {
        let counters = Arc::new(ReplayCounters::new());
        let (stop, stopped) = mpsc::sync_channel(1);
        let (ending, ended) = mpsc::sync_channel(0);
        let end = Arc::<OnceLock<_>>::default();
        let (counts, told) = (Arc::clone(&counters), Arc::clone(&end));
        let run = move || {
            let reason = run(recording, speed, &sink, &stopped, &counts);
            drop(sink);
            // Set only here.
            let _ = told.set((reason, Instant::now()));
            drop(ending);
        };
        let thread = thread::Builder::new().name("mempool-replay".into());
        thread.spawn(run).map_err(ReplayError::Thread)?;
        Ok(Self { stop, ended, end, start: Instant::now(), counters })
    }

    /// The counts so far.
    #[must_use]
    pub fn counts(&self) -> ReplayCounts {
        self.counters.counts()
    }

    /// Why it has ended; `None` while it runs.
    #[must_use]
    pub fn end_reason(&self) -> Option<ReplayEndReason> {
        self.end.get().map(|(reason, _)| *reason)
    }

    /// From its start to its end, or until now.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        let end = self.end.get().map_or_else(Instant::now, |(_, at)| *at);
        end.saturating_duration_since(self.start)
    }

    /// Waits until it has ended by itself, for at most `timeout`. `None` after the time-out.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> Option<ReplayEndReason> {
        // Nothing is ever sent.
        let _ = self.ended.recv_timeout(timeout);
        self.end_reason()
    }

    /// Ends it after the transaction that it is delivering, and waits for that for at most `deadline`.
    pub fn shutdown(self, deadline: Duration) -> ReplayEnd {
        // Full only if the stop was sent before, and closed only if the replay has ended.
        let _ = self.stop.try_send(());
        let reason = self.wait(deadline);
        ReplayEnd {
            reason: reason.unwrap_or(ReplayEndReason::Stopped),
            counts: self.counts(),
            ended: reason.is_some(),
        }
    }
}

fn run(
    mut recording: Recording,
    speed: Speed,
    sink: &impl TransactionSink,
    stop: &Receiver<()>,
    counters: &ReplayCounters,
) -> ReplayEndReason {
    let mut pace = Pace { speed, first: None };
    loop {
        let row = recording.next();
        counters.left_out.add(recording.left_out() - counters.left_out.get());
        let recorded = match row {
            None => return ReplayEndReason::Finished,
            Some(Ok(recorded)) => recorded,
            Some(Err(bad)) => {
                tracing::debug!(%bad, "a row of the recording yields no transaction");
                counters.bad(&bad);
                // Allows a stop in a file without a valid row.
                if !matches!(stop.try_recv(), Err(TryRecvError::Empty)) {
                    return ReplayEndReason::Stopped;
                }
                continue;
            }
        };
        let wait = pace.wait(recorded.seen_at, Instant::now());
        if !matches!(stop.recv_timeout(wait), Err(RecvTimeoutError::Timeout)) {
            return ReplayEndReason::Stopped;
        }
        let delivery = block_on(sink.deliver(FetchedTransaction::new(recorded.tx, recorded.raw)));
        if delivery == Delivery::Closed {
            return ReplayEndReason::SinkClosed;
        }
        counters.delivered(&delivery);
    }
}

/// When a row is due. Pure.
struct Pace {
    speed: Speed,
    /// The times of the first row, in the recording and in the replay.
    first: Option<(SystemTime, Instant)>,
}

impl Pace {
    fn wait(&mut self, seen_at: SystemTime, now: Instant) -> Duration {
        let Speed::Times(times) = self.speed else { return Duration::ZERO };
        let (first, start) = *self.first.get_or_insert((seen_at, now));
        // Rows that were seen before the first row are due at once.
        let after = seen_at.duration_since(first).unwrap_or_default() / times.get();
        after.saturating_sub(now.saturating_duration_since(start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_due_when_its_share_of_the_recorded_time_has_passed() {
        let (recorded, now) = (SystemTime::UNIX_EPOCH + Duration::from_secs(1_000), Instant::now());
        let secs = Duration::from_secs;
        let mut pace = Pace { speed: "10".parse().expect("a speed"), first: None };
        assert_eq!(pace.wait(recorded, now), Duration::ZERO);
        assert_eq!(pace.wait(recorded + secs(20), now), secs(2));
        assert_eq!(pace.wait(recorded + secs(20), now + secs(3)), Duration::ZERO);
        assert_eq!(pace.wait(recorded - secs(20), now), Duration::ZERO);
        let mut pace = Pace { speed: Speed::Max, first: None };
        assert_eq!(pace.wait(recorded, now), Duration::ZERO);
        assert_eq!(pace.wait(recorded + secs(20), now), Duration::ZERO);
    }

    #[test]
    fn a_speed_is_a_whole_number_from_1_or_max() {
        assert_eq!("1".parse(), Ok(Speed::RECORDED));
        assert_eq!("max".parse(), Ok(Speed::Max));
        for text in ["0", "-1", "1.5", "Max", ""] {
            assert_eq!(text.parse::<Speed>(), Err(SpeedError { found: text.into() }));
        }
    }
}
