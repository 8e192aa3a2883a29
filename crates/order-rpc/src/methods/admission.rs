//! Asks the host to decide on an order before it is inserted into the pool.
//!
//! This is the last check. It runs without a work permit, because it may take as long as a node's
//! response.

use std::panic::AssertUnwindSafe;

use futures::FutureExt;
use load_control::labels;
use order_pool::Holder;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::timeout,
};

use super::Methods;
use crate::{
    host::{Admission, Candidate, Verdict},
    limits::{Caller, CallerId},
    reply::{ErrorResponse, Reason, truncate},
};

labels! {
    /// How an admission ended: the label `verdict` of `order_rpc_admissions_total`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum AdmissionOutcome {
        Accepted = "accepted",
        Prioritized = "prioritized",
        Refused = "refused",
        RetryLater = "retry_later",
        Unknown = "unknown",
        TimedOut = "timed_out",
        Panicked = "panicked",
    }
}

/// The permits that an order holds while the host decides on it.
type AdmissionTurn<'a> = [Option<SemaphorePermit<'a>>; 3];

impl Methods {
    /// Asks the host to decide on an order. Returns how that ended, and the verdict with which the
    /// order may be inserted.
    pub(crate) async fn admit(
        &self,
        admission: &dyn Admission,
        candidate: Candidate<'_>,
        caller: CallerId,
    ) -> (AdmissionOutcome, Result<Verdict, ErrorResponse>) {
        let decide = async {
            let caller = self.limiter.callers.get(caller);
            // Held until the verdict.
            let _turn = self.admission_turn(candidate.order.holder(), &caller).await;
            // Within the future, because `admit` may panic before it returns one.
            let verdict = async { admission.admit(candidate).await };
            AssertUnwindSafe(verdict).catch_unwind().await
        };
        let decided = timeout(self.limiter.limits.config.admission_timeout, decide).await;
        let (outcome, verdict) = match decided {
            Ok(Ok(verdict)) => {
                let outcome = match &verdict {
                    Verdict::Accept | Verdict::AcceptWithin(_) => AdmissionOutcome::Accepted,
                    Verdict::Prioritize => AdmissionOutcome::Prioritized,
                    Verdict::Refuse { .. } => AdmissionOutcome::Refused,
                    Verdict::RetryLater => AdmissionOutcome::RetryLater,
                    Verdict::Unknown => AdmissionOutcome::Unknown,
                };
                (outcome, verdict)
            }
            Ok(Err(_)) => (AdmissionOutcome::Panicked, Verdict::Unknown),
            Err(_) => (AdmissionOutcome::TimedOut, Verdict::Unknown),
        };
        let decision = match verdict {
            Verdict::Refuse { reason } => {
                Err(ErrorResponse::rejected(Reason::Admission, truncate(&reason).into_owned()))
            }
            Verdict::RetryLater => Err(self.limiter.retry_later(Reason::AdmissionUnavailable)),
            Verdict::Unknown if !admission.fails_open() => {
                Err(self.limiter.retry_later(Reason::AdmissionUnavailable))
            }
            verdict => Ok(verdict),
        };
        (outcome, decision)
    }

    /// Waits until the host may be asked about an order of this holder. An order waits for those of
    /// its own caller first, so that one caller does not delay others. Known signers and the host
    /// have permits of their own.
    async fn admission_turn<'a>(&'a self, holder: Holder, caller: &'a Caller) -> AdmissionTurn<'a> {
        if matches!(holder, Holder::Host | Holder::Signer(_)) {
            return [acquire(&self.known_admissions).await, None, None];
        }
        let caller_turn = acquire(&caller.admissions).await;
        let site_turn = match &caller.site {
            Some(site) => acquire(&site.admissions).await,
            None => None,
        };
        [acquire(&self.admissions).await, caller_turn, site_turn]
    }
}

/// Acquires a permit; `None` if the semaphore is closed, which none of these ever is.
async fn acquire(semaphore: &Semaphore) -> Option<SemaphorePermit<'_>> {
    semaphore.acquire().await.ok()
}
