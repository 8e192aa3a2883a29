//! Gaps: periods in which announcements may have been missed, and who reports them.

use std::time::{Duration, Instant};

use chain_view::Head;

/// A silence shorter than this is never suspicious, whatever the rate: geth pauses for up to 3 s now
/// and then. A suspicious source is watched for as long again before it is judged.
pub(crate) const MIN_SILENCE: Duration = Duration::from_secs(4);

load_control::labels! {
    /// Why announcements may be missing, in ascending order of severity.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    #[non_exhaustive]
    pub enum GapReason {
        /// The regular comparison. A gap only if what it found missing could not be fetched.
        Audit = "audit",
        /// Heads come and no hashes, for longer than the recent rate of hashes makes plausible.
        Silence = "silence",
        /// A block could not be read, in part or at all, so its transactions are not known.
        UnreadBlock = "unread_block",
        /// Heads were missed. Their blocks were requested; hashes may be missing too.
        MissedHeads = "missed_heads",
        /// A reorg. What the removed blocks held may be pending again, and is not always announced.
        Reorg = "reorg",
        /// Our own buffer overran, the stream of a pool in this process reported a loss, or so many hashes
        /// came at once that the node may have dropped others.
        Lagged = "lagged",
        /// A connection was lost.
        Reconnect = "reconnect",
        /// The start: nothing was subscribed before.
        StartUp = "start_up",
    }
}

/// A period in which announcements may have been missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gap {
    /// Why announcements may have been missed.
    pub reason: GapReason,
    /// When it began.
    pub from: Instant,
    /// When a comparison with the node's pool closed it, after which nothing that it had found was
    /// missing any more; `None` until then. Without backfill it is closed at once.
    pub to: Option<Instant>,
    /// How many transactions the comparisons for this reason brought in while it was open. One that
    /// closes several gaps counts for the most severe of them.
    pub recovered: u64,
}

/// What the readers of a source's announcements and heads, and who asks the node how far it is, report to the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// The node announced or returned this head.
    Head(Head),
    /// Announcements or blocks may have been missed.
    Gap(GapReason),
    /// The source whose heads led is lost, or syncs.
    LeaderLost,
    /// The node announces hashes where it was asked for objects.
    NoObjects,
    /// The node's latest block, and whether it says that it is syncing.
    Sync { block: Option<u64>, says_syncing: bool },
}
