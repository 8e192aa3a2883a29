//! The output for the operator: a live view in a terminal, plain lines elsewhere.

use std::{
    io::{self, IsTerminal as _, Write as _, stderr, stdout},
    time::{Duration, Instant},
};

use mempool_ingest::{Ingest, txpool_fetcher::Counts};

use crate::{
    RpcCounts, Summary,
    live::Live,
    log::Log,
    publishing::Publishing,
    watcher::{Seen, Watcher},
};

/// The output while the program runs.
pub(crate) enum View {
    Live(Box<Live>),
    Plain(Plain),
}

impl View {
    /// Whether to show a live view: in a terminal, unless plain lines are requested.
    pub(crate) fn is_to_be_live(plain: bool) -> bool {
        !plain && stdout().is_terminal()
    }

    pub(crate) fn start(
        live: bool,
        ingest: &Ingest,
        watcher: &Watcher,
        log: Log,
        max_txs: u64,
    ) -> Self {
        say_sources(ingest);
        if live {
            match Live::enter(log, watcher.latency(), max_txs) {
                Ok(live) => return Self::Live(Box::new(live)),
                Err(error) => eprintln!("warning: no live view in this terminal: {error}"),
            }
        }
        Self::Plain(Plain { before: Counts::default(), at: Instant::now() })
    }

    pub(crate) fn refresh(
        &mut self,
        ingest: &Ingest,
        watcher: &Watcher,
        publishing: &Publishing,
    ) -> io::Result<()> {
        match self {
            // It shows the changes of the publishers' states as events.
            Self::Live(live) => live.refresh(ingest, watcher),
            Self::Plain(plain) => {
                plain.refresh(ingest, watcher.seen(), &publishing.line());
                Ok(())
            }
        }
    }

    /// Resolves when a key press asks to end the program.
    pub(crate) async fn end_wanted(&mut self) -> io::Result<()> {
        let Self::Live(live) = self else { return std::future::pending().await };
        while !live.wants_to_end()? {
            tokio::time::sleep(KEYS).await;
        }
        Ok(())
    }
}

/// Time between two reads of the keyboard.
const KEYS: Duration = Duration::from_millis(100);

fn say_sources(ingest: &Ingest) {
    for source in ingest.fetcher().status() {
        let (client, chain_id) = source
            .node
            .map_or(("(not reached yet)".into(), 0), |node| (node.client, node.chain_id));
        eprintln!("{}: {client}, chain {chain_id}", source.endpoint);
    }
    if let Some(rpc) = ingest.rpc() {
        eprintln!("orders by JSON-RPC at http://{}", rpc.local_addr());
    }
}

/// A line on stderr for each refresh.
pub(crate) struct Plain {
    before: Counts,
    at: Instant,
}

impl Plain {
    fn refresh(&mut self, ingest: &Ingest, seen: Seen, published: &str) {
        let counts = ingest.fetcher().counts();
        let seconds = self.at.elapsed().as_secs_f64().max(1e-3);
        let rate = |now: u64, before: u64| (now.saturating_sub(before)) as f64 / seconds;
        let announced = rate(counts.announced, self.before.announced);
        let pooled = rate(counts.pooled, self.before.pooled);
        let sources = ingest.fetcher().status();
        let state = sources.first().map_or("-", |source| source.state.as_str());
        let rpc = RpcCounts::of(ingest, seen).map_or(String::new(), |rpc| {
            format!(" rpc={} rpc_orders={}", rpc.requests, rpc.orders)
        });
        // A closed stderr is no reason to stop ingesting.
        let _ = writeln!(
            stderr().lock(),
            "{state} announced={} ({announced:.0}/s) pooled={} ({pooled:.0}/s) lagged={} failed={} in_flight={}{rpc}{published}",
            counts.announced,
            counts.pooled,
            counts.lagged,
            counts.failed,
            counts.unfinished,
        );
        self.before = counts;
        self.at = Instant::now();
    }
}

impl Summary {
    /// Writes one line for the operator.
    pub(crate) fn say(&self) {
        let Self { counts, latency_us, .. } = self;
        // Negative without a final audit.
        let missing =
            u64::try_from(self.missing).map_or("unknown".into(), |count| count.to_string());
        eprintln!(
            "{} announced, {} backfilled, {} by audit; {} pooled; {missing} missing; lagged {}, failed {}; \
             p50 {:.0} us, p99 {:.0} us; {:.0} us of CPU per transaction; {:.0} MB",
            counts.announced,
            counts.backfilled,
            counts.audit_recovered,
            counts.pooled,
            counts.lagged,
            counts.failed,
            latency_us.p50,
            latency_us.p99,
            self.cpu_us_per_tx,
            self.max_rss_bytes as f64 / 1e6,
        );
    }
}
