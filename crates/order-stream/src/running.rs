//! What a publisher and a source have in common: a thread with a runtime, on which connections are opened one after the
//! other until it is told to stop.

use std::{
    collections::VecDeque,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use load_control::Backoff;
use metrics::Gauge;
use rand::seq::SliceRandom as _;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use crate::{
    clock::ClockOffset,
    config::ServerConfig,
    error::StreamError,
    link::{Link, state_of},
    state::State,
};

/// Before the next connection, if there is none.
const BACKOFF: Backoff = Backoff { base: Duration::from_millis(250), cap: Duration::from_secs(10) };

/// While a server can be reached, and its stream cannot be used: orders wait for it.
pub(crate) const CONNECTED_BACKOFF: Backoff =
    Backoff { base: Duration::from_millis(250), cap: Duration::from_secs(1) };

/// A connection that has lasted this long resets the backoff.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// How much later than its deadline a thread may say that it has ended.
const GRACE: Duration = Duration::from_millis(200);

/// A publisher or a source that runs on a thread of its own: see [`Publisher`](crate::Publisher) and
/// [`Source`](crate::Source). Dropping it stops it without waiting.
pub struct Running<S> {
    stop: watch::Sender<Option<Duration>>,
    state: watch::Receiver<State>,
    pub(crate) unstored: Unstored,
    stats: Arc<dyn Fn() -> S + Send + Sync>,
}

/// The end of a publisher or a source.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct End<S> {
    /// [`State::Ended`], or [`State::Failed`] if its thread has panicked; another one if it has not ended in time.
    pub state: State,
    /// The counts.
    pub stats: S,
}

impl<S> Running<S> {
    /// The present state.
    #[must_use]
    pub fn state(&self) -> State {
        *self.state.borrow()
    }

    /// The present state and its changes. Ends with [`State::Ended`] or [`State::Failed`].
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<State> {
        self.state.clone()
    }

    /// The counts so far.
    #[must_use]
    pub fn stats(&self) -> S {
        (self.stats)()
    }

    /// Stops. A source ends after the message that it processes. A publisher publishes what the pool holds now and waits
    /// for the acknowledgements, at most until the deadline, also for a server or a leader that is not there; without
    /// rights or without a stream it ends at once.
    ///
    /// # Cancel safety
    /// If the future is dropped, the thread still ends before the deadline.
    pub async fn shutdown(mut self, deadline: Duration) -> End<S> {
        self.stop.send_replace(Some(deadline));
        let ended = self.state.wait_for(|state| matches!(state, State::Ended | State::Failed));
        // The state says whether it has ended.
        let _ = timeout(deadline.saturating_add(GRACE), ended).await;
        End { state: self.state(), stats: self.stats() }
    }

    pub(crate) fn spawn(
        thread_name: &str,
        server: ServerConfig,
        name: String,
        shown: Shown,
        stats: impl Fn() -> S + Send + Sync + 'static,
        mut session: impl Session,
    ) -> Result<Self, StreamError> {
        let thread_error = |source| StreamError::Io { action: "start a thread", source };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(thread_error)?;
        let (stop, stopped) = watch::channel(None);
        let (state, stopped) = (shown.state.subscribe(), Stop(stopped));
        let unstored = shown.unstored.clone();
        let body = move || {
            let last = last_state(|| {
                runtime.block_on(async {
                    let mut stop = stopped.clone();
                    let deadline = async {
                        stop.wait().await;
                        let limit = stop.0.borrow().unwrap_or_default();
                        sleep(limit).await;
                    };
                    // What is done already wins.
                    tokio::select! {
                        biased;
                        () = connect(&mut session, &server, &name, &shown, stopped) => {}
                        () = deadline => {}
                    }
                });
                drop(session);
            });
            // Connections that are still closing are not waited for.
            runtime.shutdown_background();
            shown.set(last);
        };
        thread::Builder::new().name(thread_name.into()).spawn(body).map_err(thread_error)?;
        Ok(Self { stop, state, unstored, stats: Arc::new(stats) })
    }
}

impl<S> fmt::Debug for Running<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").field("state", &self.state()).finish_non_exhaustive()
    }
}

/// The state of a publisher or a source, as others see it.
#[derive(Clone)]
pub(crate) struct Shown {
    state: watch::Sender<State>,
    gauge: Gauge,
    clock_offset: Gauge,
    /// Whether the clock differed when it was last compared.
    is_clock_off: Arc<AtomicBool>,
    pub(crate) unstored: Unstored,
    side: &'static str,
    flow: &'static str,
}

impl Shown {
    pub(crate) fn new(
        gauge: Gauge,
        clock_offset: Gauge,
        side: &'static str,
        flow: &'static str,
    ) -> Self {
        gauge.set(State::Connecting.code());
        let (state, is_clock_off) = (watch::channel(State::Connecting).0, Arc::default());
        let unstored = Unstored::default();
        Self { state, gauge, clock_offset, is_clock_off, unstored, side, flow }
    }

    pub(crate) fn note_offset(&self, offset: ClockOffset) {
        let seconds = offset.seconds();
        self.clock_offset.set(seconds);
        // Relaxed: one thread writes and reads it.
        let was_off = self.is_clock_off.swap(offset.is_large(), Ordering::Relaxed);
        if offset.is_large() && !was_off {
            tracing::warn!(
                seconds,
                flow = self.flow,
                "this machine's clock differs from the server's"
            );
        }
    }

    pub(crate) fn get(&self) -> State {
        *self.state.borrow()
    }

    pub(crate) fn set(&self, state: State) {
        if self.get() != state {
            tracing::info!(%state, flow = self.flow, "{}", self.side);
            self.gauge.set(state.code());
            if matches!(state, State::Ended | State::Failed) {
                self.unstored.fail();
            }
            self.state.send_replace(state);
        }
    }
}

/// Since when nothing can be stored, or something waits and nothing was stored.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unstored(Arc<Mutex<UnstoredState>>);

#[derive(Clone, Copy, Debug, Default)]
enum UnstoredState {
    /// Before the first connection and after the end.
    #[default]
    Always,
    Since(Instant),
    /// All is stored.
    No,
}

impl Unstored {
    fn state(&self) -> MutexGuard<'_, UnstoredState> {
        // Nothing panics while it is locked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something waits, or nothing can be stored, since now if not for longer.
    pub(crate) fn begin(&self, now: Instant) {
        let mut state = self.state();
        if matches!(*state, UnstoredState::No) {
            *state = UnstoredState::Since(now);
        }
    }

    /// Something was stored: what waits still waits since then.
    pub(crate) fn restart(&self, now: Instant) {
        *self.state() = UnstoredState::Since(now);
    }

    pub(crate) fn end(&self) {
        *self.state() = UnstoredState::No;
    }

    /// Nothing will be stored any more.
    fn fail(&self) {
        *self.state() = UnstoredState::Always;
    }

    /// For how long.
    pub(crate) fn duration(&self) -> Option<Duration> {
        match *self.state() {
            UnstoredState::Always => Some(Duration::MAX),
            UnstoredState::Since(begin) => Some(begin.elapsed()),
            UnstoredState::No => None,
        }
    }
}

/// Whether it is to stop: it was told to, with a deadline, or its handle was dropped.
#[derive(Clone, Debug)]
pub(crate) struct Stop(watch::Receiver<Option<Duration>>);

impl Stop {
    pub(crate) fn is_set(&self) -> bool {
        self.0.borrow().is_some() || self.0.has_changed().is_err()
    }

    pub(crate) async fn wait(&mut self) {
        // An error says that the handle was dropped.
        let _ = self.0.wait_for(Option::is_some).await;
    }
}

/// What is done over each connection.
pub(crate) trait Session: Send + 'static {
    /// A connection was opened. Returns when it is lost or given up, with the state from then on, or after `stop` is set
    /// and everything is done.
    fn connected(&mut self, link: &Link, stop: Stop) -> impl Future<Output = State>;

    /// Whether another connection is needed after it was told to stop.
    fn has_more(&self) -> bool {
        false
    }
}

fn last_state(run: impl FnOnce()) -> State {
    if catch_unwind(AssertUnwindSafe(run)).is_ok() {
        return State::Ended;
    }
    tracing::error!("the thread has panicked");
    State::Failed
}

/// Opens one connection after the other, until it is to stop and has no more to do. After a failure the next server is
/// tried at once; when all have failed in a row, after a backoff.
async fn connect(
    session: &mut impl Session,
    server: &ServerConfig,
    name: &str,
    shown: &Shown,
    mut stop: Stop,
) {
    let Ok(addresses) = server.addresses() else {
        unreachable!("the configuration was checked at the start")
    };
    // In any order, so that the servers share the load. The one that failed goes last.
    let mut addresses = VecDeque::from(addresses);
    addresses.make_contiguous().shuffle(&mut rand::rng());
    let (mut attempt, mut failed_in_a_row) = (0, 0);
    loop {
        let (began, is_stopping) = (Instant::now(), stop.is_set());
        shown.set(State::Connecting);
        let opened = tokio::select! {
            biased;
            () = stop.wait(), if !session.has_more() => return,
            opened = Link::open(server, addresses[0].clone(), name) => opened,
        };
        let end = match opened {
            Ok(link) => session.connected(&link, stop.clone()).await,
            Err(error) => {
                tracing::warn!(%error, "cannot connect");
                state_of(&error)
            }
        };
        let is_passing = matches!(end, State::Disconnected { .. } | State::Unavailable);
        if stop.is_set() && !(is_passing && session.has_more()) {
            return;
        }
        shown.set(end);
        if began.elapsed() > STABLE_AFTER {
            (attempt, failed_in_a_row) = (0, 0);
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
            // Once more at once.
            () = stop.wait(), if !is_stopping => {}
            () = sleep(backoff.random_delay(attempt)) => attempt = attempt.saturating_add(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_state_tells_an_end_from_a_panic() {
        assert_eq!(last_state(|| ()), State::Ended);
        assert_eq!(last_state(|| panic!("a bug")), State::Failed);
    }
}
