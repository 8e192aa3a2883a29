//! Blob transactions with valid and with invalid sidecars.

use alloy_consensus::{EthereumTxEnvelope, TxEip4844, TxEip4844WithSidecar};
use alloy_eips::{
    eip2718::{Decodable2718, Encodable2718},
    eip4844::{Blob, BlobTransactionSidecar, Bytes48},
    eip7594::BlobTransactionSidecarVariant,
};
use order_pool::PooledTransaction;

use super::*;

/// The commitments of the four blobs whose field elements are all 0, 1, 2 or 3: this many times the
/// generator of G1. The first one, the point at infinity, is the proof of each of these blobs.
const COMMITMENTS: [&str; 4] = [
    "c00000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000",
    "97f1d3a73197d7942695638c4fa9ac0fc3688c4f9774b905a14e3a3f171bac586c55e83ff97a1aeffb3af00adb22c6bb",
    "a572cbea904d67468808c8eb50a9450c9721db309128012543902d0ac358a62ae28f75bb8f1c7c42c39a8c5529bf0f4e",
    "89ece308f9d1f0131765212deca99697b112d61f9be9a5f1f3780a51335b3ff981747a0b2ca2179b96d2c0c9024e5224",
];

fn commitment(element: usize) -> Bytes48 {
    COMMITMENTS[element % COMMITMENTS.len()].parse().unwrap()
}

fn blob(element: usize) -> Blob {
    let mut blob = Blob::ZERO;
    blob.chunks_exact_mut(32).for_each(|chunk| chunk[31] = (element % COMMITMENTS.len()) as u8);
    blob
}

/// `count` blobs, of which the first four differ, with their proofs.
pub(super) fn sidecar(count: usize) -> BlobTransactionSidecar {
    BlobTransactionSidecar::new(
        (0..count).map(blob).collect(),
        (0..count).map(commitment).collect(),
        vec![commitment(0); count],
    )
}

/// A signed transaction with these hashes and this sidecar, which its hash does not cover.
pub(super) fn with_sidecar(
    blob_versioned_hashes: Vec<B256>,
    sidecar: BlobTransactionSidecar,
    signer: &PrivateKeySigner,
) -> String {
    let tx = TxEip4844 {
        chain_id: CHAIN,
        gas_limit: 21_000,
        blob_versioned_hashes,
        max_fee_per_blob_gas: 1,
        ..TxEip4844::default()
    };
    let sidecar = BlobTransactionSidecarVariant::Eip4844(sidecar);
    hex(&sign(TxEip4844WithSidecar::from_tx_and_sidecar(tx, sidecar), signer))
}

/// A transaction with `count` blobs: with their proofs, and with a first proof that is wrong.
pub(crate) fn with_blobs(count: usize) -> (String, String) {
    let (right, signer) = (sidecar(count), PrivateKeySigner::random());
    let mut wrong = right.clone();
    wrong.proofs[0][47] ^= 1;
    let hashes: Vec<_> = right.versioned_hashes().collect();
    (with_sidecar(hashes.clone(), right, &signer), with_sidecar(hashes, wrong, &signer))
}

/// Decodes a transaction as it is sent.
fn decode(raw: &str) -> PooledTransaction {
    let raw = alloy_primitives::hex::decode(raw).unwrap();
    PooledTransaction::decode_2718_exact(&raw).unwrap()
}

pub(super) fn hash_of(raw: &str) -> B256 {
    *decode(raw).tx_hash()
}

/// Returns a blob transaction without its sidecar, as in a block.
pub(super) fn without_blobs(raw: &str) -> String {
    let mined = EthereumTxEnvelope::<TxEip4844>::from(decode(raw));
    alloy_primitives::hex::encode_prefixed(mined.encoded_2718())
}
