//! The signals that end the command.

use std::{
    io, process,
    time::{Duration, Instant},
};

use futures::future::select_all;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// A further signal within this time is the same request: shells, `timeout` and systemd send two.
const SAME: Duration = Duration::from_millis(500);

/// SIGTERM is what systemd and `docker stop` send, SIGINT what Ctrl-C sends, SIGHUP what a terminal sends that is closed.
/// From its beginning on none of them ends the process at once.
#[derive(Debug)]
pub(crate) struct Signals(Vec<(SignalKind, Signal)>);

impl Signals {
    /// Must be called in a runtime.
    pub(crate) fn listen() -> io::Result<Self> {
        let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
        let all = kinds.into_iter().map(|kind| Ok((kind, signal(kind)?)));
        Ok(Self(all.collect::<io::Result<_>>()?))
    }

    /// Waits for the next one and returns its number.
    pub(crate) async fn next(&mut self) -> i32 {
        let each = self.0.iter_mut().map(|(kind, signal)| {
            Box::pin(async {
                signal.recv().await;
                kind.as_raw_value()
            })
        });
        select_all(each).await.0
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
