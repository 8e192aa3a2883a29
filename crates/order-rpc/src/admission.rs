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
    /// The order, whose senders are recovered. What the host learns of it can be kept in its
    /// [extension](Order::extension).
    pub order: &'a Order,
    /// Who signed the request, if anyone.
    pub signer: Option<Address>,
}

impl<'a> Candidate<'a> {
    /// An order, and who signed its request.
    pub const fn new(order: &'a Order, signer: Option<Address>) -> Self {
        Self { order, signer }
    }
}

/// What the host decides about an order.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// It goes into the pool.
    Accept,
    /// It goes into the pool. A transaction is counted and ranked there with what the node has announced,
    /// not with what other external callers claim to pay: see
    /// [`Transaction::vouched_for`](order_pool::Transaction::vouched_for). Of a bundle it means no more
    /// than [`Self::Accept`]: bundles are not ranked.
    Prioritize,
    /// It does not go into the pool, and the caller is told why.
    Refuse {
        /// For the caller to read; cut to 200 bytes.
        reason: Cow<'static, str>,
    },
    /// The host cannot tell: as if it had not answered in time.
    Unknown,
}

/// The answer of an [`Admission`].
pub type AdmissionFuture<'a> = Pin<Box<dyn Future<Output = Verdict> + Send + 'a>>;

/// Decides what the RPC server cannot know: whether a sender can pay, for instance.
pub trait Admission: Send + Sync {
    /// Called for each transaction and each bundle of an external caller before it is pooled; not for
    /// cancellations, nor for what is pooled already. At most
    /// [`max_admissions`](crate::OrderRpcConfig::max_admissions) calls run at once, and each for at most
    /// [`admission_timeout`](crate::OrderRpcConfig::admission_timeout), the wait for its turn included. It
    /// is polled on a thread that serves connections, so it must not block. No work permit is held
    /// meanwhile.
    ///
    /// # Cancel safety
    /// Dropped at the time-out, and when the caller hangs up.
    fn admit<'a>(&'a self, candidate: Candidate<'a>) -> AdmissionFuture<'a>;

    /// Whether an order is pooled for which there is no verdict: [`Verdict::Unknown`], a time-out, a panic.
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
            // Never closed. The permit is held until the verdict is there.
            let _turn = self.admissions.acquire().await;
            // It may panic before there is a future, too.
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
        let message = "whether the order is admitted could not be found out";
        Err(self.retry_later(Reason::AdmissionUnavailable, message))
    }
}
