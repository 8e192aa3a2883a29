use alloy_primitives::Address;
use metric_set::labels;
use thiserror::Error;

/// A listed address, and the way a transaction reached it.
///
/// Of several, one is named, the same one on every run. The pre-check names the first that it finds:
/// it checks the sender, the recipient, the access list from its first entry to its last, and then
/// for each authorization first its authority and then its delegation target. The check of the state
/// names the numerically lowest address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
#[error("blocklisted address {address}: {how}")]
pub struct Blocked {
    /// The listed address.
    pub address: Address,
    /// How the transaction reached it.
    pub how: How,
}

labels! {
    /// How a transaction reached a listed address: the label `how`. The pre-check does not follow this
    /// order: for each authorization it checks the authority and then the target.
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
