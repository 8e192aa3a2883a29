//! Blob transactions whose sidecar is not theirs.

use alloy_consensus::{SignableTransaction, TxEip4844, TxEip4844WithSidecar};
use alloy_eips::{
    eip2718::Encodable2718,
    eip4844::{Blob, BlobTransactionSidecar, Bytes48},
    eip7594::BlobTransactionSidecarVariant,
};
use alloy_primitives::{B256, Signature};
use order_pool::{BundleError, PooledTransaction, RawBundle, SidecarError};
use std::time::SystemTime;

/// A sidecar of one blob of zeros: its commitment and its proof are the point at infinity.
fn zeros() -> BlobTransactionSidecar {
    let infinity = Bytes48::from_slice(&[&[0xc0][..], &[0; 47]].concat());
    BlobTransactionSidecar {
        blobs: vec![Blob::ZERO],
        commitments: vec![infinity],
        proofs: vec![infinity],
    }
}

fn resolve(sidecar: BlobTransactionSidecar, hashes: Vec<B256>) -> Result<(), BundleError> {
    let tx = TxEip4844 { chain_id: 1, blob_versioned_hashes: hashes, ..Default::default() };
    let sidecar = BlobTransactionSidecarVariant::Eip4844(sidecar);
    let tx = TxEip4844WithSidecar::from_tx_and_sidecar(tx, sidecar);
    let tx = PooledTransaction::Eip4844(tx.into_signed(Signature::test_signature()));
    let raw = RawBundle { txs: vec![tx.encoded_2718().into()], ..Default::default() };
    raw.resolve(None, 1, SystemTime::UNIX_EPOCH).map(drop)
}

fn fault(sidecar: BlobTransactionSidecar, hashes: Vec<B256>) -> SidecarError {
    match resolve(sidecar, hashes) {
        Err(BundleError::Sidecar { index: 0, source, .. }) => source,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_sidecar_that_fits_passes() {
    let sidecar = zeros();
    let hashes = sidecar.versioned_hashes().collect();
    resolve(sidecar, hashes).expect("it fits");
}

#[test]
fn a_commitment_to_another_blob_is_refused_with_both_hashes() {
    let value = zeros().versioned_hashes().next().expect("one blob");
    let limit = B256::repeat_byte(1);
    let expected = SidecarError::Commitment { index: 0, value, limit };
    assert_eq!(fault(zeros(), vec![limit]), expected);
}

#[test]
fn too_few_blobs_are_refused_with_both_counts() {
    let hash = zeros().versioned_hashes().next().expect("one blob");
    let expected = SidecarError::Count { field: "blobs", value: 1, limit: 2 };
    assert_eq!(fault(zeros(), vec![hash, hash]), expected);
}

#[test]
fn a_blob_that_is_not_the_one_committed_to_is_refused() {
    let mut sidecar = zeros();
    sidecar.blobs[0][31] = 1;
    let hashes = sidecar.versioned_hashes().collect();
    assert_eq!(fault(sidecar, hashes), SidecarError::Proof);
}
