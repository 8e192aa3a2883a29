//! The options of a blocklist, with their defaults and bounds.

use std::time::Duration;

use crate::Error;

/// An empty list is almost always a broken download, so at least one address is required.
pub const DEFAULT_MIN_ADDRESSES: usize = 1;

/// One day. Sanctions lists change on working days, and their publishers republish them daily; a
/// list that was not written for a day means that the job which writes it is broken.
pub const DEFAULT_MAX_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// A longer text is refused with [`Error::TooLarge`] before it is parsed. 16 MiB: about 370,000
/// addresses of 43 bytes a line. The worst case in memory while a reload runs is this text, two
/// address sets of 20 bytes an entry at a load of 7/8 (the old and the new), and 28 bytes an entry
/// for finding duplicates: under 70 MiB, of which under 50 MiB for milliseconds only.
pub const MAX_BYTES: usize = 16 * 1024 * 1024;

/// One byte above the limit detects a longer text, and bounds the memory for an endless one.
pub(crate) const READ_LIMIT: u64 = MAX_BYTES as u64 + 1;

/// The requirements on the list.
///
/// Make one with [`Self::default`] and then set its fields: the struct gets more fields in
/// later versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlocklistConfig {
    /// Fewer addresses than this are refused with [`Error::TooFew`]. Default
    /// [`DEFAULT_MIN_ADDRESSES`]; 0 allows the empty list. Set it near the real length: a text file
    /// that was cut between two lines is otherwise a valid, shorter list.
    pub min_addresses: usize,
    /// How old the list in force may be, counted from its date (for a file: its modification time).
    /// Above this, every use is [`Error::Stale`]. Default [`DEFAULT_MAX_AGE`]; `None`: a list never
    /// becomes stale, for one that is part of a release.
    pub max_age: Option<Duration>,
    /// The checks that a finished block must pass. Default [`Policy::PostState`].
    pub policy: Policy,
}

/// The checks that a block must pass before it is submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Policy {
    /// Each transaction passes the pre-check and the check of its post-execution state.
    #[default]
    PostState,
    /// In addition the finished block is verified, which also counts opcodes that named a listed
    /// address and halted before they reached it: [`BlockGuard::finish`](crate::BlockGuard::finish)
    /// returns the block as [`Unverified`](crate::Unverified). For relays that validate with geth's
    /// access-list tracer, which counts such opcodes.
    Strict,
}

impl Default for BlocklistConfig {
    fn default() -> Self {
        Self {
            min_addresses: DEFAULT_MIN_ADDRESSES,
            max_age: Some(DEFAULT_MAX_AGE),
            policy: Policy::default(),
        }
    }
}

impl BlocklistConfig {
    /// # Errors
    /// [`Error::Config`] for a value that no list could satisfy.
    pub fn validate(&self) -> Result<(), Error> {
        if self.max_age == Some(Duration::ZERO) {
            return Err(Error::Config { field: "max_age", reason: "zero: every list is stale" });
        }
        Ok(())
    }
}
