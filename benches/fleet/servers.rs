//! The servers of a run, and their streams.

use std::{io, time::Duration};

use devnet::NatsServer;
use mock_node::DEV_CHAIN_ID;
use order_stream::{Flow, ServerConfig, StreamConfig, ensure_stream, stream_name};
use serde_json::Value;

/// What nothing of a bench outlives.
const MAX_AGE: Duration = Duration::from_secs(3600);

/// The stream of all transactions.
fn stream() -> String {
    stream_name(Flow::Public, DEV_CHAIN_ID)
}

/// Makes the stream, empty.
pub(crate) fn reset_streams(servers: &[String]) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = async_nats::connect(servers).await.map_err(io::Error::other)?;
        // There is none the first time.
        let _ = async_nats::jetstream::new(client).delete_stream(stream()).await;
        let config = StreamConfig {
            max_age: MAX_AGE,
            max_bytes: 4 << 30,
            ..StreamConfig::new(Flow::Public, DEV_CHAIN_ID)
        };
        let server = ServerConfig::cluster(servers);
        ensure_stream(&server, &config).await.map_err(io::Error::other)
    })
}

/// How many messages the stream holds, and their bytes on the disk of one server.
pub(crate) fn stored(server: &NatsServer) -> io::Result<(u64, u64)> {
    let page = server.monitor("/jsz?accounts=true&streams=true").map_err(io::Error::other)?;
    let accounts = page["account_details"].as_array().into_iter().flatten();
    let mut streams = accounts.filter_map(|account| account["stream_detail"].as_array()).flatten();
    let found = streams.find(|detail| detail["name"] == stream().as_str());
    let state = |name: &str| found.and_then(|detail| detail["state"][name].as_u64());
    match (state("messages"), state("bytes")) {
        (Some(messages), Some(bytes)) => Ok((messages, bytes)),
        _ => Err(io::Error::other(format!("no stream in {}", Value::to_string(&page)))),
    }
}
