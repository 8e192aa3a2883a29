//! The fields of each kind of record. Only the private stream has bundles and cancellations.

use std::time::SystemTime;

use alloy_consensus::transaction::Recovered;
use alloy_eips::eip2718::{Decodable2718 as _, Encodable2718 as _};
use alloy_primitives::B256;
use chain_view::{Head, PooledTransaction};
use order_pool::{
    Bundle, BundleParts, Cancellation, DesiredState, Holder, Origin, PrivateCancellation,
    PrivateTerms, ReplacementKey, StateTarget, Transaction,
};
use uuid::Uuid;

use super::{
    Encoded, KIND_BUNDLE, KIND_CANCEL_PRIVATE, KIND_CANCELLATION, KIND_HEAD, KIND_TX,
    PublisherTime, WireError,
    bytes::{Reader, Writer},
    micros,
};

const ORIGIN_MEMPOOL: u8 = 0;
const ORIGIN_RPC: u8 = 1;
const ORIGIN_PRIVATE: u8 = 2;

const NONCE_NONE: u8 = 0;
const NONCE_CHOSEN: u8 = 1;
const NONCE_ASSIGNED: u8 = 2;

/// The nonce of a bundle or of a cancellation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Nonce {
    None,
    /// Chosen by the searcher.
    Chosen(u64),
    /// Assigned by the publisher's pool. It is [`PublisherTime::local_micros`], and readers assign
    /// their own from the message's stream time.
    Assigned(u64),
}

impl Nonce {
    fn write(self, writer: &mut Writer) {
        let (kind, value) = match self {
            Self::None => (NONCE_NONE, None),
            Self::Chosen(nonce) => (NONCE_CHOSEN, Some(nonce)),
            Self::Assigned(nonce) => (NONCE_ASSIGNED, Some(nonce)),
        };
        writer.put([kind]);
        if let Some(nonce) = value {
            writer.put(nonce.to_be_bytes());
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        match reader.array()? {
            [NONCE_NONE] => Ok(Self::None),
            [NONCE_CHOSEN] => reader.u64().map(Self::Chosen),
            [NONCE_ASSIGNED] => reader.u64().map(Self::Assigned),
            [value] => Err(WireError::Value { field: "nonce", value: value.into() }),
        }
    }

    const fn chosen(self) -> Option<u64> {
        match self {
            Self::Chosen(nonce) => Some(nonce),
            Self::None | Self::Assigned(_) => None,
        }
    }

    /// Returns [`PublisherTime::local_micros`] of a bundle or of a cancellation.
    const fn local_micros(self) -> u64 {
        match self {
            Self::Assigned(nonce) => nonce,
            Self::None | Self::Chosen(_) => 0,
        }
    }
}

/// Encodes a transaction as [`encode_transaction`](super::encode_transaction) does. `holder` need
/// not be the holder that sent it first.
pub(super) fn encode_tx(
    tx: &Transaction,
    holder: Holder,
    terms: Option<&PrivateTerms>,
    publisher_time: &PublisherTime,
) -> Encoded {
    let mut writer = Writer::new(KIND_TX, tx.envelope().encode_2718_len().saturating_add(96));
    // A node may announce the transaction at any time, so this is read once.
    let is_public = tx.is_public();
    let terms = terms.filter(|_| !is_public);
    writer.put([match terms {
        Some(_) => ORIGIN_PRIVATE,
        None if is_public => ORIGIN_MEMPOOL,
        None => ORIGIN_RPC,
    }]);
    writer.send_time(publisher_time);
    if !is_public {
        writer.put(publisher_time.local_micros.to_be_bytes());
    }
    writer.put(tx.sender());
    writer.holder(holder);
    if let Some(PrivateTerms { signer, max_block }) = terms {
        writer.option(*signer);
        writer.put(max_block.to_be_bytes());
    }
    tx.envelope().encode_2718(&mut writer.bytes);
    Encoded { id: *tx.hash(), payload: writer.bytes.freeze() }
}

pub(super) fn read_tx(
    reader: &mut Reader<'_>,
    stored_at: SystemTime,
) -> Result<(Transaction, PublisherTime), WireError> {
    let [origin] = reader.array()?;
    if ![ORIGIN_MEMPOOL, ORIGIN_RPC, ORIGIN_PRIVATE].contains(&origin) {
        return Err(WireError::Value { field: "origin", value: origin.into() });
    }
    let mut publisher_time = reader.send_time()?;
    if origin != ORIGIN_MEMPOOL {
        publisher_time.local_micros = reader.u64()?;
    }
    let first_seen = publisher_time.stream_time(stored_at);
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
    let tx = match terms {
        Some(terms) => Transaction::private(tx, terms, first_seen),
        None if origin == ORIGIN_MEMPOOL => Transaction::new(tx, Origin::Mempool, first_seen),
        None => Transaction::new(tx, Origin::Rpc, first_seen),
    };
    Ok((tx.held_by(holder), publisher_time))
}

fn decode(index: usize, raw: &[u8]) -> Result<PooledTransaction, WireError> {
    PooledTransaction::decode_2718_exact(raw)
        .map_err(|source| WireError::Undecodable { index, source })
}

/// Encodes a bundle. The message id covers all fields but the send time and the holder.
pub(super) fn encode_bundle(
    bundle: &Bundle,
    holder: Holder,
    publisher_time: &PublisherTime,
) -> Encoded {
    let parts = bundle.parts();
    let numbers = [parts.block, parts.min_timestamp, parts.max_timestamp];
    let lists = [&parts.reverting_tx_hashes, &parts.dropping_tx_hashes, &parts.refund_tx_hashes];
    // A bundle takes a little more memory than its encoding has bytes.
    let mut writer = Writer::new(KIND_BUNDLE, bundle.size_bytes());
    writer.send_time(publisher_time);
    writer.holder(holder);
    writer.begin_content();
    numbers.iter().for_each(|number| writer.number(*number));
    let nonce = match parts.replacement_nonce {
        Some(nonce) if !bundle.has_assigned_nonce() => Nonce::Chosen(nonce),
        _ if bundle.key().is_some() => Nonce::Assigned(publisher_time.local_micros),
        _ => Nonce::None,
    };
    nonce.write(&mut writer);
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
    if has_placement(parts) {
        writer.option(parts.desired_state.map(|state| [state.to_byte()]));
        writer.length(parts.targets.len());
        for target in &parts.targets {
            writer.put(target.address);
            writer.hashes(&target.slots);
        }
    }
    writer.finish()
}

/// Whether a bundle ends with the fields about its place in the block. Most have none, and a reader
/// that does not know these fields can read those.
fn has_placement(parts: &BundleParts) -> bool {
    parts.desired_state.is_some() || !parts.targets.is_empty()
}

pub(super) fn read_bundle(
    reader: &mut Reader<'_>,
    stored_at: SystemTime,
) -> Result<(Bundle, PublisherTime), WireError> {
    let (send_time, holder) = (reader.send_time()?, reader.holder()?);
    reader.begin_content();
    let block = reader.option(Reader::u64)?;
    let min_timestamp = reader.option(Reader::u64)?;
    let max_timestamp = reader.option(Reader::u64)?;
    let nonce = Nonce::read(reader)?;
    let publisher_time = PublisherTime { local_micros: nonce.local_micros(), ..send_time };
    let first_seen = publisher_time.stream_time(stored_at);
    let mut parts = BundleParts {
        block,
        min_timestamp,
        max_timestamp,
        replacement_nonce: nonce.chosen(),
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
        desired_state: None,
        targets: Vec::new(),
        txs: Vec::new(),
    };
    // The list is not allocated with the length that the message claims, which may be a lie.
    for index in 0..reader.length()? {
        let sender = reader.address()?;
        let length = reader.length()?;
        let tx = Recovered::new_unchecked(decode(index, reader.take(length)?)?, sender);
        parts.txs.push(Transaction::new(tx, Origin::Rpc, first_seen));
    }
    parts.txs.shrink_to_fit();
    if !reader.rest.is_empty() {
        parts.desired_state = reader.option(|reader| {
            let [byte] = reader.array()?;
            let error = WireError::Value { field: "desired state", value: byte.into() };
            DesiredState::from_byte(byte).ok_or(error)
        })?;
        for _ in 0..reader.length()? {
            let (address, slots) = (reader.address()?, reader.hashes()?);
            parts.targets.push(StateTarget { address, slots });
        }
        parts.targets.shrink_to_fit();
        // Each bundle has one encoding: without these fields it ends after its transactions.
        if !has_placement(&parts) {
            return Err(WireError::Value { field: "number of targets", value: 0 });
        }
    }
    let bundle = Bundle::new(parts)?;
    // Each bundle has one encoding: it has a nonce if and only if it has a key.
    match (bundle.key(), nonce) {
        (Some(_), Nonce::None) => {
            Err(WireError::Value { field: "nonce", value: NONCE_NONE.into() })
        }
        (None, Nonce::Assigned(value)) => Err(WireError::Value { field: "nonce", value }),
        _ => Ok((bundle, publisher_time)),
    }
}

/// Encodes a cancellation of bundles. The message id covers key and nonce.
pub(super) fn encode_cancellation(
    cancellation: &Cancellation,
    publisher_time: &PublisherTime,
) -> Encoded {
    let Cancellation { key, nonce, holder, sent_at } = cancellation;
    let mut writer = Writer::new(KIND_CANCELLATION, 64);
    writer.send_time(publisher_time);
    writer.holder(*holder);
    writer.begin_content();
    writer.put(key.uuid);
    writer.put(key.signer);
    let nonce = match nonce {
        None => Nonce::None,
        Some(_) if sent_at.is_some() => Nonce::Assigned(publisher_time.local_micros),
        Some(nonce) => Nonce::Chosen(*nonce),
    };
    nonce.write(&mut writer);
    writer.finish()
}

pub(super) fn read_cancellation(
    reader: &mut Reader<'_>,
    stored_at: SystemTime,
) -> Result<(Cancellation, PublisherTime), WireError> {
    let (send_time, holder) = (reader.send_time()?, reader.holder()?);
    reader.begin_content();
    let uuid = reader.array().map(Uuid::from_bytes)?;
    let key = ReplacementKey { uuid, signer: reader.address()? };
    let nonce = Nonce::read(reader)?;
    let publisher_time = PublisherTime { local_micros: nonce.local_micros(), ..send_time };
    let sent_at =
        matches!(nonce, Nonce::Assigned(_)).then(|| publisher_time.stream_time(stored_at));
    let nonce = nonce.chosen().or(sent_at.map(micros));
    Ok((Cancellation { key, nonce, holder, sent_at }, publisher_time))
}

/// Encodes a cancellation of a private transaction. The message id covers transaction and signer.
pub(super) fn encode_cancel_private(
    cancellation: &PrivateCancellation,
    publisher_time: &PublisherTime,
) -> Encoded {
    let mut writer = Writer::new(KIND_CANCEL_PRIVATE, 96);
    writer.send_time(publisher_time);
    writer.put(publisher_time.local_micros.to_be_bytes());
    writer.holder(cancellation.holder);
    writer.begin_content();
    writer.put(cancellation.hash);
    writer.put(cancellation.signer);
    writer.finish()
}

pub(super) fn read_cancel_private(
    reader: &mut Reader<'_>,
    stored_at: SystemTime,
) -> Result<(PrivateCancellation, PublisherTime), WireError> {
    let mut publisher_time = reader.send_time()?;
    publisher_time.local_micros = reader.u64()?;
    let holder = reader.holder()?;
    reader.begin_content();
    let cancellation = PrivateCancellation {
        hash: reader.hash()?,
        signer: reader.address()?,
        cancelled_at: publisher_time.stream_time(stored_at),
        holder,
    };
    Ok((cancellation, publisher_time))
}

/// A published head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadRecord {
    /// The head.
    pub head: Head,
    /// The head that the publisher had before; zero if it had none, and `head` itself if the
    /// publisher repeats its latest head. The message id covers it, so the same block after another
    /// predecessor is another message. After a reorg, the message id also has a suffix.
    pub previous: B256,
    /// The transactions of the block, as far as the publisher knows them. The message id does not
    /// cover them, because a machine may not have read the block.
    pub mined: Vec<B256>,
}

/// Encodes a head. The message id covers the head and the previous head.
pub(super) fn encode_head(record: &HeadRecord) -> Encoded {
    let HeadRecord { head, previous, mined } = record;
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
