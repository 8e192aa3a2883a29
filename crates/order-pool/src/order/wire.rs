//! The parameters of `eth_sendBundle` and `eth_cancelBundle`, and their conversion to a bundle.

// Bytes from outside are read here: none of them may cause a panic.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::expect_used))]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::string_slice, clippy::unreachable))]

use std::{borrow::Cow, time::SystemTime};

use alloy_consensus::transaction::SignerRecoverable;
use alloy_eips::eip2718::Decodable2718;
use alloy_primitives::{Address, B256, Bytes, U256};
use alloy_serde::quantity;
use chain_view::PooledTransaction;
use serde::{
    Deserialize, Serialize,
    de::{Error as _, IgnoredAny},
};
use uuid::Uuid;

use super::{
    Bundle, BundleParts, DesiredState, MAX_REFUND_PERCENT, Origin, StateTarget, Transaction,
    bundle::check_targets,
};
use crate::{error::BundleError, holder::Holder};

/// The parameters of `eth_sendBundle` as received: the fields that rbuilder (develop of June 2026,
/// `RawBundleMetadata`), Flashbots, BuilderNet and Titan document. An unknown field is an error.
///
/// Not `alloy_rpc_types_mev::EthSendBundle`: it requires the block number, accepts unknown fields
/// silently, and reports a refund percent of 300 as a parser error.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RawBundle {
    /// `v1` or `v2`; absent is `v2`. A v1 bundle has none of the fields that v2 added:
    /// `droppingTxHashes`, `refundPercent`, `refundRecipient`, `refundTxHashes`, `delayedRefund`,
    /// `desiredState`, `targetAddresses`, `targetSlots`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Signed transactions in EIP-2718 form; blob transactions with their sidecar.
    #[serde(default, deserialize_with = "list_or_null")]
    pub txs: Vec<Bytes>,
    /// The block that it is for; absent, null or 0 is the next block.
    #[serde(default, with = "quantity::opt", skip_serializing_if = "Option::is_none")]
    pub block_number: Option<u64>,
    /// The lowest timestamp of the block, in seconds since the Unix epoch; 0 is unset.
    #[serde(default, with = "quantity::opt", skip_serializing_if = "Option::is_none")]
    pub min_timestamp: Option<u64>,
    /// The highest timestamp of the block, in seconds since the Unix epoch; 0 is unset.
    #[serde(default, with = "quantity::opt", skip_serializing_if = "Option::is_none")]
    pub max_timestamp: Option<u64>,
    /// Transactions that may revert.
    #[serde(default, deserialize_with = "list_or_null", skip_serializing_if = "Vec::is_empty")]
    pub reverting_tx_hashes: Vec<B256>,
    /// Transactions that may be omitted.
    #[serde(default, deserialize_with = "list_or_null", skip_serializing_if = "Vec::is_empty")]
    pub dropping_tx_hashes: Vec<B256>,
    /// Makes the bundle replaceable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replacement_uuid: Option<Uuid>,
    /// An alias of `replacementUuid`. If both are present, they must be equal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<Uuid>,
    /// See [`BundleParts::replacement_nonce`].
    #[serde(default, with = "quantity::opt", skip_serializing_if = "Option::is_none")]
    pub replacement_nonce: Option<u64>,
    /// Titan's name for a replacement nonce; 0 is unset. If both are present they must be equal.
    #[serde(default, with = "quantity::opt", skip_serializing_if = "Option::is_none")]
    pub replacement_seq_number: Option<u64>,
    /// The percentage of the payment that is refunded, below 100; 0 is unset.
    #[serde(default, with = "quantity::opt", skip_serializing_if = "Option::is_none")]
    pub refund_percent: Option<u64>,
    /// The recipient of the refund.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refund_recipient: Option<Address>,
    /// The transaction whose payment is refunded; at most one.
    #[serde(default, deserialize_with = "list_or_null", skip_serializing_if = "Vec::is_empty")]
    pub refund_tx_hashes: Vec<B256>,
    /// Titan's way to name the transaction whose payment is refunded: its index in [`Self::txs`].
    /// With [`Self::refund_tx_hashes`] it must name the same transaction.
    #[serde(default, with = "quantity::opt", skip_serializing_if = "Option::is_none")]
    pub refund_index: Option<u64>,
    /// See [`BundleParts::delayed_refund`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delayed_refund: Option<bool>,
    /// See [`BundleParts::refund_identity`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refund_identity: Option<Address>,
    /// Where in the block the searcher wants the bundle: `BottomOfBlock`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_state: Option<DesiredState>,
    /// The contracts whose state the bundle targets; at most
    /// [`MAX_TARGET_ADDRESSES`](super::MAX_TARGET_ADDRESSES).
    #[serde(default, deserialize_with = "list_or_null", skip_serializing_if = "Vec::is_empty")]
    pub target_addresses: Vec<Address>,
    /// For each of [`Self::target_addresses`], in their order, the storage slots that the bundle
    /// targets; none stands for all. At most [`MAX_TARGET_SLOTS`](super::MAX_TARGET_SLOTS) in all.
    #[serde(default, deserialize_with = "list_or_null", skip_serializing_if = "Vec::is_empty")]
    pub target_slots: Vec<Vec<StorageSlot>>,
    /// The signer of a request that a proxy forwards. It proves nothing: the caller of
    /// [`Self::resolve`] decides who the signer is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signing_address: Option<Address>,
    /// The bundle hash that a proxy computed. It is ignored and computed again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bundle_hash: Option<B256>,
    /// The builders to which a relay should forward the bundle. This is one of them, so the list is
    /// not kept, however long it is.
    #[serde(default, skip_serializing)]
    pub builders: Ignored,
}

/// A storage slot. It is read from 1 to 64 hex digits after `0x`, and written with all 64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct StorageSlot(pub B256);

impl<'de> Deserialize<'de> for StorageSlot {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        // The length comes first, because the parser accepts leading zeros without a limit.
        let digits = text.strip_prefix("0x").filter(|digits| (1..=64).contains(&digits.len()));
        let number = digits.and_then(|digits| U256::from_str_radix(digits, 16).ok());
        let slot = number.map(|number| Self(number.into()));
        slot.ok_or_else(|| D::Error::custom("a storage slot must be 0x and 1 to 64 hex digits"))
    }
}

/// A field that is accepted with any value, and not kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ignored;

impl<'de> Deserialize<'de> for Ignored {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| Self)
    }
}

/// The parameters of `eth_cancelBundle`. Without a nonce the cancellation is permanent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RawCancelBundle {
    /// Also accepted as `uuid`.
    #[serde(alias = "uuid")]
    pub replacement_uuid: Uuid,
    /// The highest nonce that is cancelled. A bundle that was sent without a nonce has the
    /// microsecond of its arrival as its nonce, which is above every small number.
    #[serde(default, with = "quantity::opt", skip_serializing_if = "Option::is_none")]
    pub replacement_nonce: Option<u64>,
    /// See [`RawBundle::signing_address`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signing_address: Option<Address>,
}

/// Reads null as an empty list, because some searchers' libraries send it for an absent list.
fn list_or_null<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// The number of characters of an unknown version that the error repeats.
const MAX_VERSION_CHARS: usize = 32;

impl RawBundle {
    /// Decodes the transactions, recovers their senders, and checks the sidecars (by
    /// [`Transaction::check_sidecar`]) and the fields. Takes about 50 us per transaction and 10 to
    /// 30 ms per blob: run it on a thread that may block.
    ///
    /// `max_txs` is checked before anything is decoded; pass
    /// [`MAX_TXS_PER_BUNDLE`](crate::MAX_TXS_PER_BUNDLE).
    ///
    /// # Errors
    /// Names the field as it is on the wire, its value and the limit.
    pub fn resolve(
        self,
        signer: Option<Address>,
        max_txs: usize,
        first_seen: SystemTime,
    ) -> Result<Bundle, BundleError> {
        self.check(max_txs)?;
        let raw = self.txs.iter().enumerate();
        let txs =
            raw.map(|(index, raw)| decode(index, raw, first_seen)).collect::<Result<_, _>>()?;
        self.with_transactions(txs, signer, Holder::Host, first_seen)
    }

    /// Makes the checks of [`Self::resolve`] that need no decoded transaction: the version, the
    /// lengths of the lists, the uuids, and the refund.
    ///
    /// # Errors
    /// Names the field as it is on the wire, its value and the limit.
    pub fn check(&self, max_txs: usize) -> Result<(), BundleError> {
        let lists = [
            ("txs", self.txs.len()),
            ("revertingTxHashes", self.reverting_tx_hashes.len()),
            ("droppingTxHashes", self.dropping_tx_hashes.len()),
        ];
        for (field, value) in lists {
            if value > max_txs {
                return Err(BundleError::TooMany { field, value, limit: max_txs });
            }
        }
        if let (Some(uuid), Some(replacement_uuid)) = (self.uuid, self.replacement_uuid)
            && uuid != replacement_uuid
        {
            return Err(BundleError::TwoUuids { uuid, replacement_uuid });
        }
        if let Some(value) = self.refund_percent.filter(|value| *value > MAX_REFUND_PERCENT) {
            return Err(BundleError::RefundPercent { value, limit: MAX_REFUND_PERCENT });
        }
        if let (Some(replacement_nonce), Some(replacement_seq_number)) =
            (self.replacement_nonce, self.seq_number())
            && replacement_nonce != replacement_seq_number
        {
            return Err(BundleError::TwoNonces { replacement_nonce, replacement_seq_number });
        }
        let (index, txs) = (self.refund_index, self.txs.len());
        if let Some(value) = index.filter(|index| *index >= txs as u64 && txs > 0) {
            return Err(BundleError::RefundIndex { value, txs });
        }
        let addresses = self.target_addresses.len();
        check_targets(addresses, self.target_slots.iter().map(Vec::len).sum())?;
        let lists = self.target_slots.len();
        if lists != 0 && lists != addresses {
            return Err(BundleError::TargetSlots { lists, addresses });
        }
        // A bundle without transactions is a cancellation, whatever its version.
        if self.txs.is_empty() { Ok(()) } else { self.check_version() }
    }

    fn seq_number(&self) -> Option<u64> {
        self.replacement_seq_number.filter(|number| *number != 0)
    }

    fn check_version(&self) -> Result<(), BundleError> {
        match self.version.as_deref() {
            None | Some("v2") => return Ok(()),
            Some("v1") => {}
            Some(other) => {
                let value = other.chars().take(MAX_VERSION_CHARS).collect();
                return Err(BundleError::UnknownVersion { value });
            }
        }
        let v2_fields = [
            ("droppingTxHashes", !self.dropping_tx_hashes.is_empty()),
            ("refundPercent", self.refund_percent.is_some()),
            ("refundRecipient", self.refund_recipient.is_some()),
            ("refundTxHashes", !self.refund_tx_hashes.is_empty()),
            ("refundIndex", self.refund_index.is_some()),
            ("delayedRefund", self.delayed_refund.is_some()),
            ("desiredState", self.desired_state.is_some()),
            ("targetAddresses", !self.target_addresses.is_empty()),
        ];
        match v2_fields.into_iter().find(|(_, is_present)| *is_present) {
            Some((field, _)) => Err(BundleError::NotInVersion { field }),
            None => Ok(()),
        }
    }

    /// Converts the fields to a bundle, after [`Self::check`]. The caller has decoded and verified
    /// the transactions of [`Self::txs`].
    ///
    /// # Errors
    /// Names the field as it is on the wire, its value and the limit.
    pub fn with_transactions(
        self,
        txs: Vec<Transaction>,
        signer: Option<Address>,
        holder: Holder,
        first_seen: SystemTime,
    ) -> Result<Bundle, BundleError> {
        let percent = |value| {
            let limit = MAX_REFUND_PERCENT;
            u8::try_from(value).map_err(|_| BundleError::RefundPercent { value, limit })
        };
        let refund_percent = self.refund_percent.map(percent).transpose()?;
        let replacement_nonce = self.replacement_nonce.or(self.seq_number());
        let mut refund_tx_hashes = self.refund_tx_hashes;
        if let Some(index) = self.refund_index
            && let Some(tx) = usize::try_from(index).ok().and_then(|index| txs.get(index))
        {
            match refund_tx_hashes.first() {
                None => refund_tx_hashes.push(*tx.hash()),
                Some(hash) if hash == tx.hash() => {}
                Some(hash) => {
                    let (hash, index_hash) = (*hash, *tx.hash());
                    return Err(BundleError::TwoRefunds { index, index_hash, hash });
                }
            }
        }
        let mut slots = self.target_slots.into_iter();
        let targets = self.target_addresses.into_iter().map(|address| {
            let slots = slots.next().unwrap_or_default().into_iter().map(|slot| slot.0).collect();
            StateTarget { address, slots }
        });
        let targets = targets.collect();
        let unless_zero = |number: Option<u64>| number.filter(|number| *number != 0);
        Bundle::new(BundleParts {
            txs,
            block: unless_zero(self.block_number),
            min_timestamp: unless_zero(self.min_timestamp),
            max_timestamp: unless_zero(self.max_timestamp),
            reverting_tx_hashes: self.reverting_tx_hashes,
            dropping_tx_hashes: self.dropping_tx_hashes,
            uuid: self.uuid.or(self.replacement_uuid),
            replacement_nonce,
            refund_percent: refund_percent.filter(|percent| *percent != 0),
            refund_recipient: self.refund_recipient,
            refund_tx_hashes,
            delayed_refund: self.delayed_refund.unwrap_or(false),
            refund_identity: self.refund_identity,
            desired_state: self.desired_state,
            targets,
            signer,
            holder,
            first_seen: Some(first_seen),
        })
    }
}

fn decode(index: usize, raw: &Bytes, first_seen: SystemTime) -> Result<Transaction, BundleError> {
    let tx = PooledTransaction::decode_2718_exact(raw)
        .map_err(|source| BundleError::Undecodable { index, source })?;
    let hash = *tx.tx_hash();
    let tx = tx.try_into_recovered().map_err(|_| BundleError::Signature { index, hash })?;
    let tx = Transaction::new(tx, Origin::Rpc, first_seen);
    match tx.check_sidecar() {
        Ok(()) => Ok(tx),
        Err(source) => Err(BundleError::Sidecar { index, hash, source }),
    }
}
