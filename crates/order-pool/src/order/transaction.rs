//! A pending transaction: its contents, its origin, and the terms of a private one.

use std::{sync::OnceLock, time::SystemTime};

use alloy_consensus::{EthereumTxEnvelope, InMemorySize, Transaction as _, transaction::Recovered};
use alloy_eips::eip7594::BlobTransactionSidecarVariant;
use alloy_primitives::{Address, B256, U256};
use chain_view::PooledTransaction;

use super::Order;
use crate::holder::Holder;

/// Where an order came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// The public mempool, through the local node.
    Mempool,
    /// A caller of the RPC server.
    Rpc,
    /// A caller of the RPC server that asked to keep it private.
    Private,
}

impl Origin {
    /// Whether the order came from an external caller and not from the local node. Such orders have
    /// separate shares of the pool.
    pub const fn is_external(self) -> bool {
        matches!(self, Self::Rpc | Self::Private)
    }
}

/// The terms of a private transaction, set by the request that sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PrivateTerms {
    /// The signer of the request, who alone may cancel the transaction. If `None`, nobody can.
    pub signer: Option<Address>,
    /// The last block that the transaction is for. After that block it is removed, unless it has
    /// become public.
    pub max_block: u64,
}

/// The cancellation of a private transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PrivateCancellation {
    /// The hash of the transaction.
    pub hash: B256,
    /// The signer of the cancellation. It covers only what the same signer sent.
    pub signer: Address,
    /// When the signer cancelled the transaction, by [`arrival`](crate::arrival()). If the signer
    /// sends it again later, it is valid.
    pub cancelled_at: SystemTime,
    /// The holder against whom the pool counts the cancellation while it is remembered.
    pub holder: Holder,
}

/// The balance and the nonce of a sender, as the node knows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Funds {
    /// The sender's balance.
    pub balance_wei: U256,
    /// The lowest nonce that the sender can still use.
    pub next_nonce: u64,
    /// How many nonces above `next_nonce` are counted. Each takes a look-up.
    pub max_nonces_ahead: u8,
}

/// A pending transaction whose sender is known, with its sidecar if it carries blobs.
///
/// Cloning one copies its blobs: pass an `Arc<Order>` instead.
#[derive(Clone, Debug)]
pub struct Transaction {
    inner: Recovered<PooledTransaction>,
    hash: B256,
    origin: Origin,
    first_seen: SystemTime,
    /// The first origin of the other kind (the node or an external caller), with its time.
    second: OnceLock<(Origin, SystemTime)>,
    is_vouched_for: bool,
    is_listed: bool,
    holder: Holder,
    private: Option<PrivateTerms>,
    size_bytes: usize,
}

impl Transaction {
    /// Wraps a recovered transaction. `first_seen` is when this process first received it; of a
    /// caller's transaction by [`arrival`](crate::arrival()).
    ///
    /// The hash is taken from the envelope, which caches it. For a blob transaction it does not
    /// cover the sidecar.
    pub fn new(tx: Recovered<PooledTransaction>, origin: Origin, first_seen: SystemTime) -> Self {
        let hash = *tx.inner().tx_hash();
        let heap_bytes = tx.inner().size().saturating_sub(size_of::<PooledTransaction>());
        let size_bytes = size_of::<Order>().max(size_of::<Self>()) + heap_bytes;
        Self {
            inner: tx,
            hash,
            origin,
            first_seen,
            second: OnceLock::new(),
            is_vouched_for: false,
            is_listed: false,
            holder: Holder::Host,
            private: None,
            size_bytes,
        }
    }

    /// As [`Self::new`], with [`Origin::Private`]. While the transaction is not public, it is kept
    /// until its last block instead of for
    /// [`PoolConfig::tx_retention`](crate::PoolConfig::tx_retention), and
    /// [`OrderPool::cancel_private`](crate::OrderPool::cancel_private) removes it.
    pub fn private(
        tx: Recovered<PooledTransaction>,
        terms: PrivateTerms,
        first_seen: SystemTime,
    ) -> Self {
        Self { private: Some(terms), ..Self::new(tx, Origin::Private, first_seen) }
    }

    /// Returns its terms, if it was sent as a private transaction. It may have become public since.
    pub const fn private_terms(&self) -> Option<&PrivateTerms> {
        self.private.as_ref()
    }

    /// Marks that the host has verified that the sender can pay, as the node does for announced
    /// transactions. The transaction then counts and ranks in the node's share
    /// ([`PoolConfig::max_txs`](crate::PoolConfig::max_txs)), whatever its origin.
    #[must_use]
    pub const fn vouched_for(mut self) -> Self {
        self.is_vouched_for = true;
        self
    }

    /// Marks that a node whose pool the host compares with this one lists the transaction. It is
    /// then kept until it is mined, stale or evicted, or until the node no longer lists it, which
    /// the host reports with [`OrderPool::on_unlisted`](crate::OrderPool::on_unlisted). Without
    /// this mark it is kept for [`PoolConfig::tx_retention`](crate::PoolConfig::tx_retention) after
    /// it was announced. The mark has no effect on transactions of external callers.
    #[must_use]
    pub const fn listed(mut self) -> Self {
        self.is_listed = true;
        self
    }

    /// Whether a node whose pool the host compares with this one lists the transaction: see
    /// [`Self::listed`].
    pub const fn is_listed(&self) -> bool {
        self.is_listed && !self.origin.is_external()
    }

    /// Sets the holder against whom the pool counts the transaction while it is not in the node's
    /// share.
    #[must_use]
    pub const fn held_by(mut self, holder: Holder) -> Self {
        self.holder = holder;
        self
    }

    /// Returns the holder against whom the pool counts the transaction: [`Holder::Host`] unless
    /// [`Self::held_by`] set another.
    pub const fn holder(&self) -> Holder {
        self.holder
    }

    /// Whether the transaction counts in the node's share.
    pub(crate) fn is_of_node_share(&self) -> bool {
        self.is_vouched_for || self.is_public()
    }

    /// Returns the transaction's hash.
    pub const fn hash(&self) -> &B256 {
        &self.hash
    }

    /// Returns the address that signed the transaction.
    pub const fn sender(&self) -> Address {
        self.inner.signer()
    }

    /// Returns the transaction's nonce.
    pub fn nonce(&self) -> u64 {
        self.inner.inner().nonce()
    }

    /// Returns the tip per gas at this base fee, in wei; `None` if the transaction cannot pay the
    /// base fee.
    pub fn tip(&self, base_fee_wei: u64) -> Option<u128> {
        self.inner.inner().effective_tip_per_gas(base_fee_wei)
    }

    /// Returns the most that it pays per gas, base fee included, in wei.
    pub fn max_fee_wei(&self) -> u128 {
        self.inner.inner().max_fee_per_gas()
    }

    /// Returns the highest tip per gas, in wei; for a legacy transaction its gas price.
    pub fn max_tip_wei(&self) -> u128 {
        self.inner.inner().priority_fee_or_price()
    }

    /// Returns the gas limit.
    pub fn gas_limit(&self) -> u64 {
        self.inner.inner().gas_limit()
    }

    /// Returns the most that the sender pays for it, in wei: its gas limit at its fee cap, its
    /// value, and its blobs at their fee cap.
    pub fn max_cost_wei(&self) -> U256 {
        let tx = self.inner.inner();
        let gas = U256::from(tx.max_fee_per_gas()) * U256::from(tx.gas_limit());
        let blob_fee = U256::from(tx.max_fee_per_blob_gas().unwrap_or(0));
        let blobs = blob_fee * U256::from(tx.blob_gas_used().unwrap_or(0));
        gas.saturating_add(blobs).saturating_add(tx.value())
    }

    /// Returns the number of blobs.
    pub fn blob_count(&self) -> u64 {
        self.inner.inner().blob_count().unwrap_or(0)
    }

    /// Returns the blobs with their commitments and proofs.
    pub fn sidecar(&self) -> Option<&BlobTransactionSidecarVariant> {
        match self.inner.inner() {
            EthereumTxEnvelope::Eip4844(signed) => Some(signed.tx().sidecar()),
            _ => None,
        }
    }

    /// Returns the first origin.
    pub const fn origin(&self) -> Origin {
        self.origin
    }

    /// Returns the second origin and its time: the node, if an external caller sent the transaction
    /// first, or an external caller, if the node announced it first. So a private transaction that
    /// becomes public keeps its first origin.
    pub fn second_origin(&self) -> Option<(Origin, SystemTime)> {
        self.second.get().copied()
    }

    /// Whether the node has announced the transaction.
    pub fn is_public(&self) -> bool {
        let second = self.second_origin().map(|(origin, _)| origin);
        [Some(self.origin), second].contains(&Some(Origin::Mempool))
    }

    /// Records that the transaction was inserted again. Only the first origin of the other kind is
    /// kept. Returns whether the transaction became public.
    pub(crate) fn record_repeat(&self, origin: Origin, received_at: SystemTime) -> bool {
        let was_public = self.is_public();
        if origin.is_external() != self.origin.is_external() {
            self.second.get_or_init(|| (origin, received_at));
        }
        self.is_public() != was_public
    }

    /// Returns the transaction with the envelope that the node has announced, whose sidecar may
    /// have another form.
    pub(crate) fn with_envelope(&self, announced: &Self) -> Self {
        Self { inner: announced.inner.clone(), size_bytes: announced.size_bytes, ..self.clone() }
    }

    /// Whether its sidecar has the EIP-4844 form, and the other's the EIP-7594 form, whose cell
    /// proofs nodes and blocks need since Osaka.
    pub(crate) fn has_older_sidecar_than(&self, other: &Self) -> bool {
        matches!(self.sidecar(), Some(BlobTransactionSidecarVariant::Eip4844(_)))
            && matches!(other.sidecar(), Some(BlobTransactionSidecarVariant::Eip7594(_)))
    }

    /// Returns when this process first received the transaction, by the wall clock.
    pub const fn first_seen(&self) -> SystemTime {
        self.first_seen
    }

    /// Returns the memory of its contents, in bytes, with blobs and without
    /// [`ORDER_OVERHEAD_BYTES`](crate::ORDER_OVERHEAD_BYTES).
    pub const fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// Returns the signed transaction with its sender.
    pub const fn recovered(&self) -> &Recovered<PooledTransaction> {
        &self.inner
    }

    /// Returns the signed transaction.
    pub const fn envelope(&self) -> &PooledTransaction {
        self.inner.inner()
    }
}
