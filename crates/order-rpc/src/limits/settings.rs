//! The limits of the server: the options, shares derived from them, and fixed constants.

use std::time::Duration;

use load_control::MIN_AUTO_REQUESTS;

use crate::config::OrderRpcConfig;

/// The options, each caller's shares of them, and limits that nobody has a reason to configure.
/// Tests lower the limit that they test.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) config: OrderRpcConfig,
    /// A sixteenth of all connections, so that a few hosts cannot take all of them.
    pub(crate) max_connections_per_caller: usize,
    /// A quarter of what the gate admits on a small machine. Each element of a batch counts.
    pub(crate) max_requests_per_caller: usize,
    /// A quarter of all buffered bytes, by default two bodies of the maximum size; at least one.
    pub(crate) max_buffered_bytes_per_caller: usize,
    /// Time for the whole head of a request, from its first byte, and for the first byte of a new
    /// connection.
    pub(crate) header_timeout: Duration,
    /// How long a connection may stay without a request after its last response. Longer than what
    /// clients and proxies keep an idle connection for (nginx: 60 s; reqwest and Go: 90 s), so that
    /// they close it first: a request that is sent while the server closes is lost.
    pub(crate) idle_timeout: Duration,
    /// Time for the whole body of a request: 8 MB at 1.3 MB/s.
    pub(crate) body_timeout: Duration,
    /// A body that is not complete after this time counts as slow, and so does a response that has
    /// waited for its reader this long.
    pub(crate) slow_body_after: Duration,
    /// As many as the requests in flight that one core allows. Half of the places are for callers
    /// where a known signer has signed. Slow responses have as many.
    pub(crate) max_slow_bodies: usize,
    /// A quarter of a half, so that a few slow hosts do not evict all slow bodies of others.
    pub(crate) max_slow_bodies_per_caller: usize,
    /// Concurrent calls of [`Admission::admit`](crate::Admission::admit) for orders of strangers,
    /// and as many for those of known signers and fronts: as many as the requests in flight of one
    /// caller. Further orders wait.
    pub(crate) max_admissions: usize,
    /// Concurrent calls for the orders of one caller: an eighth of `max_admissions`. Further orders
    /// of this caller wait, and do not delay those of others.
    pub(crate) max_admissions_per_caller: usize,
    /// Time in which a client must read at least some bytes of what is sent to it.
    pub(crate) send_timeout: Duration,
    /// Signers, and callers, whose quota is tracked: 64 bytes each, 4 MB. Further ones share one
    /// quota.
    pub(crate) max_quotas: usize,
    /// Raw transactions that wait while the load is high; also at most half of the gate's requests
    /// in flight. 1,024 of the largest common size (128 kB) are 128 MiB, of the usual 200 bytes
    /// 200 kB.
    pub(crate) max_deferred: usize,
    /// How long they wait at most: half a slot, so that a transaction from the start of a slot can
    /// still enter its block.
    pub(crate) max_deferral: Duration,
}

impl Limits {
    pub(crate) fn new(mut config: OrderRpcConfig) -> Self {
        // An IPv4 address may be configured as an IPv6-mapped one, which no connection has.
        let trusted = config.trusted_proxies.iter_mut().chain(&mut config.trusted_fronts);
        for address in trusted {
            *address = address.to_canonical();
        }
        let quarter_of_bytes = config.max_buffered_bytes / 4;
        Self {
            max_connections_per_caller: (config.max_connections / 16).max(1),
            max_requests_per_caller: MIN_AUTO_REQUESTS / 4,
            max_buffered_bytes_per_caller: quarter_of_bytes.max(config.max_body_bytes),
            header_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(120),
            body_timeout: Duration::from_secs(6),
            slow_body_after: Duration::from_millis(100),
            max_slow_bodies: 64,
            max_slow_bodies_per_caller: 8,
            max_admissions: MIN_AUTO_REQUESTS / 4,
            max_admissions_per_caller: MIN_AUTO_REQUESTS / 32,
            send_timeout: Duration::from_secs(10),
            max_quotas: 65_536,
            max_deferred: 1_024,
            max_deferral: Duration::from_secs(6),
            config,
        }
    }
}
