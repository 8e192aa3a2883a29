//! `mempool-ingest check`: validates a configuration, describes its sources, and tries its
//! listeners, folders and servers.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    path::Path,
    time::{Duration, Instant, SystemTime},
};

use mempool_ingest::{
    Ingest, IngestConfig, PoolConfig,
    txpool_fetcher::{Announcements, AuditMode, Backfill, Endpoint, SourceState, StartPolicy},
};

use order_stream::StreamConfig;

use crate::{
    Args, Failure,
    options::Options,
    print::{print_error, print_line},
    time_left,
};

/// The time that one source may take.
const SOURCE_TIMEOUT: Duration = Duration::from_secs(20);

/// The time that a connection to a NATS server may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The port of a NATS server whose URL names none.
const DEFAULT_NATS_PORT: u16 = 4222;

/// Prints a line for each check, and for each part that was not checked. Fails if a part cannot be
/// used.
pub(crate) async fn run(args: &Args) -> Result<(), Failure> {
    let options = args.options()?;
    options.validate()?;
    let (mut chains, mut failed) = (Vec::new(), 0);
    let mut report = |result: Result<String, Failure>| match result {
        Ok(text) => print_line!("{text}"),
        Err(error) => {
            print_error(&*error);
            failed += 1;
        }
    };
    if options.fetcher.sources.is_empty() {
        report(Ok(
            "not checked: no node is named; give --ipc PATH or --ws URL, or set `sources`".into()
        ));
    }
    for source in &options.fetcher.sources {
        report(check_source(source, &options).await.map(|(chain, text)| {
            chains.push(chain);
            format!("{source}: {text}")
        }));
    }
    if let Some(other) = chains.iter().find(|chain| **chain != chains[0]) {
        let first = chains[0];
        report(Err(format!("a source is on chain {first}, another on chain {other}").into()));
    }
    let node_chain_id = chains.first().copied();
    if let Some(address) = options.metrics {
        report(check_listener("metrics", address));
    }
    if let Some(rpc) = &options.rpc {
        report(check_listener("[rpc] listen", rpc.listen));
        if node_chain_id.is_some() || rpc.chain_id != 0 {
            report(check_chain(&options, rpc.chain_id, node_chain_id, "[rpc]"));
        }
    }
    if let Some(recorder) = &options.recorder {
        report(check_folder(&recorder.folder));
    }
    for publisher in &options.publish {
        for url in &publisher.server.servers {
            report(check_server(url).await);
        }
        if node_chain_id.is_some() || publisher.chain_id != 0 {
            report(check_chain(&options, publisher.chain_id, node_chain_id, "[[publish]]"));
        }
    }
    let is_known = |stream: &&StreamConfig| node_chain_id.is_some() || stream.chain_id != 0;
    for stream in options.streams.iter().filter(is_known) {
        report(check_chain(&options, stream.chain_id, node_chain_id, "[[streams]]"));
    }
    match failed {
        0 => Ok(()),
        failed => Err(format!("{failed} of these cannot be used").into()),
    }
}

/// Binds the address of a listener for a moment.
fn check_listener(name: &str, address: SocketAddr) -> Result<String, Failure> {
    match TcpListener::bind(address) {
        Ok(_) => Ok(format!("{name} {address}: can be bound")),
        Err(error) => Err(format!(
            "{name} {address}: {error}; choose another port, or end the process that has this one"
        )
        .into()),
    }
}

/// Checks that the orders of a section are for the chain of the node, and returns a line that says
/// so.
fn check_chain(
    options: &Options,
    chain_id: u64,
    node_chain_id: Option<u64>,
    section: &str,
) -> Result<String, Failure> {
    let chain_id = options.chain_of_orders(chain_id, node_chain_id, section)?;
    Ok(format!("{section}: orders are for chain {chain_id}"))
}

/// Creates the folder, and writes and removes a file in it.
fn check_folder(folder: &Path) -> Result<String, Failure> {
    let probe = folder.join(format!(".mempool-ingest-check-{}", std::process::id()));
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(&probe, "probe"));
    // This fails if the file could not be written, which is reported below.
    let _ = fs::remove_file(&probe);
    match written {
        Ok(()) => Ok(format!("[recorder] folder {}: can be written", folder.display())),
        Err(error) => Err(format!(
            "[recorder] folder {}: {error}; make it, and give it to the user that runs \
             mempool-ingest",
            folder.display()
        )
        .into()),
    }
}

/// Connects to a NATS server. Credentials and rights are not checked: only publishing would show
/// them.
async fn check_server(url: &str) -> Result<String, Failure> {
    let host = url.trim_end_matches('/').rsplit(['@', '/']).next().unwrap_or(url);
    let address =
        if host.contains(':') { host.to_owned() } else { format!("{host}:{DEFAULT_NATS_PORT}") };
    let connect = tokio::net::TcpStream::connect(&address);
    match tokio::time::timeout(CONNECT_TIMEOUT, connect).await {
        Ok(Ok(_)) => Ok(format!(
            "[[publish]] {address}: a server accepts connections; not checked: credentials and \
             rights"
        )),
        Ok(Err(error)) => {
            Err(format!("[[publish]] {address}: {error}; is the NATS server running?").into())
        }
        Err(_) => {
            Err(format!("[[publish]] {address}: no connection within {CONNECT_TIMEOUT:?}").into())
        }
    }
}

/// Connects to a source, and returns its chain and the line that describes it.
async fn check_source(source: &Endpoint, options: &Options) -> Result<(u64, String), Failure> {
    let mut config = options.fetcher.clone();
    config.sources = vec![source.clone()];
    config.start = StartPolicy::RequireNode;
    config.backfill = Backfill::Off;
    config.audit_interval = None;
    let deadline = Instant::now() + SOURCE_TIMEOUT;
    let ingest = Ingest::start(IngestConfig::new(config, PoolConfig::default())).await?;
    let fetcher = ingest.fetcher();
    while fetcher.status()[0].state == SourceState::Connecting && !time_left(deadline).is_zero() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let comparison = fetcher.audit(0, AuditMode::CompareOnly);
    let audit = tokio::time::timeout(time_left(deadline), comparison).await;
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
        Err(_) => format!("does not list its pool within {SOURCE_TIMEOUT:?}"),
    };
    let named = format!("{}, chain {}", node.client, node.chain_id);
    if status.state == SourceState::Syncing {
        return Err(format!("{source}: {named}: it is syncing, {head}").into());
    }
    Ok((node.chain_id, format!("{named}, {head}; announces {announces}; {lists}")))
}
