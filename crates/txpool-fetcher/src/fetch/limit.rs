//! The limit of requests in flight at one node: decides from the node's responses whether the node
//! is overloaded, and how long a request to it may take.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use tokio::sync::Semaphore;

use crate::{error::CallError, limits::Limits, sync::lock};

/// Lower bound of [`SourceStatus::fetch_limit`](crate::SourceStatus::fetch_limit), in requests, for
/// an overloaded node. With responses in 2 ms, 4 requests in flight are still 2,000 transactions/s.
pub const ADAPTIVE_FLOOR: usize = 4;

/// The factor of the limit on each sign of overload: from 64 to the floor in four steps.
const DECREASE: f64 = 0.5;

/// The number of requests over which the share of late responses is judged. With fewer, an eighth
/// of them would be late by chance alone.
const LATE_WINDOW: usize = 64;

/// The share of late responses from which on they are a sign of overload, if the share is also more
/// than twice the mean before: a node that fails to respond now and then has a steady share.
const OVERLOAD_SHARE_IF_GROWING: f64 = 0.125;

/// The share of late responses from which on they are a sign of overload in any case.
const OVERLOAD_SHARE: f64 = 0.5;

/// Weight of the latest window in the running mean of the share.
const WINDOW_WEIGHT: f64 = 0.25;

/// What the response to one request says about the node's load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signal {
    Timely,
    Late,
    Overloaded,
}

/// The rule for the limit: additive increase, multiplicative decrease, as in TCP. The limit is
/// halved on a sign of overload, and raised by one for each round of responses. It is pure: the
/// time is a parameter.
#[derive(Clone, Copy, Debug)]
struct Aimd {
    limit: f64,
    cap: usize,
    /// When the limit was lowered last.
    lowered_at: Option<Instant>,
    /// The number of requests recorded since the share of late responses was last judged.
    recorded: usize,
    /// How many of these were late.
    late: usize,
    /// The running mean of the share of late responses.
    mean_late_share: Option<f64>,
    /// The number of permits in use above the limit, because it was lowered. As many permits are
    /// not given out again when they are released.
    surplus: usize,
}

impl Aimd {
    fn new(cap: usize) -> Self {
        Self {
            limit: cap as f64,
            cap,
            lowered_at: None,
            recorded: 0,
            late: 0,
            mean_late_share: None,
            surplus: 0,
        }
    }

    fn limit(&self) -> usize {
        self.limit as usize
    }

    /// Records the outcome of a request that was sent at `sent_at`. `is_used` says whether at least
    /// half of the limit was in use: responses below that do not show that the limit can be higher.
    fn record(&mut self, signal: Signal, sent_at: Instant, is_used: bool, now: Instant) {
        // Requests that were in flight when the limit was lowered report the same overload.
        if self.lowered_at.is_some_and(|lowered_at| sent_at <= lowered_at) {
            return;
        }
        self.recorded += 1;
        match signal {
            Signal::Overloaded => return self.lower(now),
            Signal::Late => self.late += 1,
            Signal::Timely if is_used => {
                self.limit = (self.limit + 1.0 / self.limit).min(self.cap as f64);
            }
            Signal::Timely => {}
        }
        if self.recorded >= LATE_WINDOW {
            let share = self.late as f64 / self.recorded as f64;
            let mean = self.mean_late_share.unwrap_or(share);
            self.mean_late_share = Some(mean + (share - mean) * WINDOW_WEIGHT);
            (self.recorded, self.late) = (0, 0);
            let is_growing = share > 2.0 * mean;
            if share >= OVERLOAD_SHARE || share >= OVERLOAD_SHARE_IF_GROWING && is_growing {
                self.lower(now);
            }
        }
    }

    fn lower(&mut self, now: Instant) {
        self.limit = (self.limit * DECREASE).max(ADAPTIVE_FLOOR.min(self.cap) as f64);
        self.lowered_at = Some(now);
        (self.recorded, self.late) = (0, 0);
    }
}

/// The limit of requests in flight at one node. Deferrable work needs no limit of its own, because
/// it holds few slots, and fewer when the node does not respond.
pub(crate) struct NodeLimit {
    responses: Mutex<Responses>,
    /// Has as many permits as the limit and the surplus together, in use or free; first come, first
    /// served.
    permits: Semaphore,
    aimd: Mutex<Aimd>,
}

/// The recent responses of the node.
#[derive(Default)]
struct Responses {
    /// The running mean of the response time, also of responses after a time-out.
    mean_time: Duration,
    failures: Option<Failures>,
    /// When the latest request failed.
    failed_at: Option<Instant>,
    /// The latest failures are transactions that the node lists and does not return.
    are_listed: bool,
    /// When the node returned a transaction last.
    returned_at: Option<Instant>,
}

/// Requests for transactions that failed in a row, without a response in between.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failures {
    pub(crate) count: u64,
    /// When the first of them failed.
    pub(crate) since: Instant,
    /// The error of the latest one.
    pub(crate) latest: CallError,
}

/// The right to have one request in flight at the node. Released when dropped.
pub(crate) struct RequestPermit {
    limit: Arc<NodeLimit>,
    sent_at: Instant,
}

impl NodeLimit {
    pub(crate) fn new(cap: usize) -> Self {
        Self {
            responses: Mutex::default(),
            permits: Semaphore::new(cap),
            aimd: Aimd::new(cap).into(),
        }
    }

    /// Returns the time-out of a request: twice the node's recent response time, within the bounds
    /// of the limits. A node behind a slow link answers everything late, and asking it twice does
    /// not help.
    pub(super) fn time_limit(&self, limits: &Limits) -> Duration {
        let expected = lock(&self.responses).mean_time * 2;
        expected.clamp(limits.fetch_timeout, limits.late_answer_timeout())
    }

    /// Records the time in which the node responded to a request, with a transaction or without.
    pub(super) fn record_response_time(&self, elapsed: Duration) {
        let mut responses = lock(&self.responses);
        // That a node does not have some transaction does not show that it returns those that it
        // lists.
        if !responses.are_listed {
            responses.failures = None;
        }
        let mean = &mut responses.mean_time;
        // The mean is over about eight responses. A slow response counts fully, so that the next
        // request has as much time.
        *mean = if elapsed > *mean * 2 { elapsed } else { (*mean * 7 + elapsed) / 8 };
    }

    /// Records that the node returned a transaction.
    pub(super) fn record_transaction(&self) {
        let mut responses = lock(&self.responses);
        responses.failures = None;
        responses.are_listed = false;
        responses.returned_at = Some(Instant::now());
    }

    /// Returns whether the node has returned a transaction since this time.
    pub(super) fn has_returned_since(&self, time: Instant) -> bool {
        lock(&self.responses).returned_at.is_some_and(|returned_at| returned_at >= time)
    }

    /// Records requests for transactions that the node lists and does not return.
    pub(super) fn record_listed_absent(&self, count: u64) {
        let error = CallError::Unreadable { response: "null for a listed transaction".into() };
        for _ in 0..count {
            self.record_failure(&error);
        }
        lock(&self.responses).are_listed |= count > 0;
    }

    /// Records a request with an error, or without a response. A lost connection does not count,
    /// because it says nothing about the requests.
    fn record_failure(&self, error: &CallError) {
        if *error == CallError::ConnectionLost {
            return;
        }
        let Responses { failures, failed_at, .. } = &mut *lock(&self.responses);
        let now = Instant::now();
        let (count, since) =
            failures.as_ref().map_or((0, now), |failures| (failures.count, failures.since));
        *failures = Some(Failures { count: count + 1, since, latest: error.clone() });
        *failed_at = Some(now);
    }

    /// Forgets the failures if all are from before this time.
    pub(super) fn forget_failures_before(&self, time: Instant) {
        let mut responses = lock(&self.responses);
        if responses.failed_at.is_some_and(|failed_at| failed_at < time) {
            responses.failures = None;
            responses.are_listed = false;
        }
    }

    /// Returns the requests that failed since the latest response.
    pub(crate) fn failures(&self) -> Option<Failures> {
        lock(&self.responses).failures.clone()
    }

    /// Returns the current limit of requests in flight.
    pub(crate) fn limit(&self) -> usize {
        lock(&self.aimd).limit()
    }

    /// Returns a permit for one request, if the node is below its limit and no task waits for a
    /// permit.
    pub(crate) fn try_acquire(self: &Arc<Self>) -> Option<RequestPermit> {
        self.permits.try_acquire().ok()?.forget();
        Some(RequestPermit { limit: Arc::clone(self), sent_at: Instant::now() })
    }

    /// Waits until one more request may be sent.
    ///
    /// # Cancel safety
    /// A wait that is dropped loses its place in the queue.
    pub(crate) async fn acquire(self: Arc<Self>) -> RequestPermit {
        self.permits.acquire().await.expect("the semaphore is never closed").forget();
        RequestPermit { limit: self, sent_at: Instant::now() }
    }
}

impl RequestPermit {
    /// Records the response of the request: its error, or `None` for a result. A permit that is
    /// dropped without this changes no limit.
    pub(crate) fn record(self, error: Option<&CallError>, is_deferrable: bool, elapsed: Duration) {
        match error {
            None => self.limit.record_response_time(elapsed),
            Some(error) => self.limit.record_failure(error),
        }
        let signal = match error {
            None => Signal::Timely,
            Some(CallError::Timeout(_)) => Signal::Late,
            Some(error) if error.is_overload() => Signal::Overloaded,
            // An error of the request or the connection says nothing about the load.
            Some(_) => return,
        };
        let NodeLimit { permits, aimd, .. } = &*self.limit;
        let mut aimd = lock(aimd);
        let before = aimd.limit();
        let in_flight = before + aimd.surplus - permits.available_permits();
        // Deferrable work, which has few slots, raises the limit too: there may be no live work.
        let is_used = is_deferrable || in_flight * 2 >= before;
        aimd.record(signal, self.sent_at, is_used, Instant::now());
        let decrease = before.saturating_sub(aimd.limit());
        let increase = aimd.limit().saturating_sub(before);
        // A lower limit takes free permits first; the rest are in use, and are the surplus.
        aimd.surplus += decrease - permits.forget_permits(decrease);
        // A higher limit covers the surplus first; the rest are new permits.
        let covered = increase.min(aimd.surplus);
        aimd.surplus -= covered;
        permits.add_permits(increase - covered);
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        // Under the lock, so that a change of the limit finds the permit either in use or free.
        let mut aimd = lock(&self.limit.aimd);
        if aimd.surplus == 0 {
            self.limit.permits.add_permits(1);
        } else {
            aimd.surplus -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::poll;
    use std::{pin::pin, time::Duration};

    const MS: Duration = Duration::from_millis(1);

    fn record_many(aimd: &mut Aimd, count: usize, signal: Signal, sent_at: Instant, used: bool) {
        (0..count).for_each(|_| aimd.record(signal, sent_at, used, sent_at + MS));
    }

    fn limit() -> Arc<NodeLimit> {
        Arc::new(NodeLimit::new(64))
    }

    #[test]
    fn the_limit_rises_by_one_per_round_while_it_is_used() {
        let mut aimd = Aimd::new(64);
        let start = Instant::now();
        aimd.record(Signal::Overloaded, start, true, start);
        record_many(&mut aimd, 1_000, Signal::Timely, start, true);
        let after = start + MS;
        record_many(&mut aimd, 1_000, Signal::Timely, after, false);
        assert_eq!(
            aimd.limit(),
            32,
            "neither old responses nor responses below the limit raise it"
        );
        record_many(&mut aimd, 33, Signal::Timely, after, true);
        assert_eq!(aimd.limit(), 33);
        record_many(&mut aimd, 64 * 64, Signal::Timely, after, true);
        assert_eq!(aimd.limit(), 64);
    }

    #[test]
    fn a_growing_share_of_late_responses_lowers_the_limit() {
        let mut aimd = Aimd::new(64);
        let mut sent_at = Instant::now();
        let mut window = |late: usize| {
            sent_at += 2 * MS;
            record_many(&mut aimd, late, Signal::Late, sent_at, false);
            record_many(&mut aimd, LATE_WINDOW - late, Signal::Timely, sent_at, false);
            aimd.limit()
        };
        assert_eq!(window(4), 64, "the first share is the baseline");
        assert_eq!(window(8), 64, "an eighth, but only twice the share before");
        assert_eq!(window(16), 32, "more than twice the share before");
        assert_eq!(window(32), 16, "half of all");
        assert_eq!(window(32), 8, "half of all, still");
    }

    #[test]
    fn a_steady_share_of_late_responses_leaves_the_limit_near_its_cap() {
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
    async fn permits_never_exceed_the_limit_and_go_to_waiters_in_turn() {
        let limit = limit();
        let mut held: Vec<_> = std::iter::from_fn(|| limit.try_acquire()).collect();
        assert_eq!(held.len(), 64);
        held.swap_remove(0).record(Some(&busy()), false, MS);
        // The requests that were in flight report the same overload.
        held.split_off(32).into_iter().for_each(|permit| permit.record(Some(&busy()), false, MS));
        assert_eq!((limit.limit(), held.len()), (32, 32));
        let mut first = pin!(Arc::clone(&limit).acquire());
        let mut second = pin!(Arc::clone(&limit).acquire());
        let mut gives_up = Box::pin(Arc::clone(&limit).acquire());
        assert!(poll!(first.as_mut()).is_pending() && poll!(gives_up.as_mut()).is_pending());
        assert!(poll!(second.as_mut()).is_pending());
        held.truncate(31);
        assert!(limit.try_acquire().is_none(), "it would overtake the waiters");
        let _first = first.await;
        held.truncate(30);
        drop(gives_up);
        let _second = second.await;
        assert!(limit.try_acquire().is_none(), "32 of 32");
        held.truncate(29);
        assert!(limit.try_acquire().is_some(), "no task waits");
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
