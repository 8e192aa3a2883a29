//! The metrics of a list and of its guards. Each handle is made once.

use std::time::SystemTime;

use load_control::metric_set;

use crate::{Blocklist, Error, How};

// Indices of `Metrics::reloads`, in the order of its label `outcome`.
pub(crate) const CHANGED: usize = 0;
pub(crate) const UNCHANGED: usize = 1;
pub(crate) const FAILED: usize = 2;

/// The index in `Metrics::refusals` of the reason `leftover`.
#[cfg(feature = "revm")]
pub(crate) const LEFTOVER: usize = 4;

metric_set! {
    /// The name, the unit and the meaning of every metric of this crate. Names that end in `_total`
    /// are counters, the others are gauges.
    pub const METRICS;

    /// The handles, made once and shared by a list and its guards.
    #[derive(Debug)]
    pub(crate) struct Metrics {
        gauge addresses = "blocklist_addresses", Count, "addresses of the list in force";
        gauge duplicate_entries = "blocklist_duplicate_entries", Count,
            "entries of the list in force that repeat an address";
        gauge content_hash_prefix = "blocklist_content_hash_prefix", Count,
            "first 6 bytes of the content hash of the list in force, as a number";
        gauge as_of_seconds = "blocklist_as_of_timestamp_seconds", Seconds,
            "Unix time for which the list in force was true";
        counter reloads[3] = "blocklist_reloads_total", Count,
            "reloads, by `outcome`: changed, unchanged, failed",
            "outcome": ["changed", "unchanged", "failed"];
        counter blocked[How::ALL.len()] = "blocklist_blocked_total", Count,
            "refused transactions, by `how` they reached a listed address (`How::as_str`)",
            "how": How::ALL.map(How::as_str);
        counter refusals[5] = "blocklist_refusals_total", Count,
            "blocks or executions refused for another reason than a listed address in a \
             transaction, by `reason`: stale, from_the_future, fee_recipient_listed, \
             proposer_listed, leftover",
            "reason": [
                "stale",
                "from_the_future",
                "fee_recipient_listed",
                "proposer_listed",
                "leftover",
            ];
    }
}

impl Metrics {
    /// Reports the list that has come into force, with its date.
    pub(crate) fn in_force(&self, list: &Blocklist, as_of: SystemTime) {
        self.addresses.set(list.len() as f64);
        let duplicates = list.duplicates().map_or(0, |duplicates| duplicates.count);
        self.duplicate_entries.set(duplicates as f64);
        self.content_hash_prefix.set(hash_prefix(list));
        // A date before 1970 is wrong, and stale in any case.
        let seconds = as_of.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.as_of_seconds.set(seconds.as_secs_f64());
    }

    /// Counts the reason why no block may be built. A list that is refused on loading, also because
    /// it is stale, is counted by its reload only.
    pub(crate) fn refused(&self, error: &Error) {
        let reason = match error {
            Error::Stale { .. } => 0,
            Error::FromTheFuture { .. } => 1,
            Error::FeeRecipientListed { .. } => 2,
            Error::ProposerListed { .. } => 3,
            _ => return,
        };
        self.refusals[reason].increment(1);
    }
}

/// Returns the first 48 bits of the content hash, which an `f64` holds exactly. A label with the
/// whole hash would add a time series for every list, without a bound.
fn hash_prefix(list: &Blocklist) -> f64 {
    list.hash()[..6].iter().fold(0_u64, |n, byte| (n << 8) | u64::from(*byte)) as f64
}
