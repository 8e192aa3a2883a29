//! The limits on fetches in flight and on the bytes of their responses.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use futures::future::OptionFuture;
use load_control::QueueLoad;
use metrics::Gauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    config::{FetcherConfig, Settings},
    error::ConfigError,
    sync::lock,
};

/// A node gets one more deferrable request at a time for each of these that its answers take at least: 500
/// requests a second, however far away it is.
const DEFERRABLE_PACE: Duration = Duration::from_millis(2);

/// Answers over which the shortest time is taken.
const DEFERRABLE_WINDOW: u32 = 32;

/// Bytes per permit of the byte budget, so that a budget of 4 GiB fits a semaphore.
const UNIT_BYTES: usize = 256;

/// The first guess at the size of a response: the JSON of a token transfer is about 500 bytes.
const FIRST_GUESS_BYTES: usize = 1024;

/// Bounds the fetches between the request and the end of the delivery to the sink.
pub(crate) struct Slots {
    slots: usize,
    all: Arc<Semaphore>,
    /// For what each source announces, see [`FetcherConfig::fetch_slots`]. Empty with one source.
    of_source: Box<[Arc<Semaphore>]>,
    /// The most that deferrable work of all sources may hold.
    deferrable: Arc<Semaphore>,
    max_deferrable: usize,
    /// How many of these each source may hold now.
    deferrable_of_source: Box<[Arc<DeferrableShare>]>,
    bytes: Arc<Semaphore>,
    budget_units: usize,
    mean_bytes: AtomicUsize,
    /// Of live fetches, from their wait for a slot on.
    load: Option<QueueLoad>,
    gauge: Gauge,
}

/// The slot of one fetch.
pub(crate) struct Slot {
    _one: OwnedSemaphorePermit,
    _of_source: Option<OwnedSemaphorePermit>,
    work: Work,
    /// The estimate, or the size of the response once it is known.
    bytes: OwnedSemaphorePermit,
    /// `mempool_fetcher_in_flight_bytes`, which counts the reserved bytes.
    gauge: Gauge,
}

/// What a fetch counts as for as long as it holds its slot.
enum Work {
    Live(Option<QueueLoad>),
    Deferrable { _one: OwnedSemaphorePermit, of_source: DeferrablePermit },
}

/// How many deferrable fetches one source may have in flight: few while live fetches need the slots or
/// the node answers quickly, and more when its answers take long, because then the slots are idle.
struct DeferrableShare {
    permits: Arc<Semaphore>,
    /// The fewest, with which it begins.
    min: usize,
    max: usize,
    pace: Mutex<Pace>,
}

/// The state of a [`DeferrableShare`].
struct Pace {
    /// How many permits there are now.
    limit: usize,
    /// The shortest time of an answer in this window, and in the one before. The shortest says how far
    /// away the node is; longer ones may be due to our own requests.
    shortest: [Duration; 2],
    /// Answers in this window.
    answers: u32,
}

/// The right to have one deferrable fetch of a source in flight.
struct DeferrablePermit {
    share: Arc<DeferrableShare>,
    /// `None` once the share has become smaller by it.
    one: Option<OwnedSemaphorePermit>,
}

impl DeferrableShare {
    fn new(min: usize, max: usize) -> Self {
        let max = max.max(min);
        let pace = Pace { limit: min, shortest: [Duration::MAX; 2], answers: 0 };
        Self { permits: Semaphore::new(min).into(), min, max, pace: pace.into() }
    }

    async fn acquire(self: &Arc<Self>) -> DeferrablePermit {
        let one = acquire(&self.permits, 1).await;
        DeferrablePermit { share: Arc::clone(self), one: Some(one) }
    }
}

impl DeferrablePermit {
    /// Adapts the share to an answer, or to a failure. `is_idle`: live fetches leave most slots free.
    fn answered(&mut self, elapsed: Option<Duration>, is_idle: bool) {
        let DeferrableShare { permits, min, max, pace } = &*self.share;
        let mut pace = lock(pace);
        let target = match elapsed {
            Some(elapsed) if is_idle => {
                let affordable = pace.answered(elapsed).as_micros() / DEFERRABLE_PACE.as_micros();
                usize::try_from(affordable).unwrap_or(*max).clamp(*min, *max)
            }
            _ => *min,
        };
        if pace.limit < target {
            pace.limit += 1;
            permits.add_permits(1);
        } else if pace.limit > target
            && let Some(one) = self.one.take()
        {
            pace.limit -= 1;
            one.forget();
        }
    }
}

impl Pace {
    /// Notes the time of an answer. Returns the shortest of the latest ones.
    fn answered(&mut self, elapsed: Duration) -> Duration {
        if self.answers == DEFERRABLE_WINDOW {
            self.answers = 0;
            self.shortest = [Duration::MAX, self.shortest[0]];
        }
        self.answers += 1;
        self.shortest[0] = self.shortest[0].min(elapsed);
        self.shortest[0].min(self.shortest[1])
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if let Self::Live(Some(load)) = self {
            load.removed(1);
        }
    }
}

impl Slots {
    pub(crate) fn new(settings: &Settings, gauge: Gauge) -> Result<Self, ConfigError> {
        let FetcherConfig { fetch_slots: slots, sources, max_bytes_in_flight, monitor, .. } =
            &settings.config;
        let budget_units = max_bytes_in_flight / UNIT_BYTES;
        let deferrable = settings.deferrable_slots();
        let max_deferrable = settings.max_deferrable_slots();
        let sources = sources.len();
        let limited = if sources > 1 { sources } else { 0 };
        let shares =
            |of_each: usize| (0..limited).map(|_| Semaphore::new(of_each).into()).collect();
        // (1 - 1 / 2n) / (n - 1) of them.
        let of_each = (slots * (2 * sources - 1)).div_ceil((2 * sources * (sources - 1)).max(1));
        // Without those of deferrable work: else a backfill would raise the load that defers it.
        let left_to_live = (slots - deferrable).max(1);
        let load = monitor.as_ref().map(|monitor| monitor.watch("fetch_slots", left_to_live));
        Ok(Self {
            slots: *slots,
            all: Arc::new(Semaphore::new(*slots)),
            of_source: shares(of_each),
            deferrable: Arc::new(Semaphore::new(max_deferrable)),
            max_deferrable,
            deferrable_of_source: (0..sources)
                .map(|_| {
                    let [min, max] = [deferrable, max_deferrable].map(|all| (all / sources).max(1));
                    DeferrableShare::new(min, max).into()
                })
                .collect(),
            bytes: Arc::new(Semaphore::new(budget_units)),
            budget_units,
            mean_bytes: AtomicUsize::new(FIRST_GUESS_BYTES),
            load: load.transpose()?,
            gauge,
        })
    }

    /// Waits for a slot for a live announcement of this source, first come, first served. A dropped
    /// wait loses its place in the queue and nothing else.
    pub(crate) async fn acquire_live(&self, source: usize) -> Slot {
        let work = self.live_work();
        let of_source = self.of_source.get(source).map(|share| acquire(share, 1));
        let of_source = OptionFuture::from(of_source).await;
        self.acquire(of_source, work).await
    }

    /// The same, if one is free and no fetch waits for it.
    pub(crate) fn try_acquire_live(&self, source: usize) -> Option<Slot> {
        let work = self.live_work();
        let share = self.of_source.get(source);
        let of_source = share.map(|share| Arc::clone(share).try_acquire_owned());
        let of_source = of_source.transpose().ok()?;
        let one = Arc::clone(&self.all).try_acquire_owned().ok()?;
        let reserved = Arc::clone(&self.bytes).try_acquire_many_owned(self.mean_units()).ok()?;
        Some(self.slot(one, of_source, reserved, work))
    }

    /// How many are held.
    pub(super) fn in_use(&self) -> usize {
        self.slots.saturating_sub(self.all.available_permits())
    }

    fn live_work(&self) -> Work {
        Work::Live(self.load.clone().inspect(|load| load.added(1)))
    }

    /// Waits for one of the slots that deferrable work of this source may hold.
    pub(crate) async fn acquire_deferrable(&self, source: usize) -> Slot {
        // Its own share first: while it waits for that it holds nothing that another source needs.
        let of_source = self.deferrable_of_source[source].acquire().await;
        let one = acquire(&self.deferrable, 1).await;
        self.acquire(None, Work::Deferrable { _one: one, of_source }).await
    }

    /// Notes how long the answer to a deferrable request took, `None` for a failure; of a live one nothing.
    pub(crate) fn answered(&self, slot: &mut Slot, elapsed: Option<Duration>) {
        if let Work::Deferrable { of_source, .. } = &mut slot.work {
            let deferrable = self.max_deferrable - self.deferrable.available_permits();
            let live = self.in_use().saturating_sub(deferrable);
            of_source.answered(elapsed, live * 4 <= self.slots);
        }
    }

    async fn acquire(&self, of_source: Option<OwnedSemaphorePermit>, work: Work) -> Slot {
        let one = acquire(&self.all, 1).await;
        // The slot before the bytes, so that two waiters cannot each hold what the other needs.
        let reserved = acquire(&self.bytes, self.mean_units()).await;
        self.slot(one, of_source, reserved, work)
    }

    fn slot(
        &self,
        one: OwnedSemaphorePermit,
        of_source: Option<OwnedSemaphorePermit>,
        bytes: OwnedSemaphorePermit,
        work: Work,
    ) -> Slot {
        self.gauge.increment((bytes.num_permits() * UNIT_BYTES) as f64);
        let gauge = self.gauge.clone();
        Slot { _one: one, _of_source: of_source, work, bytes, gauge }
    }

    /// Corrects reservation and estimate by the size of the response, as far as the budget allows.
    pub(crate) fn set_response_bytes(&self, slot: &mut Slot, response_bytes: usize) {
        // A running mean over about 16 responses. It is an estimate, so a lost update does no harm.
        let mean = self.mean_bytes.load(Relaxed);
        self.mean_bytes.store((mean * 15 + response_bytes.max(UNIT_BYTES)) / 16, Relaxed);
        let units = self.units(response_bytes) as usize;
        let held = slot.bytes.num_permits();
        if let Some(excess) = held.checked_sub(units) {
            drop(slot.bytes.split(excess));
            self.gauge.decrement((excess * UNIT_BYTES) as f64);
        } else if let Ok(more) = self.bytes.clone().try_acquire_many_owned((units - held) as u32) {
            slot.bytes.merge(more);
            self.gauge.increment(((units - held) * UNIT_BYTES) as f64);
        }
    }

    fn mean_units(&self) -> u32 {
        self.units(self.mean_bytes.load(Relaxed))
    }

    fn units(&self, bytes: usize) -> u32 {
        // At most the whole budget: a larger amount could never be acquired.
        bytes.div_ceil(UNIT_BYTES).clamp(1, self.budget_units) as u32
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.gauge.decrement((self.bytes.num_permits() * UNIT_BYTES) as f64);
    }
}

async fn acquire(semaphore: &Arc<Semaphore>, count: u32) -> OwnedSemaphorePermit {
    Arc::clone(semaphore).acquire_many_owned(count).await.expect("our semaphores are never closed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;
    use futures::FutureExt;

    /// Four, of which deferrable work may hold one.
    fn slots() -> Slots {
        let config = FetcherConfig {
            fetch_slots: 4,
            max_bytes_in_flight: 1 << 20,
            ..FetcherConfig::ipc("/node.ipc")
        };
        Slots::new(&Settings { config, limits: Limits::default() }, Gauge::noop()).unwrap()
    }

    #[tokio::test]
    async fn large_responses_hold_back_further_fetches_until_they_are_dropped() {
        let slots = slots();
        let mut big = slots.acquire_live(0).await;
        slots.set_response_bytes(&mut big, 1 << 20);
        // The byte budget is used up, though slots are free.
        assert!(slots.all.available_permits() > 0);
        assert!(slots.acquire_live(0).now_or_never().is_none());
        drop(big);
        assert!(slots.acquire_live(0).now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_response_larger_than_the_budget_does_not_block_for_ever() {
        let slots = slots();
        for _ in 0..100 {
            // Outside of the scheduler's budget, which 100 acquisitions in a row exhaust.
            let mut slot = tokio::task::unconstrained(slots.acquire_live(0))
                .now_or_never()
                .expect("free again each time");
            slots.set_response_bytes(&mut slot, 64 << 20);
        }
        assert_eq!(slots.bytes.available_permits(), slots.budget_units);
    }

    #[tokio::test]
    async fn deferrable_work_takes_idle_slots_from_a_slow_node_and_gives_them_back() {
        const MS: Duration = Duration::from_millis(1);
        let settings =
            Settings { config: FetcherConfig::ipc("/node.ipc"), limits: Limits::default() };
        let slots = Slots::new(&settings, Gauge::noop()).unwrap();
        let take = || tokio::task::unconstrained(slots.acquire_deferrable(0)).now_or_never();
        let take_all = || Vec::from_iter(std::iter::from_fn(take));
        // Takes all that there are after so many answers, each to the oldest request.
        let in_flight_after = |answers, elapsed| {
            let mut held = std::collections::VecDeque::from(take_all());
            for _ in 0..answers {
                let mut slot = held.pop_front().expect("there is always one");
                slots.answered(&mut slot, elapsed);
                drop(slot);
                held.extend(take_all());
            }
            held.len()
        };
        assert_eq!(in_flight_after(0, None), 2);
        assert_eq!(in_flight_after(200, Some(MS / 10)), 2, "a node that answers at once");
        assert_eq!(in_flight_after(200, Some(20 * MS)), 10, "500 a second");
        assert_eq!(in_flight_after(200, Some(200 * MS)), 32, "half of the slots");
        assert_eq!(in_flight_after(200, None), 2, "failures");
        assert_eq!(in_flight_after(200, Some(200 * MS)), 32);
        let mut live = Vec::new();
        for _ in 0..20 {
            live.push(slots.acquire_live(0).await);
        }
        assert_eq!(in_flight_after(200, Some(200 * MS)), 2, "live fetches need the slots");
        drop(live);
        assert_eq!(in_flight_after(200, Some(200 * MS)), 32);
        assert_eq!(slots.in_use(), 0);
    }
}
