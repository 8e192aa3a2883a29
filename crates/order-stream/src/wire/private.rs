//! Bundles and cancellations, which only the private stream carries.

use std::time::SystemTime;

use alloy_consensus::transaction::Recovered;
use alloy_eips::eip2718::Encodable2718 as _;
use order_pool::{
    Bundle, BundleParts, Cancellation, Holder, Origin, PrivateCancellation, ReplacementKey,
    Transaction,
};
use uuid::Uuid;

use super::{
    Encoded, KIND_BUNDLE, KIND_CANCEL_PRIVATE, KIND_CANCELLATION,
    bytes::{Reader, Writer},
    error::WireError,
    tx,
};

/// What is published of a bundle that this holder has sent. The message id is a hash of all of its fields but the first-seen time and the
/// holder.
pub(super) fn encode_bundle(bundle: &Bundle, holder: Holder) -> Encoded {
    let parts = bundle.parts();
    let lists = [&parts.reverting_tx_hashes, &parts.dropping_tx_hashes, &parts.refund_tx_hashes];
    // Its memory is a little more than its bytes.
    let mut writer = Writer::new(KIND_BUNDLE, bundle.size_bytes());
    writer.time(bundle.first_seen());
    writer.holder(holder);
    let content = writer.bytes.len();
    writer.number(parts.block);
    writer.number(parts.min_timestamp);
    writer.number(parts.max_timestamp);
    writer.number(parts.replacement_nonce);
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
    writer.finish(content)
}

/// Reads what stands behind the first-seen time and the holder.
pub(super) fn read_bundle(
    reader: &mut Reader<'_>,
    first_seen: SystemTime,
    holder: Holder,
) -> Result<Bundle, WireError> {
    let mut parts = BundleParts {
        block: reader.option(Reader::u64)?,
        min_timestamp: reader.option(Reader::u64)?,
        max_timestamp: reader.option(Reader::u64)?,
        replacement_nonce: reader.option(Reader::u64)?,
        refund_percent: reader.option(Reader::array)?.map(|[percent]| percent),
        refund_recipient: reader.option(Reader::address)?,
        refund_identity: reader.option(Reader::address)?,
        signer: reader.option(Reader::address)?,
        uuid: reader.option(uuid)?,
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
        let tx = tx::decode(index, reader.take(length)?)?;
        let tx = Recovered::new_unchecked(tx, sender);
        parts.txs.push(Transaction::new(tx, Origin::Rpc, first_seen));
    }
    parts.txs.shrink_to_fit();
    Ok(Bundle::new(parts)?)
}

fn uuid(reader: &mut Reader<'_>) -> Result<Uuid, WireError> {
    reader.array().map(Uuid::from_bytes)
}

/// The message id is a hash of key and nonce.
pub(super) fn encode_cancellation(cancellation: &Cancellation) -> Encoded {
    let Cancellation { key, nonce, holder } = cancellation;
    let mut writer = Writer::new(KIND_CANCELLATION, 64);
    writer.holder(*holder);
    let content = writer.bytes.len();
    writer.put(key.uuid);
    writer.put(key.signer);
    writer.number(*nonce);
    writer.finish(content)
}

/// Reads what stands behind the holder.
pub(super) fn read_cancellation(
    reader: &mut Reader<'_>,
    holder: Holder,
) -> Result<Cancellation, WireError> {
    let key = ReplacementKey { uuid: uuid(reader)?, signer: reader.address()? };
    Ok(Cancellation { key, nonce: reader.option(Reader::u64)?, holder })
}

/// The message id is a hash of transaction and signer.
pub(super) fn encode_cancel_private(cancellation: &PrivateCancellation) -> Encoded {
    let mut writer = Writer::new(KIND_CANCEL_PRIVATE, 64);
    writer.time(cancellation.at);
    writer.holder(cancellation.holder);
    let content = writer.bytes.len();
    writer.put(cancellation.hash);
    writer.put(cancellation.signer);
    writer.finish(content)
}
