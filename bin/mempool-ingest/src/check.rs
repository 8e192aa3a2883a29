//! `mempool-ingest check`: whether a configuration is valid, what its sources are, and whether its listeners, folders and
//! servers can be used.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    path::Path,
    time::{Duration, SystemTime},
};

use mempool_ingest::{
    FetcherConfig, Ingest, IngestConfig, PoolConfig,
    txpool_fetcher::{Announcements, AuditMode, Backfill, Endpoint, SourceState, StartPolicy},
};

use crate::{
    Args, Failure, left,
    options::Options,
    say::{say, say_error},
};

/// How long one source may take.
const LIMIT: Duration = Duration::from_secs(20);

/// How long a connection to a NATS server may take.
const CONNECT: Duration = Duration::from_secs(5);

/// Where a NATS server listens if its URL names no port.
const NATS_PORT: u16 = 4222;

/// Prints a line for each thing that it checked, and for each that it did not. An error if anything cannot be used.
pub(crate) async fn run(args: &Args) -> Result<(), Failure> {
    let options = args.options()?;
    options.validate()?;
    let (mut chains, mut failed) = (Vec::new(), 0);
    let mut report = |result: Result<String, Failure>| match result {
        Ok(text) => say!("{text}"),
        Err(error) => {
            say_error(&*error);
            failed += 1;
        }
    };
    if options.fetcher.sources.is_empty() {
        report(Ok(
            "not checked: no node is named; give --ipc PATH or --ws URL, or set `sources`".into()
        ));
    }
    for source in &options.fetcher.sources {
        report(check(source, &options).await.map(|(chain, text)| {
            chains.push(chain);
            format!("{source}: {text}")
        }));
    }
    if let Some(other) = chains.iter().find(|chain| **chain != chains[0]) {
        let first = chains[0];
        report(Err(format!("a source is on chain {first}, another on chain {other}").into()));
    }
    let node = chains.first().copied();
    if let Some(address) = options.metrics {
        report(can_listen("metrics", address));
    }
    if let Some(rpc) = &options.rpc {
        report(can_listen("[rpc] listen", rpc.listen));
        if node.is_some() || rpc.chain_id != 0 {
            report(orders_of_chain(&options, rpc.chain_id, node, "[rpc]"));
        }
    }
    if let Some(recorder) = &options.recorder {
        report(can_write(&recorder.folder));
    }
    for publisher in &options.publish {
        for url in &publisher.server.servers {
            report(can_connect(url).await);
        }
        if node.is_some() || publisher.chain_id != 0 {
            report(orders_of_chain(&options, publisher.chain_id, node, "[[publish]]"));
        }
    }
    for stream in options.streams.iter().filter(|stream| node.is_some() || stream.chain_id != 0) {
        report(orders_of_chain(&options, stream.chain_id, node, "[[streams]]"));
    }
    match failed {
        0 => Ok(()),
        failed => Err(format!("{failed} of these cannot be used").into()),
    }
}

/// Binds a listener's address for a moment.
fn can_listen(name: &str, address: SocketAddr) -> Result<String, Failure> {
    match TcpListener::bind(address) {
        Ok(_) => Ok(format!("{name} {address}: can be bound")),
        Err(error) => Err(format!(
            "{name} {address}: {error}; choose another port, or end the process that has this one"
        )
        .into()),
    }
}

fn orders_of_chain(
    options: &Options,
    chain_id: u64,
    node: Option<u64>,
    section: &str,
) -> Result<String, Failure> {
    let chain_id = options.chain(chain_id, node, section)?;
    Ok(format!("{section}: orders are for chain {chain_id}"))
}

/// Makes the folder, and writes a file in it.
fn can_write(folder: &Path) -> Result<String, Failure> {
    let probe = folder.join(format!(".mempool-ingest-check-{}", std::process::id()));
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(&probe, "probe"));
    // It is there only if it was written.
    let _ = fs::remove_file(&probe);
    match written {
        Ok(()) => Ok(format!("[recorder] folder {}: can be written", folder.display())),
        Err(error) => Err(format!(
            "[recorder] folder {}: {error}; make it, and give it to the user that runs mempool-ingest",
            folder.display()
        )
        .into()),
    }
}

/// Connects to a NATS server. Credentials would need a session, whose rights only publishing shows.
async fn can_connect(url: &str) -> Result<String, Failure> {
    let host = url.trim_end_matches('/').rsplit(['@', '/']).next().unwrap_or(url);
    let address = if host.contains(':') { host.to_owned() } else { format!("{host}:{NATS_PORT}") };
    let connect = tokio::net::TcpStream::connect(&address);
    match tokio::time::timeout(CONNECT, connect).await {
        Ok(Ok(_)) => Ok(format!(
            "[[publish]] {address}: a server accepts connections; not checked: credentials and rights"
        )),
        Ok(Err(error)) => {
            Err(format!("[[publish]] {address}: {error}; is the NATS server running?").into())
        }
        Err(_) => Err(format!("[[publish]] {address}: no connection within {CONNECT:?}").into()),
    }
}

/// Its chain, and what is printed of it.
async fn check(source: &Endpoint, options: &Options) -> Result<(u64, String), Failure> {
    let config = FetcherConfig {
        sources: vec![source.clone()],
        start: StartPolicy::RequireNode,
        backfill: Backfill::Off,
        audit_interval: None,
        ..options.fetcher.clone()
    };
    let by = std::time::Instant::now() + LIMIT;
    let ingest = Ingest::start(IngestConfig::new(config, PoolConfig::default())).await?;
    let fetcher = ingest.fetcher();
    while fetcher.status()[0].state == SourceState::Connecting && !left(by).is_zero() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let audit = tokio::time::timeout(left(by), fetcher.audit(0, AuditMode::CompareOnly)).await;
    let (status, head) = (fetcher.status().swap_remove(0), ingest.head());
    ingest.shutdown(Duration::from_secs(2)).await;
    let node = status.node.ok_or_else(|| format!("{source}: its node says nothing of itself"))?;
    let head = head.map_or("no head yet".to_owned(), |head| {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(head.timestamp);
        format!("head {}, {} s old", head.number, time.elapsed().unwrap_or_default().as_secs())
    });
    let announces = match status.announcements {
        Announcements::Hashes => "hashes",
        _ => "whole transactions",
    };
    let lists = match audit {
        Ok(Ok(report)) => format!("lists its pool ({} pending)", report.listed),
        Ok(Err(error)) => format!("does not list its pool: {error}"),
        Err(_) => format!("does not list its pool within {LIMIT:?}"),
    };
    let named = format!("{}, chain {}", node.client, node.chain_id);
    if status.state == SourceState::Syncing {
        return Err(format!("{source}: {named}: it is syncing, {head}").into());
    }
    Ok((node.chain_id, format!("{named}, {head}; announces {announces}; {lists}")))
}
