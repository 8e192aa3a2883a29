//! The parts of rbuilder's `building` that [`ingest_blocklist`] uses.

pub mod ingest_blocklist;

/// Why a transaction is not in the block. Three of the original's variants are left out.
#[derive(Debug)]
pub enum TransactionErr {
    /// The EVM refused it.
    InvalidTransaction(revm::context::result::InvalidTransaction),
    /// It reaches a listed address.
    Blocklist,
}
