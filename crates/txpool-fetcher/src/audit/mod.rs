//! Compares a node's pool with ours, and fetches what is missing. Entry: [`Comparison::run`].
//!
//! **Subscribe first, then list**, for start-up, reconnect, lag, reorg and audit alike. Every comparison
//! lists the pool instead of comparing counts: with one hash too many and one missing, these are equal.
//!
//! # Locks
//! | lock | who takes it | for how long |
//! |---|---|---|
//! | last comparison | a comparison at its end | one field |

mod list;

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use ::metrics::Gauge;
use alloy_primitives::{B256, U64};
use rand::seq::SliceRandom as _;
use tokio::time::sleep;

use self::list::Content;
use crate::{
    announce::Backlog,
    chain::{self, Chain},
    config::Backfill,
    context::Context,
    error::SnapshotError,
    fetch::{Arrival, Fetch, HeldHash, SHARDS, Seen},
    gap::{GapReason, MIN_SILENCE},
    in_process_pool::PooledHashes,
    metrics::{self, DeferrableWork},
    node::Listing,
    outcome::Entry,
    sink::{Holding, Job},
    sync::{Share, lock},
};

/// How many postponed transactions a comparison offers first.
const OFFERED_FIRST: usize = 32;

/// The longest that an audit waits until our own announcement buffers are read.
const MAX_SETTLE: Duration = Duration::from_secs(10);

/// The longest that a comparison after a lag, or on the timer, waits until live work has caught up:
/// how often a node that announces more than can be read lists its pool.
const MAX_CATCH_UP: Duration = Duration::from_secs(30);

/// Hashes that are looked up before others on this thread have their turn: about a millisecond.
const LOOKED_UP_TOGETHER: usize = 4_096;

/// The part of the announcement buffer that may be filled when live work has caught up.
const CAUGHT_UP: usize = 16;

/// What a comparison does with missing transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AuditMode {
    /// They are fetched.
    Recover,
    /// They are only reported. What has left the node's pool is still marked as vanished.
    CompareOnly,
}

/// The result of a comparison with a node's pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditReport {
    /// Pending transactions that the node listed.
    pub listed: u64,
    /// Pending transactions that the node counts and does not list: blob transactions on geth. The
    /// smaller count of before and after the list is taken: a block in between takes some away.
    pub unlistable: u64,
    /// How many of the listed transactions we never had, after both sides had time to settle.
    pub missing: u64,
    /// The first [`Self::MISSING_SAMPLE`] of these: at start-up the whole pool is missing.
    pub missing_sample: Vec<B256>,
    /// Listed transactions that the sink has removed and does not want: [`Holding::Removed`].
    pub removed: u64,
    /// Listed transactions that the sink refused, or whose responses have ended connections
    /// (`mempool_fetcher_harmful_total`).
    pub refused: u64,
    /// Listed transactions that the sink had no room for, has evicted, or let expire a while ago.
    pub postponed: u64,
    /// How many of the postponed ones were fetched and offered again: 32, chosen at random, then
    /// twice as many, and so on as long as the sink takes at least half of them.
    pub offered_again: u64,
    /// Transactions of ours that are no longer in the node's pool and in no recent block; 0 while that
    /// is not certain, see [`ChainEvent::Vanished`](crate::ChainEvent::Vanished).
    pub vanished: u64,
    /// How many of the missing ones this comparison has fetched, and the sink has now.
    pub recovered: u64,
    /// How many are missing still: their fetches have failed, and the next comparison repeats them.
    pub failed: u64,
    /// Of a source that has fallen silent: listed transactions that were not 4 s before. Else 0.
    pub unannounced: u64,
}

impl AuditReport {
    /// Most hashes in [`Self::missing_sample`].
    pub const MISSING_SAMPLE: usize = 16;
}

/// The comparisons of one source, for display.
#[derive(Debug, Default)]
pub(crate) struct AuditState {
    /// How many were started.
    pub(crate) audits: AtomicU64,
    /// How many they still have to fetch.
    pub(crate) to_recover: AtomicU64,
    /// When the latest comparison began after which nothing was missing any more; or the first one.
    compared: Mutex<Option<Instant>>,
}

impl AuditState {
    /// Notes a comparison that began at `started`. Returns how long, at most, what it found
    /// `missing` had been missing.
    fn compared(&self, started: Instant, missing: bool, stays_missing: bool) -> Option<Duration> {
        let mut compared = lock(&self.compared);
        let before = *compared;
        if !stays_missing || before.is_none() {
            *compared = Some(started);
        }
        before.filter(|_| missing).map(|before| started.duration_since(before))
    }
}

#[derive(Clone)]
pub(crate) struct Comparison {
    pub(crate) context: Arc<Context>,
    pub(crate) fetch: Arc<Fetch>,
    pub(crate) chain: Arc<Chain>,
    pub(crate) state: Arc<AuditState>,
    pub(crate) backlog: Arc<Backlog>,
    /// Of [`AuditReport::unlistable`].
    pub(crate) unlistable: Gauge,
    /// Of [`AuditReport::removed`], `refused`, `postponed` and `failed`.
    pub(crate) listed_not_held: [Gauge; 4],
    pub(crate) source: usize,
    pub(crate) reason: GapReason,
    pub(crate) mode: AuditMode,
    /// Whether it waits while the load is high.
    pub(crate) deferrable: bool,
}

impl Comparison {
    /// And how long it took, without what it has waited for before.
    pub(crate) async fn run(self) -> (Result<AuditReport, SnapshotError>, Duration) {
        if self.deferrable {
            self.context.deferral.wait(DeferrableWork::Audit, Instant::now()).await;
        }
        if self.deferrable || self.reason == GapReason::Lagged {
            // To list the pool and fetch what overran the buffer would make it overrun again.
            let few = (self.context.settings.limits.announcement_buffer / CAUGHT_UP) as u64;
            self.processed_but(few, MAX_CATCH_UP).await;
        }
        let began = Instant::now();
        let result = self.compare().await;
        let endpoint = &self.context.settings.config.sources[self.source];
        let reason = self.reason.as_str();
        let outcome = match &result {
            Ok(report) => {
                let AuditReport { listed, missing, recovered, failed, vanished, .. } = report;
                let AuditReport { removed, refused, postponed, .. } = report;
                tracing::info!(
                    %endpoint, reason, listed, missing, recovered, failed, removed, refused, postponed,
                    vanished, "compared with the node's pool"
                );
                if *missing > 0 {
                    "recovered"
                } else if *vanished > 0 {
                    "vanished"
                } else {
                    "equal"
                }
            }
            Err(error) => {
                tracing::warn!(%endpoint, reason, %error, "cannot compare with the node's pool");
                "failed"
            }
        };
        metrics::compared(reason, outcome);
        (result, began.elapsed())
    }

    /// Waits until at most so `few` announcements that were read from the socket wait.
    async fn processed_but(&self, few: u64, limit: Duration) {
        let deadline = Instant::now() + limit;
        while self.backlog.len() > few && Instant::now() < deadline {
            sleep(Duration::from_millis(10)).await;
        }
    }

    async fn compare(&self) -> Result<AuditReport, SnapshotError> {
        let context = &self.context;
        self.state.audits.fetch_add(1, Relaxed);
        // What is pending at this point and not announced proves nothing: it may have been pending
        // before the subscription, or be announced by another source.
        let mut before = None;
        if self.reason == GapReason::Silence {
            before = Some(HashSet::<B256>::from_iter(self.list().await?.pending));
            sleep(MIN_SILENCE).await;
        }
        let counted_before = self.status().await;
        // Transactions delivered from here on may be newer than the list.
        let epoch = context.hashes.seen.begin_epoch();
        let started = Instant::now();
        let content = self.list().await?;
        let counted = counted_before.into_iter().chain(self.status().await).min();
        // The announcements of what is listed: those still on their way, then those that were read.
        sleep(context.settings.limits.audit_settle).await;
        self.processed_but(0, MAX_SETTLE).await;
        let mut report = AuditReport {
            listed: content.pending.len() as u64,
            unlistable: counted.unwrap_or(0).saturating_sub(content.pending.len() as u64),
            unannounced: before.map_or(0, |before| {
                content.pending.iter().filter(|hash| !before.contains(*hash)).count() as u64
            }),
            ..Default::default()
        };
        self.unlistable.set(report.unlistable as f64);
        let queued = context.settings.config.backfill == Backfill::PendingAndQueued;
        let queued = content.queued.iter().filter(|_| queued);
        let mut missing: Vec<B256> = Vec::new();
        let (mut asked, mut postponed) = (Vec::new(), Vec::new());
        for (place, hash) in content.pending.iter().chain(queued).enumerate() {
            if place % LOOKED_UP_TOGETHER == 0 {
                tokio::task::yield_now().await;
            }
            match self.verdict(hash) {
                Verdict::Ours => {}
                Verdict::Refused => report.refused += 1,
                Verdict::Postponed => postponed.push(*hash),
                Verdict::AskSink { .. } => asked.push(*hash),
            }
        }
        let holdings = self.context.sink.queue.holding(&asked).await;
        for (hash, holding) in asked.into_iter().zip(holdings) {
            // It may have been announced or mined meanwhile.
            let Verdict::AskSink { was_delivered } = self.verdict(&hash) else { continue };
            match holding {
                Holding::Held => {}
                Holding::Removed => report.removed += 1,
                Holding::MayReturn => postponed.push(hash),
                Holding::Unknown if was_delivered => {}
                Holding::Unknown | Holding::Missing => missing.push(hash),
            }
        }
        report.postponed = postponed.len() as u64;
        if self.mode == AuditMode::Recover {
            let ended = self.recover(&missing, epoch).await;
            (report.recovered, report.failed) = (ended.delivered, ended.failed);
            report.offered_again = self.offer_again(postponed, epoch).await;
        }
        // What the node counts and does not list are its blob transactions, if it lists none of these and
        // some have come: geth. That the counts are equal does not show that it lists blob transactions:
        // as many others may have come between the count and the list.
        let had_blobs = self.fetch.had_blobs();
        let has_blobs = report.unlistable == 0 && (content.lists_blobs || !had_blobs);
        let hides_blobs = had_blobs && !content.lists_blobs;
        let is_complete = counted.is_some() && (report.unlistable == 0 || hides_blobs);
        let hashes = content.pending.into_iter().chain(content.queued).collect();
        let listing = is_complete.then(|| Listing { hashes, epoch, has_blobs }.into());
        let before = self.context.listings[self.source].set_latest(listing.clone());
        if let Some(listing) = listing {
            if before.is_none() {
                self.report_listed(&listing).await;
            }
            report.vanished = self.mark_vanished(epoch).await;
        }
        let not_held = [report.removed, report.refused, report.postponed, report.failed];
        for (gauge, count) in self.listed_not_held.iter().zip(not_held) {
            gauge.set(count as f64);
        }
        // What was not fetched, or in vain, is missing since before this comparison.
        let stays_missing = match self.mode {
            AuditMode::CompareOnly => !missing.is_empty(),
            AuditMode::Recover => report.failed > 0,
        };
        if let Some(time) = self.state.compared(started, !missing.is_empty(), stays_missing) {
            context.metrics.missing_seconds.record(time.as_secs_f64());
        }
        report.missing = missing.len() as u64;
        report.missing_sample = missing.iter().take(AuditReport::MISSING_SAMPLE).copied().collect();
        Ok(report)
    }

    /// How many pending transactions the node counts. A pool in this process lists all.
    async fn status(&self) -> Option<u64> {
        if self.context.settings.in_process_pool(self.source).is_some() {
            return Some(0);
        }
        let connection = self.context.connections.calls(self.source)?;
        let limit = self.context.settings.limits.call_timeout;
        let answer = connection.call("txpool_status", (), limit).await.ok()?;
        let status: HashMap<String, U64> = serde_json::from_str(answer.get()).ok()?;
        Some(status.get("pending")?.to())
    }

    async fn list(&self) -> Result<Content, SnapshotError> {
        let settings = &self.context.settings;
        if let Some(pool) = settings.in_process_pool(self.source) {
            let listed = pool.call(&self.context.tasks, "pooled", |pool| pool.pooled()).await;
            let PooledHashes { pending, queued } = listed?;
            return Ok(Content { pending, queued, lists_blobs: true });
        }
        let listings = &self.context.listings[self.source];
        let _running = Share::of(&listings.running, 1);
        let begin = Instant::now();
        let (endpoint, limits) = (&settings.config.sources[self.source], &settings.limits);
        let listed = list::request(endpoint, limits, &self.context.tasks).await;
        listings.took(begin.elapsed(), listed.is_ok());
        if listed.is_err() {
            listings.set_latest(None);
        }
        listed
    }

    fn verdict(&self, hash: &B256) -> Verdict {
        match self.context.hashes.seen.get(hash) {
            Some(Seen::InFlight) => Verdict::Ours,
            Some(Seen::Delivered) => Verdict::AskSink { was_delivered: true },
            Some(Seen::Refused | Seen::Harmful) => Verdict::Refused,
            Some(Seen::Postponed) => Verdict::Postponed,
            // Mined between the list and now.
            _ if self.context.hashes.is_mined(hash) => Verdict::Ours,
            // Pending again, so the block that contained it was removed; or it had left the pool.
            _ => Verdict::AskSink { was_delivered: false },
        }
    }

    /// Offers again what the sink had no room for. One that is still full refuses the first few, so
    /// a comparison does not fetch thousands in vain; one with room gets all of them.
    async fn offer_again(&self, mut postponed: Vec<B256>, epoch: u32) -> u64 {
        // In the order of the list, the same few would be offered each time.
        postponed.shuffle(&mut rand::rng());
        let (mut offered, mut together) = (0, OFFERED_FIRST);
        while !postponed.is_empty() {
            let some = postponed.split_off(postponed.len().saturating_sub(together));
            offered += self.recover(&some, epoch).await.fetched;
            let is_postponed =
                |hash: &&B256| self.context.hashes.seen.get(hash) == Some(Seen::Postponed);
            if some.iter().filter(is_postponed).count() * 2 > some.len() {
                break;
            }
            together *= 2;
        }
        offered
    }

    /// Fetches hashes as deferrable work, and waits until they have their outcomes.
    async fn recover(&self, missing: &[B256], epoch: u32) -> Ended {
        let (entry, work) = match self.reason {
            GapReason::StartUp | GapReason::Reconnect => {
                (Entry::Backfilled, DeferrableWork::Backfill)
            }
            _ => (Entry::AuditRecovered, DeferrableWork::Audit),
        };
        let since = Instant::now();
        let mut fetched = vec![false; missing.len()];
        let mut left = Share::of(&self.state.to_recover, missing.len() as u64);
        for (hash, is_fetched) in missing.iter().zip(&mut fetched) {
            self.context.deferral.wait(work, since).await;
            left.one_done();
            let at = Instant::now();
            let arrival = Arrival { hash: *hash, entry, source: self.source, at };
            // It may have been announced meanwhile, or found missing in another node's pool.
            let Some(ticket) = self.context.hashes.enter_missing(arrival, epoch) else { continue };
            *is_fetched = true;
            // What our own buffer lost was announced as recently as what is live: once live work has
            // caught up, it takes the same slots.
            if self.reason == GapReason::Lagged && !self.context.deferral.is_pressed() {
                self.fetch.fetch(ticket).await;
            } else {
                self.fetch.fetch_missing(ticket).await;
            }
        }
        let hashes = &self.context.hashes;
        let mut ended = Ended::default();
        for (place, (hash, is_fetched)) in missing.iter().zip(fetched).enumerate() {
            if place % LOOKED_UP_TOGETHER == 0 {
                tokio::task::yield_now().await;
            }
            let mut seen = hashes.seen.get(hash);
            while seen == Some(Seen::InFlight) {
                sleep(Duration::from_millis(5)).await;
                seen = hashes.seen.get(hash);
            }
            ended.fetched += u64::from(is_fetched);
            ended.delivered += u64::from(is_fetched && seen.is_some_and(Seen::was_delivered));
            ended.failed += u64::from(seen == Some(Seen::Failed) && !hashes.is_mined(hash));
        }
        ended
    }

    /// Reports to the sink what it holds of a list, if the node could not be listed before: then it was
    /// delivered as a transaction of which nobody knows when it leaves the node's pool.
    async fn report_listed(&self, listing: &Listing) {
        let mut listed = Vec::new();
        for shard in 0..SHARDS {
            let held = self.context.hashes.seen.held(shard).into_iter();
            listed.extend(held.map(|held| held.hash).filter(|hash| listing.hashes.contains(hash)));
            tokio::task::yield_now().await;
        }
        if !listed.is_empty() {
            self.context.sink.queue.push(Job::Listed(listed));
        }
    }

    /// Marks our transactions that are in no node's pool any more: each source that has announced one
    /// lists its pool, and no list has it.
    async fn mark_vanished(&self, epoch: u32) -> u64 {
        let lists = latest_lists(&self.context);
        let has_left = |held: &HeldHash| {
            let is_lost = |source: usize| {
                lists[source].as_ref().is_some_and(|listing| listing.has_lost(held))
            };
            is_lost(self.source)
                && held.sources.iter().all(is_lost)
                && !lists.iter().flatten().any(|listing| listing.hashes.contains(&held.hash))
                && !self.context.hashes.is_mined(&held.hash)
        };
        let mut vanished = Vec::new();
        for shard in 0..SHARDS {
            let held = self.context.hashes.seen.held(shard).into_iter();
            vanished.extend(held.filter(has_left).map(|held| held.hash));
            tokio::task::yield_now().await;
        }
        if vanished.is_empty() {
            return 0;
        }
        // What a block took that is still being read, or whose ancestors are, has not vanished.
        let latest = chain::latest(&self.chain, self.source).await;
        let is_applied = |hash| lock(&self.context.hashes.blocks).block(&hash).is_some();
        if !latest.is_some_and(|latest| is_applied(latest.head.hash)) {
            return 0;
        }
        // A block may have been applied meanwhile.
        let hashes = &self.context.hashes;
        let is_held = |hash: &B256| hashes.seen.get(hash).is_some_and(Seen::is_held);
        vanished.retain(|hash| is_held(hash) && !hashes.is_mined(hash));
        let count = vanished.len() as u64;
        // If the sink has not taken an earlier list, the next comparison finds these again.
        if count == 0 || !self.context.sink.queue.push_vanished(vanished.clone()) {
            return 0;
        }
        for hash in vanished {
            self.context.hashes.seen.vanished(hash, epoch);
        }
        count
    }
}

/// The latest complete list of each source.
fn latest_lists(context: &Context) -> Vec<Option<Arc<Listing>>> {
    context.listings.iter().map(|listings| listings.latest()).collect()
}

/// Reports to the sink what `source` has announced and no other source lists: its pool cannot be listed
/// any more, so nobody knows when these leave it.
pub(crate) async fn report_unlisted(context: Arc<Context>, source: usize) {
    let lists = latest_lists(&context);
    let mut unlisted = Vec::new();
    for shard in 0..SHARDS {
        let held = context.hashes.seen.held(shard).into_iter();
        let is_listed_nowhere = |held: &HeldHash| {
            let mut listings = lists.iter().flatten();
            held.sources.contains(source)
                && !listings.any(|listing| listing.hashes.contains(&held.hash))
        };
        unlisted.extend(held.filter(is_listed_nowhere).map(|held| held.hash));
        tokio::task::yield_now().await;
    }
    if !unlisted.is_empty() {
        context.sink.queue.push(Job::Unlisted(unlisted));
    }
}

/// What became of the hashes of [`Comparison::recover`].
#[derive(Default)]
struct Ended {
    /// Not those that were announced while they were deferred: these are fetched as live.
    fetched: u64,
    /// Of these, what the sink has now.
    delivered: u64,
    /// Of all.
    failed: u64,
}

/// What we know of a listed hash. What was delivered is held, unless the sink says otherwise.
enum Verdict {
    Ours,
    Refused,
    Postponed,
    AskSink { was_delivered: bool },
}
