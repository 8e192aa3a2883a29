//! The reasons for which no list, no block or no transaction is accepted.

use std::{path::PathBuf, time::Duration};

use alloy_primitives::Address;
use load_control::labels;
use thiserror::Error;

/// Why there is no usable list. Every variant means: do not build.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A configuration that no list could satisfy.
    #[error("blocklist configuration: {field}: {reason}")]
    Config {
        /// The field of [`BlocklistConfig`](crate::BlocklistConfig).
        field: &'static str,
        /// Why it is invalid.
        reason: &'static str,
    },
    /// The file could not be read.
    #[error("the blocklist {path} cannot be read", path = .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The file was modified while it was being read, so the text may be incomplete.
    #[error("the blocklist {path} changed while it was read", path = .path.display())]
    ChangedWhileRead {
        /// The file.
        path: PathBuf,
    },
    /// The text is longer than allowed.
    #[error("the blocklist has at least {bytes} bytes, at most {max_bytes} are allowed")]
    TooLarge {
        /// The length found; reading stops one byte after the limit.
        bytes: usize,
        /// [`MAX_BYTES`](crate::MAX_BYTES).
        max_bytes: usize,
    },
    /// The text is not UTF-8.
    #[error("the blocklist is not UTF-8 after {valid_bytes} bytes")]
    NotUtf8 {
        /// Length of the valid part.
        valid_bytes: usize,
    },
    /// The text begins like a JSON array but is not an array of strings.
    #[error("the blocklist is not a JSON array of strings")]
    Json {
        /// Line, column and the expected token.
        source: serde_json::Error,
    },
    /// An entry is not `0x` and 40 hexadecimal digits.
    #[error("blocklist {place}: {found:?} is not an address")]
    BadAddress {
        /// Its position.
        place: Place,
        /// The entry, cut to its first 64 characters.
        found: Box<str>,
    },
    /// A mixed-case entry has a wrong EIP-55 checksum: a digit may be wrong.
    #[error("blocklist {place}: {found} fails its checksum, {expected} would pass")]
    BadChecksum {
        /// Its position.
        place: Place,
        /// The entry.
        found: Box<str>,
        /// The same digits with their checksum.
        expected: Box<str>,
    },
    /// The list is empty or shorter than allowed.
    #[error("the blocklist has {found} addresses, at least {min} are required")]
    TooFew {
        /// Different addresses in the text.
        found: usize,
        /// [`BlocklistConfig::min_addresses`](crate::BlocklistConfig::min_addresses).
        min: usize,
    },
    /// The list is older than allowed.
    #[error("the blocklist is {age:?} old, at most {max_age:?} is allowed")]
    Stale {
        /// Its age.
        age: Duration,
        /// [`BlocklistConfig::max_age`](crate::BlocklistConfig::max_age).
        max_age: Duration,
    },
    /// The list is dated in the future, so its age is unknown: a clock is wrong.
    #[error("the blocklist is dated {ahead:?} in the future, at most {tolerance:?} is allowed")]
    FromTheFuture {
        /// How far it is ahead of the clock.
        ahead: Duration,
        /// [`CLOCK_TOLERANCE`](crate::CLOCK_TOLERANCE).
        tolerance: Duration,
    },
    /// A reload is dated before the list in force, and so may lack later additions.
    #[error("the blocklist is dated {behind:?} before the one in force")]
    Older {
        /// How much older it is.
        behind: Duration,
    },
    /// The block's fee recipient is listed: every transaction would pay it.
    #[error("the fee recipient {address} is on the blocklist")]
    FeeRecipientListed {
        /// The fee recipient.
        address: Address,
    },
    /// The proposer's fee recipient is listed: the block's last transaction would pay it.
    #[error("the proposer's fee recipient {address} is on the blocklist")]
    ProposerListed {
        /// The proposer's fee recipient.
        address: Address,
    },
    /// The server of the list's URL could not be reached, or its response did not arrive in time.
    #[cfg(feature = "url")]
    #[error("the blocklist of {host} cannot be requested")]
    Request {
        /// Host of the URL; the rest of it may hold a secret.
        host: Box<str>,
        /// The error of the HTTP client.
        source: Box<ureq::Error>,
    },
    /// The server of the list's URL responded with a status other than 200, or 304 for a
    /// conditional request.
    #[cfg(feature = "url")]
    #[error("the server {host} of the blocklist responded with status {status}")]
    Status {
        /// Host of the URL.
        host: Box<str>,
        /// The status.
        status: u16,
    },
}

/// The position of an entry in the text, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// A line of a text list.
    Line(usize),
    /// An element of a JSON array.
    Entry(usize),
}

/// Entries of a list's text that repeat an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Duplicates {
    /// How many entries repeat an earlier one.
    pub count: usize,
    /// The position of the first entry that repeats an earlier one.
    pub place: Place,
    /// The position of the entry that it repeats.
    pub first: Place,
    /// The repeated address.
    pub address: Address,
}

impl std::fmt::Display for Duplicates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { count, place, first, address } = self;
        write!(
            f,
            "repeats {count} addresses, the first at {place}: {address} is already at {first}"
        )
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Line(n) => write!(f, "line {n}"),
            Self::Entry(n) => write!(f, "entry {n}"),
        }
    }
}

/// A listed address, and the way a transaction reached it.
///
/// If a transaction reaches several listed addresses, the same one is named on every run. The
/// pre-check names the first that it finds: it checks the sender, the recipient, the access list
/// from its first entry to its last, and then for each authorization first its authority and then
/// its delegation target. The check of the state names the numerically lowest address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
#[error("blocklisted address {address}: {how}")]
pub struct Blocked {
    /// The listed address.
    pub address: Address,
    /// How the transaction reached it.
    pub how: How,
}

labels! {
    /// How a transaction reached a listed address: the label `how`. The pre-check does not follow
    /// this order: for each authorization it checks the authority and then the target.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
    #[non_exhaustive]
    pub enum How {
        /// It signed the transaction.
        Sender = "sender",
        /// It is the transaction's `to`.
        Recipient = "recipient",
        /// It is named in the EIP-2930 access list, whether or not the execution used it.
        AccessList = "access_list",
        /// It signed an EIP-7702 authorization, whether or not the authorization was valid.
        Authority = "authority",
        /// An EIP-7702 authorization delegates to it, whether or not that code ran.
        DelegationTarget = "delegation_target",
        /// The execution loaded its account: a call, a balance or code read, a transfer, a created
        /// contract, a precompile, code behind a delegation, also inside a frame that was reverted.
        TouchedByExecution = "touched_by_execution",
        /// An opcode named it and halted before its account was loaded. Only the strict check of a
        /// finished block detects this, see [`Unverified`](crate::Unverified).
        AttemptedByExecution = "attempted_by_execution",
    }
}

impl std::fmt::Display for How {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Sender => "it is the sender",
            Self::Recipient => "it is the recipient",
            Self::AccessList => "it is in the access list",
            Self::Authority => "it signed a delegation",
            Self::DelegationTarget => "an authorization delegates to it",
            Self::TouchedByExecution => "the execution touched it",
            Self::AttemptedByExecution => "the execution attempted to touch it",
        })
    }
}

/// Why a transaction was not executed to a committable state. Nothing was written to the database.
#[cfg(feature = "revm")]
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ExecuteError<E> {
    /// The transaction reaches a listed address.
    #[error(transparent)]
    Blocked(#[from] Blocked),
    /// An earlier execution had left its state in the EVM's journal, uncommitted, so this
    /// transaction's keys could not have been distinguished from it. The leftover is discarded now.
    #[error("{accounts} accounts of an earlier, uncommitted execution were left in the EVM")]
    Leftover {
        /// Accounts that the journal held.
        accounts: usize,
    },
    /// The EVM refused or failed: an invalid transaction, or a database error.
    #[error("the EVM did not execute the transaction: {0}")]
    Evm(E),
}

#[cfg(feature = "revm")]
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
#[cfg(feature = "revm")]
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("transaction {index} of the block: {reason}")]
pub struct VerifyError<E> {
    /// Position in the block, from 0.
    pub index: usize,
    /// Why it may not be in the block.
    pub reason: ExecuteError<E>,
}
