//! What a node has done so far.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use serde::Serialize;

/// The methods that are answered; any other is counted under `other`.
pub(crate) const METHODS: [&str; 21] = [
    "eth_getRawTransactionByHash",
    "eth_getTransactionByHash",
    "eth_subscribe",
    "eth_unsubscribe",
    "eth_sendRawTransaction",
    "eth_getBlockByHash",
    "eth_getBlockByNumber",
    "eth_blockNumber",
    "eth_getBalance",
    "eth_getTransactionCount",
    "eth_chainId",
    "eth_syncing",
    "eth_gasPrice",
    "eth_maxPriorityFeePerGas",
    "eth_blobBaseFee",
    "net_version",
    "web3_clientVersion",
    "txpool_content",
    "txpool_contentFrom",
    "txpool_status",
    "other",
];

// Every counter here is a statistic: read alone, ordering nothing. Hence `Relaxed` throughout.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) announced: AtomicU64,
    pub(crate) submitted: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) notifications: AtomicU64,
    pub(crate) notifications_dropped: AtomicU64,
    pub(crate) faults: AtomicU64,
    pub(crate) bad_answers: AtomicU64,
    pub(crate) restarts: AtomicU64,
    pub(crate) blocks: AtomicU64,
    pub(crate) mined: AtomicU64,
    pub(crate) raw_found: AtomicU64,
    pub(crate) raw_unknown: AtomicU64,
    pub(crate) raw_busy: AtomicU64,
    pub(crate) import_wait_us: AtomicU64,
    pub(crate) import_wait_us_max: AtomicU64,
    pub(crate) raw_in_flight: AtomicU64,
    pub(crate) raw_in_flight_max: AtomicU64,
    pub(crate) connections: AtomicU64,
    pub(crate) connections_open: AtomicU64,
    pub(crate) connections_refused: AtomicU64,
    pub(crate) slow_readers_closed: AtomicU64,
    pub(crate) load_behind: AtomicU64,
    methods: [AtomicU64; METHODS.len()],
}

impl Counters {
    pub(crate) fn method(&self, name: &str) {
        let index = METHODS.iter().position(|method| *method == name).unwrap_or(METHODS.len() - 1);
        self.methods[index].fetch_add(1, Relaxed);
    }

    pub(crate) fn import_waits(&self, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.import_wait_us.fetch_add(us, Relaxed);
        self.import_wait_us_max.fetch_max(us, Relaxed);
    }

    pub(crate) fn raw_begins(&self) {
        let now = self.raw_in_flight.fetch_add(1, Relaxed) + 1;
        self.raw_in_flight_max.fetch_max(now, Relaxed);
    }

    pub(crate) fn raw_ends(&self, count: u64) {
        self.raw_in_flight.fetch_sub(count, Relaxed);
    }

    pub(crate) fn snapshot(&self) -> Stats {
        let methods = METHODS.iter().zip(&self.methods);
        let methods: BTreeMap<_, _> = methods
            .map(|(name, count)| (*name, count.load(Relaxed)))
            .filter(|(_, count)| *count > 0)
            .collect();
        Stats {
            announced: self.announced.load(Relaxed),
            submitted: self.submitted.load(Relaxed),
            refused: self.refused.load(Relaxed),
            notifications: self.notifications.load(Relaxed),
            notifications_dropped: self.notifications_dropped.load(Relaxed),
            faults: self.faults.load(Relaxed),
            bad_answers: self.bad_answers.load(Relaxed),
            restarts: self.restarts.load(Relaxed),
            blocks: self.blocks.load(Relaxed),
            mined: self.mined.load(Relaxed),
            answered: methods.values().sum(),
            raw_found: self.raw_found.load(Relaxed),
            raw_unknown: self.raw_unknown.load(Relaxed),
            raw_busy: self.raw_busy.load(Relaxed),
            import_wait_us: self.import_wait_us.load(Relaxed),
            import_wait_us_max: self.import_wait_us_max.load(Relaxed),
            max_concurrent_raw: self.raw_in_flight_max.load(Relaxed),
            connections: self.connections.load(Relaxed),
            connections_open: self.connections_open.load(Relaxed),
            connections_refused: self.connections_refused.load(Relaxed),
            slow_readers_closed: self.slow_readers_closed.load(Relaxed),
            load_behind: self.load_behind.load(Relaxed),
            methods,
        }
    }
}

/// Counts since the node started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Stats {
    /// Announcements, whether or not there was a subscription; repeats count again.
    pub announced: u64,
    /// Transactions that the pool took, preloaded ones included.
    pub submitted: u64,
    /// Transactions that the pool refused.
    pub refused: u64,
    /// Notifications of every kind that were queued for subscribers.
    pub notifications: u64,
    /// Announcements that a fault kept from every subscriber.
    pub notifications_dropped: u64,
    /// Faults injected.
    pub faults: u64,
    /// Raw transactions that a fault answered wrongly.
    pub bad_answers: u64,
    /// Times that the socket was gone and came back.
    pub restarts: u64,
    /// Blocks mined.
    pub blocks: u64,
    /// Transactions in them.
    pub mined: u64,
    /// Calls of every method, each call of a batch for itself.
    pub answered: u64,
    /// Raw transactions that were found.
    pub raw_found: u64,
    /// Requests for raw transactions that were unknown.
    pub raw_unknown: u64,
    /// Requests for raw transactions that came when the queue was full, see [`Capacity`](crate::Capacity).
    pub raw_busy: u64,
    /// Microseconds that blocks mined on time waited for their turn in that line, all together.
    pub import_wait_us: u64,
    /// The longest of these waits.
    pub import_wait_us_max: u64,
    /// The most `eth_getRawTransactionByHash` in flight at one time.
    pub max_concurrent_raw: u64,
    /// Connections accepted.
    pub connections: u64,
    /// Connections open now.
    pub connections_open: u64,
    /// Connections turned away because the table was full.
    pub connections_refused: u64,
    /// Connections cut off since too much waited for them.
    pub slow_readers_closed: u64,
    /// Paced transactions that were announced more than 5 ms late. The pace catches up; the count says that the
    /// machine was too busy for an exact measurement.
    pub load_behind: u64,
    /// Calls per method.
    pub methods: BTreeMap<&'static str, u64>,
}
