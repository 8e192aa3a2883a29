//! What a refused caller is told.

use std::time::Duration;

use thiserror::Error;

/// Which gate refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GateName {
    /// The outer gate: requests in flight.
    Requests,
    /// The inner gate: permits for CPU-heavy work.
    Work,
}

impl GateName {
    /// Both, in the order in which a request passes them.
    pub const ALL: [Self; 2] = [Self::Requests, Self::Work];

    /// Its metric label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Work => "work",
        }
    }
}

/// Why an external caller was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefusalReason {
    /// The limit of requests in flight is reached.
    TooManyRequests,
    /// Every work permit that an external caller may hold was held for
    /// [`GateConfig::permit_wait`](crate::GateConfig::permit_wait).
    NoPermit,
    /// As many external callers wait for a work permit as may.
    QueueFull,
    /// The load is high, and the queue of deferred work is full.
    Deferred,
    /// The gate was closed for shutdown.
    ShuttingDown,
}

impl RefusalReason {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::TooManyRequests,
        Self::NoPermit,
        Self::QueueFull,
        Self::Deferred,
        Self::ShuttingDown,
    ];

    /// Its metric label, and the reason in the answer to the caller.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TooManyRequests => "too_many_requests",
            Self::NoPermit => "no_permit",
            Self::QueueFull => "permit_queue_full",
            Self::Deferred => "deferred_full",
            Self::ShuttingDown => "shutting_down",
        }
    }
}

/// An external caller was refused, because of overload or shutdown. Answered as HTTP 503.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[error("refused by the gate {}: {}, retry after {retry_after:?}", gate.as_str(), reason.as_str())]
pub struct Refusal {
    /// Which gate refused.
    pub gate: GateName,
    /// Why.
    pub reason: RefusalReason,
    /// After how long the caller should retry: between [`GateConfig::retry_after`] and
    /// `retry_jitter` more, drawn anew for each refusal.
    ///
    /// [`GateConfig::retry_after`]: crate::GateConfig::retry_after
    pub retry_after: Duration,
}

/// Why work that was handed to a gate has no result.
#[derive(Clone, Copy, Debug, Error)]
#[non_exhaustive]
pub enum WorkError {
    /// It was not begun.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// It panicked, or its runtime shuts down.
    #[error("the work did not finish: it panicked, or its runtime shuts down")]
    Lost,
}
