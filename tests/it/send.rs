//! A host may spawn the future of every public async function on a runtime of many threads.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use mempool_ingest::{
    Fetcher, FetcherConfig, Ingest, IngestConfig, OrderPool,
    order_rpc::OrderRpc,
    txpool_fetcher::{AuditMode, FetchedTransaction, Limits, SinkEvent, TransactionStream},
};
use order_stream::{Publisher, ServerConfig, Source, StreamConfig, ensure_stream};
use tokio::sync::mpsc;

fn send<T: Send>(_: T) {}

#[test]
fn the_futures_of_all_parts_can_be_sent_to_other_threads() {
    // That it compiles is the test.
    let _ = |fetcher: Fetcher, deadline: Duration| {
        send(fetcher.wait_live());
        send(fetcher.audit(0, AuditMode::Recover));
        send(fetcher.ended());
        send(fetcher.status_changes());
        send(fetcher.shutdown(deadline));
    };
    let _ = |config: fn() -> FetcherConfig, pool: OrderPool| {
        send(Fetcher::start(config(), pool.clone()));
        send(Fetcher::start_with(config(), Limits::default(), pool));
        send(Fetcher::stream(config(), 1));
        let (transactions, events) =
            (mpsc::channel::<FetchedTransaction>(1).0, mpsc::channel::<SinkEvent>(1).0);
        send(Fetcher::start(config(), transactions));
        send(Fetcher::start(config(), events));
    };
    let _ = |stream: TransactionStream, deadline: Duration| send(stream.shutdown(deadline));
    let _ = |config: IngestConfig| send(Ingest::start(config));
    let _ = |ingest: Ingest, deadline: Duration| send(ingest.shutdown(deadline));
    let _ = |rpc: OrderRpc, deadline: Duration| send(rpc.shutdown(deadline));
    let _ = |publisher: Publisher, deadline: Duration| send(publisher.shutdown(deadline));
    let _ = |source: Source, deadline: Duration| send(source.shutdown(deadline));
    let _ = |server: &'static ServerConfig, stream: &'static StreamConfig| {
        send(ensure_stream(server, stream));
    };
}

/// The Rust files below a folder, without tests.
fn sources(folder: PathBuf, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "tests") {
                sources(path, found);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn every_public_async_function_is_among_those_whose_futures_can_be_sent() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let tests =
        [include_str!("send.rs"), include_str!("../../crates/load-control/tests/it/gate.rs")];
    let mut files = Vec::new();
    sources(root.join("src"), &mut files);
    // The published crates.
    for member in fs::read_dir(root.join("crates")).expect("a folder") {
        let member = member.expect("an entry").path();
        sources(member.join("src"), &mut files);
    }
    let mut checked = 0;
    for file in files {
        let text = fs::read_to_string(&file).expect("a file");
        for declared in text.split("pub async fn ").skip(1) {
            let name = declared.split(['(', '<']).next().expect("a name");
            let sends = |call: &str| {
                let called = call.split('(').next().unwrap_or_default();
                called.rsplit(['.', ':']).next() == Some(name)
            };
            let is_tested = tests.iter().any(|test| test.split("send(").skip(1).any(sends));
            assert!(is_tested, "{name} of {}", file.display());
            checked += 1;
        }
    }
    assert!(checked >= 12, "{checked}");
}
