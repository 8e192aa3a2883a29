//! The faults of a node, single ones or a plan drawn from a seed.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use rand::{Rng, SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::quirks::Topic;

/// Hashes that reth's pending listener holds (`--txpool.max-pending-txns`); further hashes of a batch are lost.
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
    /// The next connections that subscribe get the response, and are then closed instead of notified.
    CloseAfterSubscribe { connections: u32 },
    /// Open connections are neither read nor written for a while; then everything that waited is sent.
    Stall { at: Target, time: Duration },
    /// Open connections stay open and are never read or written again: geth after ten seconds of a paused reader.
    GoDead(Target),
    /// The process ends for a while and comes back with a new socket and another pool: everything
    /// that was pending has been mined meanwhile, the pending transactions have arrived meanwhile,
    /// and no client was notified of either.
    Restart {
        /// For how long no client can connect.
        down: Duration,
        /// Whether the old socket file stays and refuses connections meanwhile, as after `kill -9`.
        leaves_file: bool,
    },
    /// The next announcements are not sent, while the transactions are in the pool.
    DropNotifications { count: u32 },
    /// The next announcements are made as hashes, and not as objects: reth's listener for these holds 1,024.
    DropObjects { count: u32 },
    /// This many transactions at once.
    Burst { count: usize },
    /// The next announcements are sent twice.
    Duplicate { count: u32 },
    /// The next answers to `eth_getRawTransactionByHash` are wrong.
    Answers { bad: BadAnswer, count: u32 },
    /// The newest blocks are replaced; all of them if there are fewer.
    Reorg { depth: usize },
    /// Every new connection gets the text line for too many connections, and is closed.
    TableFull { time: Duration },
    /// The open subscriptions of a kind end while their connections stay: without a word, or with a notification that
    /// has `params.error`, as jsonrpsee sends it.
    EndSubscriptions { topic: Topic, has_note: bool },
    /// A line that answers nothing is sent on open connections.
    SendLine { at: Target, line: OddLine },
    /// The process ends for a while and comes back with another genesis under the same chain id: what was pending, and
    /// what the blocks that it kept contained, is pending on the new chain, and no client was notified.
    Reset { down: Duration },
}

/// A line that is no answer to a request and no notification of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OddLine {
    PlainText,
    /// `[]`.
    EmptyArray,
    NotificationWithoutParams,
    /// An answer whose `error` is a text, with an id that nobody has requested with.
    TextError,
    /// An error with the id `null`.
    NullId,
    /// An answer with an id that nobody has requested with.
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

    /// Without its line end.
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
    /// Right, and up to 20 ms late, so that later requests overtake it.
    OutOfOrder,
    /// `null`, though the transaction is pending.
    Null,
    /// An internal error, -32603.
    Error,
    /// geth's -32000 while it builds its index.
    Busy,
    /// A line that is no JSON, instead of the answer.
    Garbage,
    /// The first half of the answer, then the next message.
    Truncated,
    /// The text for a connection too many, on a connection that is open.
    PlainText,
    /// None.
    Never,
    /// [`LARGE_ANSWER_BYTES`] of zeros.
    Large,
    /// Right, its first 4096 bytes in as many writes.
    ByteByByte,
    /// Another pending transaction, well-formed; `null` when there is no other.
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
    /// One of every kind that a plan draws, with values of the usual size: the rows of a fault matrix. The last three
    /// kinds are injected by tests alone.
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
        for at in [Target::All, Target::Subscription, Target::Request] {
            all.extend([
                Self::Close(at),
                Self::CloseMidFrame(at),
                Self::Stall { at, time: short },
                Self::GoDead(at),
            ]);
        }
        // Eight megabytes are sent rarely.
        let count = |bad| if bad == BadAnswer::Large { 2 } else { 20 };
        all.extend(BadAnswer::ALL.map(|bad| Self::Answers { bad, count: count(bad) }));
        all.extend((1..=5).map(|depth| Self::Reorg { depth }));
        all
    }

    /// Changes how long it lasts and how often it strikes.
    fn adjust(&mut self, change_time: impl FnOnce(&mut Duration), change: impl FnOnce(&mut u32)) {
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
            | Self::Answers { count, .. } => change(count),
            _ => {}
        }
    }
}

/// Faults and when they strike, counted from the beginning of the plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultPlan {
    steps: Vec<(Duration, Fault)>,
}

impl FaultPlan {
    /// These faults at these times, in the order of the times.
    pub fn new(steps: impl IntoIterator<Item = (Duration, Fault)>) -> Self {
        let mut steps: Vec<_> = steps.into_iter().collect();
        steps.sort_by_key(|(at, _)| *at);
        Self { steps }
    }

    /// A plan that the seed replays. The kinds come in rounds of random order, every kind once a round; a plan of a
    /// minute holds each at least once. They strike from the first tenth of `duration` to eight tenths of it, so that
    /// the end is quiet, and 0.5 to 1.3 s apart, in a plan of more than a minute as much further as it is longer: a
    /// node that fails every second for half an hour never lists a pool that takes longer than that.
    pub fn from_seed(seed: u64, duration: Duration) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let stretch = duration.div_duration_f64(Duration::from_mins(1)).max(1.0);
        let end = duration.mul_f64(0.8);
        let mut at = duration.mul_f64(0.1);
        let mut round: Vec<Fault> = Vec::new();
        let mut steps = Vec::new();
        while at < end {
            if round.is_empty() {
                round = Fault::all();
                round.shuffle(&mut rng);
            }
            let mut fault = round.pop().expect("there are kinds of faults");
            let (longer, share) = (rng.random_range(0.4..3.0), rng.random::<f64>());
            fault.adjust(
                |time| *time = time.mul_f64(longer),
                |count| *count = (f64::from(*count) * share).ceil().max(1.0) as u32,
            );
            steps.push((at, fault));
            at += Duration::from_millis(rng.random_range(500..=1300)).mul_f64(stretch);
        }
        Self { steps }
    }

    /// The same plan in a shorter time: when the faults strike and how long they last is divided by `factor`.
    #[must_use]
    pub fn compressed(mut self, factor: u32) -> Self {
        for (at, fault) in &mut self.steps {
            *at /= factor;
            fault.adjust(|time| *time /= factor, |_| {});
        }
        self
    }

    /// The most transactions that a step announces at once.
    pub(crate) fn largest_burst(&self) -> usize {
        let count = |fault: &_| if let Fault::Burst { count } = fault { *count } else { 0 };
        self.steps.iter().map(|(_, fault)| count(fault)).max().unwrap_or(0)
    }

    /// When and what, earliest first.
    pub fn steps(&self) -> &[(Duration, Fault)] {
        &self.steps
    }
}

/// Armed faults: the server looks at every point where one may strike. A number is how often it still does.
#[derive(Debug, Default)]
pub(crate) struct Armed {
    pub(crate) close_on_accept: u32,
    pub(crate) close_after_subscribe: u32,
    pub(crate) drop_notifications: u32,
    pub(crate) drop_objects: u32,
    pub(crate) duplicate: u32,
    pub(crate) answers: VecDeque<(BadAnswer, u32)>,
    pub(crate) table_full_until: Option<Instant>,
    /// The last one asked for wins.
    pub(crate) restart: Option<Restart>,
}

/// How the process ends and comes back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Restart {
    pub(crate) down: Duration,
    pub(crate) leaves_file: bool,
    pub(crate) has_new_genesis: bool,
}

impl Armed {
    /// How the next raw answer is to be wrong.
    pub(crate) fn next_answer(&mut self) -> Option<BadAnswer> {
        while self.answers.pop_front_if(|(_, left)| *left == 0).is_some() {}
        let (bad, left) = self.answers.front_mut()?;
        *left -= 1;
        Some(*bad)
    }
}

/// True as often as was armed.
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
            assert!(plan.steps().iter().all(|(at, _)| *at < minute.mul_f64(0.8)));
        }
    }

    #[test]
    fn a_longer_plan_has_its_faults_further_apart_and_not_more_of_them() {
        let count = |minutes| FaultPlan::from_seed(7, Duration::from_mins(minutes)).steps().len();
        let (one, thirty) = (count(1), count(30));
        assert!(thirty.abs_diff(one) <= one / 5, "{one} in a minute, {thirty} in thirty");
    }
}
