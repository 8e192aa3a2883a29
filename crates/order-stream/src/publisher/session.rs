//! One connection of a publisher: events of the pool out, acknowledgements in.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use alloy_primitives::hex;
use async_nats::{
    header::NATS_MESSAGE_ID,
    jetstream::{Context, message::PublishMessage},
};
use futures::{
    FutureExt as _, StreamExt as _,
    future::{BoxFuture, OptionFuture},
    stream::FuturesUnordered,
};
use order_pool::{Event, Lagged, Subscription};
use tokio::time::{sleep, sleep_until};

use super::Run;
use crate::{
    follow::Item,
    identity::{Acknowledged, Found},
    link::{Link, Silence},
    metrics::RefuseReason,
    response::Response,
    running::Stop,
    state::{DisconnectReason, State},
    window::Trouble,
    wire::Encoded,
};

/// How long an acknowledgement is waited for: it takes some milliseconds within a region, and a cluster elects another
/// leader within some seconds.
const ACK_TIMEOUT: Duration = Duration::from_secs(5);

/// Before a message that another machine was publishing at the same moment is published again.
const IN_PROCESS_PAUSE: Duration = Duration::from_secs(1);

/// How often the stream is compared with the one that has acknowledged messages, and how soon again without a response.
const CHECK_EVERY: Duration = Duration::from_secs(5);
const CHECK_AGAIN: Duration = Duration::from_secs(1);

/// Events of the pool that are processed before acknowledgements are read again, and the reverse.
const TURN: usize = 64;

/// The response to a message: its number and its message id.
type Responded = (u64, String, Response);

/// What happens over one connection.
struct Session<'a> {
    run: &'a mut Run,
    link: &'a Link,
    context: &'a Context,
    events: Subscription,
    comparing: bool,
    /// What is to be published before other events are read.
    held: VecDeque<Item>,
    responses: FuturesUnordered<BoxFuture<'a, Responded>>,
    check: Option<BoxFuture<'a, Result<Found, State>>>,
    check_at: Instant,
    silence: Silence,
}

/// Publishes until the connection is lost or given up, or until everything is done after `stop`. Returns the state from
/// then on.
pub(super) async fn run(run: &mut Run, link: &Link, stop: Stop) -> State {
    let mut context = link.context.clone();
    context.set_timeout(ACK_TIMEOUT);
    run.identity.connected();
    run.window.connected();
    let events = run.pool.subscribe_all();
    let mut session = Session {
        run,
        link,
        context: &context,
        events,
        comparing: true,
        held: VecDeque::new(),
        responses: FuturesUnordered::new(),
        check: None,
        check_at: Instant::now(),
        silence: Silence::default(),
    };
    session.begin_comparison();
    let Err(end) = session.serve(stop).await;
    let Session { run, held, .. } = session;
    held.iter().for_each(|item| run.follower.forget(item));
    run.counters.unfinished.set(run.window.len() as f64);
    end
}

impl<'a> Session<'a> {
    fn begin_comparison(&mut self) {
        self.run.follower.begin_comparison();
        self.run.counters.comparisons.add(1);
        self.comparing = true;
    }

    fn compare(&mut self) {
        self.events.resync();
        self.begin_comparison();
    }

    fn end_comparison(&mut self) {
        if self.comparing && !self.events.is_replaying() {
            self.comparing = false;
            self.held.extend(self.run.follower.end_comparison());
        }
        self.run.counters.lost_events.add(self.run.follower.take_unremembered());
    }

    async fn serve(&mut self, mut stop: Stop) -> Result<std::convert::Infallible, State> {
        // Before anything is published: a stream that is missing or another one is found here. One that does not respond
        // now is asked again beside the publishing.
        let asked = self.ask();
        let found = tokio::select! {
            biased;
            reason = self.link.lost() => return Err(State::Disconnected { reason }),
            found = asked => found,
        };
        self.note_stream(found, false)?;
        let mut status = self.link.status.clone();
        loop {
            // A replay of an empty pool ends without an event.
            if self.events.is_replaying()
                && self.held.is_empty()
                && let Some(event) = self.events.try_next()
            {
                self.on_events(event).await?;
            }
            self.end_comparison();
            self.publish_held().await?;
            self.resend().await?;
            self.show();
            let is_done = !self.events.is_replaying()
                && self.events.behind() == 0
                && self.held.is_empty()
                && self.run.window.len() == 0;
            let is_stopping = stop.is_set();
            if is_stopping && is_done {
                return Err(State::Ended);
            }
            if self.check.is_none() && self.check_at <= Instant::now() {
                self.check = Some(self.ask());
            }
            let checks = self.check.is_none().then_some(self.check_at);
            let wake = checks.into_iter().chain(self.run.window.next_wake()).min();
            // Acknowledgements before events: they make room. Nothing is lost by a branch that is dropped: each consumes
            // only what it returns.
            tokio::select! {
                biased;
                () = stop.wait(), if !is_stopping => {}
                changed = status.changed() => {
                    let seen = status.borrow_and_update();
                    let lost = seen.lost.or(changed.err().map(|_| DisconnectReason::Lost));
                    if let Some(reason) = lost {
                        return Err(State::Disconnected { reason });
                    }
                    let mut subjects = self.run.subjects.both.iter();
                    if subjects.any(|subject| seen.is_denied(subject)) || seen.is_denied("_INBOX_") {
                        return Err(State::Denied);
                    }
                }
                Some(response) = self.responses.next() => self.on_responses(response).await?,
                found = OptionFuture::from(self.check.as_mut()), if self.check.is_some() => {
                    self.check = None;
                    if let Some(found) = found {
                        self.note_stream(found, is_stopping)?;
                    }
                }
                Some(()) = OptionFuture::from(wake.map(|at| sleep_until(at.into()))) => {}
                event = self.events.next(), if self.held.is_empty() => {
                    // Not while this holds a handle of the pool.
                    let Some(event) = event else { return Err(State::Ended) };
                    self.on_events(event).await?;
                }
            }
        }
    }

    fn show(&self) {
        let window = &self.run.window;
        self.run.shown.set(match window.trouble() {
            Some(Trouble::Unavailable) => State::Unavailable,
            Some(Trouble::Full) => State::Full,
            None if self.comparing => State::CatchingUp,
            None if !self.held.is_empty() => State::Lagging,
            None => State::Live,
        });
        self.run.counters.unfinished.set(window.len() as f64);
    }

    /// One event, and those that are there behind it.
    async fn on_events(&mut self, first: Result<Event, Lagged>) -> Result<(), State> {
        let mut next = Some(first);
        let mut processed = 0;
        while let Some(event) = next {
            match event {
                Ok(event) => {
                    self.held.extend(self.run.follower.on(&event));
                    self.publish_held().await?;
                }
                Err(Lagged { missed, .. }) => {
                    tracing::warn!(missed, "the publisher was too slow for the pool's log");
                    self.run.counters.lost_events.add(missed);
                    self.compare();
                }
            }
            self.end_comparison();
            processed += 1;
            if processed == TURN || !self.held.is_empty() {
                break;
            }
            next = self.events.try_next();
        }
        Ok(())
    }

    /// Publishes what is held, as far as there is room.
    async fn publish_held(&mut self) -> Result<(), State> {
        while self.run.window.has_room()
            && let Some(item) = self.held.pop_front()
        {
            let Run { window, counters, .. } = &mut *self.run;
            if matches!(item, Item::CancelPrivate { .. } | Item::Head(_)) {
                // What is in flight and fails would be published again behind it.
                let withdrawn = window.withdraw(|other| item.overrides(other));
                counters.refused[RefuseReason::Withdrawn.index()].add(withdrawn);
            }
            let Some(encoded) = item.encode() else { continue };
            let size = encoded.payload.len();
            counters.published.add(1);
            counters.bytes.increment(size as u64);
            let number = window.add(item, size);
            self.send(number, encoded).await?;
        }
        Ok(())
    }

    async fn resend(&mut self) -> Result<(), State> {
        while let Some(number) = self.run.window.resend(Instant::now()) {
            self.send_again(number).await?;
        }
        Ok(())
    }

    async fn send_again(&mut self, number: u64) -> Result<(), State> {
        let Some(encoded) = self.run.window.get(number).and_then(Item::encode) else {
            return Ok(());
        };
        self.run.counters.republished.add(1);
        self.send(number, encoded).await
    }

    /// Sends a message of the window. Waits only while the connection's commands are full, and not beyond its loss.
    async fn send(&mut self, number: u64, encoded: Encoded) -> Result<(), State> {
        let Some(item) = self.run.window.get(number) else { return Ok(()) };
        let mut id = hex::encode(encoded.id);
        // Another message for the stream, and the same for who reads it.
        id.push_str(&item.suffix(&self.run.run_id).unwrap_or_default());
        let message = PublishMessage::build().message_id(&id).payload(encoded.payload);
        let sending = self.context.send_publish(self.run.subjects.of(item).clone(), message);
        let sent = tokio::select! {
            biased;
            sent = sending => sent,
            reason = self.link.lost() => return Err(State::Disconnected { reason }),
        };
        match sent {
            Ok(ack) => self.responses.push(
                async move {
                    let response = Response::from(ack.await);
                    if response == Response::InProcess {
                        sleep(IN_PROCESS_PAUSE).await;
                    }
                    (number, id, response)
                }
                .boxed(),
            ),
            Err(error) => match Response::from(Err(error)) {
                Response::Refused(reason) => {
                    tracing::warn!(id, ?reason, "a message is not published");
                    self.refuse(number, reason);
                }
                // A socket that takes nothing: the message stays in the window.
                _ => return Err(State::Disconnected { reason: DisconnectReason::Lost }),
            },
        }
        Ok(())
    }

    fn refuse(&mut self, number: u64, reason: RefuseReason) {
        if self.run.window.settle(number) {
            self.run.counters.refused[reason.index()].add(1);
        }
    }

    /// One response, and those that are there behind it.
    async fn on_responses(&mut self, first: Responded) -> Result<(), State> {
        self.on_response(first).await?;
        for _ in 1..TURN {
            let Some(Some(response)) = self.responses.next().now_or_never() else { break };
            self.on_response(response).await?;
        }
        Ok(())
    }

    async fn on_response(
        &mut self,
        (number, message_id, response): Responded,
    ) -> Result<(), State> {
        let now = Instant::now();
        match response {
            Response::Stored { sequence, is_duplicate } => {
                let Run { window, counters, identity, .. } = &mut *self.run;
                if window.settle(number) {
                    counters.acknowledged[usize::from(is_duplicate)].add(1);
                }
                let stored_at = (!is_duplicate).then_some(now);
                if identity.acknowledged(Acknowledged { sequence, message_id, stored_at }) {
                    self.reset();
                }
            }
            Response::InProcess => self.send_again(number).await?,
            Response::Later(trouble) => {
                self.run.window.fail(number, trouble, now, rand::random());
                if trouble == Trouble::Unavailable {
                    // It may be missing.
                    self.check_at = self.check_at.min(now + CHECK_AGAIN);
                }
            }
            Response::Refused(reason) => self.refuse(number, reason),
        }
        Ok(())
    }

    /// The stream has lost what it had stored: everything is published again.
    fn reset(&mut self) {
        tracing::warn!(stream = self.run.stream, "the stream has lost what it had stored");
        self.run.counters.resets.add(1);
        self.run.follower.forget_all();
        self.compare();
    }

    fn note_stream(&mut self, found: Result<Found, State>, is_stopping: bool) -> Result<(), State> {
        let now = Instant::now();
        self.check_at = now + CHECK_EVERY;
        match found {
            Ok(found) => {
                self.silence.note(true, now);
                if self.run.identity.is_reset(&found, now) {
                    self.reset();
                }
                Ok(())
            }
            Err(State::Unavailable) => {
                self.check_at = now + CHECK_AGAIN;
                let is_given_up = self.silence.note(false, now) && !is_stopping;
                if is_given_up { Err(State::Unavailable) } else { Ok(()) }
            }
            Err(state) => Err(state),
        }
    }

    /// Asks for the stream, and for the message in the place of the highest that it has acknowledged.
    fn ask(&self) -> BoxFuture<'a, Result<Found, State>> {
        let (link, name) = (self.link, self.run.stream.clone());
        let asked = self.run.identity.highest().cloned();
        let ask = async move {
            let stream = link.stream(&name).await?;
            let info = stream.cached_info();
            let (first, last) = (info.state.first_sequence, info.state.last_sequence);
            let limit = u64::try_from(info.config.max_bytes).unwrap_or(u64::MAX);
            let mut found = Found {
                created: info.created.unix_timestamp_nanos(),
                first,
                last,
                max_age: info.config.max_age,
                // Not by a message of the largest size.
                is_full: info.state.bytes > limit / 2,
                asked,
                in_its_place: None,
            };
            if let Some(asked) = &found.asked
                && (first..=last).contains(&asked.sequence)
                && !link.is_denied("$JS.API.STREAM.MSG.GET.")
            {
                let raw = stream.get_raw_message(asked.sequence).await;
                let id =
                    raw.ok().and_then(|raw| Some(raw.headers.get(NATS_MESSAGE_ID)?.to_string()));
                found.in_its_place = id;
            }
            Ok(found)
        };
        ask.boxed()
    }
}
