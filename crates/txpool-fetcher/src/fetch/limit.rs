//! The limit of requests in flight at one node, adapted to how the node responds.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use tokio::sync::Semaphore;

use crate::{error::CallError, limits::Limits, sync::lock};

/// The limit never goes below this: with responses in 2 ms, still 2000 transactions/s to adapt to.
pub const ADAPTIVE_FLOOR: usize = 4;

/// The limit is multiplied by this on each sign of overload: from 64 to the floor in four steps.
const DECREASE: f64 = 0.5;

/// Requests over which late ones are judged. With fewer, an eighth would be late by chance alone.
const LATE_WINDOW: usize = 64;

/// A share of late responses of at least this is a sign of overload if it is more than twice the
/// share before: a node that fails to respond now and then has a steady share.
const LATE_AND_GROWING: f64 = 0.125;

/// Such a share is a sign of overload whatever the share was before.
const LATE_ANYWAY: f64 = 0.5;

/// Weight of the latest window in the running mean of the share.
const LATE_WEIGHT: f64 = 0.25;

/// What the outcome of one request says about the node's load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signal {
    Timely,
    Late,
    Overloaded,
}

/// Additive increase, multiplicative decrease, as in TCP: halved on a sign of overload, raised by
/// one for each round of responses. Time is passed in.
#[derive(Clone, Copy, Debug)]
struct Aimd {
    limit: f64,
    cap: usize,
    lowered: Option<Instant>,
    /// Requests whose outcome is known since the share of late ones was last judged.
    heard: usize,
    late: usize,
    /// A running mean of the share of late responses.
    late_before: Option<f64>,
    /// Permits that were out when it was lowered: so many that return are not given out again.
    owed: usize,
}

impl Aimd {
    fn new(cap: usize) -> Self {
        let (lowered, late_before) = (None, None);
        Self { limit: cap as f64, cap, lowered, heard: 0, late: 0, late_before, owed: 0 }
    }

    fn limit(&self) -> usize {
        self.limit as usize
    }

    /// Records the outcome of a request sent at `requested_at`. `used`: the limit was in use.
    fn record(&mut self, signal: Signal, requested_at: Instant, used: bool, now: Instant) {
        // Requests that were in flight when the limit was lowered report the same overload.
        if self.lowered.is_some_and(|lowered| requested_at <= lowered) {
            return;
        }
        self.heard += 1;
        match signal {
            Signal::Overloaded => return self.lower(now),
            Signal::Late => self.late += 1,
            // Successes below the limit say nothing about whether the limit can be higher.
            Signal::Timely if used => {
                self.limit = (self.limit + 1.0 / self.limit).min(self.cap as f64);
            }
            Signal::Timely => {}
        }
        if self.heard >= LATE_WINDOW {
            let late = self.late as f64 / self.heard as f64;
            let before = self.late_before.unwrap_or(late);
            self.late_before = Some(before + (late - before) * LATE_WEIGHT);
            (self.heard, self.late) = (0, 0);
            if late >= LATE_ANYWAY || late >= LATE_AND_GROWING && late > 2.0 * before {
                self.lower(now);
            }
        }
    }

    fn lower(&mut self, now: Instant) {
        self.limit = (self.limit * DECREASE).max(ADAPTIVE_FLOOR.min(self.cap) as f64);
        self.lowered = Some(now);
        (self.heard, self.late) = (0, 0);
    }
}

/// The limit of requests in flight at one node. Deferrable work needs none of its own: what a node
/// has listed holds few slots, and fewer when it fails to answer.
pub(crate) struct NodeLimit {
    answers: Mutex<Answers>,
    /// As many permits as the limit and those that are owed, first come, first served.
    permits: Semaphore,
    aimd: Mutex<Aimd>,
}

/// How the node has answered lately.
#[derive(Default)]
struct Answers {
    /// A running mean of the time that an answer took, also of one that came after the time-out.
    mean_time: Duration,
    failures: Option<Failures>,
}

/// Requests for transactions that have failed in a row, without an answer in between.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failures {
    pub(crate) count: u64,
    /// When the first of them failed.
    pub(crate) since: Instant,
    /// How the latest one failed.
    pub(crate) latest: CallError,
}

/// The right to have one request in flight at the node. Released when dropped.
pub(crate) struct RequestPermit {
    limit: Arc<NodeLimit>,
    requested_at: Instant,
}

impl NodeLimit {
    pub(crate) fn new(cap: usize) -> Self {
        let answers = Mutex::default();
        Self { answers, permits: Semaphore::new(cap), aimd: Aimd::new(cap).into() }
    }

    /// How long a request may take: twice as long as the node has needed lately, within the bounds of
    /// the limits. A node behind a slow link answers everything late, and asking it twice does not help.
    pub(super) fn time_limit(&self, limits: &Limits) -> Duration {
        let expected = lock(&self.answers).mean_time * 2;
        expected.clamp(limits.fetch_timeout, limits.late_answer_timeout())
    }

    /// Notes in which time the node has answered a request, with a transaction or without.
    pub(super) fn answered_after(&self, elapsed: Duration) {
        let mut answers = lock(&self.answers);
        answers.failures = None;
        let mean = &mut answers.mean_time;
        // Over about eight answers; a slow one counts at once, so that the next request has the time.
        *mean = if elapsed > *mean * 2 { elapsed } else { (*mean * 7 + elapsed) / 8 };
    }

    /// Notes a request without an answer, or with an error. That a connection was lost says nothing
    /// about the requests.
    fn failed(&self, error: &CallError) {
        if *error == CallError::ConnectionLost {
            return;
        }
        let failures = &mut lock(&self.answers).failures;
        let (count, since) = failures
            .as_ref()
            .map_or_else(|| (0, Instant::now()), |failures| (failures.count, failures.since));
        *failures = Some(Failures { count: count + 1, since, latest: error.clone() });
    }

    /// The requests that have failed since the latest answer.
    pub(crate) fn failures(&self) -> Option<Failures> {
        lock(&self.answers).failures.clone()
    }

    pub(crate) fn limit(&self) -> usize {
        lock(&self.aimd).limit()
    }

    /// A permit for one request now, if the node is below its limit and nobody waits.
    pub(crate) fn try_acquire(self: &Arc<Self>) -> Option<RequestPermit> {
        self.permits.try_acquire().ok()?.forget();
        Some(RequestPermit { limit: Arc::clone(self), requested_at: Instant::now() })
    }

    /// Waits until one more request may be sent. A dropped wait loses its place in the queue alone.
    pub(crate) async fn acquire(self: Arc<Self>) -> RequestPermit {
        self.permits.acquire().await.expect("our semaphores are never closed").forget();
        RequestPermit { limit: self, requested_at: Instant::now() }
    }
}

impl RequestPermit {
    /// Records the error of the request, or none. A permit dropped without this changes no limit.
    pub(crate) fn record(self, error: Option<&CallError>, is_deferrable: bool, elapsed: Duration) {
        match error {
            None => self.limit.answered_after(elapsed),
            Some(error) => self.limit.failed(error),
        }
        let signal = match error {
            None => Signal::Timely,
            Some(CallError::Timeout(_)) => Signal::Late,
            Some(error) if error.is_overload() => Signal::Overloaded,
            // The error is due to the request or the connection, and says nothing about the load.
            Some(_) => return,
        };
        let NodeLimit { permits, aimd, .. } = &*self.limit;
        let mut aimd = lock(aimd);
        let before = aimd.limit();
        let in_flight = before + aimd.owed - permits.available_permits();
        // Deferrable work, which has few slots, raises the limit too: there may be no live work.
        let is_used = is_deferrable || in_flight * 2 >= before;
        aimd.record(signal, self.requested_at, is_used, Instant::now());
        let (fewer, more) =
            (before.saturating_sub(aimd.limit()), aimd.limit().saturating_sub(before));
        aimd.owed += fewer - permits.forget_permits(fewer);
        let not_taken = more.min(aimd.owed);
        aimd.owed -= not_taken;
        permits.add_permits(more - not_taken);
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        // Under the lock, so that what is lowered meanwhile finds it either out or free.
        let mut aimd = lock(&self.limit.aimd);
        match aimd.owed {
            0 => self.limit.permits.add_permits(1),
            _ => aimd.owed -= 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::poll;
    use std::{pin::pin, time::Duration};

    const MS: Duration = Duration::from_millis(1);

    fn many(aimd: &mut Aimd, count: usize, signal: Signal, requested_at: Instant, used: bool) {
        (0..count).for_each(|_| aimd.record(signal, requested_at, used, requested_at + MS));
    }

    fn limit() -> Arc<NodeLimit> {
        Arc::new(NodeLimit::new(64))
    }

    #[test]
    fn the_limit_rises_by_one_for_each_round_of_answers_and_only_while_it_is_used() {
        let mut aimd = Aimd::new(64);
        let start = Instant::now();
        aimd.record(Signal::Overloaded, start, true, start);
        many(&mut aimd, 1_000, Signal::Timely, start, true);
        let after = start + MS;
        many(&mut aimd, 1_000, Signal::Timely, after, false);
        assert_eq!(aimd.limit(), 32, "neither old answers nor idle ones raise it");
        many(&mut aimd, 33, Signal::Timely, after, true);
        assert_eq!(aimd.limit(), 33);
        many(&mut aimd, 64 * 64, Signal::Timely, after, true);
        assert_eq!(aimd.limit(), 64);
    }

    #[test]
    fn a_growing_share_of_late_answers_lowers_the_limit() {
        let mut aimd = Aimd::new(64);
        let mut requested_at = Instant::now();
        let mut window = |late: usize| {
            requested_at += 2 * MS;
            many(&mut aimd, late, Signal::Late, requested_at, false);
            many(&mut aimd, LATE_WINDOW - late, Signal::Timely, requested_at, false);
            aimd.limit()
        };
        assert_eq!(window(4), 64, "the first share is the base line");
        assert_eq!(window(8), 64, "an eighth, but only twice the share before");
        assert_eq!(window(16), 32, "more than twice the share before");
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
                aimd.record(if late { Signal::Late } else { Signal::Timely }, now, true, now);
                sum += aimd.limit();
            }
            let mean = sum / count;
            assert!(mean > 48, "{mean} of 64 at a share of {share}");
        }
    }

    fn busy() -> CallError {
        CallError::Rpc { code: -32005, message: "busy".into() }
    }

    #[tokio::test]
    async fn no_more_permits_are_out_than_the_limit_and_those_that_wait_get_the_next_in_turn() {
        let limit = limit();
        let mut out: Vec<_> = std::iter::from_fn(|| limit.try_acquire()).collect();
        assert_eq!(out.len(), 64);
        out.swap_remove(0).record(Some(&busy()), false, MS);
        // Those in flight at that time report the same overload.
        out.split_off(32).into_iter().for_each(|permit| permit.record(Some(&busy()), false, MS));
        assert_eq!((limit.limit(), out.len()), (32, 32));
        let mut first = pin!(Arc::clone(&limit).acquire());
        let mut second = pin!(Arc::clone(&limit).acquire());
        let mut gives_up = Box::pin(Arc::clone(&limit).acquire());
        assert!(poll!(first.as_mut()).is_pending() && poll!(gives_up.as_mut()).is_pending());
        assert!(poll!(second.as_mut()).is_pending());
        out.truncate(31);
        assert!(limit.try_acquire().is_none(), "it would overtake those that wait");
        let _first = first.await;
        out.truncate(30);
        drop(gives_up);
        let _second = second.await;
        assert!(limit.try_acquire().is_none(), "32 of 32");
        out.truncate(29);
        assert!(limit.try_acquire().is_some(), "nobody waits");
    }

    #[test]
    fn deferrable_work_alone_raises_the_limit_again() {
        let limit = limit();
        limit.try_acquire().expect("free").record(Some(&busy()), false, MS);
        assert_eq!(limit.limit(), 32);
        for _ in 0..64 * 64 {
            limit.try_acquire().expect("free").record(None, true, MS);
        }
        assert_eq!(limit.limit(), 64);
    }
}
