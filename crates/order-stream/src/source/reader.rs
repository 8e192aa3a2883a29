//! One connection of a source: messages of its streams in, by their sequence numbers.

use std::{
    cell::{Cell, RefCell},
    future::Future,
    ops::ControlFlow,
    pin::pin,
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
use futures::{FutureExt as _, StreamExt as _};
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, mpsc},
    task::coop::unconstrained,
    time::{sleep, timeout},
};

use super::{Job, Run};
use crate::{
    backoff::STABLE_AFTER,
    link::{Link, Silence},
    state::State,
    subjects::stream_name,
    tracker::{Begun, Extent, Place, Step, Tracker},
};

/// Messages of one pull request.
const PULL: usize = 2_000;

/// Messages that are taken after the connection was lost: those of two pull requests.
const MOST_AFTER_LOSS: u64 = 2 * PULL as u64;

/// Most bytes of the pull requests of all streams together, as far as each can bring its largest message. What is on its
/// way delays every answer of the connection.
const MAX_PULL_BYTES: usize = 8 << 20;

/// The server says as often that a consumer without messages is alive. Without a sign for twice as long, as when the
/// server that holds the consumer was killed, another is made.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// How long the deletion of an earlier consumer is waited for. One that a dead server held is deleted without an answer.
const DELETE_TIMEOUT: Duration = Duration::from_millis(500);

/// How long a pull request waits for messages.
const PULL_EXPIRES: Duration = Duration::from_secs(30);

/// After which the server forgets the position of a source that does not read.
const INACTIVE: Duration = Duration::from_secs(60);

/// After as long without a message, the stream itself is asked for those that it should have.
const QUIET: Duration = Duration::from_secs(2);

/// Added to the largest payload: subjects, which have at most 4 KiB, and what the server adds.
const HEAD_BYTES: usize = 8 << 10;

/// How often the state is computed again while something is behind, and after how many messages.
const REFRESH: Duration = Duration::from_millis(50);
const REFRESH_MESSAGES: u64 = 64;

/// Reads the streams over one connection.
pub(super) struct Reader<'a> {
    pub(super) run: &'a Run,
    pub(super) link: &'a Link,
    /// Of each stream its state, and the messages that it holds before the reader.
    pub(super) states: &'a RefCell<Vec<(State, u64)>>,
    pub(super) silence: Cell<Silence>,
    /// Told once that has lasted too long.
    pub(super) given_up: Notify,
}

impl Reader<'_> {
    pub(super) fn note(&self, shard: u16, state: State, pending: u64) {
        if let Some(there) = self.states.borrow_mut().get_mut(usize::from(shard)) {
            *there = (state, pending);
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
        let counters = &self.run.counters;
        counters.behind.set(behind(&states, counters.show_unfinished()));
    }

    /// `None` if the connection is lost before it is ready.
    async fn unless_lost<F: Future>(&self, future: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            output = future => Some(output),
            _ = self.link.lost() => None,
        }
    }

    /// Reads one stream, again after each failure, until the connection is lost and what came by it is
    /// passed on.
    pub(super) async fn follow(&self, shard: u16, tracker: &mut Tracker) -> Option<()> {
        let config = &self.run.config;
        let stream = stream_name(config.flow, config.chain_id, shard);
        let (mut attempt, mut may_get) = (0, true);
        loop {
            let began = Instant::now();
            let begun = self.unless_lost(self.begin(&stream, tracker)).await?;
            if begun.is_ok() {
                self.note_answer(true);
            }
            let failed = match begun {
                Err(state) => Some(state),
                // No consumer brings what is deleted, or what the client cannot read.
                Ok(begun) if may_get && begun.behind > 0 && tracker.is_stuck() => {
                    let read = self.read_singly(shard, &stream, tracker, begun.behind);
                    let failed = self.unless_lost(read).await?;
                    may_get = failed != Some(State::Denied);
                    failed
                }
                Ok(begun) => {
                    may_get = true;
                    self.read(shard, &stream, tracker, begun.behind).await
                }
            };
            if self.link.lost().now_or_never().is_some() {
                return None;
            }
            if let Some(state) = failed {
                self.note(shard, state, 0);
                self.note_answer(!is_silent(&self.states.borrow()));
                attempt = if began.elapsed() > STABLE_AFTER { 0 } else { attempt };
                let pause = config.backoff.connected().random_delay(attempt);
                self.unless_lost(sleep(pause)).await?;
                attempt = attempt.saturating_add(1);
            }
        }
    }

    fn note_answer(&self, is_answer: bool) {
        let mut silence = self.silence.get();
        if silence.note(is_answer, Instant::now()) {
            self.given_up.notify_one();
        }
        self.silence.set(silence);
    }

    /// Compares the tracker with the stream.
    async fn begin(&self, stream: &str, tracker: &mut Tracker) -> Result<Begun, State> {
        let info = self.link.stream(stream).await?;
        let begun = tracker.begin(Extent {
            created: info.created.unix_timestamp_nanos(),
            first: info.state.first_sequence,
            last: info.state.last_sequence,
            messages: info.state.messages,
        });
        let counters = &self.run.counters;
        counters.resets.add(begun.reset.into());
        counters.missed.add(begun.missed);
        Ok(begun)
    }

    /// Reads one stream with a consumer from where the tracker stands. Returns the state after a failure,
    /// `None` to read again at once, or if the connection is lost.
    async fn read(
        &self,
        shard: u16,
        stream: &str,
        tracker: &mut Tracker,
        mut pending: u64,
    ) -> Option<State> {
        let config = &self.run.config;
        let consumer = match self.unless_lost(self.consumer(stream, tracker)).await? {
            Ok(consumer) => consumer,
            Err(state) => return Some(state),
        };
        tracker.try_consumer(pending);
        let max_payload = self.link.client.max_payload();
        let messages = consumer
            .stream()
            .max_messages_per_batch(PULL)
            .max_bytes_per_batch(batch_bytes(config.queue_bytes, config.streams(), max_payload))
            .expires(PULL_EXPIRES)
            .heartbeat(HEARTBEAT)
            .messages();
        let Ok(mut messages) = self.unless_lost(messages).await? else {
            return Some(State::Unavailable);
        };
        let mut lost = pin!(self.link.lost());
        let mut state = if pending == 0 { State::Live } else { State::CatchingUp };
        let mut behind = pending;
        self.note(shard, state, pending);
        let (mut read, mut after_loss, mut latest) = (0_u64, 0, Instant::now());
        loop {
            // What came before a loss is passed on, or each connection would bring it again. A message that
            // comes while nothing is behind shows it; what the pool takes, only time does.
            let message = tokio::select! {
                biased;
                message = unconstrained(messages.next()) => message,
                _ = &mut lost => return None,
                () = sleep(REFRESH), if behind > 0 => {
                    if pending > 0 && latest.elapsed() > QUIET {
                        tracing::warn!(stream, pending, "nothing comes");
                        tracker.give_up_consumer();
                        let denied = Some(self.why_it_ended(stream));
                        return denied.filter(|state| *state == State::Denied);
                    }
                    (state, behind) = self.refresh(shard, state, pending);
                    continue;
                }
            };
            let message = match message {
                Some(Ok(message)) => message,
                Some(Err(error)) => {
                    tracing::warn!(%error, stream, "reading ended");
                    return Some(self.why_it_ended(stream));
                }
                None => return Some(State::Unavailable),
            };
            // The client connects again by itself and would go on for ever; the other streams wait for the end.
            after_loss += u64::from(self.link.is_lost());
            if after_loss > MOST_AFTER_LOSS {
                return None;
            }
            let place = match message.info() {
                Ok(info) => {
                    pending = info.pending;
                    let stored = info.published.unix_timestamp_nanos();
                    Place { sequence: info.stream_sequence, stored, is_certain: false }
                }
                Err(error) => {
                    tracing::warn!(%error, stream, "a message without a sequence number");
                    return Some(State::Unavailable);
                }
            };
            if let ControlFlow::Break(failed) =
                self.pass(stream, tracker, place, message.into()).await
            {
                return failed;
            }
            // Waiting for the pool is not waiting for the server.
            latest = Instant::now();
            read += 1;
            if read.is_multiple_of(REFRESH_MESSAGES) || behind == 0 {
                (state, behind) = self.refresh(shard, state, pending);
            }
        }
    }

    /// The state after a consumer brought nothing.
    fn why_it_ended(&self, stream: &str) -> State {
        let name = &self.run.config.name;
        let is_denied = self.link.is_denied(&format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}"));
        if is_denied { State::Denied } else { State::Unavailable }
    }

    /// Passes on a message, unless it is not the next one. Breaks as [`Self::read`] returns.
    pub(super) async fn pass(
        &self,
        stream: &str,
        tracker: &mut Tracker,
        place: Place,
        message: Message,
    ) -> ControlFlow<Option<State>> {
        let (counters, sequence) = (&self.run.counters, place.sequence);
        // The source may be stopped during the wait: until then the message counts as not received.
        let Some((room, permit)) = self.room(message.length).await else {
            return ControlFlow::Break(Some(State::Unavailable));
        };
        match tracker.on(place) {
            Step::Deliver => {}
            Step::Latest => return ControlFlow::Continue(()),
            Step::Repeated => {
                counters.repeated.add(1);
                return ControlFlow::Continue(());
            }
            Step::Refilled => {
                tracing::warn!(stream, sequence, "another message is in the place of the latest");
                counters.resets.add(1);
                return ControlFlow::Break(None);
            }
            Step::Hole => {
                tracing::warn!(stream, sequence, start = tracker.start(), "a hole");
                counters.holes.add(1);
                return ControlFlow::Break(None);
            }
            Step::Missed(missed) => {
                tracing::warn!(stream, sequence, missed, "messages left the stream unread");
                counters.missed.add(missed);
            }
        }
        counters.read();
        room.send(Job::Message(message, permit));
        ControlFlow::Continue(())
    }

    /// The state of a stream and the messages that are not in the pool yet: those that the server has
    /// told, and those that wait here.
    fn refresh(&self, shard: u16, state: State, pending: u64) -> (State, u64) {
        let behind = pending.saturating_add(self.run.counters.show_unfinished());
        let lag = self.run.config.lag_messages;
        let next = match state {
            // What waits is on its way.
            State::CatchingUp if pending == 0 && behind <= REFRESH_MESSAGES => State::Live,
            State::CatchingUp => State::CatchingUp,
            State::Lagging if behind > lag / 2 => State::Lagging,
            _ if behind > lag => State::Lagging,
            _ => State::Live,
        };
        self.note(shard, next, pending);
        (next, behind)
    }

    /// Waits until the pool has taken enough of what was read before.
    /// `None` if the thread that feeds it has panicked.
    async fn room(&self, bytes: usize) -> Option<(mpsc::Permit<'_, Job>, OwnedSemaphorePermit)> {
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
        let deletion = context.delete_consumer_from_stream(&name, stream);
        let _ = timeout(DELETE_TIMEOUT, deletion).await;
        let deliver_policy = match tracker.start() {
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
            |kind: &str| self.link.is_denied(&format!("$JS.API.CONSUMER.{kind}.{stream}.{name}"));
        let consumer =
            context.create_consumer_on_stream(config, stream).await.map_err(|error| {
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

/// Whether no stream answers. One that is missing or denied has an answer.
fn is_silent(states: &[(State, u64)]) -> bool {
    states.iter().all(|(state, _)| *state == State::Unavailable)
}

/// What the streams hold before the reader, and what waits for the pool, of all streams together.
fn behind(states: &[(State, u64)], unfinished: u64) -> u64 {
    states.iter().fold(unfinished, |sum, (_, pending)| sum.saturating_add(*pending))
}

/// The bytes of one pull request. The client holds at most two: the next is sent when half of one is left. The
/// server answers no request that is smaller than the next message.
fn batch_bytes(queue_bytes: usize, streams: u16, max_payload: usize) -> usize {
    let all = (queue_bytes / 2).min(MAX_PULL_BYTES);
    (all / usize::from(streams.max(1))).max(max_payload.saturating_add(HEAD_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_for_the_pool_counts_once_however_many_streams_there_are() {
        let states = [(State::CatchingUp, 20), (State::Live, 0), (State::Lagging, 300)];
        assert_eq!(behind(&states, 7), 327);
        assert_eq!(behind(&states[..1], 7), 27);
    }

    #[test]
    fn the_streams_share_the_bytes_and_each_can_bring_the_largest_message() {
        let (queue, payload) = (32 << 20, 1 << 20);
        assert_eq!(batch_bytes(queue, 1, payload), 8 << 20);
        assert_eq!(batch_bytes(queue, 4, payload), 2 << 20);
        assert_eq!(batch_bytes(8 << 20, 1, payload), 4 << 20);
        assert_eq!(batch_bytes(queue, 64, payload), payload + HEAD_BYTES);
        assert_eq!(batch_bytes(8 << 20, 1, 8 << 20), (8 << 20) + HEAD_BYTES);
    }

    #[test]
    fn a_server_is_silent_only_if_no_stream_has_another_state() {
        let of = |states: &[State]| {
            is_silent(&states.iter().map(|state| (*state, 0)).collect::<Vec<_>>())
        };
        assert!(of(&[State::Unavailable; 2]));
        for other in [State::Live, State::CatchingUp, State::StreamMissing, State::Denied] {
            assert!(!of(&[State::Unavailable, other]), "{other}");
        }
    }
}
