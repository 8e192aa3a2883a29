//! Replays a recording: delivers it to a sink at its recorded pace, in place of a node.
//!
//! Lock: `due` is held only while its value is copied, by the replay's thread before and after each
//! wait, and by [`Replay::next_row`].

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
#[non_exhaustive]
pub enum Speed {
    /// This many times as fast as it was recorded.
    Times(NonZeroU32),
    /// As fast as the sink accepts transactions.
    Max,
}

impl Speed {
    /// The speed at which it was recorded.
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

/// A text is not a [`Speed`].
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

/// How a [`Replay`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplayEnd {
    /// Why it ended.
    pub reason: ReplayEndReason,
    /// The final counts.
    pub counts: ReplayCounts,
    /// Whether its thread ended before the deadline. A thread that is stuck in the sink cannot be
    /// ended.
    pub ended: bool,
}

/// The longest pause between two rows that a replay keeps, in recorded time: longer than a restart
/// of a recorder takes. A longer pause means that the clock jumped or that no recorder ran; it is
/// cut to this.
pub const MAX_GAP: Duration = Duration::from_secs(3_600);

/// How far the recorded time may go back. The rows of a recorder have the order in which its pool
/// accepted them, and some were seen a little earlier than the row before them. A longer step back
/// means that the clock was set back; it takes no time.
pub const MAX_STEP_BACK: Duration = Duration::from_secs(60);

/// Delivers a recording to a sink, such as an `OrderPool`, from a thread of its own: one
/// transaction after the other, in the order of the recording. When it is dropped, it ends after
/// the transaction that it is delivering.
///
/// A pause between two rows is kept up to [`MAX_GAP`]. A longer one is cut, logged as a warning and
/// counted ([`ReplayCounts::cut_gaps`]). [`Self::next_row`] returns how long a pause still takes.
///
/// A transaction's first-seen time is the time of its delivery in the replay. Due transactions are
/// delivered at once, so a sink that blocks delays the rest but loses nothing.
#[derive(Debug)]
pub struct Replay {
    stop: SyncSender<()>,
    /// The channel is closed when the replay has ended.
    ended: Receiver<()>,
    end: Arc<OnceLock<Ended>>,
    started_at: Instant,
    counters: Arc<ReplayCounters>,
    /// When the next row is due, while the replay waits for it.
    due: Arc<Mutex<Option<Instant>>>,
}

#[derive(Clone, Copy, Debug)]
struct Ended {
    reason: ReplayEndReason,
    ended_at: Instant,
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
        let due = Arc::<Mutex<Option<Instant>>>::default();
        let end = Arc::<OnceLock<Ended>>::default();
        let (stop, stop_receiver) = mpsc::sync_channel(1);
        let (ended_sender, ended) = mpsc::sync_channel(0);
        let feed = sink.feed();
        let task = ReplayTask {
            recording,
            pace: Pace::new(speed),
            sink,
            stop: stop_receiver,
            counters: Arc::clone(&counters),
            due: Arc::clone(&due),
        };
        let thread_end = Arc::clone(&end);
        let run = move || {
            let reason = task.run();
            drop(feed);
            // It cannot be set already, because only this thread sets it.
            let _ = thread_end.set(Ended { reason, ended_at: Instant::now() });
            drop(ended_sender);
        };
        thread::Builder::new()
            .name("mempool-replay".into())
            .spawn(run)
            .map_err(ReplayError::Thread)?;
        Ok(Self { stop, ended, end, started_at: Instant::now(), counters, due })
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn counts(&self) -> ReplayCounts {
        self.counters.counts()
    }

    /// Returns why it ended; `None` while it runs.
    #[must_use]
    pub fn end_reason(&self) -> Option<ReplayEndReason> {
        self.end.get().map(|end| end.reason)
    }

    /// Returns the time from its start to its end, or to now.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        let until = self.end.get().map_or_else(Instant::now, |end| end.ended_at);
        until.saturating_duration_since(self.started_at)
    }

    /// Returns how long it takes until the next row is due; `None` while rows are due or after it
    /// has ended.
    #[must_use]
    pub fn next_row(&self) -> Option<Duration> {
        let due = *self.due.lock();
        due?.checked_duration_since(Instant::now())
    }

    /// Waits until it has ended by itself, for at most `timeout`. Returns `None` after the timeout.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> Option<ReplayEndReason> {
        // Nothing is ever sent: an error is the end or the timeout.
        let _ = self.ended.recv_timeout(timeout);
        self.end_reason()
    }

    /// Ends it after the transaction that it is delivering, and waits for that, for at most
    /// `deadline`.
    pub fn shutdown(self, deadline: Duration) -> ReplayEnd {
        // An error needs no handling. The channel is full if a stop was sent before, and closed if
        // the replay has ended.
        let _ = self.stop.try_send(());
        let reason = self.wait(deadline);
        ReplayEnd {
            reason: reason.unwrap_or(ReplayEndReason::Stopped),
            counts: self.counts(),
            ended: reason.is_some(),
        }
    }
}

/// What the thread of a replay owns.
struct ReplayTask<S> {
    recording: Recording,
    pace: Pace,
    sink: S,
    stop: Receiver<()>,
    counters: Arc<ReplayCounters>,
    due: Arc<Mutex<Option<Instant>>>,
}

impl<S: TransactionSink> ReplayTask<S> {
    fn run(mut self) -> ReplayEndReason {
        loop {
            let row = self.recording.next();
            self.counters.left_out.add(self.recording.left_out() - self.counters.left_out.get());
            let recorded = match row {
                None => return ReplayEndReason::Finished,
                Some(Ok(recorded)) => recorded,
                Some(Err(bad)) => {
                    self.count_bad_row(&bad);
                    // A file without a valid row must not delay a stop.
                    if !matches!(self.stop.try_recv(), Err(TryRecvError::Empty)) {
                        return ReplayEndReason::Stopped;
                    }
                    continue;
                }
            };
            let now = Instant::now();
            let Due { wait, jump } = self.pace.schedule(recorded.seen_at, now);
            if let Some(jump) = jump {
                self.counters.cut_gaps.add(1);
                tracing::warn!(
                    hash = %recorded.tx.inner().tx_hash(),
                    %jump,
                    "the recorded time jumps: the clock was set, or nothing was recorded"
                );
            }
            *self.due.lock() = now.checked_add(wait);
            let stopped = self.stop.recv_timeout(wait);
            *self.due.lock() = None;
            if !matches!(stopped, Err(RecvTimeoutError::Timeout)) {
                return ReplayEndReason::Stopped;
            }
            let transaction = FetchedTransaction::new(recorded.tx, recorded.raw);
            let delivery = block_on(self.sink.deliver(transaction));
            if delivery == Delivery::Closed {
                return ReplayEndReason::SinkClosed;
            }
            self.counters.count_delivery(&delivery);
        }
    }

    fn count_bad_row(&self, bad: &BadRow) {
        if matches!(bad, BadRow::Unreadable { .. }) {
            tracing::warn!(%bad, "a part of the recording is skipped");
        } else {
            tracing::debug!(%bad, "a row of the recording is skipped");
        }
        self.counters.count_bad_row(bad);
    }
}

/// Decides when a row is due. Pure.
struct Pace {
    speed: Speed,
    /// The first row. Both of its times move when a jump is cut.
    first_row: Option<FirstRow>,
    /// The latest recorded time of a row so far.
    latest: SystemTime,
}

#[derive(Clone, Copy)]
struct FirstRow {
    recorded_at: SystemTime,
    replayed_at: Instant,
}

/// When a row is due, and the jump of the recorded time that was cut for it.
#[derive(Debug, PartialEq, Eq)]
struct Due {
    wait: Duration,
    jump: Option<Jump>,
}

impl Due {
    /// The row is due now.
    const AT_ONCE: Self = Self { wait: Duration::ZERO, jump: None };
}

/// A step of the recorded time that a replay does not follow.
#[derive(Debug, PartialEq, Eq)]
enum Jump {
    /// A step ahead, which is cut to [`MAX_GAP`].
    Ahead(Duration),
    /// A step back, which takes no time.
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
        Self { speed, first_row: None, latest: SystemTime::UNIX_EPOCH }
    }

    /// Returns how long to wait before a row that was recorded at `seen_at` is delivered.
    fn schedule(&mut self, seen_at: SystemTime, now: Instant) -> Due {
        let Speed::Times(times) = self.speed else { return Due::AT_ONCE };
        let Some(FirstRow { recorded_at, replayed_at }) = self.first_row else {
            self.first_row = Some(FirstRow { recorded_at: seen_at, replayed_at: now });
            self.latest = seen_at;
            return Due::AT_ONCE;
        };
        let ahead = seen_at.duration_since(self.latest).unwrap_or_default();
        let back = self.latest.duration_since(seen_at).unwrap_or_default();
        let (recorded_at, jump) = if ahead > MAX_GAP {
            self.latest = seen_at;
            (recorded_at.checked_add(ahead.saturating_sub(MAX_GAP)), Some(Jump::Ahead(ahead)))
        } else if back > MAX_STEP_BACK {
            self.latest = seen_at;
            (recorded_at.checked_sub(back), Some(Jump::Back(back)))
        } else {
            self.latest = self.latest.max(seen_at);
            (Some(recorded_at), None)
        };
        // A time that cannot be represented is a jump too: the replay goes on from this row.
        let first_row = match recorded_at {
            Some(recorded_at) => FirstRow { recorded_at, replayed_at },
            None => FirstRow { recorded_at: seen_at, replayed_at: now },
        };
        self.first_row = Some(first_row);
        // A row that was seen before the first row is due at once.
        let offset =
            seen_at.duration_since(first_row.recorded_at).unwrap_or_default() / times.get();
        let elapsed = now.saturating_duration_since(first_row.replayed_at);
        Due { wait: offset.saturating_sub(elapsed), jump }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_due_after_its_share_of_the_recorded_time() {
        let (recorded, now) = (SystemTime::UNIX_EPOCH + Duration::from_secs(1_000), Instant::now());
        let secs = Duration::from_secs;
        let mut pace = Pace::new("10".parse().expect("a speed"));
        assert_eq!(pace.schedule(recorded, now).wait, Duration::ZERO);
        assert_eq!(pace.schedule(recorded + secs(20), now).wait, secs(2));
        assert_eq!(pace.schedule(recorded + secs(20), now + secs(3)).wait, Duration::ZERO);
        assert_eq!(pace.schedule(recorded - secs(20), now).wait, Duration::ZERO);
        let mut pace = Pace::new(Speed::Max);
        assert_eq!(pace.schedule(recorded, now).wait, Duration::ZERO);
        assert_eq!(pace.schedule(recorded + secs(20), now).wait, Duration::ZERO);
    }

    #[test]
    fn rows_after_a_jump_of_the_recorded_clock_keep_their_pace() {
        let secs = Duration::from_secs;
        let (recorded, now) = (SystemTime::UNIX_EPOCH + secs(1_000_000), Instant::now());
        let day = secs(86_400);
        let mut pace = Pace::new(Speed::RECORDED);
        assert_eq!(pace.schedule(recorded, now), Due::AT_ONCE);
        // A pause of an hour is kept.
        assert_eq!(pace.schedule(recorded + MAX_GAP, now), Due { wait: MAX_GAP, jump: None });
        // A pause of a day is cut.
        let jump = Some(Jump::Ahead(day));
        let ahead = recorded + MAX_GAP + day;
        assert_eq!(pace.schedule(ahead, now + MAX_GAP), Due { wait: MAX_GAP, jump });
        let now = now + MAX_GAP * 2;
        assert_eq!(pace.schedule(ahead + secs(3), now), Due { wait: secs(3), jump: None });
        // The clock is corrected. The rows of the following day do not come at once.
        let jump = Some(Jump::Back(day));
        let back = ahead + secs(3) - day;
        assert_eq!(pace.schedule(back, now + secs(3)), Due { wait: Duration::ZERO, jump });
        assert_eq!(pace.schedule(back + secs(2), now + secs(3)), Due { wait: secs(2), jump: None });
        // Rows slightly out of order are no jump.
        let early = back + secs(2) - MAX_STEP_BACK;
        assert_eq!(pace.schedule(early, now + secs(5)), Due::AT_ONCE);
        assert_eq!(pace.schedule(back + secs(7), now + secs(5)), Due { wait: secs(5), jump: None });
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
