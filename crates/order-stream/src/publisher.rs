//! The thread that follows a pool and publishes what it holds.

mod report;
mod session;

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use futures::future::join_all;
use order_pool::OrderPool;
use tokio::{
    sync::{oneshot, watch},
    time::{sleep, sleep_until, timeout},
};

use self::{report::Report, session::Session};
use crate::{
    backoff::STABLE_AFTER,
    config::{Flow, PublisherConfig},
    error::StreamError,
    follow::Follower,
    lanes::Lanes,
    link::{Link, state_of},
    metrics::{PublisherCounters, PublisherStats},
    outbox::OutboxLimits,
    state::{EndGuard, State},
    subjects::{Subjects, stream_name},
};

/// How long the answer about a stream is waited for, also before a new connection is used.
const CHECK_TIMEOUT: Duration = Duration::from_secs(1);

/// Longer limits of a shutdown are cut: the clock may not go as far.
const LONGEST_STOP: Duration = Duration::from_hours(24);

/// Publishes the orders of a pool: those that it holds, then every new one, each once however many machines
/// publish it. If it is dropped without [`Self::shutdown`], it ends without waiting for
/// acknowledgements.
///
/// The pool does not wait for it: it reads the pool's log on a thread of its own. While the window is
/// full, events stay in that log, whose caps bound it; while there is no connection, nothing is
/// kept. After either, it compares the pool with what it has published and publishes what is missing. It
/// holds a handle of the pool, whose other subscriptions therefore do not end before it does.
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
        counters.state.set(State::Connecting.code().into());
        let (stop, stopping) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let mut run = Run::new(pool.clone(), config, Arc::clone(&counters), state);
        let body = move || {
            let (counters, state) = (Arc::clone(&run.counters), run.state.clone());
            let guard = EndGuard::new(|last: State| {
                counters.state.set(last.code().into());
                state.send_replace(last);
            });
            runtime.block_on(async {
                let (stop, stopped) = watch::channel(false);
                // What is done already wins.
                tokio::select! {
                    biased;
                    () = run.run(stopped) => {}
                    () = limit(stopping, &stop) => {}
                }
            });
            run.counters.unfinished.set(run.lanes.len() as u64);
            // Connections that are still closing are not waited for.
            runtime.shutdown_background();
            drop(guard);
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

    /// The present state and its changes. Ends with [`State::Ended`] or [`State::Failed`].
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
    /// once; for a stream without a leader it waits.
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

/// Tells of a stop when it comes, and waits until its limit.
async fn limit(stopping: oneshot::Receiver<Duration>, stop: &watch::Sender<bool>) {
    let limit = stopping.await.unwrap_or_default().min(LONGEST_STOP);
    let deadline = Instant::now() + limit;
    stop.send_replace(true);
    sleep_until(deadline.into()).await;
}

/// The publisher on its thread.
struct Run {
    pool: OrderPool,
    config: PublisherConfig,
    counters: Arc<PublisherCounters>,
    state: watch::Sender<State>,
    follower: Follower,
    lanes: Lanes,
    subjects: Subjects,
    /// The highest sequence number of each stream that was acknowledged, and when the stream was made.
    stored: Vec<(u64, Option<i128>)>,
    /// The same number as it was before this connection.
    stored_before: Vec<u64>,
    report: Report,
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
        let subjects = Subjects::new(config.flow, config.chain_id, &config.machine, shards);
        Self {
            follower: Follower::new(config.flow, config.heads),
            lanes: Lanes::new(&subjects, limits),
            subjects,
            stored: vec![(0, None); shards.into()],
            stored_before: vec![0; shards.into()],
            report: Report::default(),
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

    /// Publishes until it is stopped. Then it ends at once without a connection.
    async fn run(&mut self, mut stop: watch::Receiver<bool>) {
        let mut attempt = 0;
        loop {
            self.set_state(State::Connecting);
            let began = Instant::now();
            let opened = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                opened = Link::open(&self.config.server, &self.config.machine) => opened,
            };
            let end = match opened {
                Ok(link) => {
                    self.counters.connects.add(1);
                    match self.session(&link, stop.clone()).await {
                        End::Stopped => return,
                        End::Lost(state) => state,
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot connect");
                    state_of(&error)
                }
            };
            // The session may have ended between publishing and the next look.
            self.counters.unfinished.set(self.lanes.len() as u64);
            self.set_state(end);
            attempt = if began.elapsed() > STABLE_AFTER { 0 } else { attempt };
            let pause = self.config.backoff.random_delay(attempt);
            attempt = attempt.saturating_add(1);
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                () = sleep(pause) => {}
            }
        }
    }

    /// One connection.
    async fn session(&mut self, link: &Link, stop: watch::Receiver<bool>) -> End {
        self.set_state(State::CatchingUp);
        self.stored_before = self.stored.iter().map(|(sequence, _)| *sequence).collect();
        let check = async {
            // One that does not answer is asked again beside the publishing.
            let found = match self.note_streams(ask_streams(link, self.streams()).await) {
                Err(State::Unavailable) => Found { reset: false, unknown: true },
                found => found?,
            };
            // The answers to all messages: the last tokens are the lane and the message's number.
            let inbox = link.client.new_inbox();
            let acks = link.client.subscribe(format!("{inbox}.*.*")).await;
            acks.map(|acks| (found, inbox, acks)).map_err(|_| State::Unavailable)
        };
        let checked = tokio::select! {
            biased;
            reason = link.lost() => return End::Lost(State::Disconnected { reason }),
            checked = check => checked,
        };
        match checked {
            Err(state) => End::Lost(state),
            Ok((found, inbox, acks)) => {
                self.lanes.connected(Instant::now());
                Session::new(self, link, inbox, acks, found).run(stop).await
            }
        }
    }

    /// The stream of this index has lost what was stored: everything is published again.
    fn reset(&mut self, shard: usize, last: u64) {
        if let Some((sequence, _)) = self.stored.get_mut(shard) {
            tracing::warn!(shard, sequence, last, "a stream has lost what was stored");
            *sequence = last;
            self.stored_before[shard] = 0;
        }
        self.counters.resets.add(1);
        self.follower.forget_all();
    }

    /// A stream has a message of this connection. Returns whether it has lost its end: a new message stands where
    /// another one was stored before.
    fn acknowledged(&mut self, shard: usize, sequence: u64, is_new: bool) -> bool {
        let is_reset =
            is_new && self.stored_before.get(shard).is_some_and(|last| sequence <= *last);
        if is_reset {
            self.reset(shard, sequence);
        }
        if let Some((highest, _)) = self.stored.get_mut(shard) {
            *highest = sequence.max(*highest);
        }
        is_reset
    }

    /// The streams by name, with the highest sequence number that was acknowledged so far.
    fn streams(&self) -> Vec<(String, u64)> {
        let name = |shard| stream_name(self.config.flow, self.config.chain_id, shard);
        (0..).zip(&self.stored).map(|(shard, (sequence, _))| (name(shard), *sequence)).collect()
    }

    /// Compares what the server says of the streams with what was stored there. A stream that was made anew, or has
    /// lost its end, has to get everything again. Fails if one is missing, or none answers.
    fn note_streams(&mut self, answers: Vec<StreamAnswer>) -> Result<Found, State> {
        let mut found = Found { reset: false, unknown: false };
        let is_known = answers.iter().any(Result::is_ok);
        for (shard, answer) in answers.into_iter().enumerate() {
            match answer {
                Ok(StreamInfo { created, last, acknowledged }) => {
                    let before = self.stored[shard].1.replace(created);
                    if before.is_some_and(|before| before != created) || last < acknowledged {
                        self.reset(shard, last);
                        found.reset = true;
                    }
                }
                // Its messages wait; those of the others need not.
                Err(State::Unavailable) if is_known => found.unknown = true,
                Err(state) => return Err(state),
            }
        }
        Ok(found)
    }
}

/// What is known of a stream, or why nothing is.
type StreamAnswer = Result<StreamInfo, State>;

#[derive(Clone, Copy, Debug)]
struct StreamInfo {
    created: i128,
    /// Its last sequence number.
    last: u64,
    /// The highest one that was acknowledged when the question was sent: others may come before its answer.
    acknowledged: u64,
}

/// What was found of the streams.
#[derive(Clone, Copy, Debug)]
struct Found {
    /// One of them has lost what was stored.
    reset: bool,
    /// One of them did not answer.
    unknown: bool,
}

/// Asks for all streams at once.
async fn ask_streams(link: &Link, streams: Vec<(String, u64)>) -> Vec<StreamAnswer> {
    let ask = async |(name, acknowledged): (String, u64)| {
        // Each on its own: one that does not answer takes nothing from the others.
        let info = match timeout(CHECK_TIMEOUT, link.stream(&name)).await {
            Ok(info) => info?,
            Err(_) => return Err(link.why_no_answer(&name)),
        };
        let created = info.created.unix_timestamp_nanos();
        Ok(StreamInfo { created, last: info.state.last_sequence, acknowledged })
    };
    join_all(streams.into_iter().map(ask)).await
}

#[cfg(test)]
mod tests {
    use order_pool::PoolConfig;

    use super::*;
    use crate::config::ServerConfig;

    fn a_run() -> Run {
        let pool = OrderPool::new(PoolConfig::default()).expect("a pool");
        let config = PublisherConfig::new(ServerConfig::new("nats://localhost:4222"), 1, "a");
        let counters = Arc::new(PublisherCounters::new(Flow::Public));
        Run::new(pool, config, counters, watch::channel(State::Connecting).0)
    }

    #[test]
    fn a_stream_is_not_taken_for_a_new_one_because_its_answer_came_behind_acknowledgements() {
        let mut run = a_run();
        let is_reset = |run: &mut Run, asked: &[(String, u64)], created, last| {
            let info = StreamInfo { created, last, acknowledged: asked[0].1 };
            run.note_streams(vec![Ok(info)]).expect("an answer").reset
        };
        let asked = run.streams();
        assert_eq!(asked, [("MEMPOOL_1_TX_0".to_owned(), 0)]);
        assert!(!is_reset(&mut run, &asked, 1, 10));
        run.stored[0].0 = 20;
        let asked = run.streams();
        run.stored[0].0 = 30;
        assert!(!is_reset(&mut run, &asked, 1, 25), "it had 25 when it answered");
        assert_eq!(run.stored[0].0, 30);
        let asked = run.streams();
        assert!(is_reset(&mut run, &asked, 1, 25), "it has lost its end");
        let asked = run.streams();
        assert!(is_reset(&mut run, &asked, 2, 25), "it was made anew");
    }

    #[test]
    fn a_new_message_in_the_place_of_an_older_one_shows_that_a_stream_has_lost_its_end() {
        let mut run = a_run();
        assert!(!run.acknowledged(0, 1_000, true), "of this connection");
        run.stored_before = vec![1_000];
        assert!(!run.acknowledged(0, 998, false), "a duplicate may be an old message");
        assert!(!run.acknowledged(0, 1_001, true));
        assert!(run.acknowledged(0, 996, true));
        assert!(!run.acknowledged(0, 997, true), "once");
        assert_eq!((run.counters.stats().resets, run.stored[0].0), (1, 997));
    }
}
