//! Runs the pool's upkeep from a thread of its own, in bounded steps with pauses between them.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError, SyncSender},
    },
    thread,
    time::Duration,
};

use crate::{
    error::StartError,
    pool::{OrderPool, STEP_PAUSE},
};

/// The pause between two rounds, while nothing is due. At 2,000 transactions/s, 500 orders expire
/// in a quarter of a second, which takes two steps.
const INTERVAL: Duration = Duration::from_millis(250);

/// The most by which each pause is lengthened at random, as a part of it. Processes that were
/// started together are spread over a fifth of the interval within one round.
const JITTER: f64 = 0.2;

/// The shortest pause between two steps while the load is high. Steps of 256 transactions then
/// process at most 25,600 a second, well above the 2,000 a second that expire. Each step also
/// removes up to 64 expired or invalid bundles: some 3,000 a second, so 20,000, the default cap,
/// within seven seconds.
const LOADED_PAUSE: Duration = Duration::from_millis(10);

/// The pace of upkeep.
///
/// Make one with [`Self::default`] and then set its fields: the struct gets more fields in
/// later versions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct UpkeepConfig {
    /// The pause between two steps of a round, lengthened at random by up to a fifth. Default zero;
    /// at least 50 us are used. Inserts run during the pause. With a longer one they wait less, and
    /// expired orders stay a little longer; the caps still hold.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub pause: Duration,
}

/// Why upkeep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UpkeepEndReason {
    /// The host shut it down.
    Shutdown,
    /// The last handle of the pool was dropped.
    PoolDropped,
    /// It panicked, which is a defect of this crate. From then on nothing expired.
    Panicked,
}

/// The end of an [`Upkeep`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UpkeepEnd {
    /// Why it ended.
    pub reason: UpkeepEndReason,
    /// Whether its thread has ended.
    pub ended: bool,
}

/// A running upkeep. Dropping it asks its thread to end, and does not wait.
#[derive(Debug)]
#[must_use = "dropping it ends the upkeep"]
pub struct Upkeep {
    /// Nothing is ever sent: the thread ends when this sender is dropped.
    stop: SyncSender<Infallible>,
    end: Receiver<UpkeepEndReason>,
}

impl Upkeep {
    /// Starts the thread. It ends by itself after the last handle of the pool is dropped: within
    /// 0.3 s, or within the configured pause and a fifth of it.
    ///
    /// While `is_under_load` returns true, the thread pauses for at least 10 ms between two steps.
    /// `is_under_load` is called after each step, and must not block.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(
        pool: &OrderPool,
        config: UpkeepConfig,
        is_under_load: impl Fn() -> bool + Send + 'static,
    ) -> Result<Self, StartError> {
        // The upkeep must not keep the pool alive.
        let pool = Arc::downgrade(&pool.shared);
        let (stop, stopped) = mpsc::sync_channel(1);
        let (ended, end) = mpsc::sync_channel(1);
        let run = move || {
            let reason = loop {
                let Some(is_more_due) = pool.upgrade().map(|pool| pool.upkeep()) else {
                    break UpkeepEndReason::PoolDropped;
                };
                let pause = if !is_more_due {
                    INTERVAL
                } else if is_under_load() {
                    config.pause.max(LOADED_PAUSE)
                } else {
                    config.pause.max(STEP_PAUSE)
                };
                let pause = with_jitter(pause, rand::random());
                if stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                    break UpkeepEndReason::Shutdown;
                }
            };
            // The receiver may be gone: then nobody waits for the end.
            let _ = ended.send(reason);
        };
        thread::Builder::new().name("order-pool-upkeep".into()).spawn(run)?;
        Ok(Self { stop, end })
    }

    /// Ends the upkeep, and waits for its thread for at most `deadline`. A step takes less than a
    /// millisecond, or some ten milliseconds while bundles are removed.
    pub fn shutdown(self, deadline: Duration) -> UpkeepEnd {
        drop(self.stop);
        let (reason, ended) = match self.end.recv_timeout(deadline) {
            Ok(reason) => (reason, true),
            Err(RecvTimeoutError::Disconnected) => (UpkeepEndReason::Panicked, true),
            Err(RecvTimeoutError::Timeout) => (UpkeepEndReason::Shutdown, false),
        };
        UpkeepEnd { reason, ended }
    }
}

/// Lengthens a pause by a fraction, 0 to 1, of the jitter.
fn with_jitter(pause: Duration, fraction: f64) -> Duration {
    let seconds = pause.as_secs_f64() * (1.0 + JITTER * fraction);
    // Only a pause of centuries exceeds the range of `Duration`.
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX).max(pause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_lengthens_a_pause_by_at_most_a_fifth() {
        let pauses = [0.0, 0.5, 1.0].map(|part| with_jitter(INTERVAL, part).as_millis());
        assert_eq!(pauses, [250, 275, 300]);
        assert_eq!(with_jitter(Duration::MAX, 1.0), Duration::MAX);
    }
}
