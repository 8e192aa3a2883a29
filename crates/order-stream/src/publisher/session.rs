//! One connection of a publisher: publishes the pool's events and processes the acknowledgements.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_primitives::hex;
use async_nats::{
    header::NATS_MESSAGE_ID,
    jetstream::{Context, message::PublishMessage},
};
use bytes::Bytes;
use futures::{
    FutureExt as _, StreamExt,
    future::{BoxFuture, OptionFuture},
    stream::FuturesUnordered,
};
use tokio::time::{sleep_until, timeout};

use super::{PublisherTask, UNSTORED_LIMIT};
use crate::{
    clock::ServerClock,
    connection::{CHECK_INTERVAL, CHECK_RETRY_INTERVAL, Connection, SILENCE_LIMIT, StreamInfo},
    follow::Item,
    lifetime::lifetime,
    metrics::RefuseReason,
    position::Extent,
    response::Response,
    retry::with_one_retry,
    state::{DisconnectReason::Lost, State},
    stream_check::{Acknowledged, StreamReport},
    wire::{Encoded, Record},
    worker::{Stop, Task},
};

/// The timeout of an acknowledgement. Within a region one takes some milliseconds, and a cluster
/// elects another leader within some seconds.
const ACK_TIMEOUT: Duration = Duration::from_secs(5);

/// How often the server's clock is read when a connection begins, after the first check.
const FURTHER_CLOCK_READINGS: usize = 2;

/// The outcome of a message that was published once or twice.
struct PublishResult {
    /// Its number in the window.
    number: u64,
    message_id: String,
    lifetime: Option<Duration>,
    response: Response,
}

struct Session<'a> {
    task: &'a mut PublisherTask,
    connection: &'a Connection,
    context: Context,
    results: FuturesUnordered<BoxFuture<'a, PublishResult>>,
    /// The messages of the window that must be published again.
    to_republish: BTreeSet<u64>,
    /// A running request that checks the stream.
    check: Option<BoxFuture<'a, Result<StreamReport, State>>>,
    next_check_at: Instant,
    server_clock: ServerClock,
    /// When the stream last responded over this connection.
    responded_at: Instant,
    /// Whether a check has succeeded over this connection.
    is_checked: bool,
}

impl Task for PublisherTask {
    async fn run(&mut self, connection: &Connection, stop: Stop) -> State {
        self.counters.connects[0].add(1);
        self.counters.unpublished.set(0);
        let mut context = connection.context.clone();
        context.set_timeout(ACK_TIMEOUT);
        self.has_acknowledged = false;
        self.outage = None;
        if self.events.is_none() {
            self.begin_comparison();
        }
        let session = Session {
            to_republish: self.window.numbers().collect(),
            task: self,
            connection,
            context,
            results: FuturesUnordered::new(),
            check: None,
            next_check_at: Instant::now(),
            server_clock: ServerClock::default(),
            responded_at: Instant::now(),
            is_checked: false,
        };
        let Err(end) = session.run(stop).await;
        self.on_disconnected();
        end
    }

    fn on_connect_failed(&mut self) {
        self.report_without_connection();
    }

    fn has_unfinished_work(&self) -> bool {
        let has_unread = self.events.as_ref().is_some_and(|events| events.behind() > 0);
        let is_queued = !self.outbox.is_empty() || self.fair_queue.len() > 0;
        self.window.len() > 0 || is_queued || has_unread || !self.pool.is_empty()
    }
}

impl<'a> Session<'a> {
    async fn run(mut self, mut stop: Stop) -> Result<Infallible, State> {
        // The stream is checked before anything is published, to find out that it is missing or
        // another one. If it does not respond now, the check is repeated while messages are
        // published.
        let check = self.check_stream();
        let report = self.connection.unless_lost(check).await?;
        self.on_check(report, false)?;
        self.read_server_clock().await?;
        let mut ended = pin!(self.connection.lost_or_denied(&["mempool.", "_INBOX_"]));
        loop {
            // The replay of an empty pool ends without an event.
            if self.task.is_replaying() && self.task.outbox.is_empty() {
                self.task.read_event();
            }
            self.task.end_comparison_if_replayed();
            let is_stopping = stop.is_set();
            self.publish(is_stopping).await?;
            self.task.report();
            if is_stopping && self.task.is_done() {
                return Err(State::Ended);
            }
            if self.check.is_none() && self.next_check_at <= Instant::now() {
                self.check = Some(self.check_stream());
            }
            let wake_at = self.next_wake();
            let give_up_at = if is_stopping { None } else { self.give_up_at() };
            let event = self.task.events.as_mut().map(StreamExt::next);
            // Acknowledgements come before events, because they make room. A branch that is dropped
            // loses nothing: each takes only what it returns.
            tokio::select! {
                biased;
                () = stop.wait(), if !is_stopping => {}
                state = &mut ended => return Err(state),
                Some(result) = self.results.next() => self.on_result(result),
                Some(report) = OptionFuture::from(self.check.as_mut()) => {
                    self.check = None;
                    self.on_check(report, is_stopping)?;
                }
                // This comes after the responses, which may have arrived while messages were
                // published.
                Some(()) = OptionFuture::from(give_up_at.map(|then| sleep_until(then.into()))) => {
                    tracing::warn!(
                        stream = self.task.stream,
                        limit = ?SILENCE_LIMIT,
                        "the stream does not respond over this connection: the next server is tried"
                    );
                    return Err(State::Unavailable);
                }
                Some(()) = OptionFuture::from(wake_at.map(|then| sleep_until(then.into()))) => {}
                Some(event) = OptionFuture::from(event), if self.task.outbox.is_empty() => {
                    // The subscription cannot end while the task holds a handle of the pool.
                    let Some(event) = event else { return Err(State::Ended) };
                    self.task.on_event(event);
                }
            }
        }
    }

    /// Returns when there is something to do without an event or a response.
    fn next_wake(&self) -> Option<Instant> {
        let next_check_at = self.check.is_none().then_some(self.next_check_at);
        let may_publish_unknown = self.may_publish() && self.task.may_publish_unknown_callers();
        let fair_queue_at =
            if may_publish_unknown { self.task.fair_queue.next_wake() } else { None };
        let may_repeat = self.may_publish() && self.task.may_publish_again();
        let follower = &self.task.follower;
        let repeat_at = if may_repeat { follower.next_repeat_at(Instant::now()) } else { None };
        // When the state and the readiness change, because nothing was stored for too long.
        let unstored_at = match self.task.status.unstored.duration() {
            Some(unstored_for) if self.task.window.len() > 0 => {
                UNSTORED_LIMIT.checked_sub(unstored_for).map(|left| Instant::now() + left)
            }
            _ => None,
        };
        [next_check_at, fair_queue_at, repeat_at, unstored_at].into_iter().flatten().min()
    }

    /// Returns when the connection is given up, if a response is missing.
    fn give_up_at(&self) -> Option<Instant> {
        let is_response_missing = self.task.window.len() > 0 || self.check.is_some();
        is_response_missing.then_some(self.responded_at + SILENCE_LIMIT)
    }

    /// Whether a message may be published. One message at a time is tried until the stream has
    /// acknowledged one.
    fn may_publish(&self) -> bool {
        self.task.has_acknowledged || self.results.is_empty()
    }

    /// Publishes first the messages that the stream may not have, then new ones, as many as there
    /// is room for.
    async fn publish(&mut self, is_stopping: bool) -> Result<(), State> {
        while self.may_publish() {
            let (number, encoded) = if let Some(number) = self.to_republish.pop_first() {
                let Some(item) = self.task.window.get(number) else { continue };
                let Some(encoded) = item.encode(Instant::now(), &self.server_clock) else {
                    continue;
                };
                self.task.counters.republished.add(1);
                (number, encoded)
            } else if let Some(item) = self.next_item(is_stopping) {
                let Some(encoded) = item.encode(Instant::now(), &self.server_clock) else {
                    continue;
                };
                (self.add(item, encoded.payload.len()), encoded)
            } else {
                break;
            };
            self.send(number, encoded).await?;
        }
        Ok(())
    }

    fn next_item(&mut self, is_stopping: bool) -> Option<Item> {
        let now = Instant::now();
        let server_time = self.server_clock.upper_bound(now);
        let server_time = server_time.unwrap_or_else(|| self.task.clock.now());
        self.task.next_item(now, server_time, is_stopping)
    }

    /// Adds a new message to the window. Returns its number.
    fn add(&mut self, item: Item, size_bytes: usize) -> u64 {
        let PublisherTask { window, counters, follower, .. } = &mut *self.task;
        follower.on_published(&item, Instant::now());
        if matches!(item.record, Record::Head(_)) {
            // An old head that is in flight and fails would be published again behind this one.
            let withdrawn = window.withdraw(|other| item.overrides(other));
            counters.refused[RefuseReason::Withdrawn as usize].add(withdrawn);
        }
        counters.published.add(1);
        counters.repeated.add(u64::from(item.period.is_some()));
        counters.bytes.increment(size_bytes as u64);
        window.add(item, size_bytes)
    }

    /// Sends a message of the window. Waits while the client's command channel is full, but not
    /// beyond the loss or the silence of the connection.
    async fn send(&mut self, number: u64, encoded: Encoded) -> Result<(), State> {
        let Some(item) = self.task.window.get(number) else { return Ok(()) };
        let mut message_id = hex::encode(encoded.id);
        // With a suffix the stream takes it for another message. Readers ignore the suffix.
        message_id.push_str(&item.message_id_suffix(&self.task.run_id).unwrap_or_default());
        let lifetime = lifetime(item, self.task.pool.head());
        let [order_subject, other_subject] = &self.task.subjects;
        let subject = match item.record {
            Record::Order(_) => order_subject.clone(),
            _ => other_subject.clone(),
        };
        let message = build_message(&message_id, encoded.payload, lifetime);
        let sending = self.context.send_publish(subject.clone(), message);
        // Sending never ends if the socket accepts nothing.
        let sent = timeout(SILENCE_LIMIT, self.connection.unless_lost(sending)).await;
        match sent.map_err(|_| State::Unavailable)?? {
            Ok(ack) => {
                let item = Arc::downgrade(item);
                let context = self.context.clone();
                let server_clock = self.server_clock;
                let counters = Arc::clone(&self.task.counters);
                let result = async move {
                    let publish_again = || async {
                        // A message that was withdrawn is not published again.
                        let encoded = item
                            .upgrade()
                            .and_then(|item| item.encode(Instant::now(), &server_clock));
                        let Some(encoded) = encoded else {
                            return Response::Refused(RefuseReason::Withdrawn);
                        };
                        counters.republished.add(1);
                        let message = build_message(&message_id, encoded.payload, lifetime);
                        match context.send_publish(subject, message).await {
                            Ok(ack) => Response::from(ack.await),
                            Err(error) => Response::from(Err(error)),
                        }
                    };
                    let first = ack.into_future().map(Response::from);
                    let response = with_one_retry(first, publish_again, rand::random()).await;
                    PublishResult { number, message_id, lifetime, response }
                };
                self.results.push(result.boxed());
            }
            Err(error) => match Response::from(Err(error)) {
                response @ Response::Refused(_) => {
                    tracing::warn!(message_id, ?response, "a message cannot be published");
                    self.on_result(PublishResult { number, message_id, lifetime, response });
                }
                // The client has no connection any more. The message stays in the window.
                _ => return Err(State::Disconnected { reason: Lost }),
            },
        }
        Ok(())
    }

    fn on_result(
        &mut self,
        PublishResult { number, message_id, lifetime, response }: PublishResult,
    ) {
        let now = Instant::now();
        if response != Response::RetryLater(State::Unavailable) {
            self.responded_at = now;
        }
        match response {
            Response::Stored { sequence, is_duplicate } => {
                self.task.has_acknowledged = true;
                self.task.outage = None;
                self.task.status.unstored.restart(now);
                let PublisherTask {
                    window, counters, stream_check, follower, pool, outbox, ..
                } = &mut *self.task;
                if let Some(item) = window.get(number) {
                    outbox.extend(follower.on_stored(item, sequence, pool));
                }
                let stored_at = (!is_duplicate).then_some(now);
                if window.settle(number) {
                    counters.acknowledged[usize::from(is_duplicate)].add(1);
                }
                stream_check.on_acknowledged(Acknowledged {
                    sequence,
                    message_id,
                    stored_at,
                    lifetime,
                });
            }
            Response::InProcess => {
                self.to_republish.insert(number);
            }
            Response::RetryLater(state) => {
                if self.task.window.get(number).is_some() {
                    self.begin_outage(state);
                }
                if state == State::Unavailable {
                    // The stream may be missing.
                    self.next_check_at = self.next_check_at.min(now + CHECK_RETRY_INTERVAL);
                }
            }
            Response::Refused(reason) => {
                if self.task.window.settle(number) {
                    self.task.counters.refused[reason as usize].add(1);
                }
            }
        }
    }

    /// Both copies of a message have failed. All messages are published again after the oldest: if
    /// the leader was killed, the responses to all of them are lost.
    fn begin_outage(&mut self, state: State) {
        self.task.outage = Some(state);
        self.task.has_acknowledged = false;
        self.results.clear();
        self.to_republish = self.task.window.numbers().collect();
    }

    fn on_check(
        &mut self,
        report: Result<StreamReport, State>,
        is_stopping: bool,
    ) -> Result<(), State> {
        let now = Instant::now();
        self.next_check_at = now + CHECK_INTERVAL;
        match report {
            Ok(report) => {
                self.responded_at = now;
                self.is_checked = true;
                if let Some(reading) = report.server_clock {
                    self.server_clock.record(reading, now);
                }
                self.task.status.record_clock_offset(report.clock_offset);
                if self.task.stream_check.is_reset(&report, now) {
                    self.task.on_stream_reset();
                }
                Ok(())
            }
            // A new connection without a response is given up at once, because the next server may
            // be better connected.
            Err(State::Unavailable)
                if is_stopping || (self.is_checked && now < self.responded_at + SILENCE_LIMIT) =>
            {
                self.next_check_at = now + CHECK_RETRY_INTERVAL;
                Ok(())
            }
            Err(state) => Err(state),
        }
    }

    /// Reads the server's clock some times more. The first response over a connection is often
    /// slow, and messages that have waited for the connection are published at once.
    async fn read_server_clock(&mut self) -> Result<(), State> {
        for _ in 0..FURTHER_CLOCK_READINGS {
            let request = self.connection.stream_info(&self.task.stream, self.task.clock);
            let Ok(StreamInfo { server_clock, .. }) = self.connection.unless_lost(request).await?
            else {
                break;
            };
            if let Some(reading) = server_clock {
                self.server_clock.record(reading, Instant::now());
            }
        }
        Ok(())
    }

    /// Asks the server about the stream, and about the message at the highest sequence number that
    /// the stream has acknowledged.
    fn check_stream(&self) -> BoxFuture<'a, Result<StreamReport, State>> {
        let connection = self.connection;
        let clock = self.task.clock;
        let name = self.task.stream.clone();
        let needs_lifetimes = self.task.follower.is_private();
        let highest_when_asked = self.task.stream_check.highest.clone();
        let check = async move {
            let StreamInfo { info, clock_offset, server_clock } =
                connection.stream_info(&name, clock).await?;
            if needs_lifetimes && !info.config.allow_message_ttl {
                tracing::warn!(
                    stream = name,
                    "the stream was created without lifetimes of messages: an administrator must \
                     create it again, which keeps its messages"
                );
                return Err(State::StreamMissing);
            }
            let extent = Extent::from(&info);
            let max_bytes = u64::try_from(info.config.max_bytes).unwrap_or(u64::MAX);
            let mut id_at_sequence = None;
            if let Some(highest) = &highest_when_asked
                && (extent.first..=extent.last).contains(&highest.sequence)
                && !connection.is_denied("STREAM.MSG.GET.")
            {
                id_at_sequence = message_id_at(connection, &name, highest.sequence).await;
            }
            Ok(StreamReport {
                extent,
                max_age: info.config.max_age,
                // Half of the limit leaves room for a message of the largest size.
                is_full: info.state.bytes > max_bytes / 2,
                highest_when_asked,
                id_at_sequence,
                clock_offset,
                server_clock,
            })
        };
        check.boxed()
    }
}

fn build_message(message_id: &str, payload: Bytes, lifetime: Option<Duration>) -> PublishMessage {
    let message = PublishMessage::build().message_id(message_id).payload(payload);
    match lifetime {
        Some(lifetime) => message.ttl(lifetime),
        None => message,
    }
}

/// Returns the id of the message at a sequence number, if the server returns it.
async fn message_id_at(connection: &Connection, stream: &str, sequence: u64) -> Option<String> {
    // It needs no request for the stream's info, which exists.
    let stream = connection.context.get_stream_no_info(stream).await.ok()?;
    let message = stream.get_raw_message(sequence).await.ok()?;
    message.headers.get(NATS_MESSAGE_ID).map(ToString::to_string)
}
