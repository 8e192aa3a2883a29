//! Lets deferrable work wait while the load is high, so that live announcements do not have to.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use load_control::{LoadMonitor, QueueLoad, metric_set::Count};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::{
    config::{FetcherConfig, Settings},
    error::ConfigError,
    metrics::{DeferrableWork, Metrics},
    sync::Share,
};

/// How much work was deferred: the result of
/// [`FetcherHandle::deferred`](crate::FetcherHandle::deferred).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeferredStats {
    /// The number of fetches, and of audits on the timer, that waited because the load was high.
    pub deferred: u64,
    /// The number of these that ran under high load, because they had waited for five seconds.
    pub aged: u64,
    /// The number that wait now. Each retry counts; the rest of a comparison counts as one.
    pub waiting: u64,
}

/// Reports to the monitor how full the fetcher's queues are, and lets work wait while the load is
/// high.
pub(crate) struct Deferral {
    monitor: Option<LoadMonitor>,
    /// The announcement buffer of each source; empty without a monitor.
    announcements: Box<[QueueLoad]>,
    max_age: Duration,
    waiting: AtomicU64,
    /// Bounds the number of retries that wait without a slot.
    parked: Semaphore,
    aged: AtomicU64,
    metrics: Arc<Metrics>,
}

impl Deferral {
    pub(crate) fn new(settings: &Settings, metrics: &Arc<Metrics>) -> Result<Self, ConfigError> {
        let FetcherConfig { monitor, sources, fetch_slots, .. } = &settings.config;
        let buffer = settings.limits.announcement_buffer;
        let mut announcements = Vec::new();
        if let Some(monitor) = monitor {
            for _ in sources {
                announcements.push(monitor.watch("announcements", buffer)?);
            }
        }
        Ok(Self {
            monitor: monitor.clone(),
            announcements: announcements.into(),
            max_age: settings.limits.deferral_max_age,
            waiting: AtomicU64::new(0),
            parked: Semaphore::new(*fetch_slots),
            aged: AtomicU64::new(0),
            metrics: Arc::clone(metrics),
        })
    }

    /// Reports how many announcements of a source were read from the socket and not yet processed.
    pub(crate) fn observe_backlog(&self, source: usize, depth: impl FnOnce() -> u64) {
        if let Some(queue) = self.announcements.get(source) {
            queue.observe(usize::try_from(depth()).unwrap_or(usize::MAX));
        }
    }

    /// Returns whether the monitor reports a high load.
    pub(crate) fn is_pressed(&self) -> bool {
        self.monitor.as_ref().is_some_and(LoadMonitor::is_pressed)
    }

    /// Waits while the load is high, at most until `max_age` after `since`, which is when the work
    /// could have run. A backfill that has reached that age is still slow: see `DEFERRABLE_SLOTS`.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn wait(&self, work: DeferrableWork, since: Instant) {
        let pressed = self.monitor.as_ref().filter(|monitor| monitor.is_pressed());
        let Some(monitor) = pressed else { return };
        self.metrics.deferred[work as usize].add(1);
        let _waiting = Share::add_to(&self.waiting, 1);
        // `None` if the clock cannot represent that time. Then the work is never due.
        let due = since.checked_add(self.max_age);
        if !monitor.wait_until_normal(due).await {
            self.aged.fetch_add(1, Relaxed);
        }
    }

    /// Returns a permit with which a retry may wait without its slot. `None` if the load is not
    /// high, or if as many retries wait already as there are slots.
    pub(crate) fn park(&self) -> Option<SemaphorePermit<'_>> {
        if self.is_pressed() { self.parked.try_acquire().ok() } else { None }
    }

    pub(crate) fn stats(&self) -> DeferredStats {
        DeferredStats {
            deferred: self.metrics.deferred.iter().map(Count::get).sum(),
            aged: self.aged.load(Relaxed),
            waiting: self.waiting.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Slots, *};
    use crate::{
        config::{DEFAULT_FETCH_SLOTS, Endpoint},
        limits::{DEFERRABLE_SLOTS, Limits},
    };
    use ::metrics::Gauge;
    use futures::{FutureExt, poll};
    use load_control::MonitorConfig;
    use std::pin::pin;

    /// The slots and the deferral of a fetcher with two sources.
    fn deferral(max_age: Duration) -> (Slots, Deferral) {
        let monitor = LoadMonitor::new(MonitorConfig::default()).unwrap();
        let sources = ["/a", "/b"].map(|path| Endpoint::Ipc(path.into()));
        let config = FetcherConfig { monitor: Some(monitor), ..FetcherConfig::new(sources) };
        let limits =
            Limits { announcement_buffer: 16, deferral_max_age: max_age, ..Limits::default() };
        let (settings, metrics) = (Settings { config, limits }, Arc::new(Metrics::new()));
        let slots = Slots::new(&settings, Gauge::noop()).unwrap();
        (slots, Deferral::new(&settings, &metrics).unwrap())
    }

    #[tokio::test]
    async fn a_full_announcement_buffer_defers_until_it_has_emptied() {
        let (_, deferral) = deferral(Duration::from_secs(3_600));
        deferral.observe_backlog(0, || 12);
        let mut wait = pin!(deferral.wait(DeferrableWork::Backfill, Instant::now()));
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
    async fn work_that_has_reached_the_age_cap_runs_under_load() {
        let (_, deferral) = deferral(Duration::from_millis(1));
        deferral.observe_backlog(0, || 16);
        let since = Instant::now() - Duration::from_secs(1);
        let aged = deferral.wait(DeferrableWork::Backfill, since);
        aged.now_or_never().expect("it has reached the age cap");
        let stats = deferral.stats();
        assert_eq!((stats.deferred, stats.aged, stats.waiting), (1, 1, 0));
    }

    #[tokio::test]
    async fn live_fetches_count_as_load_and_a_dropped_wait_leaves_nothing_behind() {
        let (slots, deferral) = deferral(Duration::from_secs(3_600));
        let left_to_live = DEFAULT_FETCH_SLOTS - DEFERRABLE_SLOTS;
        let acquire = |number| slots.try_acquire_live(number % 2).expect("free");
        let live: Vec<_> = (0..left_to_live).map(acquire).collect();
        assert!(deferral.is_pressed());
        assert!(deferral.wait(DeferrableWork::Retry, Instant::now()).now_or_never().is_none());
        assert_eq!(deferral.stats().waiting, 0);
        drop(live);
        assert!(!deferral.is_pressed());
    }

    #[tokio::test]
    async fn fetches_of_lost_announcements_do_not_count_as_load() {
        let (slots, deferral) = deferral(Duration::from_secs(3_600));
        let mut lost = Vec::new();
        for number in 0..DEFAULT_FETCH_SLOTS {
            lost.push(tokio::task::unconstrained(slots.acquire_lost(number % 2)).await);
        }
        assert!(slots.try_acquire_live(0).is_none(), "all slots are taken");
        assert!(!deferral.is_pressed());
    }
}
