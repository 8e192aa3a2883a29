//! Where the orders of the pool come from: the node, or a fleet.

use std::{path::PathBuf, time::Duration};

use mempool_ingest::{
    FetcherConfig, Ingest, IngestConfig, OrderPool, PoolConfig,
    order_pool::{Upkeep, UpkeepConfig},
};
use order_stream::{Flow, ServerConfig, Source, SourceConfig, SourceStats};
use serde::Serialize;

use crate::args::Args;

/// What feeds the pool.
pub(crate) enum Feed {
    Node(Box<Ingest>),
    Fleet { pool: OrderPool, upkeep: Upkeep, sources: Vec<(&'static str, Source)> },
}

impl Feed {
    pub(crate) async fn start(
        args: &Args,
        node: PathBuf,
        chain_id: u64,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        if args.from.is_empty() {
            let config = IngestConfig::new(FetcherConfig::ipc(node), PoolConfig::default());
            return Ok(Self::Node(Box::new(Ingest::start(config).await?)));
        }
        let pool = OrderPool::new(PoolConfig::default())?;
        let upkeep = Upkeep::start(&pool, UpkeepConfig::default(), || false)?;
        let flows =
            [("public", Flow::Public, &args.from), ("private", Flow::Private, &args.from_private)];
        let mut sources = Vec::new();
        for (name, flow, urls) in flows {
            let (false, Some(machine)) = (urls.is_empty(), &args.machine) else { continue };
            let server = ServerConfig {
                root_certificates: args.nats_ca.clone(),
                ..ServerConfig::cluster(urls)
            };
            // Without a mempool of its own, the pool learns from the fleet too what was mined.
            let heads = true;
            let config =
                SourceConfig { flow, heads, ..SourceConfig::new(server, chain_id, machine) };
            sources.push((name, Source::start(&pool, config)?));
        }
        Ok(Self::Fleet { pool, upkeep, sources })
    }

    pub(crate) const fn pool(&self) -> &OrderPool {
        match self {
            Self::Node(ingest) => ingest.pool(),
            Self::Fleet { pool, .. } => pool,
        }
    }

    /// Ends it, and returns the counts of each flow of a fleet.
    pub(crate) async fn shutdown(self, limit: Duration) -> Vec<ReceivedSummary> {
        let mut summaries = Vec::new();
        match self {
            Self::Node(ingest) => {
                ingest.shutdown(limit).await;
            }
            Self::Fleet { upkeep, sources, .. } => {
                for (flow, source) in sources {
                    let state = source.state().to_string();
                    let end = source.shutdown(limit).await;
                    summaries.push(summary(flow, state, &end.stats));
                }
                if !upkeep.shutdown(limit).ended {
                    eprintln!("warning: the pool's upkeep has not stopped");
                }
            }
        }
        summaries
    }
}

/// The counts of one flow, as `--json` prints them: `received` is the sum of the four outcomes behind it.
#[derive(Debug, Serialize)]
pub(crate) struct ReceivedSummary {
    flow: &'static str,
    /// The state before the end.
    state: String,
    received: u64,
    pooled: u64,
    known: u64,
    refused: u64,
    malformed: u64,
    missed: u64,
    connects: u64,
}

fn summary(flow: &'static str, state: String, stats: &SourceStats) -> ReceivedSummary {
    let SourceStats { received, pooled, known, refused, malformed, missed, connects, .. } = *stats;
    eprintln!(
        "from the fleet ({flow}): {received} received, {pooled} pooled, {known} known, {refused} refused, \
         {malformed} malformed, {missed} missed; {state}"
    );
    ReceivedSummary { flow, state, received, pooled, known, refused, malformed, missed, connects }
}
