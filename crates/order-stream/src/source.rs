//! The thread that reads a stream and feeds a pool.

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
use order_pool::OrderPool;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::{
    clock::{ClockOffset, WallClock},
    config::{Flow, SourceConfig, check},
    deliver::{Deliverer, Times},
    error::StreamError,
    link::{CHECK_AGAIN, CHECK_EVERY, Link, SILENCE, StreamInfo},
    metrics::{SourceCounters, SourceStats, label},
    position::{Place, Position, Step},
    running::{Running, Session, Shown, Stop},
    state::State,
    streams::stream_name,
};

/// Messages of one pull request. The client holds at most two: it sends the next when half of one is left.
const PULL: usize = 8_000;

/// Bytes of one pull request, unless a message may be longer: the server answers none that is smaller than the next message.
const PULL_BYTES: usize = 8 << 20;

/// Added to the longest payload: subjects, which have at most 4 KiB, and what the server adds.
const HEAD_BYTES: usize = 8 << 10;

/// How long a pull request waits for messages. A server that passes requests on to another account keeps something of each
/// for as long as the connection lasts, so there should be few.
const PULL_EXPIRES: Duration = Duration::from_secs(300);

/// The server says as often that a consumer without messages is alive. Without a sign for twice as long, as when the
/// server that holds the consumer was killed, another is made.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// After which the server forgets a consumer that nobody reads.
const INACTIVE: Duration = Duration::from_secs(60);

/// How long the deletion of an earlier consumer is waited for. One that a dead server held is deleted without a response.
const DELETE_TIMEOUT: Duration = Duration::from_millis(500);

/// Above as many messages that are not read, the source is [`State::Lagging`]: five seconds at 2,000/s.
const LAG_MESSAGES: u64 = 10_000;

/// How long a pool's head must stand still before the stream of private orders is read from its start, how long one is
/// waited for that has none, and how long altogether.
const HEAD_STANDS: Duration = Duration::from_millis(300);
const HEAD_EXPECTED: Duration = Duration::from_secs(5);
const HEAD_PATIENCE: Duration = Duration::from_secs(10);

/// How old a head is that stands although later ones are still to be read, in seconds: more than two slots of mainnet, and no
/// more than a stream keeps by default, and a third. An older one is of a chain that stands.
const OLD_HEAD_S: RangeInclusive<u64> = 30..=1_200;

/// Feeds a pool from the stream of a flow: what it holds, then every new message, in its order. Dropping it stops it
/// without waiting.
///
/// A hole in what is delivered is read again; what the stream no longer has is counted. Every outcome is counted in
/// [`SourceStats`].
pub type Source = Running<SourceStats>;

impl Source {
    /// Starts feeding the pool.
    ///
    /// # Errors
    /// The configuration is out of bounds, or the thread cannot be started.
    pub fn start(pool: &OrderPool, config: SourceConfig) -> Result<Self, StreamError> {
        Self::with_clock(pool, config, WallClock::default())
    }

    /// As [`Self::start`], with the clock of this machine, on which nothing depends.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn with_clock(
        pool: &OrderPool,
        config: SourceConfig,
        clock: WallClock,
    ) -> Result<Self, StreamError> {
        check(&config.server, "name", &config.name)?;
        let counters = Arc::new(SourceCounters::labelled(&[label(config.flow)]));
        let shown = Shown::new(
            counters.state[0].clone(),
            counters.clock_offset[0].clone(),
            "source",
            config.flow.as_str(),
        );
        let reader = Reader {
            stream: stream_name(config.flow, config.chain_id),
            name: config.name.clone(),
            position: Position::default(),
            clock,
            clock_offset: ClockOffset::default(),
            shown: shown.clone(),
            deliverer: Deliverer::new(pool, &config, Arc::clone(&counters)),
        };
        let stats = move || counters.stats();
        Self::spawn("order-stream-source", config.server, config.name, shown, stats, reader)
    }
}

struct Reader {
    stream: String,
    name: String,
    position: Position,
    clock: WallClock,
    /// Between that clock and the server's.
    clock_offset: ClockOffset,
    shown: Shown,
    deliverer: Deliverer,
}

impl Session for Reader {
    async fn connected(&mut self, link: &Link, mut stop: Stop) -> State {
        self.deliverer.counters.connects[0].add(1);
        // It can be left at any point: a message is delivered and counted without a wait in between.
        tokio::select! {
            biased;
            () = stop.wait() => State::Ended,
            // What the client still holds is read again.
            state = link.ended(&[]) => state,
            Err(state) = self.read(link) => state,
        }
    }
}

impl Reader {
    /// Reads with a new consumer until it fails. Then another connection is opened, maybe to a server that is better
    /// connected.
    async fn read(&mut self, link: &Link) -> Result<Infallible, State> {
        if self.deliverer.flow == Flow::Private && self.position.start().is_none() {
            head_stands(&self.deliverer.pool, self.clock).await;
        }
        let longest = link.client.max_payload().saturating_add(HEAD_BYTES);
        let StreamInfo { info, clock_offset } = link.stream(&self.stream, self.clock).await?;
        self.note_offset(clock_offset);
        let info = &info;
        match self.position.begin(&info.into()) {
            Some(missed) => self.deliverer.counters.missed.add(missed),
            None => {
                tracing::warn!(stream = self.stream, "another stream, or it has lost its end");
                self.deliverer.counters.resets.add(1);
            }
        }
        if self.position.start().is_none()
            && let Some(age) = is_cut(info, longest as u64, self.server_now())
        {
            let (stream, max_age) = (&self.stream, info.config.max_age);
            tracing::warn!(
                stream,
                ?age,
                ?max_age,
                "for space the stream has lost all that is older"
            );
            self.deliverer.counters.cut.add(1);
        }
        let consumer = self.consumer(link).await?;
        self.show(State::CatchingUp, consumer.cached_info().num_pending);
        let messages = consumer
            .stream()
            .max_messages_per_batch(PULL)
            .max_bytes_per_batch(PULL_BYTES.max(longest))
            .expires(PULL_EXPIRES)
            .heartbeat(HEARTBEAT)
            .messages();
        let mut messages = messages.await.map_err(|_| State::Unavailable)?;
        let (mut check, mut check_at) = (None, Instant::now());
        // When the stream responded or brought a message. A server that is cut off from its cluster does neither, and may
        // still say that the consumer is alive.
        let mut responded_at = Instant::now();
        loop {
            // In turn: a stream that never ends may not keep the check away. Nothing is lost by a branch that is dropped.
            tokio::select! {
                message = messages.next() => {
                    let message = message.ok_or(State::Unavailable)?.map_err(|error| {
                        tracing::warn!(%error, stream = self.stream, "reading ended");
                        link.state_after(None, "CONSUMER.MSG.NEXT.")
                    })?;
                    self.deliver(message)?;
                    responded_at = Instant::now();
                }
                () = sleep_until(check_at), if check.is_none() => check = Some(self.ask(link)),
                // Beside the messages, which come also while the stream does not respond.
                Some(found) = OptionFuture::from(check.as_mut()) => {
                    check = None;
                    let now = Instant::now();
                    check_at = match found {
                        Ok(StreamInfo { info, clock_offset }) => {
                            self.note_offset(clock_offset);
                            if self.position.is_other(&(&info).into()) {
                                return Err(State::CatchingUp);
                            }
                            responded_at = now;
                            now + CHECK_EVERY
                        }
                        Err(State::Unavailable) if now < responded_at + SILENCE => {
                            now + CHECK_AGAIN
                        }
                        Err(state) => return Err(state),
                    };
                }
            }
        }
    }

    fn ask<'a>(&self, link: &'a Link) -> BoxFuture<'a, Result<StreamInfo, State>> {
        let (stream, clock) = (self.stream.clone(), self.clock);
        async move { link.stream(&stream, clock).await }.boxed()
    }

    fn note_offset(&mut self, offset: ClockOffset) {
        self.clock_offset = offset;
        self.shown.note_offset(offset);
    }

    /// The time by the server's clock.
    fn server_now(&self) -> SystemTime {
        self.clock_offset.server_time(self.clock.now())
    }

    /// Processes a message, unless something is missing before it.
    fn deliver(&mut self, message: Message) -> Result<(), State> {
        let info = message.info().map_err(|error| {
            tracing::warn!(%error, stream = self.stream, "a message without a sequence number");
            State::Unavailable
        })?;
        let (sequence, delivery) = (info.stream_sequence, info.consumer_sequence);
        let stored = info.published.unix_timestamp_nanos();
        match self.position.on(Place { sequence, delivery, stored }) {
            Step::Latest => {}
            Step::Deliver { missed } => {
                if missed > 0 {
                    tracing::warn!(sequence, missed, "messages left the stream unread");
                    self.deliverer.counters.missed.add(missed);
                }
                let times = Times { stored: info.published.into(), now: self.server_now() };
                self.deliverer.message(&message, times);
            }
            step @ (Step::Hole | Step::Refilled) => {
                tracing::warn!(stream = self.stream, sequence, ?step, "reading again");
                self.deliverer.counters.resets.add(u64::from(step == Step::Refilled));
                return Err(State::CatchingUp);
            }
        }
        self.show(self.shown.get(), info.pending);
        Ok(())
    }

    fn show(&self, state: State, pending: u64) {
        self.deliverer.counters.behind.set(pending);
        self.shown.set(state_behind(state, pending));
    }

    /// A consumer that begins at the position. The server keeps it in memory, on one server: when that is lost, another
    /// begins here again.
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
        let created = link.context.create_consumer_on_stream(config, stream).await;
        let consumer = created.map_err(|error| {
            tracing::warn!(%error, stream, "no consumer");
            let code = match error.kind() {
                ConsumerErrorKind::JetStream(error) => Some(error.error_code()),
                _ => None,
            };
            link.state_after(code, "CONSUMER.CREATE.")
        })?;
        if consumer.cached_info().delivered.consumer_sequence == 0 {
            return Ok(consumer);
        }
        // The earlier one, which was not deleted: what it has brought would be missing.
        tracing::warn!(stream, "the consumer is not a new one");
        Err(link.state_after(None, "CONSUMER.DELETE."))
    }
}

/// Waits until a pool has the head of its chain, if it is told heads at all. The stream begins with bundles for blocks
/// that are over. A pool that knows its head refuses them; in one that knows none they take the room of their senders, and
/// the latest ones find none.
async fn head_stands(pool: &OrderPool, clock: WallClock) {
    let begin = Instant::now();
    let (mut head, mut since) = (pool.head(), begin);
    while begin.elapsed() < HEAD_PATIENCE {
        sleep(HEAD_STANDS / 10).await;
        let latest = pool.head();
        if latest != head {
            (head, since) = (latest, Instant::now());
        }
        let now = clock.now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let age_s = head.map(|head| now.as_secs().saturating_sub(head.timestamp));
        let least = match age_s {
            None => HEAD_EXPECTED,
            // A busy server or machine pauses within the heads.
            Some(age_s) if OLD_HEAD_S.contains(&age_s) => HEAD_PATIENCE,
            Some(_) => HEAD_STANDS,
        };
        if since.elapsed() >= least {
            return;
        }
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

/// How old the oldest message of a stream is, if those before it have left for space: it stands at its limit of bytes, but for
/// a message of the longest kind, and stays there until the oldest has its age.
fn is_cut(info: &Info, longest: u64, now: SystemTime) -> Option<Duration> {
    let Info { state, config, .. } = info;
    // Without a limit it is negative.
    let limit = u64::try_from(config.max_bytes).ok()?;
    let is_full = state.bytes > limit - longest.min(limit / 2);
    let age = now.duration_since(state.first_timestamp.into()).unwrap_or_default();
    // A clock that differs from the server's, and the server's own delay, may make a tenth.
    let is_early = age < config.max_age.mul_f64(0.9);
    let is_cut = config.discard == DiscardPolicy::Old && state.first_sequence > 1;
    (is_cut && is_full && is_early).then_some(age)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use chain_view::Block;

    use super::*;
    use crate::{
        config::ServerConfig,
        tests::{head, info, pool},
    };

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

    #[tokio::test(start_paused = true)]
    async fn private_orders_wait_for_the_head_of_a_pool_that_reads_its_heads() {
        let pool = pool();
        let began = tokio::time::Instant::now();
        head_stands(&pool, WallClock::default()).await;
        assert!(began.elapsed() >= HEAD_EXPECTED, "it may have none at all");
        let told = pool.clone();
        let heads = tokio::spawn(async move {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after it").as_secs();
            for number in 1..=9 {
                // The last heads of a stream that is read late, by a server that was busy meanwhile.
                sleep(HEAD_STANDS * if number == 8 { 4 } else { 1 } / 3).await;
                let mut head = head(number, 0, 0);
                head.timestamp = now - (9 - number) * 60;
                told.on_head(Block::new(head, []));
            }
        });
        head_stands(&pool, WallClock::default()).await;
        assert_eq!(pool.head().map(|head| head.number), Some(9));
        heads.await.expect("no panic");
        // A chain that stands.
        let began = tokio::time::Instant::now();
        let mut head = head(10, 0, 0);
        head.timestamp = 1;
        pool.on_head(Block::new(head, []));
        head_stands(&pool, WallClock::default()).await;
        assert!(began.elapsed() < HEAD_STANDS * 2);
    }

    #[test]
    fn a_stream_is_cut_if_messages_left_it_for_space_and_not_by_their_age() {
        let found = |first_seq: u64, bytes: u64, max_bytes: i64, seconds: u64| {
            let info = info("", first_seq, bytes, max_bytes);
            is_cut(&info, 100, SystemTime::UNIX_EPOCH + Duration::from_secs(60 + seconds))
        };
        assert_eq!(found(1_000, 9_950, 10_000, 300), Some(Duration::from_secs(300)));
        assert_eq!(found(1, 9_950, 10_000, 300), None, "it has all");
        assert_eq!(found(1_000, 9_800, 10_000, 300), None, "there was room");
        assert_eq!(found(1_000, 9_950, 10_000, 880), None, "by age");
        assert_eq!(found(1_000, 9_950, -1, 300), None, "without a limit");
    }

    #[tokio::test]
    async fn a_shutdown_does_not_wait_for_a_server_that_says_nothing() {
        let server = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("nats://{}", server.local_addr().expect("its address"));
        let pool = pool();
        let config = SourceConfig::new(ServerConfig::new(url), 1, "one");
        let source = Source::start(&pool, config).expect("a source");
        assert_eq!(source.state(), State::Connecting);
        let began = Instant::now();
        let end = source.shutdown(PATIENCE).await;
        assert_eq!(end.state, State::Ended);
        assert!(began.elapsed() < PATIENCE / 2);
    }
}
