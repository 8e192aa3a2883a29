//! A signed transaction and its encodings.

use std::{
    ops::Deref,
    sync::{Arc, OnceLock},
};

use alloy_consensus::{
    Signed, Transaction as _, TxEip4844Variant, TxEnvelope,
    transaction::{Recovered, SignerRecoverable, TransactionInfo},
};
use alloy_eips::{
    Decodable2718, Encodable2718,
    eip7594::{BlobTransactionSidecarVariant, EIP_7594_WRAPPER_VERSION},
};
use alloy_primitives::{B256, Bytes};
use alloy_rlp::{BufMut, EMPTY_LIST_CODE, Header};
use alloy_rpc_types_eth::Transaction;
use serde::Serialize;

use crate::error::TxRefused;

/// A signed transaction whose sender is known.
#[derive(Debug)]
pub(crate) struct SignedTx {
    pub(crate) hash: B256,
    /// The form of blocks: a blob transaction without its sidecar.
    pub(crate) mined: Recovered<TxEnvelope>,
    sidecar: Option<Arc<Sidecar>>,
    /// The JSON object for subscribers to full transactions; rendered once.
    object: OnceLock<Vec<u8>>,
}

/// The sidecar of a blob transaction in the network form. It is shared by all transactions with the
/// same blobs, because six blobs are 0.8 MB.
#[derive(Debug)]
pub(crate) struct Sidecar {
    pub(crate) hashes: Vec<B256>,
    /// The RLP of the fields that follow the transaction, without a list header.
    tail: Bytes,
}

impl Sidecar {
    pub(crate) fn new(sidecar: &BlobTransactionSidecarVariant) -> Self {
        let hashes = sidecar.versioned_hashes().collect();
        Self { hashes, tail: sidecar.rlp_encoded_fields().into() }
    }

    /// Returns the tail with an empty list in place of the blobs. The blobs follow the version of
    /// the wrapper, if there is one.
    fn tail_without_blobs(&self) -> Vec<u8> {
        let version = usize::from(self.tail[0] == EIP_7594_WRAPPER_VERSION);
        let mut rest = &self.tail[version..];
        let blobs = Header::decode(&mut rest).expect("the list of blobs");
        [&self.tail[..version], &[EMPTY_LIST_CODE], &rest[blobs.payload_length..]].concat()
    }
}

impl Deref for SignedTx {
    type Target = Recovered<TxEnvelope>;

    fn deref(&self) -> &Self::Target {
        &self.mined
    }
}

impl SignedTx {
    pub(crate) fn new(mined: Recovered<TxEnvelope>, sidecar: Option<Arc<Sidecar>>) -> Self {
        Self { hash: *mined.tx_hash(), mined, sidecar, object: OnceLock::new() }
    }

    /// Decodes a transaction that a client sent, checks its signature, and recovers its sender.
    ///
    /// Sidecars are not verified: that takes milliseconds each, and the only clients of this node
    /// are tests.
    pub(crate) fn from_raw(raw: &Bytes, chain_id: u64) -> Result<Self, TxRefused> {
        let tx = TxEnvelope::decode_2718_exact(raw)
            .map_err(|error| TxRefused::Undecodable { reason: error.to_string() })?;
        if let Some(has) = tx.chain_id()
            && has != chain_id
        {
            return Err(TxRefused::WrongChain { has, expected: chain_id });
        }
        let sender = tx.recover_signer().map_err(|_| TxRefused::BadSignature)?;
        let (tx, sidecar) = match tx {
            TxEnvelope::Eip4844(signed) => {
                let (tx, signature, hash) = signed.into_parts();
                let TxEip4844Variant::TxEip4844WithSidecar(with) = tx else {
                    return Err(TxRefused::MissingSidecar);
                };
                let bare = Signed::new_unchecked(with.tx.into(), signature, hash);
                (TxEnvelope::Eip4844(bare), Some(Arc::new(Sidecar::new(&with.sidecar))))
            }
            other => (other, None),
        };
        Ok(Self::new(Recovered::new_unchecked(tx, sender), sidecar))
    }

    /// The network form, in which nodes exchange pending transactions.
    pub(crate) fn network(&self) -> Bytes {
        match &self.sidecar {
            Some(sidecar) => self.with_tail(&sidecar.tail),
            None => self.encoded_2718().into(),
        }
    }

    /// The network form with an empty list of blobs.
    pub(crate) fn network_without_blobs(&self) -> Bytes {
        match &self.sidecar {
            Some(sidecar) => self.with_tail(&sidecar.tail_without_blobs()),
            None => self.encoded_2718().into(),
        }
    }

    fn with_tail(&self, tail: &[u8]) -> Bytes {
        let mined = self.encoded_2718();
        // `type || rlp([tx, sidecar fields..])`
        let (kind, list) = mined.split_at(1);
        let header = Header { list: true, payload_length: list.len() + tail.len() };
        let mut out = Vec::with_capacity(1 + header.length_with_payload());
        out.put_slice(kind);
        header.encode(&mut out);
        out.put_slice(list);
        out.put_slice(tail);
        out.into()
    }

    /// The JSON object of the pending transaction.
    pub(crate) fn pending_object(&self) -> &[u8] {
        self.object.get_or_init(|| to_json(&self.to_object(TransactionInfo::default())))
    }

    /// The object of `eth_getTransactionByHash` and similar methods: without the sidecar, like reth
    /// and geth.
    pub(crate) fn to_object(&self, place: TransactionInfo) -> Transaction {
        Transaction::from_transaction(self.mined.clone(), place)
    }
}

/// Encodes a value whose encoding cannot fail.
pub(crate) fn to_json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("Ethereum's objects have string keys and no failing parts")
}
