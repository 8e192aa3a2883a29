//! Runs a publisher or a source: a thread with a runtime, on which one connection after the other
//! is opened until it is stopped.

use std::{
    collections::VecDeque,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use load_control::Backoff;
use metrics::Gauge;
use parking_lot::Mutex;
use rand::seq::SliceRandom as _;
use tokio::{
    runtime::Runtime,
    sync::watch,
    time::{sleep, timeout},
};

use crate::{
    clock::ClockOffset,
    config::ServerConfig,
    connection::{Connection, state_for_connect_error},
    error::StreamError,
    state::State,
};

/// The pause before the next round of attempts after no server could be used.
const BACKOFF: Backoff = Backoff { base: Duration::from_millis(250), cap: Duration::from_secs(10) };

/// The same while a server can be reached but its stream cannot be used. It is shorter, because
/// orders wait for the stream.
const CONNECTED_BACKOFF: Backoff =
    Backoff { base: Duration::from_millis(250), cap: Duration::from_secs(1) };

/// A connection that has lasted this long resets the backoff.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// How long [`Worker::shutdown`] waits beyond its deadline for the thread to report its end.
const SHUTDOWN_GRACE: Duration = Duration::from_millis(200);

/// A publisher or a source, which runs on a thread of its own. See [`Publisher`](crate::Publisher)
/// and [`Source`](crate::Source). Dropping it stops it without waiting.
pub struct Worker<S> {
    stop: watch::Sender<Option<Duration>>,
    state: watch::Receiver<State>,
    pub(crate) unstored: UnstoredSince,
    stats: Arc<dyn Fn() -> S + Send + Sync>,
}

/// How a publisher or a source ended.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct End<S> {
    /// [`State::Ended`], or [`State::Failed`] if its thread panicked, or any other state if it has
    /// not ended before the deadline.
    pub state: State,
    /// The final counts.
    pub stats: S,
}

impl<S> Worker<S> {
    /// Returns the current state.
    #[must_use]
    pub fn state(&self) -> State {
        *self.state.borrow()
    }

    /// Returns a receiver of the current state and its changes. The last state is [`State::Ended`]
    /// or [`State::Failed`].
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<State> {
        self.state.clone()
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn stats(&self) -> S {
        (self.stats)()
    }

    /// Stops the publisher or the source.
    ///
    /// A source ends after the message that it is processing. A publisher first publishes what the
    /// pool holds now and waits for the acknowledgements, for at most `deadline`, even if the
    /// server or the stream's leader is away. Without rights or without a stream it ends at once.
    ///
    /// # Cancel safety
    /// If the future is dropped, the thread still ends before the deadline.
    pub async fn shutdown(mut self, deadline: Duration) -> End<S> {
        self.stop.send_replace(Some(deadline));
        let ended = self.state.wait_for(|state| matches!(state, State::Ended | State::Failed));
        // A timeout needs no handling: the returned state says whether the thread has ended.
        let _ = timeout(deadline.saturating_add(SHUTDOWN_GRACE), ended).await;
        End { state: self.state(), stats: self.stats() }
    }

    pub(crate) fn spawn(
        thread_name: &str,
        server: ServerConfig,
        name: String,
        status: Status,
        stats: impl Fn() -> S + Send + Sync + 'static,
        task: impl Task,
    ) -> Result<Self, StreamError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(thread_error)?;
        let (stop, stop_receiver) = watch::channel(None);
        let stop_receiver = Stop(stop_receiver);
        let state = status.state.subscribe();
        let unstored = status.unstored.clone();
        thread::Builder::new()
            .name(thread_name.into())
            .spawn(move || run_thread(runtime, task, &server, &name, &status, stop_receiver))
            .map_err(thread_error)?;
        Ok(Self { stop, state, unstored, stats: Arc::new(stats) })
    }
}

impl<S> fmt::Debug for Worker<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("state", &self.state()).finish_non_exhaustive()
    }
}

fn thread_error(source: std::io::Error) -> StreamError {
    StreamError::Io { action: "start a thread", source }
}

/// The body of the thread. It ends when the task is done, or at the deadline of the stop.
fn run_thread(
    runtime: Runtime,
    mut task: impl Task,
    server: &ServerConfig,
    name: &str,
    status: &Status,
    stop: Stop,
) {
    let last_state = catch_panic(|| {
        runtime.block_on(async {
            let mut stop_for_deadline = stop.clone();
            let deadline = async {
                stop_for_deadline.wait().await;
                let limit = stop_for_deadline.0.borrow().unwrap_or_default();
                sleep(limit).await;
            };
            tokio::select! {
                // A task that is done at the deadline counts as done.
                biased;
                () = connect_repeatedly(&mut task, server, name, status, stop) => {}
                () = deadline => {}
            }
        });
        drop(task);
    });
    // Connections that are still closing are not waited for.
    runtime.shutdown_background();
    status.set(last_state);
}

/// Runs a closure and returns the last state: ended, or failed if it panicked.
fn catch_panic(run: impl FnOnce()) -> State {
    if catch_unwind(AssertUnwindSafe(run)).is_ok() {
        return State::Ended;
    }
    tracing::error!("the thread has panicked: this is a bug, report the log and restart");
    State::Failed
}

/// Reports the state of a publisher or a source to its users, to the metrics and to the log.
#[derive(Clone)]
pub(crate) struct Status {
    state: watch::Sender<State>,
    state_gauge: Gauge,
    clock_offset_gauge: Gauge,
    /// Whether the offset was large at the latest measurement, so that the log has one line each
    /// time that it becomes large.
    is_clock_off: Arc<AtomicBool>,
    pub(crate) unstored: UnstoredSince,
    side: &'static str,
    flow: &'static str,
}

impl Status {
    pub(crate) fn new(
        state_gauge: Gauge,
        clock_offset_gauge: Gauge,
        side: &'static str,
        flow: &'static str,
    ) -> Self {
        state_gauge.set(State::Connecting.code());
        let (state, _) = watch::channel(State::Connecting);
        Self {
            state,
            state_gauge,
            clock_offset_gauge,
            is_clock_off: Arc::default(),
            unstored: UnstoredSince::default(),
            side,
            flow,
        }
    }

    /// Reports the offset in seconds, positive if this machine's clock is ahead; 0 if the server
    /// sends no time. Warns each time it becomes large.
    pub(crate) fn record_clock_offset(&self, offset: ClockOffset) {
        let offset_seconds = offset.seconds();
        self.clock_offset_gauge.set(offset_seconds);
        // Relaxed: only the worker's thread reads and writes it.
        let was_off = self.is_clock_off.swap(offset.is_large(), Ordering::Relaxed);
        if offset.is_large() && !was_off {
            tracing::warn!(
                offset_seconds,
                flow = self.flow,
                "this machine's clock differs from the server's by more than 100 ms: check NTP"
            );
        }
    }

    pub(crate) fn get(&self) -> State {
        *self.state.borrow()
    }

    pub(crate) fn set(&self, state: State) {
        if self.get() != state {
            tracing::info!(%state, flow = self.flow, "{}", self.side);
            self.state_gauge.set(state.code());
            if matches!(state, State::Ended | State::Failed) {
                self.unstored.close();
            }
            self.state.send_replace(state);
        }
    }
}

/// Measures for how long a publisher has stored nothing although something waits, or has had no
/// usable connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnstoredSince(Arc<Mutex<Unstored>>);

#[derive(Clone, Copy, Debug, Default)]
enum Unstored {
    /// Nothing was ever stored, or nothing will be: before the first connection and after the end.
    #[default]
    Always,
    Since(Instant),
    /// The stream has everything.
    No,
}

impl UnstoredSince {
    /// Something waits, or nothing can be stored. The time runs from now unless it runs already.
    pub(crate) fn begin(&self, now: Instant) {
        let mut state = self.0.lock();
        if matches!(*state, Unstored::No) {
            *state = Unstored::Since(now);
        }
    }

    /// The stream has stored something. The time starts again for messages that still wait.
    pub(crate) fn restart(&self, now: Instant) {
        *self.0.lock() = Unstored::Since(now);
    }

    /// The stream has everything.
    pub(crate) fn end(&self) {
        *self.0.lock() = Unstored::No;
    }

    /// The worker has ended, so nothing will be stored any more.
    fn close(&self) {
        *self.0.lock() = Unstored::Always;
    }

    /// Returns for how long nothing was stored; `None` if the stream has everything.
    pub(crate) fn duration(&self) -> Option<Duration> {
        match *self.0.lock() {
            Unstored::Always => Some(Duration::MAX),
            Unstored::Since(begin) => Some(begin.elapsed()),
            Unstored::No => None,
        }
    }
}

/// The request to stop: [`Worker::shutdown`] with its deadline, or the drop of the worker.
#[derive(Clone, Debug)]
pub(crate) struct Stop(watch::Receiver<Option<Duration>>);

impl Stop {
    pub(crate) fn is_set(&self) -> bool {
        self.0.borrow().is_some() || self.0.has_changed().is_err()
    }

    pub(crate) async fn wait(&mut self) {
        // An error says that the worker was dropped, which is a stop too.
        let _ = self.0.wait_for(Option::is_some).await;
    }
}

/// The work that a publisher or a source does over each connection.
pub(crate) trait Task: Send + 'static {
    /// Works over a connection. Returns when the connection is lost or given up, with the state
    /// from then on, or after `stop` is set and everything is done.
    fn run(&mut self, connection: &Connection, stop: Stop) -> impl Future<Output = State>;

    /// An attempt to connect has failed.
    fn on_connect_failed(&mut self) {}

    /// Whether another connection is needed although `stop` is set.
    fn has_unfinished_work(&self) -> bool {
        false
    }
}

/// Opens one connection after the other, until the task is stopped and has no unfinished work.
/// After a failure the next server is tried at once; after all have failed in a row there is a
/// pause.
async fn connect_repeatedly(
    task: &mut impl Task,
    server: &ServerConfig,
    name: &str,
    status: &Status,
    mut stop: Stop,
) {
    let Ok(addresses) = server.addresses() else {
        unreachable!("the configuration was checked at the start")
    };
    // A random order, so that the servers share the load. A server that failed goes last.
    let mut addresses = VecDeque::from(addresses);
    addresses.make_contiguous().shuffle(&mut rand::rng());
    let mut attempt = 0;
    let mut failed_in_a_row = 0;
    loop {
        let began = Instant::now();
        let is_stopping = stop.is_set();
        status.set(State::Connecting);
        let opened = tokio::select! {
            biased;
            () = stop.wait(), if !task.has_unfinished_work() => return,
            opened = Connection::open(server, addresses[0].clone(), name) => opened,
        };
        let end = match opened {
            Ok(connection) => task.run(&connection, stop.clone()).await,
            Err(error) => {
                tracing::warn!(%error, "cannot connect to the NATS server");
                task.on_connect_failed();
                state_for_connect_error(&error)
            }
        };
        let is_temporary = matches!(end, State::Disconnected { .. } | State::Unavailable);
        if stop.is_set() && !(is_temporary && task.has_unfinished_work()) {
            return;
        }
        status.set(end);
        if began.elapsed() > STABLE_AFTER {
            attempt = 0;
            failed_in_a_row = 0;
        }
        if matches!(end, State::Disconnected { .. } | State::Unavailable | State::Denied) {
            addresses.rotate_left(1);
            failed_in_a_row += 1;
            if failed_in_a_row < addresses.len() {
                continue;
            }
        }
        failed_in_a_row = 0;
        let backoff = match end {
            State::Disconnected { .. } | State::Denied => BACKOFF,
            _ => CONNECTED_BACKOFF,
        };
        tokio::select! {
            biased;
            // A stop during the pause ends it, so that the rest is published before the deadline.
            () = stop.wait(), if !is_stopping => {}
            () = sleep(backoff.random_delay(attempt)) => attempt = attempt.saturating_add(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_the_thread_is_reported_as_failed() {
        assert_eq!(catch_panic(|| ()), State::Ended);
        assert_eq!(catch_panic(|| panic!("a bug")), State::Failed);
    }
}
