//! Makes deferrable work wait while the load is high, so that live announcements do not have to.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use load_control::{LoadMonitor, QueueLoad};
use metric_set::Count;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    config::Settings,
    error::ConfigError,
    metrics::{DeferrableWork, Metrics},
    sync::Share,
};

/// How much work was deferred because the load was high, see
/// [`Fetcher::deferred`](crate::Fetcher::deferred).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeferredStats {
    /// Fetches, and audits on the timer, that waited because the load was high.
    pub deferred: u64,
    /// How many of these ran although the load was high, because they had reached the age cap.
    pub aged: u64,
    /// How many wait now. Each retry counts; the rest of a comparison counts as one.
    pub waiting: u64,
}

/// The right to run deferrable work. While the load is high, the work of a source that has reached the
/// age cap takes turns with the one permit for such work: it always runs in the end, but the backfill of
/// a whole pool does not run all at once when it reaches the age cap. Each source has one, because a
/// fetch from a slow node keeps it for long.
pub(crate) type DeferralPermit = Option<OwnedSemaphorePermit>;

/// Reports the fill of the fetcher's queues to the monitor, and makes deferrable work wait while
/// the monitor reports a high load.
pub(crate) struct Deferral {
    watched: Option<Watched>,
    max_age: Duration,
    /// Of each source.
    aged_one: Box<[Arc<Semaphore>]>,
    waiting: AtomicU64,
    /// Bounds the retries that may wait without a slot.
    parked: Arc<Semaphore>,
    aged: AtomicU64,
    metrics: Arc<Metrics>,
}

struct Watched {
    monitor: LoadMonitor,
    /// The announcement buffer of each source.
    announcements: Box<[QueueLoad]>,
    live: QueueLoad,
}

impl Deferral {
    pub(crate) fn new(settings: &Settings, metrics: &Arc<Metrics>) -> Result<Self, ConfigError> {
        let config = &settings.config;
        let watched = match &config.monitor {
            Some(monitor) => Some(Watched {
                announcements: config
                    .sources
                    .iter()
                    .map(|_| monitor.watch("announcements", settings.limits.announcement_buffer))
                    .collect::<Result<_, _>>()?,
                // Its capacity is the slots that deferrable work can never hold. If all slots
                // counted, a backfill would raise the load that defers it.
                live: monitor.watch(
                    "fetch_slots",
                    (config.fetch_slots - settings.deferrable_slots()).max(1),
                )?,
                monitor: monitor.clone(),
            }),
            None => None,
        };
        Ok(Self {
            watched,
            max_age: settings.limits.deferral_max_age,
            aged_one: config.sources.iter().map(|_| Arc::new(Semaphore::new(1))).collect(),
            waiting: AtomicU64::new(0),
            parked: Arc::new(Semaphore::new(config.fetch_slots)),
            aged: AtomicU64::new(0),
            metrics: Arc::clone(metrics),
        })
    }

    /// Reports how many announcements of a source were read from the socket and not yet processed.
    pub(crate) fn observe_backlog(&self, source: usize, depth: impl FnOnce() -> u64) {
        if let Some(watched) = &self.watched {
            watched.announcements[source].observe(usize::try_from(depth()).unwrap_or(usize::MAX));
        }
    }

    /// Counts a live fetch as part of the load, from its wait for a slot until the returned value
    /// is dropped.
    pub(crate) fn track_live_fetch(&self) -> Option<TrackedFetch> {
        let queue = self.watched.as_ref()?.live.clone();
        queue.added(1);
        Some(TrackedFetch(queue))
    }

    pub(crate) fn is_pressed(&self) -> bool {
        self.watched.as_ref().is_some_and(|watched| watched.monitor.is_pressed())
    }

    /// Waits while the load is high. `since` is when the work could first have run: from that time
    /// plus the age cap on, it competes for the one permit of its source for such work.
    ///
    /// # Cancel safety
    /// A dropped wait loses its place in the queue and nothing else.
    pub(crate) async fn acquire(
        &self,
        work: DeferrableWork,
        source: usize,
        since: Instant,
    ) -> DeferralPermit {
        let watched = self.watched.as_ref().filter(|_| self.is_pressed())?;
        self.metrics.deferred[work as usize].add(1);
        let _waits = Share::of(&self.waiting, 1);
        // `None` if the clock cannot represent that time: then the work is never due.
        let due = since.checked_add(self.max_age);
        if watched.monitor.wait_until_normal(due, || {}).await {
            return None;
        }
        // Biased: work that may run because the load has fallen must not take the one permit.
        tokio::select! {
            biased;
            _ = watched.monitor.wait_until_normal(None, || {}) => None,
            one = Arc::clone(&self.aged_one[source]).acquire_owned() => {
                self.aged.fetch_add(1, Relaxed);
                // The semaphore is never closed, so this is always a permit.
                one.ok()
            }
        }
    }

    /// A permit with which a retry releases its slot while it is deferred. `None` if the load is
    /// not high, or if as many retries as there are slots already wait: the retry then keeps its
    /// slot.
    pub(crate) fn park(&self) -> Option<OwnedSemaphorePermit> {
        if !self.is_pressed() {
            return None;
        }
        Arc::clone(&self.parked).try_acquire_owned().ok()
    }

    pub(crate) fn stats(&self) -> DeferredStats {
        DeferredStats {
            deferred: self.metrics.deferred.iter().map(Count::get).sum(),
            aged: self.aged.load(Relaxed),
            waiting: self.waiting.load(Relaxed),
        }
    }
}

pub(crate) struct TrackedFetch(QueueLoad);

impl Drop for TrackedFetch {
    fn drop(&mut self) {
        self.0.removed(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::{DEFAULT_FETCH_SLOTS, Endpoint, FetcherConfig},
        limits::{DEFERRABLE_SLOTS, Limits},
    };
    use futures::{FutureExt, poll};
    use load_control::MonitorConfig;
    use std::pin::pin;

    /// Of two sources.
    fn deferral(max_age: Duration) -> (LoadMonitor, Deferral) {
        let monitor = LoadMonitor::new(MonitorConfig::default()).unwrap();
        let sources = ["/a", "/b"].map(|path| Endpoint::Ipc(path.into()));
        let config =
            FetcherConfig { monitor: Some(monitor.clone()), ..FetcherConfig::new(sources) };
        let limits =
            Limits { announcement_buffer: 16, deferral_max_age: max_age, ..Limits::default() };
        let metrics = Arc::new(Metrics::new());
        (monitor, Deferral::new(&Settings { config, limits }, &metrics).unwrap())
    }

    #[tokio::test]
    async fn a_full_announcement_buffer_defers_until_it_has_emptied() {
        let (_, deferral) = deferral(Duration::from_secs(3_600));
        deferral.observe_backlog(0, || 12);
        let mut wait = pin!(deferral.acquire(DeferrableWork::Backfill, 0, Instant::now()));
        assert!(poll!(wait.as_mut()).is_pending());
        assert_eq!((deferral.stats().deferred, deferral.stats().waiting), (1, 1));
        deferral.observe_backlog(0, || 8);
        assert!(deferral.is_pressed(), "hysteresis");
        deferral.observe_backlog(0, || 7);
        wait.await;
        let stats = deferral.stats();
        assert_eq!((stats.deferred, stats.aged, stats.waiting), (1, 0, 0));
    }

    #[tokio::test]
    async fn what_has_aged_runs_under_load_one_at_a_time_of_each_source() {
        let (_, deferral) = deferral(Duration::from_millis(1));
        deferral.observe_backlog(0, || 16);
        let since = Instant::now() - Duration::from_secs(1);
        let acquire = |source| deferral.acquire(DeferrableWork::Backfill, source, since);
        let first = acquire(0).now_or_never().expect("aged");
        let mut second = pin!(acquire(0));
        assert!(poll!(second.as_mut()).is_pending());
        assert!(acquire(1).now_or_never().is_some(), "the first source may be slow");
        drop(first);
        second.await;
        assert_eq!(deferral.stats().aged, 3);
    }

    #[tokio::test]
    async fn live_fetches_press_and_a_dropped_wait_leaves_nothing_behind() {
        let (monitor, deferral) = deferral(Duration::from_secs(3_600));
        let left_to_live = DEFAULT_FETCH_SLOTS - DEFERRABLE_SLOTS;
        let live: Vec<_> = (0..left_to_live).map(|_| deferral.track_live_fetch()).collect();
        assert!(monitor.is_pressed());
        assert!(
            deferral.acquire(DeferrableWork::Retry, 0, Instant::now()).now_or_never().is_none()
        );
        assert_eq!(deferral.stats().waiting, 0);
        drop(live);
        assert!(!monitor.is_pressed());
    }
}
