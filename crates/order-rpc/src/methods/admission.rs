//! Asks the host about an order before it is pooled.
//!
//! This is the last check, without a work permit: it may take as long as a node's response.

use std::panic::AssertUnwindSafe;

use futures::FutureExt;
use metric_set::labels;
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

impl Methods {
    /// How it ended, and the verdict with which the order may be pooled.
    pub(crate) async fn admit(
        &self,
        admission: &dyn Admission,
        candidate: Candidate<'_>,
    ) -> (Ended, Result<Verdict, ErrorResponse>) {
        let asked = async {
            // The semaphore is never closed. The permit is held until the verdict.
            let _turn = self.admissions.acquire().await;
            // `admit` may panic even before it returns a future.
            let verdict = async { admission.admit(candidate).await };
            AssertUnwindSafe(verdict).catch_unwind().await
        };
        let decided = timeout(self.limiter.limits.config.admission_timeout, asked).await;
        let ended = match &decided {
            Ok(Ok(Verdict::Accept | Verdict::AcceptWithin(_))) => Ended::Accepted,
            Ok(Ok(Verdict::Prioritize)) => Ended::Prioritized,
            Ok(Ok(Verdict::Refuse { .. })) => Ended::Refused,
            Ok(Ok(Verdict::Unknown)) => Ended::Unknown,
            Ok(Err(_)) => Ended::Panicked,
            Err(_) => Ended::TimedOut,
        };
        let admitted = match decided {
            Ok(Ok(Verdict::Refuse { reason })) => {
                Err(ErrorResponse::rejected(Reason::Admission, cut(&reason).into_owned()))
            }
            Ok(Ok(verdict)) if verdict != Verdict::Unknown => Ok(verdict),
            _ if admission.fails_open() => Ok(Verdict::Unknown),
            _ => Err(self.limiter.retry_later(Reason::AdmissionUnavailable)),
        };
        (ended, admitted)
    }
}
