//! How hashes enter and leave, and the counts of both.

load_control::labels! {
    /// How a hash entered.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum Entry {
        /// The node announced it.
        Announced = "announced",
        /// A comparison at start-up or after a reconnect found it pending in the node's pool.
        Backfilled = "backfilled",
        /// An audit, or the comparison after a lag, a reorg or missed heads, found it missing; or
        /// it was announced while a block contained it, and a reorg has removed that block.
        AuditRecovered = "audit_recovered",
    }
}

load_control::labels! {
    /// How a hash left.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum Outcome {
        /// Delivered to the sink, which accepted it.
        Pooled = "pooled",
        /// Seen before, by the fetcher in the last 60 s or by the sink.
        Known = "known",
        /// No longer in the node's pool: replaced or evicted (`null`, or geth's `"0x"`).
        Gone = "gone",
        /// Already in a block, or another transaction with its sender and nonce is.
        Mined = "mined",
        /// A pending blob transaction that the node has without its sidecar, or without all blobs, also
        /// after the last retry. An announcement or a comparison brings it again.
        NoSidecar = "no_sidecar",
        /// Does not decode, has no valid signature, is of another chain or not the requested one.
        Malformed = "malformed",
        /// Refused by the sink.
        Refused = "refused",
        /// The sink had no room for it; comparisons offer it again.
        Postponed = "postponed",
        /// No usable answer after the last retry, the sink panicked, or its source gave up, or is away and no other has it.
        Failed = "failed",
    }
}

/// The numbers of hashes by entry and by outcome at one moment, see [`Counts::balance`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Counts {
    /// Hashes announced by the sources and read from their buffers.
    pub announced: u64,
    /// Hashes that entered by a backfill.
    pub backfilled: u64,
    /// Hashes that entered as [`Entry::AuditRecovered`].
    pub audit_recovered: u64,
    /// Accepted by the sink.
    pub pooled: u64,
    /// Seen before, by the fetcher or by the sink.
    pub known: u64,
    /// No longer in the node's pool.
    pub gone: u64,
    /// Mined already.
    pub mined: u64,
    /// Pending blob transactions without their sidecars.
    pub no_sidecar: u64,
    /// Not decodable, or another transaction.
    pub malformed: u64,
    /// Refused by the sink.
    pub refused: u64,
    /// The sink had no room; each offer that fails counts.
    pub postponed: u64,
    /// Without a usable answer after the last retry.
    pub failed: u64,
    /// Entered and not yet left. It has a counter of its own, and is not computed from the others.
    pub unfinished: u64,
    /// Announcements that our own buffer lost before they could enter, displaced by later ones or
    /// left there when their source ended, also by a stop; and those that the stream of a pool in
    /// this process reported as lost. With full objects, one may enter all the same, by its object.
    pub lagged: u64,
    /// With full objects: announced hashes whose object had not come in time, because the node had
    /// dropped it or was late. They were requested, and count among [`announced`](Self::announced).
    pub objects_missed: u64,
}

impl Counts {
    /// Hashes that entered, less those that left and those unfinished. Zero, unless hashes enter or
    /// leave between the reads of two counters.
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
