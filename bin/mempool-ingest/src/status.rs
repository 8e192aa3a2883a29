//! The status line that is printed each `--status-interval`.

use std::fmt;

use mempool_ingest::txpool_fetcher::Counts;
use serde::Serialize;

use crate::{
    Running, output,
    snapshot::{Snapshot, Source},
    summary::RpcCounts,
};

#[derive(Debug, Serialize)]
pub(crate) struct Status {
    sources: Vec<Source>,
    head: Option<u64>,
    head_age_s: Option<u64>,
    #[serde(flatten)]
    counts: Counts,
    announced_per_s: u64,
    pooled_per_s: u64,
    pool_txs: u64,
    rpc: Option<RpcCounts>,
    published: Vec<PublishedFlow>,
    log_dropped: u64,
    orders_missed: Option<u64>,
    /// The time until the next row of a replay is due.
    next_row_s: Option<u64>,
}

/// The status of a flow that is published.
#[derive(Debug, Serialize)]
pub(crate) struct PublishedFlow {
    pub(crate) flow: &'static str,
    pub(crate) state: String,
    pub(crate) stored: u64,
    pub(crate) refused: u64,
    pub(crate) unfinished: u64,
}

impl Status {
    pub(crate) fn new(snapshot: &Snapshot, running: &Running) -> Self {
        Self {
            sources: snapshot.sources.clone(),
            head: snapshot.head.map(|(number, _)| number),
            head_age_s: snapshot.head.map(|(_, age)| age.as_secs()),
            counts: snapshot.counts,
            announced_per_s: snapshot.announced_per_s.round() as u64,
            pooled_per_s: snapshot.pooled_per_s.round() as u64,
            pool_txs: snapshot.pool.txs,
            rpc: snapshot.rpc,
            published: running.published_flows(),
            log_dropped: output::dropped(),
            orders_missed: running.missed_events(),
            next_row_s: running.time_to_next_row().map(|time| time.as_secs()),
        }
    }
}

/// Prints `live,syncing chain=1 head=23 (3 s old) announced=…`, with the states of all sources
/// first.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let states: Vec<_> = self.sources.iter().map(|source| source.state_name).collect();
        f.write_str(&states.join(","))?;
        let chains = self.sources.iter().map(|source| source.chain_id);
        let mut chains: Vec<_> =
            chains.map(|id| id.map_or("?".to_owned(), |id| id.to_string())).collect();
        // The chain is printed once if it is the same for all sources.
        if chains.iter().all(|chain| *chain == chains[0]) {
            chains.truncate(1);
        }
        if chains != ["?"] {
            write!(f, " chain={}", chains.join(","))?;
        }
        if let Some((head, age)) = self.head.zip(self.head_age_s) {
            write!(f, " head={head} ({age} s old)")?;
        }
        let Counts { announced, pooled, lagged, failed, unfinished, gone, malformed, .. } =
            self.counts;
        let Self { announced_per_s, pooled_per_s, pool_txs, .. } = self;
        write!(
            f,
            " announced={announced} ({announced_per_s}/s) pooled={pooled} ({pooled_per_s}/s) \
             lagged={lagged} failed={failed} gone={gone} malformed={malformed} \
             in_flight={unfinished} pool={pool_txs}",
        )?;
        if let Some(rpc) = &self.rpc {
            write!(f, " rpc={} rpc_orders={}", rpc.requests, rpc.orders)?;
        }
        for PublishedFlow { flow, state, stored, refused, unfinished } in &self.published {
            write!(
                f,
                " {flow}=({state}, stored={stored} refused={refused} unfinished={unfinished})"
            )?;
        }
        if let Some(seconds) = self.next_row_s.filter(|seconds| *seconds > 0) {
            write!(f, " next_row_in={seconds}s")?;
        }
        if let Some(missed) = self.orders_missed.filter(|missed| *missed > 0) {
            write!(f, " orders_missed={missed}")?;
        }
        if self.log_dropped > 0 {
            write!(f, " log_dropped={}", self.log_dropped)?;
        }
        Ok(())
    }
}
