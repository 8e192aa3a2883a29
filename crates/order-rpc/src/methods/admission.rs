//! The host's decision about an order before it is pooled.

use std::{borrow::Cow, future::Future, panic::AssertUnwindSafe, pin::Pin};

use alloy_primitives::Address;
use futures::FutureExt;
use order_pool::Order;
use tokio::time::timeout;

use crate::{
    context::RpcContext,
    reply::{ErrorResponse, Reason, cut},
};

/// An order from an external caller that has passed all checks of the RPC server.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Candidate<'a> {
    /// The order, with its senders recovered. The host can keep its findings in the order's
    /// [extension](Order::extension).
    pub order: &'a Order,
    /// The signer of the request, if it is signed.
    pub signer: Option<Address>,
}

impl<'a> Candidate<'a> {
    /// An order, with the signer of its request.
    pub const fn new(order: &'a Order, signer: Option<Address>) -> Self {
        Self { order, signer }
    }
}

/// The host's decision on an order.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// The order is pooled.
    Accept,
    /// The order is pooled. A transaction is counted and ranked in the node's share, not in that of
    /// other external callers: see
    /// [`Transaction::vouched_for`](order_pool::Transaction::vouched_for). For a bundle this is the
    /// same as [`Self::Accept`], because bundles are not ranked.
    Prioritize,
    /// The order is not pooled, and the caller gets the reason.
    Refuse {
        /// Text for the caller; cut to 200 bytes.
        reason: Cow<'static, str>,
    },
    /// The host cannot decide; treated like a time-out.
    Unknown,
}

/// The future of an [`Admission`].
pub type AdmissionFuture<'a> = Pin<Box<dyn Future<Output = Verdict> + Send + 'a>>;

/// Decides what the RPC server cannot know, for instance whether a sender can pay.
pub trait Admission: Send + Sync {
    /// Called for each transaction and each bundle of an external caller before it is pooled; not
    /// for cancellations, nor for orders that are already pooled. At most
    /// [`max_admissions`](crate::OrderRpcConfig::max_admissions) calls run at once. Each takes at
    /// most [`admission_timeout`](crate::OrderRpcConfig::admission_timeout), which includes the
    /// wait for its turn. It is polled on a thread that serves connections, so it must not block.
    /// No work permit is held meanwhile.
    ///
    /// # Cancel safety
    /// Dropped at the time-out, and when the caller disconnects.
    fn admit<'a>(&'a self, candidate: Candidate<'a>) -> AdmissionFuture<'a>;

    /// Whether an order without a verdict ([`Verdict::Unknown`], a time-out, a panic) is pooled.
    /// Default: it is refused with a retry-after time, reason `admission_unavailable`.
    fn fails_open(&self) -> bool {
        false
    }
}

/// How an admission ended: the label `verdict` of `order_rpc_admissions_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Accepted,
    Prioritized,
    Refused,
    Unknown,
    TimedOut,
    Panicked,
}

impl Ended {
    pub(crate) const ALL: [Self; 6] = [
        Self::Accepted,
        Self::Prioritized,
        Self::Refused,
        Self::Unknown,
        Self::TimedOut,
        Self::Panicked,
    ];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Prioritized => "prioritized",
            Self::Refused => "refused",
            Self::Unknown => "unknown",
            Self::TimedOut => "timed_out",
            Self::Panicked => "panicked",
        }
    }
}

/// An order that may be pooled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Admitted {
    pub(crate) is_prioritized: bool,
}

impl RpcContext {
    /// Asks the host.
    pub(crate) async fn admit(
        &self,
        admission: &dyn Admission,
        candidate: Candidate<'_>,
    ) -> Result<Admitted, ErrorResponse> {
        let asked = async {
            // The semaphore is never closed. The permit is held until the verdict.
            let _turn = self.admissions.acquire().await;
            // `admit` may panic even before it returns a future.
            let verdict = async { admission.admit(candidate).await };
            AssertUnwindSafe(verdict).catch_unwind().await
        };
        let ended = match timeout(self.config.admission_timeout, asked).await {
            Ok(Ok(Verdict::Accept)) => Ended::Accepted,
            Ok(Ok(Verdict::Prioritize)) => Ended::Prioritized,
            Ok(Ok(Verdict::Refuse { reason })) => {
                self.metrics.admission(Ended::Refused);
                let message = cut(&reason).into_owned();
                return Err(ErrorResponse::rejected(Reason::Admission, message));
            }
            Ok(Ok(Verdict::Unknown)) => Ended::Unknown,
            Ok(Err(_)) => Ended::Panicked,
            Err(_) => Ended::TimedOut,
        };
        self.metrics.admission(ended);
        let is_prioritized = ended == Ended::Prioritized;
        if is_prioritized || ended == Ended::Accepted || admission.fails_open() {
            return Ok(Admitted { is_prioritized });
        }
        let message = "the host made no decision on the order";
        Err(self.retry_later(Reason::AdmissionUnavailable, message))
    }
}
