//! One connection of a publisher: events of the pool out, acknowledgements in.

use std::{
    future::pending,
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use async_nats::{HeaderMap, Message, StatusCode, Subject, Subscriber};
use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _};
use order_pool::{Event, Lagged, Subscription};
use tokio::{
    sync::oneshot,
    time::{sleep_until, timeout},
};

use super::{End, Run};
use crate::{
    ack::answer_of,
    config::Flow,
    follow::Item,
    link::Link,
    metrics::RefuseReason,
    outbox::{Answer, Outcome, Trouble},
    state::{DisconnectReason, State},
    subjects::seen,
    wire::{MAX_SEEN, encode_seen},
};

/// The bytes of the one header: `NATS/1.0`, the name, 64 digits, and line ends.
const HEADER_BYTES: usize = 96;

/// Events of the pool that are processed before acknowledgements are read again, and the reverse.
const TURN: usize = 64;

/// How long a report waits for more entries.
const REPORT_AFTER: Duration = Duration::from_millis(200);

/// How long a stream that has just been unavailable is waited for.
const CHECK_TIMEOUT: Duration = Duration::from_secs(1);

/// Longer limits of a shutdown are cut: the clock may not go as far.
const LONGEST_STOP: Duration = Duration::from_hours(24);

/// What happens over one connection.
pub(super) struct Session<'a> {
    run: &'a mut Run,
    link: &'a Link,
    inbox: String,
    acks: Subscriber,
    events: Subscription,
    comparing: bool,
    /// Until when it waits for acknowledgements, once it is to stop.
    deadline: Option<Instant>,
    denials: u64,
    max_payload: usize,
}

impl<'a> Session<'a> {
    pub(super) fn new(run: &'a mut Run, link: &'a Link, inbox: String, acks: Subscriber) -> Self {
        let events = run.pool.subscribe_all();
        let max_payload = link.client.max_payload();
        let (comparing, deadline, denials) = (true, None, 0);
        let mut session =
            Self { run, link, inbox, acks, events, comparing, deadline, denials, max_payload };
        session.begin_comparison();
        session
    }

    fn begin_comparison(&mut self) {
        self.run.follower.begin_comparison();
        self.run.counters.comparisons.add(1);
        self.comparing = true;
    }

    pub(super) async fn run(mut self, stopping: &mut oneshot::Receiver<Duration>) -> End {
        let end = self.serve(stopping).await;
        // Nothing is waited for once it is to stop and the connection is lost.
        if self.deadline.is_some() { End::Stopped } else { end }
    }

    async fn serve(&mut self, stopping: &mut oneshot::Receiver<Duration>) -> End {
        let mut status = self.link.status.clone();
        let mut was_unavailable = false;
        loop {
            // A replay of an empty pool ends without an event.
            if self.events.is_replaying() && self.run.outbox.has_room(Instant::now()) {
                let event = self.events.try_next();
                if let Some(event) = event
                    && let Err(end) = self.on_events(event).await
                {
                    return end;
                }
            }
            self.end_comparison();
            let now = Instant::now();
            self.update_state();
            let is_done = !self.events.is_replaying()
                && self.events.behind() == 0
                && self.run.outbox.len() == 0;
            if self.deadline.is_some_and(|deadline| is_done || deadline <= now) {
                self.flush_report().await;
                // Nothing but the report can be on its way.
                let _ = timeout(REPORT_AFTER, self.link.client.flush()).await;
                return End::Stopped;
            }
            let has_room = self.run.outbox.has_room(now);
            let wakes = [self.run.outbox.next_wake(now), self.run.report_due, self.deadline];
            let wake = wakes.into_iter().flatten().min();
            let timer = async {
                match wake {
                    Some(at) => sleep_until(at.into()).await,
                    None => pending().await,
                }
            };
            // Acknowledgements before events: they make room. Nothing is lost by a branch that is
            // dropped: each consumes only what it returns.
            tokio::select! {
                biased;
                limit = &mut *stopping, if self.deadline.is_none() => {
                    self.deadline = Some(Instant::now() + limit.unwrap_or_default().min(LONGEST_STOP));
                }
                changed = status.changed() => {
                    let seen = status.borrow_and_update().clone();
                    let lost = seen.lost.or(changed.err().map(|_| DisconnectReason::Lost));
                    if let Some(reason) = lost {
                        return End::Lost(State::Disconnected { reason });
                    }
                    if seen.denied_subscribe.is_some_and(|subject| subject.starts_with(&self.inbox)) {
                        return End::Lost(State::Denied);
                    }
                    if seen.denied_publish.1 > self.denials {
                        self.denials = seen.denied_publish.1;
                        self.on_denied(&seen.denied_publish.0);
                    }
                }
                ack = self.acks.next() => match ack {
                    Some(ack) => self.on_acks(ack),
                    None => return End::Lost(State::Disconnected { reason: DisconnectReason::Lost }),
                },
                () = timer => {
                    if let Err(end) = self.publish_due().await {
                        return end;
                    }
                }
                event = self.events.next(), if has_room => {
                    // Not while this holds a handle of the pool.
                    let Some(event) = event else { return End::Stopped };
                    if let Err(end) = self.on_events(event).await {
                        return end;
                    }
                }
            }
            let is_unavailable = self.run.outbox.trouble() == Some(Trouble::Unavailable);
            if is_unavailable != was_unavailable {
                was_unavailable = is_unavailable;
                if let Err(end) = self.check_again().await {
                    return end;
                }
            }
            if self.run.outbox.take_recovered() || self.has_only_refused() {
                self.compare();
            }
        }
    }

    fn compare(&mut self) {
        self.events.resync();
        self.begin_comparison();
    }

    fn end_comparison(&mut self) {
        if self.comparing && !self.events.is_replaying() {
            self.comparing = false;
            self.run.follower.end_comparison();
        }
    }

    /// A stream that does not answer, or answers again, may have been deleted, or be another.
    async fn check_again(&mut self) -> Result<(), End> {
        let resets = self.run.counters.stats().resets;
        let check = timeout(CHECK_TIMEOUT, self.run.check_streams(self.link));
        let checked = tokio::select! {
            biased;
            reason = self.link.lost() => return Err(End::Lost(State::Disconnected { reason })),
            checked = check => checked,
        };
        // Without a leader the server may not know: the next change is another occasion.
        if let Ok(Err(State::StreamMissing)) = checked {
            return Err(End::Lost(State::StreamMissing));
        }
        if self.run.counters.stats().resets > resets {
            self.compare();
        }
        Ok(())
    }

    /// Whether the next message to try the stream with can only be one that it has refused.
    fn has_only_refused(&self) -> bool {
        let outbox = &self.run.outbox;
        matches!(outbox.trouble(), Some(Trouble::Full | Trouble::Denied))
            && outbox.len() == 0
            && self.run.follower.has_forgotten()
            && !self.events.is_replaying()
            && self.events.behind() == 0
            && outbox.has_room(Instant::now())
    }

    fn update_state(&self) {
        let outbox = &self.run.outbox;
        let state = match outbox.trouble() {
            Some(Trouble::Unavailable) => State::Unavailable,
            Some(Trouble::Full) => State::Full,
            Some(Trouble::Denied) => State::Denied,
            None if self.comparing => State::CatchingUp,
            None if outbox.is_full() => State::Lagging,
            None => State::Live,
        };
        self.run.set_state(state);
        self.run.counters.unfinished.set(outbox.len() as u64);
    }

    /// One event, and those that are there behind it.
    async fn on_events(&mut self, first: Result<Event, Lagged>) -> Result<(), End> {
        let mut next = Some(first);
        let mut processed = 0;
        while let Some(event) = next {
            match event {
                Ok(event) => {
                    if let Some(item) = self.run.follower.on(&event) {
                        self.publish(item).await?;
                    }
                }
                Err(Lagged { missed, .. }) => {
                    tracing::warn!(missed, "the publisher was too slow for the pool's log");
                    self.run.counters.lost_events.add(missed);
                    self.compare();
                }
            }
            self.end_comparison();
            processed += 1;
            // Before the next one is taken, which would be lost.
            if processed == TURN || !self.run.outbox.has_room(Instant::now()) {
                break;
            }
            next = self.events.try_next();
        }
        Ok(())
    }

    /// Publishes something for the first time.
    async fn publish(&mut self, item: Item) -> Result<(), End> {
        let Some(encoded) = item.encode() else { return Ok(()) };
        let size = encoded.payload.len();
        let counters = &self.run.counters;
        counters.published.add(1);
        counters.bytes.add(size as u64);
        if size + HEADER_BYTES > self.max_payload {
            tracing::warn!(id = %encoded.id, size, limit = self.max_payload, "too large for the server");
            counters.refused[RefuseReason::TooLarge.index()].add(1);
            return Ok(());
        }
        let subject = self.run.subjects.of(self.run.config.flow, &item).clone();
        let number = self.run.outbox.add(item, encoded.id, size, Instant::now());
        self.send(number, subject, encoded.id, encoded.payload).await
    }

    async fn publish_due(&mut self) -> Result<(), End> {
        if self.run.report_due.is_some_and(|due| due <= Instant::now()) {
            self.flush_report().await;
        }
        for _ in 0..TURN {
            let due = self.run.outbox.next_due(Instant::now(), rand::random());
            let Some((number, item, id)) = due else { break };
            let subject = self.run.subjects.of(self.run.config.flow, item).clone();
            let Some(encoded) = item.encode() else { continue };
            if encoded.payload.len() + HEADER_BYTES > self.max_payload {
                // Another server of the cluster, with another limit.
                let answer = Answer::Refused(RefuseReason::TooLarge);
                self.on_answer(number, answer);
                continue;
            }
            self.run.counters.republished.add(1);
            self.send(number, subject, id, encoded.payload).await?;
        }
        Ok(())
    }

    /// Waits only while the connection's commands are full, and not beyond its loss.
    async fn send(
        &self,
        number: u64,
        subject: Subject,
        id: B256,
        payload: Bytes,
    ) -> Result<(), End> {
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Msg-Id", alloy_primitives::hex::encode(id));
        let reply = format!("{}.{number}", self.inbox);
        let client = &self.link.client;
        let sent = client.publish_with_reply_and_headers(subject, reply, headers, payload);
        tokio::select! {
            biased;
            sent = timeout(self.run.config.ack_timeout, sent) => match sent {
                Ok(Ok(())) => Ok(()),
                // Refused by the client itself, or a socket that takes nothing: the message stays in
                // the outbox.
                Ok(Err(_)) | Err(_) => {
                    Err(End::Lost(State::Disconnected { reason: DisconnectReason::Lost }))
                }
            },
            reason = self.link.lost() => Err(End::Lost(State::Disconnected { reason })),
        }
    }

    /// One acknowledgement, and those that are there behind it.
    fn on_acks(&mut self, first: Message) {
        self.on_ack(&first);
        for _ in 1..TURN {
            let Some(Some(ack)) = self.acks.next().now_or_never() else { break };
            self.on_ack(&ack);
        }
    }

    fn on_ack(&mut self, ack: &Message) {
        let number = ack.subject.rsplit('.').next().and_then(|token| token.parse().ok());
        let Some(number) = number else { return };
        let answer = match ack.status {
            Some(StatusCode::NO_RESPONDERS) => Answer::Unavailable,
            _ => {
                let (answer, stored) = answer_of(&ack.payload);
                if let Some((stream, sequence)) = stored {
                    self.note_stored(&stream, sequence);
                }
                answer
            }
        };
        if answer == Answer::InProcess {
            self.run.counters.in_process.add(1);
        }
        self.on_answer(number, answer);
    }

    fn on_answer(&mut self, number: u64, answer: Answer) {
        let left = self.run.outbox.answer(number, answer, Instant::now(), rand::random());
        if let Some((item, outcome)) = left {
            self.settle(&item, outcome);
        }
    }

    fn note_stored(&mut self, stream: &str, sequence: u64) {
        let shard =
            stream.rsplit('_').next().and_then(|token| token.parse().ok()).unwrap_or(0_usize);
        if let Some((highest, _)) = self.run.stored.get_mut(shard) {
            *highest = sequence.max(*highest);
        }
    }

    fn on_denied(&mut self, subject: &str) {
        let Run { outbox, subjects, config, .. } = &mut *self.run;
        let denied = outbox.denied(|item| subjects.of(config.flow, item).as_str() == subject);
        let answer = Answer::Refused(RefuseReason::Denied);
        let (now, jitter) = (Instant::now(), rand::random());
        let left: Vec<_> = denied
            .into_iter()
            .filter_map(|number| outbox.answer(number, answer, now, jitter))
            .collect();
        left.iter().for_each(|(item, outcome)| self.settle(item, *outcome));
    }

    fn settle(&mut self, item: &Item, outcome: Outcome) {
        let counters = &self.run.counters;
        match outcome {
            Outcome::Stored => counters.stored.add(1),
            Outcome::Duplicate { by_another } => {
                counters.duplicate.add(1);
                if by_another {
                    // Relaxed: a count alone.
                    counters.not_first.fetch_add(1, Relaxed);
                    self.note_seen(item);
                }
            }
            Outcome::Refused(reason) => {
                counters.refused[reason.index()].add(1);
                if matches!(reason, RefuseReason::Full | RefuseReason::Denied) {
                    self.run.follower.forget(item);
                }
            }
        }
    }

    /// Another machine was first: sources are told when this one saw it.
    fn note_seen(&mut self, item: &Item) {
        let run = &mut *self.run;
        let Item::Order(order) = item else { return };
        let Some(tx) =
            order.as_tx().filter(|_| run.config.reports && run.config.flow == Flow::Public)
        else {
            return;
        };
        if run.report.len() < MAX_SEEN {
            run.report.push((*tx.hash(), tx.first_seen()));
        }
        let now = Instant::now();
        let after = if run.report.len() < MAX_SEEN { REPORT_AFTER } else { Duration::ZERO };
        run.report_due = Some(run.report_due.unwrap_or(now + REPORT_AFTER).min(now + after));
    }

    async fn flush_report(&mut self) {
        self.run.report_due = None;
        let report = std::mem::take(&mut self.run.report);
        if report.is_empty() {
            return;
        }
        let subject = seen(self.run.config.chain_id, &self.run.config.machine);
        let sent = self.link.client.publish(subject, encode_seen(&report));
        // A report that is lost changes only who is said to have been how much later.
        let _ = timeout(Duration::from_millis(100), sent).await;
    }
}
