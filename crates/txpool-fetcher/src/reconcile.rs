//! Comparing the node's pool with ours, and bringing in what is missing.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use alloy_primitives::{B256, U64, map::B256HashSet};
use serde::Deserialize;
use tokio::{sync::oneshot, time::sleep};

use crate::{
    config::{Backfill, Endpoint},
    deferral::DeferrableWork,
    fetch::{Arrival, FetchContext},
    machine::GapReason,
    outcome::Entry,
    seen::Seen,
    sink::{Holding, TransactionSink},
    snapshot::{Content, ContentScanner, SnapshotError, list_ipc},
    source::SourceShared,
    sync::lock,
};

/// Every so many audits the pools are compared in full, even when their counts agree: a hash too
/// many and one too few look alike in a count.
const FULL_EVERY: u64 = 5;

/// How long our own buffers may take to be read before an audit goes on without them.
const MAX_SETTLE: Duration = Duration::from_secs(10);

/// How a comparison ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AuditMode {
    /// What is missing is fetched.
    Recover,
    /// What is missing is only counted.
    CompareOnly,
}

/// What a comparison with a node's pool found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditReport {
    /// Pending transactions the node listed.
    pub listed: u64,
    /// Pending transactions the node counts and does not list: blob transactions on geth.
    pub unlistable: u64,
    /// Of those listed, the ones we never had, after both sides had time to settle.
    pub missing: Vec<B256>,
    /// Of those listed, the ones that the sink held and has removed: evicted, expired, mined or stale.
    pub removed: u64,
    /// Of those listed, the ones the sink refused.
    pub refused: u64,
    /// Ours that the node has no longer, and that no block took.
    pub vanished: u64,
    /// Hashes that were brought in.
    pub recovered: u64,
    /// Whether only the counts were compared, and agreed.
    pub counts_only: bool,
    /// What is missing has been so for at most this long: since the comparison before, which had
    /// not found it. Unknown at the first one.
    pub missing_for_at_most: Option<Duration>,
}

#[derive(Debug, Deserialize)]
struct Status {
    pending: U64,
}

/// One comparison.
pub(crate) struct Comparison<S> {
    pub(crate) context: Arc<FetchContext<S>>,
    pub(crate) shared: Arc<SourceShared>,
    pub(crate) source: usize,
    pub(crate) reason: GapReason,
    pub(crate) mode: AuditMode,
    /// Whether equal counts are enough.
    pub(crate) cheap: bool,
}

impl<S: TransactionSink> Comparison<S> {
    pub(crate) async fn run(self) -> Result<AuditReport, SnapshotError> {
        if self.cheap {
            // One on the timer; what is asked for, or follows a gap, lists the pool at once.
            self.context.deferral.acquire(DeferrableWork::Audit, Instant::now()).await;
        }
        let result = self.compare().await;
        let metrics = &self.context.tally.metrics;
        match &result {
            Ok(report) if report.missing.is_empty() => metrics.audits_equal.increment(1),
            Ok(_) => metrics.audits_recovered.increment(1),
            Err(_) => metrics.audits_failed.increment(1),
        }
        result
    }

    async fn compare(&self) -> Result<AuditReport, SnapshotError> {
        let context = &self.context;
        let audits = self.shared.audits.fetch_add(1, Relaxed);
        let status = self.status().await;
        if self.cheap
            && !audits.is_multiple_of(FULL_EVERY)
            && let Some(pending) = status
            && pending == context.seen.delivered() as u64
        {
            return Ok(AuditReport { listed: pending, counts_only: true, ..Default::default() });
        }
        // What is delivered from here on is newer than the list.
        let epoch = context.seen.begin_epoch();
        let started = Instant::now();
        let content = self.list().await?;
        self.settle().await;
        let mut report = AuditReport {
            listed: content.pending.len() as u64,
            unlistable: status.map_or(0, |n| n.saturating_sub(content.pending.len() as u64)),
            ..Default::default()
        };
        context.tally.metrics.unlistable.set(report.unlistable as f64);
        let queued = context.config.backfill == Backfill::PendingAndQueued;
        let queued = content.queued.iter().filter(|_| queued);
        let mut missing: Vec<B256> = Vec::new();
        for hash in content.pending.iter().chain(queued) {
            match self.standing(hash) {
                Standing::Ours => {}
                Standing::Removed => report.removed += 1,
                Standing::Refused => report.refused += 1,
                Standing::Missing => missing.push(*hash),
            }
        }
        if self.mode == AuditMode::Recover {
            report.recovered = self.recover(&missing).await;
        }
        let listed: B256HashSet = content.pending.into_iter().chain(content.queued).collect();
        report.vanished = self.mark_vanished(&listed, epoch, report.unlistable).await;
        let before = lock(&self.shared.compared).replace(started);
        report.missing_for_at_most =
            before.filter(|_| !missing.is_empty()).map(|before| started.duration_since(before));
        if let Some(time) = report.missing_for_at_most {
            context.tally.metrics.missing_seconds.record(time.as_secs_f64());
        }
        report.missing = missing;
        Ok(report)
    }

    async fn status(&self) -> Option<u64> {
        let connection = self.context.requests.least_busy(self.source)?;
        let answer =
            connection.call("txpool_status", (), self.context.config.call_timeout).await.ok()?;
        let status: Status = serde_json::from_str(answer.get()).ok()?;
        Some(status.pending.to())
    }

    async fn list(&self) -> Result<Content, SnapshotError> {
        let _patience = self.shared.list();
        let limit = self.context.config.snapshot_timeout;
        let endpoint = self.context.config.sources[self.source].clone();
        if let Endpoint::Ipc(_) = endpoint {
            // Scanning is work, and lasts: neither on the thread of the sockets nor on a worker's.
            let runtime = tokio::runtime::Handle::current();
            let (reply, content) = oneshot::channel();
            let body = move || {
                // Whoever asked may have stopped meanwhile.
                let _ = reply.send(runtime.block_on(list_ipc(&endpoint, limit)));
            };
            std::thread::Builder::new().name("mempool-list".into()).spawn(body)?;
            return content.await.unwrap_or(Err(SnapshotError::ConnectionLost));
        }
        let connection =
            self.context.requests.least_busy(self.source).ok_or(SnapshotError::ConnectionLost)?;
        let answer =
            connection.call("txpool_content", (), limit).await.map_err(|error| match error {
                crate::CallError::Timeout(limit) => SnapshotError::Timeout(limit),
                crate::CallError::ConnectionLost => SnapshotError::ConnectionLost,
                other => SnapshotError::Refused(other.to_string()),
            })?;
        ContentScanner::of_result(answer.get())
    }

    /// What the node listed may still be on its way to us by announcement: wait until all that was
    /// read from the socket by now was taken in, and a little for what was not.
    async fn settle(&self) {
        let deadline = Instant::now() + MAX_SETTLE;
        sleep(self.context.config.audit_settle).await;
        while self.shared.backlog() > 0 && Instant::now() < deadline {
            sleep(Duration::from_millis(10)).await;
        }
    }

    fn standing(&self, hash: &B256) -> Standing {
        match self.context.seen.get(hash) {
            Some(Seen::InFlight) => Standing::Ours,
            Some(Seen::Delivered | Seen::Vanished) => match self.context.sink.holding(hash) {
                Holding::Held | Holding::Unknown => Standing::Ours,
                Holding::Removed => Standing::Removed,
                Holding::Missing => Standing::Missing,
            },
            Some(Seen::Refused) => Standing::Refused,
            // Mined between the list and now, unless its block was undone since.
            Some(Seen::Mined) if lock(&self.context.mined).contains(hash) => Standing::Ours,
            Some(Seen::Mined) => match self.context.sink.holding(hash) {
                Holding::Held => Standing::Ours,
                _ => Standing::Removed,
            },
            None if lock(&self.context.mined).contains(hash) => Standing::Ours,
            None => match self.context.sink.holding(hash) {
                Holding::Held => Standing::Ours,
                Holding::Removed => Standing::Removed,
                Holding::Missing | Holding::Unknown => Standing::Missing,
            },
        }
    }

    /// Fetches what is missing, as deferrable work, and waits until it is in. What is deferred is
    /// not admitted yet, so that an announcement of it meanwhile is fetched as live.
    async fn recover(&self, missing: &[B256]) -> u64 {
        let entry = match self.reason {
            GapReason::StartUp | GapReason::Reconnect => Entry::Backfilled,
            _ => Entry::AuditRecovered,
        };
        let work = match entry {
            Entry::Backfilled => DeferrableWork::Backfill,
            _ => DeferrableWork::Audit,
        };
        let since = Instant::now();
        let mut recovered = 0;
        for hash in missing {
            let permit = self.context.deferral.acquire(work, since).await;
            // An announcement may have been quicker.
            if !self.context.seen.insert_if(*hash, |seen| seen != Some(Seen::InFlight)) {
                continue;
            }
            recovered += 1;
            let at = Instant::now();
            self.context
                .missed(Arrival { hash: *hash, entry, source: self.source, at }, permit)
                .await;
            self.shared.recovered.fetch_add(1, Relaxed);
        }
        while missing.iter().any(|hash| self.context.seen.get(hash) == Some(Seen::InFlight)) {
            sleep(Duration::from_millis(5)).await;
        }
        recovered
    }

    /// Marks what is ours and not the node's any more, shard by shard, pausing between them.
    /// Nothing is marked while the node holds transactions it does not list: they may be these.
    async fn mark_vanished(&self, listed: &B256HashSet, epoch: u32, unlistable: u64) -> u64 {
        // With several sources each has a pool of its own: absence in one says nothing.
        if unlistable > 0 || self.context.config.sources.len() > 1 {
            return 0;
        }
        let mut vanished = 0;
        for shard in 0..self.context.seen.shards() {
            for hash in self.context.seen.delivered_before(shard, epoch) {
                if !listed.contains(&hash) && !lock(&self.context.mined).contains(&hash) {
                    self.context.seen.settle(hash, Some(Seen::Vanished));
                    self.context.sink.vanished(&hash);
                    vanished += 1;
                }
            }
            tokio::task::yield_now().await;
        }
        vanished
    }
}

enum Standing {
    Ours,
    Removed,
    Refused,
    Missing,
}
