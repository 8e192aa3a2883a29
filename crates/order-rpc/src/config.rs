//! The options of the RPC server, with the arithmetic behind each default.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use alloy_primitives::Address;

use crate::error::ConfigError;

/// Default maximum of bytes in one request body: four transactions of six blobs each, the largest
/// regular ones, at 1.6 MB of JSON each.
pub const DEFAULT_MAX_BODY_BYTES: usize = 8 << 20;
/// Default maximum of bytes in all bodies and unsent responses: eight requests of the maximum size.
pub const DEFAULT_MAX_BUFFERED_BYTES: usize = 64 << 20;
/// Default maximum of open connections. At about 20 kB each, 40 MB.
pub const DEFAULT_MAX_CONNECTIONS: usize = 2_048;
/// Default time for the host to decide on an order: ten times what a local node takes to look up
/// 100 accounts.
pub const DEFAULT_ADMISSION_TIMEOUT: Duration = Duration::from_millis(50);
/// Default quota of one signer: a searcher with 50 opportunities that bids on each of them ten
/// times a second with a signed bundle of three transactions. The burst is the work of two seconds.
pub const DEFAULT_QUOTA: Quota = Quota { per_second: 2_000, burst: 4_000 };
/// Default quota of one caller, whoever signs its requests: the work of three signers at their
/// quota, a fifth to a third of the capacity of one core.
pub const DEFAULT_CALLER_QUOTA: Quota = Quota { per_second: 6_000, burst: 12_000 };

/// Whether requests must be signed, by `X-Flashbots-Signature` or `X-BuilderNet-Signature`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum SignatureMode {
    /// Every request must be signed.
    Required,
    /// A signature is verified if the request has one. An unsigned bundle cannot have a
    /// replacement uuid.
    #[default]
    Optional,
    /// The signature headers are ignored, and no bundle may have a replacement uuid.
    Off,
}

/// The bytes of a body that cost as much to read, parse and hash as one recovery of a signature:
/// about 3 us per KiB.
const BODY_BYTES_PER_WORK_UNIT: usize = 16 * 1_024;

/// Returns the work that a caller is charged for a body of `length` bytes before it is parsed.
pub(crate) const fn body_work(length: usize) -> usize {
    1 + length / BODY_BYTES_PER_WORK_UNIT
}

/// Verifying the 128 cell proofs of one blob takes as long as this many signature recoveries.
pub(crate) const WORK_PER_BLOB: usize = 200;

/// The work that a caller is charged for a request that its claimed signer did not sign. As a
/// presumed known signer the request may have been served before those of others; at the default
/// quota one address can do that 30 times a second.
pub(crate) const WORK_PER_FORGERY: usize = 200;

/// How much work a signer or a caller may cause.
///
/// Work is counted in signature recoveries of about 50 us: one for the request's own signature, one
/// for each transaction and each cancellation, and 200 for each blob whose proofs are verified. A
/// caller also pays one unit for each element of a batch, for each `GET` and for each refused
/// request, and one for each 16 KiB of a body as it arrives. A signature that the claimed signer
/// did not make costs the caller 200 units; if it has fewer left it goes into debt, and is refused
/// until the debt is paid.
///
/// The elements of a batch and their blobs are paid for one after the other. An element that the
/// quota does not cover is refused and costs its signer nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(deny_unknown_fields))]
pub struct Quota {
    /// Sustained rate in units of work per second: at least 1.
    pub per_second: u32,
    /// Units of work that may be spent at once after a pause: at least 200, which pays for the
    /// proofs of one blob. A caller's burst must also pay for a body of
    /// [`max_body_bytes`](OrderRpcConfig::max_body_bytes).
    pub burst: u32,
}

/// The configuration of an [`OrderRpc`](crate::OrderRpc).
///
/// Make one with [`Self::new`] and then set its fields: the struct gets more fields in
/// later versions.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(default = "OrderRpcConfig::without_chain_id", deny_unknown_fields)
)]
pub struct OrderRpcConfig {
    /// The address to listen on. Default: 127.0.0.1 with a free port. A builder that takes orders
    /// from other machines without a proxy on its own machine sets it.
    pub listen: SocketAddr,
    /// The chain id that transactions must have.
    pub chain_id: u64,
    /// The timestamp of the first Osaka block, in seconds since the Unix epoch. Default 0: every
    /// block is after it. A private chain that forks later sets it: from Osaka on, transactions
    /// with more than 16,777,216 gas (EIP-7825) or six blobs (EIP-7594) are refused.
    pub osaka_time: u64,
    /// The timestamp of the first Amsterdam block, in seconds since the Unix epoch. Default 0: no
    /// block is after it. From Amsterdam on, transactions need less gas (EIP-2780), and may have
    /// more gas (EIP-8037) and longer init code (EIP-7954). The fork is that of the block after
    /// the head.
    pub amsterdam_time: u64,
    /// Threads of the server's own runtime, which read requests and send responses (1 to 1,024).
    /// Default: half of the cores, at least 1. A host that pins its threads to cores sets it.
    /// CPU-heavy work runs on further threads, one for each work permit of external callers.
    pub threads: usize,
    /// Whether requests must be signed. Default [`SignatureMode::Optional`].
    pub signatures: SignatureMode,
    /// Quota of each signer at each address that it sends from, because anyone who has a copy of a
    /// signed request can send it again from elsewhere. Default [`DEFAULT_QUOTA`]; `None`: no
    /// limit. Raise it for searchers that bid more often. Refusals are counted by
    /// `order_rpc_refused_total{reason="quota"}`.
    pub quota: Option<Quota>,
    /// Quota of each caller for all its requests, whoever signs them, so that fresh keys gain
    /// nothing. All callers of an IPv6 /48 together have four times as much. Default
    /// [`DEFAULT_CALLER_QUOTA`]; `None`: no limit. Raise it where many searchers share an address.
    /// Refusals are counted by `order_rpc_refused_total{reason="caller_quota"}`.
    pub caller_quota: Option<Quota>,
    /// Maximum bytes of one request body (1,024 to 1 GiB). Default [`DEFAULT_MAX_BODY_BYTES`].
    /// Longer bodies get status 413. Raise it for bundles with more blobs.
    pub max_body_bytes: usize,
    /// Maximum bytes of all bodies, and then of their responses until these are sent. Default
    /// [`DEFAULT_MAX_BUFFERED_BYTES`]; at least `max_body_bytes`. It bounds the memory of requests.
    /// Bodies above 64 KiB leave an eighth of it free, and unknown callers that hold more than a
    /// thirty-second leave a quarter; beyond that they get status 503. One caller may hold a
    /// quarter, or one body if that is more; beyond that it gets status 429.
    pub max_buffered_bytes: usize,
    /// Maximum of open connections (1 to 1,048,576). Default [`DEFAULT_MAX_CONNECTIONS`]. Above it
    /// a new connection replaces the oldest one without a complete request in progress, of the
    /// caller that holds the most; if there is none, it gets status 503. One caller may hold a
    /// sixteenth; beyond that it gets status 429. Raise it, and the limit of open files with it,
    /// for more searchers. Keep it above the gate's limit of requests, so that never all
    /// connections have a request in progress.
    pub max_connections: usize,
    /// Time for [`Host::with_admission`](crate::Host::with_admission) to decide on an order,
    /// including the wait for its turn; above 0. Default [`DEFAULT_ADMISSION_TIMEOUT`]. A host
    /// whose decision needs another machine raises it; each order waits for at most this long.
    /// Counted by `order_rpc_admissions_total{verdict="timed_out"}`.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub admission_timeout: Duration,
    /// Whether orders and cancellations are refused (`not_published`) while the host reports that
    /// it cannot publish them ([`Host::with_publishing`](crate::Host::with_publishing)). Enable it
    /// where searchers send to several machines and should then send to another one. Default false:
    /// the pool accepts them, and they are published later.
    pub refuse_unpublished: bool,
    /// Host names, without a port, that the `Host` header of a request may have besides IP
    /// addresses and `localhost`. Default: none. A request with another name is refused (403),
    /// because a web page in somebody's browser may have sent it (DNS rebinding). Set it if
    /// clients reach the server by a name, or through a proxy that forwards the client's `Host`.
    pub host_names: Vec<String>,
    /// Addresses of reverse proxies. The caller of their requests is the last address in
    /// `X-Forwarded-For`; a request without one is refused. Their own connections are bounded by
    /// `max_connections` alone. Default: none. List no address from which a caller can connect
    /// past the proxy: such a caller could choose the address that it is counted as.
    pub trusted_proxies: Vec<IpAddr>,
    /// Addresses of proxies that have verified the signature of a request and name the signer in
    /// `signingAddress` instead of forwarding the signature, as BuilderNet's FlowProxy does for
    /// the builder on its host (`127.0.0.1` for one on this host). They carry the requests of all
    /// searchers, so they have neither shares nor a quota, and their requests need no signature.
    /// None of them may be a trusted proxy too. Default: none. Anyone who can connect from such an
    /// address can replace and cancel the bundles of every signer.
    pub trusted_fronts: Vec<IpAddr>,
    /// Whether unknown fields in what a front forwards are ignored, and counted by
    /// `order_rpc_ignored_fields_total{field="other"}`, instead of being refused. Default true:
    /// FlowProxy takes every answer with HTTP 200 for a success, so nobody would notice that the
    /// order was refused.
    pub lenient_fronts: bool,
    /// Signers that are known from the start, in addition to those of
    /// [`Host::with_known_signers`](crate::Host::with_known_signers). They are served first, and
    /// half of the pool's caps is reserved for them. So is a sixteenth of the requests in flight
    /// and of the buffered bytes, at each address that since the start was the first to send a
    /// request that one of them has signed. Default: none.
    pub known_signers: Vec<Address>,
}

impl OrderRpcConfig {
    /// Returns the default options for the chain with this id.
    pub fn new(chain_id: u64) -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            chain_id,
            osaka_time: 0,
            amsterdam_time: 0,
            threads: (load_control::cores() / 2).max(1),
            signatures: SignatureMode::default(),
            quota: Some(DEFAULT_QUOTA),
            caller_quota: Some(DEFAULT_CALLER_QUOTA),
            max_body_bytes: DEFAULT_MAX_BODY_BYTES,
            max_buffered_bytes: DEFAULT_MAX_BUFFERED_BYTES,
            max_connections: DEFAULT_MAX_CONNECTIONS,
            admission_timeout: DEFAULT_ADMISSION_TIMEOUT,
            refuse_unpublished: false,
            host_names: Vec::new(),
            trusted_proxies: Vec::new(),
            trusted_fronts: Vec::new(),
            lenient_fronts: true,
            known_signers: Vec::new(),
        }
    }

    #[cfg(feature = "serde")]
    fn without_chain_id() -> Self {
        Self::new(0)
    }

    /// Checks every option against its bounds.
    ///
    /// # Errors
    /// Names the first option that is out of bounds, its value and the limit.
    pub fn validate(&self) -> Result<(), ConfigError> {
        const UNLIMITED: Quota = Quota { per_second: u32::MAX, burst: u32::MAX };
        let quota = self.quota.unwrap_or(UNLIMITED);
        let caller_quota = self.caller_quota.unwrap_or(UNLIMITED);
        let max = u32::MAX as usize;
        let numbers = [
            ("threads", self.threads, 1, 1_024),
            ("quota.per_second", quota.per_second as usize, 1, max),
            ("quota.burst", quota.burst as usize, WORK_PER_BLOB, max),
            ("caller_quota.per_second", caller_quota.per_second as usize, 1, max),
            ("caller_quota.burst", caller_quota.burst as usize, WORK_PER_BLOB, max),
            ("max_body_bytes", self.max_body_bytes, 1_024, 1 << 30),
            ("max_connections", self.max_connections, 1, 1 << 20),
        ];
        for (field, value, min, max) in numbers {
            if !(min..=max).contains(&value) {
                return Err(ConfigError::OutOfBounds { field, value, min, max });
            }
        }
        // A body that max_body_bytes admits must pass the limits behind it too.
        let for_field = "max_body_bytes";
        let for_value = self.max_body_bytes;
        for (field, value, least) in [
            ("max_buffered_bytes", self.max_buffered_bytes, for_value),
            ("caller_quota.burst", caller_quota.burst as usize, body_work(for_value)),
        ] {
            if value < least {
                return Err(ConfigError::TooSmall { field, value, least, for_field, for_value });
            }
        }
        for proxy in &self.trusted_proxies {
            let is_proxy = |front: &IpAddr| front.to_canonical() == proxy.to_canonical();
            if self.trusted_fronts.iter().any(is_proxy) {
                return Err(ConfigError::ProxyAndFront { address: *proxy });
            }
        }
        if self.admission_timeout.is_zero() {
            return Err(ConfigError::ZeroTime { field: "admission_timeout" });
        }
        Ok(())
    }
}
