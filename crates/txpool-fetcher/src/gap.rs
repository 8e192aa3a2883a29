//! Gaps: periods in which announcements may have been missed, and the reports that open them.

use std::time::{Duration, Instant};

use chain_view::Head;

/// The shortest silence of hashes or heads that is suspicious, whatever their rate: geth pauses for
/// up to 3 s now and then. A suspicious source is watched for the same time before it is judged.
pub(crate) const MIN_SILENCE: Duration = Duration::from_secs(4);

load_control::labels! {
    /// Why announcements may be missing, in ascending order of severity.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    #[non_exhaustive]
    pub enum GapReason {
        /// The regular comparison, whose missing transactions could not all be fetched.
        Audit = "audit",
        /// Heads arrived without hashes for longer than the recent rate of hashes makes plausible.
        Silence = "silence",
        /// A block, or a part of it, could not be read, so its transactions are not all known.
        UnreadBlock = "unread_block",
        /// Heads were missed. Their blocks were requested; announcements may be missing too.
        MissedHeads = "missed_heads",
        /// A reorg removed blocks. Nodes do not always announce transactions that are pending
        /// again.
        Reorg = "reorg",
        /// The fetcher's own buffer overran, the stream of a pool in this process reported a loss,
        /// or so many hashes came at once that the node may have dropped others.
        Lagged = "lagged",
        /// A connection was lost.
        Reconnect = "reconnect",
        /// The fetcher started: nothing was subscribed before.
        StartUp = "start_up",
    }
}

/// A period in which announcements may have been missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gap {
    /// Why announcements may have been missed.
    pub reason: GapReason,
    /// When the gap was opened.
    pub opened_at: Instant,
    /// When the gap was closed: after a comparison with the node's pool, when nothing that it had
    /// found was missing any more. `None` while it is open. Without backfill it is closed at once.
    pub closed_at: Option<Instant>,
    /// The number of transactions that comparisons for this reason recovered while the gap was
    /// open. A comparison that closes several gaps counts for the most severe of them.
    pub recovered: u64,
}

/// A report of the readers of announcements, heads and the node's progress to their source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// The node announced or returned this head.
    Head(Head),
    /// Announcements or blocks may have been missed.
    Gap(GapReason),
    /// The source that led the chain is lost, or is syncing.
    LeaderLost,
    /// The node announces hashes although objects were requested, or no objects any more.
    NoObjects,
    /// The number of the node's latest block, and whether `eth_syncing` says that it is syncing;
    /// `None` for what it did not answer.
    Sync { block: Option<u64>, says_syncing: Option<bool> },
}
