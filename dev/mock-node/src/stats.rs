//! What a node has done so far.

use std::collections::BTreeMap;

/// Counts since the node started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Announcements, whether or not there was a subscription; repeats count again.
    pub announced: u64,
    /// Announcements that a fault kept from every subscriber.
    pub notifications_dropped: u64,
    /// Objects that were not announced though their hashes were.
    pub objects_dropped: u64,
    /// Responses with a raw transaction that a fault made wrong.
    pub bad_answers: u64,
    pub restarts: u64,
    pub blocks: u64,
    pub raw_found: u64,
    /// Requests for raw transactions that came when the queue was full, see [`Capacity`](crate::Capacity).
    pub raw_busy: u64,
    /// The longest that a block mined on time waited for its turn in that queue, in microseconds.
    pub import_wait_us_max: u64,
    pub connections: u64,
    pub connections_open: u64,
    /// Calls per method, each call of a batch for itself.
    pub methods: BTreeMap<String, u64>,
}
