//! One connection of a publisher: publishes the pool's events and processes the acknowledgements.

use std::{
    convert::Infallible,
    pin::pin,
    time::{Duration, Instant},
};

use alloy_primitives::hex;
use async_nats::{
    header::NATS_MESSAGE_ID,
    jetstream::{Context, message::PublishMessage},
};
use futures::{
    FutureExt as _, StreamExt,
    future::{BoxFuture, OptionFuture},
    stream::FuturesUnordered,
};
use tokio::time::{sleep, sleep_until, timeout};

use super::{PublisherTask, UNSTORED_LIMIT};
use crate::{
    connection::{CHECK_INTERVAL, CHECK_RETRY_INTERVAL, Connection, SILENCE_LIMIT, StreamInfo},
    metrics::RefuseReason,
    position::Extent,
    response::Response,
    state::{DisconnectReason::Lost, State},
    stream_check::{Acknowledged, StreamReport},
    window::{Attempt, Repeat},
    wire::{Encoded, Record},
    worker::{Stop, Task},
};

/// The timeout of an acknowledgement. Within a region one takes some milliseconds, and a cluster
/// elects another leader within some seconds.
const ACK_TIMEOUT: Duration = Duration::from_secs(5);

/// The timeout of the single message that is tried during an outage. A leader that was elected
/// without the others accepts messages and never acknowledges them.
const OUTAGE_ACK_TIMEOUT: Duration = Duration::from_secs(1);

/// The pause before a message is published again that the server was storing for another machine at
/// the same moment.
const IN_PROCESS_PAUSE: Duration = Duration::from_secs(1);

/// The outcome of one attempt to publish a message.
struct PublishResult {
    attempt: Attempt,
    message_id: String,
    response: Response,
}

struct Session<'a> {
    task: &'a mut PublisherTask,
    connection: &'a Connection,
    context: Context,
    results: FuturesUnordered<BoxFuture<'a, PublishResult>>,
    /// A running request that checks the stream.
    check: Option<BoxFuture<'a, Result<StreamReport, State>>>,
    next_check_at: Instant,
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
        self.window.on_connected();
        if self.events.is_none() {
            self.begin_comparison();
        }
        let session = Session {
            task: self,
            connection,
            context,
            results: FuturesUnordered::new(),
            check: None,
            next_check_at: Instant::now(),
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
        self.window.len() > 0 || self.fair_queue.len() > 0 || !self.pool.is_empty()
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
        let may_publish_unknown = self.task.may_publish_unknown_callers();
        let fair_queue_at =
            if may_publish_unknown { self.task.fair_queue.next_wake() } else { None };
        // When the state and the readiness change, because nothing was stored for too long.
        let unstored_at = match self.task.status.unstored.duration() {
            Some(unstored_for) if self.task.window.len() > 0 => {
                UNSTORED_LIMIT.checked_sub(unstored_for).map(|left| Instant::now() + left)
            }
            _ => None,
        };
        [next_check_at, self.task.window.next_wake(), fair_queue_at, unstored_at]
            .into_iter()
            .flatten()
            .min()
    }

    /// Returns when the connection is given up, if a response is missing.
    fn give_up_at(&self) -> Option<Instant> {
        let is_response_missing = self.task.window.len() > 0 || self.check.is_some();
        is_response_missing.then_some(self.responded_at + SILENCE_LIMIT)
    }

    /// Publishes first the messages that the stream may not have, then new ones, as many as there
    /// is room for.
    async fn publish(&mut self, is_stopping: bool) -> Result<(), State> {
        while let Some(Repeat { attempt, waited }) = self.task.window.next_repeat(Instant::now()) {
            let item = self.task.window.get(attempt);
            if let Some(encoded) = item.and_then(|item| item.encode(Instant::now())) {
                self.task.counters.republished.add(1);
                self.send(attempt, encoded, waited).await?;
            }
        }
        while let Some(item) = self.task.next_item(is_stopping) {
            let PublisherTask { window, counters, .. } = &mut *self.task;
            if matches!(item.record, Record::Head(_)) {
                // An old head that is in flight and fails would be published again behind this one.
                let withdrawn = window.withdraw(|other| item.overrides(other));
                counters.refused[RefuseReason::Withdrawn as usize].add(withdrawn);
            }
            let Some(encoded) = item.encode(Instant::now()) else { continue };
            let size_bytes = encoded.payload.len();
            counters.published.add(1);
            counters.bytes.increment(size_bytes as u64);
            let attempt = window.add(item, size_bytes, Instant::now());
            self.send(attempt, encoded, Duration::ZERO).await?;
        }
        Ok(())
    }

    /// Sends a message of the window whose acknowledgement has been waited for during `waited`.
    /// Waits while the client's command channel is full, but not beyond the loss or the silence of
    /// the connection.
    async fn send(
        &mut self,
        attempt: Attempt,
        encoded: Encoded,
        waited: Duration,
    ) -> Result<(), State> {
        let window = &self.task.window;
        let Some(item) = window.get(attempt) else { return Ok(()) };
        let ack_timeout = if window.outage().is_some() { OUTAGE_ACK_TIMEOUT } else { ACK_TIMEOUT };
        let ack_timeout = ack_timeout.saturating_sub(waited);
        let mut message_id = hex::encode(encoded.id);
        // With a suffix the stream takes it for another message. Readers ignore the suffix.
        message_id.push_str(&item.message_id_suffix(&self.task.run_id).unwrap_or_default());
        let message = PublishMessage::build().message_id(&message_id).payload(encoded.payload);
        let [order_subject, other_subject] = &self.task.subjects;
        let subject = match item.record {
            Record::Order(_) => order_subject.clone(),
            _ => other_subject.clone(),
        };
        let sending = self.context.send_publish(subject, message);
        // Sending never ends if the socket accepts nothing.
        let sent = timeout(SILENCE_LIMIT, self.connection.unless_lost(sending)).await;
        match sent.map_err(|_| State::Unavailable)?? {
            Ok(ack) => {
                let result = async move {
                    let response = match timeout(ack_timeout, ack.into_future()).await {
                        Ok(ack) => Response::from(ack),
                        Err(_) => Response::RetryLater(State::Unavailable),
                    };
                    if response == Response::InProcess {
                        sleep(IN_PROCESS_PAUSE).await;
                    }
                    PublishResult { attempt, message_id, response }
                };
                self.results.push(result.boxed());
            }
            Err(error) => match Response::from(Err(error)) {
                response @ Response::Refused(_) => {
                    tracing::warn!(message_id, ?response, "a message cannot be published");
                    self.on_result(PublishResult { attempt, message_id, response });
                }
                // The client has no connection any more. The message stays in the window.
                _ => return Err(State::Disconnected { reason: Lost }),
            },
        }
        Ok(())
    }

    fn on_result(&mut self, PublishResult { attempt, message_id, response }: PublishResult) {
        let now = Instant::now();
        if response != Response::RetryLater(State::Unavailable) {
            self.responded_at = now;
        }
        match response {
            Response::Stored { sequence, is_duplicate } => {
                self.task.has_acknowledged = true;
                self.task.status.unstored.restart(now);
                let PublisherTask {
                    window, counters, stream_check, follower, pool, outbox, ..
                } = &mut *self.task;
                if let Some(item) = window.get(attempt) {
                    outbox.extend(follower.on_stored(item, sequence, pool));
                }
                let stored_at = (!is_duplicate).then_some(now);
                if window.settle(attempt, stored_at) {
                    counters.acknowledged[usize::from(is_duplicate)].add(1);
                }
                stream_check.on_acknowledged(Acknowledged { sequence, message_id, stored_at });
            }
            Response::InProcess => self.task.window.requeue(attempt),
            Response::RetryLater(state) => {
                self.task.window.fail(attempt, state, now, rand::random());
                if state == State::Unavailable {
                    // The stream may be missing.
                    self.next_check_at = self.next_check_at.min(now + CHECK_RETRY_INTERVAL);
                }
            }
            Response::Refused(reason) => {
                if self.task.window.settle(attempt, None) {
                    self.task.counters.refused[reason as usize].add(1);
                }
            }
        }
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

    /// Asks the server about the stream, and about the message at the highest sequence number that
    /// the stream has acknowledged.
    fn check_stream(&self) -> BoxFuture<'a, Result<StreamReport, State>> {
        let connection = self.connection;
        let clock = self.task.clock;
        let name = self.task.stream.clone();
        let highest_when_asked = self.task.stream_check.highest.clone();
        let check = async move {
            let StreamInfo { info, clock_offset } = connection.stream_info(&name, clock).await?;
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
            })
        };
        check.boxed()
    }
}

/// Returns the id of the message at a sequence number, if the server returns it.
async fn message_id_at(connection: &Connection, stream: &str, sequence: u64) -> Option<String> {
    // It needs no request for the stream's info, which exists.
    let stream = connection.context.get_stream_no_info(stream).await.ok()?;
    let message = stream.get_raw_message(sequence).await.ok()?;
    message.headers.get(NATS_MESSAGE_ID).map(ToString::to_string)
}
