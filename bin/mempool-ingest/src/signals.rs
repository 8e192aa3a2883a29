//! Listens to the signals that end the command, and ends the process when a stop takes too long.

use std::{
    io, process,
    sync::mpsc::{SyncSender, sync_channel},
    thread,
    time::{Duration, Instant},
};

use futures::future::select_all;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// A second signal within this time belongs to the same request: shells, `timeout` and systemd send
/// two.
const SAME_REQUEST: Duration = Duration::from_millis(500);

/// The signals that end the command: SIGTERM from systemd and `docker stop`, SIGINT from Ctrl-C,
/// and SIGHUP from a terminal that is closed. While this exists, none of them ends the process at
/// once.
#[derive(Debug)]
pub(crate) struct Signals(Vec<(SignalKind, Signal)>);

impl Signals {
    /// Starts listening. Must be called in a tokio runtime.
    ///
    /// # Errors
    /// The operating system refuses a handler.
    pub(crate) fn listen() -> io::Result<Self> {
        let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
        let all = kinds.into_iter().map(|kind| Ok((kind, signal(kind)?)));
        Ok(Self(all.collect::<io::Result<_>>()?))
    }

    /// Waits for the next signal and returns its number.
    ///
    /// # Cancel safety
    /// No signal is lost when the future is dropped.
    pub(crate) async fn next(&mut self) -> i32 {
        let each = self.0.iter_mut().map(|(kind, signal)| {
            Box::pin(async {
                signal.recv().await;
                kind.as_raw_value()
            })
        });
        select_all(each).await.0
    }

    /// During a stop, exits the process at the second signal, with the exit code that the signal
    /// has by default. `is_stopped_by_signal` says whether the first one has already requested the
    /// stop.
    pub(crate) async fn exit_at_second(mut self, is_stopped_by_signal: bool) {
        if !is_stopped_by_signal {
            self.next().await;
        }
        let first = Instant::now();
        loop {
            let number = self.next().await;
            if first.elapsed() > SAME_REQUEST {
                process::exit(128 + number);
            }
        }
    }
}

/// Exits the process when a stop takes too long, whatever its other threads do. Its thread is
/// started with the command, so that a stop need not start one.
#[derive(Debug)]
pub(crate) struct EndTimer(SyncSender<Duration>);

impl EndTimer {
    pub(crate) fn start() -> io::Result<Self> {
        let (sender, armed) = sync_channel(1);
        thread::Builder::new().name("mempool-end".into()).spawn(move || {
            // An error means that the timer was dropped: the command has ended in time.
            if let Ok(limit) = armed.recv() {
                thread::sleep(limit);
                process::exit(1);
            }
        })?;
        Ok(Self(sender))
    }

    /// Exits the process after this time.
    pub(crate) fn arm(&self, limit: Duration) {
        // The channel is full only if the timer is armed already.
        let _ = self.0.try_send(limit);
    }
}
