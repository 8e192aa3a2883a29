//! What `--publish` adds: the pool's orders go to the streams of a fleet.

use std::time::Duration;

use mempool_ingest::OrderPool;
use order_stream::{
    Flow, Publisher, PublisherConfig, PublisherStats, ServerConfig, StreamConfig, ensure_stream,
};
use serde::Serialize;

use crate::args::Args;

/// How long the end waits for the acknowledgements of what is published.
const STOP_DEADLINE: Duration = Duration::from_secs(5);

/// The counts of one flow, as `--json` prints them.
#[derive(Debug, Serialize)]
pub(crate) struct PublishedSummary {
    flow: &'static str,
    /// The state before the end.
    state: String,
    published: u64,
    stored: u64,
    duplicate: u64,
    refused: u64,
    unfinished: u64,
    connects: u64,
}

/// The publishers of the flows that were asked for.
pub(crate) struct Publishing(Vec<(&'static str, Publisher)>);

impl Publishing {
    pub(crate) async fn start(
        args: &Args,
        pool: &OrderPool,
        node: Option<u64>,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let flows = [
            ("public", Flow::Public, &args.publish),
            ("private", Flow::Private, &args.publish_private),
        ];
        let mut publishers = Vec::new();
        for (name, flow, urls) in flows {
            let (false, Some(machine)) = (urls.is_empty(), &args.machine) else { continue };
            let chain = args.chain(node, "--publish")?;
            let server = ServerConfig {
                root_certificates: args.nats_ca.clone(),
                ..ServerConfig::cluster(urls)
            };
            if let Some(replicas) = args.replicas {
                make_stream(args, &server, chain, flow, replicas).await?;
            }
            let config = PublisherConfig { flow, ..PublisherConfig::new(server, chain, machine) };
            publishers.push((name, Publisher::start(pool, config)?));
        }
        Ok(Self(publishers))
    }

    /// What a line of the display says of each flow.
    pub(crate) fn line(&self) -> String {
        let flow = |(name, publisher): &(&str, Publisher)| {
            let stats = publisher.stats();
            let refused = stats.refused_total();
            format!(
                " {name}=({}, stored={} refused={refused} unfinished={})",
                publisher.state(),
                stats.stored + stats.duplicate,
                stats.unfinished
            )
        };
        self.0.iter().map(flow).collect()
    }

    /// Publishes the rest, and returns the counts.
    pub(crate) async fn end(self) -> Vec<PublishedSummary> {
        let mut summaries = Vec::new();
        for (flow, publisher) in self.0 {
            let state = publisher.state().to_string();
            let end = publisher.shutdown(STOP_DEADLINE).await;
            summaries.push(summary(flow, state, &end.stats));
        }
        summaries
    }
}

async fn make_stream(
    args: &Args,
    server: &ServerConfig,
    chain: u64,
    flow: Flow,
    replicas: usize,
) -> Result<(), order_stream::StreamError> {
    let mut stream = StreamConfig { replicas, ..StreamConfig::new(flow, chain) };
    if flow == Flow::Public {
        // What the pool no longer holds is of no use in the stream.
        stream.max_age = args.retention;
    }
    ensure_stream(server, &stream).await
}

fn summary(flow: &'static str, state: String, stats: &PublisherStats) -> PublishedSummary {
    let refused = stats.refused_total();
    eprintln!(
        "published {} ({flow}): stored {}, duplicate {}, refused {refused}, unfinished {}; {state}",
        stats.published, stats.stored, stats.duplicate, stats.unfinished
    );
    PublishedSummary {
        flow,
        state,
        published: stats.published,
        stored: stats.stored,
        duplicate: stats.duplicate,
        refused,
        unfinished: stats.unfinished,
        connects: stats.connects,
    }
}
