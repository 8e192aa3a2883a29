//! Where the orders of the pool come from: the node, or a fleet.

use std::{path::PathBuf, time::Duration};

use mempool_ingest::{
    FetcherConfig, Ingest, IngestConfig, OrderPool, PoolConfig,
    order_pool::{Upkeep, UpkeepConfig},
};
use order_stream::{Flow, Source, SourceConfig, Trust};
use testkit::fleet::server;

use crate::{args::Args, rpc::Rpc};

/// What feeds the pool.
pub(crate) enum Feed {
    Node(Box<Ingest>),
    Fleet { pool: OrderPool, upkeep: Upkeep, sources: Vec<(&'static str, Source)> },
}

impl Feed {
    pub(crate) async fn start(
        args: &Args,
        node: PathBuf,
        rpc: &Rpc,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        if args.from.is_empty() {
            let config = IngestConfig::new(FetcherConfig::ipc(node), PoolConfig::default());
            return Ok(Self::Node(Box::new(Ingest::start(config).await?)));
        }
        let chain_id = rpc.chain_id()?;
        let pool = OrderPool::new(PoolConfig::default())?;
        let upkeep = Upkeep::start(&pool, UpkeepConfig::default())?;
        let flows =
            [("public", Flow::Public, &args.from), ("private", Flow::Private, &args.from_private)];
        let mut sources = Vec::new();
        for (name, flow, urls) in flows {
            let (false, Some(machine)) = (urls.is_empty(), &args.machine) else { continue };
            let server = server(urls, args.nats_ca.as_deref());
            // Without a mempool of its own, the pool learns from the fleet too what was mined.
            let config = SourceConfig::new(server, chain_id, machine)
                .with_flow(flow)
                .with_trust(Trust::Machines(args.trust.iter().cloned().collect()))
                .with_heads(true);
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

    pub(crate) async fn stop(self, limit: Duration) {
        match self {
            Self::Node(ingest) => {
                ingest.shutdown(limit).await;
            }
            Self::Fleet { upkeep, sources, .. } => {
                for (flow, source) in sources {
                    let state = source.state();
                    let stats = source.shutdown(limit).await;
                    eprintln!(
                        "from the fleet ({flow}): {} received, {} pooled, {} known, {} refused, \
                         {} malformed, {} missed; {state}",
                        stats.received,
                        stats.pooled,
                        stats.known,
                        stats.refused,
                        stats.malformed,
                        stats.missed
                    );
                }
                if !upkeep.stop(limit) {
                    eprintln!("warning: the pool's upkeep has not stopped");
                }
            }
        }
    }
}
