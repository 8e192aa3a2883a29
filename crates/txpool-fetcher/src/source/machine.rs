//! The state of one source as a pure state machine: takes an event and the time, and adds actions.
//! Decides when to dial, when to compare pools and why, and when a subscription counts as dead.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use rand::{Rng, SeedableRng, rngs::SmallRng};

use super::activity::Activity;
use crate::{
    audit::AuditReport,
    config::{Backfill, Settings},
    error::LossReason,
    fetch::Failures,
    gap::{Gap, GapReason},
};

/// The number of gaps that are kept for the status.
const MAX_GAPS: usize = 32;

/// Pause between two comparisons for blocks that could not be read.
const UNREAD_BLOCK_PAUSE: Duration = Duration::from_secs(30);

/// The number of failed comparisons in a row after which the source counts as not audited.
const MAX_COMPARE_FAILURES: u32 = 3;

/// How long comparisons must have failed for that: three attempts take only milliseconds at a node
/// that refuses connections for a moment.
const MIN_COMPARE_FAILURE_TIME: Duration = Duration::from_secs(10);

/// How long a connection must have lived to reset the delay before a reconnect. So a node that
/// accepts connections and closes them is not dialed faster than one that refuses them.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// For how long, and how often at least, requests for transactions must have failed in a row before
/// the source counts as failing, and its request connections are opened again.
const FAILING_AFTER: Duration = Duration::from_secs(10);
const MIN_FAILURES: u64 = 8;

/// The longest pause before the request connections of a failing source are opened once more. It
/// begins with [`FAILING_AFTER`] and doubles: a node that returns no transactions is not dialed
/// for ever.
const MAX_REOPEN_PAUSE: Duration = Duration::from_secs(300);

/// Pause between a burst of hashes and the comparison for it.
const BURST_PAUSE: Duration = Duration::from_secs(1);

load_control::labels! {
    /// What a source is doing.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum SourceState {
        /// At least one of the two kinds of connections is not open.
        Connecting = "connecting",
        /// Announcements are read, and transactions that were pending before are being fetched.
        Backfilling = "backfilling",
        /// Announcements are read, and transactions that were pending before were fetched, or
        /// cannot be listed. If some are still missing, a gap is open.
        Live = "live",
        /// Hashes or heads stopped arriving, although the node has new ones. The source reconnects.
        Stale = "stale",
        /// The source has ended, because of the limit of attempts to connect, or because the
        /// fetcher stopped.
        Ended = "ended",
        /// Both kinds of connections are open, but the node does not follow the chain: its head is
        /// more than 60 s old by the wall clock, and it says that it is syncing, or another source
        /// has a recent head. Its pool is not compared and its heads do not count, but its
        /// announced hashes do.
        Syncing = "syncing",
        /// For ten seconds or more, every request for a transaction has failed, or the node has
        /// listed transactions again and again and returned none: nothing that is announced as a
        /// hash alone reaches the pool. Or the node has announced nothing and answered no request
        /// for its block number. The connections are opened again at times.
        Failing = "failing",
    }
}

/// The two kinds of connections to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    /// The connections that carry the subscriptions, and no requests but pings.
    Subscription,
    /// The connections that carry all other requests.
    Request,
}

/// An event of a source.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    /// The connections of this role are open, probed and subscribed.
    Up(Role),
    /// An attempt to open the connections of this role has failed.
    DialFailed(Role),
    /// A connection of this role is lost.
    Down(Role),
    /// The node announced or returned the head of this number.
    Head(u64),
    /// Says whether the node fails to follow the chain.
    Behind(bool),
    /// The requests for transactions that have failed since the latest answer.
    Failures(Option<Failures>),
    /// Announcements or blocks may have been missed.
    Gap(GapReason),
    /// The node returned this block number on a request connection.
    SawBlock(u64),
    /// The node did not return its block number on a request connection.
    NoBlockNumber,
    /// The node's pool was compared, and missing transactions were fetched.
    Compared(AuditReport),
    /// The node's pool could not be compared; the attempt took `after`.
    CompareFailed { after: Duration, is_retryable: bool },
    /// Drives the timers. `read` announcements were read from the socket so far, processed or not,
    /// because back-pressure of the fetcher says nothing about the node.
    Tick { read: u64 },
}

/// An action for the shell of the source.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    /// Opens the connections of a role after a pause.
    Dial { role: Role, after: Duration },
    /// Closes the connections of a role.
    Drop(Role, LossReason),
    /// Compares the node's pool.
    Compare(GapReason),
}

/// The state machine of one source. Arrays have one element for each [`Role`].
pub(crate) struct Machine {
    pub(super) state: SourceState,
    /// Whether the connections of each role are open.
    up: [bool; 2],
    /// Failed attempts to open the connections in a row.
    attempts: [u32; 2],
    /// Consecutive delays since a connection has lived for [`STABLE_AFTER`].
    delays: [u32; 2],
    up_at: [Instant; 2],
    pub(super) reconnects: u64,
    /// The reason of the comparison that runs.
    comparing: Option<GapReason>,
    /// The reason for a comparison after the one that runs.
    wanted: Option<GapReason>,
    /// The number of failed comparisons in a row, and when the first of them failed.
    failed_comparisons: Option<(u32, Instant)>,
    /// Whether the node's pool can be compared, as far as is known.
    pub(super) is_audited: bool,
    is_behind: bool,
    is_failing: bool,
    /// Since when the node has announced nothing and not returned its block number.
    no_sign_since: Option<Instant>,
    /// When the connections of a failing source are opened again, and the pause after that.
    reopen: Option<(Instant, Duration)>,
    /// When a delayed comparison is due, and its reason.
    compare_at: Option<(Instant, GapReason)>,
    /// When the latest comparison for a block that could not be read began.
    unread_block_at: Option<Instant>,
    next_audit: Option<Instant>,
    pub(super) gaps: VecDeque<Gap>,
    activity: Activity,
    /// Actions that the shell has not performed yet, in order.
    pub(super) actions: Vec<Action>,
    rng: SmallRng,
    settings: Arc<Settings>,
}

impl Machine {
    pub(crate) fn new(settings: &Arc<Settings>, seed: u64, now: Instant) -> Self {
        let dial = |role| Action::Dial { role, after: Duration::ZERO };
        let mut machine = Self {
            state: SourceState::Connecting,
            up: [false; 2],
            attempts: [0; 2],
            delays: [0; 2],
            up_at: [now; 2],
            reconnects: 0,
            comparing: None,
            wanted: None,
            failed_comparisons: None,
            is_audited: true,
            is_behind: false,
            is_failing: false,
            no_sign_since: None,
            reopen: None,
            compare_at: None,
            unread_block_at: None,
            next_audit: None,
            gaps: VecDeque::new(),
            activity: Activity::new(0, 0.0, now),
            actions: [Role::Subscription, Role::Request].map(dial).to_vec(),
            rng: SmallRng::seed_from_u64(seed),
            settings: Arc::clone(settings),
        };
        machine.open_gap(GapReason::StartUp, now);
        machine
    }

    /// The state that is shown.
    pub(super) fn reported_state(&self) -> SourceState {
        match self.state {
            SourceState::Live if self.is_failing => SourceState::Failing,
            state => state,
        }
    }

    /// Processes an event, and adds the actions that follow from it.
    pub(crate) fn on(&mut self, event: Event, now: Instant) {
        if self.state == SourceState::Ended {
            return;
        }
        match event {
            Event::Up(role) => {
                self.up[role as usize] = true;
                self.attempts[role as usize] = 0;
                self.up_at[role as usize] = now;
                if self.up == [true; 2] {
                    self.begin(now);
                }
            }
            Event::DialFailed(role) => {
                let attempts = &mut self.attempts[role as usize];
                *attempts = attempts.saturating_add(1);
                if self.settings.config.reconnect_limit.is_some_and(|limit| *attempts >= limit) {
                    self.state = SourceState::Ended;
                } else {
                    self.dial(role);
                }
            }
            Event::Down(role) => {
                self.up[role as usize] = false;
                self.state = SourceState::Connecting;
                if role == Role::Request {
                    self.no_sign_since = None;
                }
                self.reconnects += 1;
                self.open_gap(GapReason::Reconnect, now);
                if now.saturating_duration_since(self.up_at[role as usize]) >= STABLE_AFTER {
                    self.delays[role as usize] = 0;
                }
                self.dial(role);
            }
            Event::Behind(is_behind) => {
                let was_behind = std::mem::replace(&mut self.is_behind, is_behind);
                let may_change = self.up == [true; 2] && self.state != SourceState::Stale;
                if was_behind != is_behind && may_change {
                    self.begin(now);
                }
            }
            Event::Failures(failures) => self.record_failures(failures, now),
            Event::Gap(GapReason::UnreadBlock) => self.unread_block(now),
            Event::Gap(reason) => self.gap(reason, now),
            Event::Head(number) => {
                self.no_sign_since = None;
                self.activity.head(number);
            }
            Event::NoBlockNumber => _ = self.no_sign_since.get_or_insert(now),
            Event::SawBlock(number) => {
                self.no_sign_since = None;
                if self.is_judged() && self.activity.is_behind(number, now) {
                    self.stale(LossReason::NoHeads);
                }
            }
            Event::Compared(report) => self.on_compared(&report, now),
            Event::CompareFailed { after, is_retryable } => {
                let reason = self.comparing.take().unwrap_or(GapReason::Audit);
                if self.may_compare() {
                    self.compare_failed(reason, after, is_retryable, now);
                }
            }
            Event::Tick { read } => self.on_tick(read, now),
        }
    }

    fn on_compared(&mut self, report: &AuditReport, now: Instant) {
        let &AuditReport { missing, recovered, failed, unannounced, .. } = report;
        let reason = self.comparing.take();
        if missing > 0 && reason == Some(GapReason::Audit) {
            self.activity.found_missing();
        }
        self.failed_comparisons = None;
        self.is_audited = true;
        let is_its_gap = |gap: &&mut Gap| gap.closed_at.is_none() && Some(gap.reason) == reason;
        if let Some(gap) = self.gaps.iter_mut().find(is_its_gap) {
            gap.recovered += recovered;
        }
        if !self.may_compare() {
            // It is repeated when the connections are open and the node follows the chain.
            return;
        }
        // The silence lasts: either there was nothing to announce, or the subscription is dead.
        let is_silence_judged = reason == Some(GapReason::Silence)
            && self.state == SourceState::Live
            && self.activity.is_silent(now, true);
        match is_silence_judged.then_some(unannounced) {
            Some(0) => self.activity.set_load_ended(now),
            Some(_) => {
                self.activity.rate_per_s /= 2.0;
                self.stale(LossReason::NoHashes { unannounced });
            }
            None => {}
        }
        if failed > 0 && self.gaps.iter().all(|gap| gap.closed_at.is_some()) {
            self.open_gap(GapReason::Audit, now);
        }
        self.compared(failed, now);
    }

    fn on_tick(&mut self, read: u64, now: Instant) {
        if read > self.activity.read {
            self.no_sign_since = None;
        }
        let has_burst_begun = self.activity.tick(read, now);
        if has_burst_begun {
            self.open_gap(GapReason::Lagged, now);
            self.compare_later(now + BURST_PAUSE, GapReason::Lagged);
            // The list of a comparison that runs may be older than the burst.
            if self.comparing.is_some() {
                self.wanted = self.wanted.max(Some(GapReason::Lagged));
            }
        }
        if let Some((_, reason)) = self.compare_at.filter(|(due, _)| now >= *due)
            && self.may_compare()
        {
            self.compare(reason, now);
        }
        if self.state == SourceState::Live && self.next_audit.is_some_and(|due| now >= due) {
            self.compare(GapReason::Audit, now);
        }
        let is_compared = self.is_audited && self.state == SourceState::Live;
        if self.is_judged() && self.activity.is_silent(now, is_compared) {
            self.suspect(now);
        }
    }

    /// Returns whether a silence of hashes or heads is judged in this state.
    fn is_judged(&self) -> bool {
        matches!(self.state, SourceState::Live | SourceState::Backfilling)
    }

    /// Returns whether the node's pool may be compared in this state.
    fn may_compare(&self) -> bool {
        self.up == [true; 2] && self.state != SourceState::Syncing
    }

    /// Begins after both kinds of connections are open, or when the node has begun or ceased to
    /// follow the chain.
    fn begin(&mut self, now: Instant) {
        // The rate is kept: if the new subscription is dead too, it is found by the same rate.
        self.activity = Activity::new(self.activity.read, self.activity.rate_per_s, now);
        if self.is_behind {
            self.state = SourceState::Syncing;
            // Its heads do not count until it follows the chain.
            return self.open_gap(GapReason::MissedHeads, now);
        }
        // Without a list of the pool there is no backfill to wait for.
        self.state = if self.is_audited { SourceState::Backfilling } else { SourceState::Live };
        let open = self.gaps.iter().filter(|gap| gap.closed_at.is_none()).map(|gap| gap.reason);
        self.compare(open.max().unwrap_or(GapReason::Audit), now);
    }

    /// Dials again after a backoff.
    fn dial(&mut self, role: Role) {
        let delays = &mut self.delays[role as usize];
        let after = self.settings.limits.reconnect.delay(*delays, self.rng.random());
        *delays = delays.saturating_add(1);
        self.actions.push(Action::Dial { role, after });
    }

    /// Decides whether the source is failing, from the requests for transactions that have failed
    /// since the latest response, or because the node gives no sign of life but errors. Drops the
    /// connections when a new attempt is due.
    fn record_failures(&mut self, failures: Option<Failures>, now: Instant) {
        let failures = failures.filter(|failures| {
            let lasted = now.saturating_duration_since(failures.since);
            failures.count >= MIN_FAILURES && lasted >= FAILING_AFTER
        });
        let is_over = |since| now.saturating_duration_since(since) >= FAILING_AFTER;
        let is_lifeless = self.no_sign_since.is_some_and(is_over);
        self.is_failing = failures.is_some() || is_lifeless;
        let (role, reason) = match failures {
            Some(Failures { count, latest, .. }) => {
                (Role::Request, LossReason::NoTransactions { requests: count, latest })
            }
            None if is_lifeless => (Role::Subscription, LossReason::NoBlockNumber),
            None => {
                self.reopen = None;
                return;
            }
        };
        let (due, pause) = self.reopen.unwrap_or((now, FAILING_AFTER));
        if self.up[role as usize] && now >= due {
            self.reopen = Some((now + pause, (pause * 2).min(MAX_REOPEN_PAUSE)));
            self.actions.push(Action::Drop(role, reason));
        }
    }

    /// Investigates a silence, unless a comparison is running or due, whose result comes first.
    fn suspect(&mut self, now: Instant) {
        if !self.is_audited {
            // Without a list, the silence cannot be told from a dead subscription, and is treated
            // as one: a new connection costs milliseconds, and a dead one costs every transaction.
            // Each time the silence must be longer.
            self.activity.set_load_ended(now);
            self.stale(LossReason::NotListed);
        } else if self.state == SourceState::Backfilling {
            // The backfill may take minutes, and continues with the new connection.
            self.activity.set_load_ended(now);
            self.stale(LossReason::SilentWhileBackfilling);
        } else if self.comparing.is_none() && self.compare_at.is_none() {
            self.gap(GapReason::Silence, now);
        }
    }

    fn compare_failed(&mut self, reason: GapReason, after: Duration, may_pass: bool, now: Instant) {
        if let Some(wanted) = self.wanted.take_if(|wanted| *wanted >= GapReason::Reconnect) {
            // The failed comparison used the connections before, maybe to another node.
            return self.compare(wanted, now);
        }
        let (before, since) = self.failed_comparisons.unwrap_or((0, now));
        let failures = before.saturating_add(1);
        self.failed_comparisons = Some((failures, since));
        let lasted = now.saturating_duration_since(since);
        let is_young = failures < MAX_COMPARE_FAILURES || lasted < MIN_COMPARE_FAILURE_TIME;
        self.is_audited &= may_pass && is_young;
        if self.is_audited {
            let backoff = self.settings.limits.reconnect.delay(before, self.rng.random());
            // After a time-out the node may still build the list. Requests must not pile up there,
            // whatever happened meanwhile.
            let others = [self.wanted.take(), self.compare_at.map(|(_, other)| other)];
            let reason = others.into_iter().flatten().fold(reason, GapReason::max);
            self.compare_at = Some((now + backoff.max(after), reason));
            return;
        }
        // The source stays in use, its gaps stay open, and the next audit tries again.
        self.wanted = None;
        self.compare_at = None;
        if self.state == SourceState::Backfilling {
            self.state = SourceState::Live;
        }
        self.set_next_audit(now);
    }

    /// Starts a comparison. If one is running, whose list may be older than the reason, another one
    /// follows, with the most severe of the reasons that came meanwhile. After a failed comparison
    /// there is a pause, which only a reconnect ends, because the node may be another one.
    fn compare(&mut self, reason: GapReason, now: Instant) {
        let is_off = self.settings.config.backfill == Backfill::Off;
        let is_paused =
            self.failed_comparisons.is_some() && self.compare_at.is_some_and(|(due, _)| now < due);
        if is_off && !matches!(reason, GapReason::Audit | GapReason::Silence) {
            // Without backfill, a due comparison counts as done. The pause after a failed one
            // continues.
            self.compare_at = self.compare_at.filter(|(due, _)| now < *due);
            self.compared(0, now);
        } else if self.comparing.is_some() {
            self.wanted = self.wanted.max(Some(reason));
        } else if is_paused && reason < GapReason::Reconnect {
            self.compare_later(now, reason);
        } else {
            self.comparing = Some(reason);
            // This comparison covers all other reasons.
            self.wanted = None;
            self.compare_at = None;
            self.next_audit = None;
            if reason == GapReason::UnreadBlock {
                self.unread_block_at = Some(now);
            }
            self.actions.push(Action::Compare(reason));
        }
    }

    /// Compares at once, but not again within [`UNREAD_BLOCK_PAUSE`]: otherwise a node that cannot
    /// return its blocks would have to list its pool at every head.
    fn unread_block(&mut self, now: Instant) {
        match self.unread_block_at.map(|began_at| began_at + UNREAD_BLOCK_PAUSE) {
            Some(due) if now < due && self.is_audited => {
                self.open_gap(GapReason::UnreadBlock, now);
                self.compare_later(due, GapReason::UnreadBlock);
            }
            _ => self.gap(GapReason::UnreadBlock, now),
        }
    }

    /// Schedules a comparison at `due`, or earlier if one is scheduled earlier.
    fn compare_later(&mut self, due: Instant, reason: GapReason) {
        let (scheduled, scheduled_reason) = self.compare_at.unwrap_or((due, reason));
        // The pause of a node that failed to list its pool is not shortened.
        let due = if self.failed_comparisons.is_some() { scheduled } else { scheduled.min(due) };
        self.compare_at = Some((due, scheduled_reason.max(reason)));
    }

    /// Ends a comparison. If the fetches of `failed` missing hashes failed, the gaps stay open
    /// until the next audit fetches these again, so that an overloaded node does not have to list
    /// its pool again at once.
    fn compared(&mut self, failed: u64, now: Instant) {
        if self.state == SourceState::Stale {
            // The gaps stay open until the comparison after the reconnect.
            return;
        }
        if let Some(reason) = self.wanted.take() {
            // A gap was opened during the comparison, whose list may be older.
            return self.compare(reason, now);
        }
        // The gap of a block that could not be read meanwhile waits for its own comparison, because
        // this list may be older.
        let waiting = self.compare_at.map(|_| GapReason::UnreadBlock);
        for gap in &mut self.gaps {
            if failed == 0 && gap.closed_at.is_none() && Some(gap.reason) != waiting {
                gap.closed_at = Some(now);
            }
        }
        self.state = SourceState::Live;
        if self.next_audit.is_none() {
            self.set_next_audit(now);
        }
    }

    /// Schedules the next audit, with a jitter of ±10 %.
    fn set_next_audit(&mut self, now: Instant) {
        let interval = self.settings.config.audit_interval;
        self.next_audit =
            interval.map(|interval| now + interval.mul_f64(0.9 + 0.2 * self.rng.random::<f64>()));
    }

    /// Opens a gap, and compares.
    fn gap(&mut self, reason: GapReason, now: Instant) {
        self.open_gap(reason, now);
        // Otherwise the next audit finds out whether the pool can be listed again, or a comparison
        // follows when the connections are open and the node follows the chain.
        if self.is_audited && matches!(self.state, SourceState::Live | SourceState::Backfilling) {
            self.compare(reason, now);
        }
    }

    /// Opens a gap, unless one for this reason is open.
    fn open_gap(&mut self, reason: GapReason, now: Instant) {
        if self.gaps.iter().any(|gap| gap.closed_at.is_none() && gap.reason == reason) {
            return;
        }
        if self.gaps.len() == MAX_GAPS {
            let closed = self.gaps.iter().position(|gap| gap.closed_at.is_some());
            self.gaps.remove(closed.expect("at most one gap of each reason is open"));
        }
        self.gaps.push_back(Gap { reason, opened_at: now, closed_at: None, recovered: 0 });
    }

    /// Drops the subscription connections, because the subscription is dead.
    fn stale(&mut self, reason: LossReason) {
        self.state = SourceState::Stale;
        self.actions.push(Action::Drop(Role::Subscription, reason));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::FetcherConfig, error::CallError, limits::Limits};
    use load_control::Backoff;
    use proptest::prelude::*;

    const S: Duration = Duration::from_secs(1);

    struct Run {
        machine: Machine,
        now: Instant,
        /// The number of announcements read.
        read: u64,
    }

    impl Run {
        fn new(config: &FetcherConfig) -> Self {
            let now = Instant::now();
            let settings = Settings { config: config.clone(), limits: Limits::default() }.into();
            let mut machine = Machine::new(&settings, 7, now);
            let dials = |role| Action::Dial { role, after: Duration::ZERO };
            assert_eq!(
                std::mem::take(&mut machine.actions),
                [dials(Role::Subscription), dials(Role::Request)]
            );
            Self { machine, now, read: 0 }
        }

        fn on(&mut self, event: Event) -> Vec<Action> {
            self.machine.on(event, self.now);
            std::mem::take(&mut self.machine.actions)
        }

        fn pass(&mut self, time: Duration) -> &mut Self {
            self.now += time;
            self
        }

        fn tick(&mut self) -> Vec<Action> {
            self.on(Event::Tick { read: self.read })
        }

        fn failures(&self, count: u64, lasted: Duration) -> Option<Failures> {
            let latest = CallError::Timeout(2 * S);
            (count > 0).then(|| Failures { count, since: self.now - lasted, latest })
        }

        fn open_gaps(&self) -> Vec<&'static str> {
            let open = self.machine.gaps.iter().filter(|gap| gap.closed_at.is_none());
            open.map(|gap| gap.reason.as_str()).collect()
        }

        /// Plays a script. Each line has an event, after the seconds that pass before it; the
        /// expected actions; and optionally the expected state and open gaps. Lines that begin with
        /// # are titles.
        fn play(&mut self, script: &str) -> &mut Self {
            for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
                if line.starts_with('#') {
                    println!("{line}");
                    continue;
                }
                let (event, expected) = line.split_once("->").expect("an arrow");
                let mut words = event.split_whitespace().peekable();
                if let Some(seconds) = words.peek().and_then(|word| word.strip_prefix('+')) {
                    self.pass(S.mul_f64(seconds.parse().expect("seconds")));
                    words.next();
                }
                let (name, rest) = (words.next().unwrap_or("tick"), Vec::from_iter(words));
                let number = |index: usize| rest.get(index).map_or(0, |word| word.parse().unwrap());
                let role = || match rest[0] {
                    "s" => Role::Subscription,
                    _ => Role::Request,
                };
                let reason = || {
                    GapReason::ALL.into_iter().find(|reason| reason.as_str() == rest[0]).unwrap()
                };
                let event = match name {
                    "up" => Event::Up(role()),
                    "down" => Event::Down(role()),
                    "undialled" => Event::DialFailed(role()),
                    "head" => Event::Head(number(0)),
                    "saw" => Event::SawBlock(number(0)),
                    "unnumbered" => Event::NoBlockNumber,
                    "behind" => Event::Behind(rest[0] == "yes"),
                    "gap" => Event::Gap(reason()),
                    "compared" => compared(number(0), number(1), number(2)),
                    "failed" => failed(S * number(0) as u32),
                    "unlisted" => UNLISTED,
                    "failures" => Event::Failures(self.failures(number(0), S * number(1) as u32)),
                    "tick" => Event::Tick { read: self.read + number(0) },
                    _ => panic!("{line}"),
                };
                if let Event::Tick { read } = event {
                    self.read = read;
                }
                let actions = self.on(event);
                let actions = actions.iter().map(|action| match action {
                    Action::Dial { role: Role::Subscription, .. } => "dial s".to_owned(),
                    Action::Dial { role: Role::Request, .. } => "dial r".to_owned(),
                    Action::Drop(Role::Subscription, reason) => format!("drop: {reason}"),
                    Action::Drop(Role::Request, reason) => format!("drop r: {reason}"),
                    Action::Compare(reason) => format!("compare {}", reason.as_str()),
                });
                let mut expected = expected.split('|').map(str::trim);
                assert_eq!(
                    actions.collect::<Vec<_>>().join(", "),
                    expected.next().unwrap(),
                    "{line}"
                );
                if let Some(state) = expected.next() {
                    assert_eq!(self.machine.reported_state().as_str(), state, "{line}");
                }
                if let Some(gaps) = expected.next() {
                    assert_eq!(self.open_gaps().join(", "), gaps, "{line}");
                }
            }
            self
        }
    }

    fn config() -> FetcherConfig {
        FetcherConfig::ipc("/node.ipc")
    }

    fn compared(recovered: u64, failed: u64, unannounced: u64) -> Event {
        let missing = recovered + failed;
        let report =
            AuditReport { missing, recovered, failed, unannounced, ..AuditReport::default() };
        Event::Compared(report)
    }

    fn failed(after: Duration) -> Event {
        Event::CompareFailed { after, is_retryable: true }
    }

    /// The comparison fails because the node does not have the method.
    const UNLISTED: Event = Event::CompareFailed { after: Duration::ZERO, is_retryable: false };

    const LIVE: &str = "
        up s        ->                  | connecting
        up r        -> compare start_up | backfilling | start_up
        compared 3  ->                  | live        |";

    /// Before the fix audits found everything missing, and the source was live for ever.
    #[test]
    fn a_subscription_that_never_announced_is_suspected_after_an_audit() {
        Run::new(&config()).play(LIVE).play(
            "
            +12 head 1 ->
            +12 head 2 ->
            +45        -> compare audit
            compared 4 ->                 | live | 
            +1         -> compare silence | live | silence
            +5 compared 4 0 2 -> drop: no hashes are announced, but the node listed 2 new ones | stale
            ",
        );
        // A subscription that announces is not suspected.
        Run::new(&config()).play(LIVE).play(
            "
            +12 head 1 ->
            +12 head 2 ->
            +1 tick 1  ->
            +45        -> compare audit
            compared 4 ->                 | live |
            +10        ->                 | live |
            ",
        );
    }

    /// Before the fix silence was judged only after the backfill, which may take minutes.
    #[test]
    fn a_silent_subscription_is_noticed_while_a_backfill_runs() {
        let mut run = Run::new(&config());
        run.play(LIVE);
        (0..10).for_each(|_| _ = run.play("+1 tick 100 ->"));
        run.play(
            "
            down s     -> dial s
            up s       -> compare reconnect | backfilling
            head 1     ->
            head 2     ->
            +3         ->                   | backfilling
            +2         -> drop: no hashes are announced, while the node's pool is still being fetched | stale
            down s     -> dial s
            up s       ->                   | backfilling
            ",
        );
    }

    #[test]
    fn a_source_is_compared_and_live_again_after_every_gap() {
        const HISTORIES: &str = "
            # the loss of either connection
            down s     -> dial s            | connecting  | reconnect
            up s       -> compare reconnect | backfilling
            compared 5 ->                   | live        |
            down r     -> dial r            | connecting  | reconnect
            up r       -> compare reconnect | backfilling

            # a loss while a comparison runs, which does not count then
            gap lagged -> compare lagged    | live        | lagged
            down s     -> dial s            | connecting  | lagged, reconnect
            compared 1 ->                   | connecting  | lagged, reconnect
            up s       -> compare reconnect

            # gaps are compared without leaving Live
            gap lagged       -> compare lagged       | live | lagged
            compared         ->                      | live |
            gap reorg        -> compare reorg        | live | reorg
            compared         ->                      | live |
            gap missed_heads -> compare missed_heads | live | missed_heads
            compared         ->                      | live |

            # what happens during a comparison is compared once more
            gap lagged -> compare lagged
            gap reorg  ->
            gap lagged ->
            compared   -> compare lagged | live | lagged, reorg
            compared   ->                | live |

            # a failed comparison is repeated after as long as it took
            gap lagged -> compare lagged
            failed 20  ->
            +19        ->                | live | lagged
            +2         -> compare lagged

            # and not sooner because of what came meanwhile
            gap unread_block     -> compare unread_block
            +12 gap unread_block ->
            +48 failed 60        ->
            +12 gap unread_block ->
            +1 gap lagged        ->
            +37                  -> | live | unread_block, lagged
            +20                  -> compare lagged

            # but for a reconnect, after which it may be another node
            gap lagged -> compare lagged
            failed 20  ->
            down s     -> dial s
            up s       -> compare reconnect
            down s     -> dial s
            up s       ->                   | backfilling
            failed 60  -> compare reconnect

            # an audit comes once in its interval, and may take longer than a tick
            +50      ->
            +20      -> compare audit
            +1       ->
            compared ->
            +40      ->

            # with hashes missing still, the gaps stay open, and the next audit tries again
            gap lagged   -> compare lagged
            gap reorg    ->
            compared 7 2 -> compare reorg
            compared 0 2 ->               | live | lagged, reorg
            +40          ->
            +30          -> compare audit
            compared 0 2 ->               | live | lagged, reorg
            +40          ->
            +30          -> compare audit
            compared 2   ->               | live |

            # what is due has its own reason, though hashes of a worse gap are missing still
            gap reorg        -> compare reorg
            compared 0 1     ->                      | live | reorg
            gap unread_block -> compare unread_block
            compared 0 1     ->                      | live | reorg, unread_block
            gap unread_block ->
            +30              -> compare unread_block
            compared         ->                      | live |

            # what an audit finds and cannot fetch is a gap
            +40          ->
            +30          -> compare audit
            compared 0 2 ->               | live | audit
            +40          ->
            +30          -> compare audit
            compared 2   ->               | live |

            # three failed comparisons in a row, and not audited
            gap lagged -> compare lagged
            failed 20  ->
            +21        -> compare lagged
            failed 20  ->
            +21        -> compare lagged
            failed 20  ->                | live | lagged
            +40        ->
            +30        -> compare audit

            # a node that refuses connections for a while is compared as soon as it takes them
            gap lagged -> compare lagged
            failed 0   ->
            +1         -> compare lagged
            failed 0   ->
            +1         -> compare lagged
            failed 0   ->
            +2         -> compare lagged
            compared   ->                | live |

            # a burst while a comparison runs is followed by another, whose list is not older
            gap reorg      -> compare reorg
            +0.1 tick 2048 ->
            compared       -> compare lagged | live | reorg, lagged
            compared       ->                | live |

            # blocks that cannot be read are compared at once, and then twice a minute
            gap unread_block    -> compare unread_block
            compared            ->
            +1 gap unread_block -> | live | unread_block
            +20                 ->
            +10                 -> compare unread_block
            +1 gap unread_block ->
            compared            -> | live | unread_block
            +29                 -> compare unread_block
            compared            -> | live |

            # a node ahead of the heads that it announced is stale after a while
            head 10   ->
            saw 10    ->
            +2 saw 11 ->
            +2 saw 11 ->
            +2 saw 11 -> drop: the node has newer blocks than it announced | stale

            # a head that was requested before a newer one was announced shows nothing
            head 11   ->
            head 10   ->
            saw 11    ->
            +9 saw 11 -> | live

            # a node that falls behind is Syncing, and is compared afterwards
            gap reorg   -> compare reorg
            behind yes  ->               | syncing
            compared 1  ->               | syncing     | reorg, missed_heads
            gap lagged  ->
            +1000       ->
            saw 1       ->
            behind no   -> compare lagged | backfilling
            compared    ->                | live        |";
        for history in HISTORIES.split("\n\n") {
            Run::new(&config()).play(LIVE).play(history);
        }
    }

    /// Before the fix everything counted for the gap that was opened last.
    #[test]
    fn recovered_transactions_count_for_the_gap_of_their_comparison() {
        let mut run = Run::new(&config());
        run.play(LIVE).play(
            "
            gap lagged -> compare lagged
            gap reorg  ->
            compared 5 -> compare reorg
            compared 2 -> | live |
            +70        -> compare audit
            compared 1 -> | live |",
        );
        let gaps = run.machine.gaps.iter().map(|gap| (gap.reason.as_str(), gap.recovered));
        assert!(gaps.eq([("start_up", 3), ("lagged", 5), ("reorg", 2)]));
    }

    /// Before the fix the oldest gap was removed, although it was open.
    #[test]
    fn an_open_gap_is_kept_however_many_others_follow() {
        let mut run = Run::new(&config());
        run.play(LIVE).play("gap unread_block -> compare unread_block \n compared -> | live |");
        let opened = run.now;
        for _ in 0..2 * MAX_GAPS {
            run.pass(S / 10).play(
                "
                gap lagged       -> compare lagged
                gap unread_block ->
                compared         -> | live | unread_block",
            );
        }
        let open = run.machine.gaps.iter().find(|gap| gap.closed_at.is_none()).expect("kept");
        assert_eq!((run.machine.gaps.len(), open.opened_at), (MAX_GAPS, opened + S / 10));
    }

    #[test]
    fn a_source_starts_as_its_node_and_configuration_permit() {
        let off = || FetcherConfig { backfill: Backfill::Off, ..config() };
        for (config, script) in [
            (
                FetcherConfig { reconnect_limit: Some(3), ..config() },
                "
                # a limit of attempts ends it
                undialled s -> dial s | connecting
                undialled s -> dial s
                undialled s ->        | ended
                up s        ->        | ended",
            ),
            (
                off(),
                "
                # without backfill it is live at once, and nothing is listed after a burst
                up s           ->
                up r           -> | live |
                +0.1 tick 2048 ->
                +1             -> | live |
                +1             ->",
            ),
            (
                FetcherConfig { audit_interval: None, ..config() },
                "
                # without audits none comes
                up s     ->
                up r     -> compare start_up
                compared ->
                +1000    ->",
            ),
            (
                config(),
                "
                # a node that is behind is Syncing
                behind yes ->
                up s       ->
                up r       ->                  | syncing
                behind no  -> compare start_up | backfilling",
            ),
            (
                config(),
                "
                # a node that does not list its pool is live, and asked again by the next audit only
                up s             ->
                up r             -> compare start_up
                unlisted         ->                  | live | start_up
                gap lagged       ->
                gap unread_block ->
                gap unread_block ->
                +45              ->
                +25              -> compare audit
                unlisted         ->
                +40              ->
                down r           -> dial r
                up r             -> compare start_up | live
                compared 1       ->                  | live |",
            ),
        ] {
            Run::new(&config).play(script);
        }
    }

    #[test]
    fn attempts_to_connect_slow_down_until_a_connection_has_lived() {
        let Backoff { base, cap } = Limits::default().reconnect;
        for (event, lives) in [(Event::DialFailed as fn(_) -> _, false), (Event::Down, true)] {
            let mut run = Run::new(&config());
            run.play(LIVE);
            let delay = |run: &mut Run| {
                let actions = run.on(event(Role::Subscription));
                let [Action::Dial { role: Role::Subscription, after }] = actions[..] else {
                    panic!("{actions:?}")
                };
                if lives {
                    // Closed as soon as it is open.
                    run.pass(after).on(Event::Up(Role::Subscription));
                }
                after
            };
            let longest = (0..1000).map(|_| delay(&mut run)).max().unwrap();
            assert!(longest > cap / 2 && longest <= cap, "{longest:?}");
            if lives {
                run.pass(STABLE_AFTER);
                assert!(delay(&mut run) <= base);
            }
        }
    }

    /// Plays 100 hashes a second for a minute with a head every 12 s, then two heads without a
    /// hash.
    fn silent(config: FetcherConfig) -> Run {
        let mut run = Run::new(&FetcherConfig { audit_interval: None, ..config });
        run.on(Event::Up(Role::Subscription));
        if !run.on(Event::Up(Role::Request)).is_empty() {
            run.on(compared(0, 0, 0));
        }
        for second in 0..60 {
            run.read += 100;
            assert_eq!(run.pass(S).tick(), []);
            if second % 12 == 0 {
                run.on(Event::Head(second));
            }
        }
        // Without heads, the chain may stand still, and so short a silence does not count.
        assert_eq!(run.pass(6 * S).tick(), []);
        run.play("head 100 -> \n tick -> \n +1 head 101 -> | live |");
        run
    }

    /// With slow blocks, a source was live beside an empty pool until the second head.
    #[test]
    fn a_long_silence_is_compared_without_heads_if_the_node_lists_its_pool() {
        let mut run = Run::new(&FetcherConfig { audit_interval: None, ..config() });
        run.play(LIVE);
        (0..10).for_each(|_| _ = run.play("+1 tick 100 ->"));
        run.play(
            "
            +7 tick           ->
            +1 tick           -> compare silence | live | silence
            +5 compared 7 0 7 -> drop: no hashes are announced, but the node listed 7 new ones | stale
            down s            -> dial s          | connecting
            up s              -> compare reconnect
            unlisted          -> | live
            +60 tick          -> | live
            ",
        );
    }

    #[test]
    fn a_silent_source_is_dropped_only_if_its_node_has_new_hashes() {
        for script in [
            "
                # the node has new hashes
                tick              -> compare silence | live | silence
                +1 tick           ->                 | live
                gap lagged        ->
                +5 compared 7 0 7 -> drop: no hashes are announced, but the node listed 7 new ones | stale | silence, lagged
                down s            -> dial s          | connecting
                up s              -> compare reconnect
                compared          ->
                head 102          ->
                head 103          ->
                +5                -> compare silence | live | silence",
            "
                # hashes come while the pool is listed
                tick              -> compare silence
                +1 tick 1         ->
                +4 compared 1 0 1 -> | live |",
            "
                # a comparison that runs comes first, and a failed one is repeated
                gap lagged -> compare lagged
                tick       ->
                compared   ->
                tick       -> compare silence
                failed 1   ->
                +2         -> compare silence",
            "
                # the pool cannot be listed
                tick     -> compare silence
                unlisted ->
                tick     -> drop: no hashes are announced, and the node does not list its pool | stale
                down s   -> dial s
                up s     -> compare reconnect
                unlisted ->                  | live
                head 102 ->
                head 103 ->
                +30      ->                  | live",
        ] {
            silent(config()).play(script);
        }
        let config = FetcherConfig { backfill: Backfill::Off, ..config() };
        silent(config).play("tick -> compare silence \n failed 60 -> \n gap reorg -> \n +30 ->");
    }

    #[test]
    fn an_ended_load_is_not_investigated_again_and_again() {
        let mut run = silent(config());
        run.play("tick -> compare silence \n +5 compared -> | live |");
        let mut comparisons = 0;
        for head in 0..600 {
            run.pass(6 * S).on(Event::Head(200 + head));
            comparisons += run.tick().len();
            run.on(compared(0, 0, 0));
        }
        assert!(comparisons <= 2, "{comparisons} in an hour");
        assert_eq!((run.machine.reconnects, run.machine.state), (0, SourceState::Live));
    }

    #[test]
    fn a_source_is_failing_and_reconnects_when_all_requests_fail() {
        let dropped =
            "drop r: none of 8 requests for transactions had an answer: no response in 2s";
        let mut run = Run::new(&FetcherConfig { audit_interval: None, ..config() });
        run.play(LIVE).play(&format!(
            "
                # too few failures, or for too short a time
                +20 failures 7 20 -> | live |
                failures 8 9      -> | live |
                +1 failures 8 10  -> {dropped} | failing
                down r            -> dial r | connecting
                up r              -> compare reconnect
                compared          -> | failing |
                # again after ten seconds, then twenty
                +9 failures 8 19  ->
                +1 failures 8 20  -> {dropped}
                down r            -> dial r
                up r              -> compare reconnect
                compared          ->
                +19 failures 8 39 ->
                +1 failures 8 40  -> {dropped}
                down r            -> dial r
                up r              -> compare reconnect
                compared          ->
                # a request succeeds
                failures          -> | live |"
        ));
    }

    #[test]
    fn a_source_is_failing_and_reconnects_when_its_node_answers_only_with_errors() {
        let dropped = "drop: nothing is announced, and the node does not return its block number";
        let mut run = Run::new(&FetcherConfig { audit_interval: None, ..config() });
        run.play(LIVE).play(&format!(
            "
                # a head, a hash or a number is a sign of life
                unnumbered      ->
                +9 head 1       ->
                unnumbered      ->
                +9 tick 1       ->
                unnumbered      ->
                +9 saw 1        ->
                unnumbered      ->
                +9 unnumbered   ->
                failures        -> | live |
                +1 failures     -> {dropped} | failing
                down s          -> dial s | connecting
                up s            -> compare reconnect
                unlisted        -> | failing
                +9 failures     -> | failing
                +1 failures     -> {dropped}
                down s          -> dial s
                up s            -> compare reconnect | failing
                saw 1           ->
                failures        -> | live
                compared        -> | live |"
        ));
    }

    #[test]
    fn a_burst_is_followed_by_a_comparison_and_a_high_rate_is_not() {
        let tick = Duration::from_millis(100);
        let mut run = Run::new(&FetcherConfig { audit_interval: None, ..config() });
        run.play(LIVE).play("+0.1 tick 1000 -> \n +0.1 tick 1048 ->");
        run.play("+1 -> compare lagged | live | lagged");
        let mut comparisons = 0;
        for _ in 0..600 {
            run.on(compared(0, 0, 0));
            run.read += 2_000;
            comparisons += run.pass(tick).tick().len();
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
            Just(Event::NoBlockNumber),
            Just(compared(1, 0, 0)),
            Just(compared(0, 1, 0)),
            Just(failed(S)),
            Just(UNLISTED),
            Just(compared(1, 0, 1)),
            (0u64..5000).prop_map(|read| Event::Tick { read }),
        ]
    }

    proptest! {
        /// Whatever happened before, a source is live again and has no open gap when both
        /// connections are open and comparisons succeed. Two comparisons never run at once.
        #[test]
        fn every_history_ends_live_once_the_node_behaves(
            events in proptest::collection::vec((any_event(), 0u64..3000), 0..200)
        ) {
            let mut run = Run::new(&config());
            let mut comparing = false;
            let mut up = [false; 2];
            for (event, millis) in events {
                // Skip events that cannot occur in this state.
                match &event {
                    Event::Up(role) if up[*role as usize] => continue,
                    Event::Down(role) | Event::DialFailed(role)
                        if up[*role as usize] != matches!(event, Event::Down(_)) => continue,
                    Event::Compared(_) | Event::CompareFailed { .. } if !comparing => continue,
                    Event::Up(role) => up[*role as usize] = true,
                    Event::Down(role) => up[*role as usize] = false,
                    Event::Compared(_) | Event::CompareFailed { .. } => comparing = false,
                    _ => {}
                }
                run.pass(Duration::from_millis(millis));
                for action in run.on(event) {
                    if let Action::Compare(_) = action {
                        prop_assert!(!comparing, "two comparisons at once");
                        comparing = true;
                    }
                }
                let state = run.machine.state;
                let is_connecting = up != [true; 2] && state != SourceState::Stale;
                prop_assert_eq!(state == SourceState::Connecting, is_connecting);
            }
            let actions = run.on(Event::Behind(false));
            comparing |= actions.iter().any(|action| matches!(action, Action::Compare(_)));
            for role in [Role::Subscription, Role::Request] {
                if !up[role as usize] {
                    let actions = run.on(Event::Up(role));
                    comparing |= actions.iter().any(|action| matches!(action, Action::Compare(_)));
                }
            }
            // Longer than the pause between two comparisons for unread blocks, and than the time to
            // the next audit of a source that is not audited.
            for _ in 0..80 {
                run.pass(2 * S);
                let actions = if run.machine.state == SourceState::Stale {
                    run.on(Event::Down(Role::Subscription));
                    run.on(Event::Up(Role::Subscription))
                } else if std::mem::take(&mut comparing) {
                    run.on(compared(0, 0, 0))
                } else {
                    run.tick()
                };
                comparing |= actions.iter().any(|action| matches!(action, Action::Compare(_)));
            }
            if comparing {
                run.on(compared(0, 0, 0));
            }
            prop_assert_eq!(run.machine.state, SourceState::Live);
            prop_assert!(run.open_gaps().is_empty());
        }
    }
}
