//! What the host provides to the RPC server, and what it decides.

use std::{borrow::Cow, fmt, future::Future, pin::Pin, sync::Arc};

use alloy_primitives::Address;
use load_control::{Gate, LoadMonitor};
use order_pool::{Funds, Order, OrderPool};

/// What the host provides to the RPC server.
#[derive(Clone)]
pub struct Host {
    pub(crate) pool: OrderPool,
    pub(crate) gate: Gate,
    /// While it reports a high load, raw transactions are deferred, but those of signers that it knows. Default `None`: they never are.
    pub monitor: Option<LoadMonitor>,
    pub(crate) sources_live: Arc<dyn Fn() -> bool + Send + Sync>,
    pub(crate) sources_audited: Arc<dyn Fn() -> bool + Send + Sync>,
    pub(crate) is_published: Arc<dyn Fn() -> bool + Send + Sync>,
    pub(crate) knows_signer: Arc<dyn Fn(Address) -> bool + Send + Sync>,
    pub(crate) admission: Option<Arc<dyn Admission>>,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("gate", &self.gate).finish_non_exhaustive()
    }
}

impl Host {
    /// Orders go into this pool, by this gate. No monitor, always ready, and no signer is known.
    pub fn new(pool: OrderPool, gate: Gate) -> Self {
        Self {
            pool,
            gate,
            monitor: None,
            sources_live: Arc::new(|| true),
            sources_audited: Arc::new(|| true),
            is_published: Arc::new(|| true),
            knows_signer: Arc::new(|_| false),
            admission: None,
        }
    }

    /// Whether every source is live, on which the status of `/readyz` depends, and whether every
    /// source's pool can be compared with ours, which it only shows. Both are called on a thread that
    /// serves connections, so they must not block.
    #[must_use]
    pub fn with_sources(
        mut self,
        live: impl Fn() -> bool + Send + Sync + 'static,
        audited: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        (self.sources_live, self.sources_audited) = (Arc::new(live), Arc::new(audited));
        self
    }

    /// Whether what the pool accepts now can be expected to reach the builders, for a host that publishes its pool. The
    /// status of `/readyz` depends on it, and with
    /// [`OrderRpcConfig::refuse_unpublished`](crate::OrderRpcConfig::refuse_unpublished) whether orders and cancellations are
    /// accepted. Called on a thread that serves connections, so it must not block. Default: always.
    #[must_use]
    pub fn with_publishing(
        mut self,
        is_published: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        self.is_published = Arc::new(is_published);
        self
    }

    /// Whether the host knows a signer, whose requests then get their work permits before those of
    /// others. Called for each request with a signature, before the signature is verified: a caller
    /// that claims another signer gets its work permit as early, within the shares of its address,
    /// and then an error response. Called on a thread that serves connections, so it must not block.
    #[must_use]
    pub fn with_known_signers(
        mut self,
        is_known: impl Fn(Address) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.knows_signer = Arc::new(is_known);
        self
    }

    /// Decides on each order of an external caller that has passed the checks. Default: none.
    #[must_use]
    pub fn with_admission(mut self, admission: impl Admission + 'static) -> Self {
        self.admission = Some(Arc::new(admission));
        self
    }
}

/// An order from an external caller that has passed all checks of the RPC server.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Candidate<'a> {
    /// The order, with its senders recovered.
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
    /// The order is pooled if [`OrderPool::check_funds`] then still allows it, so that orders which
    /// are decided on at the same time are paid for together.
    AcceptWithin(Funds),
    /// The order is not pooled, and the caller gets the reason.
    Refuse {
        /// Text for the caller; cut to 200 bytes.
        reason: Cow<'static, str>,
    },
    /// The order is not pooled, and the caller gets a retry-after time, reason `admission_unavailable`:
    /// too much of the same caller waits for a decision. [`Admission::fails_open`] changes nothing.
    RetryLater,
    /// The host cannot decide; treated like a time-out.
    Unknown,
}

/// The future of an [`Admission`].
pub type AdmissionFuture<'a> = Pin<Box<dyn Future<Output = Verdict> + Send + 'a>>;

/// Decides what the RPC server cannot know, for instance whether a sender can pay.
pub trait Admission: Send + Sync {
    /// Called for each transaction and each bundle of an external caller before it is pooled; not
    /// for cancellations, nor for orders that are already pooled. At most 256 calls run at once for
    /// orders of known signers and of the host, and 256 for others, 32 of them for one caller. Each
    /// takes at most [`admission_timeout`](crate::OrderRpcConfig::admission_timeout), which includes
    /// the wait for its turn. It is polled on a thread that serves connections, so it must not block.
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
