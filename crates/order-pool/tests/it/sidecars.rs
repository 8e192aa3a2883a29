//! Checks of the sidecars of blob transactions.

use std::time::SystemTime;

use alloy_consensus::{
    SignableTransaction, TxEip4844, TxEip4844WithSidecar, transaction::Recovered,
};
use alloy_eips::{
    eip2718::Encodable2718,
    eip4844::{Blob, BlobTransactionSidecar, Bytes48},
    eip7594::{BlobTransactionSidecarEip7594, BlobTransactionSidecarVariant},
};
use alloy_primitives::{Address, B256, Signature};
use order_pool::{
    Block, BundleError, Event, Head, InsertOutcome, OrderPool, Origin, PoolConfig,
    PooledTransaction, RawBundle, RemoveReason, SidecarError, Transaction,
};

/// Returns a sidecar of one blob of zeros. Its commitment and its proof are the point at infinity.
fn zeros() -> BlobTransactionSidecar {
    let infinity = Bytes48::from_slice(&[&[0xc0][..], &[0; 47]].concat());
    BlobTransactionSidecar {
        blobs: vec![Blob::ZERO],
        commitments: vec![infinity],
        proofs: vec![infinity],
    }
}

/// Returns the same sidecar with 128 cell proofs (EIP-7594).
fn cells() -> BlobTransactionSidecarEip7594 {
    let BlobTransactionSidecar { blobs, commitments, proofs } = zeros();
    BlobTransactionSidecarEip7594 { blobs, commitments, cell_proofs: proofs.repeat(128) }
}

fn transaction(
    sidecar: impl Into<BlobTransactionSidecarVariant>,
    hashes: Vec<B256>,
) -> PooledTransaction {
    let tx = TxEip4844 { chain_id: 1, blob_versioned_hashes: hashes, ..Default::default() };
    let tx = TxEip4844WithSidecar::from_tx_and_sidecar(tx, sidecar.into());
    PooledTransaction::Eip4844(tx.into_signed(Signature::test_signature()))
}

/// Wraps a transaction as the pool holds it.
fn recovered(tx: PooledTransaction) -> Transaction {
    let tx = Recovered::new_unchecked(tx, Address::ZERO);
    Transaction::new(tx, Origin::Rpc, SystemTime::UNIX_EPOCH)
}

/// Checks the sidecar of a bundle's only transaction.
fn check(
    sidecar: impl Into<BlobTransactionSidecarVariant>,
    hashes: Vec<B256>,
) -> Result<(), SidecarError> {
    let txs = vec![transaction(sidecar, hashes).encoded_2718().into()];
    match (RawBundle { txs, ..Default::default() }).resolve(None, 1, SystemTime::UNIX_EPOCH) {
        Ok(_) => Ok(()),
        Err(BundleError::Sidecar { index: 0, source, .. }) => Err(source),
        Err(other) => panic!("{other:?}"),
    }
}

#[test]
fn a_sidecar_passes_if_its_count_its_commitments_and_its_proofs_fit() {
    let own = zeros().versioned_hashes().next().expect("one blob");
    assert_eq!((check(zeros(), vec![own]), check(cells(), vec![own])), (Ok(()), Ok(())));

    let another = B256::repeat_byte(1);
    let commitment = Err(SidecarError::Commitment { index: 0, value: own, limit: another });
    assert_eq!(check(zeros(), vec![another]), commitment);
    assert_eq!(check(cells(), vec![another]), commitment, "with cell proofs too");

    let blobs = Err(SidecarError::Count { field: "blobs", value: 1, limit: 2 });
    assert_eq!(check(zeros(), vec![own, own]), blobs);
    let mut few = cells();
    few.cell_proofs.pop();
    let proofs = Err(SidecarError::Count { field: "proofs", value: 127, limit: 128 });
    assert_eq!(check(few, vec![own]), proofs);

    let (mut of_another_blob, mut cells_of_another_blob) = (zeros(), cells());
    of_another_blob.blobs[0][31] = 1;
    cells_of_another_blob.blobs[0][31] = 1;
    assert_eq!(check(of_another_blob, vec![own]), Err(SidecarError::Proof));
    assert_eq!(check(cells_of_another_blob, vec![own]), Err(SidecarError::Proof));
}

/// Verifying one blob after the other must find the same as verifying all at once.
#[test]
fn each_blob_is_checked_with_its_own_proofs() {
    let three = |mut sidecar: BlobTransactionSidecar| {
        sidecar.blobs = sidecar.blobs.repeat(3);
        sidecar.commitments = sidecar.commitments.repeat(3);
        sidecar.proofs = sidecar.proofs.repeat(3);
        sidecar
    };
    let mut blobs = three(zeros());
    blobs.blobs[1][31] = 1;
    let hashes: Vec<_> = blobs.versioned_hashes().collect();
    let BlobTransactionSidecar { blobs: data, commitments, proofs } = blobs.clone();
    let cells = BlobTransactionSidecarEip7594 {
        blobs: data,
        commitments,
        cell_proofs: proofs[..1].repeat(3 * 128),
    };
    for tx in [transaction(blobs, hashes.clone()), transaction(cells, hashes)] {
        let tx = recovered(tx);
        assert_eq!(tx.check_commitments(), Ok(3));
        let proofs: Vec<_> = (0..4).map(|index| tx.check_blob_proofs(index).is_ok()).collect();
        assert_eq!(proofs, [true, false, true, false]);
        let digests: Vec<_> = (0..4).map(|index| tx.blob_digest(index)).collect();
        assert_eq!((digests[0], digests[3]), (digests[2], None));
        assert_ne!(digests[0], digests[1]);
        assert_eq!(tx.check_sidecar(), Err(SidecarError::Proof));
    }
}

/// A digest stands for verified proofs, so everything that the verification reads is part of it.
#[test]
fn a_digest_covers_the_blob_its_commitment_and_all_proofs() {
    let digest = |sidecar: BlobTransactionSidecarVariant| {
        let tx = transaction(sidecar, zeros().versioned_hashes().collect());
        recovered(tx).blob_digest(0).expect("one blob")
    };
    let but = |change: fn(&mut BlobTransactionSidecar)| {
        let mut sidecar = zeros();
        change(&mut sidecar);
        sidecar.into()
    };
    let mut last = cells();
    last.cell_proofs[127][47] ^= 1;
    let sidecars: [BlobTransactionSidecarVariant; 6] = [
        zeros().into(),
        cells().into(),
        but(|sidecar| sidecar.blobs[0][131_071] ^= 1),
        but(|sidecar| sidecar.commitments[0][47] ^= 1),
        but(|sidecar| sidecar.proofs[0][47] ^= 1),
        last.into(),
    ];
    let digests: std::collections::HashSet<_> = sidecars.iter().cloned().map(digest).collect();
    assert_eq!(digests.len(), sidecars.len());
    assert!(digests.contains(&digest(zeros().into())));
}

/// A stranger had sent it first with the proofs of before Osaka, and it kept them.
#[test]
fn the_nodes_envelope_replaces_one_without_cell_proofs() {
    let pool = OrderPool::new(PoolConfig::default()).expect("the default is valid");
    let mut subscription = pool.subscribe_all();
    let hashes: Vec<_> = zeros().versioned_hashes().collect();
    let (old, new) = (transaction(zeros(), hashes.clone()), transaction(cells(), hashes));
    assert_eq!(old.hash(), new.hash());
    let is_pooled_with_cells = || {
        let order = pool.get(old.hash()).expect("it is pooled");
        matches!(
            order.as_tx().and_then(Transaction::sidecar),
            Some(BlobTransactionSidecarVariant::Eip7594(_))
        )
    };
    assert_eq!(pool.insert_transaction(recovered(old.clone())), InsertOutcome::Added);
    assert!(!is_pooled_with_cells());
    let announced = Recovered::new_unchecked(new.clone(), Address::ZERO);
    let announced = Transaction::new(announced, Origin::Mempool, SystemTime::UNIX_EPOCH);
    assert_eq!(pool.insert_transaction(announced.clone()), InsertOutcome::Known);
    assert!(is_pooled_with_cells());
    assert_eq!((pool.len(), pool.stats().external_txs), (1, 0));
    let events: Vec<_> =
        std::iter::from_fn(|| subscription.try_next()).map(Result::unwrap).collect();
    assert!(matches!(
        &events[..],
        [
            Event::Added(_),
            Event::BecamePublic(_),
            Event::Removed { reason: RemoveReason::Replaced, .. },
            Event::Added(_)
        ]
    ));
    // The old form does not replace the new one.
    assert_eq!(pool.insert_transaction(recovered(old.clone())), InsertOutcome::Known);
    assert!(is_pooled_with_cells());
}

/// A stranger sent it late, with the proofs of before Osaka, and a reorg put these back.
#[test]
fn a_reorg_puts_back_the_envelope_that_the_node_announced() {
    let pool = OrderPool::new(PoolConfig::default()).expect("the default is valid");
    let hashes: Vec<_> = zeros().versioned_hashes().collect();
    let (old, new) = (transaction(zeros(), hashes.clone()), transaction(cells(), hashes));
    let block = |number: u8, hash: u8, mined: &[B256]| {
        let [hash, parent] = [hash, number - 1].map(B256::with_last_byte);
        Block::new(Head::new(number.into(), hash, parent), mined)
    };
    pool.on_head(block(1, 1, &[]));
    pool.on_head(block(2, 2, &[*old.hash()]));
    assert_eq!(pool.insert_transaction(recovered(old.clone())), InsertOutcome::Mined);
    let announced = Recovered::new_unchecked(new, Address::ZERO);
    let announced = Transaction::new(announced, Origin::Mempool, SystemTime::UNIX_EPOCH);
    assert_eq!(pool.insert_transaction(announced), InsertOutcome::Mined);
    pool.on_head(block(2, 22, &[]));
    let order = pool.get(old.hash()).expect("the reorg put it back");
    let sidecar = order.as_tx().and_then(Transaction::sidecar);
    assert!(matches!(sidecar, Some(BlobTransactionSidecarVariant::Eip7594(_))));
}
