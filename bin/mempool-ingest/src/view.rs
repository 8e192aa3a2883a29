//! The output for the operator: a live view in a terminal, status lines elsewhere.

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
    print::{self, print_line, print_warning},
    snapshot::Sampler,
    status::Status,
};

/// The default time between two status lines in a terminal, where somebody reads them at once.
const TERMINAL_INTERVAL: Duration = Duration::from_secs(1);

/// The default time between two status lines elsewhere, where they are kept.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The output while the command runs.
pub(crate) struct View {
    sampler: Sampler,
    /// `None` for status lines.
    live: Option<Live>,
    interval: Duration,
    /// When the latest status line was printed.
    printed_at: Option<Instant>,
}

impl View {
    /// Returns whether to show the live view: in a capable terminal, unless plain lines are
    /// requested.
    pub(crate) fn is_live(is_plain: bool) -> bool {
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        !is_plain && !is_dumb && stdout().is_terminal()
    }

    /// Prints the sources, and enters the live view if `is_live`. `interval` is that of
    /// `--status-interval`, if it was given.
    pub(crate) fn start(
        is_live: bool,
        running: &Running,
        log: Log,
        interval: Option<Duration>,
    ) -> Self {
        print_sources(&running.ingest);
        let live = is_live.then(|| Live::enter(log)).transpose().unwrap_or_else(|error| {
            print_warning!("no live view in this terminal: {error}");
            None
        });
        let default = if stderr().is_terminal() { TERMINAL_INTERVAL } else { LOG_INTERVAL };
        let interval = interval.unwrap_or(default);
        let sampler = Sampler::new(running.parts.watcher.stats().latency);
        Self { sampler, live, interval, printed_at: None }
    }

    /// Shows the latest values. Call it about once a second.
    ///
    /// # Errors
    /// The reader of stderr has closed its end.
    pub(crate) fn refresh(&mut self, running: &Running) -> io::Result<()> {
        if let Some(live) = &self.live {
            live.show(self.sampler.sample(running));
            return Ok(());
        }
        // Only a closed pipe ends the command: a full disk is no reason to stop ingesting.
        if output::is_closed() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if self.printed_at.is_some_and(|printed_at| printed_at.elapsed() < self.interval) {
            return Ok(());
        }
        self.printed_at = Some(Instant::now());
        let snapshot = self.sampler.sample(running);
        let status = Status::new(&snapshot, running);
        print::print_object("INFO", &status, || status.to_string());
        Ok(())
    }

    /// Resolves when a key press asks to end the program, or when the terminal fails.
    pub(crate) async fn end_requested(&mut self) -> io::Result<()> {
        match &mut self.live {
            Some(live) => live.end_requested().await,
            None => std::future::pending().await,
        }
    }
}

fn print_sources(ingest: &Ingest) {
    for source in ingest.fetcher().status() {
        match source.node {
            Some(node) => {
                print_line!("{}: {}, chain {}", source.endpoint, node.client, node.chain_id)
            }
            None => print_line!("{}: not reached yet", source.endpoint),
        }
    }
    #[cfg(feature = "rpc")]
    if let Some(rpc) = ingest.rpc() {
        print_line!("orders by JSON-RPC at http://{}", rpc.local_addr());
    }
}
