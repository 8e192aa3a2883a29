//! Decides whether the load is high: the states of all queues, with hysteresis, in one atomic word.

use std::sync::{
    Arc,
    atomic::Ordering::{Relaxed, SeqCst},
};

use crate::{
    config::MonitorConfig,
    error::ConfigError,
    metrics::MonitorMetrics,
    state::LoadState,
    sync::{AtomicU64, AtomicUsize, fence},
};
#[cfg(feature = "tokio")]
use std::time::{Duration, Instant};

/// The most queues that one [`LoadMonitor`] watches: each takes two bits of its word, and one bit
/// of a second word marks which are in use.
pub const MAX_QUEUES: usize = 31;

/// The bit of the kill switch, above the bits of the queues. The load is high if the word is in
/// `1..OFF`.
const OFF: u64 = 1 << 63;

/// How often [`LoadMonitor::wait_until_normal`] polls.
#[cfg(feature = "tokio")]
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Monitors how full queues are. Cloning gives another handle to the same monitor.
///
/// The owner of a queue reports its depth when an item enters or leaves. The state of a queue rises
/// and falls by the thresholds of [`MonitorConfig`]:
///
/// | from | to | when the queue is |
/// |---|---|---|
/// | normal | elevated | at least 75 % full |
/// | normal, elevated | critical | at least 90 % full |
/// | critical | elevated | below 70 % |
/// | elevated, critical | normal | below 50 % |
///
/// No lock is taken anywhere. An observation that changes nothing costs two loads and a comparison.
#[derive(Clone, Debug)]
pub struct LoadMonitor {
    shared: Arc<MonitorShared>,
}

#[derive(Debug)]
struct MonitorShared {
    /// Two bits for each queue, its [`LoadState`]; the highest bit is [`OFF`]. All states are in
    /// this one word, so no thread can see some of them changed and others not.
    word: AtomicU64,
    /// The pairs of bits that are in use.
    taken: AtomicU64,
    config: MonitorConfig,
    metrics: MonitorMetrics,
}

impl LoadMonitor {
    /// Makes a monitor without queues; its state is normal.
    ///
    /// # Errors
    /// If the thresholds are out of bounds or order: see [`MonitorConfig::validate`].
    pub fn new(config: MonitorConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        let word = AtomicU64::new(if config.enabled { 0 } else { OFF });
        let metrics = MonitorMetrics::new();
        let shared = MonitorShared { word, taken: AtomicU64::new(0), config, metrics };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Watches one more queue, until the last clone of the [`QueueLoad`] is dropped.
    ///
    /// # Errors
    /// [`ConfigError::ZeroCapacity`]; [`ConfigError::TooManyQueues`] beyond [`MAX_QUEUES`].
    pub fn watch(&self, queue: &'static str, capacity: usize) -> Result<QueueLoad, ConfigError> {
        if capacity == 0 {
            return Err(ConfigError::ZeroCapacity { queue });
        }
        // SeqCst, as for the word: queues are added rarely, so a weaker ordering would gain
        // nothing.
        let taken = self.shared.taken.fetch_update(SeqCst, SeqCst, with_lowest_free_slot);
        let Ok(taken) = taken else {
            return Err(ConfigError::TooManyQueues { queue, limit: MAX_QUEUES });
        };
        let slot = taken.trailing_ones();
        let depth = AtomicUsize::new(0);
        let watched = Watched { monitor: self.clone(), shift: slot * 2, capacity, depth };
        Ok(QueueLoad { watched: Arc::new(watched) })
    }

    /// Whether the load is high, so that deferrable work should wait. It costs one relaxed load,
    /// for hot paths.
    pub fn is_pressed(&self) -> bool {
        // Relaxed: nothing else depends on it, and a decision may be a few nanoseconds old.
        (1..OFF).contains(&self.shared.word.load(Relaxed))
    }

    /// Waits while the load is high, at most until `deadline`; `None` is no limit. Returns whether
    /// the load is normal.
    ///
    /// It polls the load every 5 ms: the monitor wakes no waiter, because its observations are on
    /// hot paths.
    ///
    /// # Cancel safety
    /// It holds nothing.
    ///
    /// # Panics
    /// Outside a tokio runtime with its timer enabled, if it has to wait.
    #[cfg(feature = "tokio")]
    pub async fn wait_until_normal(&self, deadline: Option<Instant>) -> bool {
        while self.is_pressed() {
            let now = Instant::now();
            let left = deadline.map_or(POLL_INTERVAL, |end| end.saturating_duration_since(now));
            if left.is_zero() {
                return false;
            }
            tokio::time::sleep(left.min(POLL_INTERVAL)).await;
        }
        true
    }

    /// The worst state of the watched queues; always normal while switched off.
    pub fn state(&self) -> LoadState {
        state_of(self.shared.word.load(Relaxed))
    }

    /// The kill switch: while off, the state is normal whatever the queues report. They are still
    /// tracked, so that the state is right as soon as it is switched on.
    pub fn set_enabled(&self, enabled: bool) {
        let before = if enabled {
            self.shared.word.fetch_and(!OFF, SeqCst)
        } else {
            self.shared.word.fetch_or(OFF, SeqCst)
        };
        let after = if enabled { before & !OFF } else { before | OFF };
        self.shared.changed(before, after);
    }

    /// How often the state changed from `previous` to `next`, including by the kill switch.
    pub fn transitions(&self, previous: LoadState, next: LoadState) -> u64 {
        self.shared.metrics.transitions[previous as usize][next as usize].get()
    }
}

impl MonitorShared {
    /// Reports a change of the word, if it changes the state of the monitor.
    fn changed(&self, before: u64, after: u64) {
        let (previous, next) = (state_of(before), state_of(after));
        if previous != next {
            self.metrics.transitions[previous as usize][next as usize].add(1);
            // The gauge is changed by the difference, so that its final value does not depend on
            // the order of two threads.
            self.metrics.state.increment(f64::from(next as u8) - f64::from(previous as u8));
            tracing::debug!(from = previous.as_str(), to = next.as_str(), "load changed");
        }
    }
}

/// Marks the lowest slot that is not taken; `None` if all slots are taken.
fn with_lowest_free_slot(taken: u64) -> Option<u64> {
    let slot = taken.trailing_ones();
    ((slot as usize) < MAX_QUEUES).then(|| taken | 1 << slot)
}

/// The worst state of the queues in a word; normal while switched off.
fn state_of(word: u64) -> LoadState {
    // The bit that is set while a queue is critical, of each pair of bits.
    const CRITICAL: u64 = 0x2aaa_aaaa_aaaa_aaaa;
    match word {
        0 | OFF.. => LoadState::Normal,
        word if word & CRITICAL != 0 => LoadState::Critical,
        _ => LoadState::Elevated,
    }
}

/// A queue that is watched by a monitor. Cloning gives another handle to the same queue.
///
/// If several threads fill and drain the queue, report with [`Self::added`] and [`Self::removed`],
/// which count the depth. If the queue knows its length, report with [`Self::observe`]. Do not mix
/// them.
///
/// When the last clone is dropped, the queue is no longer watched.
#[derive(Clone, Debug)]
pub struct QueueLoad {
    watched: Arc<Watched>,
}

#[derive(Debug)]
struct Watched {
    monitor: LoadMonitor,
    /// The position of the queue's two bits in the word.
    shift: u32,
    capacity: usize,
    depth: AtomicUsize,
}

impl QueueLoad {
    /// Reports that `items` items entered.
    pub fn added(&self, items: usize) {
        self.watched.depth.fetch_add(items, Relaxed);
        self.watched.settle();
    }

    /// Reports that `items` items left. The depth does not go below zero.
    pub fn removed(&self, items: usize) {
        let lower = |depth: usize| Some(depth.saturating_sub(items));
        // This is never an error, because the closure always returns a value.
        let _ = self.watched.depth.fetch_update(Relaxed, Relaxed, lower);
        self.watched.settle();
    }

    /// Reports the current number of items. If two threads report at the same time, either number
    /// may remain.
    pub fn observe(&self, depth: usize) {
        self.watched.depth.store(depth, Relaxed);
        self.watched.settle();
    }

    /// The depth that was reported last.
    pub fn depth(&self) -> usize {
        self.watched.depth.load(Relaxed)
    }

    /// The state of this queue alone, even while the monitor is switched off.
    pub fn state(&self) -> LoadState {
        level_at(self.watched.monitor.shared.word.load(Relaxed), self.watched.shift)
    }
}

impl Watched {
    /// Updates the two bits of the queue to match its depth.
    ///
    /// Two threads may change the depth at once; each then reads depth and word. The fence between
    /// a thread's own write and its reads makes sure that at least one of them sees both writes (it
    /// forbids store buffering), and in the loop the thread that wrote the word reads the depth
    /// once more. So when all threads have returned, the word matches the depth; `loom` checks
    /// every interleaving.
    fn settle(&self) {
        let shared = &self.monitor.shared;
        loop {
            fence(SeqCst);
            let word = shared.word.load(Relaxed);
            let level = level_at(word, self.shift);
            let next = next(&shared.config, level, self.depth.load(Relaxed), self.capacity);
            if next == level {
                return;
            }
            let changed = word & !(0b11 << self.shift) | (next as u64) << self.shift;
            // If this fails, another thread has changed the word, and the loop reads it again.
            if shared.word.compare_exchange(word, changed, Relaxed, Relaxed).is_ok() {
                shared.changed(word, changed);
            }
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let shared = &self.monitor.shared;
        let bits = 0b11 << self.shift;
        // The bits are cleared before their position is released. Both operations are SeqCst, so
        // the queue that takes the position sees them in this order.
        let before = shared.word.fetch_and(!bits, SeqCst);
        shared.changed(before, before & !bits);
        shared.taken.fetch_and(!(1 << (self.shift / 2)), SeqCst);
    }
}

/// The state of the queue whose two bits are at `shift`.
fn level_at(word: u64, shift: u32) -> LoadState {
    match word >> shift & 0b11 {
        0 => LoadState::Normal,
        1 => LoadState::Elevated,
        _ => LoadState::Critical,
    }
}

/// The next state of a queue that was in state `level` and now has `depth` items.
fn next(config: &MonitorConfig, level: LoadState, depth: usize, capacity: usize) -> LoadState {
    use LoadState::{Critical, Elevated, Normal};
    let is_at_least = |percent: u8| depth as u128 * 100 >= capacity as u128 * u128::from(percent);
    let rising = if is_at_least(config.critical_percent) {
        Critical
    } else if is_at_least(config.elevated_percent) {
        Elevated
    } else {
        Normal
    };
    let falling = match level {
        Normal => Normal,
        Elevated | Critical if !is_at_least(config.elevated_until_percent) => Normal,
        Critical if is_at_least(config.critical_until_percent) => Critical,
        Elevated | Critical => Elevated,
    };
    // In a queue of few items both thresholds can be reached by the same item. Then the rising one
    // applies.
    rising.max(falling)
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::thread;

    fn monitor() -> (LoadMonitor, QueueLoad) {
        let monitor = LoadMonitor::new(MonitorConfig::default()).unwrap();
        let queue = monitor.watch("loom", 4).unwrap();
        (monitor, queue)
    }

    #[test]
    fn the_state_matches_the_depth_in_every_interleaving() {
        loom::model(|| {
            let (monitor, queue) = monitor();
            queue.added(2);
            let other = thread::spawn({
                let queue = queue.clone();
                move || queue.added(1)
            });
            queue.removed(2);
            other.join().unwrap();
            assert_eq!(queue.depth(), 1);
            assert_eq!(monitor.state(), LoadState::Normal);
        });
    }

    #[test]
    fn two_queues_never_overwrite_each_others_state() {
        loom::model(|| {
            let (monitor, one) = monitor();
            let other = monitor.watch("other", 4).unwrap();
            let thread = thread::spawn(move || {
                other.added(4);
                other
            });
            one.added(3);
            let other = thread.join().unwrap();
            assert_eq!(one.state(), LoadState::Elevated);
            assert_eq!(other.state(), LoadState::Critical);
            assert_eq!(monitor.state(), LoadState::Critical);
            drop(other);
            assert_eq!(monitor.state(), LoadState::Elevated);
        });
    }

    #[test]
    fn the_kill_switch_and_a_rise_do_not_lose_each_other() {
        loom::model(|| {
            let (monitor, queue) = monitor();
            let thread = thread::spawn({
                let monitor = monitor.clone();
                move || monitor.set_enabled(false)
            });
            queue.added(4);
            thread.join().unwrap();
            assert_eq!((monitor.state(), queue.state()), (LoadState::Normal, LoadState::Critical));
            monitor.set_enabled(true);
            assert_eq!(monitor.state(), LoadState::Critical);
        });
    }
}
