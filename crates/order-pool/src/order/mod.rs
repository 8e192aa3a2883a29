//! What an order is: its identity, its contents, and its memory.

mod bundle;
mod sidecar;
mod transaction;
mod wire;

use std::fmt;

use alloy_primitives::B256;

use crate::holder::Holder;

pub use bundle::*;
pub use sidecar::load_trusted_setup;
pub use transaction::{Funds, Origin, PrivateCancellation, PrivateTerms, Transaction};
pub use wire::{Ignored, RawBundle, RawCancelBundle, StorageSlot};

/// The memory of one order besides its own contents, in bytes: its index entries, its slot in a
/// page of the live set, its slots in the event log, and the allocator's overhead.
///
/// It was measured and rounded up: `tests/memory.rs` compares it with the resident bytes per order
/// of a pool of 100,000 orders (1,078 on x86-64 with glibc).
pub const ORDER_OVERHEAD_BYTES: usize = 1_152;

/// The identity of an order.
///
/// Two bundles of the same transactions for different blocks are different orders, so a bundle is
/// identified by a hash of all of its fields and not by its bundle hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum OrderId {
    /// A transaction, by its hash.
    Tx(B256),
    /// A bundle, by [`Bundle::id`].
    Bundle(B256),
}

impl OrderId {
    /// Returns the 32 bytes of the id, the argument of [`OrderPool::get`](crate::OrderPool::get).
    pub const fn hash(&self) -> &B256 {
        match self {
            Self::Tx(hash) | Self::Bundle(hash) => hash,
        }
    }
}

impl fmt::Display for OrderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tx(hash) => write!(f, "tx {hash}"),
            Self::Bundle(hash) => write!(f, "bundle {hash}"),
        }
    }
}

/// A transaction or a bundle: what a builder can put into a block.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Order {
    /// A single transaction.
    Tx(Transaction),
    /// Several transactions for one block.
    Bundle(Bundle),
}

impl Order {
    /// Returns the order's identity.
    pub const fn id(&self) -> OrderId {
        match self {
            Self::Tx(tx) => OrderId::Tx(*tx.hash()),
            Self::Bundle(bundle) => OrderId::Bundle(*bundle.id()),
        }
    }

    /// Returns the order's memory in the pool, in bytes: its contents and [`ORDER_OVERHEAD_BYTES`].
    /// The byte caps count this.
    pub const fn size_bytes(&self) -> usize {
        match self {
            Self::Tx(tx) => tx.size_bytes() + ORDER_OVERHEAD_BYTES,
            Self::Bundle(bundle) => bundle.size_bytes() + ORDER_OVERHEAD_BYTES,
        }
    }

    /// Returns the holder against whom the pool counts the order, while the node has not announced
    /// it.
    pub fn holder(&self) -> Holder {
        match self {
            Self::Tx(tx) => tx.holder(),
            Self::Bundle(bundle) => bundle.parts().holder,
        }
    }

    /// Returns the only block that the order may go into; `None` if it may go into any block.
    pub const fn block(&self) -> Option<u64> {
        match self {
            Self::Tx(_) => None,
            Self::Bundle(bundle) => bundle.block(),
        }
    }

    /// Returns the number of its transactions.
    pub(crate) const fn tx_count(&self) -> usize {
        match self {
            Self::Tx(_) => 1,
            Self::Bundle(bundle) => bundle.parts().txs.len(),
        }
    }

    /// Whether the order may go into block `number`.
    pub fn may_go_into(&self, number: u64) -> bool {
        self.block().is_none_or(|block| block == number)
    }

    /// Returns the transaction, if the order is a single one.
    pub const fn as_tx(&self) -> Option<&Transaction> {
        match self {
            Self::Tx(tx) => Some(tx),
            Self::Bundle(_) => None,
        }
    }

    /// Returns the bundle, if the order is one.
    pub const fn as_bundle(&self) -> Option<&Bundle> {
        match self {
            Self::Tx(_) => None,
            Self::Bundle(bundle) => Some(bundle),
        }
    }
}
