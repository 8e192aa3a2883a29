//! The faults of a node: single faults, and plans that are drawn from a seed.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use rand::{Rng, SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::quirks::Topic;

/// The hashes that reth's pending listener holds (`--txpool.max-pending-txns`). Further hashes of a
/// batch are lost.
const RETH_LISTENER_HASHES: u32 = 2048;

/// Size of [`BadAnswer::Large`], in bytes.
pub const LARGE_ANSWER_BYTES: usize = 8 << 20;

/// The open connections that a fault affects. A connection with a subscription is a subscription
/// connection, any other a request connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Target {
    #[default]
    All,
    Subscription,
    Hashes,
    Objects,
    Request,
}

/// A fault at the node's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Fault {
    /// Open connections are closed now.
    Close(Target),
    /// Open connections are closed in the middle of the next message to each.
    CloseMidFrame(Target),
    /// The next connections are closed as soon as they are accepted.
    CloseOnAccept { connections: u32 },
    /// The next connections that subscribe get the response and are then closed, without any
    /// notification.
    CloseAfterSubscribe { connections: u32 },
    /// The next subscriptions to transactions are accepted and get no notification, while those to
    /// heads do.
    SilenceSubscriptions { subscriptions: u32 },
    /// Open connections are neither read nor written for a while; then all queued messages are
    /// sent.
    Stall { target: Target, time: Duration },
    /// Open connections stay open and are never read or written again, as by geth after its reader
    /// paused for ten seconds.
    GoDead(Target),
    /// The process ends for a while and comes back with a new socket and another pool. While it was
    /// down, all pending transactions were mined and others arrived, and no client was notified.
    Restart {
        /// How long no client can connect.
        down: Duration,
        /// Whether the old socket file remains during this time and refuses connections, as after
        /// `kill -9`.
        leaves_file: bool,
    },
    /// The next announcements are not sent, though the transactions are in the pool.
    DropNotifications { count: u32 },
    /// The next transactions are announced as hashes and not as objects. reth's listener for
    /// objects holds 1,024.
    DropObjects { count: u32 },
    /// This many transactions are announced at once.
    Burst { count: usize },
    /// The next announcements are sent twice.
    Duplicate { count: u32 },
    /// The next answers to `eth_getRawTransactionByHash` are wrong.
    Answers { bad: BadAnswer, count: u32 },
    /// The newest blocks are replaced; all blocks if there are fewer.
    Reorg { depth: usize },
    /// Every new connection gets a line of text about too many connections, and is closed.
    TableFull { time: Duration },
    /// The open subscriptions of a topic end, and their connections stay open. With `notifies` the
    /// client gets a notification with `params.error`, as jsonrpsee sends it.
    EndSubscriptions { topic: Topic, notifies: bool },
    /// An unsolicited line is sent on open connections.
    SendLine { target: Target, line: OddLine },
    /// The process ends for a while and comes back with another genesis under the same chain id.
    /// All transactions of its pool and of its kept blocks are pending on the new chain, and no
    /// client was notified.
    Reset { down: Duration },
}

/// A line that is neither the answer to a request nor the notification of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OddLine {
    PlainText,
    /// `[]`.
    EmptyArray,
    NotificationWithoutParams,
    /// An answer whose `error` is a text, with an id that no request had.
    TextError,
    /// An error with the id `null`.
    NullId,
    /// An answer with an id that no request had.
    UnknownId,
}

impl OddLine {
    pub const ALL: [Self; 6] = [
        Self::PlainText,
        Self::EmptyArray,
        Self::NotificationWithoutParams,
        Self::TextError,
        Self::NullId,
        Self::UnknownId,
    ];

    /// The line, without its line end.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::PlainText => "upstream connect error",
            Self::EmptyArray => "[]",
            Self::NotificationWithoutParams => r#"{"jsonrpc":"2.0","method":"eth_subscription"}"#,
            Self::TextError => {
                r#"{"jsonrpc":"2.0","id":18446744073709551615,"error":"rate limited"}"#
            }
            Self::NullId => {
                r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}"#
            }
            Self::UnknownId => r#"{"jsonrpc":"2.0","id":18446744073709551615,"result":null}"#,
        }
    }
}

/// How an answer can be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum BadAnswer {
    /// A correct answer that is up to 20 ms late, so that answers to later requests come first.
    OutOfOrder,
    /// `null`, though the transaction is pending.
    Null,
    /// An internal error, -32603.
    Error,
    /// geth's -32000 while it builds its index.
    Busy,
    /// A line that is not JSON, instead of the answer.
    Garbage,
    /// The first half of the answer, then the next message.
    Truncated,
    /// The text about too many connections, on an open connection.
    PlainText,
    /// No answer.
    Never,
    /// [`LARGE_ANSWER_BYTES`] of zeros.
    Large,
    /// A correct answer whose first 4096 bytes are written one by one.
    ByteByByte,
    /// Another well-formed pending transaction; `null` if there is none.
    WrongTransaction,
}

impl BadAnswer {
    pub const ALL: [Self; 11] = [
        Self::OutOfOrder,
        Self::Null,
        Self::Error,
        Self::Busy,
        Self::Garbage,
        Self::Truncated,
        Self::PlainText,
        Self::Never,
        Self::Large,
        Self::ByteByByte,
        Self::WrongTransaction,
    ];
}

impl Fault {
    /// One fault of every kind that a plan draws, with values of the usual size. Tests alone inject
    /// the other kinds.
    pub fn all() -> Vec<Self> {
        let short = Duration::from_millis(500);
        let mut all = vec![
            Self::CloseOnAccept { connections: 3 },
            Self::CloseAfterSubscribe { connections: 2 },
            Self::Restart { down: short, leaves_file: false },
            Self::Restart { down: short, leaves_file: true },
            Self::DropNotifications { count: RETH_LISTENER_HASHES },
            Self::DropObjects { count: RETH_LISTENER_HASHES },
            // Overflows every buffer of 16,384 slots whose reader does not keep up.
            Self::Burst { count: 20_000 },
            Self::Duplicate { count: 500 },
            Self::TableFull { time: short },
        ];
        for target in [Target::All, Target::Subscription, Target::Request] {
            all.extend([
                Self::Close(target),
                Self::CloseMidFrame(target),
                Self::Stall { target, time: short },
                Self::GoDead(target),
            ]);
        }
        all.extend(BadAnswer::ALL.map(|bad| {
            // Eight megabytes are sent rarely.
            let count = if bad == BadAnswer::Large { 2 } else { 20 };
            Self::Answers { bad, count }
        }));
        all.extend((1..=5).map(|depth| Self::Reorg { depth }));
        all
    }

    /// Changes how long the fault lasts, or how many times it occurs.
    fn adjust(
        &mut self,
        change_time: impl FnOnce(&mut Duration),
        change_count: impl FnOnce(&mut u32),
    ) {
        match self {
            Self::Stall { time, .. }
            | Self::Restart { down: time, .. }
            | Self::Reset { down: time }
            | Self::TableFull { time } => change_time(time),
            Self::CloseOnAccept { connections: count }
            | Self::CloseAfterSubscribe { connections: count }
            | Self::DropNotifications { count }
            | Self::DropObjects { count }
            | Self::Duplicate { count }
            | Self::Answers { count, .. } => change_count(count),
            _ => {}
        }
    }
}

/// Faults and their times, counted from the beginning of the plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultPlan {
    steps: Vec<(Duration, Fault)>,
}

impl FaultPlan {
    /// Makes a plan of faults with their times, and orders them by time.
    pub fn new(steps: impl IntoIterator<Item = (Duration, Fault)>) -> Self {
        let mut steps: Vec<_> = steps.into_iter().collect();
        steps.sort_by_key(|(time, _)| *time);
        Self { steps }
    }

    /// Makes a plan that the seed reproduces. The kinds occur in rounds of random order, each kind
    /// once per round; a plan of a minute has each kind at least once.
    ///
    /// The faults occur between one tenth and eight tenths of `duration`, so that the end is quiet,
    /// and 0.5 to 1.3 s apart. In a plan of more than a minute the intervals grow with its length:
    /// a node that failed every second for half an hour could never list a pool that takes longer
    /// than a second.
    pub fn from_seed(seed: u64, duration: Duration) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let stretch = duration.div_duration_f64(Duration::from_mins(1)).max(1.0);
        let end = duration.mul_f64(0.8);
        let mut time = duration.mul_f64(0.1);
        let mut round: Vec<Fault> = Vec::new();
        let mut steps = Vec::new();
        while time < end {
            if round.is_empty() {
                round = Fault::all();
                round.shuffle(&mut rng);
            }
            let mut fault = round.pop().expect("there are kinds of faults");
            let (factor, share) = (rng.random_range(0.4..3.0), rng.random::<f64>());
            fault.adjust(
                |time| *time = time.mul_f64(factor),
                |count| *count = (f64::from(*count) * share).ceil().max(1.0) as u32,
            );
            steps.push((time, fault));
            time += Duration::from_millis(rng.random_range(500..=1300)).mul_f64(stretch);
        }
        Self { steps }
    }

    /// Returns the plan in a shorter time: the times of the faults and how long they last are
    /// divided by `factor`.
    #[must_use]
    pub fn compressed(mut self, factor: u32) -> Self {
        for (time, fault) in &mut self.steps {
            *time /= factor;
            fault.adjust(|time| *time /= factor, |_| {});
        }
        self
    }

    /// The most transactions that a step announces at once.
    pub(crate) fn largest_burst(&self) -> usize {
        let bursts = self.steps.iter().filter_map(|(_, fault)| match fault {
            Fault::Burst { count } => Some(*count),
            _ => None,
        });
        bursts.max().unwrap_or(0)
    }

    /// The faults with their times, earliest first.
    pub fn steps(&self) -> &[(Duration, Fault)] {
        &self.steps
    }
}

/// The armed faults, which the server checks wherever one may occur. A number says how many times
/// it will still occur.
#[derive(Debug, Default)]
pub(crate) struct Armed {
    pub(crate) close_on_accept: u32,
    pub(crate) close_after_subscribe: u32,
    pub(crate) silence_subscriptions: u32,
    pub(crate) drop_notifications: u32,
    pub(crate) drop_objects: u32,
    pub(crate) duplicate: u32,
    pub(crate) answers: VecDeque<(BadAnswer, u32)>,
    pub(crate) table_full_until: Option<Instant>,
    /// The restart that was injected last.
    pub(crate) restart: Option<Restart>,
}

/// How the process restarts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Restart {
    pub(crate) down: Duration,
    pub(crate) leaves_file: bool,
    pub(crate) has_new_genesis: bool,
}

impl Armed {
    /// Returns how the next raw answer must be wrong.
    pub(crate) fn next_answer(&mut self) -> Option<BadAnswer> {
        while self.answers.pop_front_if(|(_, left)| *left == 0).is_some() {}
        let (bad, left) = self.answers.front_mut()?;
        *left -= 1;
        Some(*bad)
    }
}

/// Returns true as many times as was armed.
pub(crate) const fn take_one(left: &mut u32) -> bool {
    let strikes = *left > 0;
    *left = left.saturating_sub(1);
    strikes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::HashSet, mem::discriminant};

    #[test]
    fn a_minute_holds_every_kind_and_ends_quietly() {
        let minute = Duration::from_secs(60);
        for seed in 0..50 {
            let plan = FaultPlan::from_seed(seed, minute);
            let kinds: HashSet<_> =
                plan.steps().iter().map(|(_, fault)| discriminant(fault)).collect();
            let all: HashSet<_> = Fault::all().iter().map(discriminant).collect();
            assert_eq!(kinds, all, "seed {seed}");
            assert!(plan.steps().iter().all(|(time, _)| *time < minute.mul_f64(0.8)));
        }
    }

    #[test]
    fn a_longer_plan_has_as_many_faults_further_apart() {
        let count = |minutes| FaultPlan::from_seed(7, Duration::from_mins(minutes)).steps().len();
        let (one, thirty) = (count(1), count(30));
        assert!(thirty.abs_diff(one) <= one / 5, "{one} in a minute, {thirty} in thirty");
    }
}
