//! What each record consists of. Bundles and cancellations are of the private stream alone.

use std::time::SystemTime;

use alloy_consensus::transaction::Recovered;
use alloy_eips::eip2718::{Decodable2718 as _, Encodable2718 as _};
use alloy_primitives::B256;
use chain_view::{Head, PooledTransaction};
use order_pool::{
    Bundle, BundleParts, Cancellation, Holder, Origin, PrivateCancellation, PrivateTerms,
    ReplacementKey, Transaction,
};
use uuid::Uuid;

use super::{
    Encoded, KIND_BUNDLE, KIND_CANCEL_PRIVATE, KIND_CANCELLATION, KIND_HEAD, KIND_TX, WireError,
    bytes::{Reader, Writer},
};

const ORIGIN_MEMPOOL: u8 = 0;
const ORIGIN_RPC: u8 = 1;
const ORIGIN_PRIVATE: u8 = 2;

/// Encodes what is published of a pooled transaction: origin, first-seen time, sender and holder,
/// 30 to 50 bytes; of a private one its terms; then the transaction in EIP-2718 form, with its
/// sidecar if it has blobs. One that a node has announced counts as announced, whoever sent it
/// first, and its terms are void. The message id is its hash.
#[must_use]
pub fn encode_transaction(tx: &Transaction) -> Encoded {
    encode_tx(tx, tx.holder(), tx.private_terms())
}

/// The same, as another holder has sent it.
pub(super) fn encode_tx(tx: &Transaction, holder: Holder, terms: Option<&PrivateTerms>) -> Encoded {
    let mut writer = Writer::new(KIND_TX, tx.envelope().encode_2718_len().saturating_add(64));
    let terms = terms.filter(|_| !tx.is_public());
    writer.put([match terms {
        Some(_) => ORIGIN_PRIVATE,
        None if tx.is_public() => ORIGIN_MEMPOOL,
        None => ORIGIN_RPC,
    }]);
    writer.time(tx.first_seen());
    writer.put(tx.sender());
    writer.holder(holder);
    if let Some(PrivateTerms { signer, max_block }) = terms {
        writer.option(*signer);
        writer.put(max_block.to_be_bytes());
    }
    tx.envelope().encode_2718(&mut writer.bytes);
    Encoded { id: *tx.hash(), payload: writer.bytes.freeze() }
}

pub(super) fn read_tx(reader: &mut Reader<'_>, now: SystemTime) -> Result<Transaction, WireError> {
    let [origin] = reader.array()?;
    let first_seen = reader.time()?.min(now);
    let sender = reader.address()?;
    let holder = reader.holder()?;
    let terms = match origin {
        ORIGIN_PRIVATE => {
            let (signer, max_block) = (reader.option(Reader::address)?, reader.u64()?);
            Some(PrivateTerms { signer, max_block })
        }
        _ => None,
    };
    let raw = reader.take(reader.rest.len())?;
    let tx = Recovered::new_unchecked(decode(0, raw)?, sender);
    let tx = match (terms, origin) {
        (Some(terms), _) => Transaction::private(tx, terms, first_seen),
        (None, ORIGIN_MEMPOOL) => Transaction::new(tx, Origin::Mempool, first_seen),
        (None, ORIGIN_RPC) => Transaction::new(tx, Origin::Rpc, first_seen),
        _ => return Err(WireError::Value { field: "origin", value: origin.into() }),
    };
    Ok(tx.held_by(holder))
}

fn decode(index: usize, raw: &[u8]) -> Result<PooledTransaction, WireError> {
    PooledTransaction::decode_2718_exact(raw)
        .map_err(|source| WireError::Undecodable { index, source })
}

/// The message id covers all fields but the first-seen time and the holder.
pub(super) fn encode_bundle(bundle: &Bundle, holder: Holder) -> Encoded {
    let parts = bundle.parts();
    let numbers = [parts.block, parts.min_timestamp, parts.max_timestamp, parts.replacement_nonce];
    let lists = [&parts.reverting_tx_hashes, &parts.dropping_tx_hashes, &parts.refund_tx_hashes];
    // Its memory is a little more than its bytes.
    let mut writer = Writer::new(KIND_BUNDLE, bundle.size_bytes());
    writer.time(bundle.first_seen());
    writer.holder(holder);
    writer.begin_content();
    numbers.iter().for_each(|number| writer.number(*number));
    writer.option(parts.refund_percent.map(|percent| [percent]));
    writer.option(parts.refund_recipient);
    writer.option(parts.refund_identity);
    writer.option(parts.signer);
    writer.option(parts.uuid);
    writer.put([u8::from(parts.delayed_refund)]);
    lists.iter().for_each(|list| writer.hashes(list));
    writer.length(parts.txs.len());
    for tx in &parts.txs {
        writer.put(tx.sender());
        writer.length(tx.envelope().encode_2718_len());
        tx.envelope().encode_2718(&mut writer.bytes);
    }
    writer.finish()
}

pub(super) fn read_bundle(reader: &mut Reader<'_>, now: SystemTime) -> Result<Bundle, WireError> {
    let (first_seen, holder) = (reader.time()?.min(now), reader.holder()?);
    reader.begin_content();
    let mut parts = BundleParts {
        block: reader.option(Reader::u64)?,
        min_timestamp: reader.option(Reader::u64)?,
        max_timestamp: reader.option(Reader::u64)?,
        replacement_nonce: reader.option(Reader::u64)?,
        refund_percent: reader.option(Reader::array)?.map(|[percent]| percent),
        refund_recipient: reader.option(Reader::address)?,
        refund_identity: reader.option(Reader::address)?,
        signer: reader.option(Reader::address)?,
        uuid: reader.option(Reader::array)?.map(Uuid::from_bytes),
        delayed_refund: reader.flag()?,
        reverting_tx_hashes: reader.hashes()?,
        dropping_tx_hashes: reader.hashes()?,
        refund_tx_hashes: reader.hashes()?,
        holder,
        first_seen: Some(first_seen),
        txs: Vec::new(),
    };
    // Not with the capacity that the message claims.
    for index in 0..reader.length()? {
        let sender = reader.address()?;
        let length = reader.length()?;
        let tx = Recovered::new_unchecked(decode(index, reader.take(length)?)?, sender);
        parts.txs.push(Transaction::new(tx, Origin::Rpc, first_seen));
    }
    parts.txs.shrink_to_fit();
    Ok(Bundle::new(parts)?)
}

/// The message id covers key and nonce.
pub(super) fn encode_cancellation(cancellation: &Cancellation) -> Encoded {
    let Cancellation { key, nonce, holder } = cancellation;
    let mut writer = Writer::new(KIND_CANCELLATION, 64);
    writer.holder(*holder);
    writer.begin_content();
    writer.put(key.uuid);
    writer.put(key.signer);
    writer.number(*nonce);
    writer.finish()
}

pub(super) fn read_cancellation(reader: &mut Reader<'_>) -> Result<Cancellation, WireError> {
    let holder = reader.holder()?;
    reader.begin_content();
    let uuid = reader.array().map(Uuid::from_bytes)?;
    let key = ReplacementKey { uuid, signer: reader.address()? };
    Ok(Cancellation { key, nonce: reader.option(Reader::u64)?, holder })
}

/// The message id covers transaction and signer.
pub(super) fn encode_cancel_private(cancellation: &PrivateCancellation) -> Encoded {
    let mut writer = Writer::new(KIND_CANCEL_PRIVATE, 64);
    writer.time(cancellation.at);
    writer.holder(cancellation.holder);
    writer.begin_content();
    writer.put(cancellation.hash);
    writer.put(cancellation.signer);
    writer.finish()
}

pub(super) fn read_cancel_private(
    reader: &mut Reader<'_>,
    now: SystemTime,
) -> Result<PrivateCancellation, WireError> {
    let (at, holder) = (reader.time()?.min(now), reader.holder()?);
    reader.begin_content();
    let (hash, signer) = (reader.hash()?, reader.address()?);
    Ok(PrivateCancellation { hash, signer, at, holder })
}

/// A head as it was published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadRecord {
    /// The head.
    pub head: Head,
    /// The head that the publisher had before, zero if it had none, the head itself if it is told
    /// once more: the same block is another message after another one. The blocks above it that
    /// come back with it have a number of their own behind the message id.
    pub previous: B256,
    /// The transactions of its block, as far as the publisher knows them. The message id does not cover them, since a
    /// machine may not have read the block.
    pub mined: Vec<B256>,
}

/// The message id covers the head and the previous one.
pub(super) fn encode_head(HeadRecord { head, previous, mined }: &HeadRecord) -> Encoded {
    let capacity = mined.len().saturating_mul(32).saturating_add(256);
    let mut writer = Writer::new(KIND_HEAD, capacity);
    writer.hashes(mined);
    writer.begin_content();
    let numbers = [head.number, head.timestamp, head.gas_limit];
    numbers.iter().for_each(|number| writer.put(number.to_be_bytes()));
    [head.hash, head.parent_hash, *previous].iter().for_each(|hash| writer.put(hash));
    writer.put(head.fee_recipient);
    writer.number(head.next_base_fee_wei);
    writer.number(head.base_fee_wei);
    writer.number(head.blob_gas_used);
    writer.number(head.excess_blob_gas);
    writer.finish()
}

pub(super) fn read_head(reader: &mut Reader<'_>) -> Result<HeadRecord, WireError> {
    let mined = reader.hashes()?;
    reader.begin_content();
    let number = reader.u64()?;
    let (timestamp, gas_limit) = (reader.u64()?, reader.u64()?);
    let mut head = Head::new(number, reader.hash()?, reader.hash()?);
    (head.timestamp, head.gas_limit) = (timestamp, gas_limit);
    let previous = reader.hash()?;
    head.fee_recipient = reader.address()?;
    head.next_base_fee_wei = reader.option(Reader::u64)?;
    head.base_fee_wei = reader.option(Reader::u64)?;
    head.blob_gas_used = reader.option(Reader::u64)?;
    head.excess_blob_gas = reader.option(Reader::u64)?;
    Ok(HeadRecord { head, previous, mined })
}
