//! The ways in which a node can differ from reth 2.5, or be partly broken, for as long as a test
//! wants.

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

/// How a node behaves until [`MockNode::set_quirks`](crate::MockNode::set_quirks) changes it. The
/// default is a healthy reth 2.5.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quirks {
    /// How long a raw transaction is answered with `null` after it became pending, as by Erigon and
    /// by nodes behind a load balancer. It applies to transactions that become pending while this
    /// is set.
    pub null_after_announcement: Duration,
    /// For a while, a pending blob transaction is answered without its blobs.
    pub incomplete_blobs: Option<IncompleteBlobs>,
    /// A typed raw transaction is wrapped in an RLP string, as Nethermind did.
    pub wraps_raw: bool,
    /// The error code of the answer for an unknown transaction: 4444 in Nethermind, 1 in some
    /// proxies.
    pub unknown_error: Option<i32>,
    /// The delay of every answer.
    pub delay: Duration,
    /// Answers that become due within a window of this length are sent in reverse order, within the
    /// next window.
    pub reverse_window: Duration,
    /// No request is answered on any connection, while announcements continue.
    pub is_mute: bool,
    /// Methods that are missing or never answered, by name.
    pub methods: BTreeMap<String, MethodQuirk>,
    /// Subscriptions to these topics are accepted, but get no notification.
    pub silent: BTreeSet<Topic>,
    /// A new subscription is notified of the latest hash, object or head before the reply that
    /// names its id.
    pub notifies_before_reply: bool,
    /// The id of an answer.
    pub ids: AnswerIds,
    /// The `error` of an answer is a text, not an object.
    pub text_errors: bool,
    /// Every answer is sent twice.
    pub answers_twice: bool,
    /// The first answer of a connection is replaced by a line of HTML.
    pub html_first: bool,
    /// A connection is closed after the answer to its first request.
    pub closes_after_answer: bool,
    /// `eth_syncing` answers that the node is syncing.
    pub is_syncing: bool,
    /// How many seconds the timestamps of new blocks are ahead of this machine's clock. The
    /// timestamp of a block is always higher than that of its parent.
    pub clock_offset_s: i64,
}

impl Quirks {
    /// The delay of an answer that is due `elapsed` after the start of the node.
    pub(crate) fn delay_at(&self, elapsed: Duration) -> Duration {
        let window = self.reverse_window.as_nanos();
        if window == 0 {
            return self.delay;
        }
        // The time is mirrored at the end of its window, so that the last answer is sent first.
        let until_end = window - elapsed.as_nanos() % window;
        self.delay + Duration::from_nanos(2 * until_end as u64)
    }

    /// Whether a quirk depends on when a transaction became pending.
    pub(crate) fn needs_ages(&self) -> bool {
        !self.null_after_announcement.is_zero() || self.incomplete_blobs.is_some()
    }
}

/// How a node treats a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MethodQuirk {
    /// It never answers, and the method has no effect.
    NoAnswer,
    /// It answers with an error of this code: -32601 for a missing method, or -32602 in anvil;
    /// -32008 for a list that is too large.
    Error(i32),
}

/// Pending blob transactions without their blobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IncompleteBlobs {
    pub form: IncompleteForm,
    /// How long after the transaction became pending; [`Duration::MAX`] is for ever. It applies to
    /// transactions that become pending while this is set.
    pub time: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum IncompleteForm {
    /// The form of blocks, without a sidecar.
    NoSidecar,
    /// Commitments and proofs, and an empty list of blobs, as in a node with a sparse pool.
    ElidedBlobs,
}

/// The id of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AnswerIds {
    /// The id of the request.
    #[default]
    Same,
    /// The id of the request as a text.
    Text,
    Null,
    /// An id that no request had.
    Unknown,
}

impl AnswerIds {
    /// Returns the id of the answer to a request with this id; both are JSON.
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
    fn answers_of_one_window_are_sent_in_reverse_within_the_next() {
        let ms = Duration::from_millis;
        let quirks = Quirks { delay: ms(1_000), reverse_window: ms(10), ..Quirks::default() };
        let sent = |due: u64| ms(due) + quirks.delay_at(ms(due));
        assert_eq!([30, 31, 39].map(sent), [1_050, 1_049, 1_041].map(ms));
        assert_eq!(sent(40), ms(1_060), "the first of the next window");
    }
}
