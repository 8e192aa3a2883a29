//! One connection of a source: messages of its streams in, by their sequence numbers.

use std::{
    cell::RefCell,
    sync::Arc,
    time::{Duration, Instant},
};

use async_nats::{
    Message,
    jetstream::{
        ErrorCode,
        consumer::{AckPolicy, Consumer, DeliverPolicy, ReplayPolicy, pull},
        stream::ConsumerErrorKind,
    },
};
use futures::StreamExt as _;
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc},
    time::sleep,
};

use super::{Job, Run, STABLE_AFTER};
use crate::{
    config::{Flow, Trust},
    link::Link,
    state::State,
    subjects::{machine_of, seen, stream_name},
    tracker::{Extent, Step, Tracker},
    wire::MAX_REPORT_BYTES,
};

/// Messages of one pull request.
const PULL: usize = 2_000;

/// The server says as often that a consumer without messages is alive.
const HEARTBEAT: Duration = Duration::from_secs(2);

/// How long a pull request waits for messages.
const PULL_EXPIRES: Duration = Duration::from_secs(30);

/// After which the server forgets the position of a source that does not read.
const INACTIVE: Duration = Duration::from_secs(60);

/// How often the state is computed again while something is behind, and after how many messages.
const REFRESH: Duration = Duration::from_millis(50);
const REFRESH_MESSAGES: u64 = 64;

/// Reads the streams over one connection.
pub(super) struct Reader<'a> {
    pub(super) run: &'a Run,
    pub(super) link: &'a Link,
    /// Of each stream its state, and the messages before it.
    pub(super) states: &'a RefCell<Vec<(State, u64)>>,
}

impl Reader<'_> {
    fn note(&self, shard: u16, state: State, behind: u64) {
        if let Some(there) = self.states.borrow_mut().get_mut(usize::from(shard)) {
            *there = (state, behind);
        }
        self.show();
    }

    /// The state is the worst of all streams.
    pub(super) fn show(&self) {
        let states = self.states.borrow();
        let worst = states.iter().map(|(state, _)| *state).max_by_key(|state| match state {
            State::Live => 0,
            State::CatchingUp => 1,
            State::Lagging => 2,
            State::StreamMissing => 4,
            State::Denied => 5,
            _ => 3,
        });
        self.run.set_state(worst.unwrap_or(State::Live));
        self.run.counters.behind.set(states.iter().map(|(_, behind)| behind).sum());
    }

    /// Passes on the reports of the machines. They are not stored: those that find no room are dropped.
    pub(super) async fn reports(&self) {
        let config = &self.run.config;
        if config.flow == Flow::Public && config.trust != Trust::Nobody {
            let subject = seen(config.chain_id, "*");
            if let Ok(mut reports) = self.link.client.subscribe(subject).await {
                while let Some(report) = reports.next().await {
                    // Here already: what waits for the pool must be short.
                    let is_report = report.headers.is_none()
                        && report.payload.len() <= MAX_REPORT_BYTES
                        && config.trust.covers(machine_of(&report.subject));
                    if is_report && self.run.queue.try_send(Job::Report(report)).is_err() {
                        tracing::debug!("a report was dropped");
                    }
                }
            }
        }
        std::future::pending().await
    }

    /// Reads one stream, again after each failure.
    pub(super) async fn follow(&self, shard: u16, tracker: &mut Tracker) {
        let mut attempt = 0;
        loop {
            let began = Instant::now();
            let failed = self.read(shard, tracker).await;
            if let Some(state) = failed {
                self.note(shard, state, 0);
                attempt = if began.elapsed() > STABLE_AFTER { 0 } else { attempt };
                sleep(self.run.config.backoff.random_delay(attempt)).await;
                attempt = attempt.saturating_add(1);
            }
        }
    }

    /// Reads one stream from where the tracker stands. Returns the state after a failure, `None` to
    /// read again at once.
    async fn read(&self, shard: u16, tracker: &mut Tracker) -> Option<State> {
        let Run { config, counters, .. } = self.run;
        let stream = stream_name(config.flow, config.chain_id, shard);
        let info = match self.link.stream(&stream).await {
            Ok(info) => info,
            Err(state) => return Some(state),
        };
        let begun = tracker.begin(Extent {
            created: info.created.unix_timestamp_nanos(),
            first: info.state.first_sequence,
            last: info.state.last_sequence,
            messages: info.state.messages,
        });
        counters.resets.add(begun.reset.into());
        counters.missed.add(begun.missed);
        let consumer = match self.consumer(&stream, tracker).await {
            Ok(consumer) => consumer,
            Err(state) => return Some(state),
        };
        let messages = consumer
            .stream()
            .max_messages_per_batch(PULL)
            .max_bytes_per_batch(config.queue_bytes)
            .expires(PULL_EXPIRES)
            .heartbeat(HEARTBEAT)
            .messages()
            .await;
        let Ok(mut messages) = messages else { return Some(State::Unavailable) };
        let mut state = if begun.behind == 0 { State::Live } else { State::CatchingUp };
        let mut pending = begun.behind;
        let mut behind = pending;
        self.note(shard, state, behind);
        let mut read = 0_u64;
        loop {
            // A message that comes while nothing is behind shows it; what the pool takes, only time does.
            let message = tokio::select! {
                biased;
                message = messages.next() => message,
                () = sleep(REFRESH), if behind > 0 => {
                    (state, behind) = self.refresh(shard, state, pending);
                    continue;
                }
            };
            let message = match message {
                Some(Ok(message)) => message,
                Some(Err(error)) => {
                    tracing::warn!(%error, stream, "reading ended");
                    return Some(State::Unavailable);
                }
                None => return Some(State::Unavailable),
            };
            let sequence = match message.info() {
                Ok(info) => {
                    pending = info.pending;
                    info.stream_sequence
                }
                Err(error) => {
                    tracing::warn!(%error, stream, "a message without a sequence number");
                    return Some(State::Unavailable);
                }
            };
            // A connection may be lost during the wait: until then the message counts as not received.
            let message: Message = message.into();
            let Some((place, permit)) = self.place(message.length).await else {
                return Some(State::Unavailable);
            };
            match tracker.on(sequence) {
                Step::Deliver => {}
                Step::Repeated => {
                    counters.repeated.add(1);
                    continue;
                }
                Step::Hole => {
                    tracing::warn!(stream, sequence, expected = tracker.next(), "a hole");
                    counters.holes.add(1);
                    return None;
                }
                Step::Missed(missed) => {
                    tracing::warn!(stream, sequence, missed, "messages left the stream unread");
                    counters.missed.add(missed);
                }
            }
            place.send(Job::Message(message, permit));
            read += 1;
            if read.is_multiple_of(REFRESH_MESSAGES) || behind == 0 {
                (state, behind) = self.refresh(shard, state, pending);
            }
        }
    }

    /// The state of a stream and the messages that are not in the pool yet: those that the server has
    /// told, and those that wait here.
    fn refresh(&self, shard: u16, state: State, pending: u64) -> (State, u64) {
        let queue = &self.run.queue;
        let waiting = queue.max_capacity() - queue.capacity();
        let behind = pending.saturating_add(waiting as u64);
        let lag = self.run.config.lag_messages;
        let next = match state {
            // What waits is on its way.
            State::CatchingUp if pending == 0 && behind <= REFRESH_MESSAGES => State::Live,
            State::CatchingUp => State::CatchingUp,
            State::Lagging if behind > lag / 2 => State::Lagging,
            _ if behind > lag => State::Lagging,
            _ => State::Live,
        };
        self.note(shard, next, behind);
        (next, behind)
    }

    /// Waits until the pool has taken enough of what was read before.
    /// `None` if the thread that feeds it has panicked.
    async fn place(&self, bytes: usize) -> Option<(mpsc::Permit<'_, Job>, OwnedSemaphorePermit)> {
        let bytes = u32::try_from(bytes.clamp(1, self.run.config.queue_bytes)).unwrap_or(u32::MAX);
        let permit = Arc::clone(&self.run.bytes).acquire_many_owned(bytes).await.ok()?;
        Some((self.run.queue.reserve().await.ok()?, permit))
    }

    /// A consumer that begins where the tracker stands. The server keeps its position in memory, on one server:
    /// when that is lost, another begins here again.
    async fn consumer(
        &self,
        stream: &str,
        tracker: &Tracker,
    ) -> Result<Consumer<pull::Config>, State> {
        let name = self.run.config.name.clone();
        let context = &self.link.context;
        // The one of an earlier connection stands elsewhere. Usually there is none.
        let _ = context.delete_consumer_from_stream(&name, stream).await;
        let deliver_policy = match tracker.next() {
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
        context.create_consumer_on_stream(config, stream).await.map_err(|error| {
            tracing::warn!(%error, stream, "no consumer");
            let subject = format!("$JS.API.CONSUMER.CREATE.{stream}.{name}");
            match error.kind() {
                ConsumerErrorKind::JetStream(error)
                    if error.error_code() == ErrorCode::STREAM_NOT_FOUND =>
                {
                    State::StreamMissing
                }
                _ if self.link.is_denied(&subject) => State::Denied,
                _ => State::Unavailable,
            }
        })
    }
}
