//! A host may spawn the future of every public async function on a runtime of many threads.

use std::time::Duration;

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
