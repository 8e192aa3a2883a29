//! The state of one source as a pure state machine: `(event, now)` in, actions out.
//!
//! ```text
//!              both connections up                 pool compared
//!  Connecting ---------------------> Backfilling ----------------> Live
//!      ^  ^                               |                         |
//!      |  +---------- any loss -----------+------- any loss --------+
//!      |                                                            | heads stopped coming, or
//!      +---- subscription connection dropped ---- Stale <-----------+ listed hashes are not announced
//! ```
//! While its node does not follow the chain, a connected source is `Syncing`, and afterwards
//! `Backfilling`.
//!
//! *Plausible* is judged with the Poisson distribution: if 20 announcements are expected in a silence,
//! the probability of none is e^-20. At least two heads must have come since the last hash, so that a
//! stalled chain is not mistaken for a dead subscription, and at least 4 s must have passed, since
//! geth can pause for 3. Hashes count from the moment they are read from the socket, so our own
//! back-pressure does not look like silence. Silence alone only raises a suspicion, because the load
//! may simply have ended. The comparison that follows lists the pool, waits 4 s and lists it again.
//! Hashes that are new in the second list and were not announced meanwhile prove that the
//! subscription is dead; hashes of the first list prove nothing, since they may be older than the
//! subscription.
//!
//! One comparison runs at a time. An event during it schedules another, with the most severe of the
//! reasons, since the list in flight may predate the event. The delay before a connection is opened
//! again grows with each attempt and each loss, and is reset by a connection that has lived for 10 s.
//!
//! The machine opens no socket, starts no task and reads no clock: its parent module carries out the
//! actions.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use rand::{Rng, SeedableRng, rngs::SmallRng};

use load_control::Backoff;

use crate::{
    config::Backfill,
    error::{LossReason, StaleReason},
    gap::{Gap, GapReason, MIN_SILENCE},
    settings::Settings,
};

/// Most gaps that are kept for the status.
const MAX_GAPS: usize = 32;

/// How many announcements must have been expected in a silence, by the recent rate, before it is
/// suspicious: in a Poisson process the probability of none is then e^-20, one in 500 million.
const SUSPICIOUS_EXPECTATION: f64 = 20.0;

/// How many heads must have come since the last hash before a silence counts. A chain that does not
/// advance is not a sign of a dead subscription.
const HEADS_WITHOUT_HASHES: u32 = 2;

/// Pause between two comparisons because of blocks that could not be read.
const UNREAD_BLOCK_PAUSE: Duration = Duration::from_secs(30);

/// Failed comparisons in a row after which the source counts as not audited.
const MAX_COMPARE_FAILURES: u32 = 3;

/// How long a connection must have lived to reset the reconnect delay. A node that accepts
/// connections and closes them is not dialed faster than one that refuses them.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// As many hashes at once may be all that a node had room for: reth's listener behind the subscription
/// holds 2,048 and silently drops the rest, when a lower base fee promotes thousands at once.
const LISTENER_SLOTS: u64 = 2_048;

/// How long they may take to be read.
const BURST_WINDOW: Duration = Duration::from_millis(500);

/// Pause between a burst and the comparison that it is a reason for.
const BURST_PAUSE: Duration = Duration::from_secs(1);

/// The time over which the rate of announcements is averaged.
const RATE_WINDOW: Duration = Duration::from_secs(30);

/// What a source is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SourceState {
    /// At least one of the two kinds of connections is not up.
    Connecting,
    /// Announcements are read; the transactions that were pending before are being fetched.
    Backfilling,
    /// Announcements are read, and nothing is known to be missing.
    Live,
    /// The subscription connection is open, but hashes or heads stopped coming, though the node has
    /// new ones. It is being closed.
    Stale,
    /// The source has ended: the limit of connection attempts is reached, or the fetcher has
    /// stopped.
    Ended,
    /// Both kinds of connections are up, and the node does not follow the chain: its head is more than
    /// 60 s old by the wall clock, and it says that it is syncing, or another source has a recent head.
    /// Its pool is not compared and its heads do not count; what it announces does.
    Syncing,
}

impl SourceState {
    /// The name in lower case, for logs and displays.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Backfilling => "backfilling",
            Self::Live => "live",
            Self::Stale => "stale",
            Self::Ended => "ended",
            Self::Syncing => "syncing",
        }
    }
}

/// The two kinds of connections to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    /// The connection that carries the subscriptions, and no requests but pings.
    Subscription,
    /// The connections that carry all other requests.
    Request,
}

/// An input of the state machine.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    /// The connections of this role are up: probed and, for the subscription connection,
    /// subscribed.
    Up(Role),
    /// An attempt to connect failed.
    DialFailed(Role),
    /// A connection that was up was lost.
    Down(Role),
    /// A head was announced.
    Head(u64),
    /// Whether the node does not follow the chain.
    Behind(bool),
    /// Announcements or blocks may have been missed.
    Gap(GapReason),
    /// The node returned this block number on the request connection.
    SawBlock(u64),
    /// The node's pool was compared, and `recovered` hashes were fetched. In a comparison for
    /// [`GapReason::Silence`], `unannounced` hashes became pending while the source was watched.
    Compared { recovered: u64, unannounced: u64 },
    /// The node's pool could not be compared; the attempt took `after`. `is_retryable`: whether a
    /// comparison soon after may succeed.
    CompareFailed { after: Duration, is_retryable: bool },
    /// Drives the machine's timers; `read` announcements were read from the socket of the
    /// subscription connection so far. Whether they were processed is irrelevant: our own
    /// back-pressure says nothing about the node.
    Tick { read: u64 },
}

/// An output of the state machine.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    Dial {
        role: Role,
        after: Duration,
    },
    /// Of the subscription connection.
    Drop(LossReason),
    Compare(GapReason),
    End,
}

#[derive(Debug)]
pub(crate) struct Machine {
    state: SourceState,
    up: [bool; 2],
    /// Failed attempts to connect in a row.
    attempts: [u32; 2],
    /// Consecutive delays since a connection has lived for [`STABLE_AFTER`].
    delays: [u32; 2],
    up_at: [Instant; 2],
    reconnects: u64,
    comparing: Option<GapReason>,
    wanted: Option<GapReason>,
    compare_failures: u32,
    is_audited: bool,
    is_behind: bool,
    compare_at: Option<Instant>,
    /// When a comparison began because of a block that could not be read.
    unread_block_at: Option<Instant>,
    next_audit: Option<Instant>,
    gaps: VecDeque<Gap>,
    activity: Activity,
    rng: SmallRng,
    backoff: Backoff,
    limit: Option<u32>,
    backfill: bool,
    audit_interval: Option<Duration>,
}

/// When hashes and heads came, and at what rate.
#[derive(Debug)]
struct Activity {
    read: u64,
    rate_per_s: f64,
    ticked: Instant,
    /// How many hashes the latest tick brought, and in which time.
    latest: (u64, Duration),
    /// A burst goes on: it is a reason for one comparison.
    in_burst: bool,
    hash_at: Instant,
    heads_since_hash: u32,
    head: Option<u64>,
    head_at: Instant,
    behind_since: Option<Instant>,
}

impl Machine {
    pub(crate) fn new(settings: &Settings, seed: u64, now: Instant) -> (Self, Vec<Action>) {
        let mut machine = Self {
            state: SourceState::Connecting,
            up: [false; 2],
            attempts: [0; 2],
            delays: [0; 2],
            up_at: [now; 2],
            reconnects: 0,
            comparing: None,
            wanted: None,
            compare_failures: 0,
            is_audited: true,
            is_behind: false,
            compare_at: None,
            unread_block_at: None,
            next_audit: None,
            gaps: VecDeque::new(),
            activity: Activity::new(now),
            rng: SmallRng::seed_from_u64(seed),
            backoff: settings.limits.reconnect,
            limit: settings.config.reconnect_limit,
            backfill: settings.config.backfill != Backfill::Off,
            audit_interval: settings.config.audit_interval,
        };
        machine.open_gap(GapReason::StartUp, now);
        let actions = [Role::Subscription, Role::Request]
            .map(|role| Action::Dial { role, after: Duration::ZERO })
            .to_vec();
        (machine, actions)
    }

    pub(crate) fn state(&self) -> SourceState {
        self.state
    }

    pub(crate) fn reconnects(&self) -> u64 {
        self.reconnects
    }

    /// Whether the node's pool can be compared, as far as is known.
    pub(crate) fn is_audited(&self) -> bool {
        self.is_audited
    }

    pub(crate) fn gaps(&self) -> impl Iterator<Item = &Gap> {
        self.gaps.iter()
    }

    pub(crate) fn on(&mut self, event: Event, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.state == SourceState::Ended {
            return actions;
        }
        match event {
            Event::Up(role) => {
                self.up[role as usize] = true;
                self.attempts[role as usize] = 0;
                self.up_at[role as usize] = now;
                if self.up == [true; 2] {
                    self.begin(&mut actions, now);
                }
            }
            Event::DialFailed(role) => {
                let attempts = &mut self.attempts[role as usize];
                *attempts = attempts.saturating_add(1);
                if self.limit.is_some_and(|limit| *attempts >= limit) {
                    self.state = SourceState::Ended;
                    actions.push(Action::End);
                } else {
                    let after = self.delay(role);
                    actions.push(Action::Dial { role, after });
                }
            }
            Event::Down(role) => {
                self.up[role as usize] = false;
                self.state = SourceState::Connecting;
                self.reconnects += 1;
                self.open_gap(GapReason::Reconnect, now);
                if now.saturating_duration_since(self.up_at[role as usize]) >= STABLE_AFTER {
                    self.delays[role as usize] = 0;
                }
                let after = self.delay(role);
                actions.push(Action::Dial { role, after });
            }
            Event::Behind(is_behind) => {
                let was_behind = std::mem::replace(&mut self.is_behind, is_behind);
                let may_change = self.up == [true; 2] && self.state != SourceState::Stale;
                if was_behind != is_behind && may_change {
                    self.begin(&mut actions, now);
                }
            }
            Event::Gap(GapReason::UnreadBlock) => self.unread_block(&mut actions, now),
            Event::Gap(reason) => self.gap(reason, &mut actions, now),
            Event::Head(number) => self.activity.head(number, now),
            Event::SawBlock(number) => {
                if self.state == SourceState::Live && self.activity.is_behind(number, now) {
                    self.stale(StaleReason::NoHeads, &mut actions);
                }
            }
            Event::Compared { recovered, unannounced } => {
                let reason = self.comparing.take();
                self.compare_failures = 0;
                self.is_audited = true;
                if !self.may_compare() {
                    // A connection was lost during the comparison, or the node fell behind: it is
                    // repeated afterwards.
                    self.add_recovered(recovered);
                    return actions;
                }
                if reason == Some(GapReason::Silence) && self.state == SourceState::Live {
                    self.judge_silence(unannounced, &mut actions, now);
                }
                self.compared(recovered, &mut actions, now);
            }
            Event::CompareFailed { after, is_retryable } => {
                self.comparing = None;
                if self.may_compare() {
                    self.compare_failed(after, is_retryable, now);
                }
            }
            Event::Tick { read } => {
                if self.activity.tick(read, now) {
                    self.open_gap(GapReason::Lagged, now);
                    let due = now + BURST_PAUSE;
                    self.compare_at = Some(self.compare_at.map_or(due, |at| at.min(due)));
                }
                if self.may_compare() && self.compare_at.is_some_and(|at| now >= at) {
                    let reason = self.open_reason().unwrap_or(GapReason::Audit);
                    self.compare(reason, &mut actions, now);
                }
                if self.state == SourceState::Live {
                    if self.next_audit.is_some_and(|at| now >= at) {
                        self.compare(GapReason::Audit, &mut actions, now);
                    }
                    if self.activity.is_silent(now) {
                        self.suspect(&mut actions, now);
                    }
                }
            }
        }
        actions
    }

    fn may_compare(&self) -> bool {
        self.up == [true; 2] && self.state != SourceState::Syncing
    }

    /// Both kinds of connections are up, or the node has begun or ceased to follow the chain.
    fn begin(&mut self, actions: &mut Vec<Action>, now: Instant) {
        self.activity = Activity { read: self.activity.read, ..Activity::new(now) };
        if self.is_behind {
            self.state = SourceState::Syncing;
            // Its heads do not count until it follows the chain.
            return self.open_gap(GapReason::MissedHeads, now);
        }
        // Without a list of the pool there is nothing to wait for.
        self.state = match self.is_audited {
            true => SourceState::Backfilling,
            false => SourceState::Live,
        };
        let reason = self.open_reason().unwrap_or(GapReason::Reconnect);
        self.compare(reason, actions, now);
    }

    /// The delay before the next attempt to connect.
    fn delay(&mut self, role: Role) -> Duration {
        let delays = &mut self.delays[role as usize];
        let delay = self.backoff.delay(*delays, self.rng.random());
        *delays = delays.saturating_add(1);
        delay
    }

    /// Investigates a silence. If a comparison is running or due, its result comes first; the
    /// source may not be silent afterwards.
    fn suspect(&mut self, actions: &mut Vec<Action>, now: Instant) {
        if !self.is_audited {
            // If nothing can tell it from a dead subscription, it is treated as one: a new
            // connection costs milliseconds, a dead one every transaction.
            self.stale(StaleReason::NotListed, actions);
        } else if self.comparing.is_none() && self.compare_at.is_none() {
            self.gap(GapReason::Silence, actions, now);
        }
    }

    /// Treats a silent source as dead if the node has new transactions; else the load has ended.
    fn judge_silence(&mut self, unannounced: u64, actions: &mut Vec<Action>, now: Instant) {
        if !self.activity.is_silent(now) {
            return;
        }
        if unannounced > 0 {
            self.stale(StaleReason::NoHashes { unannounced }, actions);
        } else {
            self.activity.load_has_ended(now);
        }
    }

    fn compare_failed(&mut self, after: Duration, is_retryable: bool, now: Instant) {
        self.compare_failures = self.compare_failures.saturating_add(1);
        if is_retryable && self.compare_failures < MAX_COMPARE_FAILURES {
            let backoff = self.backoff.delay(self.compare_failures - 1, self.rng.random());
            // A node that misses the time-out may still be building the list. A pause of the same
            // length keeps such requests from piling up in it.
            self.compare_at = Some(now + backoff.max(after));
            return;
        }
        // Announcements are still read, so the source is useful. Its gaps stay open, and the next
        // audit tries again.
        self.is_audited = false;
        self.wanted = None;
        self.compare_at = None;
        if self.state == SourceState::Backfilling {
            self.state = SourceState::Live;
        }
        self.set_next_audit(now);
    }

    /// Starts a comparison. If one is running, another follows it, with the most severe of the
    /// reasons that came meanwhile.
    fn compare(&mut self, reason: GapReason, actions: &mut Vec<Action>, now: Instant) {
        if !self.backfill && !matches!(reason, GapReason::Audit | GapReason::Silence) {
            self.compared(0, actions, now);
        } else if self.comparing.is_some() {
            self.wanted = self.wanted.max(Some(reason));
        } else {
            self.comparing = Some(reason);
            // This one covers all reasons.
            self.wanted = None;
            self.compare_at = None;
            self.next_audit = None;
            if reason == GapReason::UnreadBlock {
                self.unread_block_at = Some(now);
            }
            actions.push(Action::Compare(reason));
        }
    }

    /// Compares at once, but not again soon: otherwise a node that cannot return its blocks would
    /// have to list its pool at every head.
    fn unread_block(&mut self, actions: &mut Vec<Action>, now: Instant) {
        match self.unread_block_at.map(|at| at + UNREAD_BLOCK_PAUSE) {
            Some(due) if now < due && self.is_audited => {
                self.open_gap(GapReason::UnreadBlock, now);
                self.compare_at = Some(self.compare_at.map_or(due, |at| at.min(due)));
            }
            _ => self.gap(GapReason::UnreadBlock, actions, now),
        }
    }

    fn compared(&mut self, recovered: u64, actions: &mut Vec<Action>, now: Instant) {
        self.add_recovered(recovered);
        if self.state == SourceState::Stale {
            // The subscription connection is being closed: the gaps stay open until the comparison
            // after the reconnect.
            return;
        }
        if let Some(reason) = self.wanted.take() {
            // A gap was opened during the comparison, which may have read the pool before it.
            return self.compare(reason, actions, now);
        }
        for gap in self.gaps.iter_mut().filter(|gap| gap.to.is_none()) {
            gap.to = Some(now);
        }
        self.state = SourceState::Live;
        if self.next_audit.is_none() {
            self.set_next_audit(now);
        }
    }

    fn set_next_audit(&mut self, now: Instant) {
        self.next_audit = self
            .audit_interval
            .map(|interval| now + interval.mul_f64(0.9 + 0.2 * self.rng.random::<f64>()));
    }

    fn gap(&mut self, reason: GapReason, actions: &mut Vec<Action>, now: Instant) {
        self.open_gap(reason, now);
        match self.state {
            // The next audit finds out whether the pool can be listed again.
            SourceState::Live if !self.is_audited => {}
            SourceState::Live | SourceState::Backfilling => self.compare(reason, actions, now),
            // The comparison follows when the connections are up again, and the node follows the
            // chain.
            SourceState::Connecting
            | SourceState::Stale
            | SourceState::Syncing
            | SourceState::Ended => {}
        }
    }

    fn open_gap(&mut self, reason: GapReason, now: Instant) {
        if self.gaps.iter().any(|gap| gap.to.is_none() && gap.reason == reason) {
            return;
        }
        if self.gaps.len() == MAX_GAPS {
            self.gaps.pop_front();
        }
        self.gaps.push_back(Gap { reason, from: now, to: None, recovered: 0 });
    }

    fn open_reason(&self) -> Option<GapReason> {
        self.gaps.iter().filter(|gap| gap.to.is_none()).map(|gap| gap.reason).max()
    }

    fn add_recovered(&mut self, recovered: u64) {
        if let Some(gap) = self.gaps.iter_mut().rev().find(|gap| gap.to.is_none()) {
            gap.recovered += recovered;
        }
    }

    fn stale(&mut self, reason: StaleReason, actions: &mut Vec<Action>) {
        self.state = SourceState::Stale;
        actions.push(Action::Drop(LossReason::Stale(reason)));
    }
}

impl Activity {
    fn new(now: Instant) -> Self {
        Self {
            read: 0,
            rate_per_s: 0.0,
            ticked: now,
            latest: (0, Duration::ZERO),
            in_burst: false,
            hash_at: now,
            heads_since_hash: 0,
            head: None,
            head_at: now,
            behind_since: None,
        }
    }

    /// Returns whether so many hashes begin to come at once that the node may have dropped others.
    fn tick(&mut self, read: u64, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.ticked);
        if passed.is_zero() {
            return false;
        }
        let new = read.saturating_sub(self.read);
        // A burst may come on both sides of a tick.
        let (before, took) = std::mem::replace(&mut self.latest, (new, passed));
        let is_burst = new + before >= LISTENER_SLOTS && took + passed <= BURST_WINDOW;
        let has_begun = is_burst && !std::mem::replace(&mut self.in_burst, is_burst);
        let passed = passed.as_secs_f64();
        if new > 0 {
            // Averaged only over ticks with hashes: a silence is judged by the rate before it.
            let weight = (passed / RATE_WINDOW.as_secs_f64()).min(1.0);
            self.rate_per_s += weight * (new as f64 / passed - self.rate_per_s);
            self.hash_at = now;
            self.heads_since_hash = 0;
        }
        self.read = read;
        self.ticked = now;
        has_begun
    }

    /// The silence was no sign of a dead subscription, so the rate is at most one hash in its
    /// length.
    fn load_has_ended(&mut self, now: Instant) {
        let silence = now.saturating_duration_since(self.hash_at);
        self.rate_per_s = self.rate_per_s.min(1.0 / silence.max(MIN_SILENCE).as_secs_f64());
    }

    fn head(&mut self, number: u64, now: Instant) {
        self.head = Some(number);
        self.head_at = now;
        self.behind_since = None;
        self.heads_since_hash = self.heads_since_hash.saturating_add(1);
    }

    fn is_silent(&self, now: Instant) -> bool {
        let silence = now.saturating_duration_since(self.hash_at);
        self.heads_since_hash >= HEADS_WITHOUT_HASHES
            && silence >= MIN_SILENCE
            && self.rate_per_s * silence.as_secs_f64() >= SUSPICIOUS_EXPECTATION
    }

    /// Whether the node has been ahead of its own announcements for longer than [`MIN_SILENCE`].
    fn is_behind(&mut self, number: u64, now: Instant) -> bool {
        // Before the first announced head, compare with the first block number that was returned.
        let known = *self.head.get_or_insert(number);
        if number <= known {
            self.behind_since = None;
            return false;
        }
        let since = *self.behind_since.get_or_insert(now);
        now.saturating_duration_since(since) >= MIN_SILENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::FetcherConfig, limits::Limits};
    use proptest::prelude::*;

    const S: Duration = Duration::from_secs(1);

    struct Run {
        machine: Machine,
        now: Instant,
    }

    impl Run {
        fn new(config: &FetcherConfig) -> Self {
            let now = Instant::now();
            let settings = Settings { config: config.clone(), limits: Limits::default() };
            let (machine, actions) = Machine::new(&settings, 7, now);
            let dials = |role| Action::Dial { role, after: Duration::ZERO };
            assert_eq!(actions, [dials(Role::Subscription), dials(Role::Request)]);
            assert_eq!(machine.state(), SourceState::Connecting);
            Self { machine, now }
        }

        /// Both connections are up; with the actions that follow.
        fn connected(config: &FetcherConfig) -> (Self, Vec<Action>) {
            let mut run = Self::new(config);
            assert_eq!(run.on(Event::Up(Role::Subscription)), []);
            let actions = run.on(Event::Up(Role::Request));
            (run, actions)
        }

        fn live() -> Self {
            Self::live_with(&config())
        }

        fn live_with(config: &FetcherConfig) -> Self {
            let (mut run, actions) = Self::connected(config);
            assert_eq!(actions, [Action::Compare(GapReason::StartUp)]);
            assert_eq!(run.machine.state(), SourceState::Backfilling);
            assert_eq!(run.on(compared(3)), []);
            assert_eq!(run.machine.state(), SourceState::Live);
            let gap = run.machine.gaps().next().expect("the start's");
            assert_eq!((gap.reason, gap.recovered), (GapReason::StartUp, 3));
            assert!(gap.to.is_some());
            run
        }

        fn on(&mut self, event: Event) -> Vec<Action> {
            self.machine.on(event, self.now)
        }

        fn pass(&mut self, time: Duration) -> &mut Self {
            self.now += time;
            self
        }

        fn open_gaps(&self) -> Vec<GapReason> {
            self.machine.gaps().filter(|gap| gap.to.is_none()).map(|gap| gap.reason).collect()
        }
    }

    fn config() -> FetcherConfig {
        FetcherConfig::ipc("/node.ipc")
    }

    fn compared(recovered: u64) -> Event {
        Event::Compared { recovered, unannounced: 0 }
    }

    fn failed(after: Duration) -> Event {
        Event::CompareFailed { after, is_retryable: true }
    }

    const NO_SUCH_METHOD: Event =
        Event::CompareFailed { after: Duration::ZERO, is_retryable: false };

    fn is_dial(actions: &[Action], role: Role, cap: Duration) -> bool {
        matches!(actions, [Action::Dial { role: dialed, after }] if *dialed == role && *after <= cap)
    }

    #[test]
    fn a_failed_dial_is_repeated_with_growing_delays_and_without_end() {
        let cap = Limits::default().reconnect.cap;
        let mut run = Run::new(&config());
        let mut longest = Duration::ZERO;
        for _ in 0..1000 {
            let actions = run.on(Event::DialFailed(Role::Request));
            assert!(is_dial(&actions, Role::Request, cap), "{actions:?}");
            let [Action::Dial { after, .. }] = actions[..] else { unreachable!() };
            longest = longest.max(after);
        }
        assert!(longest > cap / 2);
        assert_eq!(run.machine.state(), SourceState::Connecting);
    }

    #[test]
    fn a_limit_of_attempts_ends_the_source() {
        let mut config = config();
        config.reconnect_limit = Some(3);
        let mut run = Run::new(&config);
        run.on(Event::DialFailed(Role::Subscription));
        run.on(Event::DialFailed(Role::Subscription));
        assert_eq!(run.on(Event::DialFailed(Role::Subscription)), [Action::End]);
        assert_eq!(run.machine.state(), SourceState::Ended);
        assert_eq!(run.on(Event::Up(Role::Subscription)), []);
    }

    #[test]
    fn the_loss_of_either_connection_leads_back_to_connecting_and_through_a_comparison() {
        for role in [Role::Subscription, Role::Request] {
            let mut run = Run::live();
            let actions = run.on(Event::Down(role));
            assert!(is_dial(&actions, role, Limits::default().reconnect.base));
            assert_eq!(run.machine.state(), SourceState::Connecting);
            assert_eq!(run.open_gaps(), [GapReason::Reconnect]);
            assert_eq!(run.on(Event::Up(role)), [Action::Compare(GapReason::Reconnect)]);
            assert_eq!(run.machine.state(), SourceState::Backfilling);
            run.on(compared(5));
            assert_eq!(run.machine.state(), SourceState::Live);
            assert_eq!(run.open_gaps(), []);
            assert_eq!(run.machine.gaps().last().unwrap().recovered, 5);
            assert_eq!(run.machine.reconnects(), 1);
        }
    }

    #[test]
    fn a_loss_while_backfilling_leads_back_to_connecting_and_the_stale_comparison_does_not_count() {
        let (mut run, _) = Run::connected(&config());
        run.on(Event::Down(Role::Subscription));
        assert_eq!(run.on(compared(1)), []);
        assert_eq!(run.machine.state(), SourceState::Connecting);
        assert_eq!(run.on(Event::Up(Role::Subscription)), [Action::Compare(GapReason::StartUp)]);
    }

    #[test]
    fn lag_reorg_and_missed_heads_are_compared_without_leaving_live() {
        use GapReason::{Lagged, MissedHeads, Reorg, UnreadBlock};
        for reason in [Lagged, Reorg, MissedHeads, UnreadBlock] {
            let mut run = Run::live();
            assert_eq!(run.on(Event::Gap(reason)), [Action::Compare(reason)]);
            assert_eq!(run.machine.state(), SourceState::Live);
            assert_eq!(run.open_gaps(), [reason]);
            run.on(compared(2));
            assert_eq!(run.open_gaps(), []);
        }
    }

    #[test]
    fn what_happens_during_a_comparison_is_compared_once_more() {
        let mut run = Run::live();
        run.on(Event::Gap(GapReason::Lagged));
        assert_eq!(run.on(Event::Gap(GapReason::Reorg)), []);
        assert_eq!(run.on(Event::Gap(GapReason::Lagged)), []);
        let actions = run.on(compared(0));
        assert_eq!(actions, [Action::Compare(GapReason::Lagged)]);
        assert_eq!(run.open_gaps().len(), 2);
        run.on(compared(0));
        assert_eq!(run.open_gaps(), []);
    }

    #[test]
    fn a_failed_comparison_is_repeated_after_as_long_as_it_took_and_the_gap_stays_open_until_then()
    {
        let mut run = Run::live();
        run.on(Event::Gap(GapReason::Lagged));
        assert_eq!(run.on(failed(20 * S)), []);
        assert_eq!(run.pass(19 * S).on(Event::Tick { read: 0 }), []);
        assert_eq!(run.open_gaps(), [GapReason::Lagged]);
        let actions = run.pass(2 * S).on(Event::Tick { read: 0 });
        assert_eq!(actions, [Action::Compare(GapReason::Lagged)]);
    }

    #[test]
    fn an_audit_comes_once_in_its_interval_and_never_when_it_is_off() {
        let mut run = Run::live();
        assert_eq!(run.pass(50 * S).on(Event::Tick { read: 0 }), []);
        let actions = run.pass(20 * S).on(Event::Tick { read: 0 });
        assert_eq!(actions, [Action::Compare(GapReason::Audit)]);
        // It may take longer than a tick.
        assert_eq!(run.pass(S).on(Event::Tick { read: 0 }), []);
        assert_eq!(run.on(compared(0)), []);
        assert_eq!(run.pass(40 * S).on(Event::Tick { read: 0 }), []);
        let config = FetcherConfig { audit_interval: None, ..config() };
        let (mut run, _) = Run::connected(&config);
        run.on(compared(0));
        assert_eq!(run.pass(1000 * S).on(Event::Tick { read: 0 }), []);
    }

    #[test]
    fn without_backfill_a_source_is_live_at_once() {
        let config = FetcherConfig { backfill: Backfill::Off, ..config() };
        let (run, actions) = Run::connected(&config);
        assert_eq!((actions, run.machine.state()), (vec![], SourceState::Live));
    }

    /// 100 hashes a second for a minute, with a head every 12 s.
    fn busy() -> (Run, u64) {
        let mut run = Run::live_with(&FetcherConfig { audit_interval: None, ..config() });
        let mut announced = 0;
        for second in 0..60 {
            announced += 100;
            assert_eq!(run.pass(S).on(Event::Tick { read: announced }), []);
            if second % 12 == 0 {
                run.on(Event::Head(second));
            }
        }
        (run, announced)
    }

    /// Two heads without a hash.
    fn silent() -> (Run, u64) {
        let (mut run, read) = busy();
        run.pass(5 * S).on(Event::Head(100));
        assert_eq!(run.on(Event::Tick { read }), []);
        run.pass(S).on(Event::Head(101));
        (run, read)
    }

    #[test]
    fn a_silent_source_whose_node_has_new_hashes_is_stale_and_loses_its_subscription_connection() {
        let (mut run, read) = silent();
        assert_eq!(run.on(Event::Tick { read }), [Action::Compare(GapReason::Silence)]);
        assert_eq!(run.open_gaps(), [GapReason::Silence]);
        assert_eq!(run.pass(S).on(Event::Tick { read }), []);
        assert_eq!(run.machine.state(), SourceState::Live);
        run.on(Event::Gap(GapReason::Lagged));
        let actions = run.pass(5 * S).on(Event::Compared { recovered: 7, unannounced: 7 });
        let reason = LossReason::Stale(StaleReason::NoHashes { unannounced: 7 });
        assert_eq!(actions, [Action::Drop(reason)]);
        assert_eq!(run.machine.state(), SourceState::Stale);
        assert_eq!(run.open_gaps(), [GapReason::Silence, GapReason::Lagged], "until reconnected");
        assert!(is_dial(&run.on(Event::Down(Role::Subscription)), Role::Subscription, S));
        assert_eq!(run.machine.state(), SourceState::Connecting);
    }

    #[test]
    fn a_load_that_ended_is_no_dead_subscription_and_is_not_looked_into_again_and_again() {
        let (mut run, read) = silent();
        run.on(Event::Tick { read });
        assert_eq!(run.pass(5 * S).on(compared(0)), []);
        assert_eq!((run.machine.state(), run.open_gaps()), (SourceState::Live, vec![]));
        let mut comparisons = 0;
        for head in 0..600 {
            run.pass(6 * S).on(Event::Head(200 + head));
            let actions = run.on(Event::Tick { read });
            if !actions.is_empty() {
                assert_eq!(actions, [Action::Compare(GapReason::Silence)]);
                comparisons += 1;
                assert_eq!(run.on(compared(0)), []);
            }
        }
        assert!(comparisons <= 2, "{comparisons} in an hour");
        assert_eq!(run.machine.reconnects(), 0);
    }

    #[test]
    fn hashes_that_come_while_the_pool_is_listed_clear_the_source() {
        let (mut run, read) = silent();
        run.on(Event::Tick { read });
        assert_eq!(run.pass(S).on(Event::Tick { read: read + 1 }), []);
        assert_eq!(run.pass(4 * S).on(Event::Compared { recovered: 1, unannounced: 1 }), []);
        assert_eq!(run.machine.state(), SourceState::Live);
    }

    #[test]
    fn a_silent_source_is_looked_into_after_the_comparison_that_runs() {
        let (mut run, read) = silent();
        assert_eq!(run.on(Event::Gap(GapReason::Lagged)), [Action::Compare(GapReason::Lagged)]);
        assert_eq!(run.on(Event::Tick { read }), []);
        assert_eq!(run.on(Event::Compared { recovered: 0, unannounced: 0 }), []);
        assert_eq!(run.on(Event::Tick { read }), [Action::Compare(GapReason::Silence)]);
        assert_eq!(run.on(failed(S)), []);
        let again = run.pass(2 * S).on(Event::Tick { read });
        assert_eq!(again, [Action::Compare(GapReason::Silence)]);
    }

    #[test]
    fn a_silent_source_whose_pool_cannot_be_listed_is_stale() {
        let (mut run, read) = silent();
        run.on(Event::Tick { read });
        assert_eq!(run.on(NO_SUCH_METHOD), []);
        let actions = run.on(Event::Tick { read });
        let reason = LossReason::Stale(StaleReason::NotListed);
        assert_eq!(actions, [Action::Drop(reason)]);
    }

    #[test]
    fn without_backfill_too_the_pool_of_a_silent_source_is_listed() {
        let config = FetcherConfig { backfill: Backfill::Off, audit_interval: None, ..config() };
        let (mut run, _) = Run::connected(&config);
        for second in 1..=60 {
            assert_eq!(run.pass(S).on(Event::Tick { read: 100 * second }), []);
        }
        run.on(Event::Head(1));
        run.pass(5 * S).on(Event::Head(2));
        let actions = run.on(Event::Tick { read: 6000 });
        assert_eq!(actions, [Action::Compare(GapReason::Silence)]);
    }

    #[test]
    fn a_node_that_does_not_list_its_pool_is_live_and_is_asked_again_by_the_next_audit_only() {
        let (mut run, _) = Run::connected(&config());
        assert_eq!(run.on(NO_SUCH_METHOD), []);
        assert_eq!(run.machine.state(), SourceState::Live);
        assert!(!run.machine.is_audited());
        assert_eq!(run.open_gaps(), [GapReason::StartUp]);
        use GapReason::{Lagged, Reorg, UnreadBlock};
        for reason in [Lagged, Reorg, UnreadBlock, UnreadBlock] {
            assert_eq!(run.pass(S).on(Event::Gap(reason)), []);
        }
        assert_eq!(run.pass(40 * S).on(Event::Tick { read: 0 }), []);
        let actions = run.pass(30 * S).on(Event::Tick { read: 0 });
        assert_eq!(actions, [Action::Compare(GapReason::Audit)]);
        assert_eq!(run.on(NO_SUCH_METHOD), []);
        assert_eq!(run.pass(40 * S).on(Event::Tick { read: 0 }), []);
        // After a reconnect too, it does not wait for the list.
        run.on(Event::Down(Role::Request));
        let actions = run.on(Event::Up(Role::Request));
        assert_eq!(actions, [Action::Compare(GapReason::StartUp)]);
        assert_eq!(run.machine.state(), SourceState::Live);
        assert_eq!(run.on(compared(1)), []);
        assert!(run.machine.is_audited());
        assert_eq!(run.open_gaps(), []);
    }

    #[test]
    fn three_failed_comparisons_in_a_row_make_a_source_live_and_not_audited() {
        let (mut run, _) = Run::connected(&config());
        for _ in 0..2 {
            assert_eq!(run.on(failed(20 * S)), []);
            assert_eq!(run.machine.state(), SourceState::Backfilling);
            let actions = run.pass(21 * S).on(Event::Tick { read: 0 });
            assert_eq!(actions, [Action::Compare(GapReason::StartUp)]);
        }
        assert_eq!(run.on(failed(20 * S)), []);
        assert_eq!((run.machine.state(), run.machine.is_audited()), (SourceState::Live, false));
        assert_eq!(run.pass(40 * S).on(Event::Tick { read: 0 }), []);
    }

    #[test]
    fn a_node_that_accepts_connections_and_closes_them_is_dialed_ever_more_slowly() {
        let mut run = Run::live();
        let cap = Limits::default().reconnect.cap;
        let delay = |run: &mut Run| {
            let actions = run.on(Event::Down(Role::Subscription));
            let [Action::Dial { after, .. }] = actions[..] else { panic!("{actions:?}") };
            run.pass(after).on(Event::Up(Role::Subscription));
            after
        };
        for _ in 0..20 {
            delay(&mut run);
            run.pass(S);
        }
        assert!(delay(&mut run) >= cap / 2);
        run.pass(STABLE_AFTER);
        assert!(delay(&mut run) <= Limits::default().reconnect.base);
    }

    #[test]
    fn silence_without_heads_or_on_a_quiet_chain_is_not_stale() {
        let (mut run, announced) = busy();
        assert_eq!(run.pass(10 * S).on(Event::Tick { read: announced }), []);
        let mut quiet = Run::live_with(&FetcherConfig { audit_interval: None, ..config() });
        for head in 0..4 {
            quiet.pass(12 * S).on(Event::Head(head));
            assert_eq!(quiet.on(Event::Tick { read: 0 }), []);
        }
        assert_eq!(quiet.machine.state(), SourceState::Live);
    }

    #[test]
    fn a_node_ahead_of_the_heads_it_announced_is_stale_after_a_while() {
        let mut run = Run::live();
        run.on(Event::Head(10));
        assert_eq!(run.on(Event::SawBlock(10)), []);
        assert_eq!(run.pass(2 * S).on(Event::SawBlock(11)), []);
        assert_eq!(run.pass(2 * S).on(Event::SawBlock(11)), []);
        let actions = run.pass(2 * S).on(Event::SawBlock(11));
        let reason = LossReason::Stale(StaleReason::NoHeads);
        assert_eq!(actions, [Action::Drop(reason)]);
    }

    #[test]
    fn a_source_whose_node_is_behind_is_syncing_and_its_pool_is_compared_afterwards() {
        use GapReason::{MissedHeads, Reorg, StartUp};
        let mut run = Run::new(&config());
        run.on(Event::Behind(true));
        run.on(Event::Up(Role::Subscription));
        assert_eq!(run.on(Event::Up(Role::Request)), []);
        assert_eq!(run.machine.state(), SourceState::Syncing);
        assert_eq!(run.on(Event::Gap(Reorg)), []);
        assert_eq!(run.pass(1000 * S).on(Event::Tick { read: 0 }), []);
        assert_eq!(run.on(Event::SawBlock(1)), []);
        assert_eq!(run.on(Event::Behind(false)), [Action::Compare(StartUp)]);
        assert_eq!(run.machine.state(), SourceState::Backfilling);
        run.on(compared(1));
        assert_eq!((run.machine.state(), run.open_gaps()), (SourceState::Live, vec![]));
        // What a comparison finds that the node fell behind of does not count.
        run.on(Event::Gap(Reorg));
        assert_eq!(run.on(Event::Behind(true)), []);
        assert_eq!(run.on(compared(1)), []);
        assert_eq!(run.machine.state(), SourceState::Syncing);
        assert_eq!(run.open_gaps(), [Reorg, MissedHeads]);
        assert_eq!(run.on(Event::Behind(false)), [Action::Compare(Reorg)]);
    }

    #[test]
    fn a_burst_as_long_as_a_nodes_buffer_is_followed_by_a_comparison_and_a_high_rate_by_none() {
        let mut run = Run::live();
        let tick = Duration::from_millis(100);
        run.pass(tick).on(Event::Tick { read: 1_000 });
        assert_eq!(run.pass(tick).on(Event::Tick { read: 2_048 }), []);
        assert_eq!(run.open_gaps(), [GapReason::Lagged]);
        let actions = run.pass(S).on(Event::Tick { read: 2_048 });
        assert_eq!(actions, [Action::Compare(GapReason::Lagged)]);
        run.on(compared(52));
        let mut run = Run::live_with(&FetcherConfig { audit_interval: None, ..config() });
        let mut comparisons = 0;
        for n in 1..=600 {
            let actions = run.pass(tick).on(Event::Tick { read: n * 2_000 });
            comparisons += actions.len();
            if !actions.is_empty() {
                run.on(compared(0));
            }
        }
        assert_eq!(comparisons, 1, "at its beginning");
    }

    fn any_event() -> impl Strategy<Value = Event> {
        let role = prop_oneof![Just(Role::Subscription), Just(Role::Request)];
        prop_oneof![
            role.clone().prop_map(Event::Up),
            role.clone().prop_map(Event::DialFailed),
            role.prop_map(Event::Down),
            Just(Event::Gap(GapReason::Lagged)),
            Just(Event::Gap(GapReason::Reorg)),
            Just(Event::Gap(GapReason::MissedHeads)),
            Just(Event::Gap(GapReason::UnreadBlock)),
            (0u64..50).prop_map(Event::Head),
            any::<bool>().prop_map(Event::Behind),
            (0u64..50).prop_map(Event::SawBlock),
            Just(compared(1)),
            Just(failed(S)),
            Just(NO_SUCH_METHOD),
            Just(Event::Compared { recovered: 1, unannounced: 1 }),
            (0u64..5000).prop_map(|read| Event::Tick { read }),
        ]
    }

    proptest! {
        /// Whatever happens: with both connections up and comparisons answered, a source is live
        /// again, no gap is open, and no two comparisons run at once.
        #[test]
        fn every_history_ends_live_once_the_node_behaves(
            events in proptest::collection::vec((any_event(), 0u64..3000), 0..200)
        ) {
            let mut run = Run::new(&config());
            let mut comparing = false;
            let mut up = [false; 2];
            for (event, millis) in events {
                // Only events that the source could report in this state.
                match &event {
                    Event::Up(role) if up[*role as usize] => continue,
                    Event::Down(role) | Event::DialFailed(role)
                        if up[*role as usize] != matches!(event, Event::Down(_)) => continue,
                    Event::Compared { .. } | Event::CompareFailed { .. } if !comparing => continue,
                    Event::Up(role) => up[*role as usize] = true,
                    Event::Down(role) => up[*role as usize] = false,
                    Event::Compared { .. } | Event::CompareFailed { .. } => comparing = false,
                    _ => {}
                }
                run.pass(Duration::from_millis(millis));
                for action in run.on(event) {
                    if let Action::Compare(_) = action {
                        prop_assert!(!comparing, "two comparisons at once");
                        comparing = true;
                    }
                }
                let state = run.machine.state();
                prop_assert_eq!(state == SourceState::Connecting, up != [true; 2] && state != SourceState::Stale);
            }
            let actions = run.on(Event::Behind(false));
            comparing |= actions.iter().any(|action| matches!(action, Action::Compare(_)));
            for role in [Role::Subscription, Role::Request] {
                if !up[role as usize] {
                    comparing |= run.on(Event::Up(role)).iter().any(|a| matches!(a, Action::Compare(_)));
                }
            }
            // Longer than the pause between two comparisons for unread blocks, and than the time to the
            // next audit of a source that is not audited.
            for _ in 0..80 {
                run.pass(2 * S);
                let actions = if run.machine.state() == SourceState::Stale {
                    run.on(Event::Down(Role::Subscription));
                    run.on(Event::Up(Role::Subscription))
                } else if std::mem::take(&mut comparing) {
                    run.on(compared(0))
                } else {
                    run.on(Event::Tick { read: 0 })
                };
                comparing |= actions.iter().any(|action| matches!(action, Action::Compare(_)));
            }
            if comparing {
                run.on(compared(0));
            }
            prop_assert_eq!(run.machine.state(), SourceState::Live);
            prop_assert!(run.open_gaps().is_empty());
        }
    }
}
