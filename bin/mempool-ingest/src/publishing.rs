//! `--publish`: publishes the pool's orders to the streams of a fleet.

use std::{path::PathBuf, time::Duration};

use futures::future::join_all;
use mempool_ingest::OrderPool;
use order_stream::{
    Flow, Publisher, PublisherConfig, PublisherStats, ServerConfig, StreamConfig, ensure_stream,
};
use serde_json::{Value, json};

use crate::{Failure, options::Options, print::print_line, status::PublishedFlow};

/// The flags of the fleet.
#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(group = clap::ArgGroup::new("flows").args(["publish", "publish_private"]).multiple(true))]
pub(crate) struct Args {
    /// Publish the transactions of the pool to a fleet: NATS servers of one cluster. URLs with a
    /// password are set in the environment
    #[arg(long, value_name = "URL,...", value_delimiter = ',', requires = "machine")]
    #[arg(help_heading = FLEET)]
    #[arg(env = "MEMPOOL_INGEST_PUBLISH", hide_env_values = true)]
    publish: Vec<String>,
    /// Publish bundles, private transactions and cancellations too: the same servers, another user
    #[arg(long, value_name = "URL,...", value_delimiter = ',', requires = "machine")]
    #[arg(help_heading = FLEET)]
    #[arg(env = "MEMPOOL_INGEST_PUBLISH_PRIVATE", hide_env_values = true)]
    publish_private: Vec<String>,
    /// With --publish: the name of this machine in the fleet
    #[arg(long, value_name = "NAME", requires = "flows", help_heading = FLEET)]
    machine: Option<String>,
    /// With --publish: make or change the streams, with so many replicas, 1, 3 or 5
    #[arg(long, value_name = "N", requires = "flows", help_heading = FLEET)]
    replicas: Option<usize>,
    /// With --publish: extra CA certificates (PEM), added to the system roots
    #[arg(long, value_name = "FILE", requires = "flows", help_heading = FLEET)]
    nats_ca: Option<PathBuf>,
}

const FLEET: &str = "Fleet";

impl Args {
    pub(crate) fn set(&self, options: &mut Options) {
        let flows = [(Flow::Public, &self.publish), (Flow::Private, &self.publish_private)];
        for (flow, urls) in flows {
            let (false, Some(machine)) = (urls.is_empty(), &self.machine) else { continue };
            let mut server = ServerConfig::cluster(urls);
            server.root_certificates = self.nats_ca.clone();
            options.publish.retain(|publisher| publisher.flow != flow);
            let mut publisher = PublisherConfig::new(server, 0, machine);
            publisher.flow = flow;
            options.publish.push(publisher);
            let Some(replicas) = self.replicas else { continue };
            let mut stream = StreamConfig::new(flow, 0);
            stream.replicas = replicas;
            if flow == Flow::Public {
                // The stream needs no transaction for longer than the pool keeps it.
                stream.max_age = options.pool.tx_retention;
            }
            options.streams.retain(|stream| stream.flow != flow);
            options.streams.push(stream);
        }
    }
}

/// The publishers, each with the name of its flow.
pub(crate) struct Publishing(Vec<(&'static str, Publisher)>);

impl Publishing {
    /// Creates the streams and starts the publishers. `node_chain_id` is the chain of the connected
    /// node, if there is one.
    ///
    /// # Errors
    /// A stream cannot be created, the chain is another one or unknown, or a publisher cannot
    /// start.
    pub(crate) async fn start(
        options: &Options,
        pool: &OrderPool,
        node_chain_id: Option<u64>,
    ) -> Result<Self, Failure> {
        for stream in &options.streams {
            let publisher = options.publisher_for(stream)?;
            let mut stream = stream.clone();
            stream.chain_id =
                options.chain_of_orders(stream.chain_id, node_chain_id, "[[streams]]")?;
            ensure_stream(&publisher.server, &stream).await?;
        }
        let mut publishers = Vec::new();
        for config in &options.publish {
            let mut config = config.clone();
            config.chain_id =
                options.chain_of_orders(config.chain_id, node_chain_id, "[[publish]]")?;
            let name = if config.flow == Flow::Public { "public" } else { "private" };
            publishers.push((name, Publisher::start(pool, config)?));
        }
        Ok(Self(publishers))
    }

    /// Returns a function that tells whether every publisher stores orders now.
    pub(crate) fn readiness(&self) -> impl Fn() -> bool + Send + Sync + 'static {
        let flows: Vec<_> = self.0.iter().map(|(_, publisher)| publisher.readiness()).collect();
        move || flows.iter().all(|is_ready| is_ready())
    }

    /// Returns the status of each flow.
    pub(crate) fn status(&self) -> Vec<PublishedFlow> {
        self.0.iter().map(|(flow, publisher)| flow_status(flow, publisher)).collect()
    }

    /// Publishes the rest, for at most `limit`, and returns the counts of each flow for `--json`.
    pub(crate) async fn shutdown(self, limit: Duration) -> Vec<Value> {
        join_all(self.0.into_iter().map(async |(flow, publisher)| {
            // Read the state before the shutdown changes it.
            let state = publisher.state().to_string();
            let stats = publisher.shutdown(limit).await.stats;
            let PublisherStats {
                published,
                stored,
                duplicate,
                unfinished,
                unpublished,
                connects,
                ..
            } = stats;
            let refused = stats.refused_total();
            print_line!(
                "published {published} ({flow}): stored {stored}, duplicate {duplicate}, \
                 refused {refused}, unfinished {unfinished}; {state}",
            );
            json!({
                "flow": flow, "state": state, "published": published, "stored": stored,
                "duplicate": duplicate, "refused": refused, "unfinished": unfinished,
                "unpublished": unpublished, "connects": connects,
            })
        }))
        .await
    }
}

fn flow_status(flow: &'static str, publisher: &Publisher) -> PublishedFlow {
    let stats = publisher.stats();
    PublishedFlow {
        flow,
        state: publisher.state().to_string(),
        stored: stats.stored + stats.duplicate,
        refused: stats.refused_total(),
        unfinished: stats.unfinished,
    }
}
