//! The counts of a node.

use std::collections::BTreeMap;

/// Counts since the node started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Announcements, whether or not anybody was subscribed; repeated announcements count again.
    pub announced: u64,
    /// Announcements that were dropped by a fault.
    pub notifications_dropped: u64,
    /// Objects that were dropped though their hashes were announced.
    pub objects_dropped: u64,
    /// Answers with a raw transaction that a fault made wrong.
    pub bad_answers: u64,
    pub restarts: u64,
    pub blocks: u64,
    pub raw_found: u64,
    /// Requests for raw transactions that were refused because the queue was full, see
    /// [`Capacity`](crate::Capacity).
    pub raw_busy: u64,
    /// The longest time that a block waited for its turn in that queue, in microseconds.
    pub import_wait_us_max: u64,
    pub connections: u64,
    pub connections_open: u64,
    /// Calls per method; each call of a batch counts.
    pub methods: BTreeMap<String, u64>,
}
