use std::{path::PathBuf, time::Duration};

use alloy_primitives::Address;
use thiserror::Error;

use crate::Blocked;

/// Why there is no list to build with. Every variant means: do not build.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A configuration under which no list could be used.
    #[error("blocklist configuration: {field}: {reason}")]
    Config {
        /// The field of [`BlocklistConfig`](crate::BlocklistConfig).
        field: &'static str,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The file could not be read.
    #[error("blocklist {path} cannot be read", path = .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file was written to while it was being read, so what was read may be half of it.
    #[error("blocklist {path} changed while it was read", path = .path.display())]
    ChangedWhileRead {
        /// The file.
        path: PathBuf,
    },
    /// The text is longer than allowed.
    #[error("blocklist of at least {bytes} bytes, at most {max_bytes} are allowed")]
    TooLarge {
        /// Length found; reading stops one byte after the limit.
        bytes: usize,
        /// [`BlocklistConfig::max_bytes`](crate::BlocklistConfig::max_bytes).
        max_bytes: usize,
    },
    /// The text is not UTF-8.
    #[error("blocklist is not UTF-8 after {valid_bytes} bytes")]
    NotUtf8 {
        /// Length of the part that is.
        valid_bytes: usize,
    },
    /// The text begins like a JSON array and is not one of strings.
    #[error("blocklist is not a JSON array of strings")]
    Json {
        /// Line, column and what was expected there.
        source: serde_json::Error,
    },
    /// An entry is not `0x` and 40 hexadecimal digits.
    #[error("blocklist {place}: {found:?} is not an address")]
    BadAddress {
        /// Where.
        place: Place,
        /// What is there, cut to its first 64 characters.
        found: Box<str>,
    },
    /// A mixed-case entry does not have its EIP-55 checksum: a digit may be wrong.
    #[error("blocklist {place}: {found} fails its checksum, {expected} would pass")]
    BadChecksum {
        /// Where.
        place: Place,
        /// What is there.
        found: Box<str>,
        /// The same digits with their checksum.
        expected: Box<str>,
    },
    /// An address is listed twice: two lists were joined, or an edit went wrong.
    #[error("blocklist {place}: {address} is already at {first}")]
    Duplicate {
        /// The second occurrence.
        place: Place,
        /// The first occurrence.
        first: Place,
        /// The address.
        address: Address,
    },
    /// The list is empty or shorter than it may be.
    #[error("blocklist of {found} addresses, at least {min} are needed")]
    TooFew {
        /// Addresses in the text.
        found: usize,
        /// [`BlocklistConfig::min_addresses`](crate::BlocklistConfig::min_addresses).
        min: usize,
    },
    /// The list is older than it may be.
    #[error("blocklist is {age:?} old, at most {max_age:?} is allowed")]
    Stale {
        /// Its age.
        age: Duration,
        /// [`BlocklistConfig::max_age`](crate::BlocklistConfig::max_age).
        max_age: Duration,
    },
    /// The list claims to be from the future, so its age is unknown: a clock is wrong.
    #[error("blocklist is dated {ahead:?} in the future, at most {tolerance:?} is allowed")]
    FromTheFuture {
        /// How far.
        ahead: Duration,
        /// [`CLOCK_TOLERANCE`](crate::CLOCK_TOLERANCE).
        tolerance: Duration,
    },
    /// The block's fee recipient is listed: every transaction would pay it.
    #[error("fee recipient {address} is on the blocklist")]
    FeeRecipientListed {
        /// The fee recipient.
        address: Address,
    },
}

/// Where in the text an entry stands, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// A line of a text list.
    Line(usize),
    /// An element of a JSON array.
    Entry(usize),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Line(n) => write!(f, "line {n}"),
            Self::Entry(n) => write!(f, "entry {n}"),
        }
    }
}

/// Why a transaction was not executed to a committable state. Nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ExecuteError<E> {
    /// It reaches a listed address.
    #[error(transparent)]
    Blocked(#[from] Blocked),
    /// An earlier execution had left its state in the EVM's journal, uncommitted, so this
    /// transaction's keys could not have been told from it. The leftover is discarded now.
    #[error("{accounts} accounts of an earlier, uncommitted execution were left in the EVM")]
    Leftover {
        /// Accounts that the journal held.
        accounts: usize,
    },
    /// The EVM refused or failed: an invalid transaction, or a database error.
    #[error("the EVM did not execute the transaction: {0}")]
    Evm(E),
}

impl<E> ExecuteError<E> {
    /// The listed address, if that is the reason.
    pub fn blocked(&self) -> Option<Blocked> {
        match self {
            Self::Blocked(blocked) => Some(*blocked),
            Self::Leftover { .. } | Self::Evm(_) => None,
        }
    }
}

/// Why a finished block must not be submitted.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("transaction {index} of the block: {reason}")]
pub struct VerifyError<E> {
    /// Position in the block, from 0.
    pub index: usize,
    /// What is wrong with it.
    pub reason: ExecuteError<E>,
}
