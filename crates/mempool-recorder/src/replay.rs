//! Replays a recording in place of a node.
//!
//! The lock of `due` is held for a copy: by the replay's thread before and after each wait, and by [`Replay::next_row`].

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
use parking_lot::Mutex;
use txpool_fetcher::{Delivery, FetchedTransaction, TransactionSink};

use crate::{
    error::{BadRow, ReplayError},
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

/// The longest pause between two rows that a replay keeps, in recorded time: an hour, more than a restart of a recorder
/// takes. A longer one is a clock that jumped, or a recorder that did not run; it is cut to this.
pub const MAX_GAP: Duration = Duration::from_secs(3_600);

/// How far the recorded time may go back: the rows of a recorder are in the order in which its pool accepted them, and some
/// were seen a little before the row in front of them. A longer step is a clock that was set back, and takes no time.
pub const MAX_STEP_BACK: Duration = Duration::from_secs(60);

/// Delivers a recording to a sink, such as an `OrderPool`, from a thread of its own: one
/// transaction after the other, in the order of the recording. When dropped, it ends after the
/// transaction that it is delivering.
///
/// A pause between two rows is kept up to [`MAX_GAP`]; a longer one is cut, logged as a warning and counted
/// ([`ReplayCounts::cut_gaps`]). [`Self::next_row`] tells how long a pause still takes.
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
    due: Arc<Mutex<Option<Instant>>>,
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
        let due = Arc::<Mutex<Option<Instant>>>::default();
        let (counts, reported) = (Arc::clone(&counters), Arc::clone(&end));
        let next = Arc::clone(&due);
        let run = move || {
            let reason = run(recording, speed, &sink, &stopped, &counts, &next);
            drop(sink);
            // Set only here.
            let _ = reported.set((reason, Instant::now()));
            drop(ending);
        };
        let thread = thread::Builder::new().name("mempool-replay".into());
        thread.spawn(run).map_err(ReplayError::Thread)?;
        Ok(Self { stop, ended, end, start: Instant::now(), counters, due })
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

    /// How long it takes until the next row is due; `None` while rows are due or when it has ended.
    #[must_use]
    pub fn next_row(&self) -> Option<Duration> {
        let due = *self.due.lock();
        due?.checked_duration_since(Instant::now())
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
    due: &Mutex<Option<Instant>>,
) -> ReplayEndReason {
    let mut pace = Pace::new(speed);
    loop {
        let row = recording.next();
        counters.left_out.add(recording.left_out() - counters.left_out.get());
        let recorded = match row {
            None => return ReplayEndReason::Finished,
            Some(Ok(recorded)) => recorded,
            Some(Err(bad)) => {
                if matches!(bad, BadRow::Unreadable { .. }) {
                    tracing::warn!(%bad, "a part of the recording is skipped");
                } else {
                    tracing::debug!(%bad, "a row of the recording yields no transaction");
                }
                counters.bad(&bad);
                // Allows a stop in a file without a valid row.
                if !matches!(stop.try_recv(), Err(TryRecvError::Empty)) {
                    return ReplayEndReason::Stopped;
                }
                continue;
            }
        };
        let now = Instant::now();
        let Due { wait, cut } = pace.wait(recorded.seen_at, now);
        if let Some(cut) = cut {
            counters.cut_gaps.add(1);
            tracing::warn!(
                hash = %recorded.tx.inner().tx_hash(),
                %cut,
                "the recorded time jumps: the clock was set, or nothing was recorded"
            );
        }
        *due.lock() = now.checked_add(wait);
        let stopped = stop.recv_timeout(wait);
        *due.lock() = None;
        if !matches!(stopped, Err(RecvTimeoutError::Timeout)) {
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
    /// The times of the first row, in the recording and in the replay; both moved when a jump is cut.
    first: Option<(SystemTime, Instant)>,
    /// The latest time of a row so far.
    latest: SystemTime,
}

/// When a row is due, and which jump was cut for that.
#[derive(Debug, PartialEq, Eq)]
struct Due {
    wait: Duration,
    cut: Option<Jump>,
}

/// A step of the recorded time that a replay does not follow.
#[derive(Debug, PartialEq, Eq)]
enum Jump {
    /// Cut to [`MAX_GAP`].
    Ahead(Duration),
    /// Takes no time.
    Back(Duration),
}

impl fmt::Display for Jump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ahead(step) => {
                write!(f, "{} s ahead, cut to {} s", step.as_secs(), MAX_GAP.as_secs())
            }
            Self::Back(step) => write!(f, "{} s back, which takes no time", step.as_secs()),
        }
    }
}

impl Pace {
    const fn new(speed: Speed) -> Self {
        Self { speed, first: None, latest: SystemTime::UNIX_EPOCH }
    }

    fn wait(&mut self, seen_at: SystemTime, now: Instant) -> Due {
        let Speed::Times(times) = self.speed else {
            return Due { wait: Duration::ZERO, cut: None };
        };
        let Some((first, start)) = self.first else {
            (self.first, self.latest) = (Some((seen_at, now)), seen_at);
            return Due { wait: Duration::ZERO, cut: None };
        };
        let ahead = seen_at.duration_since(self.latest).unwrap_or_default();
        let back = self.latest.duration_since(seen_at).unwrap_or_default();
        let (first, cut) = if ahead > MAX_GAP {
            self.latest = seen_at;
            (first.checked_add(ahead.saturating_sub(MAX_GAP)), Some(Jump::Ahead(ahead)))
        } else if back > MAX_STEP_BACK {
            self.latest = seen_at;
            (first.checked_sub(back), Some(Jump::Back(back)))
        } else {
            self.latest = self.latest.max(seen_at);
            (Some(first), None)
        };
        // A time that cannot be expressed is a jump too: the replay goes on from this row.
        let (first, start) = first.map_or((seen_at, now), |first| (first, start));
        self.first = Some((first, start));
        // Rows that were seen before the first row are due at once.
        let after = seen_at.duration_since(first).unwrap_or_default() / times.get();
        Due { wait: after.saturating_sub(now.saturating_duration_since(start)), cut }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_due_when_its_share_of_the_recorded_time_has_passed() {
        let (recorded, now) = (SystemTime::UNIX_EPOCH + Duration::from_secs(1_000), Instant::now());
        let secs = Duration::from_secs;
        let mut pace = Pace::new("10".parse().expect("a speed"));
        assert_eq!(pace.wait(recorded, now).wait, Duration::ZERO);
        assert_eq!(pace.wait(recorded + secs(20), now).wait, secs(2));
        assert_eq!(pace.wait(recorded + secs(20), now + secs(3)).wait, Duration::ZERO);
        assert_eq!(pace.wait(recorded - secs(20), now).wait, Duration::ZERO);
        let mut pace = Pace::new(Speed::Max);
        assert_eq!(pace.wait(recorded, now).wait, Duration::ZERO);
        assert_eq!(pace.wait(recorded + secs(20), now).wait, Duration::ZERO);
    }

    #[test]
    fn a_jump_of_the_recorded_clock_is_cut_and_the_rows_after_it_keep_their_pace() {
        let secs = Duration::from_secs;
        let (recorded, now) = (SystemTime::UNIX_EPOCH + secs(1_000_000), Instant::now());
        let day = secs(86_400);
        let mut pace = Pace::new(Speed::RECORDED);
        assert_eq!(pace.wait(recorded, now), Due { wait: Duration::ZERO, cut: None });
        // A pause of an hour is kept.
        assert_eq!(pace.wait(recorded + MAX_GAP, now), Due { wait: MAX_GAP, cut: None });
        // A day is not.
        let cut = Some(Jump::Ahead(day));
        let ahead = recorded + MAX_GAP + day;
        assert_eq!(pace.wait(ahead, now + MAX_GAP), Due { wait: MAX_GAP, cut });
        let now = now + MAX_GAP * 2;
        assert_eq!(pace.wait(ahead + secs(3), now), Due { wait: secs(3), cut: None });
        // The clock is set right again: rows do not come at once for a day.
        let cut = Some(Jump::Back(day));
        let back = ahead + secs(3) - day;
        assert_eq!(pace.wait(back, now + secs(3)), Due { wait: Duration::ZERO, cut });
        assert_eq!(pace.wait(back + secs(2), now + secs(3)), Due { wait: secs(2), cut: None });
        // Rows that are a little out of order are no jump.
        let early = back + secs(2) - MAX_STEP_BACK;
        assert_eq!(pace.wait(early, now + secs(5)), Due { wait: Duration::ZERO, cut: None });
        assert_eq!(pace.wait(back + secs(7), now + secs(5)), Due { wait: secs(5), cut: None });
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
