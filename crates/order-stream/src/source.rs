//! The source: reads the stream of a flow on a thread of its own and feeds a pool.

use std::{
    convert::Infallible,
    ops::RangeInclusive,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use async_nats::jetstream::{
    Message,
    consumer::{AckPolicy, Consumer, DeliverPolicy, ReplayPolicy, pull},
    stream::{ConsumerErrorKind, DiscardPolicy, Info},
};
use futures::{
    FutureExt as _, StreamExt as _,
    future::{BoxFuture, OptionFuture},
};
use order_pool::{Feed, OrderPool};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::{
    clock::{ClockOffset, WallClock},
    config::{Flow, SourceConfig, validate},
    connection::{CHECK_INTERVAL, CHECK_RETRY_INTERVAL, Connection, SILENCE_LIMIT, StreamInfo},
    deliver::{Deliverer, Times},
    error::StreamError,
    metrics::{SourceCounters, SourceStats, flow_label},
    position::{Delivery, Position, Step},
    state::State,
    streams::{has_lifetimes, stream_name},
    worker::{Status, Stop, Task, Worker},
};

/// The messages of one pull request. The client has at most two requests open: it sends the next
/// when half of one is left.
const PULL_MESSAGES: usize = 8_000;

/// The bytes of one pull request. It is raised to the longest possible message, because the server
/// does not answer a request that is smaller than the next message.
const PULL_BYTES: usize = 8 << 20;

/// Added to the longest payload: the subject, at most 4 KiB, and what the server adds.
const MESSAGE_OVERHEAD_BYTES: usize = 8 << 10;

/// How long a pull request waits for messages. A server that forwards requests to another account
/// keeps some memory for each until the connection ends, so there should be few.
const PULL_EXPIRES: Duration = Duration::from_secs(300);

/// How often the server signals that a consumer without messages is alive. After twice this time
/// without a signal, as when the server that held the consumer was killed, another one is created.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// After this time the server deletes a consumer that nobody reads.
const INACTIVE_THRESHOLD: Duration = Duration::from_secs(60);

/// The timeout for the deletion of an earlier consumer. If a dead server held it, it is deleted
/// without a response.
const DELETE_TIMEOUT: Duration = Duration::from_millis(500);

/// Above this number of unread messages the source is [`State::Lagging`]: five seconds at 2,000/s.
const LAG_MESSAGES: u64 = 10_000;

/// How long a pool's head must be unchanged before the private stream is read from its start.
const HEAD_SETTLED_AFTER: Duration = Duration::from_millis(300);
/// How long a pool without a head is waited for.
const HEAD_EXPECTED_WITHIN: Duration = Duration::from_secs(5);
/// How long the head is waited for in total.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// The ages, in seconds, at which an unchanged head is not final, because later heads are still to
/// be read: from more than two slots of mainnet to what a stream keeps by default and a third. An
/// older head belongs to a chain that has stopped.
const OLD_HEAD_AGES_S: RangeInclusive<u64> = 30..=1_200;

/// Feeds a pool from the stream of a flow: first the messages that the stream holds, then every new
/// message, in their sequence. Dropping the source stops it without waiting.
///
/// Messages that the server has left out are read again. Messages that the stream no longer has are
/// counted. Every outcome is counted in [`SourceStats`].
pub type Source = Worker<SourceStats>;

impl Source {
    /// Starts feeding the pool.
    ///
    /// # Errors
    /// The configuration is invalid, or the thread cannot be started.
    pub fn start(pool: &OrderPool, config: SourceConfig) -> Result<Self, StreamError> {
        Self::with_clock(pool, config, WallClock::default())
    }

    /// Starts feeding the pool with another clock of this machine. No outcome depends on the clock.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn with_clock(
        pool: &OrderPool,
        config: SourceConfig,
        clock: WallClock,
    ) -> Result<Self, StreamError> {
        validate(&config.server, "name", &config.name)?;
        let counters = Arc::new(SourceCounters::labelled(&[flow_label(config.flow)]));
        let status = Status::new(
            counters.state[0].clone(),
            counters.clock_offset[0].clone(),
            "source",
            config.flow.as_str(),
        );
        let task = SourceTask {
            stream: stream_name(config.flow, config.chain_id),
            name: config.name.clone(),
            position: Position::new(has_lifetimes(config.flow)),
            clock,
            clock_offset: ClockOffset::default(),
            status: status.clone(),
            deliverer: Deliverer::new(pool, &config, Arc::clone(&counters)),
            _feed: (config.flow == Flow::Public).then(|| pool.feed()),
        };
        let stats = move || counters.stats();
        Self::spawn("order-stream-source", config.server, config.name, status, stats, task)
    }
}

struct SourceTask {
    stream: String,
    name: String,
    position: Position,
    clock: WallClock,
    /// The offset of `clock` from the server's clock.
    clock_offset: ClockOffset,
    status: Status,
    deliverer: Deliverer,
    /// Of the public flow: subscribers of the pool learn when the task ends.
    _feed: Option<Feed>,
}

impl Task for SourceTask {
    async fn run(&mut self, connection: &Connection, mut stop: Stop) -> State {
        self.deliverer.counters.connects[0].add(1);
        // Each branch can be dropped at any point: a message is delivered and counted without an
        // await in between. Messages that the client still holds are read again.
        tokio::select! {
            biased;
            () = stop.wait() => State::Ended,
            state = connection.lost_or_denied(&[]) => state,
            Err(state) = self.read(connection) => state,
        }
    }
}

impl SourceTask {
    /// Reads with a new consumer until it fails. The caller then opens another connection, maybe to
    /// a server that is better connected.
    async fn read(&mut self, connection: &Connection) -> Result<Infallible, State> {
        if self.deliverer.flow == Flow::Private && self.position.start().is_none() {
            let info = connection.stream_info(&self.stream, self.clock).await?;
            self.record_clock_offset(info.clock_offset);
            wait_for_head(&self.deliverer.pool, || self.server_now()).await;
        }
        let max_message_bytes =
            connection.client.max_payload().saturating_add(MESSAGE_OVERHEAD_BYTES);
        let StreamInfo { info, clock_offset, .. } =
            connection.stream_info(&self.stream, self.clock).await?;
        self.record_clock_offset(clock_offset);
        self.begin(&info, max_message_bytes);
        let consumer = self.create_consumer(connection).await?;
        self.report(State::CatchingUp, consumer.cached_info().num_pending);
        let mut messages = consumer
            .stream()
            .max_messages_per_batch(PULL_MESSAGES)
            .max_bytes_per_batch(PULL_BYTES.max(max_message_bytes))
            .expires(PULL_EXPIRES)
            .heartbeat(HEARTBEAT)
            .messages()
            .await
            .map_err(|_| State::Unavailable)?;
        let mut check = None;
        let mut next_check_at = Instant::now();
        // When the stream last responded or brought a message. A server that is cut off from its
        // cluster does neither, and may still signal that the consumer is alive.
        let mut responded_at = Instant::now();
        loop {
            // The branches are polled in random order, so a stream that never ends does not keep
            // the check away. A branch that is dropped loses nothing.
            tokio::select! {
                message = messages.next() => {
                    let message = message.ok_or(State::Unavailable)?.map_err(|error| {
                        let stream = &self.stream;
                        tracing::warn!(%error, stream, "the consumer failed: another is created");
                        connection.state_for_error(None, "CONSUMER.MSG.NEXT.")
                    })?;
                    self.on_message(message)?;
                    responded_at = Instant::now();
                }
                () = sleep_until(next_check_at), if check.is_none() => {
                    check = Some(self.check_stream(connection));
                }
                // Messages are read meanwhile. They also arrive while the stream does not respond.
                Some(result) = OptionFuture::from(check.as_mut()) => {
                    check = None;
                    let now = Instant::now();
                    next_check_at = match result {
                        Ok((StreamInfo { clock_offset, .. }, is_reset)) => {
                            self.record_clock_offset(clock_offset);
                            if is_reset {
                                return Err(State::CatchingUp);
                            }
                            responded_at = now;
                            now + CHECK_INTERVAL
                        }
                        Err(State::Unavailable) if now < responded_at + SILENCE_LIMIT => {
                            now + CHECK_RETRY_INTERVAL
                        }
                        Err(state) => return Err(state),
                    };
                }
            }
        }
    }

    /// Sets the position for a new consumer, and counts what the stream no longer has.
    fn begin(&mut self, info: &Info, max_message_bytes: usize) {
        match self.position.begin(&info.into()) {
            Some(missed) => self.deliverer.counters.missed.add(missed),
            None => {
                tracing::warn!(
                    stream = self.stream,
                    "the stream was recreated or has lost its end: it is read from its start"
                );
                self.deliverer.counters.resets.add(1);
            }
        }
        if self.position.start().is_none()
            && let Some(oldest_age) =
                truncated_to_age(info, max_message_bytes as u64, self.server_now())
        {
            tracing::warn!(
                stream = self.stream,
                ?oldest_age,
                max_age = ?info.config.max_age,
                max_bytes = info.config.max_bytes,
                "the stream has deleted older messages for space: raise its max_bytes"
            );
            self.deliverer.counters.cut.add(1);
        }
    }

    /// Asks the server about the stream, and returns whether the stream was reset too.
    fn check_stream<'a>(
        &self,
        connection: &'a Connection,
    ) -> BoxFuture<'a, Result<(StreamInfo, bool), State>> {
        let stream = self.stream.clone();
        let clock = self.clock;
        // Messages that the server stores after its answer may arrive before it.
        let position = self.position.clone();
        async move {
            let info = connection.stream_info(&stream, clock).await?;
            let is_reset = position.is_reset(&(&info.info).into());
            Ok((info, is_reset))
        }
        .boxed()
    }

    fn record_clock_offset(&mut self, offset: ClockOffset) {
        self.clock_offset = offset;
        self.status.record_clock_offset(offset);
    }

    /// Returns the current time of the server's clock.
    fn server_now(&self) -> SystemTime {
        self.clock_offset.server_time(self.clock.now())
    }

    /// Processes the next message, and counts those before it that the stream no longer has.
    ///
    /// # Errors
    /// Reading must start again: the consumer left a message out, or the stream was rewritten.
    fn on_message(&mut self, message: Message) -> Result<(), State> {
        let info = message.info().map_err(|error| {
            tracing::warn!(
                %error,
                stream = self.stream,
                "a message has no sequence number: reading starts again"
            );
            State::Unavailable
        })?;
        let delivery = Delivery {
            stream_sequence: info.stream_sequence,
            consumer_sequence: info.consumer_sequence,
            stored_at: info.published.unix_timestamp_nanos(),
        };
        let sequence = delivery.stream_sequence;
        match self.position.on_delivery(delivery) {
            Step::AlreadyProcessed => {}
            Step::Process { missed } => {
                if missed > 0 {
                    tracing::warn!(
                        sequence,
                        missed,
                        "messages left the stream before they were read"
                    );
                    self.deliverer.counters.missed.add(missed);
                }
                let times = Times { stored_at: info.published.into(), now: self.server_now() };
                self.deliverer.deliver(&message, times);
            }
            step @ (Step::Gap | Step::Rewritten) => {
                tracing::warn!(
                    stream = self.stream,
                    sequence,
                    ?step,
                    "a sequence number is unexpected: reading starts again"
                );
                self.deliverer.counters.resets.add(u64::from(step == Step::Rewritten));
                return Err(State::CatchingUp);
            }
        }
        self.report(self.status.get(), info.pending);
        Ok(())
    }

    fn report(&self, state: State, pending: u64) {
        self.deliverer.counters.behind.set(pending);
        self.status.set(state_with_pending(state, pending));
    }

    /// Creates a consumer that begins at the position. One server keeps it in memory. When that
    /// server is lost, another consumer begins at the position again.
    async fn create_consumer(
        &self,
        connection: &Connection,
    ) -> Result<Consumer<pull::Config>, State> {
        let Self { stream, name, .. } = self;
        // The consumer of an earlier connection has another position. Usually there is none, which
        // is an error that needs no handling.
        let deletion = connection.context.delete_consumer_from_stream(name, stream);
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
            inactive_threshold: INACTIVE_THRESHOLD,
            num_replicas: 1,
            memory_storage: true,
            ..pull::Config::default()
        };
        let created = connection.context.create_consumer_on_stream(config, stream).await;
        let consumer = created.map_err(|error| {
            tracing::warn!(%error, stream, consumer = name, "the consumer cannot be created");
            let code = match error.kind() {
                ConsumerErrorKind::JetStream(error) => Some(error.error_code()),
                _ => None,
            };
            connection.state_for_error(code, "CONSUMER.CREATE.")
        })?;
        if consumer.cached_info().delivered.consumer_sequence == 0 {
            return Ok(consumer);
        }
        // It is the earlier consumer, which was not deleted. What it has delivered would be
        // missing.
        tracing::warn!(
            stream,
            consumer = name,
            "the earlier consumer was not deleted: check the rights to CONSUMER.DELETE"
        );
        Err(connection.state_for_error(None, "CONSUMER.DELETE."))
    }
}

/// Waits until a pool has the head of its chain, if it receives heads at all.
///
/// The private stream begins with bundles for blocks that are over. A pool that knows its head
/// refuses them. In a pool without a head they would use up the shares of their senders, and the
/// latest bundles would find no room.
async fn wait_for_head(pool: &OrderPool, server_now: impl Fn() -> SystemTime) {
    let began = Instant::now();
    let mut head = pool.head();
    let mut unchanged_since = began;
    while began.elapsed() < HEAD_TIMEOUT {
        sleep(HEAD_SETTLED_AFTER / 10).await;
        let latest = pool.head();
        if latest != head {
            head = latest;
            unchanged_since = Instant::now();
        }
        let now = server_now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let head_age_s = head.map(|head| now.as_secs().saturating_sub(head.timestamp));
        let settled_after = match head_age_s {
            None => HEAD_EXPECTED_WITHIN,
            // Later heads follow, although a busy server or machine may pause before them.
            Some(age_s) if OLD_HEAD_AGES_S.contains(&age_s) => HEAD_TIMEOUT,
            Some(_) => HEAD_SETTLED_AFTER,
        };
        if unchanged_since.elapsed() >= settled_after {
            return;
        }
    }
}

/// Returns the state of a source after a message, with this many messages still to be read.
const fn state_with_pending(state: State, pending: u64) -> State {
    match state {
        State::CatchingUp if pending > 0 => State::CatchingUp,
        State::Lagging if pending > LAG_MESSAGES / 2 => State::Lagging,
        _ if pending > LAG_MESSAGES => State::Lagging,
        _ => State::Live,
    }
}

/// Returns the age of the oldest message of a stream that has deleted older ones for space; `None`
/// if it has not. Such a stream stays at its limit of bytes, less one message of the largest size,
/// until the oldest message expires.
fn truncated_to_age(info: &Info, max_message_bytes: u64, now: SystemTime) -> Option<Duration> {
    let Info { state, config, .. } = info;
    // A stream without a limit has a negative one.
    let max_bytes = u64::try_from(config.max_bytes).ok()?;
    let is_full = state.bytes > max_bytes - max_message_bytes.min(max_bytes / 2);
    let oldest_age = now.duration_since(state.first_timestamp.into()).unwrap_or_default();
    // A tenth allows for a clock that differs from the server's, and for the server's delay.
    let is_young = oldest_age < config.max_age.mul_f64(0.9);
    let has_deleted = config.discard == DiscardPolicy::Old && state.first_sequence > 1;
    (has_deleted && is_full && is_young).then_some(oldest_age)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use chain_view::Block;

    use super::*;
    use crate::{
        config::ServerConfig,
        tests::{head, pool, stream_info},
    };

    const LONG_DEADLINE: Duration = Duration::from_secs(30);

    #[test]
    fn a_lagging_source_recovers_below_half_of_its_limit() {
        let (live, lagging, catching_up) = (State::Live, State::Lagging, State::CatchingUp);
        let limit = LAG_MESSAGES;
        assert_eq!(state_with_pending(live, 0), live);
        assert_eq!(state_with_pending(live, limit), live);
        assert_eq!(state_with_pending(live, limit + 1), lagging);
        assert_eq!(state_with_pending(lagging, limit / 2 + 1), lagging);
        assert_eq!(state_with_pending(lagging, limit / 2), live);
        assert_eq!(state_with_pending(catching_up, 10 * limit), catching_up, "it has just begun");
        assert_eq!(state_with_pending(catching_up, 0), live);
    }

    #[tokio::test(start_paused = true)]
    async fn private_orders_wait_until_the_pool_has_read_its_heads() {
        let pool = pool();
        let began = tokio::time::Instant::now();
        wait_for_head(&pool, SystemTime::now).await;
        assert!(began.elapsed() >= HEAD_EXPECTED_WITHIN, "the pool may never have a head");
        let writer = pool.clone();
        let heads = tokio::spawn(async move {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after it").as_secs();
            for number in 1..=9 {
                // The last heads of a stream that is read late, from a server that pauses in
                // between.
                let pause_thirds = if number == 8 { 4 } else { 1 };
                sleep(HEAD_SETTLED_AFTER * pause_thirds / 3).await;
                let mut head = head(number, 0, 0);
                head.timestamp = now - (9 - number) * 60;
                writer.on_head(Block::new(head, []));
            }
        });
        wait_for_head(&pool, SystemTime::now).await;
        assert_eq!(pool.head().map(|head| head.number), Some(9));
        heads.await.expect("no panic");
        // The chain has stopped long ago.
        let began = tokio::time::Instant::now();
        let mut head = head(10, 0, 0);
        head.timestamp = 1;
        pool.on_head(Block::new(head, []));
        wait_for_head(&pool, SystemTime::now).await;
        assert!(began.elapsed() < HEAD_SETTLED_AFTER * 2);
    }

    #[test]
    fn a_stream_that_deleted_messages_for_space_is_not_confused_with_expiry() {
        let oldest_age = |first_sequence: u64, bytes: u64, max_bytes: i64, age_seconds: u64| {
            let info = stream_info("", first_sequence, bytes, max_bytes);
            let now = SystemTime::UNIX_EPOCH + Duration::from_secs(60 + age_seconds);
            truncated_to_age(&info, 100, now)
        };
        assert_eq!(oldest_age(1_000, 9_950, 10_000, 300), Some(Duration::from_secs(300)));
        assert_eq!(oldest_age(1, 9_950, 10_000, 300), None, "it has everything");
        assert_eq!(oldest_age(1_000, 9_800, 10_000, 300), None, "it has room");
        assert_eq!(oldest_age(1_000, 9_950, 10_000, 880), None, "they have expired");
        assert_eq!(oldest_age(1_000, 9_950, -1, 300), None, "it has no limit");
    }

    #[tokio::test]
    async fn a_shutdown_does_not_wait_for_a_silent_server() {
        let server = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("nats://{}", server.local_addr().expect("its address"));
        let pool = pool();
        let config = SourceConfig::new(ServerConfig::new(url), 1, "one");
        let source = Source::start(&pool, config).expect("a source");
        assert_eq!(source.state(), State::Connecting);
        let began = Instant::now();
        let end = source.shutdown(LONG_DEADLINE).await;
        assert_eq!(end.state, State::Ended);
        assert!(began.elapsed() < LONG_DEADLINE / 2);
    }
}
