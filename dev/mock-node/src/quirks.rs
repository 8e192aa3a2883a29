//! Where a node can differ from reth 2.5, or be half broken, for as long as a test wants it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde::{Deserialize, Serialize};

/// A kind of subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Topic {
    /// `newPendingTransactions`.
    Hashes,
    /// `newPendingTransactions` with `true`.
    Objects,
    /// `newHeads`.
    Heads,
}

/// How a node behaves until [`MockNode::set_quirks`](crate::MockNode::set_quirks) changes it. The default is a
/// healthy reth 2.5.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quirks {
    /// A raw transaction is answered with `null` for so long after it became pending, as Erigon and nodes behind a load
    /// balancer do. Counted from announcements that were made while this is set.
    pub null_after_announcement: Duration,
    /// A pending blob transaction is answered incomplete for a while.
    pub incomplete_blobs: Option<IncompleteBlobs>,
    /// A raw transaction with a type is answered as an RLP string that contains it, as Nethermind did.
    pub wraps_raw: bool,
    /// The code of the error that answers a request for a transaction that the node does not hold: 4444 of Nethermind, 1
    /// of some proxies.
    pub unknown_error: Option<i32>,
    /// Every answer comes so much later.
    pub delay: Duration,
    /// The answers that become due within a window of this length are sent in reverse order, within the next one.
    pub reverse_window: Duration,
    /// No request is answered, on any connection, while announcements go on.
    pub is_mute: bool,
    /// Methods that are missing, or are never answered.
    pub methods: BTreeMap<String, MethodQuirk>,
    /// Subscriptions of these kinds are accepted, and nothing is notified to them.
    pub silent: BTreeSet<Topic>,
    /// When somebody subscribes, the latest hash, object or head is notified before the reply that names the subscription.
    pub notifies_before_reply: bool,
    /// The id with which answers come back.
    pub ids: AnswerIds,
    /// The `error` of an answer is a text, not an object.
    pub text_errors: bool,
    /// Every answer comes twice.
    pub answers_twice: bool,
    /// In place of its first answer, a connection gets a line of HTML.
    pub html_first: bool,
    /// A connection is closed once a request of it was answered.
    pub closes_after_answer: bool,
    /// `eth_syncing` does not answer `false`.
    pub is_syncing: bool,
    /// How many seconds the timestamps of new blocks are ahead of this machine's clock. A block is always later than its
    /// parent.
    pub clock_offset_s: i64,
}

impl Quirks {
    /// How much later an answer comes that is due `elapsed` after the node's start.
    pub(crate) fn delay_at(&self, elapsed: Duration) -> Duration {
        let window = self.reverse_window.as_nanos();
        if window == 0 {
            return self.delay;
        }
        // Mirrored at the end of its window: what came last is sent first.
        let until_end = window - elapsed.as_nanos() % window;
        self.delay + Duration::from_nanos(2 * until_end as u64)
    }

    /// Whether it matters when a transaction became pending.
    pub(crate) fn needs_ages(&self) -> bool {
        !self.null_after_announcement.is_zero() || self.incomplete_blobs.is_some()
    }
}

/// What a node does with a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MethodQuirk {
    /// It never answers, and does nothing.
    NoAnswer,
    /// It answers with an error of this code: -32601, or -32602 as anvil, for a method that it does not have; -32008 for a
    /// list that is too large.
    Error(i32),
}

/// Pending blob transactions without their blobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IncompleteBlobs {
    pub form: IncompleteForm,
    /// For how long after the transaction became pending, counted from announcements that were made while this is set;
    /// [`Duration::MAX`] is for ever.
    pub time: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum IncompleteForm {
    /// As it stands in a block, without a sidecar.
    NoSidecar,
    /// With commitments and proofs, and an empty list of blobs, as a node with a sparse pool has it.
    ElidedBlobs,
}

/// The id of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AnswerIds {
    /// That of the request.
    #[default]
    Same,
    /// The same, as a text.
    Text,
    Null,
    /// One that nobody has requested with.
    Unknown,
}

impl AnswerIds {
    /// The id of the answer to a request with this id; both are JSON.
    pub(crate) fn answer_to(self, id: &str) -> String {
        match self {
            Self::Text if !id.starts_with('"') => format!("\"{id}\""),
            Self::Same | Self::Text => id.to_owned(),
            Self::Null => "null".to_owned(),
            Self::Unknown => u64::MAX.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_one_window_come_in_reverse_within_the_next() {
        let ms = Duration::from_millis;
        let quirks = Quirks { delay: ms(1_000), reverse_window: ms(10), ..Quirks::default() };
        let sent = |due: u64| ms(due) + quirks.delay_at(ms(due));
        assert_eq!([30, 31, 39].map(sent), [1_050, 1_049, 1_041].map(ms));
        assert_eq!(sent(40), ms(1_060), "the first of the next window");
    }
}
