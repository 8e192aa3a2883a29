//! Why a message is refused.

use alloy_eips::eip2718::Eip2718Error;
use alloy_primitives::B256;
use order_pool::BundleError;

/// Why a message does not decode, or is not what it claims to be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The message ends within a field.
    #[error("the next field needs {needed} bytes, {left} are left")]
    Truncated {
        /// Its bytes.
        needed: usize,
        /// The bytes that are left.
        left: usize,
    },
    /// A field has a value that is not accepted.
    #[error("{field} is {value}, which is not accepted")]
    Value {
        /// The field; `kind` and `version` may be those of a newer publisher.
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
