//! A bundle: transactions that a searcher wants in one block, in this order, or not at all.

use std::time::SystemTime;

use alloy_primitives::{Address, B256, Keccak256};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Order, Transaction};
use crate::{arrival::arrival, error::BundleError, holder::Holder};

/// Identifies replaceable bundles: the searcher's uuid *and* the searcher, so that no one can
/// replace or cancel another signer's bundles. A bundle replaces the one with its key for the same
/// block. A cancellation covers the key's bundles for all blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReplacementKey {
    /// Chosen by the searcher.
    pub uuid: Uuid,
    /// The signer of the request.
    pub signer: Address,
}

/// The cancellation of a key's bundles: none with this nonce or a lower one is valid any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cancellation {
    /// The key of the cancelled bundles.
    pub key: ReplacementKey,
    /// The highest cancelled nonce. `None` is permanent: no later bundle of the key is valid.
    pub nonce: Option<u64>,
    /// The holder against whom the pool counts the remembered key.
    pub holder: Holder,
    /// When the cancellation was sent, if it was an empty bundle without a nonce. Then the pool has
    /// assigned `nonce`, and bundles without a nonce that were sent later stay valid. `None` if the
    /// searcher chose `nonce`, or if it is permanent.
    pub sent_at: Option<SystemTime>,
}

/// Where in the block a searcher wants a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum DesiredState {
    /// After all other transactions.
    BottomOfBlock,
}

impl DesiredState {
    /// Returns the byte that stands for it in hashes and messages; never 0.
    pub const fn to_byte(self) -> u8 {
        match self {
            Self::BottomOfBlock => 1,
        }
    }

    /// Returns what [`Self::to_byte`] made a byte of, and `None` for every other byte.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::BottomOfBlock),
            _ => None,
        }
    }
}

/// Contract state that a bundle targets, for example a pool of an exchange.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StateTarget {
    /// The contract.
    pub address: Address,
    /// The storage slots; none stands for all slots of the contract.
    pub slots: Vec<B256>,
}

/// Most entries of [`BundleParts::targets`]. BuilderNet documents no limit; bundles have at most as
/// many transactions.
pub const MAX_TARGET_ADDRESSES: usize = 100;

/// Most storage slots of all [`BundleParts::targets`] of a bundle together: 32 kB.
pub const MAX_TARGET_SLOTS: usize = 1_000;

/// The fields of a bundle, before they are checked. `Default` is an empty bundle.
#[derive(Clone, Debug, Default)]
pub struct BundleParts {
    /// The transactions, in the order that they must have in the block.
    pub txs: Vec<Transaction>,
    /// The only block that it may go into. `None` is the block after the head at the time when the
    /// pool accepts it.
    pub block: Option<u64>,
    /// The lowest allowed timestamp of the block, in seconds since the Unix epoch.
    pub min_timestamp: Option<u64>,
    /// The highest allowed timestamp of the block, in seconds since the Unix epoch.
    pub max_timestamp: Option<u64>,
    /// Transactions that may revert.
    pub reverting_tx_hashes: Vec<B256>,
    /// Transactions that may be omitted.
    pub dropping_tx_hashes: Vec<B256>,
    /// Makes the bundle replaceable by another one for the same block. Needs [`Self::signer`].
    pub uuid: Option<Uuid>,
    /// Its position among the messages of its key for its block.
    ///
    /// `None` is the time of its arrival ([`Self::first_seen`], in microseconds since the Unix
    /// epoch), or one above the highest nonce that the pool knows if that is higher. So a small
    /// nonce has no effect after a message without one. If the highest nonce is the time of a
    /// message without a nonce that arrived later and was inserted earlier, this bundle is
    /// superseded.
    pub replacement_nonce: Option<u64>,
    /// Percent of the bundle's payment that is refunded, below 100.
    pub refund_percent: Option<u8>,
    /// The recipient of the refund; `None` is the sender of the first transaction.
    pub refund_recipient: Option<Address>,
    /// The transaction whose payment is refunded. At most one; if there is none, the last.
    pub refund_tx_hashes: Vec<B256>,
    /// Whether the refund may be paid later than in the bundle's block.
    pub delayed_refund: bool,
    /// The recipient of BuilderNet's refunds; `None` is the signer.
    pub refund_identity: Option<Address>,
    /// Where in the block the searcher wants it. The pool only carries it, for the host.
    pub desired_state: Option<DesiredState>,
    /// The state that it targets: at most [`MAX_TARGET_ADDRESSES`] contracts and
    /// [`MAX_TARGET_SLOTS`] slots. The pool only carries it, for the host.
    pub targets: Vec<StateTarget>,
    /// The signer of the request, if it is signed.
    pub signer: Option<Address>,
    /// The holder against whom the pool counts it. Not part of its identity. Default
    /// [`Holder::Host`].
    pub holder: Holder,
    /// When this process first received it, by [`arrival`](crate::arrival()); `None` is now.
    pub first_seen: Option<SystemTime>,
}

/// The highest [`BundleParts::refund_percent`]: rbuilder accepts no bundle that pays nothing.
pub const MAX_REFUND_PERCENT: u64 = 99;

/// The refund of a bundle, with rbuilder's defaults for omitted fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refund {
    /// Percent of the transaction's payment, 1 to 99.
    pub percent: u8,
    /// The recipient.
    pub recipient: Address,
    /// The transaction whose payment is refunded.
    pub tx_hash: B256,
    /// Whether the refund may be paid later than in the bundle's block.
    pub is_delayed: bool,
}

/// Most entries of [`BundleParts::refund_tx_hashes`].
pub const MAX_REFUND_TX_HASHES: usize = 1;

/// A bundle whose fields are consistent.
#[derive(Clone, Debug)]
pub struct Bundle {
    parts: BundleParts,
    /// keccak256 of the concatenated transaction hashes.
    hash: B256,
    /// A hash of all fields as they were sent.
    content: B256,
    /// A hash of all fields as the pool accepted them, with the block and the nonce that it
    /// assigned.
    id: B256,
    has_assigned_nonce: bool,
    first_seen: SystemTime,
    size_bytes: usize,
    /// For each transaction, [`Self::is_optional`]: the pool asks it under its lock, and the lists
    /// may have 200 hashes.
    optional: Box<[bool]>,
}

impl Bundle {
    /// Makes a bundle, after all checks that need no pool.
    /// [`OrderPool::insert_bundle`](crate::OrderPool::insert_bundle) makes those that depend on the
    /// head or on a pool's limits.
    ///
    /// # Errors
    /// Names the field, its value and the limit.
    pub fn new(parts: BundleParts) -> Result<Self, BundleError> {
        check(&parts)?;
        let mut hasher = Keccak256::new();
        for tx in &parts.txs {
            hasher.update(tx.hash());
        }
        let hash = hasher.finalize();
        let content = content_hash(&parts, &hash);
        let lists =
            [&parts.reverting_tx_hashes, &parts.dropping_tx_hashes, &parts.refund_tx_hashes];
        let hashes: usize = lists.iter().map(|list| list.capacity()).sum();
        let txs: usize = parts.txs.iter().map(Transaction::size_bytes).sum();
        let spare = (parts.txs.capacity() - parts.txs.len()) * size_of::<Transaction>();
        let slots: usize = parts.targets.iter().map(|target| target.slots.capacity()).sum();
        let targets = parts.targets.capacity() * size_of::<StateTarget>();
        let may_be_left_out = |tx: &Transaction| is_optional(&parts, tx.hash());
        let optional: Box<[bool]> = parts.txs.iter().map(may_be_left_out).collect();
        let size_bytes = size_of::<Order>()
            + txs
            + spare
            + targets
            + (hashes + slots) * size_of::<B256>()
            + optional.len();
        let first_seen = parts.first_seen.unwrap_or_else(arrival);
        let (id, has_assigned_nonce) = (content, false);
        Ok(Self { parts, hash, content, id, has_assigned_nonce, first_seen, size_bytes, optional })
    }

    /// Returns the keccak256 hash of the concatenated transaction hashes, the result of
    /// `eth_sendBundle`. It is not unique: see [`Self::id`].
    pub const fn hash(&self) -> &B256 {
        &self.hash
    }

    /// Returns the bundle's identity: a hash of all fields, with the block and the nonce that the
    /// pool assigned.
    pub const fn id(&self) -> &B256 {
        &self.id
    }

    /// Returns a hash of all fields as they were sent, without the block and the nonce that a pool
    /// assigns. Two bundles with the same content differ at most in their holder, in when they were
    /// received, and in the form of their sidecars.
    pub const fn content(&self) -> &B256 {
        &self.content
    }

    /// Returns all fields.
    pub const fn parts(&self) -> &BundleParts {
        &self.parts
    }

    /// Returns the transactions, in order. A bundle without any is a cancellation.
    pub fn txs(&self) -> &[Transaction] {
        &self.parts.txs
    }

    /// Returns the only block that it may go into. Of a pooled bundle it is `None` only if the pool
    /// knew no head.
    pub const fn block(&self) -> Option<u64> {
        self.parts.block
    }

    /// Whether the bundle is valid without this transaction, because it may revert or be omitted.
    pub fn is_optional(&self, tx: &B256) -> bool {
        is_optional(&self.parts, tx)
    }

    /// Returns [`Self::is_optional`] of the transaction at this index.
    pub(crate) fn is_optional_at(&self, index: usize) -> bool {
        self.optional.get(index).is_some_and(|is_optional| *is_optional)
    }

    /// Returns the refund, with rbuilder's defaults: of the last transaction's payment, to the
    /// sender of the first transaction.
    pub fn refund(&self) -> Option<Refund> {
        let parts = &self.parts;
        let (first, last) = (parts.txs.first()?, parts.txs.last()?);
        let percent = parts.refund_percent.filter(|percent| *percent != 0)?;
        Some(Refund {
            percent,
            recipient: parts.refund_recipient.unwrap_or_else(|| first.sender()),
            tx_hash: *parts.refund_tx_hashes.first().unwrap_or(last.hash()),
            is_delayed: parts.delayed_refund,
        })
    }

    /// Returns the key by which it can be replaced, if it has one.
    pub fn key(&self) -> Option<ReplacementKey> {
        Some(ReplacementKey { uuid: self.parts.uuid?, signer: self.parts.signer? })
    }

    /// Returns its position among the messages of its key. Every pooled bundle with a key has one.
    pub const fn nonce(&self) -> Option<u64> {
        self.parts.replacement_nonce
    }

    /// Whether the pool has assigned [`Self::nonce`], because its searcher sent it without one.
    pub const fn has_assigned_nonce(&self) -> bool {
        self.has_assigned_nonce
    }

    /// Returns when this process first received it.
    pub const fn first_seen(&self) -> SystemTime {
        self.first_seen
    }

    /// Returns the memory of its contents, in bytes, with blobs.
    pub const fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// Assigns the block and the nonce, which the searcher may have left open.
    pub(crate) fn settle(&mut self, block: Option<u64>, nonce: Option<u64>) {
        self.has_assigned_nonce |= self.parts.replacement_nonce.is_none() && nonce.is_some();
        self.parts.block = block;
        self.parts.replacement_nonce = nonce;
        let mut hasher = Keccak256::new();
        hasher.update(self.content);
        for number in [block, nonce] {
            hasher.update([u8::from(number.is_some())]);
            hasher.update(number.unwrap_or(0).to_be_bytes());
        }
        self.id = hasher.finalize();
    }
}

fn is_optional(parts: &BundleParts, tx: &B256) -> bool {
    parts.reverting_tx_hashes.contains(tx) || parts.dropping_tx_hashes.contains(tx)
}

fn check(parts: &BundleParts) -> Result<(), BundleError> {
    let BundleParts { uuid, signer, replacement_nonce, .. } = parts;
    if parts.txs.is_empty() && uuid.is_none() {
        return Err(BundleError::Empty);
    }
    if uuid.is_none()
        && let Some(nonce) = *replacement_nonce
    {
        return Err(BundleError::NonceWithoutUuid { nonce });
    }
    if let Some(uuid) = *uuid
        && signer.is_none()
    {
        return Err(BundleError::UuidWithoutSigner { uuid });
    }
    if let (Some(min), Some(max)) = (parts.min_timestamp, parts.max_timestamp)
        && min > max
    {
        return Err(BundleError::TimestampsReversed { min_timestamp: min, max_timestamp: max });
    }
    if let Some(percent) = parts.refund_percent.map(u64::from)
        && percent > MAX_REFUND_PERCENT
    {
        return Err(BundleError::RefundPercent { value: percent, limit: MAX_REFUND_PERCENT });
    }
    if parts.refund_tx_hashes.len() > MAX_REFUND_TX_HASHES {
        return Err(BundleError::TooMany {
            field: "refundTxHashes",
            value: parts.refund_tx_hashes.len(),
            limit: MAX_REFUND_TX_HASHES,
        });
    }
    check_targets(parts.targets.len(), parts.targets.iter().map(|target| target.slots.len()).sum())
}

/// Checks the number of targeted contracts, and the total number of their storage slots.
pub(super) fn check_targets(addresses: usize, slots: usize) -> Result<(), BundleError> {
    for (field, value, limit) in [
        ("targetAddresses", addresses, MAX_TARGET_ADDRESSES),
        ("targetSlots", slots, MAX_TARGET_SLOTS),
    ] {
        if value > limit {
            return Err(BundleError::TooMany { field, value, limit });
        }
    }
    Ok(())
}

/// Hashes every field with its presence and its length, so that different bundles never hash the
/// same input.
fn content_hash(parts: &BundleParts, bundle_hash: &B256) -> B256 {
    let mut hasher = Keccak256::new();
    hasher.update(bundle_hash);
    hasher.update((parts.txs.len() as u64).to_be_bytes());
    let numbers = [
        parts.block,
        parts.min_timestamp,
        parts.max_timestamp,
        parts.replacement_nonce,
        parts.refund_percent.map(u64::from),
    ];
    for number in numbers {
        hasher.update([u8::from(number.is_some())]);
        hasher.update(number.unwrap_or(0).to_be_bytes());
    }
    for list in [&parts.reverting_tx_hashes, &parts.dropping_tx_hashes, &parts.refund_tx_hashes] {
        hasher.update((list.len() as u64).to_be_bytes());
        list.iter().for_each(|hash| hasher.update(hash));
    }
    hasher.update([u8::from(parts.delayed_refund)]);
    for address in [parts.refund_recipient, parts.refund_identity, parts.signer] {
        hasher.update([u8::from(address.is_some())]);
        hasher.update(address.unwrap_or_default());
    }
    hasher.update([u8::from(parts.uuid.is_some())]);
    hasher.update(parts.uuid.unwrap_or_default().as_bytes());
    hasher.update([parts.desired_state.map_or(0, DesiredState::to_byte)]);
    hasher.update((parts.targets.len() as u64).to_be_bytes());
    for target in &parts.targets {
        hasher.update(target.address);
        hasher.update((target.slots.len() as u64).to_be_bytes());
        target.slots.iter().for_each(|slot| hasher.update(slot));
    }
    hasher.finalize()
}
