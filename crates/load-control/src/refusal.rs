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
    /// Every work permit that an external caller may hold is held.
    NoPermit,
    /// The load is high, and the queue of deferred work is full.
    Deferred,
    /// The gate was closed for shutdown.
    ShuttingDown,
}

impl RefusalReason {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::TooManyRequests, Self::NoPermit, Self::Deferred, Self::ShuttingDown];

    /// Its metric label, and the reason in the answer to the caller.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TooManyRequests => "too_many_requests",
            Self::NoPermit => "no_permit",
            Self::Deferred => "deferred_full",
            Self::ShuttingDown => "shutting_down",
        }
    }
}

/// An external caller was refused, because of overload or shutdown. Answered as HTTP 503.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
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

impl Refusal {
    /// The value of the HTTP header `Retry-After`: whole seconds, rounded up, at least 1.
    pub fn retry_after_secs(&self) -> u64 {
        self.retry_after_ms().div_ceil(1_000).max(1)
    }

    /// `retryAfterMs`: whole milliseconds, rounded up.
    pub fn retry_after_ms(&self) -> u64 {
        self.retry_after.as_micros().div_ceil(1_000) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_never_earlier_than_the_milliseconds_say() {
        let cases = [
            (1, 1, 1),
            (999_000, 999, 1),
            (1_000_000, 1_000, 1),
            (1_000_001, 1_001, 2),
            (59_500_000, 59_500, 60),
        ];
        for (micros, ms, secs) in cases {
            let retry_after = Duration::from_micros(micros);
            let refusal =
                Refusal { gate: GateName::Work, reason: RefusalReason::NoPermit, retry_after };
            assert_eq!((refusal.retry_after_ms(), refusal.retry_after_secs()), (ms, secs));
        }
    }
}
