//! The thread that runs the pool's upkeep, in bounded steps with pauses between them.

use std::{
    convert::Infallible,
    io,
    sync::mpsc::{self, RecvTimeoutError, SyncSender},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use load_control::Throttle;

use crate::{error::ConfigError, pool::OrderPool};

/// Default of [`UpkeepConfig::interval`]: at 2,000 transactions/s, 500 orders expire in a quarter
/// of a second, which are two steps.
pub const DEFAULT_UPKEEP_INTERVAL: Duration = Duration::from_millis(250);

/// Default of [`UpkeepConfig::jitter_percent`]: processes that were started together are spread
/// over a fifth of the interval within one round.
pub const DEFAULT_UPKEEP_JITTER_PERCENT: u8 = 20;

/// The shortest pause between two steps while the load is high: steps of 256 orders then process at
/// most 25,600 a second, well above what expires at 2,000 transactions/s.
pub const PRESSED_PAUSE: Duration = Duration::from_millis(10);

/// The pace of upkeep.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UpkeepConfig {
    /// Pause between two rounds, while nothing is due. Default [`DEFAULT_UPKEEP_INTERVAL`]; above
    /// zero.
    pub interval: Duration,
    /// Pause between two steps of a round. Default zero: inserts run between steps in any case. A
    /// longer pause leaves them more time; expired orders then stay a little longer, and the caps
    /// still hold.
    pub pause: Duration,
    /// The most by which each interval and pause is lengthened at random, in percent. Default
    /// [`DEFAULT_UPKEEP_JITTER_PERCENT`]; at most 100.
    pub jitter_percent: u8,
}

impl Default for UpkeepConfig {
    fn default() -> Self {
        Self {
            interval: DEFAULT_UPKEEP_INTERVAL,
            pause: Duration::ZERO,
            jitter_percent: DEFAULT_UPKEEP_JITTER_PERCENT,
        }
    }
}

impl UpkeepConfig {
    /// Sets [`Self::interval`].
    #[must_use]
    pub const fn with_interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// Sets [`Self::pause`].
    #[must_use]
    pub const fn with_pause(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// Sets [`Self::jitter_percent`].
    #[must_use]
    pub const fn with_jitter_percent(mut self, jitter_percent: u8) -> Self {
        self.jitter_percent = jitter_percent;
        self
    }

    /// Checks every field.
    ///
    /// # Errors
    /// Names the first field that is out of bounds.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.interval.is_zero() {
            return Err(ConfigError::ZeroDuration { field: "interval" });
        }
        if self.jitter_percent > 100 {
            let value = usize::from(self.jitter_percent);
            return Err(ConfigError::TooLarge { field: "jitter_percent", value, most: 100 });
        }
        Ok(())
    }
}

/// A running upkeep. Dropping it asks the thread to end and does not wait.
#[derive(Debug)]
#[must_use = "dropping it ends the upkeep"]
pub struct Upkeep {
    /// Nothing is ever sent: the thread ends when this sender is dropped.
    stop: SyncSender<Infallible>,
    thread: JoinHandle<()>,
}

impl Upkeep {
    /// Starts the thread. It ends by itself within an interval after the last handle of the pool is
    /// dropped.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] with a [`ConfigError`], or the system's error if the thread
    /// cannot be started.
    pub fn start(pool: &OrderPool, config: UpkeepConfig) -> io::Result<Self> {
        Self::start_yielding(pool, config, || false)
    }

    /// As [`Self::start`]. While `pressed` returns true (the load is high) it pauses for at least
    /// [`PRESSED_PAUSE`] between two steps. `pressed` is called after each step, and must not
    /// block.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_yielding(
        pool: &OrderPool,
        config: UpkeepConfig,
        pressed: impl Fn() -> bool + Send + 'static,
    ) -> io::Result<Self> {
        config.validate().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        // Not a handle of the pool, which the upkeep must not keep alive.
        let shared = std::sync::Arc::clone(pool.shared());
        let (stop, stopped) = mpsc::sync_channel(1);
        let [interval, pause, pressed_pause] =
            [config.interval, config.pause, config.pause.max(PRESSED_PAUSE)]
                .map(|pause| Throttle::new(pause, config.jitter_percent));
        let thread = thread::Builder::new().name("order-pool-upkeep".into()).spawn(move || {
            loop {
                let throttle = match shared.upkeep() {
                    true if pressed() => &pressed_pause,
                    true => &pause,
                    false => &interval,
                };
                match stopped.recv_timeout(throttle.next_pause()) {
                    Err(RecvTimeoutError::Timeout) if !shared.bell.is_closed() => {}
                    _ => break,
                }
            }
        })?;
        Ok(Self { stop, thread })
    }

    /// Ends the upkeep and waits for its thread, for at most `timeout`; a step takes less than a
    /// millisecond. Returns whether the thread has ended.
    pub fn stop(self, timeout: Duration) -> bool {
        let Self { stop, thread } = self;
        drop(stop);
        let deadline = Instant::now() + timeout;
        while !thread.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        thread.is_finished() && thread.join().is_ok()
    }
}
