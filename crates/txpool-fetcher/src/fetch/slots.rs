//! The limits on fetches in flight and on the bytes of their responses: decides which fetch gets
//! the next slot.

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

/// A source may have one deferrable fetch in flight for each 2 ms of its node's shortest recent
/// response time. So, by Little's law, deferrable work reaches 500 requests a second, however far
/// away the node is.
const DEFERRABLE_PACE: Duration = Duration::from_millis(2);

/// The number of responses in a window. The shortest response time is taken over the current window
/// and the one before.
const DEFERRABLE_WINDOW: u32 = 32;

/// The number of bytes for one permit of the byte budget. A budget of 4 GiB then fits a semaphore.
const UNIT_BYTES: usize = 256;

/// The initial estimate of the size of a response: the JSON of a token transfer has about 500
/// bytes.
const INITIAL_ESTIMATE_BYTES: usize = 1024;

/// Bounds the fetches between their request and the end of their delivery to the sink.
pub(crate) struct Slots {
    slot_count: usize,
    slots: Arc<Semaphore>,
    /// For each source, its share of the slots for live announcements, see
    /// [`FetcherConfig::fetch_slots`]. Empty with one source.
    source_shares: Box<[Arc<Semaphore>]>,
    /// The slots that deferrable work of all sources may hold.
    deferrable: Arc<Semaphore>,
    max_deferrable: usize,
    /// For each source, its current share of the deferrable slots.
    deferrable_shares: Box<[Arc<DeferrableShare>]>,
    /// The byte budget, in units of [`UNIT_BYTES`].
    bytes: Arc<Semaphore>,
    budget_units: usize,
    /// The running mean of the sizes of responses. Relaxed: it is an estimate.
    mean_bytes: AtomicUsize,
    /// Counts live fetches, from the beginning of their wait for a slot.
    load: Option<QueueLoad>,
    /// `mempool_fetcher_in_flight_bytes`, which counts the reserved bytes.
    gauge: Gauge,
}

/// The slot of one fetch. It is released when this is dropped.
pub(crate) struct Slot {
    _slot: OwnedSemaphorePermit,
    _source_share: Option<OwnedSemaphorePermit>,
    work: Work,
    /// The estimated size of the response, or its size once that is known.
    bytes: OwnedSemaphorePermit,
    gauge: Gauge,
}

/// The kind of work as which a fetch counts while it waits for its slot and holds it.
enum Work {
    /// With the queue whose load it counts for, if it does.
    Live(Option<QueueLoad>),
    Deferrable {
        _slot: OwnedSemaphorePermit,
        source_permit: DeferrablePermit,
    },
}

/// The number of deferrable fetches that one source may have in flight: few while live fetches need
/// the slots or the node responds quickly, and more when its responses take long, because the slots
/// are idle then.
struct DeferrableShare {
    permits: Arc<Semaphore>,
    /// The lower bound, and the initial number.
    min: usize,
    max: usize,
    pace: Mutex<Pace>,
}

/// The state of a [`DeferrableShare`].
struct Pace {
    /// The current number of permits.
    limit: usize,
    /// The shortest response time in this window, and in the one before. It shows how far away the
    /// node is, while longer times may be caused by the fetcher's own requests.
    shortest: [Duration; 2],
    /// The number of responses in this window.
    responses: u32,
}

/// The right to have one deferrable fetch of a source in flight.
struct DeferrablePermit {
    share: Arc<DeferrableShare>,
    /// `None` once this permit was given up to reduce the share.
    permit: Option<OwnedSemaphorePermit>,
}

impl DeferrableShare {
    fn new(min: usize, max: usize) -> Self {
        let max = max.max(min);
        let pace = Pace { limit: min, shortest: [Duration::MAX; 2], responses: 0 };
        Self { permits: Semaphore::new(min).into(), min, max, pace: pace.into() }
    }

    async fn acquire(self: &Arc<Self>) -> DeferrablePermit {
        let permit = acquire(&self.permits, 1).await;
        DeferrablePermit { share: Arc::clone(self), permit: Some(permit) }
    }
}

impl DeferrablePermit {
    /// Moves the share of the source by at most one permit towards its target. `elapsed` is the
    /// time that a response took, or `None` for a failure. `is_idle` says that live fetches leave
    /// most slots free; while they do not, and after a failure, the target is the lower bound.
    fn record(&mut self, elapsed: Option<Duration>, is_idle: bool) {
        let DeferrableShare { permits, min, max, pace } = &*self.share;
        let mut pace = lock(pace);
        let target = match elapsed {
            Some(elapsed) if is_idle => {
                let fetches = pace.record(elapsed).as_micros() / DEFERRABLE_PACE.as_micros();
                usize::try_from(fetches).unwrap_or(*max).clamp(*min, *max)
            }
            // The time of a response that competed with live fetches says little, and is not
            // recorded.
            _ => *min,
        };
        if pace.limit < target {
            pace.limit += 1;
            permits.add_permits(1);
        } else if pace.limit > target
            && let Some(permit) = self.permit.take()
        {
            pace.limit -= 1;
            permit.forget();
        }
    }
}

impl Pace {
    /// Records a response time. Returns the shortest of the latest ones.
    fn record(&mut self, elapsed: Duration) -> Duration {
        if self.responses == DEFERRABLE_WINDOW {
            self.responses = 0;
            self.shortest = [Duration::MAX, self.shortest[0]];
        }
        self.responses += 1;
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
        // With n sources, each has the share (1 - 1 / 2n) / (n - 1): see
        // `FetcherConfig::fetch_slots`.
        let share = (slots * (2 * sources - 1)).div_ceil((2 * sources * (sources - 1)).max(1));
        // Slots of deferrable work do not count as load: a backfill would raise the load that
        // defers it.
        let live_slots = (slots - deferrable).max(1);
        let load = monitor.as_ref().map(|monitor| monitor.watch("fetch_slots", live_slots));
        let [min, max] = [deferrable, max_deferrable].map(|all| (all / sources).max(1));
        Ok(Self {
            slot_count: *slots,
            slots: Arc::new(Semaphore::new(*slots)),
            source_shares: shares(sources, share),
            deferrable: Arc::new(Semaphore::new(max_deferrable)),
            max_deferrable,
            deferrable_shares: (0..sources)
                .map(|_| Arc::new(DeferrableShare::new(min, max)))
                .collect(),
            bytes: Arc::new(Semaphore::new(budget_units)),
            budget_units,
            mean_bytes: AtomicUsize::new(INITIAL_ESTIMATE_BYTES),
            load: load.transpose()?,
            gauge,
        })
    }

    /// Waits for a slot for a live announcement of this source, first come, first served.
    ///
    /// # Cancel safety
    /// A wait that is dropped loses its place in the queue.
    pub(crate) async fn acquire_live(&self, source: usize) -> Slot {
        self.acquire_share(source, self.live_work()).await
    }

    /// Like [`Self::acquire_live`], for an announcement that the buffer lost. It does not count as
    /// load: the recoveries wait while the load is high, and would cause it themselves.
    pub(crate) async fn acquire_lost(&self, source: usize) -> Slot {
        self.acquire_share(source, Work::Live(None)).await
    }

    async fn acquire_share(&self, source: usize, work: Work) -> Slot {
        let source_share = self.source_shares.get(source).map(|share| acquire(share, 1));
        let source_share = OptionFuture::from(source_share).await;
        self.acquire(source_share, work).await
    }

    /// Returns a slot for a live announcement, if one is free and no fetch waits for it.
    pub(crate) fn try_acquire_live(&self, source: usize) -> Option<Slot> {
        let work = self.live_work();
        let share = self.source_shares.get(source);
        let source_share = share.map(|share| Arc::clone(share).try_acquire_owned());
        let source_share = source_share.transpose().ok()?;
        let slot = Arc::clone(&self.slots).try_acquire_owned().ok()?;
        let bytes = Arc::clone(&self.bytes).try_acquire_many_owned(self.mean_units()).ok()?;
        Some(self.slot(slot, source_share, bytes, work))
    }

    /// Returns the number of slots in use.
    pub(super) fn in_use(&self) -> usize {
        self.slot_count.saturating_sub(self.slots.available_permits())
    }

    /// Counts a live fetch as load, until the result is dropped.
    fn live_work(&self) -> Work {
        Work::Live(self.load.clone().inspect(|load| load.added(1)))
    }

    /// Waits for one of the slots that deferrable work of this source may hold.
    pub(crate) async fn acquire_deferrable(&self, source: usize) -> Slot {
        // The source's own share comes first: while the fetch waits for it, it holds nothing that
        // another source needs.
        let source_permit = self.deferrable_shares[source].acquire().await;
        let slot = acquire(&self.deferrable, 1).await;
        self.acquire(None, Work::Deferrable { _slot: slot, source_permit }).await
    }

    /// Records the response time of a deferrable request, `None` for a failure. For a live request
    /// it does nothing.
    pub(crate) fn record_response(&self, slot: &mut Slot, elapsed: Option<Duration>) {
        if let Work::Deferrable { source_permit, .. } = &mut slot.work {
            let deferrable = self.max_deferrable - self.deferrable.available_permits();
            let live = self.in_use().saturating_sub(deferrable);
            source_permit.record(elapsed, live * 4 <= self.slot_count);
        }
    }

    /// Waits for a fetch slot, and then for the bytes of a response of average size.
    async fn acquire(&self, source_share: Option<OwnedSemaphorePermit>, work: Work) -> Slot {
        let slot = acquire(&self.slots, 1).await;
        // The slot comes before the bytes, so that two waiters cannot each hold what the other
        // needs.
        let bytes = acquire(&self.bytes, self.mean_units()).await;
        self.slot(slot, source_share, bytes, work)
    }

    fn slot(
        &self,
        slot: OwnedSemaphorePermit,
        source_share: Option<OwnedSemaphorePermit>,
        bytes: OwnedSemaphorePermit,
        work: Work,
    ) -> Slot {
        self.gauge.increment((bytes.num_permits() * UNIT_BYTES) as f64);
        let gauge = self.gauge.clone();
        Slot { _slot: slot, _source_share: source_share, work, bytes, gauge }
    }

    /// Adjusts the reserved bytes and the estimate to the size of a response, as far as the budget
    /// permits.
    pub(crate) fn set_response_bytes(&self, slot: &mut Slot, response_bytes: usize) {
        // A running mean over about 16 responses. An update that is lost to another one does no
        // harm.
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

    /// Returns the estimated size of a response, in permits of the byte budget.
    fn mean_units(&self) -> u32 {
        self.units(self.mean_bytes.load(Relaxed))
    }

    fn units(&self, bytes: usize) -> u32 {
        // A larger amount than the whole budget could never be acquired.
        bytes.div_ceil(UNIT_BYTES).clamp(1, self.budget_units) as u32
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.gauge.decrement((self.bytes.num_permits() * UNIT_BYTES) as f64);
    }
}

async fn acquire(semaphore: &Arc<Semaphore>, count: u32) -> OwnedSemaphorePermit {
    Arc::clone(semaphore).acquire_many_owned(count).await.expect("the semaphore is never closed")
}

/// Makes a semaphore with `share` permits for each source; none for a single source.
fn shares(sources: usize, share: usize) -> Box<[Arc<Semaphore>]> {
    let count = if sources > 1 { sources } else { 0 };
    (0..count).map(|_| Arc::new(Semaphore::new(share))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;
    use futures::FutureExt;

    /// Four slots, of which deferrable work may hold one.
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
        assert!(slots.slots.available_permits() > 0);
        assert!(slots.acquire_live(0).now_or_never().is_none());
        drop(big);
        assert!(slots.acquire_live(0).now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_response_larger_than_the_budget_does_not_block_for_ever() {
        let slots = slots();
        for _ in 0..100 {
            // Unconstrained, because 100 acquisitions in a row exhaust the scheduler's budget.
            let mut slot = tokio::task::unconstrained(slots.acquire_live(0))
                .now_or_never()
                .expect("the budget is free again");
            slots.set_response_bytes(&mut slot, 64 << 20);
        }
        assert_eq!(slots.bytes.available_permits(), slots.budget_units);
    }

    #[tokio::test]
    async fn deferrable_work_uses_idle_slots_and_returns_them() {
        const MS: Duration = Duration::from_millis(1);
        let settings =
            Settings { config: FetcherConfig::ipc("/node.ipc"), limits: Limits::default() };
        let slots = Slots::new(&settings, Gauge::noop()).unwrap();
        let take = || tokio::task::unconstrained(slots.acquire_deferrable(0)).now_or_never();
        let take_all = || Vec::from_iter(std::iter::from_fn(take));
        // Acquires all available slots after `answers` responses, each to the oldest request.
        let in_flight_after = |answers, elapsed| {
            let mut held = std::collections::VecDeque::from(take_all());
            for _ in 0..answers {
                let mut slot = held.pop_front().expect("there is always one");
                slots.record_response(&mut slot, elapsed);
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
