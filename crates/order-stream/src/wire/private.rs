//! Bundles and cancellations, which only the private stream carries.

use std::time::SystemTime;

use alloy_consensus::transaction::Recovered;
use alloy_eips::eip2718::Encodable2718 as _;
use alloy_primitives::{Address, B256};
use order_pool::{Bundle, BundleParts, Cancellation, Origin, ReplacementKey, Transaction};

use super::{
    Encoded, KIND_BUNDLE, KIND_CANCEL_PRIVATE, KIND_CANCELLATION,
    bytes::{Reader, Writer},
    content_id,
    error::WireError,
    start, tx,
};

/// Most transactions of a bundle, and most entries of its other lists. A pool's own limit is lower:
/// `order_pool::MAX_TXS_PER_BUNDLE`.
pub const MAX_BUNDLE_TXS: usize = 1_024;

/// What the fixed fields of a bundle take at most, in bytes.
const FIXED_BYTES: usize = 192;

/// A bundle as it was published, with the block and the nonce that its first pool assigned. Those count
/// as sent from then on, so a bundle whose sender left them open has another
/// [`Bundle::id`](order_pool::Bundle::id) in the pools that it reaches, the same in all of them.
#[derive(Clone, Debug)]
pub struct BundleRecord {
    /// Its fields. The transactions have the senders that the publisher says, and no origin but
    /// [`Origin::Rpc`].
    pub parts: BundleParts,
}

impl BundleRecord {
    /// What is published of a pooled bundle.
    #[must_use]
    pub fn of(bundle: &Bundle) -> Self {
        let first_seen = Some(bundle.first_seen());
        Self { parts: BundleParts { first_seen, ..bundle.parts().clone() } }
    }

    /// Encodes it. The message id is a hash of all of its fields but the first-seen time.
    #[must_use]
    pub fn encode(&self) -> Encoded {
        encode(&self.parts, self.parts.first_seen.unwrap_or(SystemTime::UNIX_EPOCH))
    }

    pub(super) fn read(reader: &mut Reader<'_>, first_seen: SystemTime) -> Result<Self, WireError> {
        let flags = reader.flags("bundle", 10)?;
        let mut numbers = [None; 5];
        let names =
            ["block", "min_timestamp", "max_timestamp", "replacement_nonce", "refund_percent"];
        for ((number, name), flag) in numbers.iter_mut().zip(names).zip(0..) {
            if flags.has(flag) {
                *number = Some(reader.u64(name)?);
            }
        }
        let [block, min_timestamp, max_timestamp, replacement_nonce, refund_percent] = numbers;
        let mut addresses = [None; 3];
        let names = ["refund_recipient", "refund_identity", "signer"];
        for ((address, name), flag) in addresses.iter_mut().zip(names).zip(5..) {
            if flags.has(flag) {
                *address = Some(reader.address(name)?);
            }
        }
        let [refund_recipient, refund_identity, signer] = addresses;
        let uuid = if flags.has(8) { Some(reader.uuid("uuid")?) } else { None };
        let field = "refund_percent";
        let percent = |value| u8::try_from(value).map_err(|_| WireError::Value { field, value });
        let mut parts = BundleParts {
            block,
            min_timestamp,
            max_timestamp,
            replacement_nonce,
            refund_percent: refund_percent.map(percent).transpose()?,
            refund_recipient,
            refund_identity,
            signer,
            uuid,
            delayed_refund: flags.has(9),
            reverting_tx_hashes: reader.hashes("reverting_tx_hashes", MAX_BUNDLE_TXS)?,
            dropping_tx_hashes: reader.hashes("dropping_tx_hashes", MAX_BUNDLE_TXS)?,
            refund_tx_hashes: reader.hashes("refund_tx_hashes", MAX_BUNDLE_TXS)?,
            first_seen: Some(first_seen),
            txs: Vec::new(),
        };
        let value = usize::from(reader.u16("txs")?);
        if value > MAX_BUNDLE_TXS {
            return Err(WireError::TooLong { field: "txs", value, limit: MAX_BUNDLE_TXS });
        }
        // Not with the capacity that the message claims.
        for index in 0..value {
            parts.txs.push(read_tx(reader, index, first_seen)?);
        }
        parts.txs.shrink_to_fit();
        Ok(Self { parts })
    }

    /// The bundle for a pool. A first-seen time after `now` becomes `now`.
    ///
    /// # Errors
    /// The fields contradict each other.
    pub fn resolve(mut self, now: SystemTime) -> Result<Bundle, WireError> {
        self.parts.first_seen = Some(self.parts.first_seen.map_or(now, |seen| seen.min(now)));
        Ok(Bundle::new(self.parts)?)
    }
}

/// Encodes what is published of a pooled bundle, as [`BundleRecord::of`] and [`BundleRecord::encode`] do,
/// without copying blobs twice.
#[must_use]
pub fn encode_bundle(bundle: &Bundle) -> Encoded {
    encode(bundle.parts(), bundle.first_seen())
}

fn encode(parts: &BundleParts, first_seen: SystemTime) -> Encoded {
    let raw: usize = parts.txs.iter().map(|tx| tx.envelope().encode_2718_len()).sum();
    let lists = [&parts.reverting_tx_hashes, &parts.dropping_tx_hashes, &parts.refund_tx_hashes];
    let hashes: usize = lists.iter().map(|list| list.len()).sum();
    let others = parts.txs.len().saturating_mul(24).saturating_add(hashes.saturating_mul(32));
    let mut writer = start(KIND_BUNDLE, raw.saturating_add(others).saturating_add(FIXED_BYTES));
    writer.time(first_seen);
    let content = writer.buffer().len();
    let percent = parts.refund_percent.map(u64::from);
    let numbers =
        [parts.block, parts.min_timestamp, parts.max_timestamp, parts.replacement_nonce, percent];
    let addresses = [parts.refund_recipient, parts.refund_identity, parts.signer];
    let mut flags = numbers.map(|number| number.is_some()).to_vec();
    flags.extend(addresses.map(|address| address.is_some()));
    flags.extend([parts.uuid.is_some(), parts.delayed_refund]);
    writer.flags(&flags);
    numbers.iter().flatten().for_each(|number| writer.u64(*number));
    addresses.iter().flatten().for_each(|address| writer.bytes(address.as_slice()));
    if let Some(uuid) = &parts.uuid {
        writer.bytes(uuid.as_bytes());
    }
    lists.iter().for_each(|list| writer.hashes(list, MAX_BUNDLE_TXS as u16));
    let count = parts.txs.len().min(MAX_BUNDLE_TXS);
    writer.u16(count as u16);
    parts.txs.iter().take(count).for_each(|tx| write_tx(&mut writer, tx));
    let payload = writer.finish();
    let id = content_id(KIND_BUNDLE, payload.get(content..).unwrap_or_default());
    Encoded { id, payload }
}

fn write_tx(writer: &mut Writer, tx: &Transaction) {
    writer.bytes(tx.sender().as_slice());
    writer.u32(u32::try_from(tx.envelope().encode_2718_len()).unwrap_or(u32::MAX));
    tx.envelope().encode_2718(writer.buffer());
}

fn read_tx(
    reader: &mut Reader<'_>,
    index: usize,
    first_seen: SystemTime,
) -> Result<Transaction, WireError> {
    let sender = reader.address("txs.sender")?;
    let length = reader.u32("txs.length")?;
    let raw = reader.take(usize::try_from(length).unwrap_or(usize::MAX), "txs.raw")?;
    let tx = Recovered::new_unchecked(tx::decode(index, raw)?, sender);
    Ok(Transaction::new(tx, Origin::Rpc, first_seen))
}

/// The message id is a hash of key and nonce.
pub(super) fn encode_cancellation(cancellation: &Cancellation) -> Encoded {
    let Cancellation { key, nonce } = cancellation;
    let mut writer = start(KIND_CANCELLATION, 64);
    writer.bytes(key.uuid.as_bytes());
    writer.bytes(key.signer.as_slice());
    writer.flags(&[nonce.is_some()]);
    if let Some(nonce) = nonce {
        writer.u64(*nonce);
    }
    finish(KIND_CANCELLATION, writer)
}

pub(super) fn read_cancellation(reader: &mut Reader<'_>) -> Result<Cancellation, WireError> {
    let key = ReplacementKey { uuid: reader.uuid("uuid")?, signer: reader.address("signer")? };
    let flags = reader.flags("cancellation", 1)?;
    let nonce = if flags.has(0) { Some(reader.u64("nonce")?) } else { None };
    Ok(Cancellation { key, nonce })
}

/// The message id is a hash of both.
pub(super) fn encode_cancel_private(hash: &B256, signer: Address) -> Encoded {
    let mut writer = start(KIND_CANCEL_PRIVATE, 64);
    writer.bytes(hash.as_slice());
    writer.bytes(signer.as_slice());
    finish(KIND_CANCEL_PRIVATE, writer)
}

/// A message whose content is everything behind version and kind.
fn finish(kind: u8, writer: Writer) -> Encoded {
    let payload = writer.finish();
    let id = content_id(kind, payload.get(2..).unwrap_or_default());
    Encoded { id, payload }
}
