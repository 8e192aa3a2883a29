//! How hashes enter and leave the fetcher, and the counts of both.

load_control::labels! {
    /// How a hash entered the fetcher.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum Entry {
        /// A source announced it.
        Announced = "announced",
        /// A comparison at start-up or after a reconnect found it in the node's pool.
        Backfilled = "backfilled",
        /// An audit, or the comparison after a lag, a reorg or missed heads, found it missing; or a
        /// source announced it while a block contained it, and a reorg removed that block.
        AuditRecovered = "audit_recovered",
    }
}

load_control::labels! {
    /// How a hash left the fetcher.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum Outcome {
        /// Delivered to the sink, which accepted it.
        Pooled = "pooled",
        /// The fetcher (in the last 60 s) or the sink had it before.
        Known = "known",
        /// The node's pool no longer has it, because it was replaced or evicted: the node answered
        /// `null`, or geth's `"0x"`.
        Gone = "gone",
        /// A block contains it, or another transaction with its sender and nonce.
        Mined = "mined",
        /// A pending blob transaction that the node returned without its sidecar, or without all
        /// blobs, also at the last retry. Its next announcement or a comparison fetches it again.
        NoSidecar = "no_sidecar",
        /// The response does not decode, its signature is invalid, or it is a transaction of
        /// another chain or with another hash.
        Malformed = "malformed",
        /// The sink refused it.
        Refused = "refused",
        /// The sink had no room for it. Comparisons offer it again.
        Postponed = "postponed",
        /// No usable response came before the last retry, the sink panicked, the source ended, or
        /// the only source that has it is not connected.
        Failed = "failed",
    }
}

/// The numbers of hashes by entry and by outcome at one moment; see [`Counts::balance`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Counts {
    /// Hashes that entered as [`Entry::Announced`].
    pub announced: u64,
    /// Hashes that entered as [`Entry::Backfilled`].
    pub backfilled: u64,
    /// Hashes that entered as [`Entry::AuditRecovered`].
    pub audit_recovered: u64,
    /// Hashes that left as [`Outcome::Pooled`].
    pub pooled: u64,
    /// Hashes that left as [`Outcome::Known`].
    pub known: u64,
    /// Hashes that left as [`Outcome::Gone`].
    pub gone: u64,
    /// Hashes that left as [`Outcome::Mined`].
    pub mined: u64,
    /// Hashes that left as [`Outcome::NoSidecar`].
    pub no_sidecar: u64,
    /// Hashes that left as [`Outcome::Malformed`].
    pub malformed: u64,
    /// Hashes that left as [`Outcome::Refused`].
    pub refused: u64,
    /// Hashes that left as [`Outcome::Postponed`]; each refused offer counts.
    pub postponed: u64,
    /// Hashes that left as [`Outcome::Failed`].
    pub failed: u64,
    /// Hashes that entered and have no outcome yet. It has its own counter, and is not computed
    /// from the others.
    pub unfinished: u64,
    /// Announcements that were lost before they entered: displaced in the fetcher's own buffer by
    /// later ones, left there when their source or the fetcher ended, or reported as lost by the
    /// stream of a pool in this process. With full announcements, the object of such a hash may
    /// still enter.
    pub lagged: u64,
    /// With full announcements: announced hashes whose object did not come in time, because the
    /// node dropped it or was late. They were requested, and count as
    /// [`announced`](Self::announced).
    pub objects_missed: u64,
}

impl Counts {
    /// Returns the number of hashes that entered, minus those that left and those that are
    /// unfinished. It is zero unless hashes enter or leave between the reads of two counters.
    #[must_use]
    pub const fn balance(&self) -> i64 {
        let Self { pooled, known, gone, mined, no_sidecar, malformed, .. } = *self;
        let Self { refused, postponed, failed, .. } = *self;
        let entered = self.announced + self.backfilled + self.audit_recovered;
        let left =
            pooled + known + gone + mined + no_sidecar + malformed + refused + postponed + failed;
        entered as i64 - left as i64 - self.unfinished as i64
    }
}
