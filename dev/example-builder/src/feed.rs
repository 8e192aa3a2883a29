//! Where the orders of the pool come from: the node, or a fleet.

use std::{path::PathBuf, time::Duration};

use mempool_ingest::{
    FetcherConfig, Ingest, IngestConfig, OrderPool, PoolConfig,
    order_pool::{Upkeep, UpkeepConfig},
};
use order_stream::{Flow, ServerConfig, Source, SourceConfig, SourceStats};
use serde_json::{Value, json};

use crate::command::Args;

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
            let root_certificates = args.nats_ca.clone();
            let server = ServerConfig { root_certificates, ..ServerConfig::cluster(urls) };
            let config = SourceConfig::new(server, chain_id, machine);
            // Without a mempool of its own, the pool learns from the fleet too what was mined.
            let config = SourceConfig { flow, heads: true, ..config };
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

    /// Ends it, and returns the counts of each flow of a fleet: `received` is the sum of the four outcomes behind it.
    pub(crate) async fn shutdown(self, limit: Duration) -> Vec<Value> {
        let mut summaries = Vec::new();
        match self {
            Self::Node(ingest) => drop(ingest.shutdown(limit).await),
            Self::Fleet { upkeep, sources, .. } => {
                for (flow, source) in sources {
                    // Before the end.
                    let state = source.state().to_string();
                    let stats = source.shutdown(limit).await.stats;
                    let SourceStats { received, pooled, known, refused, malformed, .. } = stats;
                    let SourceStats { missed, connects, .. } = stats;
                    let summary = json!({
                        "flow": flow, "state": state, "received": received, "pooled": pooled, "known": known,
                        "refused": refused, "malformed": malformed, "missed": missed, "connects": connects,
                    });
                    eprintln!("from the fleet: {summary}");
                    summaries.push(summary);
                }
                if !upkeep.shutdown(limit).ended {
                    eprintln!("warning: the pool's upkeep has not stopped");
                }
            }
        }
        summaries
    }
}
