//! Why a message is refused.

use alloy_eips::eip2718::Eip2718Error;
use alloy_primitives::B256;
use order_pool::BundleError;

/// Why a message does not decode, or is not what it claims to be. Every variant names the field, and
/// what was found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The version is unknown: the publisher is newer.
    #[error("version is {found}, must be {}", super::VERSION)]
    Version {
        /// The version.
        found: u8,
    },
    /// The kind is unknown.
    #[error("kind is {found}, which is unknown")]
    Kind {
        /// The kind.
        found: u8,
    },
    /// The message ends within a field.
    #[error("{field} needs {needed} bytes, {left} are left")]
    Truncated {
        /// The field.
        field: &'static str,
        /// Its bytes.
        needed: usize,
        /// The bytes that are left.
        left: usize,
    },
    /// Bytes follow the last field.
    #[error("{left} bytes follow the last field")]
    Trailing {
        /// Their number.
        left: usize,
    },
    /// A list or the message is too long.
    #[error("{field} has {value} entries, the most is {limit}")]
    TooLong {
        /// The field.
        field: &'static str,
        /// Its length, in entries; of the message in bytes.
        value: usize,
        /// The limit.
        limit: usize,
    },
    /// A field has a value that means nothing.
    #[error("{field} is {value}, which means nothing")]
    Value {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// A transaction does not decode.
    #[error("txs[{index}] does not decode as a signed transaction: {source}")]
    Undecodable {
        /// Its index; 0 unless it is one of a bundle.
        index: usize,
        /// The decoder's error.
        source: Eip2718Error,
    },
    /// The content has another id than the message.
    #[error("the content has the id {found}, the message has {expected}")]
    Id {
        /// The id of the content.
        found: B256,
        /// The message id.
        expected: B256,
    },
    /// The message has no id, or one that is not 64 hexadecimal digits.
    #[error("Nats-Msg-Id is missing or not 64 hexadecimal digits")]
    NoId,
    /// The fields do not form a bundle.
    #[error(transparent)]
    Bundle(#[from] BundleError),
}
