//! Announced hashes: their reader submits their requests, `mempool-io` those that had to wait.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use alloy_primitives::B256;

use super::{
    Backlog,
    pairs::{OnHash, Pairs},
};
use crate::{
    connection::Listener,
    decode::announced_hash,
    fetch::{Arrival, Fetch, FetchRequest},
    gap::{GapReason, Report},
    outcome::Entry,
};

/// Most requests in one write: 10 KB, a few microseconds of formatting.
const SUBMITTED_TOGETHER: u32 = 64;

/// Takes in the announced hashes of a subscription. Never waits.
pub(crate) struct HashReader {
    fetch: Arc<Fetch>,
    source: usize,
    backlog: Arc<Backlog>,
    pairs: Option<Arc<Pairs>>,
    /// Since the last flush.
    submitted: u32,
}

impl HashReader {
    pub(crate) fn new(
        fetch: &Arc<Fetch>,
        source: usize,
        backlog: &Arc<Backlog>,
        pairs: Option<&Arc<Pairs>>,
    ) -> Self {
        let (fetch, backlog) = (Arc::clone(fetch), Arc::clone(backlog));
        Self { fetch, source, backlog, pairs: pairs.cloned(), submitted: 0 }
    }

    /// Submits the request for a hash, or leaves it in the buffer: no slot is free, or others wait.
    pub(crate) fn take(&mut self, hash: B256, at: Instant) {
        let (fetch, arrival) = (&self.fetch, self.arrival(hash, at));
        if self.backlog.hashes.len() == 0 {
            let on_hash = |pairs: &Arc<Pairs>| pairs.on_hash(&fetch.hashes, arrival);
            match self.pairs.as_ref().map_or(OnHash::Unpaired, on_hash) {
                OnHash::Paired => return,
                OnHash::Unpaired if fetch.try_announcement(arrival) => {
                    self.submitted += 1;
                    if self.submitted == SUBMITTED_TOGETHER {
                        self.flush();
                    }
                    return;
                }
                // If it is still without its pair later, it is requested then.
                OnHash::Unpaired | OnHash::Full => {}
            }
        }
        self.leave(arrival);
    }

    /// The same without full announcements, for a caller that carries the request out itself.
    pub(crate) fn begin(&self, hash: B256, at: Instant) -> Option<FetchRequest> {
        let arrival = self.arrival(hash, at);
        if self.backlog.hashes.len() == 0
            && let Some(begun) = self.fetch.try_begin(arrival)
        {
            return begun;
        }
        self.leave(arrival);
        None
    }

    fn arrival(&self, hash: B256, at: Instant) -> Arrival {
        self.backlog.read.fetch_add(1, Relaxed);
        Arrival { hash, entry: Entry::Announced, source: self.source, at }
    }

    /// Leaves a hash in the buffer. A fetch that waits for a node that announced it before may ask this one now: it has the
    /// slot for which the buffer waits.
    fn leave(&self, arrival: Arrival) {
        self.fetch.hashes.seen.add_source(&arrival.hash, self.source);
        if self.backlog.hashes.push((arrival, self.pairs.clone()), 0) {
            self.fetch.metrics.lagged.add(1);
        }
        self.fetch.deferral.observe_backlog(self.source, || self.backlog.len());
    }

    pub(crate) fn flush(&mut self) {
        if std::mem::take(&mut self.submitted) > 0 {
            self.fetch.connections.flush();
        }
    }
}

impl Listener for HashReader {
    fn on_notification(&mut self, json: &str, read_at: Instant) {
        // Some nodes announce objects where hashes were subscribed to.
        match parse_hash(json).or_else(|| announced_hash(json)) {
            Some(hash) => self.take(hash, read_at),
            None => {
                self.backlog.read.fetch_add(1, Relaxed);
                self.fetch.metrics.malformed_notifications.increment(1);
            }
        }
    }

    fn on_idle(&mut self) {
        self.flush();
    }
}

/// Processes the hashes that have to wait, for as long as the source runs.
pub(crate) async fn process_waiting(fetch: Arc<Fetch>, source: usize, backlog: Arc<Backlog>) {
    let mut logged: Option<Instant> = None;
    let mut taken = 0u32;
    loop {
        let mut next = backlog.hashes.try_next();
        if next.is_none() {
            // All hashes at hand are submitted together, and sent before the wait for more.
            fetch.connections.flush();
            fetch.deferral.observe_backlog(source, || backlog.len());
            next = backlog.hashes.next().await;
        }
        match next {
            Some(Ok((arrival, pairs))) => {
                fetch.deferral.observe_backlog(source, || backlog.len());
                match pairs {
                    None => fetch.on_announcement(arrival).await,
                    Some(pairs) => pairs.on_waiting_hash(&fetch, arrival).await,
                }
            }
            Some(Err(count)) => {
                // A buffer that has overrun overruns again at nearly every read: it is logged once per second.
                if logged.is_none_or(|logged| logged.elapsed() >= Duration::from_secs(1)) {
                    tracing::warn!(count, "announcement buffer overruns");
                    logged = Some(Instant::now());
                }
                backlog.report(Report::Gap(GapReason::Lagged)).await;
            }
            None => return,
        }
        taken = taken.wrapping_add(1);
        if taken.is_multiple_of(SUBMITTED_TOGETHER) {
            fetch.connections.flush();
            // Yields to the sockets; with a hash in hand, a stop would lose it without a count.
            tokio::task::yield_now().await;
        }
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
