//! Asks the host about an order before it is pooled.
//!
//! This is the last check, without a work permit: it may take as long as a node's response.

use std::panic::AssertUnwindSafe;

use futures::FutureExt;
use metric_set::labels;
use order_pool::Funds;
use tokio::time::timeout;

use super::Methods;
use crate::{
    host::{Admission, Candidate, Verdict},
    reply::{ErrorResponse, Reason, cut},
};

labels! {
    /// How an admission ended: the label `verdict` of `order_rpc_admissions_total`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Ended {
        Accepted = "accepted",
        Prioritized = "prioritized",
        Refused = "refused",
        Unknown = "unknown",
        TimedOut = "timed_out",
        Panicked = "panicked",
    }
}

/// An order that may be pooled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Admitted {
    pub(crate) is_prioritized: bool,
    pub(crate) funds: Option<Funds>,
}

impl Methods {
    pub(crate) async fn admit(
        &self,
        admission: &dyn Admission,
        candidate: Candidate<'_>,
    ) -> (Ended, Result<Admitted, ErrorResponse>) {
        let asked = async {
            // The semaphore is never closed. The permit is held until the verdict.
            let _turn = self.admissions.acquire().await;
            // `admit` may panic even before it returns a future.
            let verdict = async { admission.admit(candidate).await };
            AssertUnwindSafe(verdict).catch_unwind().await
        };
        let decided = timeout(self.limiter.limits.config.admission_timeout, asked).await;
        let (ended, funds) = match decided {
            Ok(Ok(Verdict::Accept)) => (Ended::Accepted, None),
            Ok(Ok(Verdict::AcceptWithin(funds))) => (Ended::Accepted, Some(funds)),
            Ok(Ok(Verdict::Prioritize)) => (Ended::Prioritized, None),
            Ok(Ok(Verdict::Refuse { reason })) => {
                let message = cut(&reason).into_owned();
                return (Ended::Refused, Err(ErrorResponse::rejected(Reason::Admission, message)));
            }
            Ok(Ok(Verdict::Unknown)) => (Ended::Unknown, None),
            Ok(Err(_)) => (Ended::Panicked, None),
            Err(_) => (Ended::TimedOut, None),
        };
        let is_prioritized = ended == Ended::Prioritized;
        if is_prioritized || ended == Ended::Accepted || admission.fails_open() {
            return (ended, Ok(Admitted { is_prioritized, funds }));
        }
        (ended, Err(self.limiter.retry_later(Reason::AdmissionUnavailable)))
    }
}
