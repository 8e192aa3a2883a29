//! What the host provides to the RPC server, and the host's decision on each order.

use std::{borrow::Cow, fmt, future::Future, pin::Pin, sync::Arc};

use alloy_primitives::Address;
use load_control::{Gate, LoadMonitor};
use order_pool::{Funds, Order, OrderPool};

/// What the host provides to the RPC server: the pool, the admission gate, and answers to what only
/// the host knows.
#[derive(Clone)]
pub struct Host {
    pub(crate) pool: OrderPool,
    pub(crate) gate: Gate,
    /// While it reports a high load, raw transactions are deferred, except those of known signers.
    /// Default `None`: they never are.
    pub monitor: Option<LoadMonitor>,
    pub(crate) sources_live: Arc<dyn Fn() -> bool + Send + Sync>,
    pub(crate) sources_audited: Arc<dyn Fn() -> bool + Send + Sync>,
    pub(crate) is_published: Arc<dyn Fn() -> bool + Send + Sync>,
    pub(crate) is_known_signer: Arc<dyn Fn(Address) -> bool + Send + Sync>,
    pub(crate) admission: Option<Arc<dyn Admission>>,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("gate", &self.gate).finish_non_exhaustive()
    }
}

impl Host {
    /// Inserts orders into `pool` as `gate` admits them. Without the setters below there is no
    /// load monitor, the server is always ready, and no signer is known.
    pub fn new(pool: OrderPool, gate: Gate) -> Self {
        Self {
            pool,
            gate,
            monitor: None,
            sources_live: Arc::new(|| true),
            sources_audited: Arc::new(|| true),
            is_published: Arc::new(|| true),
            is_known_signer: Arc::new(|_| false),
            admission: None,
        }
    }

    /// Sets what `/readyz` reports about the sources: whether every source is live, on which its
    /// status depends, and whether every source's pool can be compared with ours, which it only
    /// shows. Both functions are called on a thread that serves connections, so they must not
    /// block.
    #[must_use]
    pub fn with_sources(
        mut self,
        live: impl Fn() -> bool + Send + Sync + 'static,
        audited: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        self.sources_live = Arc::new(live);
        self.sources_audited = Arc::new(audited);
        self
    }

    /// Sets whether orders that the pool accepts now can be expected to reach the builders, for a
    /// host that publishes its pool. The status of `/readyz` depends on it, and with
    /// [`OrderRpcConfig::refuse_unpublished`](crate::OrderRpcConfig::refuse_unpublished) also
    /// whether orders and cancellations are accepted. The function is called on a thread that
    /// serves connections, so it must not block. Default: always true.
    #[must_use]
    pub fn with_publishing(
        mut self,
        is_published: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        self.is_published = Arc::new(is_published);
        self
    }

    /// Sets which signers the host knows. Their requests get work permits before those of others.
    ///
    /// The function is called for each request with a signature before the signature is verified: a
    /// caller that claims to be a known signer gets its work permit as early, within the shares of
    /// its address, and then an error response. A copy of a request that another caller was the
    /// first to send is served with those of strangers. The function is called on a thread that
    /// serves connections, so it must not block.
    #[must_use]
    pub fn with_known_signers(
        mut self,
        is_known: impl Fn(Address) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.is_known_signer = Arc::new(is_known);
        self
    }

    /// Sets who decides on each order of an external caller that has passed all other checks.
    /// Default: nobody.
    #[must_use]
    pub fn with_admission(mut self, admission: impl Admission + 'static) -> Self {
        self.admission = Some(Arc::new(admission));
        self
    }
}

/// An order of an external caller that has passed all checks of the RPC server.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Candidate<'a> {
    /// The order, with its senders recovered.
    pub order: &'a Order,
    /// The signer of the request, if it is signed.
    pub signer: Option<Address>,
}

impl<'a> Candidate<'a> {
    /// Creates a candidate from an order and the signer of its request.
    pub const fn new(order: &'a Order, signer: Option<Address>) -> Self {
        Self { order, signer }
    }
}

/// The host's decision on an order.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// The order is inserted into the pool.
    Accept,
    /// The order is inserted, and a transaction is counted and ranked in the node's share of the
    /// pool instead of that of external callers: see
    /// [`Transaction::vouched_for`](order_pool::Transaction::vouched_for). For a bundle this is the
    /// same as [`Self::Accept`], because bundles are not ranked.
    Prioritize,
    /// The order is inserted if [`OrderPool::check_funds`] still allows it then, so that the funds
    /// of one sender cover all orders that are decided on at the same time.
    AcceptWithin(Funds),
    /// The order is refused, and the caller gets the reason.
    Refuse {
        /// Text for the caller, truncated to 200 bytes.
        reason: Cow<'static, str>,
    },
    /// The order is refused for now, and the caller gets a retry-after time with the reason
    /// `admission_unavailable`: too many orders of the same caller wait for a decision.
    /// [`Admission::fails_open`] does not apply.
    RetryLater,
    /// The host cannot decide. Treated like a timeout.
    Unknown,
}

/// The future that [`Admission::admit`] returns.
pub type AdmissionFuture<'a> = Pin<Box<dyn Future<Output = Verdict> + Send + 'a>>;

/// Decides what the RPC server cannot know, for instance whether a sender can pay.
pub trait Admission: Send + Sync {
    /// Called for each transaction and each bundle of an external caller before it is inserted; not
    /// for cancellations, nor for orders that are already in the pool.
    ///
    /// At most 256 calls run at once for orders of known signers and of the host, and 256 for
    /// others, of which at most 32 belong to one caller. Each may take
    /// [`admission_timeout`](crate::OrderRpcConfig::admission_timeout), which includes the wait for
    /// its turn. The future is polled on a thread that serves connections, so it must not block. No
    /// work permit is held meanwhile.
    ///
    /// # Cancel safety
    /// The future is dropped at the timeout, and when the caller disconnects.
    fn admit<'a>(&'a self, candidate: Candidate<'a>) -> AdmissionFuture<'a>;

    /// Whether an order without a verdict ([`Verdict::Unknown`], a timeout or a panic) is accepted.
    /// Default false: it is refused with a retry-after time, reason `admission_unavailable`.
    fn fails_open(&self) -> bool {
        false
    }
}
