//! A reth node with the ingestion in its process.

mod pool;

use std::{sync::Arc, time::Duration};

use mempool_ingest::{FetcherConfig, Ingest, IngestConfig, PoolConfig};
use reth_ethereum::{
    cli::Cli,
    node::{EthereumNode, builder::NodeHandle},
};

use crate::pool::RethPool;

fn main() -> eyre::Result<()> {
    Cli::parse_args().run(async move |builder, _| {
        let NodeHandle { node, node_exit_future } =
            builder.node(EthereumNode::default()).launch().await?;
        let pool = RethPool { pool: node.pool.clone(), chain: node.provider.clone() };
        let source = FetcherConfig::in_process("reth", Arc::new(pool));
        let ingest = Ingest::start(IngestConfig::new(source, PoolConfig::default())).await?;
        // A builder subscribes to this pool.
        let _orders = ingest.pool().clone();
        // reth drops the future of the node at Ctrl-C, so code after `node_exit_future` does not
        // run. It waits up to 5 s for tasks with a graceful shutdown.
        node.task_executor.spawn_critical_with_graceful_shutdown_signal(
            "mempool-ingest",
            |shutdown| async move {
                let guard = shutdown.await;
                let end = ingest.shutdown(Duration::from_secs(4)).await;
                tracing::info!(?end, "the ingestion has stopped");
                drop(guard);
            },
        );
        node_exit_future.await
    })
}
