//! A transaction as the node holds it: what it must know of it, and the bytes in both forms.

use std::sync::{Arc, OnceLock};

use alloy_consensus::{
    Signed, Transaction as _, TxEip4844Variant, TxEnvelope,
    transaction::{Recovered, SignerRecoverable, TransactionInfo},
};
use alloy_eips::{Decodable2718, Encodable2718, eip7594::BlobTransactionSidecarVariant};
use alloy_primitives::{Address, B256, Bytes};
use alloy_rlp::{BufMut, Header};
use alloy_rpc_types_eth::Transaction;
use serde::Serialize;

use crate::error::TxRefused;

/// The type byte of blob transactions (EIP-4844).
const BLOB_TX_TYPE: u8 = 3;

/// A signed transaction whose sender is known.
#[derive(Debug)]
pub(crate) struct SignedTx {
    pub(crate) hash: B256,
    pub(crate) sender: Address,
    pub(crate) nonce: u64,
    pub(crate) gas_limit: u64,
    pub(crate) max_fee_wei: u128,
    pub(crate) tip_wei: u128,
    pub(crate) blob_fee_wei: Option<u128>,
    pub(crate) blobs: u64,
    pub(crate) body: Body,
    /// What subscribers to full transactions are told; rendered once.
    pub(crate) object: OnceLock<Vec<u8>>,
}

#[derive(Clone, Debug)]
pub(crate) enum Body {
    /// The only form there is.
    Plain(Bytes),
    /// In blocks it stands without the sidecar.
    Blob { mined: Bytes, sidecar: Arc<Sidecar> },
}

/// What a blob transaction carries beside itself in the network form; shared by all that carry the same blobs, since
/// six blobs are 0.8 MB.
#[derive(Debug)]
pub(crate) struct Sidecar {
    pub(crate) hashes: Vec<B256>,
    /// RLP of the fields after the transaction, without a list header.
    tail: Bytes,
}

impl Sidecar {
    pub(crate) fn new(sidecar: &BlobTransactionSidecarVariant) -> Self {
        let hashes = sidecar.versioned_hashes().collect();
        Self { hashes, tail: sidecar.rlp_encoded_fields().into() }
    }
}

impl Body {
    /// As nodes hand each other a pending transaction.
    pub(crate) fn network(&self) -> Bytes {
        match self {
            Self::Plain(raw) => raw.clone(),
            // `type || rlp([tx, sidecar fields..])`
            Self::Blob { mined, sidecar } => {
                let list = &mined[1..];
                let header = Header { list: true, payload_length: list.len() + sidecar.tail.len() };
                let mut out = Vec::with_capacity(1 + header.length_with_payload());
                out.put_u8(BLOB_TX_TYPE);
                header.encode(&mut out);
                out.extend_from_slice(list);
                out.extend_from_slice(&sidecar.tail);
                out.into()
            }
        }
    }

    /// As it stands in a block.
    pub(crate) const fn mined(&self) -> &Bytes {
        match self {
            Self::Plain(raw) | Self::Blob { mined: raw, .. } => raw,
        }
    }
}

impl SignedTx {
    /// A transaction from its parts, whose signer the caller knows.
    pub(crate) fn from_envelope(tx: &TxEnvelope, sender: Address, body: Body) -> Self {
        let blobs = tx.blob_versioned_hashes().map_or(0, |hashes| hashes.len() as u64);
        Self {
            hash: *tx.tx_hash(),
            sender,
            nonce: tx.nonce(),
            gas_limit: tx.gas_limit(),
            max_fee_wei: tx.max_fee_per_gas(),
            tip_wei: tx.max_priority_fee_per_gas().unwrap_or_else(|| tx.max_fee_per_gas()),
            blob_fee_wei: tx.max_fee_per_blob_gas(),
            blobs,
            body,
            object: OnceLock::new(),
        }
    }

    /// The object of the pending transaction, as JSON.
    pub(crate) fn pending_object(&self) -> &[u8] {
        self.object.get_or_init(|| to_json(&self.to_object(None)))
    }

    /// Reads what a client sent, checks its form and its signature, and finds its sender.
    ///
    /// Sidecars are taken on trust: checking them costs milliseconds each and finds nothing a client of this node could
    /// not have been given.
    pub(crate) fn from_raw(raw: &Bytes, chain_id: u64) -> Result<Self, TxRefused> {
        let tx = TxEnvelope::decode_2718_exact(raw)
            .map_err(|error| TxRefused::Undecodable { reason: error.to_string().into() })?;
        if let Some(has) = tx.chain_id()
            && has != chain_id
        {
            return Err(TxRefused::WrongChain { has, expected: chain_id });
        }
        let body = match &tx {
            TxEnvelope::Eip4844(signed) => {
                let TxEip4844Variant::TxEip4844WithSidecar(with) = signed.tx() else {
                    return Err(TxRefused::MissingSidecar);
                };
                let mined = mined_form(&tx);
                Body::Blob { mined, sidecar: Arc::new(Sidecar::new(&with.sidecar)) }
            }
            _ => Body::Plain(raw.clone()),
        };
        let sender = tx.recover_signer().map_err(|_| TxRefused::BadSignature)?;
        Ok(Self::from_envelope(&tx, sender, body))
    }

    /// Without the sidecar.
    pub(crate) fn envelope(&self) -> TxEnvelope {
        TxEnvelope::decode_2718_exact(self.body.mined())
            .expect("these bytes were decoded or encoded by us before")
    }

    /// The object that `eth_getTransactionByHash` and its kin show: without the sidecar, like reth and geth.
    pub(crate) fn to_object(&self, mined: Option<MinedAt>) -> Transaction {
        // No literal: newer versions of alloy have more fields.
        let place = TransactionInfo {
            block_hash: mined.map(|at| at.block_hash),
            block_number: mined.map(|at| at.number),
            index: mined.map(|at| at.index),
            ..TransactionInfo::default()
        };
        let tx = Recovered::new_unchecked(self.envelope(), self.sender);
        let mut object = Transaction::from_transaction(tx, place);
        object.effective_gas_price = Some(mined.map_or(self.max_fee_wei, |at| {
            self.max_fee_wei.min(self.tip_wei.saturating_add(at.base_fee_wei))
        }));
        object
    }
}

/// Where a transaction stands in the chain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MinedAt {
    pub(crate) block_hash: B256,
    pub(crate) number: u64,
    pub(crate) index: u64,
    pub(crate) base_fee_wei: u128,
}

/// The encoding without the sidecar.
pub(crate) fn mined_form(tx: &TxEnvelope) -> Bytes {
    match tx {
        TxEnvelope::Eip4844(signed) => {
            let bare = TxEip4844Variant::from(signed.tx().tx().clone());
            let bare = Signed::new_unchecked(bare, *signed.signature(), *signed.hash());
            TxEnvelope::Eip4844(bare).encoded_2718().into()
        }
        other => other.encoded_2718().into(),
    }
}

/// JSON of a value that cannot fail to be written.
pub(crate) fn to_json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("Ethereum's objects have string keys and no failing parts")
}
