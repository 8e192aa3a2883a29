//! Compares a node's pool with the fetcher's hashes, fetches missing transactions, and decides
//! which transactions have vanished. Entry: [`Comparison::run`].
//!
//! **Subscribe first, then list**: that holds for start-up, reconnect, lag, reorg and audit. Every
//! comparison lists the pool instead of comparing numbers, which are equal with one hash too many
//! and one missing.
//!
//! # Locks
//! | lock | taken by | for how long |
//! |---|---|---|
//! | last comparison, absent hashes | a comparison at its end | one field |

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

/// The number of postponed transactions that a comparison offers first.
const FIRST_OFFER: usize = 32;

/// The longest time for which an audit waits until the announcement buffers are read.
const MAX_SETTLE: Duration = Duration::from_secs(10);

/// The longest time for which a comparison after a lag, or on the timer, waits until live work has
/// caught up. It bounds how often a node lists its pool that announces more than can be read.
const MAX_CATCH_UP: Duration = Duration::from_secs(30);

/// The number of hashes that are looked up before other tasks on this thread run: about a
/// millisecond.
const LOOKUP_BATCH: usize = 4_096;

/// Live work has caught up when at most this part, one sixteenth, of the announcement buffer is
/// filled.
const CAUGHT_UP: usize = 16;

/// The number of missing transactions from which on it is suspicious that a node lists them and
/// returns none: a few may be replaced while they are listed.
const SUSPICIOUS_ABSENCES: usize = 8;

/// The number of these that are remembered until the next comparison.
const MAX_ABSENT: usize = 1_024;

/// What a comparison does with missing transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AuditMode {
    /// Missing transactions are fetched.
    Recover,
    /// Missing transactions are only reported. Those that left the node's pool are still reported
    /// as vanished.
    CompareOnly,
}

/// The result of a comparison with a node's pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditReport {
    /// The number of pending transactions that the node listed.
    pub listed: u64,
    /// The number of pending transactions that the node counts and does not list: blob transactions
    /// on geth. The node counts before and after the list, and the smaller number is used, because
    /// a block in between removes some.
    pub unlistable: u64,
    /// The number of listed transactions that the fetcher never had, or that the sink has as
    /// private ones, after both sides had time to settle.
    pub missing: u64,
    /// The first [`Self::MISSING_SAMPLE`] missing transactions; at start-up the whole pool is
    /// missing.
    pub missing_sample: Vec<B256>,
    /// The number of listed transactions that the sink has removed and does not want:
    /// [`Holding::Removed`].
    pub removed: u64,
    /// The number of listed transactions that the sink refused, or whose responses ended
    /// connections (`mempool_fetcher_harmful_total`).
    pub refused: u64,
    /// The number of listed transactions that the sink had no room for, has evicted, or let expire
    /// a while ago.
    pub postponed: u64,
    /// The number of postponed transactions that were fetched and offered again: 32, chosen at
    /// random, then twice as many, and so on as long as the sink accepts at least half of them.
    pub offered_again: u64,
    /// The number of delivered transactions that are no longer in the node's pool and in no recent
    /// block; 0 while that is not certain, see
    /// [`ChainEvent::Vanished`](crate::ChainEvent::Vanished).
    pub vanished: u64,
    /// The number of missing transactions that this comparison fetched and the sink has now.
    pub recovered: u64,
    /// The number of transactions that are still missing, because their fetches failed, or because
    /// the node returned none of at least eight that it lists. The next comparison repeats them.
    pub failed: u64,
    /// For a source that fell silent: the number of listed transactions that it had not listed 4 s
    /// before. Otherwise 0.
    pub unannounced: u64,
}

impl AuditReport {
    /// The highest number of hashes in [`Self::missing_sample`].
    pub const MISSING_SAMPLE: usize = 16;
}

/// The progress of the comparisons of one source, for its status.
#[derive(Debug, Default)]
pub(crate) struct AuditState {
    /// The number of comparisons that were started.
    pub(crate) audits: AtomicU64,
    /// The number of hashes that running comparisons still have to fetch.
    pub(crate) to_recover: AtomicU64,
    /// When the latest comparison began after which no transaction was missing any more, or the
    /// first comparison.
    compared_at: Mutex<Option<Instant>>,
    /// Some of the hashes that the node listed in the latest comparison and did not return, if it
    /// returned none.
    absent: Mutex<HashSet<B256>>,
}

impl AuditState {
    /// Remembers the hashes that the node listed in a comparison and did not return. Returns how
    /// many of them it had not returned in the comparison before either.
    fn set_absent(&self, hashes: Vec<B256>) -> u64 {
        let mut absent = lock(&self.absent);
        let listed_again = hashes.iter().filter(|hash| absent.contains(*hash)).count();
        *absent = hashes.into_iter().collect();
        listed_again as u64
    }

    /// Records a comparison that began at `began_at`. If it found missing transactions
    /// (`has_missing`), returns the longest time for which they may have been missing.
    /// `stays_missing` says that some still are.
    fn record(
        &self,
        began_at: Instant,
        has_missing: bool,
        stays_missing: bool,
    ) -> Option<Duration> {
        let mut compared_at = lock(&self.compared_at);
        let before = *compared_at;
        if !stays_missing || before.is_none() {
            *compared_at = Some(began_at);
        }
        before.filter(|_| has_missing).map(|before| began_at.duration_since(before))
    }
}

/// A comparison with the pool of one source.
#[derive(Clone)]
pub(crate) struct Comparison {
    pub(crate) context: Arc<Context>,
    pub(crate) fetch: Arc<Fetch>,
    pub(crate) chain: Arc<Chain>,
    pub(crate) state: Arc<AuditState>,
    pub(crate) backlog: Arc<Backlog>,
    /// The gauge of [`AuditReport::unlistable`].
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
    /// Runs the comparison. Returns its result, and how long it took without the waits before it.
    pub(crate) async fn run(self) -> (Result<AuditReport, SnapshotError>, Duration) {
        if self.deferrable {
            self.context.deferral.wait(DeferrableWork::Audit, Instant::now()).await;
        }
        if self.deferrable || self.reason == GapReason::Lagged {
            // Listing the pool and fetching while the buffer is full would make it overrun again.
            let max_waiting = (self.context.settings.limits.announcement_buffer / CAUGHT_UP) as u64;
            self.wait_for_backlog(max_waiting, MAX_CATCH_UP).await;
        }
        let began_at = Instant::now();
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
        metrics::count_comparison(reason, outcome);
        (result, began_at.elapsed())
    }

    /// Waits until at most `max_waiting` announcements of the source wait to be processed, for at
    /// most `limit`.
    async fn wait_for_backlog(&self, max_waiting: u64, limit: Duration) {
        let deadline = Instant::now() + limit;
        while self.backlog.len() > max_waiting && Instant::now() < deadline {
            sleep(Duration::from_millis(10)).await;
        }
    }

    async fn compare(&self) -> Result<AuditReport, SnapshotError> {
        let context = &self.context;
        self.state.audits.fetch_add(1, Relaxed);
        // A hash that is pending now and was not announced proves nothing: it may be older than the
        // subscription, or another source may have announced it. So the pool is listed twice.
        let mut before = None;
        if self.reason == GapReason::Silence {
            before = Some(HashSet::<B256>::from_iter(self.list().await?.pending));
            sleep(MIN_SILENCE).await;
        }
        let counted_before = self.count_pending().await;
        // Transactions that are delivered from here on may be newer than the list.
        let epoch = context.hashes.seen.begin_epoch();
        let began_at = Instant::now();
        let resets = self.chain.resets();
        let content = self.list().await?;
        let counted = counted_before.into_iter().chain(self.count_pending().await).min();
        // Waits for announcements of listed transactions: those on their way, then those in the
        // buffers.
        sleep(context.settings.limits.audit_settle).await;
        self.wait_for_backlog(0, MAX_SETTLE).await;
        let mut report = AuditReport {
            listed: content.pending.len() as u64,
            unlistable: counted.unwrap_or(0).saturating_sub(content.pending.len() as u64),
            unannounced: before.map_or(0, |before| {
                content.pending.iter().filter(|hash| !before.contains(*hash)).count() as u64
            }),
            ..Default::default()
        };
        self.unlistable.set(report.unlistable as f64);
        let includes_queued = context.settings.config.backfill == Backfill::PendingAndQueued;
        let queued = content.queued.iter().filter(|_| includes_queued);
        let mut missing: Vec<B256> = Vec::new();
        let (mut asked, mut postponed) = (Vec::new(), Vec::new());
        let mut is_any_in_flight = false;
        for (index, hash) in content.pending.iter().chain(queued).enumerate() {
            if index % LOOKUP_BATCH == 0 {
                tokio::task::yield_now().await;
            }
            match self.verdict(hash) {
                Verdict::Known => {}
                Verdict::InFlight => is_any_in_flight = true,
                Verdict::Refused => report.refused += 1,
                Verdict::Postponed => postponed.push(*hash),
                Verdict::AskSink { .. } => asked.push(*hash),
            }
        }
        let mut held = Vec::new();
        let holdings = self.context.sink.queue.holdings(&asked).await;
        for (hash, holding) in asked.into_iter().zip(holdings) {
            // The hash may have been announced or mined meanwhile.
            let Verdict::AskSink { was_delivered } = self.verdict(&hash) else { continue };
            match holding {
                Holding::Held => held.push(hash),
                Holding::Unknown if was_delivered => held.push(hash),
                Holding::Removed => report.removed += 1,
                Holding::MayReturn => postponed.push(hash),
                Holding::Unknown | Holding::Missing => missing.push(hash),
            }
        }
        if missing.is_empty() && !is_any_in_flight {
            // Nothing is left to request, so no response would show that the node works.
            self.fetch.forget_failures_before(self.source, began_at);
        }
        report.postponed = postponed.len() as u64;
        if self.mode == AuditMode::Recover {
            let recovery = self.recover(&missing, epoch).await;
            report.recovered = recovery.delivered;
            report.failed = recovery.failed + self.judge_absent(recovery.absent, began_at);
            report.offered_again = self.offer_again(postponed, epoch).await;
        }
        // What the node counts and does not list are its blob transactions, if it lists none of
        // these and some have come: geth. That the counts are equal does not show that it lists
        // blob transactions: as many others may have come between the count and the list.
        let had_blobs = self.fetch.had_blobs();
        let has_blobs = report.unlistable == 0 && (content.lists_blobs || !had_blobs);
        let hides_blobs = had_blobs && !content.lists_blobs;
        let is_complete = counted.is_some() && (report.unlistable == 0 || hides_blobs);
        let hashes = content.pending.into_iter().chain(content.queued).collect();
        let listing = is_complete.then(|| Listing { hashes, epoch, has_blobs }.into());
        let listings = &context.listings[self.source];
        let before = self.chain.unless_reset(resets, || listings.set_latest(listing.clone()));
        // After a reset the list is that of a chain that does not exist any more.
        if before.is_some() {
            let is_audited = context.settings.config.audit_interval.is_some();
            self.report_held(&held, is_audited && listing.is_some(), resets).await;
        }
        if let (Some(before), Some(listing)) = (before, listing) {
            let lists_more = before.is_none_or(|before| listing.has_blobs && !before.has_blobs);
            if lists_more {
                let listed = self.all_listed(&listing).await;
                self.report_listed(listed, resets);
            }
            self.report_unlisted_elsewhere().await;
            report.vanished = self.mark_vanished(epoch).await;
        }
        let not_held = [report.removed, report.refused, report.postponed, report.failed];
        for (gauge, count) in self.listed_not_held.iter().zip(not_held) {
            gauge.set(count as f64);
        }
        // A transaction that was not fetched, or whose fetch failed, stays missing.
        let stays_missing = match self.mode {
            AuditMode::CompareOnly => !missing.is_empty(),
            AuditMode::Recover => report.failed > 0,
        };
        if let Some(time) = self.state.record(began_at, !missing.is_empty(), stays_missing) {
            context.metrics.missing_seconds.record(time.as_secs_f64());
        }
        report.missing = missing.len() as u64;
        report.missing_sample = missing.iter().take(AuditReport::MISSING_SAMPLE).copied().collect();
        Ok(report)
    }

    /// Requests the number of pending transactions that the node counts; 0 for a pool in this
    /// process, which lists all.
    async fn count_pending(&self) -> Option<u64> {
        if self.context.settings.in_process_pool(self.source).is_some() {
            return Some(0);
        }
        let connection = self.context.connections.calls(self.source)?;
        let limit = self.context.settings.limits.call_timeout;
        let answer = connection.call("txpool_status", (), limit).await.ok()?;
        let status: HashMap<String, U64> = serde_json::from_str(answer.get()).ok()?;
        Some(status.get("pending")?.to())
    }

    /// Lists the pool.
    async fn list(&self) -> Result<Content, SnapshotError> {
        let settings = &self.context.settings;
        if let Some(pool) = settings.in_process_pool(self.source) {
            let listed = pool.call(&self.context.tasks, "pooled", |pool| pool.pooled()).await;
            let PooledHashes { pending, queued } = listed?;
            return Ok(Content { pending, queued, lists_blobs: true });
        }
        let listings = &self.context.listings[self.source];
        let _listing = Share::add_to(&listings.running, 1);
        let began_at = Instant::now();
        let (endpoint, limits) = (&settings.config.sources[self.source], &settings.limits);
        let listed = list::request(endpoint, limits, &self.context.tasks).await;
        listings.record(began_at.elapsed(), listed.is_ok());
        if listed.is_err() {
            listings.set_latest(None);
        }
        listed
    }

    /// Decides what to do with a listed hash.
    fn verdict(&self, hash: &B256) -> Verdict {
        match self.context.hashes.seen.get(hash) {
            Some(Seen::InFlight) => Verdict::InFlight,
            Some(seen) if seen.is_delivered() => Verdict::AskSink { was_delivered: true },
            Some(Seen::Refused | Seen::Harmful) => Verdict::Refused,
            Some(Seen::Postponed) => Verdict::Postponed,
            // It was mined after the list.
            _ if self.context.hashes.is_mined(hash) => Verdict::Known,
            // Unknown, or pending again: its block was removed, or it had left the node's pool.
            _ => Verdict::AskSink { was_delivered: false },
        }
    }

    /// Offers postponed transactions to the sink again. A sink that is still full refuses the first
    /// few, so a comparison does not fetch thousands for nothing. A sink with room gets all of
    /// them.
    async fn offer_again(&self, mut postponed: Vec<B256>, epoch: u32) -> u64 {
        // In the order of the list, the same few would be offered by each comparison.
        postponed.shuffle(&mut rand::rng());
        let mut offered = 0;
        let mut batch_size = FIRST_OFFER;
        while !postponed.is_empty() {
            let batch = postponed.split_off(postponed.len().saturating_sub(batch_size));
            offered += self.recover(&batch, epoch).await.fetched;
            let is_postponed =
                |hash: &&B256| self.context.hashes.seen.get(hash) == Some(Seen::Postponed);
            if batch.iter().filter(is_postponed).count() * 2 > batch.len() {
                break;
            }
            batch_size *= 2;
        }
        offered
    }

    /// Fetches hashes as deferrable work, and waits until they have their outcomes.
    async fn recover(&self, missing: &[B256], epoch: u32) -> Recovery {
        let (entry, work) = match self.reason {
            GapReason::StartUp | GapReason::Reconnect => {
                (Entry::Backfilled, DeferrableWork::Backfill)
            }
            _ => (Entry::AuditRecovered, DeferrableWork::Audit),
        };
        let since = Instant::now();
        let mut fetched = vec![false; missing.len()];
        let mut to_recover = Share::add_to(&self.state.to_recover, missing.len() as u64);
        for (hash, is_fetched) in missing.iter().zip(&mut fetched) {
            self.context.deferral.wait(work, since).await;
            to_recover.finish_one();
            let received_at = Instant::now();
            let arrival = Arrival { hash: *hash, entry, source: self.source, received_at };
            // The hash may have been announced meanwhile, or another comparison fetches it.
            let Some(ticket) = self.context.hashes.enter_missing(arrival, epoch) else { continue };
            *is_fetched = true;
            // Once live work has caught up, what our own buffer lost takes the same slots.
            if self.reason == GapReason::Lagged && !self.context.deferral.is_pressed() {
                self.fetch.fetch_lost(ticket).await;
            } else {
                self.fetch.fetch_missing(ticket).await;
            }
        }
        let hashes = &self.context.hashes;
        let mut recovery = Recovery::default();
        for (index, (hash, is_fetched)) in missing.iter().zip(fetched).enumerate() {
            if index % LOOKUP_BATCH == 0 {
                tokio::task::yield_now().await;
            }
            let mut seen = hashes.seen.get(hash);
            while seen == Some(Seen::InFlight) {
                sleep(Duration::from_millis(5)).await;
                seen = hashes.seen.get(hash);
            }
            recovery.fetched += u64::from(is_fetched);
            recovery.delivered += u64::from(is_fetched && seen.is_some_and(Seen::was_delivered));
            let is_mined = hashes.is_mined(hash);
            recovery.failed += u64::from(seen == Some(Seen::Failed) && !is_mined);
            if is_fetched && seen.is_none() && !is_mined {
                recovery.absent.push(*hash);
            }
        }
        recovery
    }

    /// Judges the hashes that the node has listed and not returned. Returns how many count as
    /// failed, so that a gap stays open: all of at least [`SUSPICIOUS_ABSENCES`], if it has
    /// returned no transaction since `began_at`. It may have lost them since it listed them, which
    /// the next comparison shows: those that it lists again make the source failing.
    fn judge_absent(&self, mut absent: Vec<B256>, began_at: Instant) -> u64 {
        let has_returned = self.fetch.has_returned_since(self.source, began_at);
        if absent.len() < SUSPICIOUS_ABSENCES || has_returned {
            absent.clear();
        }
        let count = absent.len() as u64;
        absent.truncate(MAX_ABSENT);
        let listed_again = self.state.set_absent(absent);
        self.fetch.record_listed_absent(self.source, listed_again);
        count
    }

    /// Records that the node lists these transactions, which the sink holds. If audits will find
    /// out when they leave the node's pool (`is_audited`), tells the sink, unless it knows already.
    async fn report_held(&self, held: &[B256], is_audited: bool, resets: u32) {
        let hashes = &self.context.hashes;
        for batch in held.chunks(LOOKUP_BATCH) {
            // Some may have been mined since the list.
            let held = batch.iter().copied().filter(|hash| !hashes.is_mined(hash));
            if is_audited {
                let is_news = |hash: &B256| hashes.seen.set_listed(*hash, self.source);
                self.report_listed(held.filter(is_news).collect(), resets);
            } else {
                held.for_each(|hash| hashes.seen.set_held(hash, self.source));
            }
            tokio::task::yield_now().await;
        }
    }

    /// Returns which transactions of the sink the node lists. They are reported if the list before
    /// did not have such transactions: they were delivered as transactions that the node does not
    /// list. What the node announced after it made the list is one of them, because the next list
    /// has it, or shows that it is gone.
    async fn all_listed(&self, listing: &Listing) -> Vec<B256> {
        let is_newer = |held: &HeldHash| {
            held.epoch >= listing.epoch
                && held.sources.contains(self.source)
                && (listing.has_blobs || !held.is_blob)
        };
        let mut listed = Vec::new();
        for shard in 0..SHARDS {
            let held = self.context.hashes.seen.held(shard).into_iter();
            let held = held.filter(|held| listing.hashes.contains(&held.hash) || is_newer(held));
            listed.extend(held.map(|held| held.hash));
            tokio::task::yield_now().await;
        }
        for hash in &listed {
            self.context.hashes.seen.set_delivered_listed(hash);
        }
        listed
    }

    /// Reports to the sink that the node lists these transactions, unless the chain was reset.
    fn report_listed(&self, listed: Vec<B256>, resets: u32) {
        if !listed.is_empty() {
            let queue = &self.context.sink.queue;
            self.chain.unless_reset(resets, || queue.push(Job::Listed(listed)));
        }
    }

    /// Reports to the sink the transactions that no node lists any more, and that a source has
    /// announced which does not list its pool, so that it may have them. If every source that has
    /// announced one lists its pool, the transaction has vanished instead.
    async fn report_unlisted_elsewhere(&self) {
        let lists = latest_lists(&self.context);
        let is_not_listed = |source: usize| lists[source].is_none();
        if (0..lists.len()).any(is_not_listed) {
            let filter = |held: &HeldHash| held.sources.iter().any(is_not_listed);
            report_listed_nowhere(&self.context, &lists, filter).await;
        }
    }

    /// Marks the delivered transactions that are in no node's pool any more: each source that has
    /// announced one lists its pool, and no list contains it.
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
        // If the latest block is not applied yet, it or its ancestors may contain these
        // transactions.
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
        // If the sink has not taken an earlier list, the next comparison reports these.
        if count == 0 || !self.context.sink.queue.push_vanished(vanished.clone()) {
            return 0;
        }
        for hash in vanished {
            self.context.hashes.seen.set_vanished(hash, epoch);
        }
        count
    }
}

/// Returns whether the lists, of which there may be none, show that no node lists a transaction.
/// Lists that are older than its delivery show nothing, and lists without blob transactions show
/// nothing about these.
fn is_listed_nowhere(held: &HeldHash, lists: &[Option<Arc<Listing>>]) -> bool {
    lists
        .iter()
        .flatten()
        .all(|listing| listing.has_lost(held) || held.is_blob && !listing.has_blobs)
}

/// The latest complete list of each source.
fn latest_lists(context: &Context) -> Vec<Option<Arc<Listing>>> {
    context.listings.iter().map(|listings| listings.latest()).collect()
}

/// Reports to the sink the transactions that `source` has announced and no other source lists. The
/// pool of `source` cannot be listed any more, so they may leave it unnoticed.
pub(crate) async fn report_unlisted(context: Arc<Context>, source: usize) {
    let lists = latest_lists(&context);
    report_listed_nowhere(&context, &lists, |held| held.sources.contains(source)).await;
}

/// Reports to the sink the transactions for which `filter` returns true, and which these lists do
/// not contain, unless that was reported before.
async fn report_listed_nowhere(
    context: &Context,
    lists: &[Option<Arc<Listing>>],
    filter: impl Fn(&HeldHash) -> bool,
) {
    let seen = &context.hashes.seen;
    for shard in 0..SHARDS {
        let held = seen.held(shard).into_iter();
        let held = held.filter(|held| filter(held) && is_listed_nowhere(held, lists));
        let is_news = |hash: &B256| seen.set_delivered_unlisted(hash);
        let unlisted: Vec<B256> = held.map(|held| held.hash).filter(is_news).collect();
        // At once, so that the latest report is that of the latest state.
        if !unlisted.is_empty() {
            context.sink.queue.push(Job::Unlisted(unlisted));
        }
        tokio::task::yield_now().await;
    }
}

/// The result of [`Comparison::recover`].
#[derive(Default)]
struct Recovery {
    /// The number of hashes that the comparison fetched. Hashes that were announced meanwhile are
    /// not included.
    fetched: u64,
    /// The number of fetched hashes that the sink has now.
    delivered: u64,
    /// The number of hashes, fetched by the comparison or not, whose fetch failed.
    failed: u64,
    /// The fetched hashes that no source returned, and no known block contains.
    absent: Vec<B256>,
}

/// What a comparison does with a listed hash.
enum Verdict {
    /// Nothing: it is mined.
    Known,
    /// Nothing: it is being fetched.
    InFlight,
    /// Nothing: the sink refused it, or its response ended connections.
    Refused,
    /// Offer it to the sink again.
    Postponed,
    /// Ask the sink whether it holds the hash, and fetch it if not.
    AskSink { was_delivered: bool },
}
