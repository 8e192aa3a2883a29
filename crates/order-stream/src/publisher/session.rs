//! One connection of a publisher: events of the pool out, acknowledgements in.

mod messages;

use std::{
    collections::VecDeque,
    future::pending,
    time::{Duration, Instant},
};

use async_nats::Subscriber;
use futures::{
    FutureExt as _, StreamExt as _,
    future::{BoxFuture, OptionFuture},
};
use order_pool::{Event, Lagged, Subscription};
use tokio::{
    sync::watch,
    time::{sleep_until, timeout},
};

use super::{End, Found, Run, StreamAnswer, ask_streams};
use crate::{
    follow::Item,
    lanes::Room,
    link::{Link, Silence},
    metrics::RefuseReason,
    outbox::Trouble,
    state::{DisconnectReason, State},
};

/// Events of the pool that are processed before acknowledgements are read again, and the reverse.
const TURN: usize = 64;

/// How long the end waits until the last report is on its way.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(200);

/// Before a stream that did not answer is asked again.
const CHECK_PAUSE: Duration = Duration::from_secs(1);

/// What happens over one connection.
pub(super) struct Session<'a> {
    run: &'a mut Run,
    link: &'a Link,
    inbox: String,
    acks: Subscriber,
    events: Subscription,
    comparing: bool,
    /// What is to be published before other events are read.
    held: VecDeque<Item>,
    /// The streams are asked after each change between available and not: one may have been deleted, or be another.
    check: Option<BoxFuture<'a, Vec<StreamAnswer>>>,
    check_due: Option<Instant>,
    silence: Silence,
    denials: u64,
    max_payload: usize,
}

impl<'a> Session<'a> {
    pub(super) fn new(
        run: &'a mut Run,
        link: &'a Link,
        inbox: String,
        acks: Subscriber,
        found: Found,
    ) -> Self {
        let events = run.pool.subscribe_all();
        let max_payload = link.client.max_payload();
        let mut session = Self {
            run,
            link,
            inbox,
            acks,
            events,
            comparing: true,
            held: VecDeque::new(),
            check: None,
            check_due: found.unknown.then(Instant::now),
            silence: Silence::default(),
            denials: 0,
            max_payload,
        };
        session.begin_comparison();
        session
    }

    fn begin_comparison(&mut self) {
        self.run.follower.begin_comparison();
        self.run.lanes.compares();
        self.run.counters.comparisons.add(1);
        self.comparing = true;
    }

    pub(super) async fn run(mut self, stop: watch::Receiver<bool>) -> End {
        let end = self.serve(stop.clone()).await;
        for item in self.held.drain(..) {
            self.run.follower.forget(&item);
        }
        // Nothing is waited for once it is to stop and the connection is lost.
        if *stop.borrow() { End::Stopped } else { end }
    }

    async fn serve(&mut self, mut stop: watch::Receiver<bool>) -> End {
        let mut status = self.link.status.clone();
        let mut was_unavailable = false;
        loop {
            // A replay of an empty pool ends without an event.
            if self.events.is_replaying() && self.held.is_empty() {
                let event = self.events.try_next();
                if let Some(event) = event
                    && let Err(end) = self.on_events(event).await
                {
                    return end;
                }
            }
            self.end_comparison();
            if let Err(end) = self.publish_held().await {
                return end;
            }
            self.update_state();
            let is_done = !self.events.is_replaying()
                && self.events.behind() == 0
                && self.held.is_empty()
                && self.run.lanes.len() == 0
                && self.run.lanes.compare_at().is_none();
            if *stop.borrow_and_update() && is_done {
                self.flush_report().await;
                // Nothing but the report can be on its way.
                let _ = timeout(FLUSH_TIMEOUT, self.link.client.flush()).await;
                return End::Stopped;
            }
            let now = Instant::now();
            if self.check_due.is_some_and(|due| due <= now) {
                self.check_due = None;
                self.check = Some(ask_streams(self.link, self.run.streams()).boxed());
            }
            let wakes = [self.run.lanes.next_wake(now), self.run.report.due(), self.check_due];
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
                // Its sender lives as long as this.
                _ = stop.changed() => {}
                changed = status.changed() => {
                    let seen = status.borrow_and_update().clone();
                    let lost = seen.lost.or(changed.err().map(|_| DisconnectReason::Lost));
                    if let Some(reason) = lost {
                        return End::Lost(State::Disconnected { reason });
                    }
                    if seen.denied_subscribe.is_some_and(|subject| subject.starts_with(&self.inbox)) {
                        return End::Lost(State::Denied);
                    }
                    let before = std::mem::replace(&mut self.denials, seen.denials);
                    for (subject, number) in &seen.denied_publish {
                        if *number > before {
                            self.on_denied(subject);
                        }
                    }
                }
                ack = self.acks.next() => match ack {
                    Some(ack) => self.on_acks(ack),
                    None => return End::Lost(State::Disconnected { reason: DisconnectReason::Lost }),
                },
                answers = OptionFuture::from(self.check.as_mut()), if self.check.is_some() => {
                    self.check = None;
                    let may_leave = !*stop.borrow();
                    if let Err(end) = self.on_streams(answers.unwrap_or_default(), may_leave) {
                        return end;
                    }
                }
                () = timer => {
                    if let Err(end) = self.publish_due().await {
                        return end;
                    }
                }
                event = self.events.next(), if self.held.is_empty() => {
                    // Not while this holds a handle of the pool.
                    let Some(event) = event else { return End::Stopped };
                    if let Err(end) = self.on_events(event).await {
                        return end;
                    }
                }
            }
            let is_unavailable = self.run.lanes.is_unavailable();
            if is_unavailable != was_unavailable {
                was_unavailable = is_unavailable;
                self.check_due = Some(Instant::now());
            }
            if self.run.lanes.must_compare(Instant::now()) {
                self.compare();
            }
        }
    }

    pub(super) fn compare(&mut self) {
        self.events.resync();
        self.begin_comparison();
    }

    fn end_comparison(&mut self) {
        if self.comparing && !self.events.is_replaying() {
            self.comparing = false;
            self.run.lanes.compared(Instant::now());
            self.held.extend(self.run.follower.end_comparison());
            self.run.counters.lost_events.add(self.run.follower.take_unremembered());
        }
    }

    fn on_streams(&mut self, answers: Vec<StreamAnswer>, may_leave: bool) -> Result<(), End> {
        match self.run.note_streams(answers) {
            Ok(found) => {
                self.silence.note(true, Instant::now());
                if found.unknown {
                    self.check_due = Some(Instant::now() + CHECK_PAUSE);
                }
                if found.reset {
                    self.compare();
                }
                Ok(())
            }
            Err(State::Unavailable) => {
                if self.silence.note(false, Instant::now()) && may_leave {
                    return Err(End::Lost(State::Unavailable));
                }
                self.check_due = Some(Instant::now() + CHECK_PAUSE);
                Ok(())
            }
            Err(state) => Err(End::Lost(state)),
        }
    }

    fn update_state(&self) {
        let lanes = &self.run.lanes;
        let state = match lanes.trouble() {
            Some(Trouble::Unavailable) => State::Unavailable,
            Some(Trouble::Full) => State::Full,
            Some(Trouble::Denied) => State::Denied,
            None if self.comparing => State::CatchingUp,
            None if !self.held.is_empty() => State::Lagging,
            None => State::Live,
        };
        self.run.set_state(state);
        self.run.counters.unfinished.set(lanes.len() as u64);
    }

    /// One event, and those that are there behind it.
    async fn on_events(&mut self, first: Result<Event, Lagged>) -> Result<(), End> {
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
        self.run.counters.lost_events.add(self.run.follower.take_unremembered());
        Ok(())
    }

    /// Publishes what is held, as far as there is room.
    async fn publish_held(&mut self) -> Result<(), End> {
        while let Some(item) = self.held.front() {
            let Run { lanes, subjects, follower, counters, .. } = &mut *self.run;
            let withdrawn = lanes.withdraw_for(item);
            counters.refused[RefuseReason::Withdrawn.index()].add(withdrawn as u64);
            let lane = subjects.lane_of(item);
            let room = match lanes.room_behind_cancellation(item) {
                Room::Now => lanes.room(lane, subjects, Instant::now()),
                other => other,
            };
            match room {
                Room::Wait => break,
                Room::LeaveOut => follower.forget(item),
                Room::Now => {
                    let item = item.clone();
                    self.held.pop_front();
                    self.publish(lane, item).await?;
                    continue;
                }
            }
            self.held.pop_front();
        }
        Ok(())
    }
}
