//! The thread that follows a pool and publishes what it holds.

use std::{
    future::pending,
    sync::{Arc, atomic::Ordering::Relaxed},
    thread,
    time::{Duration, Instant, SystemTime},
};

use alloy_primitives::B256;
use async_nats::{HeaderMap, Message, StatusCode, Subject, Subscriber};
use futures::StreamExt as _;
use order_pool::{Event, Lagged, OrderPool, Subscription};
use tokio::{
    sync::{oneshot, watch},
    time::{sleep, sleep_until, timeout},
};

use crate::{
    ack::answer_of,
    config::{Flow, PublisherConfig},
    error::StreamError,
    follow::{Follower, Item},
    link::{Link, state_of},
    metrics::{PublisherCounters, PublisherStats, RefuseReason},
    outbox::{Answer, Outbox, OutboxLimits, Outcome, Trouble},
    state::{DisconnectReason, State},
    subjects::{Subjects, seen, stream_name},
    wire::{MAX_SEEN, encode_seen},
};

/// The bytes of the one header: `NATS/1.0`, the name, 64 digits, and line ends.
const HEADER_BYTES: usize = 96;

/// Events of the pool that are processed before acknowledgements are read again, and the reverse.
const TURN: usize = 64;

/// How long a report waits for more entries.
const REPORT_AFTER: Duration = Duration::from_millis(200);

/// A connection that has lasted as long resets the backoff.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// Publishes the orders of a pool: those that it holds, then every new one, each once however many machines
/// publish it. If it is dropped without [`Self::shutdown`], it ends without waiting for
/// acknowledgements.
///
/// The pool does not wait for it: it reads the pool's log on a thread of its own. While the window is
/// full, events stay in that log, whose caps bound it; while there is no connection, nothing is
/// kept. After either, it compares the pool with what it has published and publishes what is missing.
#[derive(Debug)]
pub struct Publisher {
    stop: Option<oneshot::Sender<Duration>>,
    ended: oneshot::Receiver<()>,
    state: watch::Receiver<State>,
    counters: Arc<PublisherCounters>,
}

impl Publisher {
    /// Starts publishing. The streams must exist: see [`ensure_streams`](crate::ensure_streams).
    ///
    /// # Errors
    /// The configuration is out of bounds, or the thread cannot be started.
    pub fn start(pool: &OrderPool, config: PublisherConfig) -> Result<Self, StreamError> {
        config.validate()?;
        let counters = Arc::new(PublisherCounters::new(config.flow));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|source| StreamError::Thread { source })?;
        let (state, state_of) = watch::channel(State::Connecting);
        let (stop, stopping) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let mut run = Run::new(pool.clone(), config, Arc::clone(&counters), state);
        let body = move || {
            runtime.block_on(run.run(stopping));
            run.counters.unfinished.set(run.outbox.len() as u64);
            run.set_state(State::Ended);
            // Connections that are still closing are not waited for.
            runtime.shutdown_background();
            // If the handle was dropped, nothing waits for the end.
            let _ = end.send(());
        };
        thread::Builder::new()
            .name("order-stream-publish".into())
            .spawn(body)
            .map_err(|source| StreamError::Thread { source })?;
        Ok(Self { stop: Some(stop), ended, state: state_of, counters })
    }

    /// The present state.
    #[must_use]
    pub fn state(&self) -> State {
        *self.state.borrow()
    }

    /// The present state and its changes. Ends with [`State::Ended`].
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<State> {
        self.state.clone()
    }

    /// The counts so far.
    #[must_use]
    pub fn stats(&self) -> PublisherStats {
        self.counters.stats()
    }

    /// Publishes what the pool holds now, waits for the acknowledgements for at most `limit`, and ends. What
    /// is not acknowledged then is [`PublisherStats::unfinished`]. Without a connection it ends at
    /// once.
    ///
    /// # Cancel safety
    /// If it is dropped, the publisher still ends within the limit.
    pub async fn shutdown(mut self, limit: Duration) -> PublisherStats {
        if let Some(stop) = self.stop.take() {
            // Closed only if its thread has panicked.
            let _ = stop.send(limit);
        }
        let _ = (&mut self.ended).await;
        self.counters.stats()
    }
}

/// The publisher on its thread.
struct Run {
    pool: OrderPool,
    config: PublisherConfig,
    counters: Arc<PublisherCounters>,
    state: watch::Sender<State>,
    follower: Follower,
    outbox: Outbox,
    subjects: Subjects,
    /// The highest sequence number of each stream that was acknowledged, and when the stream was made.
    stored: Vec<(u64, Option<i128>)>,
    report: Vec<(B256, SystemTime)>,
    report_due: Option<Instant>,
}

/// Why a session ended.
enum End {
    Stopped,
    Lost(State),
}

impl Run {
    fn new(
        pool: OrderPool,
        config: PublisherConfig,
        counters: Arc<PublisherCounters>,
        state: watch::Sender<State>,
    ) -> Self {
        let limits = OutboxLimits {
            window: config.window,
            window_bytes: config.window_bytes,
            ack_timeout: config.ack_timeout,
            backoff: config.backoff,
        };
        let shards = if config.flow == Flow::Public { config.shards } else { 1 };
        Self {
            follower: Follower::new(config.flow, config.heads),
            outbox: Outbox::new(limits),
            subjects: Subjects::new(config.chain_id, &config.machine, shards),
            stored: vec![(0, None); shards.into()],
            report: Vec::new(),
            report_due: None,
            pool,
            config,
            counters,
            state,
        }
    }

    fn set_state(&self, state: State) {
        let changed = self.state.send_if_modified(|now| std::mem::replace(now, state) != state);
        if changed {
            tracing::info!(%state, flow = self.config.flow.as_str(), "publisher");
            self.counters.state.set(state.code().into());
        }
    }

    async fn run(&mut self, mut stopping: oneshot::Receiver<Duration>) {
        let mut attempt = 0;
        loop {
            self.set_state(State::Connecting);
            let began = Instant::now();
            let session = async {
                match Link::open(&self.config.server, &self.config.machine).await {
                    Ok(link) => Ok(link),
                    Err(error) => {
                        tracing::warn!(%error, "cannot connect");
                        Err(state_of(&error))
                    }
                }
            };
            // The order matters little: a stop before a connection has nothing to wait for.
            let opened = tokio::select! {
                biased;
                _ = &mut stopping => return,
                opened = session => opened,
            };
            let end = match opened {
                Ok(link) => {
                    self.counters.connects.add(1);
                    match self.session(&link, &mut stopping).await {
                        End::Stopped => return,
                        End::Lost(state) => state,
                    }
                }
                Err(state) => state,
            };
            self.set_state(end);
            attempt = if began.elapsed() > STABLE_AFTER { 0 } else { attempt };
            let pause = self.config.backoff.random_delay(attempt);
            attempt = attempt.saturating_add(1);
            tokio::select! {
                biased;
                _ = &mut stopping => return,
                () = sleep(pause) => {}
            }
        }
    }

    /// One connection.
    async fn session(&mut self, link: &Link, stopping: &mut oneshot::Receiver<Duration>) -> End {
        self.set_state(State::CatchingUp);
        let check = async {
            self.check_streams(link).await?;
            // The answers to all messages: the last token is the message's number.
            let inbox = link.client.new_inbox();
            let acks = link.client.subscribe(format!("{inbox}.*")).await;
            acks.map(|acks| (inbox, acks)).map_err(|_| State::Unavailable)
        };
        let checked = tokio::select! {
            biased;
            _ = &mut *stopping => return End::Stopped,
            reason = link.lost() => return End::Lost(State::Disconnected { reason }),
            checked = check => checked,
        };
        match checked {
            Err(state) => End::Lost(state),
            Ok((inbox, acks)) => {
                self.outbox.connected(Instant::now());
                Session::new(self, link, inbox, acks).run(stopping).await
            }
        }
    }

    /// Whether the streams are there, and still hold what was stored. A stream that was made anew, or
    /// has lost its end, has to get everything again.
    async fn check_streams(&mut self, link: &Link) -> Result<(), State> {
        for shard in 0..self.stored.len() {
            let name = stream_name(self.config.flow, self.config.chain_id, shard as u16);
            let info = link.stream(&name).await?;
            let created = Some(info.created.unix_timestamp_nanos());
            let (sequence, before) = self.stored[shard];
            if before.is_some_and(|_| before != created) || info.state.last_sequence < sequence {
                tracing::warn!(stream = name, sequence, "the stream has lost what was stored");
                self.counters.resets.add(1);
                self.follower.forget_all();
                self.stored[shard].0 = info.state.last_sequence;
            }
            self.stored[shard].1 = created;
        }
        Ok(())
    }
}

struct Session<'a> {
    run: &'a mut Run,
    link: &'a Link,
    inbox: String,
    acks: Subscriber,
    events: Subscription,
    comparing: bool,
    denials: u64,
    max_payload: usize,
}

impl<'a> Session<'a> {
    fn new(run: &'a mut Run, link: &'a Link, inbox: String, acks: Subscriber) -> Self {
        let events = run.pool.subscribe_all();
        let max_payload = link.client.max_payload();
        let mut session =
            Self { run, link, inbox, acks, events, comparing: false, denials: 0, max_payload };
        session.begin_comparison();
        session
    }

    fn begin_comparison(&mut self) {
        self.run.follower.begin_comparison();
        self.run.counters.comparisons.add(1);
        self.comparing = true;
    }

    async fn run(mut self, stopping: &mut oneshot::Receiver<Duration>) -> End {
        let link = self.link;
        let mut status = link.status.clone();
        let mut deadline = None;
        loop {
            let now = Instant::now();
            self.update_state();
            let is_done = !self.events.is_replaying()
                && self.events.behind() == 0
                && self.run.outbox.len() == 0;
            if deadline.is_some_and(|deadline| is_done || deadline <= now) {
                self.flush_report().await;
                return End::Stopped;
            }
            let has_room = self.run.outbox.has_room(now);
            let wakes = [self.run.outbox.next_wake(now), self.run.report_due, deadline];
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
                limit = &mut *stopping, if deadline.is_none() => {
                    deadline = Some(Instant::now() + limit.unwrap_or_default());
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
                    // The pool was dropped: as if stopped, with the time that an answer takes.
                    let Some(event) = event else {
                        deadline = deadline.or(Some(Instant::now() + self.run.config.ack_timeout));
                        sleep(Duration::from_millis(1)).await;
                        continue;
                    };
                    if let Err(end) = self.on_events(event).await {
                        return end;
                    }
                }
            }
            if self.run.outbox.take_recovered() || self.has_only_refused() {
                self.events.resync();
                self.begin_comparison();
            }
        }
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
        for _ in 0..TURN {
            let Some(event) = next else { break };
            match event {
                Ok(event) => {
                    if let Some(item) = self.run.follower.on(&event) {
                        self.publish(item).await?;
                    }
                }
                Err(Lagged { missed, .. }) => {
                    tracing::warn!(missed, "the publisher was too slow for the pool's log");
                    self.run.counters.lost_events.add(missed);
                    self.events.resync();
                    self.begin_comparison();
                }
            }
            if self.comparing && !self.events.is_replaying() {
                self.comparing = false;
                self.run.follower.end_comparison();
            }
            if !self.run.outbox.has_room(Instant::now()) {
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
        payload: bytes::Bytes,
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
            let Some(Some(ack)) = futures::FutureExt::now_or_never(self.acks.next()) else { break };
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
