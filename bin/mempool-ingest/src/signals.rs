//! The signals that end the command.

use std::{
    io, process,
    time::{Duration, Instant},
};

use tokio::signal::unix::{Signal, SignalKind, signal};

/// A further signal within this time is the same request: shells, `timeout` and systemd send two.
const SAME: Duration = Duration::from_millis(500);

/// SIGTERM is what systemd and `docker stop` send, SIGINT what Ctrl-C sends, SIGHUP what a terminal sends that is closed.
/// From its beginning on none of them ends the process at once.
#[derive(Debug)]
pub(crate) struct Signals([(SignalKind, Signal); 3]);

impl Signals {
    /// Must be called in a runtime.
    pub(crate) fn listen() -> io::Result<Self> {
        let listen = |kind| Ok::<_, io::Error>((kind, signal(kind)?));
        let [terminate, interrupt, hangup] =
            [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()].map(listen);
        Ok(Self([terminate?, interrupt?, hangup?]))
    }

    /// Waits for the next one and returns its number.
    pub(crate) async fn next(&mut self) -> i32 {
        let [(first, terminate), (second, interrupt), (third, hangup)] = &mut self.0;
        // The order is irrelevant: all mean the same.
        tokio::select! {
            _ = terminate.recv() => first.as_raw_value(),
            _ = interrupt.recv() => second.as_raw_value(),
            _ = hangup.recv() => third.as_raw_value(),
        }
    }

    /// During a stop: ends the process at the next signal, with the exit code that it would have by default, or when the
    /// stop takes longer than `limit`, as when nobody reads what it writes. `stopped_by_signal` tells whether the stop was
    /// requested by a signal; else the next one is the first.
    pub(crate) async fn end_at_second(mut self, stopped_by_signal: bool, limit: Duration) {
        let second = async {
            if !stopped_by_signal {
                self.next().await;
            }
            let first = Instant::now();
            loop {
                let number = self.next().await;
                if first.elapsed() > SAME {
                    return 128 + number;
                }
            }
        };
        process::exit(tokio::time::timeout(limit, second).await.unwrap_or(1));
    }
}
