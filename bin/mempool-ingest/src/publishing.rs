//! What `--publish` adds: the pool's orders go to the streams of a fleet.

use std::{path::PathBuf, time::Duration};

use futures::future::join_all;
use mempool_ingest::OrderPool;
use order_stream::{
    Flow, Publisher, PublisherConfig, PublisherStats, ServerConfig, StreamConfig, ensure_stream,
};
use serde_json::{Value, json};

use crate::{say::say, status::Published};

/// The flags of the fleet.
#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(group = clap::ArgGroup::new("flows").args(["publish", "publish_private"]).multiple(true))]
pub(crate) struct Args {
    /// Publish the transactions of the pool to a fleet: NATS servers of one cluster
    #[arg(long, value_name = "URL,...", value_delimiter = ',', requires = "machine")]
    publish: Vec<String>,
    /// Publish bundles, private transactions and cancellations too: the same servers, another user
    #[arg(long, value_name = "URL,...", value_delimiter = ',', requires = "machine")]
    publish_private: Vec<String>,
    /// With --publish: the name of this machine in the fleet
    #[arg(long, value_name = "NAME", requires = "flows")]
    machine: Option<String>,
    /// With --publish: make or change the streams, with so many replicas, 1, 3 or 5
    #[arg(long, value_name = "N", requires = "flows")]
    replicas: Option<usize>,
    /// With --publish: the certificates that may sign the servers', beside those of the system
    #[arg(long, value_name = "FILE", requires = "flows")]
    nats_ca: Option<PathBuf>,
}

/// The publishers of the flows that were asked for.
pub(crate) struct Publishing(Vec<(&'static str, Publisher)>);

impl Publishing {
    /// `retention` is the pool's; `chain` says which chain the orders are of, or that nobody knows.
    pub(crate) async fn start(
        fleet: &Args,
        pool: &OrderPool,
        retention: Duration,
        chain: Result<u64, String>,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let flows = [
            ("public", Flow::Public, &fleet.publish),
            ("private", Flow::Private, &fleet.publish_private),
        ];
        let mut publishers = Vec::new();
        for (name, flow, urls) in flows {
            let (false, Some(machine)) = (urls.is_empty(), &fleet.machine) else { continue };
            let chain = chain.clone()?;
            let root_certificates = fleet.nats_ca.clone();
            let server = ServerConfig { root_certificates, ..ServerConfig::cluster(urls) };
            if let Some(replicas) = fleet.replicas {
                let mut stream = StreamConfig { replicas, ..StreamConfig::new(flow, chain) };
                if flow == Flow::Public {
                    // What the pool no longer holds is of no use in the stream.
                    stream.max_age = retention;
                }
                ensure_stream(&server, &stream).await?;
            }
            let config = PublisherConfig { flow, ..PublisherConfig::new(server, chain, machine) };
            publishers.push((name, Publisher::start(pool, config)?));
        }
        Ok(Self(publishers))
    }

    /// What a line of the display says of each flow.
    pub(crate) fn status(&self) -> Vec<Published> {
        let flow = |(flow, publisher): &(&'static str, Publisher)| {
            let stats = publisher.stats();
            Published {
                flow,
                state: publisher.state().to_string(),
                stored: stats.stored + stats.duplicate,
                refused: stats.refused_total(),
                unfinished: stats.unfinished,
            }
        };
        self.0.iter().map(flow).collect()
    }

    /// Publishes the rest, for at most `limit`, and returns the counts of each flow, as `--json` prints them.
    pub(crate) async fn end(self, limit: Duration) -> Vec<Value> {
        join_all(self.0.into_iter().map(async |(flow, publisher)| {
            // The state before the end.
            let state = publisher.state().to_string();
            let stats = publisher.shutdown(limit).await.stats;
            let PublisherStats { published, stored, duplicate, unfinished, connects, .. } = stats;
            let refused = stats.refused_total();
            say!(
                "published {published} ({flow}): stored {stored}, duplicate {duplicate}, refused {refused}, \
                 unfinished {unfinished}; {state}",
            );
            json!({
                "flow": flow,
                "state": state,
                "published": published,
                "stored": stored,
                "duplicate": duplicate,
                "refused": refused,
                "unfinished": unfinished,
                "connects": connects,
            })
        }))
        .await
    }
}
