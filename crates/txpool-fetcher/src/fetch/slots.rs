//! The limits on fetches in flight and on the bytes of their responses.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use futures::future::OptionFuture;
use load_control::QueueLoad;
use metrics::Gauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    config::{FetcherConfig, Settings},
    error::ConfigError,
};

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
    deferrable: Arc<Semaphore>,
    /// A share of these for what each source announced or listed. Empty with one source.
    deferrable_of_source: Box<[Arc<Semaphore>]>,
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
    _work: Work,
    /// The estimate, or the size of the response once it is known.
    bytes: OwnedSemaphorePermit,
    /// `mempool_fetcher_in_flight_bytes`, which counts the reserved bytes.
    gauge: Gauge,
}

/// What a fetch counts as for as long as it holds its slot.
enum Work {
    Live(Option<QueueLoad>),
    Deferrable { _one: OwnedSemaphorePermit },
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
            deferrable: Arc::new(Semaphore::new(deferrable)),
            deferrable_of_source: shares((deferrable / sources).max(1)),
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
        let of_source = self.deferrable_of_source.get(source).map(|share| acquire(share, 1));
        let of_source = OptionFuture::from(of_source).await;
        let one = acquire(&self.deferrable, 1).await;
        self.acquire(of_source, Work::Deferrable { _one: one }).await
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
        Slot { _one: one, _of_source: of_source, _work: work, bytes, gauge }
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
}
