//! Refusals, with their reason and retry time.

use std::time::Duration;

use thiserror::Error;

use crate::labels;

labels! {
    /// The gates, in the order in which a request passes them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum GateName {
        /// The outer gate: requests in flight.
        Requests = "requests",
        /// The inner gate: permits for CPU-heavy work.
        Work = "work",
    }
}

labels! {
    /// Why an external caller was refused: the label in metrics, and the reason in its error
    /// response.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum RefusalReason {
        /// The limit of requests in flight is reached.
        TooManyRequests = "too_many_requests",
        /// The caller waited in vain for a work permit: for
        /// [`GateConfig::burst_wait`](crate::GateConfig::burst_wait), or in an overload for
        /// [`GateConfig::permit_wait`](crate::GateConfig::permit_wait).
        NoPermit = "no_permit",
        /// The queue of external callers that wait for a work permit is full.
        QueueFull = "permit_queue_full",
        /// The queue of deferred work is full.
        Deferred = "deferred_full",
        /// The gate was closed for shutdown.
        ShuttingDown = "shutting_down",
    }
}

/// The refusal of an external caller because of overload or shutdown. The RPC server responds with
/// HTTP 503.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[error(
    "refused by the gate {}: {}, retry after {retry_after:?}",
    gate.as_str(),
    reason.as_str()
)]
pub struct Refusal {
    /// The gate that refused.
    pub gate: GateName,
    /// The reason.
    pub reason: RefusalReason,
    /// When the caller should retry: after [`RETRY_AFTER`] plus up to [`RETRY_JITTER`],
    /// drawn at random for each refusal.
    ///
    /// [`RETRY_AFTER`]: crate::RETRY_AFTER
    /// [`RETRY_JITTER`]: crate::RETRY_JITTER
    pub retry_after: Duration,
}

/// The reason why work that was passed to a gate has no result.
#[derive(Clone, Copy, Debug, Error)]
#[non_exhaustive]
pub enum WorkError {
    /// The work was not started.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The work panicked, or its runtime shuts down.
    #[error("the work did not finish: it panicked, or its runtime shuts down")]
    Lost,
}
