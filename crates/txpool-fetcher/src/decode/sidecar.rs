//! Decides whether the sidecar of a blob transaction matches its versioned hashes.
//!
//! The hash of a transaction covers only the versioned hashes, so anybody can attach other blobs to
//! it.

use alloy_consensus::TxEip4844WithSidecar;
use alloy_eips::{
    eip4844::env_settings::EnvKzgSettings,
    eip7594::{BlobTransactionSidecarVariant, CELLS_PER_EXT_BLOB},
};
use alloy_primitives::B256;

use chain_view::PooledTransaction;

/// Why a sidecar does not belong to its transaction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SidecarError {
    /// A number in the sidecar is wrong. Each versioned hash needs one blob, one commitment, and
    /// one proof (EIP-4844) or 128 cell proofs (EIP-7594).
    #[error(
        "the sidecar has {found} {part}, the versioned hashes of the transaction need {expected}"
    )]
    Count {
        /// `blobs`, `commitments` or `proofs`.
        part: &'static str,
        /// The number that the versioned hashes of the transaction need.
        expected: usize,
        /// The number in the sidecar.
        found: usize,
    },
    /// The versioned hash of a commitment differs from that of the transaction.
    #[error("commitment {index} has versioned hash {found}, the transaction names {expected}")]
    OtherCommitment {
        /// The index of the commitment.
        index: usize,
        /// The versioned hash in the transaction.
        expected: B256,
        /// The versioned hash of the commitment.
        found: B256,
    },
    /// A KZG proof is invalid. Only [`verify_blob_proofs`] verifies proofs.
    #[error("the KZG proofs are invalid")]
    InvalidProof,
}

/// Compares the sidecar with the versioned hashes: the numbers of blobs, commitments and proofs,
/// and the SHA-256 of each commitment. Takes less than 2 us for six blobs.
pub(crate) fn check_sidecar(
    tx: &TxEip4844WithSidecar<BlobTransactionSidecarVariant>,
) -> Result<(), SidecarError> {
    let hashes = &tx.tx.blob_versioned_hashes;
    let (blobs, proofs, proofs_per_hash) = match &tx.sidecar {
        BlobTransactionSidecarVariant::Eip4844(sidecar) => {
            (sidecar.blobs.len(), sidecar.proofs.len(), 1)
        }
        BlobTransactionSidecarVariant::Eip7594(sidecar) => {
            (sidecar.blobs.len(), sidecar.cell_proofs.len(), CELLS_PER_EXT_BLOB)
        }
    };
    let commitments = tx.sidecar.commitments().len();
    let counts =
        [("blobs", blobs, 1), ("commitments", commitments, 1), ("proofs", proofs, proofs_per_hash)];
    for (part, found, per_hash) in counts {
        let expected = hashes.len().saturating_mul(per_hash);
        if found != expected {
            return Err(SidecarError::Count { part, expected, found });
        }
    }
    let pairs = hashes.iter().copied().zip(tx.sidecar.versioned_hashes());
    for (index, (expected, found)) in pairs.enumerate() {
        if found != expected {
            return Err(SidecarError::OtherCommitment { index, expected, found });
        }
    }
    Ok(())
}

/// Verifies the KZG proofs of a blob transaction, which takes some milliseconds of CPU for each
/// blob. Only this proves that blobs and commitments belong together. A transaction of another type
/// has no proofs, and is valid.
///
/// # Errors
/// [`SidecarError::InvalidProof`], or one of the other errors if the sidecar does not match the
/// versioned hashes, which [`read_raw`](crate::read_raw) checks too.
pub fn verify_blob_proofs(tx: &PooledTransaction) -> Result<(), SidecarError> {
    let PooledTransaction::Eip4844(signed) = tx else { return Ok(()) };
    let tx = signed.tx();
    check_sidecar(tx)?;
    tx.sidecar
        .validate(&tx.tx.blob_versioned_hashes, EnvKzgSettings::Default.get())
        .map_err(|_| SidecarError::InvalidProof)
}

#[cfg(test)]
pub(crate) mod tests {
    use alloy_consensus::{SignableTransaction as _, TxEip4844};
    use alloy_eips::{
        Encodable2718 as _,
        eip4844::{Blob, BlobTransactionSidecar, Bytes48, kzg_to_versioned_hash},
        eip7594::BlobTransactionSidecarEip7594,
    };
    use mock_node::workload::test_accounts;

    use super::*;
    use crate::decode::{Malformed, RawTransaction, read_raw};

    /// The commitment to a blob of zeros, and each of its proofs: the point at infinity.
    fn infinity() -> Bytes48 {
        let mut point = Bytes48::ZERO;
        point[0] = 0xc0;
        point
    }

    fn blob_proofs(blobs: usize) -> BlobTransactionSidecar {
        BlobTransactionSidecar {
            blobs: vec![Blob::ZERO; blobs],
            commitments: vec![infinity(); blobs],
            proofs: vec![infinity(); blobs],
        }
    }

    fn cell_proofs(blobs: usize) -> BlobTransactionSidecarEip7594 {
        BlobTransactionSidecarEip7594 {
            blobs: vec![Blob::ZERO; blobs],
            commitments: vec![infinity(); blobs],
            cell_proofs: vec![infinity(); blobs * CELLS_PER_EXT_BLOB],
        }
    }

    /// Signs a transaction with the versioned hashes of two blobs of zeros, and attaches any
    /// sidecar.
    fn transaction(sidecar: impl Into<BlobTransactionSidecarVariant>) -> PooledTransaction {
        transaction_with_hashes(2, sidecar.into())
    }

    fn transaction_with_hashes(
        blobs: usize,
        sidecar: BlobTransactionSidecarVariant,
    ) -> PooledTransaction {
        let tx = TxEip4844 {
            blob_versioned_hashes: vec![kzg_to_versioned_hash(infinity().as_slice()); blobs],
            ..Default::default()
        };
        let signature = test_accounts(1)[0].sign_hash(tx.signature_hash());
        let signed = tx.with_sidecar(sidecar).into_signed(signature);
        signed.into()
    }

    /// Encodes a transaction with a blob of zeros, with both forms of the sidecar.
    pub(in crate::decode) fn with_one_blob() -> [Vec<u8>; 2] {
        [blob_proofs(1).into(), cell_proofs(1).into()]
            .map(|sidecar| transaction_with_hashes(1, sidecar).encoded_2718())
    }

    fn read(sidecar: impl Into<BlobTransactionSidecarVariant>) -> Result<(), Malformed> {
        let tx = transaction(sidecar);
        match read_raw(tx.encoded_2718().into(), *tx.hash()) {
            RawTransaction::Decoded(read, _) => {
                assert_eq!(read.inner(), &tx);
                Ok(())
            }
            RawTransaction::Malformed(reason) => Err(reason),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_sidecar_with_a_wrong_number_of_parts_is_malformed() {
        let count = |part, expected, found| {
            Err(Malformed::Sidecar(SidecarError::Count { part, expected, found }))
        };
        assert_eq!(read(blob_proofs(1)), count("blobs", 2, 1));
        assert_eq!(read(cell_proofs(1)), count("blobs", 2, 1));
        let mut sidecar = blob_proofs(2);
        sidecar.proofs.push(infinity());
        assert_eq!(read(sidecar.clone()), count("proofs", 2, 3));
        sidecar.commitments.pop();
        assert_eq!(read(sidecar), count("commitments", 2, 1));
        let mut sidecar = cell_proofs(2);
        sidecar.cell_proofs.pop();
        assert_eq!(read(sidecar), count("proofs", 256, 255));
    }

    #[test]
    fn the_error_names_the_first_commitment_of_another_blob() {
        let named = kzg_to_versioned_hash(infinity().as_slice());
        let other = Bytes48::repeat_byte(1);
        let error = |index| SidecarError::OtherCommitment {
            index,
            expected: named,
            found: kzg_to_versioned_hash(other.as_slice()),
        };
        for index in 0..2 {
            let (mut old, mut new) = (blob_proofs(2), cell_proofs(2));
            old.commitments[index] = other;
            new.commitments[index] = other;
            for read in [read(old), read(new)] {
                assert_eq!(read, Err(error(index).into()));
            }
        }
        let shown = error(1).to_string();
        assert!(
            shown.starts_with("commitment 1 ") && shown.contains(&named.to_string()),
            "{shown}"
        );
    }

    #[test]
    fn only_its_proof_shows_that_a_blob_is_wrong() {
        let (mut old, mut new) = (blob_proofs(2), cell_proofs(2));
        assert_eq!(verify_blob_proofs(&transaction(old.clone())), Ok(()));
        assert_eq!(verify_blob_proofs(&transaction(new.clone())), Ok(()));
        old.blobs[1][1] = 1;
        new.blobs[1][1] = 1;
        assert_eq!((read(old.clone()), read(new.clone())), (Ok(()), Ok(())));
        assert_eq!(verify_blob_proofs(&transaction(old)), Err(SidecarError::InvalidProof));
        assert_eq!(verify_blob_proofs(&transaction(new)), Err(SidecarError::InvalidProof));
    }
}
