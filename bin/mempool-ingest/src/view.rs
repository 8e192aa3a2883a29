//! The output for the operator: a live view in a terminal, plain lines elsewhere.

use std::{
    io::{self, IsTerminal as _, Write as _, stderr, stdout},
    time::Duration,
};

use mempool_ingest::Ingest;

use crate::{
    Running,
    live::Live,
    log::Log,
    picture::{Painter, Picture},
};

/// Time between two reads of the keyboard.
const KEYS: Duration = Duration::from_millis(100);

/// The output while the program runs.
pub(crate) struct View {
    painter: Painter,
    /// Plain lines without it.
    live: Option<Live>,
}

impl View {
    /// Whether to show a live view: in a terminal, unless plain lines are requested.
    pub(crate) fn is_to_be_live(plain: bool) -> bool {
        !plain && stdout().is_terminal()
    }

    pub(crate) fn start(live: bool, running: &Running, log: Log) -> Self {
        say_sources(&running.ingest);
        let live = live.then(|| Live::enter(log)).transpose().unwrap_or_else(|error| {
            eprintln!("warning: no live view in this terminal: {error}");
            None
        });
        Self { painter: Painter::new(running.watcher.latency()), live }
    }

    /// Must be called about once a second.
    pub(crate) fn refresh(&mut self, running: &Running) -> io::Result<()> {
        let picture = self.painter.paint(running);
        match &mut self.live {
            // It shows the changes of the publishers' states as events.
            Some(live) => live.show(picture),
            None => {
                say(&picture, &running.published());
                Ok(())
            }
        }
    }

    /// Resolves when a key press asks to end the program.
    pub(crate) async fn end_wanted(&mut self) -> io::Result<()> {
        let Some(live) = &mut self.live else { return std::future::pending().await };
        while !live.wants_to_end()? {
            tokio::time::sleep(KEYS).await;
        }
        Ok(())
    }
}

fn say_sources(ingest: &Ingest) {
    for source in ingest.fetcher().status() {
        let (client, chain_id) = source
            .node
            .map_or(("(not reached yet)".into(), 0), |node| (node.client, node.chain_id));
        eprintln!("{}: {client}, chain {chain_id}", source.endpoint);
    }
    #[cfg(feature = "rpc")]
    if let Some(rpc) = ingest.rpc() {
        eprintln!("orders by JSON-RPC at http://{}", rpc.local_addr());
    }
}

/// Writes a line.
fn say(picture: &Picture, published: &str) {
    let Picture { counts, announced_per_s, pooled_per_s, .. } = picture;
    let state = picture.sources.first().map_or("-", |source| source.state.as_str());
    let rpc = picture
        .rpc
        .map_or(String::new(), |rpc| format!(" rpc={} rpc_orders={}", rpc.requests, rpc.orders));
    // A closed stderr is no reason to stop ingesting.
    let _ = writeln!(
        stderr().lock(),
        "{state} announced={} ({announced_per_s:.0}/s) pooled={} ({pooled_per_s:.0}/s) lagged={} failed={} in_flight={}{rpc}{published}",
        counts.announced,
        counts.pooled,
        counts.lagged,
        counts.failed,
        counts.unfinished,
    );
}
