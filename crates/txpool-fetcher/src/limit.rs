//! How many fetches one node is asked at once, learnt from how it answers.

mod places;

use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

use metrics::{Counter, Gauge};
use tokio::time::sleep_until;

use self::places::{Place, Places};
use crate::{core::lock, error::CallError};

/// The limit never goes below this: at an answer time of 2 ms still 2000 transactions/s, and
/// enough answers a second to learn from.
pub const ADAPTIVE_FLOOR: usize = 4;

/// A node that says when to come back is not asked before, but never rests for longer at a time:
/// half of what the announcement buffer holds at 2000 transactions/s. And, in the long run, not for
/// more than half of the time: one that says so in every other answer would else hardly be asked.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(4);

/// Who waited for the end of a rest comes back within this part of its length, at random: else
/// all would ask in the same instant what was too much before.
const COME_BACK_WITHIN: f64 = 0.125;

/// What a sign of overload leaves of the limit. Halving reaches the floor from 64 in four steps.
const DECREASE: f64 = 0.5;

/// Answers over which the share of late ones is judged, whatever the limit: of fewer, chance alone
/// makes an eighth.
const LATE_WINDOW: usize = 64;

/// This share of late answers is a sign of overload if it has grown to twice what it was. A node
/// that swallows a question now and then has a steady share, and is not overloaded.
const LATE_AND_GROWING: f64 = 0.125;

/// This one is a sign of overload whatever the share was before.
const LATE_ANYWAY: f64 = 0.5;

/// Weight of the latest window in what the share was before.
const LATE_WEIGHT: f64 = 0.25;

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
    window: Window,
    /// A running mean of the share of late answers.
    late_before: Option<f64>,
}

/// The answers since the share of late ones was judged.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    heard: usize,
    late: usize,
}

impl Aimd {
    fn new(cap: usize) -> Self {
        let floor = ADAPTIVE_FLOOR.min(cap);
        let window = Window::default();
        Self { limit: cap as f64, floor, cap, lowered: None, window, late_before: None }
    }

    fn limit(&self) -> usize {
        (self.limit as usize).clamp(self.floor, self.cap)
    }

    /// What became of a question that was asked at `asked`; `used` says whether the limit was.
    fn hear(&mut self, news: News, asked: Instant, used: bool, now: Instant) {
        // Those that were under way when the limit was lowered tell of the same overload.
        if self.lowered.is_some_and(|lowered| asked <= lowered) {
            return;
        }
        self.window.heard += 1;
        match news {
            News::Overloaded => return self.lower(now),
            News::Late => self.window.late += 1,
            // A limit that is not used has not been tried.
            News::Answered if used => {
                self.limit = (self.limit + 1.0 / self.limit).min(self.cap as f64);
            }
            News::Answered => {}
        }
        if self.window.heard >= LATE_WINDOW {
            let late = self.window.late as f64 / self.window.heard as f64;
            let before = self.late_before.unwrap_or(late);
            self.late_before = Some(before + (late - before) * LATE_WEIGHT);
            self.window = Window::default();
            if late >= LATE_ANYWAY || late >= LATE_AND_GROWING && late > 2.0 * before {
                self.lower(now);
            }
        }
    }

    fn lower(&mut self, now: Instant) {
        self.limit = (self.limit * DECREASE).max(self.floor as f64);
        self.lowered = Some(now);
        self.window = Window::default();
    }
}

/// What may be asked of one node at once.
#[derive(Debug)]
pub(crate) struct NodeLimit {
    cap: usize,
    /// `None` when the limit is not adaptive: then the slots alone bound what is under way.
    adaptive: Option<Adaptive>,
    rest: Mutex<Option<Rest>>,
    rests: Counter,
}

/// The node has said when to come back.
#[derive(Clone, Copy, Debug)]
struct Rest {
    since: Instant,
    until: Instant,
    /// How long it may rest beyond that. Comes back at half the speed of time, which makes the
    /// bound on the long run.
    left: Duration,
}

impl Rest {
    /// The next one. `None` for those who were asked before this one ended: they tell of the same
    /// overload.
    fn next(before: Option<Self>, asked: Instant, now: Instant, time: Duration) -> Option<Self> {
        let left = match before {
            None => MAX_RETRY_AFTER,
            Some(before) if asked < before.until => return None,
            Some(before) => {
                let earned = now.saturating_duration_since(before.since) / 2;
                (before.left + earned).min(MAX_RETRY_AFTER)
            }
        };
        let time = time.min(left);
        Some(Self { since: now, until: now + time, left: left - time })
    }
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
    pub(crate) fn new(
        adaptive: bool,
        cap: usize,
        deferrable_cap: usize,
        gauge: Gauge,
        rests: Counter,
    ) -> Self {
        gauge.set(cap as f64);
        let adaptive = adaptive.then(|| Adaptive {
            aimd: Mutex::new(Aimd::new(cap)),
            all: Places::new(cap),
            deferrable: Places::new(deferrable_cap),
            cap,
            deferrable_cap,
            gauge,
        });
        Self { cap, adaptive, rest: Mutex::new(None), rests }
    }

    /// How many may be asked at once.
    pub(crate) fn limit(&self) -> usize {
        self.adaptive.as_ref().map_or(self.cap, |adaptive| lock(&adaptive.aimd).limit())
    }

    /// Leave to ask now, if the node may be asked and has room.
    pub(crate) fn try_enter(&self, deferrable: bool) -> Option<Leave<'_>> {
        let now = Instant::now();
        if self.rests_until(now).is_some() {
            return None;
        }
        let (mut _all, mut _deferrable) = (None, None);
        if let Some(adaptive) = &self.adaptive {
            if deferrable {
                _deferrable = Some(adaptive.deferrable.try_take()?);
            }
            _all = Some(adaptive.all.try_take()?);
        }
        Some(Leave { limit: self, asked: now, _all, _deferrable })
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
        while let Some(rest) = self.rests_until(Instant::now()) {
            let spread = (rest.until - rest.since).mul_f64(COME_BACK_WITHIN);
            sleep_until((rest.until + spread.mul_f64(rand::random())).into()).await;
        }
        Leave { limit: self, asked: Instant::now(), _all, _deferrable }
    }

    fn rests_until(&self, now: Instant) -> Option<Rest> {
        lock(&self.rest).filter(|rest| rest.until > now)
    }

    fn rest(&self, asked: Instant, now: Instant, time: Duration) {
        let mut rest = lock(&self.rest);
        if let Some(next) = Rest::next(*rest, asked, now, time) {
            *rest = Some(next);
            self.rests.increment(1);
        }
    }
}

impl Adaptive {
    fn hear(&self, news: News, asked: Instant, now: Instant) {
        let mut aimd = lock(&self.aimd);
        let before = aimd.limit();
        // With its own share used up, deferrable work alone raises the limit again too.
        let used = self.all.taken() * 2 >= before || self.deferrable.is_full();
        aimd.hear(news, asked, used, now);
        let limit = aimd.limit();
        if limit != before {
            self.gauge.set(limit as f64);
            // Under the lock, so that the sizes follow in the order of the limits.
            self.all.resize(limit);
            self.deferrable.resize((self.deferrable_cap * limit).div_ceil(self.cap));
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
            self.limit.rest(self.asked, now, *time);
        }
        if let Some(adaptive) = &self.limit.adaptive {
            adaptive.hear(news, self.asked, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use proptest::prelude::*;

    const MS: Duration = Duration::from_millis(1);

    fn many(aimd: &mut Aimd, count: usize, news: News, asked: Instant, used: bool) {
        (0..count).for_each(|_| aimd.hear(news, asked, used, asked + MS));
    }

    fn limit(adaptive: bool) -> NodeLimit {
        NodeLimit::new(adaptive, 64, 4, Gauge::noop(), Counter::noop())
    }

    #[test]
    fn one_overload_halves_the_limit_once_however_many_fetches_it_hit() {
        let mut aimd = Aimd::new(64);
        let start = Instant::now();
        many(&mut aimd, 64, News::Overloaded, start, true);
        assert_eq!(aimd.limit(), 32);
        aimd.hear(News::Overloaded, start + 2 * MS, true, start + 3 * MS);
        assert_eq!(aimd.limit(), 16);
    }

    #[test]
    fn the_limit_rises_by_one_for_each_round_of_answers_and_only_while_it_is_used() {
        let mut aimd = Aimd::new(64);
        let start = Instant::now();
        aimd.hear(News::Overloaded, start, true, start);
        many(&mut aimd, 1_000, News::Answered, start, true);
        let after = start + MS;
        many(&mut aimd, 1_000, News::Answered, after, false);
        assert_eq!(aimd.limit(), 32, "neither old answers nor idle ones raise it");
        many(&mut aimd, 33, News::Answered, after, true);
        assert_eq!(aimd.limit(), 33);
        many(&mut aimd, 64 * 64, News::Answered, after, true);
        assert_eq!(aimd.limit(), 64);
    }

    #[test]
    fn a_growing_share_of_late_answers_lowers_the_limit() {
        let mut aimd = Aimd::new(64);
        let mut asked = Instant::now();
        let mut window = |late: usize| {
            asked += 2 * MS;
            many(&mut aimd, late, News::Late, asked, false);
            many(&mut aimd, LATE_WINDOW - late, News::Answered, asked, false);
            aimd.limit()
        };
        assert_eq!(window(4), 64, "the first share is the one it has");
        assert_eq!(window(8), 64, "an eighth, and twice what it was, not more");
        assert_eq!(window(16), 32, "more than twice what it was");
        assert_eq!(window(32), 16, "half of all");
        assert_eq!(window(32), 8, "half of all, still");
    }

    #[test]
    fn a_steady_share_of_late_answers_leaves_the_limit_near_its_cap() {
        use rand::{Rng as _, SeedableRng as _};
        for share in [0.02, 0.05, 0.1] {
            let mut random = rand::rngs::StdRng::seed_from_u64(1);
            let mut aimd = Aimd::new(64);
            let mut now = Instant::now();
            let (mut sum, count) = (0, 200_000);
            for _ in 0..count {
                now += MS;
                let late = random.random_bool(share);
                aimd.hear(if late { News::Late } else { News::Answered }, now, true, now);
                sum += aimd.limit();
            }
            let mean = sum / count;
            assert!(mean > 48, "{mean} of 64 at a share of {share}");
        }
    }

    proptest! {
        #[test]
        fn the_limit_stays_between_floor_and_cap(
            cap in 1usize..200,
            news in prop::collection::vec((0u8..3, any::<bool>()), 0..500),
        ) {
            let mut aimd = Aimd::new(cap);
            let mut now = Instant::now();
            for (news, used) in news {
                now += MS;
                let news = [News::Answered, News::Late, News::Overloaded][usize::from(news)];
                aimd.hear(news, now, used, now);
                prop_assert!((ADAPTIVE_FLOOR.min(cap)..=cap).contains(&aimd.limit()));
            }
        }
    }

    fn busy(retry_after: Option<Duration>) -> Result<(), CallError> {
        Err(CallError::Rpc { code: -32005, message: "busy".into(), retry_after })
    }

    #[tokio::test]
    async fn deferrable_work_never_holds_all_places_of_an_overloaded_node() {
        let limit = limit(true);
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

    #[tokio::test]
    async fn deferrable_work_alone_raises_the_limit_again() {
        let limit = limit(true);
        limit.enter(false).await.tell(&busy(None));
        assert_eq!(limit.limit(), 32);
        let mut asked = Vec::new();
        for _ in 0..64 * 64 {
            asked.extend(std::iter::from_fn(|| limit.try_enter(true)));
            asked.swap_remove(0).tell(&Ok(()));
        }
        assert_eq!((limit.limit(), asked.len()), (64, 3));
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test]
    async fn a_node_that_says_when_to_come_back_is_not_asked_before() {
        for adaptive in [true, false] {
            let limit = limit(adaptive);
            limit.enter(false).await.tell(&busy(Some(50 * MS)));
            let until = lock(&limit.rest).expect("it rests").until;
            assert!(limit.try_enter(false).is_none() || Instant::now() >= until);
            let leave = limit.enter(false).await;
            assert!(leave.asked >= until);
            drop(leave);
            assert!(limit.try_enter(false).is_some());
        }
    }

    #[test]
    fn a_node_rests_for_so_long_and_half_of_the_time_at_most() {
        let start = Instant::now();
        let rest = Rest::next(None, start, start, 3600 * SECOND).expect("the first");
        assert_eq!((rest.until, rest.left), (start + MAX_RETRY_AFTER, Duration::ZERO));
        let mut now = start + SECOND;
        assert!(Rest::next(Some(rest), start, now, SECOND).is_none(), "asked before it rested");
        // A node that refuses everything, each time for longer than it may.
        now = rest.until;
        let (mut rest, mut rested) = (rest, Duration::ZERO);
        while now < start + 1000 * SECOND {
            rest = Rest::next(Some(rest), now, now, 10 * SECOND).expect("asked after the last");
            rested += rest.until - now;
            now = rest.until + MS;
        }
        assert!(rested < 502 * SECOND, "{rested:?} of 1000 s");
    }

    #[tokio::test]
    async fn switched_off_it_bounds_nothing() {
        let limit = NodeLimit::new(false, 4, 1, Gauge::noop(), Counter::noop());
        limit.enter(false).await.tell(&busy(None));
        let all: Vec<_> = (0..100).map(|_| limit.enter(true).now_or_never().unwrap()).collect();
        drop(all);
    }
}
