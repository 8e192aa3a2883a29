//! The cloneable handle: reports on a fetcher, waits for its states, and requests audits.
//!
//! It holds neither the sink nor a connection, so a handle that outlives its fetcher keeps none of
//! them alive.

use std::{fmt, io, sync::Arc, time::Instant};

use alloy_primitives::B256;
use tokio::sync::{mpsc::error::TrySendError, oneshot, watch};

use crate::{
    audit::{AuditMode, AuditReport},
    error::{SnapshotError, SourceError, StartError},
    fetch::{Deferral, DeferredStats, Hashes},
    fetcher::{EndReason, not_started},
    outcome::Counts,
    source::{AUDITS_WAITING, AuditRequest, Changes, SourceShared, SourceState, SourceStatus},
};

/// A handle to a [`Fetcher`](crate::Fetcher), which gives one with
/// [`Fetcher::handle`](crate::Fetcher::handle). Clones are cheap, and refer to the same fetcher.
///
/// It does not keep the fetcher running: the owner of the [`Fetcher`](crate::Fetcher) decides when
/// it stops. After the end, the counts and states remain readable.
#[derive(Clone)]
pub struct FetcherHandle {
    pub(crate) sources: Arc<[Arc<SourceShared>]>,
    pub(crate) hashes: Arc<Hashes>,
    pub(crate) deferral: Arc<Deferral>,
    pub(crate) changes: Changes,
    /// The reason of the end, and whether everything had ended by the deadline.
    pub(crate) end: watch::Receiver<Option<(EndReason, bool)>>,
}

impl FetcherHandle {
    /// Returns the counts so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.hashes.counts()
    }

    /// Returns the status of each source, in the order of
    /// [`FetcherConfig::sources`](crate::FetcherConfig::sources).
    #[must_use]
    pub fn status(&self) -> Vec<SourceStatus> {
        let sources = self.sources.iter().zip(&self.hashes.announcements);
        sources.map(|(shared, announcements)| shared.status(announcements)).collect()
    }

    /// Returns whether at least one source is [`SourceState::Live`].
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.sources.iter().any(|source| source.state() == SourceState::Live)
    }

    /// Returns whether every source is [`SourceState::Live`], for a readiness probe. It is false
    /// once the fetcher has ended.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.sources.iter().all(|source| source.state() == SourceState::Live)
    }

    /// Returns whether the pool of every source can be compared with the fetcher's, see
    /// [`SourceStatus::audited`].
    #[must_use]
    pub fn is_audited(&self) -> bool {
        self.sources.iter().all(|source| source.is_audited())
    }

    /// Waits until at least one source is [`SourceState::Live`]: the transactions that were pending
    /// at its node have been fetched, and later ones are announced.
    ///
    /// # Errors
    /// The reason of the end, if the fetcher has ended or ends first.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn wait_live(&self) -> Result<(), EndReason> {
        let mut changes = self.changes.subscribe();
        let live = async {
            // The sender lives as long as `self`.
            while !self.is_live() && changes.changed().await.is_ok() {}
        };
        tokio::select! {
            // A fetcher that has ended may have been live before, and no longer is.
            biased;
            reason = self.ended() => Err(reason),
            () = live => Ok(()),
        }
    }

    /// Returns the sources that have announced a transaction until now, as ascending indices into
    /// [`FetcherConfig::sources`](crate::FetcherConfig::sources). A source that only listed the
    /// transaction in a comparison is included if the transaction was fetched because of that list.
    ///
    /// Empty for a hash that is not remembered: the fetcher remembers the latest quarter to half of
    /// a million. A look-up takes a lock that announcements take too, for one look-up in a hash
    /// table.
    #[must_use]
    pub fn announcers(&self, hash: &B256) -> Vec<usize> {
        self.hashes.seen.sources(hash).iter().collect()
    }

    /// Returns how much work has been deferred, and waits now, because
    /// [`FetcherConfig::monitor`](crate::FetcherConfig::monitor) reported a high load.
    #[must_use]
    pub fn deferred(&self) -> DeferredStats {
        self.deferral.stats()
    }

    /// Compares the pool of a source with the fetcher's now, independently of the timer. `source`
    /// is an index into [`FetcherConfig::sources`](crate::FetcherConfig::sources). One requested
    /// comparison runs at a time for each source, and up to four callers wait for it.
    ///
    /// # Errors
    /// - [`SnapshotError::UnknownSource`] if `source` is not the index of a source;
    /// - [`SnapshotError::Busy`], at once, if four callers wait already;
    /// - [`SnapshotError::Unfinished`] after two minutes;
    /// - [`SnapshotError::ConnectionLost`] if the source has ended, the fetcher stops, or the
    ///   node's connections have been lost for 10 s;
    /// - any other [`SnapshotError`] if the node's pool could not be listed.
    ///
    /// # Cancel safety
    /// The comparison continues if the future is dropped.
    pub async fn audit(
        &self,
        source: usize,
        mode: AuditMode,
    ) -> Result<AuditReport, SnapshotError> {
        let Some(shared) = self.sources.get(source) else {
            let count = self.sources.len();
            return Err(SnapshotError::UnknownSource { index: source, count });
        };
        let (reply, report) = oneshot::channel();
        let request = AuditRequest { mode, reply, requested_at: Instant::now() };
        if let Err(TrySendError::Full(_)) = shared.audit_requests.try_send(request) {
            return Err(SnapshotError::Busy { waiting: AUDITS_WAITING });
        }
        // A source that has ended, or ends, drops the request without a reply.
        report.await.unwrap_or(Err(SnapshotError::ConnectionLost))
    }

    /// Waits until the fetcher has ended, and returns the reason.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn ended(&self) -> EndReason {
        self.end().await.0
    }

    /// Waits for the end. Returns its reason, and whether everything had ended by the deadline.
    pub(crate) async fn end(&self) -> (EndReason, bool) {
        let mut end = self.end.clone();
        let reported = end.wait_for(Option::is_some).await.ok().and_then(|end| end.clone());
        // A supervisor that ends without a reason has panicked.
        reported.unwrap_or((EndReason::Panicked, false))
    }

    /// Waits until one source is connected and subscribed. If the first attempts of all sources
    /// fail, returns the error of the first configured one.
    pub(crate) async fn first_connected(&self) -> Result<(), StartError> {
        let mut changes = self.changes.subscribe();
        let tried = async {
            loop {
                let mut errors = Vec::new();
                for SourceStatus { state, last_error, .. } in self.status() {
                    if !matches!(state, SourceState::Connecting | SourceState::Ended) {
                        return Ok(());
                    }
                    if let Some(SourceError::Connect(error)) = last_error.as_deref() {
                        errors.push(error.clone());
                    }
                }
                if errors.len() == self.sources.len() {
                    return Err(errors.swap_remove(0).into());
                }
                // The sender lives as long as `self`.
                let _ = changes.changed().await;
            }
        };
        tokio::select! {
            // The error of a source comes before the end of the fetcher that it caused.
            biased;
            tried = tried => tried,
            _ = self.ended() => {
                let error = io::Error::other("it ended before a source was tried");
                Err(not_started("mempool-io", error))
            }
        }
    }
}

impl fmt::Debug for FetcherHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FetcherHandle").field("counts", &self.counts()).finish_non_exhaustive()
    }
}
