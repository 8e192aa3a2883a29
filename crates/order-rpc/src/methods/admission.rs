//! Asks the host about an order before it is pooled.
//!
//! This is the last check, without a work permit: it may take as long as a node's response.

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
    reply::{ErrorResponse, Reason, cut},
};

labels! {
    /// How an admission ended: the label `verdict` of `order_rpc_admissions_total`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Ended {
        Accepted = "accepted",
        Prioritized = "prioritized",
        Refused = "refused",
        RetryLater = "retry_later",
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
        caller: CallerId,
    ) -> (Ended, Result<Verdict, ErrorResponse>) {
        let asked = async {
            // Held until the verdict.
            let caller = self.limiter.callers.with_id(caller);
            let _turn = self.admission_turn(candidate.order.holder(), &caller).await;
            // `admit` may panic even before it returns a future.
            let verdict = async { admission.admit(candidate).await };
            AssertUnwindSafe(verdict).catch_unwind().await
        };
        let decided = timeout(self.limiter.limits.config.admission_timeout, asked).await;
        let ended = match &decided {
            Ok(Ok(Verdict::Accept | Verdict::AcceptWithin(_))) => Ended::Accepted,
            Ok(Ok(Verdict::Prioritize)) => Ended::Prioritized,
            Ok(Ok(Verdict::Refuse { .. })) => Ended::Refused,
            Ok(Ok(Verdict::RetryLater)) => Ended::RetryLater,
            Ok(Ok(Verdict::Unknown)) => Ended::Unknown,
            Ok(Err(_)) => Ended::Panicked,
            Err(_) => Ended::TimedOut,
        };
        let admitted = match decided {
            Ok(Ok(Verdict::Refuse { reason })) => {
                Err(ErrorResponse::rejected(Reason::Admission, cut(&reason).into_owned()))
            }
            Ok(Ok(Verdict::RetryLater)) => {
                Err(self.limiter.retry_later(Reason::AdmissionUnavailable))
            }
            Ok(Ok(verdict)) if verdict != Verdict::Unknown => Ok(verdict),
            _ if admission.fails_open() => Ok(Verdict::Unknown),
            _ => Err(self.limiter.retry_later(Reason::AdmissionUnavailable)),
        };
        (ended, admitted)
    }

    /// Waits until the host may be asked about an order of this holder: behind those of the same
    /// caller first, so that one caller does not hold up others, and in a line of its own for known
    /// signers and the host.
    async fn admission_turn<'a>(
        &'a self,
        holder: Holder,
        caller: &'a Caller,
    ) -> [Option<SemaphorePermit<'a>>; 3] {
        if matches!(holder, Holder::Host | Holder::Signer(_)) {
            return [acquire(&self.known_admissions).await, None, None];
        }
        let own = acquire(&caller.admissions).await;
        let of_site = match &caller.site {
            Some(site) => acquire(&site.admissions).await,
            None => None,
        };
        [acquire(&self.admissions).await, own, of_site]
    }
}

/// `None` if it is closed, which it never is.
async fn acquire(semaphore: &Semaphore) -> Option<SemaphorePermit<'_>> {
    semaphore.acquire().await.ok()
}
