//! One connection of a publisher: events of the pool out, acknowledgements in.

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

use super::{Run, UNSTORED_LIMIT};
use crate::{
    identity::{Acknowledged, Found},
    link::{CHECK_AGAIN, CHECK_EVERY, Link, SILENCE, StreamInfo},
    metrics::RefuseReason,
    position::Extent,
    response::Response,
    running::{self, Stop},
    state::{DisconnectReason::Lost, State},
    window::Sent,
    wire::{Encoded, Record},
};

/// How long an acknowledgement is waited for: it takes some milliseconds within a region, and a cluster elects another
/// leader within some seconds.
const ACK_TIMEOUT: Duration = Duration::from_secs(5);

/// The same, while the stream stores nothing and one message is tried: a leader that was elected without the others accepts
/// messages and never acknowledges them.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(1);

/// Before a message that another machine was publishing at the same moment is published again.
const IN_PROCESS_PAUSE: Duration = Duration::from_secs(1);

type Responded = (Sent, String, Response);

struct Session<'a> {
    run: &'a mut Run,
    link: &'a Link,
    context: Context,
    responses: FuturesUnordered<BoxFuture<'a, Responded>>,
    check: Option<BoxFuture<'a, Result<Found, State>>>,
    check_at: Instant,
    /// When the stream responded last, and whether it has over this connection.
    responded_at: Instant,
    is_served: bool,
}

impl running::Session for Run {
    async fn connected(&mut self, link: &Link, stop: Stop) -> State {
        self.counters.connects[0].add(1);
        self.shown.set(State::CatchingUp);
        let mut context = link.context.clone();
        context.set_timeout(ACK_TIMEOUT);
        self.identity.connected();
        self.is_acknowledged = false;
        self.window.connected();
        if self.events.is_none() {
            self.compare();
        }
        let session = Session {
            run: self,
            link,
            context,
            responses: FuturesUnordered::new(),
            check: None,
            check_at: Instant::now(),
            responded_at: Instant::now(),
            is_served: false,
        };
        let Err(end) = session.serve(stop).await;
        self.disconnected();
        end
    }

    fn has_more(&self) -> bool {
        self.window.len() > 0 || self.turns.len() > 0 || !self.pool.is_empty()
    }
}

impl<'a> Session<'a> {
    async fn serve(mut self, mut stop: Stop) -> Result<Infallible, State> {
        // Before anything is published: a stream that is missing or another one is found here. One that does not respond
        // now is asked again beside the publishing.
        let asked = self.ask();
        let found = self.link.unless_lost(asked).await?;
        self.note_stream(found, false)?;
        let mut ended = pin!(self.link.ended(&["mempool.", "_INBOX_"]));
        loop {
            // A replay of an empty pool ends without an event.
            if self.run.is_replaying() && self.run.held.is_empty() {
                self.run.read_one();
            }
            self.run.end_comparison();
            let is_stopping = stop.is_set();
            self.publish(is_stopping).await?;
            self.run.show();
            if is_stopping && self.run.is_done() {
                return Err(State::Ended);
            }
            if self.check.is_none() && self.check_at <= Instant::now() {
                self.check = Some(self.ask());
            }
            let checks = self.check.is_none().then_some(self.check_at);
            let turn = self.run.has_turns().then(|| self.run.turns.next_wake()).flatten();
            let is_waiting = self.run.window.len() > 0 || self.check.is_some();
            let given_up = is_waiting.then_some(self.responded_at + SILENCE);
            let given_up = given_up.filter(|_| !is_stopping);
            let unstored = self.run.shown.unstored.duration().filter(|_| self.run.window.len() > 0);
            // When the state or the readiness changes without an event.
            let overdue = unstored.and_then(|unstored| UNSTORED_LIMIT.checked_sub(unstored));
            let overdue = overdue.map(|left| Instant::now() + left);
            let wake = checks.into_iter().chain(self.run.window.next_wake()).chain(turn);
            let wake = wake.chain(overdue).min();
            let event = self.run.events.as_mut().map(StreamExt::next);
            // Acknowledgements before events: they make room. Nothing is lost by a branch that is dropped: each consumes
            // only what it returns.
            tokio::select! {
                biased;
                () = stop.wait(), if !is_stopping => {}
                state = &mut ended => return Err(state),
                Some(response) = self.responses.next() => self.on_response(response),
                Some(found) = OptionFuture::from(self.check.as_mut()) => {
                    self.check = None;
                    self.note_stream(found, is_stopping)?;
                }
                // Behind the responses that have come while it published.
                Some(()) = OptionFuture::from(given_up.map(|then| sleep_until(then.into()))) => {
                    let stream = &self.run.stream;
                    tracing::warn!(stream, "the stream does not respond over this connection");
                    return Err(State::Unavailable);
                }
                Some(()) = OptionFuture::from(wake.map(|at| sleep_until(at.into()))) => {}
                Some(event) = OptionFuture::from(event), if self.run.held.is_empty() => {
                    // Not while this holds a handle of the pool.
                    let Some(event) = event else { return Err(State::Ended) };
                    self.run.on_event(event);
                }
            }
        }
    }

    /// Publishes again what the stream may not have, then what is held, as far as there is room.
    async fn publish(&mut self, is_stopping: bool) -> Result<(), State> {
        while let Some((sent, waited)) = self.run.window.again(Instant::now()) {
            if let Some(encoded) =
                self.run.window.get(sent).and_then(|item| item.encode(Instant::now()))
            {
                self.run.counters.republished.add(1);
                self.send(sent, encoded, waited).await?;
            }
        }
        while let Some(item) = self.run.next_item(is_stopping) {
            let Run { window, counters, .. } = &mut *self.run;
            if matches!(item.record, Record::Head(_)) {
                // What is in flight and fails would be published again behind it.
                let withdrawn = window.withdraw(|other| item.overrides(other));
                counters.refused[RefuseReason::Withdrawn as usize].add(withdrawn);
            }
            let Some(encoded) = item.encode(Instant::now()) else { continue };
            let size = encoded.payload.len();
            counters.published.add(1);
            counters.bytes.increment(size as u64);
            let sent = window.add(item, size, Instant::now());
            self.send(sent, encoded, Duration::ZERO).await?;
        }
        Ok(())
    }

    /// Sends a message of the window, whose acknowledgement has been waited for that long. Waits only while the connection's
    /// commands are full, and not beyond its loss or its silence.
    async fn send(&mut self, sent: Sent, encoded: Encoded, waited: Duration) -> Result<(), State> {
        let window = &self.run.window;
        let Some(item) = window.get(sent) else { return Ok(()) };
        let patience = if window.trouble().is_some() { TRIAL_TIMEOUT } else { ACK_TIMEOUT };
        let patience = patience.saturating_sub(waited);
        let mut id = hex::encode(encoded.id);
        // Another message for the stream, and the same for who reads it.
        id.push_str(&item.suffix(&self.run.run_id).unwrap_or_default());
        let message = PublishMessage::build().message_id(&id).payload(encoded.payload);
        let is_other = !matches!(item.record, Record::Order(_));
        let subject = self.run.subjects[usize::from(is_other)].clone();
        let sending = self.context.send_publish(subject, message);
        // Without an end if the socket takes nothing.
        let handed_over = timeout(SILENCE, self.link.unless_lost(sending)).await;
        match handed_over.map_err(|_| State::Unavailable)?? {
            Ok(ack) => {
                let responded = async move {
                    let ack = timeout(patience, ack.into_future()).await;
                    let response = ack.map_or(Response::Later(State::Unavailable), Response::from);
                    if response == Response::InProcess {
                        sleep(IN_PROCESS_PAUSE).await;
                    }
                    (sent, id, response)
                };
                self.responses.push(responded.boxed());
            }
            Err(error) => match Response::from(Err(error)) {
                refused @ Response::Refused(_) => {
                    tracing::warn!(id, ?refused, "a message is not published");
                    self.on_response((sent, id, refused));
                }
                // A socket that takes nothing: the message stays in the window.
                _ => return Err(State::Disconnected { reason: Lost }),
            },
        }
        Ok(())
    }

    fn on_response(&mut self, (sent, message_id, response): Responded) {
        let now = Instant::now();
        if response != Response::Later(State::Unavailable) {
            self.responded_at = now;
        }
        match response {
            Response::Stored { sequence, is_duplicate } => {
                self.run.is_acknowledged = true;
                self.run.shown.unstored.restart(now);
                let Run { window, counters, identity, follower, pool, held, .. } = &mut *self.run;
                let item = window.get(sent);
                let again = item.and_then(|item| follower.acknowledged(item, sequence, pool));
                held.extend(again);
                let stored_at = (!is_duplicate).then_some(now);
                if window.settle(sent, stored_at) {
                    counters.acknowledged[usize::from(is_duplicate)].add(1);
                }
                if identity.acknowledged(Acknowledged { sequence, message_id, stored_at }) {
                    self.run.reset();
                }
            }
            Response::InProcess => self.run.window.unsend(sent),
            Response::Later(trouble) => {
                self.run.window.fail(sent, trouble, now, rand::random());
                if trouble == State::Unavailable {
                    // It may be missing.
                    self.check_at = self.check_at.min(now + CHECK_AGAIN);
                }
            }
            Response::Refused(reason) => {
                if self.run.window.settle(sent, None) {
                    self.run.counters.refused[reason as usize].add(1);
                }
            }
        }
    }

    fn note_stream(&mut self, found: Result<Found, State>, is_stopping: bool) -> Result<(), State> {
        let now = Instant::now();
        self.check_at = now + CHECK_EVERY;
        match found {
            Ok(found) => {
                self.responded_at = now;
                self.is_served = true;
                self.run.shown.note_offset(found.clock_offset);
                if self.run.identity.is_reset(&found, now) {
                    self.run.reset();
                }
                Ok(())
            }
            // Of a new connection at once: the next server may be better connected.
            Err(State::Unavailable)
                if is_stopping || (self.is_served && now < self.responded_at + SILENCE) =>
            {
                self.check_at = now + CHECK_AGAIN;
                Ok(())
            }
            Err(state) => Err(state),
        }
    }

    /// Asks for the stream, and for the message in the place of the highest that it has acknowledged.
    fn ask(&self) -> BoxFuture<'a, Result<Found, State>> {
        let (link, name, clock) = (self.link, self.run.stream.clone(), self.run.clock);
        let asked = self.run.identity.highest.clone();
        let ask = async move {
            let StreamInfo { info, clock_offset } = link.stream(&name, clock).await?;
            let extent = Extent::from(&info);
            let limit = u64::try_from(info.config.max_bytes).unwrap_or(u64::MAX);
            let mut found = Found {
                extent,
                max_age: info.config.max_age,
                // Not by a message of the largest size.
                is_full: info.state.bytes > limit / 2,
                asked,
                in_its_place: None,
                clock_offset,
            };
            if let Some(asked) = &found.asked
                && (extent.first..=extent.last).contains(&asked.sequence)
                && !link.is_denied("STREAM.MSG.GET.")
            {
                // Without a request of its own: the stream is there.
                let stream = link.context.get_stream_no_info(&name).await;
                let raw = match stream {
                    Ok(stream) => stream.get_raw_message(asked.sequence).await.ok(),
                    Err(_) => None,
                };
                let id = raw.as_ref().and_then(|raw| raw.headers.get(NATS_MESSAGE_ID));
                found.in_its_place = id.map(ToString::to_string);
            }
            Ok(found)
        };
        ask.boxed()
    }
}
