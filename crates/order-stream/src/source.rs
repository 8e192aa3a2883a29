//! The thread that reads a stream and feeds a pool.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use async_nats::jetstream::{
    ErrorCode, Message,
    consumer::{AckPolicy, Consumer, DeliverPolicy, ReplayPolicy, pull},
    stream::{ConsumerErrorKind, Info},
};
use futures::StreamExt as _;
use order_pool::OrderPool;
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval, sleep, timeout},
};

use crate::{
    config::SourceConfig,
    deliver::Deliverer,
    error::StreamError,
    link::{Link, Silence},
    metrics::{SourceCounters, SourceStats},
    position::{Extent, Place, Position, Step},
    running::{CONNECTED_BACKOFF, Running, STABLE_AFTER, Session, Shown, Stop},
    state::State,
    subjects::stream_name,
};

/// Messages of one pull request. The client holds at most two: it sends the next when half of one is left.
const PULL: usize = 2_000;

/// Bytes of one pull request, unless a message may be longer: the server answers none that is smaller than the next message.
const PULL_BYTES: usize = 8 << 20;

/// Added to the longest payload: subjects, which have at most 4 KiB, and what the server adds.
const HEAD_BYTES: usize = 8 << 10;

/// How long a pull request waits for messages.
const PULL_EXPIRES: Duration = Duration::from_secs(30);

/// The server says as often that a consumer without messages is alive. Without a sign for twice as long, as when the
/// server that holds the consumer was killed, another is made.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// After which the server forgets a consumer that nobody reads.
const INACTIVE: Duration = Duration::from_secs(60);

/// How long the deletion of an earlier consumer is waited for. One that a dead server held is deleted without a response.
const DELETE_TIMEOUT: Duration = Duration::from_millis(500);

/// How often the stream is compared with the one that it was.
const CHECK_EVERY: Duration = Duration::from_secs(5);

/// Above as many messages that are not read, the source is [`State::Lagging`]: five seconds at 2,000/s.
const LAG_MESSAGES: u64 = 10_000;

/// Feeds a pool from the stream of a flow: what it holds, then every new message, in its order. Dropping it stops it
/// without waiting.
///
/// A hole in what is delivered is read again; what the stream no longer has is counted. Every outcome is counted in
/// [`SourceStats`].
#[derive(Debug)]
pub struct Source {
    running: Running,
    counters: Arc<SourceCounters>,
}

/// The end of a [`Source`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SourceEnd {
    /// [`State::Ended`], or [`State::Failed`] if its thread has panicked; another one if it has not ended in time.
    pub state: State,
    /// The counts.
    pub stats: SourceStats,
    /// Whether its thread ended before the deadline.
    pub ended: bool,
}

impl Source {
    /// Starts feeding the pool.
    ///
    /// # Errors
    /// The configuration is out of bounds, or the thread cannot be started.
    pub fn start(pool: &OrderPool, config: SourceConfig) -> Result<Self, StreamError> {
        config.validate()?;
        let SourceConfig { server, flow, chain_id, name, heads } = config;
        let counters = Arc::new(SourceCounters::of(flow));
        let reader = Reader {
            stream: stream_name(flow, chain_id),
            name: name.clone(),
            position: Position::default(),
            shown: Shown::new(counters.state[0].clone(), "source", flow.as_str()),
            counters: Arc::clone(&counters),
            deliverer: Deliverer {
                pool: pool.clone(),
                flow,
                chain_id,
                heads,
                counters: Arc::clone(&counters),
            },
        };
        let running = Running::start("order-stream-source", server, name, reader)?;
        Ok(Self { running, counters })
    }

    /// The present state.
    #[must_use]
    pub fn state(&self) -> State {
        *self.running.state.borrow()
    }

    /// The present state and its changes. Ends with [`State::Ended`] or [`State::Failed`].
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<State> {
        self.running.state.clone()
    }

    /// The counts so far.
    #[must_use]
    pub fn stats(&self) -> SourceStats {
        self.counters.stats()
    }

    /// Stops after the message that is being processed, for which it waits at most until the deadline.
    ///
    /// # Cancel safety
    /// If it is dropped, the source still ends.
    pub async fn shutdown(self, deadline: Duration) -> SourceEnd {
        let (state, ended) = self.running.shutdown(deadline).await;
        SourceEnd { state, stats: self.counters.stats(), ended }
    }
}

/// The source on its thread.
struct Reader {
    stream: String,
    name: String,
    position: Position,
    shown: Shown,
    counters: Arc<SourceCounters>,
    deliverer: Deliverer,
}

impl Session for Reader {
    fn shown(&self) -> &Shown {
        &self.shown
    }

    async fn connected(&mut self, link: &Link, mut stop: Stop) -> State {
        self.counters.connects[0].add(1);
        // It can be left at any point: a message is delivered and counted without a wait in between.
        tokio::select! {
            biased;
            () = stop.wait() => State::Ended,
            // What the client still holds is read again.
            reason = link.lost() => State::Disconnected { reason },
            state = self.read(link) => state,
        }
    }
}

impl Reader {
    /// Reads with one consumer after the other, until none has been available for long: another server may be better
    /// connected.
    async fn read(&mut self, link: &Link) -> State {
        let (mut attempt, mut silence) = (0, Silence::default());
        loop {
            let began = Instant::now();
            let Err(state) = self.consume(link).await;
            self.shown.set(state);
            if began.elapsed() > STABLE_AFTER {
                (attempt, silence) = (0, Silence::default());
            }
            if silence.note(state != State::Unavailable, Instant::now()) {
                return state;
            }
            sleep(CONNECTED_BACKOFF.random_delay(attempt)).await;
            attempt = attempt.saturating_add(1);
        }
    }

    /// Reads with a consumer until it fails.
    async fn consume(&mut self, link: &Link) -> Result<std::convert::Infallible, State> {
        let extent = extent(link.stream(&self.stream).await?.cached_info());
        match self.position.begin(&extent) {
            Some(missed) => self.counters.missed.add(missed),
            None => {
                tracing::warn!(stream = self.stream, "another stream, or it has lost its end");
                self.counters.resets.add(1);
            }
        }
        let consumer = self.consumer(link).await?;
        let mut pending = consumer.cached_info().num_pending;
        self.show(State::CatchingUp, pending);
        let longest = link.client.max_payload().saturating_add(HEAD_BYTES);
        let messages = consumer
            .stream()
            .max_messages_per_batch(PULL)
            .max_bytes_per_batch(PULL_BYTES.max(longest))
            .expires(PULL_EXPIRES)
            .heartbeat(HEARTBEAT)
            .messages();
        let mut messages = messages.await.map_err(|_| State::Unavailable)?;
        let mut check = interval(CHECK_EVERY);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        check.reset();
        loop {
            // In turn: a stream that never ends may not keep the check away. Nothing is lost by a branch that is dropped.
            tokio::select! {
                message = messages.next() => {
                    let message = match message {
                        Some(Ok(message)) => message,
                        Some(Err(error)) => {
                            tracing::warn!(%error, stream = self.stream, "reading ended");
                            return Err(self.why_it_ended(link));
                        }
                        None => return Err(State::Unavailable),
                    };
                    pending = self.deliver(message)?;
                    self.show(self.shown.get(), pending);
                }
                _ = check.tick() => {
                    let found = link.stream(&self.stream).await?;
                    if self.position.is_other(&self::extent(found.cached_info())) {
                        return Err(State::CatchingUp);
                    }
                }
            }
        }
    }

    /// Processes a message, unless something is missing before it. Returns how many the stream holds behind it.
    fn deliver(&mut self, message: Message) -> Result<u64, State> {
        let info = message.info().map_err(|error| {
            tracing::warn!(%error, stream = self.stream, "a message without a sequence number");
            State::Unavailable
        })?;
        let (sequence, pending) = (info.stream_sequence, info.pending);
        let place = Place {
            sequence,
            delivery: info.consumer_sequence,
            stored: info.published.unix_timestamp_nanos(),
        };
        match self.position.on(place) {
            Step::Latest => {}
            Step::Deliver { missed } => {
                if missed > 0 {
                    tracing::warn!(
                        stream = self.stream,
                        sequence,
                        missed,
                        "messages left the stream unread"
                    );
                    self.counters.missed.add(missed);
                }
                self.deliverer.message(&message, SystemTime::now());
            }
            Step::Hole => {
                tracing::warn!(stream = self.stream, sequence, "a hole before this message");
                return Err(State::CatchingUp);
            }
            Step::Refilled => {
                tracing::warn!(stream = self.stream, sequence, "another message is in its place");
                self.counters.resets.add(1);
                return Err(State::CatchingUp);
            }
        }
        Ok(pending)
    }

    fn show(&self, state: State, pending: u64) {
        self.counters.behind.set(pending);
        self.shown.set(state_behind(state, pending));
    }

    /// The state after a consumer brought nothing.
    fn why_it_ended(&self, link: &Link) -> State {
        let is_denied =
            link.is_denied(&format!("$JS.API.CONSUMER.MSG.NEXT.{}.{}", self.stream, self.name));
        if is_denied { State::Denied } else { State::Unavailable }
    }

    /// A consumer that begins at the position. The server keeps it in memory, on one server: when that is lost, another
    /// begins here again. The client's own ordered consumer is not used: it bounds its requests by messages and not by bytes,
    /// and tries forever to make a consumer of a stream that is missing or denied, without an error.
    async fn consumer(&self, link: &Link) -> Result<Consumer<pull::Config>, State> {
        let (stream, name) = (&self.stream, &self.name);
        // The one of an earlier connection stands elsewhere. Usually there is none.
        let deletion = link.context.delete_consumer_from_stream(name, stream);
        let _ = timeout(DELETE_TIMEOUT, deletion).await;
        let deliver_policy = match self.position.start() {
            None => DeliverPolicy::All,
            Some(start_sequence) => DeliverPolicy::ByStartSequence { start_sequence },
        };
        let config = pull::Config {
            name: Some(name.clone()),
            deliver_policy,
            ack_policy: AckPolicy::None,
            replay_policy: ReplayPolicy::Instant,
            inactive_threshold: INACTIVE,
            num_replicas: 1,
            memory_storage: true,
            ..pull::Config::default()
        };
        let is_denied =
            |kind: &str| link.is_denied(&format!("$JS.API.CONSUMER.{kind}.{stream}.{name}"));
        let created = link.context.create_consumer_on_stream(config, stream).await;
        let consumer = created.map_err(|error| {
            tracing::warn!(%error, stream, "no consumer");
            match error.kind() {
                ConsumerErrorKind::JetStream(error)
                    if error.error_code() == ErrorCode::STREAM_NOT_FOUND =>
                {
                    State::StreamMissing
                }
                _ if is_denied("CREATE") => State::Denied,
                _ => State::Unavailable,
            }
        })?;
        if consumer.cached_info().delivered.consumer_sequence == 0 {
            return Ok(consumer);
        }
        // The earlier one, which was not deleted: what it has brought would be missing.
        tracing::warn!(stream, "the consumer is not a new one");
        Err(if is_denied("DELETE") { State::Denied } else { State::Unavailable })
    }
}

/// The state after a message, with so many behind it.
const fn state_behind(state: State, pending: u64) -> State {
    match state {
        State::CatchingUp if pending > 0 => State::CatchingUp,
        State::Lagging if pending > LAG_MESSAGES / 2 => State::Lagging,
        _ if pending > LAG_MESSAGES => State::Lagging,
        _ => State::Live,
    }
}

fn extent(info: &Info) -> Extent {
    Extent {
        created: info.created.unix_timestamp_nanos(),
        first: info.state.first_sequence,
        last: info.state.last_sequence,
        messages: info.state.messages,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ServerConfig;

    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    fn a_source_lags_above_its_limit_until_it_is_below_half_of_it() {
        let (live, lagging, catching_up) = (State::Live, State::Lagging, State::CatchingUp);
        let limit = LAG_MESSAGES;
        assert_eq!([0, limit].map(|pending| state_behind(live, pending)), [live; 2]);
        assert_eq!(state_behind(live, limit + 1), lagging);
        assert_eq!(state_behind(lagging, limit / 2 + 1), lagging);
        assert_eq!(state_behind(lagging, limit / 2), live);
        assert_eq!(state_behind(catching_up, 10 * limit), catching_up, "it has just begun");
        assert_eq!(state_behind(catching_up, 0), live);
    }

    #[tokio::test]
    async fn a_shutdown_does_not_wait_for_a_server_that_says_nothing() {
        let server = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("nats://{}", server.local_addr().expect("its address"));
        let pool = OrderPool::new(order_pool::PoolConfig::default()).expect("a pool");
        let config = SourceConfig::new(ServerConfig::new(url), 1, "one");
        let source = Source::start(&pool, config).expect("a source");
        assert_eq!(source.state(), State::Connecting);
        let began = Instant::now();
        let end = source.shutdown(PATIENCE).await;
        assert_eq!((end.state, end.ended), (State::Ended, true));
        assert!(began.elapsed() < PATIENCE / 2);
    }
}
