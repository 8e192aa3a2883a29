//! How many fetches one node is asked at once, learnt from how it answers.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use metrics::Gauge;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::sleep_until,
};

use crate::{core::lock, error::CallError};

/// The limit never goes below this: at an answer time of 2 ms still 2000 transactions/s, and
/// enough answers a second to learn from.
pub const ADAPTIVE_FLOOR: usize = 4;

/// A node that says when to come back is not asked before, but never left alone for longer: half
/// of what the announcement buffer holds at 2000 transactions/s.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(4);

/// What a sign of overload leaves of the limit. Halving reaches the floor from 64 in four steps.
const DECREASE: f64 = 0.5;

/// This share of late answers in a round is a sign of overload if it has grown since the round
/// before. A node that swallows a question now and then has a steady share, and is not overloaded.
const LATE_AND_GROWING: f64 = 0.125;

/// This one is a sign of overload whatever the share was before.
const LATE_ANYWAY: f64 = 0.5;

/// What one question told of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    Answered,
    Late,
    Overloaded,
}

/// The limit: halved when the node shows that it has too much to do, raised by one for each round
/// of answers, as TCP does it. Time is passed in.
#[derive(Clone, Copy, Debug)]
struct Aimd {
    limit: f64,
    floor: usize,
    cap: usize,
    lowered: Option<Instant>,
    round: Round,
    late_before: f64,
}

/// As many questions as the limit allows at once.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    heard: usize,
    late: usize,
}

impl Aimd {
    fn new(cap: usize) -> Self {
        let floor = ADAPTIVE_FLOOR.min(cap);
        let round = Round::default();
        Self { limit: cap as f64, floor, cap, lowered: None, round, late_before: 0.0 }
    }

    fn limit(&self) -> usize {
        (self.limit as usize).clamp(self.floor, self.cap)
    }

    /// What became of a question that was asked at `asked`, with `in_flight` questions under way.
    fn hear(&mut self, news: News, asked: Instant, in_flight: usize, now: Instant) {
        // Those that were under way when the limit was lowered tell of the same overload.
        if self.lowered.is_some_and(|lowered| asked <= lowered) {
            return;
        }
        self.round.heard += 1;
        match news {
            News::Overloaded => return self.lower(now),
            News::Late => self.round.late += 1,
            // A limit that is not used has not been tried.
            News::Answered if in_flight * 2 >= self.limit() => {
                self.limit = (self.limit + 1.0 / self.limit).min(self.cap as f64);
            }
            News::Answered => {}
        }
        if self.round.heard >= self.limit() {
            let late = self.round.late as f64 / self.round.heard as f64;
            let grows = late >= LATE_AND_GROWING && late > self.late_before;
            self.late_before = late;
            self.round = Round::default();
            if grows || late >= LATE_ANYWAY {
                self.lower(now);
            }
        }
    }

    fn lower(&mut self, now: Instant) {
        self.limit = (self.limit * DECREASE).max(self.floor as f64);
        self.lowered = Some(now);
        self.round = Round::default();
    }
}

/// What may be asked of one node at once.
#[derive(Debug)]
pub(crate) struct NodeLimit {
    cap: usize,
    /// `None` when the limit is not adaptive: then the slots alone bound what is under way.
    adaptive: Option<Adaptive>,
    not_before: Mutex<Option<Instant>>,
}

#[derive(Debug)]
struct Adaptive {
    aimd: Mutex<Aimd>,
    all: Places,
    /// The share of deferrable work shrinks with the whole: else it could hold all that is left.
    deferrable: Places,
    cap: usize,
    deferrable_cap: usize,
    gauge: Gauge,
}

/// Leave to ask one question. Given back when dropped.
#[derive(Debug)]
pub(crate) struct Leave<'a> {
    limit: &'a NodeLimit,
    asked: Instant,
    _all: Option<Place<'a>>,
    _deferrable: Option<Place<'a>>,
}

impl NodeLimit {
    pub(crate) fn new(adaptive: bool, cap: usize, deferrable_cap: usize, gauge: Gauge) -> Self {
        gauge.set(cap as f64);
        let adaptive = adaptive.then(|| Adaptive {
            aimd: Mutex::new(Aimd::new(cap)),
            all: Places::new(cap),
            deferrable: Places::new(deferrable_cap),
            cap,
            deferrable_cap,
            gauge,
        });
        Self { cap, adaptive, not_before: Mutex::new(None) }
    }

    /// How many may be asked at once.
    pub(crate) fn limit(&self) -> usize {
        self.adaptive.as_ref().map_or(self.cap, |adaptive| lock(&adaptive.aimd).limit())
    }

    /// Waits until the node may be asked.
    ///
    /// # Cancel safety
    /// A dropped wait loses its place in line and nothing else.
    pub(crate) async fn enter(&self, deferrable: bool) -> Leave<'_> {
        let (mut _all, mut _deferrable) = (None, None);
        if let Some(adaptive) = &self.adaptive {
            // Always in this order, so that two waiters cannot hold what the other needs.
            if deferrable {
                _deferrable = Some(adaptive.deferrable.take().await);
            }
            _all = Some(adaptive.all.take().await);
        }
        loop {
            let not_before = *lock(&self.not_before);
            match not_before {
                Some(time) if time > Instant::now() => sleep_until(time.into()).await,
                _ => break,
            }
        }
        Leave { limit: self, asked: Instant::now(), _all, _deferrable }
    }

    fn rest(&self, now: Instant, time: Duration) {
        let until = now + time.min(MAX_RETRY_AFTER);
        let mut not_before = lock(&self.not_before);
        *not_before = (*not_before).max(Some(until));
    }
}

impl Adaptive {
    fn hear(&self, news: News, asked: Instant, now: Instant) {
        let mut aimd = lock(&self.aimd);
        let before = aimd.limit();
        aimd.hear(news, asked, self.all.taken(), now);
        let limit = aimd.limit();
        if limit != before {
            self.gauge.set(limit as f64);
            // Under the lock, so that the sizes follow in the order of the limits.
            self.all.resize(limit);
            self.deferrable.resize((self.deferrable_cap * limit / self.cap).max(1));
        }
    }
}

impl Leave<'_> {
    /// Tells what became of the question. Not told, it counts for nothing.
    pub(crate) fn tell<T>(self, result: &Result<T, CallError>) {
        let now = Instant::now();
        let news = match result {
            Ok(_) => News::Answered,
            Err(CallError::Timeout(_)) => News::Late,
            Err(error) if error.is_overload() => News::Overloaded,
            // It says something of the question or of the connection, nothing of the load.
            Err(_) => return,
        };
        if let Err(CallError::Rpc { retry_after: Some(time), .. }) = result {
            self.limit.rest(now, *time);
        }
        if let Some(adaptive) = &self.limit.adaptive {
            adaptive.hear(news, self.asked, now);
        }
    }
}

/// A semaphore whose size changes while its permits are out.
#[derive(Debug)]
struct Places {
    semaphore: Arc<Semaphore>,
    size: Mutex<Size>,
}

#[derive(Clone, Copy, Debug)]
struct Size {
    wanted: usize,
    /// Permits that are out and do not come back.
    owed: usize,
}

#[derive(Debug)]
struct Place<'a> {
    permit: Option<OwnedSemaphorePermit>,
    of: &'a Places,
}

impl Places {
    fn new(count: usize) -> Self {
        let size = Mutex::new(Size { wanted: count, owed: 0 });
        Self { semaphore: Arc::new(Semaphore::new(count)), size }
    }

    /// Waits for a place, first come, first served.
    async fn take(&self) -> Place<'_> {
        let permit = Arc::clone(&self.semaphore).acquire_owned().await;
        Place { permit: Some(permit.expect("our semaphores are never closed")), of: self }
    }

    fn taken(&self) -> usize {
        let size = *lock(&self.size);
        // A permit that is just being given back may be counted on both sides.
        (size.wanted + size.owed).saturating_sub(self.semaphore.available_permits())
    }

    fn resize(&self, wanted: usize) {
        let mut size = lock(&self.size);
        if wanted < size.wanted {
            let fewer = size.wanted - wanted;
            size.owed += fewer - self.semaphore.forget_permits(fewer);
        } else {
            let more = wanted - size.wanted;
            let kept = more.min(size.owed);
            size.owed -= kept;
            self.semaphore.add_permits(more - kept);
        }
        size.wanted = wanted;
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let Some(permit) = self.permit.take() else { return };
        let mut size = lock(&self.of.size);
        if size.owed > 0 {
            size.owed -= 1;
            permit.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use proptest::prelude::*;

    const MS: Duration = Duration::from_millis(1);

    fn many(aimd: &mut Aimd, count: usize, news: News, asked: Instant, in_flight: usize) {
        (0..count).for_each(|_| aimd.hear(news, asked, in_flight, asked + MS));
    }

    #[test]
    fn one_overload_halves_the_limit_once_however_many_fetches_it_hit() {
        let mut aimd = Aimd::new(64);
        let start = Instant::now();
        many(&mut aimd, 64, News::Overloaded, start, 64);
        assert_eq!(aimd.limit(), 32);
        aimd.hear(News::Overloaded, start + 2 * MS, 32, start + 3 * MS);
        assert_eq!(aimd.limit(), 16);
    }

    #[test]
    fn the_limit_rises_by_one_for_each_round_of_answers_and_only_while_it_is_used() {
        let mut aimd = Aimd::new(64);
        let start = Instant::now();
        aimd.hear(News::Overloaded, start, 64, start);
        many(&mut aimd, 1_000, News::Answered, start, 64);
        let after = start + MS;
        many(&mut aimd, 1_000, News::Answered, after, 15);
        assert_eq!(aimd.limit(), 32, "neither old answers nor idle ones raise it");
        many(&mut aimd, 33, News::Answered, after, 32);
        assert_eq!(aimd.limit(), 33);
        many(&mut aimd, 64 * 64, News::Answered, after, 64);
        assert_eq!(aimd.limit(), 64);
    }

    #[test]
    fn a_growing_share_of_late_answers_lowers_the_limit_and_a_steady_one_does_not() {
        let mut aimd = Aimd::new(64);
        let start = Instant::now();
        let round = |aimd: &mut Aimd, late: usize, asked: Instant| {
            let heard = aimd.limit();
            many(aimd, late, News::Late, asked, 0);
            many(aimd, heard - late, News::Answered, asked, 0);
            aimd.limit()
        };
        assert_eq!(round(&mut aimd, 6, start), 64, "too few");
        assert_eq!(round(&mut aimd, 8, start), 32, "an eighth, and more than before");
        assert_eq!(round(&mut aimd, 4, start + 2 * MS), 32, "the same share");
        assert_eq!(round(&mut aimd, 5, start + 3 * MS), 16, "a larger one");
        assert_eq!(round(&mut aimd, 8, start + 5 * MS), 8, "half of all");
        assert_eq!(round(&mut aimd, 4, start + 7 * MS), 4, "half of all, still");
    }

    proptest! {
        #[test]
        fn the_limit_stays_between_floor_and_cap(
            cap in 1usize..200,
            news in prop::collection::vec((0u8..3, 0usize..200), 0..500),
        ) {
            let mut aimd = Aimd::new(cap);
            let mut now = Instant::now();
            for (news, in_flight) in news {
                now += MS;
                let news = [News::Answered, News::Late, News::Overloaded][usize::from(news)];
                aimd.hear(news, now, in_flight, now);
                prop_assert!((ADAPTIVE_FLOOR.min(cap)..=cap).contains(&aimd.limit()));
            }
        }
    }

    #[tokio::test]
    async fn places_that_are_out_when_the_size_falls_do_not_come_back() {
        let places = Places::new(8);
        let mut out: Vec<_> = (0..6).map(|_| places.take().now_or_never().expect("free")).collect();
        places.resize(4);
        out.truncate(4);
        assert!(places.take().now_or_never().is_none(), "4 of 4 are taken");
        out.pop();
        let place = places.take().now_or_never().expect("one is free again");
        places.resize(6);
        out.extend((0..2).map(|_| places.take().now_or_never().expect("two more")));
        assert!(places.take().now_or_never().is_none(), "6 of 6 are taken");
        drop((out, place));
        assert_eq!((places.semaphore.available_permits(), places.taken()), (6, 0));
    }

    #[tokio::test]
    async fn a_size_that_falls_and_rises_while_places_are_out_loses_none() {
        let places = Places::new(8);
        let out: Vec<_> = (0..8).map(|_| places.take().now_or_never().expect("free")).collect();
        places.resize(2);
        places.resize(8);
        drop(out);
        assert_eq!(places.semaphore.available_permits(), 8);
    }

    fn busy(retry_after: Option<Duration>) -> Result<(), CallError> {
        Err(CallError::Rpc { code: -32005, message: "busy".into(), retry_after })
    }

    #[tokio::test]
    async fn deferrable_work_never_holds_all_places_of_an_overloaded_node() {
        let limit = NodeLimit::new(true, 64, 4, Gauge::noop());
        for _ in 0..8 {
            limit.enter(false).await.tell(&busy(None));
        }
        let one = limit.enter(true).await;
        assert!(limit.enter(true).now_or_never().is_none(), "1 of 4");
        let live: Vec<_> =
            (0..3).map(|_| limit.enter(false).now_or_never().expect("free")).collect();
        assert!(limit.enter(false).now_or_never().is_none(), "the floor is 4");
        drop((one, live));
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_says_when_to_come_back_is_not_asked_before_and_not_left_for_long() {
        let limit = NodeLimit::new(true, 64, 4, Gauge::noop());
        for (said, waited) in [(500, 500), (3_600_000, 4_000)] {
            limit.enter(false).await.tell(&busy(Some(Duration::from_millis(said))));
            let until = lock(&limit.not_before).expect("it rests");
            let left = until.saturating_duration_since(Instant::now());
            let waited = Duration::from_millis(waited);
            assert!(left <= waited && left > waited / 2, "{left:?} of {waited:?}");
            assert!(limit.enter(false).now_or_never().is_none());
            *lock(&limit.not_before) = None;
        }
        assert!(limit.enter(false).now_or_never().is_some());
    }

    #[tokio::test]
    async fn switched_off_it_limits_nothing() {
        let limit = NodeLimit::new(false, 4, 1, Gauge::noop());
        limit.enter(false).await.tell(&busy(None));
        let all: Vec<_> = (0..100).map(|_| limit.enter(true).now_or_never().unwrap()).collect();
        drop(all);
    }
}
