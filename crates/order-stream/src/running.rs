//! What a publisher and a source have in common: a thread with a runtime, on which connections are opened one after the
//! other until it is told to stop.

use std::{
    thread,
    time::{Duration, Instant},
};

use load_control::Backoff;
use metrics::Gauge;
use tokio::{
    sync::{oneshot, watch},
    time::{sleep, sleep_until, timeout},
};

use crate::{
    config::ServerConfig,
    error::StreamError,
    link::{Link, state_of},
    state::{EndGuard, State},
};

/// Before the next connection.
const BACKOFF: Backoff = Backoff { base: Duration::from_millis(250), cap: Duration::from_secs(10) };

/// Between attempts over a connection that works: they cost the server little, and orders wait for them.
pub(crate) const CONNECTED_BACKOFF: Backoff =
    Backoff { base: Duration::from_millis(250), cap: Duration::from_secs(1) };

/// A connection, or an attempt over one, that has lasted as long resets the backoff.
pub(crate) const STABLE_AFTER: Duration = Duration::from_secs(10);

/// Longer deadlines of a shutdown are cut: the clock may not go as far.
const LONGEST_STOP: Duration = Duration::from_hours(24);

/// How much later than its deadline a thread may say that it has ended.
const GRACE: Duration = Duration::from_millis(200);

/// The state of a publisher or a source, as others see it.
pub(crate) struct Shown {
    state: watch::Sender<State>,
    gauge: Gauge,
    side: &'static str,
    flow: &'static str,
}

impl Shown {
    pub(crate) fn new(gauge: Gauge, side: &'static str, flow: &'static str) -> Self {
        gauge.set(State::Connecting.code());
        Self { state: watch::channel(State::Connecting).0, gauge, side, flow }
    }

    pub(crate) fn get(&self) -> State {
        *self.state.borrow()
    }

    pub(crate) fn set(&self, state: State) {
        let changed = self.state.send_if_modified(|now| std::mem::replace(now, state) != state);
        if changed {
            tracing::info!(%state, flow = self.flow, "{}", self.side);
            self.gauge.set(state.code());
        }
    }
}

/// Whether it is to stop.
#[derive(Clone, Debug)]
pub(crate) struct Stop(watch::Receiver<bool>);

impl Stop {
    pub(crate) fn is_set(&self) -> bool {
        *self.0.borrow()
    }

    pub(crate) async fn wait(&mut self) {
        // Its sender lives as long as what waits.
        let _ = self.0.wait_for(|stop| *stop).await;
    }
}

/// What is done over each connection.
pub(crate) trait Session: Send + 'static {
    fn shown(&self) -> &Shown;

    /// A connection was opened. Returns when it is lost or given up, with the state from then on, or after `stop` is set
    /// and everything is done.
    fn connected(&mut self, link: &Link, stop: Stop) -> impl Future<Output = State>;
}

/// A running thread. Dropping it stops the thread without waiting.
#[derive(Debug)]
pub(crate) struct Running {
    stop: Option<oneshot::Sender<Duration>>,
    ended: oneshot::Receiver<()>,
    pub(crate) state: watch::Receiver<State>,
}

impl Running {
    pub(crate) fn start(
        thread_name: &str,
        server: ServerConfig,
        name: String,
        mut session: impl Session,
    ) -> Result<Self, StreamError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|source| StreamError::Thread { source })?;
        let state = session.shown().state.subscribe();
        let (stop, stopping) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let body = move || {
            let (last, gauge) = (session.shown().state.clone(), session.shown().gauge.clone());
            let guard = EndGuard(|state: State| {
                gauge.set(state.code());
                last.send_replace(state);
            });
            runtime.block_on(async {
                let (stop, stopped) = watch::channel(false);
                // What is done already wins.
                tokio::select! {
                    biased;
                    () = connect(&mut session, &server, &name, Stop(stopped)) => {}
                    () = deadline(stopping, &stop) => {}
                }
            });
            drop(session);
            // Connections that are still closing are not waited for.
            runtime.shutdown_background();
            drop(guard);
            // If the handle was dropped, nothing waits for the end.
            let _ = end.send(());
        };
        thread::Builder::new()
            .name(thread_name.into())
            .spawn(body)
            .map_err(|source| StreamError::Thread { source })?;
        Ok(Self { stop: Some(stop), ended, state })
    }

    /// Stops the thread. Returns its last state, and whether it has ended in time.
    pub(crate) async fn shutdown(mut self, deadline: Duration) -> (State, bool) {
        if let Some(stop) = self.stop.take() {
            // Closed only if the thread has panicked.
            let _ = stop.send(deadline);
        }
        let ended = timeout(deadline.saturating_add(GRACE), &mut self.ended).await.is_ok();
        (*self.state.borrow(), ended)
    }
}

/// Tells of a stop when it comes, and waits until its deadline.
async fn deadline(stopping: oneshot::Receiver<Duration>, stop: &watch::Sender<bool>) {
    let deadline = Instant::now() + stopping.await.unwrap_or_default().min(LONGEST_STOP);
    stop.send_replace(true);
    sleep_until(deadline.into()).await;
}

/// Opens one connection after the other, until it is to stop. Then it ends at once if it has none.
async fn connect(session: &mut impl Session, server: &ServerConfig, name: &str, mut stop: Stop) {
    let mut attempt = 0;
    loop {
        session.shown().set(State::Connecting);
        let began = Instant::now();
        let opened = tokio::select! {
            biased;
            () = stop.wait() => return,
            opened = Link::open(server, name) => opened,
        };
        let end = match opened {
            Ok(link) => session.connected(&link, stop.clone()).await,
            Err(error) => {
                tracing::warn!(%error, "cannot connect");
                state_of(&error)
            }
        };
        if stop.is_set() {
            return;
        }
        session.shown().set(end);
        attempt = if began.elapsed() > STABLE_AFTER { 0 } else { attempt };
        let pause = BACKOFF.random_delay(attempt);
        attempt = attempt.saturating_add(1);
        tokio::select! {
            biased;
            () = stop.wait() => return,
            () = sleep(pause) => {}
        }
    }
}
