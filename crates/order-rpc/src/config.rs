//! The options, with the arithmetic behind each default.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use alloy_primitives::Address;

use crate::error::ConfigError;

/// Bytes of one request: four transactions of six blobs, the largest regular ones, 1.6 MB of JSON.
pub const DEFAULT_MAX_BODY_BYTES: usize = 8 << 20;
/// Bytes of all requests, until their responses are sent: eight requests of the maximum length.
pub const DEFAULT_MAX_BUFFERED_BYTES: usize = 64 << 20;
/// Open connections. At about 20 kB each, 40 MB.
pub const DEFAULT_MAX_CONNECTIONS: usize = 2_048;
/// Time for the host to decide on an order: ten times what a local node takes for 100 accounts.
pub const DEFAULT_ADMISSION_TIMEOUT: Duration = Duration::from_millis(50);
/// Quota of one signer: a searcher with 50 opportunities that bids on each ten times a second, with
/// a signed bundle of three transactions; after a pause, the work of two seconds at once.
pub const DEFAULT_QUOTA: Quota = Quota { per_second: 2_000, burst: 4_000 };
/// Quota of one caller, whoever signs: the work of three signers at their quota, a fifth to a third
/// of a core's capacity.
pub const DEFAULT_CALLER_QUOTA: Quota = Quota { per_second: 6_000, burst: 12_000 };

/// Whether requests must be signed by `X-Flashbots-Signature`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum SignatureMode {
    /// Every request must be signed.
    Required,
    /// A signature is verified if there is one. An unsigned bundle cannot have a replacement uuid.
    #[default]
    Optional,
    /// The header is ignored, and no bundle may have a replacement uuid.
    Off,
}

/// Bytes of a body that cost as much as a recovery to read, parse and hash: about 3 us per KiB.
const BYTES_PER_WORK: usize = 16 * 1_024;

/// The work that a request with a body of this length costs its caller before it is parsed.
pub(crate) const fn body_work(length: usize) -> usize {
    1 + length / BYTES_PER_WORK
}

/// The 128 cell proofs of a blob take as long as this many signature recoveries.
pub(crate) const WORK_PER_BLOB: usize = 200;

/// What a caller pays for a request that its claimed signer has not signed. It may have been served before the
/// requests of others, as a known signer's: at the default quota an address can do it 30 times a second.
pub(crate) const WORK_OF_FORGERY: usize = 200;

/// How much work a signer or a caller may cause. Work is counted in signature recoveries (about
/// 50 us): one for the request's own signature, for each transaction and for each cancellation, 200
/// for each blob whose proofs are verified. A signature that its claimed signer has not made costs the
/// caller 200, also if it has less: it is then refused until they are paid. For the caller a request counts one more for each
/// element, also if it is refused or a `GET`, and for each 16 KiB of its body as they arrive. The elements of a batch and their
/// blobs are paid for one after the other; one that the quota does not pay for is refused, and
/// counts nothing for its signer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(deny_unknown_fields))]
pub struct Quota {
    /// Sustained rate: at least 1.
    pub per_second: u32,
    /// Burst after a pause: at least 200, which is the proofs of one blob. For a caller it must also
    /// pay for a body of [`max_body_bytes`](OrderRpcConfig::max_body_bytes).
    pub burst: u32,
}

/// The configuration of an [`OrderRpc`](crate::OrderRpc). [`Self::new`] takes what has no default.
#[derive(Clone, Debug)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(default = "OrderRpcConfig::of_no_chain", deny_unknown_fields)
)]
pub struct OrderRpcConfig {
    /// The address to listen on. Default 127.0.0.1 with a free port: a builder that takes orders
    /// from other machines, without a proxy on its own, sets it.
    pub listen: SocketAddr,
    /// The chain id that transactions must have.
    pub chain_id: u64,
    /// The time of the first block of Osaka, in seconds since the Unix epoch; 0 (default): each block
    /// follows it. A private chain that is older sets it: without it transactions are refused above
    /// 16,777,216 gas (EIP-7825) or six blobs (EIP-7594).
    pub osaka_time: u64,
    /// The time of the first block of Amsterdam, in seconds since the Unix epoch; 0 (default): no block
    /// follows it. Then transactions need less gas (EIP-2780), may have more (EIP-8037), and longer
    /// init code (EIP-7954). The rules are those of the block after the head.
    pub amsterdam_time: u64,
    /// Threads of the RPC server's own runtime, which read requests and send responses: default
    /// half of the cores, at least 1. Whoever pins the builder's threads to cores sets it. CPU-heavy
    /// work runs on further threads, one for each work permit of external callers.
    pub threads: usize,
    /// Whether requests must be signed. Default [`SignatureMode::Optional`].
    pub signatures: SignatureMode,
    /// Quota of each signer of signed requests, at each address that it sends from: who has a copy of a
    /// request can send it again. Default [`DEFAULT_QUOTA`]; `None`: no limit. Raise it for searchers that
    /// bid more often. Refusals are counted by `order_rpc_refused_total{reason="quota"}`.
    pub quota: Option<Quota>,
    /// Quota of each caller, for all its requests, whoever signs them, so that new keys gain
    /// nothing. All callers of an IPv6 /48 together have four times as much. Default [`DEFAULT_CALLER_QUOTA`]; `None`: no limit. Raise it where many searchers
    /// share an address. Refusals are counted by `order_rpc_refused_total{reason="caller_quota"}`.
    pub caller_quota: Option<Quota>,
    /// Bytes of a request, default [`DEFAULT_MAX_BODY_BYTES`]. Above it: 413. Raise it for bundles
    /// with more blobs.
    pub max_body_bytes: usize,
    /// Bytes of bodies, and then of their responses until these are sent. Default
    /// [`DEFAULT_MAX_BUFFERED_BYTES`]; at least `max_body_bytes`. It is the most memory that requests
    /// take. Bodies above 64 KiB leave an eighth of it free; above it: 503. One caller may hold a
    /// quarter, or one request if that is more; above it: 429.
    pub max_buffered_bytes: usize,
    /// Open connections. Default [`DEFAULT_MAX_CONNECTIONS`]. Above it a new one takes the place of the oldest one
    /// without a complete request in work, of the caller that holds the most; if there is none: 503. One caller may hold a
    /// sixteenth; above it: 429. Raise it, and the limit of open files with it, for more searchers; keep it above
    /// the gate's limit of requests, so that never all of them have a request in work.
    pub max_connections: usize,
    /// Time for [`Host::with_admission`](crate::Host::with_admission), including the wait for its
    /// turn. Default [`DEFAULT_ADMISSION_TIMEOUT`]. A host whose decision needs another machine
    /// raises it; each order waits for so long at most. Counted by
    /// `order_rpc_admissions_total{verdict="timed_out"}`.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub admission_timeout: Duration,
    /// Whether orders and cancellations are refused (`not_published`) while the host says that it cannot publish them
    /// ([`Host::with_publishing`](crate::Host::with_publishing)). Turn it on where searchers send to several machines, and
    /// should send to another one then. Default false: the pool takes them, and they are published later.
    pub refuse_unpublished: bool,
    /// Names that the `Host` of a request may have, without a port, beside IP addresses and
    /// `localhost`. Default: none; a request with another one is refused, since a web page that
    /// another machine's browser shows may have sent it (DNS rebinding). Whoever reaches the server
    /// by a name, or through a proxy that forwards its client's, sets it.
    pub host_names: Vec<String>,
    /// Proxies in front of the RPC server. For their requests the caller is the last address of
    /// `X-Forwarded-For`, without which they are refused, and their own connections are bounded by
    /// `max_connections` alone. Default: none. Name no address from which a caller can connect past the proxy, or that
    /// caller chooses the address it is counted as.
    pub trusted_proxies: Vec<IpAddr>,
    /// Proxies in front of the builder that have verified the signature of a request, and name the
    /// signer in `signingAddress` instead of forwarding the signature, as BuilderNet's FlowProxy
    /// does for the builder on its host: `127.0.0.1` for one on this host. They carry the requests
    /// of all searchers, so they have no shares and no quota, and their requests need no signature.
    /// None of them is a trusted proxy too. Default: none. Anyone who can connect from such an address can replace and cancel all
    /// signers' bundles.
    pub trusted_fronts: Vec<IpAddr>,
    /// Whether fields that are not known here are passed over in what a front forwards, counted by
    /// `order_rpc_ignored_fields_total{field="other"}`, instead of being an error. Default true: FlowProxy
    /// takes any answer with HTTP 200 for a success, so nobody would see that the order was refused.
    pub lenient_fronts: bool,
    /// Signers that are known from the start, beside those of
    /// [`Host::with_known_signers`](crate::Host::with_known_signers). They are served first, and half of the pool's caps
    /// is theirs, whatever strangers send; so is a sixteenth of the requests in flight and of the buffered bytes at each
    /// address where one has signed a request since the start. Default: none.
    pub known_signers: Vec<Address>,
}

impl OrderRpcConfig {
    /// The defaults, for the chain with this id.
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
    fn of_no_chain() -> Self {
        Self::new(0)
    }

    /// # Errors
    /// Names the first setting that is out of bounds, its value and the limit.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let of = |quota: Option<Quota>| {
            quota.map_or((1, u32::MAX), |quota| (quota.per_second, quota.burst))
        };
        let ((rate, burst), (caller_rate, caller_burst)) = (of(self.quota), of(self.caller_quota));
        let numbers = [
            ("threads", self.threads, 1, 1_024),
            ("quota.per_second", rate as usize, 1, u32::MAX as usize),
            ("quota.burst", burst as usize, WORK_PER_BLOB, u32::MAX as usize),
            ("caller_quota.per_second", caller_rate as usize, 1, u32::MAX as usize),
            ("caller_quota.burst", caller_burst as usize, WORK_PER_BLOB, u32::MAX as usize),
            ("max_body_bytes", self.max_body_bytes, 1_024, 1 << 30),
            ("max_connections", self.max_connections, 1, 1 << 20),
        ];
        for (field, value, min, max) in numbers {
            if !(min..=max).contains(&value) {
                return Err(ConfigError::OutOfBounds { field, value, min, max });
            }
        }
        // What a limit admits, those behind it must be able to.
        let (for_field, for_value) = ("max_body_bytes", self.max_body_bytes);
        for (field, value, least) in [
            ("max_buffered_bytes", self.max_buffered_bytes, for_value),
            ("caller_quota.burst", caller_burst as usize, body_work(for_value)),
        ] {
            if value < least {
                return Err(ConfigError::TooSmall { field, value, least, for_field, for_value });
            }
        }
        let is_front = |proxy: &&IpAddr| {
            self.trusted_fronts.iter().any(|front| front.to_canonical() == proxy.to_canonical())
        };
        if let Some(&address) = self.trusted_proxies.iter().find(is_front) {
            return Err(ConfigError::ProxyAndFront { address });
        }
        if self.admission_timeout.is_zero() {
            return Err(ConfigError::ZeroTime { field: "admission_timeout" });
        }
        Ok(())
    }
}
