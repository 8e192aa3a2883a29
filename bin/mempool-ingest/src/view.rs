//! The output for the operator: a live view in a terminal, plain lines elsewhere.

use std::{
    io::{self, IsTerminal as _, stderr, stdout},
    time::{Duration, Instant},
};

use mempool_ingest::Ingest;

use crate::{
    Running,
    live::Live,
    log::Log,
    output,
    picture::Painter,
    say::{self, say, say_warning},
    status::Status,
};

/// Time between two lines in a terminal, where somebody looks.
const IN_TERMINAL: Duration = Duration::from_secs(1);

/// Elsewhere they are kept.
const ELSEWHERE: Duration = Duration::from_secs(10);

/// The output while the program runs.
pub(crate) struct View {
    painter: Painter,
    /// Plain lines without it.
    live: Option<Live>,
    interval: Duration,
    /// When the latest line was written.
    at: Option<Instant>,
}

impl View {
    /// Whether to show a live view: in a terminal that can, unless plain lines are requested.
    pub(crate) fn is_to_be_live(plain: bool) -> bool {
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        !plain && !is_dumb && stdout().is_terminal()
    }

    /// `every` is the interval of the lines, if one was given.
    pub(crate) fn start(live: bool, running: &Running, log: Log, every: Option<Duration>) -> Self {
        say_sources(&running.ingest);
        let live = live.then(|| Live::enter(log)).transpose().unwrap_or_else(|error| {
            say_warning!("no live view in this terminal: {error}");
            None
        });
        let default = if stderr().is_terminal() { IN_TERMINAL } else { ELSEWHERE };
        let interval = every.unwrap_or(default);
        let painter = Painter::new(running.parts.watcher.seen().latency);
        Self { painter, live, interval, at: None }
    }

    /// Must be called about once a second. Fails only when nobody reads the lines any more.
    pub(crate) fn refresh(&mut self, running: &Running) -> io::Result<()> {
        if let Some(live) = &self.live {
            // It shows the changes of the publishers' states as events.
            live.show(self.painter.paint(running));
            return Ok(());
        }
        // A terminal that is gone sends a signal; a full disk is no reason to stop ingesting.
        if output::is_closed() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if self.at.is_some_and(|at| at.elapsed() < self.interval) {
            return Ok(());
        }
        self.at = Some(Instant::now());
        let picture = self.painter.paint(running);
        let status = Status::of(&picture, running);
        say::object("INFO", &status, || status.to_string());
        Ok(())
    }

    /// Resolves when a key press asks to end the program, or when the terminal fails.
    pub(crate) async fn end_wanted(&mut self) -> io::Result<()> {
        match &mut self.live {
            Some(live) => live.end_wanted().await,
            None => std::future::pending().await,
        }
    }
}

fn say_sources(ingest: &Ingest) {
    for source in ingest.fetcher().status() {
        match source.node {
            Some(node) => say!("{}: {}, chain {}", source.endpoint, node.client, node.chain_id),
            None => say!("{}: not reached yet", source.endpoint),
        }
    }
    #[cfg(feature = "rpc")]
    if let Some(rpc) = ingest.rpc() {
        say!("orders by JSON-RPC at http://{}", rpc.local_addr());
    }
}
