//! The limits of the server: the options, shares of them, and constants that nobody needs to turn.

use std::time::Duration;

use load_control::MIN_AUTO_REQUESTS;

use crate::config::OrderRpcConfig;

/// The options, shares of them, and what nobody has a reason to turn. Tests of a limit lower it.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) config: OrderRpcConfig,
    /// A sixteenth, so that a few hosts cannot take all.
    pub(crate) max_connections_per_caller: usize,
    /// A quarter of what the gate lets in on a small machine. Each element of a batch counts.
    pub(crate) max_requests_per_caller: usize,
    /// A quarter, by default two requests of the maximum length; at least one.
    pub(crate) max_buffered_bytes_per_caller: usize,
    /// Time for the headers of a request, and the longest that an idle connection is kept.
    pub(crate) header_timeout: Duration,
    /// Time for the whole body of a request: 8 MB at 1.3 MB/s.
    pub(crate) body_timeout: Duration,
    /// A body that is not complete after this time counts as slow.
    pub(crate) slow_body_after: Duration,
    /// The requests in flight that one core allows. Half of the places are for callers where a known
    /// signer has signed.
    pub(crate) max_slow_bodies: usize,
    /// A quarter of a half, so that a few slow hosts do not displace all slow ones.
    pub(crate) max_slow_bodies_per_caller: usize,
    /// Concurrent calls of [`Admission::admit`](crate::Admission::admit) for the orders of strangers, and
    /// as many for those of known signers and fronts: as many as the requests that one caller may have
    /// in flight. Further ones wait.
    pub(crate) max_admissions: usize,
    /// Concurrent calls for the orders of one caller: an eighth. Further ones wait before the others.
    pub(crate) max_admissions_per_caller: usize,
    /// Time in which a client must read some bytes of what is sent to it.
    pub(crate) send_timeout: Duration,
    /// Signers, and callers, whose quota is kept: 64 bytes each, 4 MB. Further ones share one.
    pub(crate) max_quotas: usize,
    /// Raw transactions that wait while the load is high, and at most half of the gate's requests in
    /// flight. 1,024 of the largest common size (128 kB) are 128 MiB, of the usual 200 bytes 200 kB.
    pub(crate) max_deferred: usize,
    /// For how long they wait: half of a slot, so that one of its start can enter its block.
    pub(crate) max_deferral: Duration,
}

impl Limits {
    pub(crate) fn new(mut config: OrderRpcConfig) -> Self {
        // An IPv4 address may be written as an IPv6 one, which no connection has.
        let trusted = config.trusted_proxies.iter_mut().chain(&mut config.trusted_fronts);
        trusted.for_each(|address| *address = address.to_canonical());
        let OrderRpcConfig { max_connections, max_body_bytes, max_buffered_bytes, .. } = config;
        Self {
            config,
            max_connections_per_caller: (max_connections / 16).max(1),
            max_requests_per_caller: MIN_AUTO_REQUESTS / 4,
            max_buffered_bytes_per_caller: (max_buffered_bytes / 4).max(max_body_bytes),
            header_timeout: Duration::from_secs(30),
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
        }
    }
}
