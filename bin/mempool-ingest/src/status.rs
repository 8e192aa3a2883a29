//! The line that is written each `--status-interval`.

use std::fmt;

use mempool_ingest::txpool_fetcher::Counts;
use serde::Serialize;

use crate::{
    Running, output,
    picture::{Picture, Source},
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
    published: Vec<Published>,
    log_dropped: u64,
    orders_missed: Option<u64>,
    /// How long it takes until the next row of a replay is due.
    next_row_s: Option<u64>,
}

/// A flow that is published.
#[derive(Debug, Serialize)]
pub(crate) struct Published {
    pub(crate) flow: &'static str,
    pub(crate) state: String,
    pub(crate) stored: u64,
    pub(crate) refused: u64,
    pub(crate) unfinished: u64,
}

impl Status {
    pub(crate) fn of(picture: &Picture, running: &Running) -> Self {
        Self {
            sources: picture.sources.clone(),
            head: picture.head.map(|(number, _)| number),
            head_age_s: picture.head.map(|(_, age)| age.as_secs()),
            counts: picture.counts,
            announced_per_s: picture.announced_per_s.round() as u64,
            pooled_per_s: picture.pooled_per_s.round() as u64,
            pool_txs: picture.pool.txs,
            rpc: picture.rpc,
            published: running.published(),
            log_dropped: output::dropped(),
            orders_missed: running.missed(),
            next_row_s: running.next_row().map(|wait| wait.as_secs()),
        }
    }
}

/// As in `live,syncing chain=1 head=23 (3 s old) announced=…`: the states of all sources, and their chains.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, source) in self.sources.iter().enumerate() {
            write!(f, "{}{}", if at > 0 { "," } else { "" }, source.state_name)?;
        }
        let chains = self.sources.iter().map(|source| source.chain_id);
        let text = |chain: Option<u64>| chain.map_or("?".to_owned(), |chain| chain.to_string());
        let mut chains: Vec<_> = chains.map(text).collect();
        // If it is one for all sources, it stands there once.
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
            " announced={announced} ({announced_per_s}/s) pooled={pooled} ({pooled_per_s}/s) lagged={lagged} \
             failed={failed} gone={gone} malformed={malformed} in_flight={unfinished} pool={pool_txs}",
        )?;
        if let Some(rpc) = &self.rpc {
            write!(f, " rpc={} rpc_orders={}", rpc.requests, rpc.orders)?;
        }
        for Published { flow, state, stored, refused, unfinished } in &self.published {
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
