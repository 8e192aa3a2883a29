//! The configuration, with the arithmetic behind each default.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use thiserror::Error;

/// Bytes of one request. The largest regular one is a transaction of six blobs: 1.6 MB of JSON.
/// Four of them fit, in a bundle or a batch.
pub const DEFAULT_MAX_BODY_BYTES: usize = 8 << 20;
/// Bytes of all requests, until their responses are sent: eight requests of the maximum length.
pub const DEFAULT_MAX_BUFFERED_BYTES: usize = 64 << 20;
/// The part of these that one peer may hold: two requests of the maximum length.
pub const DEFAULT_MAX_BUFFERED_BYTES_PER_PEER: usize = 16 << 20;
/// Elements of a batch.
pub const DEFAULT_MAX_BATCH: usize = 100;
/// Open connections. At about 20 kB each, 40 MB.
pub const DEFAULT_MAX_CONNECTIONS: usize = 2_048;
/// Open connections of one peer: a sixteenth, so that a few hosts cannot take all.
pub const DEFAULT_MAX_CONNECTIONS_PER_PEER: usize = 128;
/// Requests in flight of one peer: a quarter of the gate's limit on a small machine.
pub const DEFAULT_MAX_REQUESTS_PER_PEER: usize = 256;
/// Time for the headers of a request, and the longest that an idle connection is kept.
pub const DEFAULT_HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for the whole body of a request: 8 MB at 1.3 MB/s.
pub const DEFAULT_BODY_TIMEOUT: Duration = Duration::from_secs(6);
/// A body that is not complete after this time counts as slow, and the number of slow ones is
/// limited.
pub const DEFAULT_SLOW_BODY_AFTER: Duration = Duration::from_millis(100);
/// Slow bodies at once: half of the requests in flight that one core allows.
pub const DEFAULT_MAX_SLOW_BODIES: usize = 32;
/// The part of these that one peer may have: a quarter, so that a few slow hosts do not keep out
/// all slow ones.
pub const DEFAULT_MAX_SLOW_BODIES_PER_PEER: usize = 8;
/// Time in which a client must read some bytes of what is sent to it.
pub const DEFAULT_SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// The most blocks above the head for which a private transaction is kept; Flashbots uses the same
/// (`eth_sendPrivateTransaction`).
pub const DEFAULT_MAX_PRIVATE_BLOCKS: u64 = 25;
/// Time for the host to decide on an order: more than ten times what a local node needs to read a
/// hundred accounts.
pub const DEFAULT_ADMISSION_TIMEOUT: Duration = Duration::from_millis(50);
/// Concurrent decisions of the host: as many as the requests that one peer may have in flight.
pub const DEFAULT_MAX_ADMISSIONS: usize = DEFAULT_MAX_REQUESTS_PER_PEER;
/// Signers whose quota is kept: 64 bytes each, 4 MB.
pub const DEFAULT_MAX_SIGNERS: usize = 65_536;
/// Work of one signer per second, in signature recoveries (about 50 us): a searcher with 50
/// opportunities that bids on each ten times a second, with a signed bundle of three transactions.
pub const DEFAULT_QUOTA_PER_SECOND: u32 = 2_000;
/// Work of one signer in a burst after a pause: that of two seconds.
pub const DEFAULT_QUOTA_BURST: u32 = 4_000;
/// Work of one peer per second, whoever signs: that of three signers at their quota, a fifth to a
/// third of a core's capacity.
pub const DEFAULT_PEER_QUOTA_PER_SECOND: u32 = 6_000;
/// Work of one peer in a burst after a pause: that of two seconds.
pub const DEFAULT_PEER_QUOTA_BURST: u32 = 12_000;
/// Bytes of a transaction without its blobs: geth accepts no larger one into its pool (txMaxSize,
/// 1.16).
pub const DEFAULT_MAX_TX_BYTES: usize = 128 << 10;
/// Gas of a transaction (EIP-7825).
pub const DEFAULT_MAX_TX_GAS: u64 = 1 << 24;
/// Blobs of a transaction (EIP-7594).
pub const DEFAULT_MAX_BLOBS_PER_TX: usize = 6;

/// Whether requests must be signed by `X-Flashbots-Signature`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SignatureMode {
    /// Every request must be signed.
    Required,
    /// A signature is verified if there is one. An unsigned bundle cannot have a replacement uuid.
    #[default]
    Optional,
    /// The header is ignored, and no bundle may have a replacement uuid.
    Off,
}

macro_rules! setters {
    ($config:ident: $($field:ident, $with:ident: $ty:ty;)*) => {
        impl $config {$(
            #[doc = concat!("Sets [`Self::", stringify!($field), "`].")]
            #[must_use]
            pub const fn $with(mut self, $field: $ty) -> Self {
                self.$field = $field;
                self
            }
        )*}
    };
}

/// How much work a signer or a peer may cause. Work is counted in signature recoveries: one for the
/// request's own signature, for each transaction and for each cancellation, 200 for each blob. For
/// the peer a request counts one more for each element and for each 16 KiB of its body. A request
/// that a limit refuses counts nothing for its signer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Quota {
    /// Sustained rate: at least 1, default [`DEFAULT_QUOTA_PER_SECOND`].
    pub per_second: u32,
    /// Burst after a pause: at least 1, default [`DEFAULT_QUOTA_BURST`].
    pub burst: u32,
}

impl Default for Quota {
    fn default() -> Self {
        Self { per_second: DEFAULT_QUOTA_PER_SECOND, burst: DEFAULT_QUOTA_BURST }
    }
}

setters! { Quota:
    per_second, with_per_second: u32;
    burst, with_burst: u32;
}

/// The configuration of an [`OrderRpc`](crate::OrderRpc).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OrderRpcConfig {
    /// The address to listen on. Default 127.0.0.1 with a free port.
    pub listen: SocketAddr,
    /// The chain id that transactions must have.
    pub chain_id: u64,
    /// Threads of the RPC server's own runtime, which read requests and send responses: default
    /// half of the cores, at least 1. CPU-heavy work runs on further threads, one for each work
    /// permit of external callers.
    pub threads: usize,
    /// Whether requests must be signed. Default [`SignatureMode::Optional`].
    pub signatures: SignatureMode,
    /// Quota of each signer of signed requests; `None`: no limit. Refusals are counted by
    /// `order_rpc_refused_total{reason="quota"}`.
    pub quota: Option<Quota>,
    /// Quota of each peer, for all its requests, whoever signs them, so that new keys gain nothing.
    /// Default [`DEFAULT_PEER_QUOTA_PER_SECOND`] and [`DEFAULT_PEER_QUOTA_BURST`]; `None`: no
    /// limit. Refusals are counted by `order_rpc_refused_total{reason="peer_quota"}`.
    pub peer_quota: Option<Quota>,
    /// Signers, and peers, whose quota is kept, default [`DEFAULT_MAX_SIGNERS`]. Further ones share
    /// one quota.
    pub max_signers: usize,
    /// Bytes of a request, default [`DEFAULT_MAX_BODY_BYTES`]. Above it: 413.
    pub max_body_bytes: usize,
    /// Bytes of bodies, and then of their responses until these are sent. Default
    /// [`DEFAULT_MAX_BUFFERED_BYTES`]; at least `max_body_bytes`. Bodies above 64 KiB leave an
    /// eighth of it free. Above it: 503.
    pub max_buffered_bytes: usize,
    /// The same for one peer. Default [`DEFAULT_MAX_BUFFERED_BYTES_PER_PEER`]; at least
    /// `max_body_bytes`. Above it: 429.
    pub max_buffered_bytes_per_peer: usize,
    /// Time for [`Host::admission`](crate::Host::admission), including the wait for its turn.
    /// Default [`DEFAULT_ADMISSION_TIMEOUT`]. Counted by
    /// `order_rpc_admissions_total{verdict="timed_out"}`.
    pub admission_timeout: Duration,
    /// Concurrent calls of [`Host::admission`](crate::Host::admission). Default
    /// [`DEFAULT_MAX_ADMISSIONS`]. Further ones wait, for at most `admission_timeout`.
    pub max_admissions: usize,
    /// Elements of a batch. Default [`DEFAULT_MAX_BATCH`].
    pub max_batch: usize,
    /// Bytes of a transaction without its blobs. Default [`DEFAULT_MAX_TX_BYTES`].
    pub max_tx_bytes: usize,
    /// Gas of a transaction. Default [`DEFAULT_MAX_TX_GAS`].
    pub max_tx_gas: u64,
    /// Blobs of a transaction. Default [`DEFAULT_MAX_BLOBS_PER_TX`].
    pub max_blobs_per_tx: usize,
    /// How far ahead of the head a bundle's block may be; default that of the pool's configuration.
    /// The pool's own limit applies too.
    pub max_blocks_ahead: u64,
    /// How far ahead of the head `maxBlockNumber` of a private transaction may be: a higher one is
    /// lowered to it, and it replaces an absent one. Default [`DEFAULT_MAX_PRIVATE_BLOCKS`]; at
    /// least 1. The pool's `max_blocks_ahead` applies too.
    pub max_private_blocks: u64,
    /// Transactions per bundle; default that of the pool's configuration.
    pub max_txs_per_bundle: usize,
    /// Open connections. Default [`DEFAULT_MAX_CONNECTIONS`]. Above it: 503.
    pub max_connections: usize,
    /// Open connections of one peer, which is an IPv4 address or the /64 of an IPv6 address.
    /// Default [`DEFAULT_MAX_CONNECTIONS_PER_PEER`]. Above it: 429.
    pub max_connections_per_peer: usize,
    /// Requests in flight of one peer; each element of a batch counts. Default
    /// [`DEFAULT_MAX_REQUESTS_PER_PEER`]. Above it: 429.
    pub max_requests_per_peer: usize,
    /// Proxies in front of the RPC server. For their requests the peer is the last address of
    /// `X-Forwarded-For`, and their own connections are bounded by `max_connections` alone.
    /// Default: none. Name no address from which a caller can connect past the proxy, or that
    /// caller chooses its own peer address.
    pub trusted_proxies: Vec<IpAddr>,
    /// Proxies in front of the builder that have verified the signature of a request, and name the
    /// signer in `signingAddress` instead of forwarding the signature, as BuilderNet's FlowProxy
    /// does for the builder on its host: `127.0.0.1` for one on this host. They carry the requests
    /// of all searchers, so they have no shares and no quota, and their requests need no signature.
    /// Default: none. Anyone who can connect from such an address can replace and cancel all
    /// signers' bundles.
    pub trusted_fronts: Vec<IpAddr>,
    /// Time for the headers of a request. Default [`DEFAULT_HEADER_TIMEOUT`].
    pub header_timeout: Duration,
    /// Time for the whole body of a request. Default [`DEFAULT_BODY_TIMEOUT`]. Above it: 408.
    pub body_timeout: Duration,
    /// Time after which a body counts as slow. Default [`DEFAULT_SLOW_BODY_AFTER`].
    pub slow_body_after: Duration,
    /// Slow bodies at once. Default [`DEFAULT_MAX_SLOW_BODIES`]. Above it: 503.
    pub max_slow_bodies: usize,
    /// Slow bodies of one peer. Default [`DEFAULT_MAX_SLOW_BODIES_PER_PEER`]. Above it: 429.
    pub max_slow_bodies_per_peer: usize,
    /// A client that reads nothing of what is sent to it for this long is disconnected. Default
    /// [`DEFAULT_SEND_TIMEOUT`].
    pub send_timeout: Duration,
    /// The queue of raw transactions that are deferred while the load is high. They use at most
    /// half of the gate's requests in flight, whatever the capacity, so the other half remains for
    /// bundles and cancellations, which are not deferred. Each deferred element of a batch counts
    /// as the whole batch. Above either bound: 503, `deferred_full`, counted by
    /// `order_rpc_refused_total{reason="deferred_full"}`. With an unlimited gate only the capacity
    /// is a bound.
    pub deferral: load_control::DeferralConfig,
}

setters! { OrderRpcConfig:
    listen, with_listen: SocketAddr;
    chain_id, with_chain_id: u64;
    threads, with_threads: usize;
    signatures, with_signatures: SignatureMode;
    quota, with_quota: Option<Quota>;
    peer_quota, with_peer_quota: Option<Quota>;
    max_tx_bytes, with_max_tx_bytes: usize;
    max_tx_gas, with_max_tx_gas: u64;
    max_blobs_per_tx, with_max_blobs_per_tx: usize;
    max_blocks_ahead, with_max_blocks_ahead: u64;
    max_private_blocks, with_max_private_blocks: u64;
    max_signers, with_max_signers: usize;
    max_body_bytes, with_max_body_bytes: usize;
    max_buffered_bytes, with_max_buffered_bytes: usize;
    admission_timeout, with_admission_timeout: Duration;
    max_admissions, with_max_admissions: usize;
    max_batch, with_max_batch: usize;
    max_txs_per_bundle, with_max_txs_per_bundle: usize;
    max_connections, with_max_connections: usize;
    max_connections_per_peer, with_max_connections_per_peer: usize;
    max_requests_per_peer, with_max_requests_per_peer: usize;
    max_buffered_bytes_per_peer, with_max_buffered_bytes_per_peer: usize;
    header_timeout, with_header_timeout: Duration;
    body_timeout, with_body_timeout: Duration;
    slow_body_after, with_slow_body_after: Duration;
    max_slow_bodies, with_max_slow_bodies: usize;
    max_slow_bodies_per_peer, with_max_slow_bodies_per_peer: usize;
    send_timeout, with_send_timeout: Duration;
    deferral, with_deferral: load_control::DeferralConfig;
}

impl OrderRpcConfig {
    /// Sets [`Self::trusted_proxies`].
    #[must_use]
    pub fn with_trusted_proxies(mut self, proxies: impl IntoIterator<Item = IpAddr>) -> Self {
        self.trusted_proxies = proxies.into_iter().collect();
        self
    }

    /// Sets [`Self::trusted_fronts`].
    #[must_use]
    pub fn with_trusted_fronts(mut self, fronts: impl IntoIterator<Item = IpAddr>) -> Self {
        self.trusted_fronts = fronts.into_iter().collect();
        self
    }

    /// The defaults, for the chain with this id.
    pub fn new(chain_id: u64) -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            chain_id,
            threads: (load_control::cores() / 2).max(1),
            signatures: SignatureMode::default(),
            quota: Some(Quota::default()),
            peer_quota: Some(Quota {
                per_second: DEFAULT_PEER_QUOTA_PER_SECOND,
                burst: DEFAULT_PEER_QUOTA_BURST,
            }),
            max_tx_bytes: DEFAULT_MAX_TX_BYTES,
            max_tx_gas: DEFAULT_MAX_TX_GAS,
            max_blobs_per_tx: DEFAULT_MAX_BLOBS_PER_TX,
            max_blocks_ahead: order_pool::MAX_BLOCKS_AHEAD,
            max_private_blocks: DEFAULT_MAX_PRIVATE_BLOCKS,
            max_signers: DEFAULT_MAX_SIGNERS,
            max_body_bytes: DEFAULT_MAX_BODY_BYTES,
            max_buffered_bytes: DEFAULT_MAX_BUFFERED_BYTES,
            max_buffered_bytes_per_peer: DEFAULT_MAX_BUFFERED_BYTES_PER_PEER,
            admission_timeout: DEFAULT_ADMISSION_TIMEOUT,
            max_admissions: DEFAULT_MAX_ADMISSIONS,
            max_batch: DEFAULT_MAX_BATCH,
            max_txs_per_bundle: order_pool::MAX_TXS_PER_BUNDLE,
            max_connections: DEFAULT_MAX_CONNECTIONS,
            max_connections_per_peer: DEFAULT_MAX_CONNECTIONS_PER_PEER,
            max_requests_per_peer: DEFAULT_MAX_REQUESTS_PER_PEER,
            trusted_proxies: Vec::new(),
            trusted_fronts: Vec::new(),
            header_timeout: DEFAULT_HEADER_TIMEOUT,
            body_timeout: DEFAULT_BODY_TIMEOUT,
            slow_body_after: DEFAULT_SLOW_BODY_AFTER,
            max_slow_bodies: DEFAULT_MAX_SLOW_BODIES,
            max_slow_bodies_per_peer: DEFAULT_MAX_SLOW_BODIES_PER_PEER,
            send_timeout: DEFAULT_SEND_TIMEOUT,
            deferral: load_control::DeferralConfig::default(),
        }
    }

    /// # Errors
    /// Names the first setting that is out of bounds, its value and the limit.
    pub fn validate(&self) -> Result<(), ConfigError> {
        const MAX: usize = 1 << 20;
        let counts = [
            ("threads", self.threads, 1, 1_024),
            ("max_signers", self.max_signers, 1, 1 << 24),
            ("max_body_bytes", self.max_body_bytes, 1_024, 1 << 30),
            ("max_buffered_bytes", self.max_buffered_bytes, self.max_body_bytes, usize::MAX),
            (
                "max_buffered_bytes_per_peer",
                self.max_buffered_bytes_per_peer,
                self.max_body_bytes,
                usize::MAX,
            ),
            (
                "max_private_blocks",
                usize::try_from(self.max_private_blocks).unwrap_or(usize::MAX),
                1,
                MAX,
            ),
            ("max_admissions", self.max_admissions, 1, MAX),
            ("max_batch", self.max_batch, 1, MAX),
            ("max_tx_bytes", self.max_tx_bytes, 1_024, 1 << 30),
            ("max_blobs_per_tx", self.max_blobs_per_tx, 0, 4_096),
            ("max_txs_per_bundle", self.max_txs_per_bundle, 1, MAX),
            ("max_connections", self.max_connections, 1, MAX),
            ("max_connections_per_peer", self.max_connections_per_peer, 1, MAX),
            ("max_requests_per_peer", self.max_requests_per_peer, 1, MAX),
            ("max_slow_bodies", self.max_slow_bodies, 1, MAX),
            ("max_slow_bodies_per_peer", self.max_slow_bodies_per_peer, 1, MAX),
        ];
        for (field, value, min, max) in counts {
            if !(min..=max).contains(&value) {
                return Err(ConfigError::OutOfBounds { field, value, min, max });
            }
        }
        let times = [
            ("header_timeout", self.header_timeout),
            ("body_timeout", self.body_timeout),
            ("admission_timeout", self.admission_timeout),
            ("send_timeout", self.send_timeout),
        ];
        for (field, value) in times {
            if value.is_zero() {
                return Err(ConfigError::ZeroTime { field });
            }
        }
        let quotas = [
            ("quota.per_second", self.quota.map(|quota| quota.per_second)),
            ("quota.burst", self.quota.map(|quota| quota.burst)),
            ("peer_quota.per_second", self.peer_quota.map(|quota| quota.per_second)),
            ("peer_quota.burst", self.peer_quota.map(|quota| quota.burst)),
        ];
        for (field, value) in quotas {
            if value == Some(0) {
                let max = u32::MAX as usize;
                return Err(ConfigError::OutOfBounds { field, value: 0, min: 1, max });
            }
        }
        Ok(self.deferral.validate()?)
    }
}

/// An invalid configuration.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A number outside its bounds.
    #[error("{field} is {value}, must be between {min} and {max}")]
    OutOfBounds {
        /// The setting.
        field: &'static str,
        /// Its value.
        value: usize,
        /// The least it may be.
        min: usize,
        /// The most it may be.
        max: usize,
    },
    /// A timeout of zero.
    #[error("{field} is 0, must be above 0")]
    ZeroTime {
        /// The setting.
        field: &'static str,
    },
    /// The configuration of the deferral is invalid.
    #[error(transparent)]
    LoadControl(#[from] load_control::ConfigError),
}
