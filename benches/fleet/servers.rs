//! The NATS servers of a run, and their streams.

use std::{io, time::Duration};

use mock_node::DEV_CHAIN_ID;
use order_stream::{Flow, ServerConfig, StreamConfig, ensure_stream, stream_name};
use tempfile::TempDir;
use testkit::devnet::{NatsConfig, NatsServer};

/// The age at which messages expire: longer than a bench takes.
const MAX_AGE: Duration = Duration::from_secs(3600);

fn stream() -> String {
    stream_name(Flow::Public, DEV_CHAIN_ID)
}

/// Starts a server. Its store is in the returned folder, which must live as long as the server.
pub(crate) fn start() -> io::Result<(TempDir, NatsServer)> {
    let folder = tempfile::tempdir()?;
    let server = NatsServer::start(folder.path(), &NatsConfig::default())?;
    Ok((folder, server))
}

/// Creates an empty stream.
pub(crate) fn reset_streams(servers: &[String]) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = async_nats::connect(servers).await.map_err(io::Error::other)?;
        // The first time there is no stream, which is an error that needs no handling.
        let _ = async_nats::jetstream::new(client).delete_stream(stream()).await;
        let mut config = StreamConfig::new(Flow::Public, DEV_CHAIN_ID);
        config.max_age = MAX_AGE;
        config.max_bytes = 4 << 30;
        let server = ServerConfig::cluster(servers);
        ensure_stream(&server, &config).await.map_err(io::Error::other)
    })
}

/// Returns how many messages the stream holds, and their bytes on the disk of one server.
pub(crate) fn stored(servers: &[String]) -> io::Result<(u64, u64)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = async_nats::connect(servers).await.map_err(io::Error::other)?;
        let stream = async_nats::jetstream::new(client).get_stream(stream()).await;
        let stream = stream.map_err(io::Error::other)?;
        Ok((stream.cached_info().state.messages, stream.cached_info().state.bytes))
    })
}
