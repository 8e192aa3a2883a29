//! Reads announced hashes, and hands each to the fetch.

use std::sync::Arc;

use alloy_primitives::B256;

use super::{Backlog, pairs::Pairs};
use crate::{
    context::Context,
    decode::announced_hash,
    fetch::{Arrival, Fetch},
    gap::{GapReason, Report},
    node::{Connection, Notification, Notifications},
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
        let (context, fetch) = (Arc::clone(context), Arc::clone(fetch));
        Self { context, fetch, source, backlog: Arc::clone(backlog) }
    }

    /// Reads the subscription to its end, also what its connection has delivered before its loss. Waits
    /// for fetch slots, so hashes wait in the broadcast buffer while there is none.
    pub(super) async fn read(
        self,
        mut hashes: Notifications,
        connection: Arc<Connection>,
        pairs: Option<Arc<Pairs>>,
    ) {
        let meter = hashes.meter();
        while let Some(next) = hashes.next().await {
            self.context.deferral.observe_backlog(self.source, || self.backlog.len());
            match next {
                Notification::Read(json, read_at) => {
                    connection.heard();
                    // Some nodes announce objects where hashes were subscribed to.
                    let json = json.get();
                    let Some(hash) = parse_hash(json).or_else(|| announced_hash(json)) else {
                        self.context.metrics.malformed_notifications.increment(1);
                        continue;
                    };
                    let arrival =
                        Arrival { hash, entry: Entry::Announced, source: self.source, at: read_at };
                    match &pairs {
                        Some(pairs) => pairs.announced(&self.context, &self.fetch, arrival).await,
                        None => self.fetch.announced(arrival).await,
                    }
                }
                Notification::Lagged => {
                    let lost = meter.newly_lost();
                    self.context.metrics.lagged.add(lost);
                    // Also if they are counted already: what came since then may be lost too.
                    self.backlog.report(Report::Gap(GapReason::Lagged)).await;
                }
            }
        }
        self.backlog.remove(&meter);
    }
}

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
