use std::{sync::Arc, time::SystemTime};

use metrics::{Counter, Gauge, Unit, counter, describe_counter, describe_gauge, gauge};

use crate::{Blocked, Blocklist, Error, How};

/// The name, the unit and the meaning of every metric of this crate. Names that end in `_total` are counters, the
/// others are gauges.
pub const METRICS: &[(&str, Unit, &str)] = &[
    ("blocklist_addresses", Unit::Count, "addresses of the list in force"),
    (
        "blocklist_duplicate_entries",
        Unit::Count,
        "entries of the list in force that repeat an address",
    ),
    (
        "blocklist_content_hash_prefix",
        Unit::Count,
        "first 6 bytes of the content hash of the list in force, as a number",
    ),
    (
        "blocklist_as_of_timestamp_seconds",
        Unit::Seconds,
        "Unix time for which the list in force was true",
    ),
    ("blocklist_reloads_total", Unit::Count, "reloads, by `outcome`: changed, unchanged, failed"),
    (
        "blocklist_blocked_total",
        Unit::Count,
        "refused transactions, by `how` they reached a listed address (`How::as_str`)",
    ),
    (
        "blocklist_refusals_total",
        Unit::Count,
        "blocks or executions refused for no listed address in a transaction, by `reason`: stale, \
         from_the_future, fee_recipient_listed, proposer_listed, leftover",
    ),
];

/// The handles, made once and shared by a list and its guards.
#[derive(Clone)]
pub(crate) struct Metrics(Arc<Handles>);

struct Handles {
    addresses: Gauge,
    duplicate_entries: Gauge,
    content_hash_prefix: Gauge,
    as_of_seconds: Gauge,
    reload_changed: Counter,
    reload_unchanged: Counter,
    reload_failed: Counter,
    blocked: [Counter; How::ALL.len()],
    refused_stale: Counter,
    refused_future: Counter,
    refused_fee_recipient: Counter,
    refused_proposer: Counter,
    #[cfg(feature = "revm")]
    refused_leftover: Counter,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        for (name, unit, text) in METRICS {
            if name.ends_with("_total") {
                describe_counter!(*name, *unit, *text);
            } else {
                describe_gauge!(*name, *unit, *text);
            }
        }
        let reload =
            |outcome: &'static str| counter!("blocklist_reloads_total", "outcome" => outcome);
        let refused =
            |reason: &'static str| counter!("blocklist_refusals_total", "reason" => reason);
        Self(Arc::new(Handles {
            addresses: gauge!("blocklist_addresses"),
            duplicate_entries: gauge!("blocklist_duplicate_entries"),
            content_hash_prefix: gauge!("blocklist_content_hash_prefix"),
            as_of_seconds: gauge!("blocklist_as_of_timestamp_seconds"),
            reload_changed: reload("changed"),
            reload_unchanged: reload("unchanged"),
            reload_failed: reload("failed"),
            blocked: How::ALL.map(|how| counter!("blocklist_blocked_total", "how" => how.as_str())),
            refused_stale: refused("stale"),
            refused_future: refused("from_the_future"),
            refused_fee_recipient: refused("fee_recipient_listed"),
            refused_proposer: refused("proposer_listed"),
            #[cfg(feature = "revm")]
            refused_leftover: refused("leftover"),
        }))
    }

    pub(crate) fn in_force(&self, list: &Blocklist, as_of: SystemTime) {
        self.0.addresses.set(list.len() as f64);
        let duplicates = list.duplicates().map_or(0, |duplicates| duplicates.count);
        self.0.duplicate_entries.set(duplicates as f64);
        self.0.content_hash_prefix.set(hash_prefix(list));
        // A date before 1970 is wrong, and stale in any case.
        let seconds = as_of.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.0.as_of_seconds.set(seconds.as_secs_f64());
    }

    pub(crate) fn reloaded(&self, changed: bool) {
        if changed { &self.0.reload_changed } else { &self.0.reload_unchanged }.increment(1);
    }

    pub(crate) fn reload_failed(&self) {
        self.0.reload_failed.increment(1);
    }

    pub(crate) fn blocked(&self, blocked: Blocked) {
        self.0.blocked[blocked.how as usize].increment(1);
    }

    #[cfg(feature = "revm")]
    pub(crate) fn leftover(&self) {
        self.0.refused_leftover.increment(1);
    }

    /// Counts the reason why no block may be built. Other errors occur on loading, where a reload
    /// counts them.
    pub(crate) fn refused(&self, error: &Error) {
        match error {
            Error::Stale { .. } => self.0.refused_stale.increment(1),
            Error::FromTheFuture { .. } => self.0.refused_future.increment(1),
            Error::FeeRecipientListed { .. } => self.0.refused_fee_recipient.increment(1),
            Error::ProposerListed { .. } => self.0.refused_proposer.increment(1),
            _ => {}
        }
    }
}

/// The first 48 bits: a gauge is an `f64`, which holds them exactly, and a label per hash would
/// grow without a bound.
fn hash_prefix(list: &Blocklist) -> f64 {
    list.hash()[..6].iter().fold(0_u64, |n, byte| (n << 8) | u64::from(*byte)) as f64
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics")
    }
}
