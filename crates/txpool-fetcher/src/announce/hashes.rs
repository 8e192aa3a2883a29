//! Reads announced hashes, and passes each to the fetch or, with full announcements, to the pairs.

use std::sync::Arc;

use alloy_primitives::B256;

use super::{Backlog, pairs::Pairs};
use crate::{
    context::Context,
    decode::announced_hash,
    fetch::{Arrival, Fetch},
    gap::{GapReason, Report},
    node::{LastMessage, Notification, Notifications},
    outcome::Entry,
};

/// Reads the announced hashes of one source.
pub(super) struct HashReader {
    context: Arc<Context>,
    fetch: Arc<Fetch>,
    source: usize,
    backlog: Arc<Backlog>,
}

impl HashReader {
    pub(super) fn new(
        context: &Arc<Context>,
        fetch: &Arc<Fetch>,
        source: usize,
        backlog: &Arc<Backlog>,
    ) -> Self {
        Self {
            context: Arc::clone(context),
            fetch: Arc::clone(fetch),
            source,
            backlog: Arc::clone(backlog),
        }
    }

    /// Reads the subscription to its end, including the hashes that its connection delivered before
    /// it was lost. Waits for fetch slots, so hashes wait in the broadcast buffer while none is
    /// free.
    pub(super) async fn read(
        self,
        mut hashes: Notifications,
        last_message: Arc<LastMessage>,
        pairs: Option<Arc<Pairs>>,
    ) {
        let meter = hashes.meter();
        while let Some(next) = hashes.next().await {
            self.context.deferral.observe_backlog(self.source, || self.backlog.len());
            match next {
                Notification::Read(json, read_at) => {
                    last_message.record();
                    // Some nodes announce objects on a subscription to hashes.
                    let json = json.get();
                    let Some(hash) = parse_hash(json).or_else(|| announced_hash(json)) else {
                        self.context.metrics.malformed_notifications.increment(1);
                        continue;
                    };
                    let arrival = Arrival {
                        hash,
                        entry: Entry::Announced,
                        source: self.source,
                        received_at: read_at,
                    };
                    match &pairs {
                        Some(pairs) => {
                            pairs.take_announced(&self.context, &self.fetch, arrival).await;
                        }
                        None => self.fetch.fetch_announced(arrival).await,
                    }
                }
                Notification::Lagged => {
                    let lost = meter.newly_lost();
                    self.context.metrics.lagged.add(lost);
                    // Also if these losses were counted before: later ones may not have been
                    // reported.
                    self.backlog.report(Report::Gap(GapReason::Lagged)).await;
                }
            }
        }
        self.backlog.remove(&meter);
    }
}

/// Reads a hash from its JSON form: 64 hex digits with the prefix 0x, in quotes.
pub(super) fn parse_hash(json: &str) -> Option<B256> {
    let hex = json.strip_prefix("\"0x")?.strip_suffix('"')?;
    const_hex::decode_to_array::<_, 32>(hex).ok().map(B256::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_66_characters_in_quotes_and_nothing_else() {
        let hash = B256::repeat_byte(0xab);
        assert_eq!(parse_hash(&format!("\"{hash}\"")), Some(hash));
        for bad in ["null", "\"0x\"", "\"0xab\"", "{}", "\"", "\"0xzz\""] {
            assert_eq!(parse_hash(bad), None);
        }
    }
}
