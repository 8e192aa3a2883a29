//! The signals that end the command.

use std::{
    io, process,
    sync::mpsc::{SyncSender, sync_channel},
    thread,
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

    /// During a stop: ends the process at the next signal, with the exit code that it would have by default.
    /// `stopped_by_signal` tells whether a signal requested the stop; otherwise the next one is the first.
    pub(crate) async fn end_at_second(mut self, stopped_by_signal: bool) {
        if !stopped_by_signal {
            self.next().await;
        }
        let first = Instant::now();
        loop {
            let number = self.next().await;
            if first.elapsed() > SAME {
                process::exit(128 + number);
            }
        }
    }
}

/// Ends the process when a stop takes too long, whatever its other threads do. Its thread is started with the command, and
/// waits for nothing but the time.
#[derive(Debug)]
pub(crate) struct EndTimer(SyncSender<Duration>);

impl EndTimer {
    pub(crate) fn start() -> io::Result<Self> {
        let (sender, armed) = sync_channel(1);
        thread::Builder::new().name("mempool-end".into()).spawn(move || {
            // An error is a timer that was dropped: the command has ended in time.
            if let Ok(limit) = armed.recv() {
                thread::sleep(limit);
                process::exit(1);
            }
        })?;
        Ok(Self(sender))
    }

    /// From now on the process lives for at most this time.
    pub(crate) fn arm(&self, limit: Duration) {
        // Full only if it is armed already.
        let _ = self.0.try_send(limit);
    }
}
