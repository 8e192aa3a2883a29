//! Checks that a blob transaction carries the blobs that it names.

use alloy_consensus::Transaction as _;
use alloy_eips::{
    eip4844::{Blob, BlobTransactionSidecar, Bytes48},
    eip7594::{BlobTransactionSidecarEip7594, BlobTransactionSidecarVariant, CELLS_PER_EXT_BLOB},
};
use alloy_primitives::{B256, Keccak256};
use chain_view::PooledTransaction;

use super::Transaction;
use crate::error::SidecarError;

impl Transaction {
    /// Checks that the sidecar matches the transaction's versioned hashes: the numbers of blobs,
    /// commitments and proofs (one per blob in the EIP-4844 form, 128 cell proofs per blob in the
    /// EIP-7594 form), the hashes of the commitments, and the proofs. A transaction without blobs
    /// passes.
    ///
    /// The proofs cost 10 to 30 ms per blob: do not verify them on a thread that must stay
    /// responsive. The local node has verified the transactions that it announces.
    ///
    /// # Errors
    /// Names the mismatch.
    pub fn check_sidecar(&self) -> Result<(), SidecarError> {
        let blobs = self.check_commitments()?;
        (0..blobs).try_for_each(|index| self.check_blob_proofs(index))
    }

    /// Makes the checks of [`Self::check_sidecar`] that take microseconds: the counts, and the
    /// hashes of the commitments. Returns the number of blobs.
    ///
    /// # Errors
    /// Names the mismatch.
    pub fn check_commitments(&self) -> Result<usize, SidecarError> {
        let PooledTransaction::Eip4844(signed) = self.envelope() else { return Ok(0) };
        let sidecar = signed.tx().sidecar();
        let hashes = signed.blob_versioned_hashes().unwrap_or_default();
        let blobs = hashes.len();
        let (proofs, per_blob) = proofs(sidecar);
        let counts = [
            ("blobs", sidecar.blobs().len(), blobs),
            ("commitments", sidecar.commitments().len(), blobs),
            ("proofs", proofs.len(), blobs * per_blob),
        ];
        for (field, value, limit) in counts {
            if value != limit {
                return Err(SidecarError::Count { field, value, limit });
            }
        }
        let named = hashes.iter().zip(sidecar.versioned_hashes()).enumerate();
        for (index, (&limit, value)) in named {
            if value != limit {
                return Err(SidecarError::Commitment { index, value, limit });
            }
        }
        Ok(blobs)
    }

    /// Makes the check of [`Self::check_sidecar`] that takes 10 to 30 ms: verifies the proofs of
    /// one blob. It is separate for each blob, so that other work can run in between. The first
    /// call of a process loads the trusted setup as [`load_trusted_setup`] does.
    ///
    /// # Errors
    /// [`SidecarError::Proof`], also for a blob that does not exist.
    pub fn check_blob_proofs(&self, index: usize) -> Result<(), SidecarError> {
        let (hash, blob, commitment, proofs) = self.blob(index).ok_or(SidecarError::Proof)?;
        let (blobs, commitments) = (vec![*blob], vec![*commitment]);
        let proofs = proofs.to_vec();
        let sidecar: BlobTransactionSidecarVariant = if proofs.len() == 1 {
            BlobTransactionSidecar::new(blobs, commitments, proofs).into()
        } else {
            BlobTransactionSidecarEip7594::new(blobs, commitments, proofs).into()
        };
        sidecar.validate(&[*hash], trusted_setup()).map_err(|_| SidecarError::Proof)
    }

    /// Returns a digest (Keccak-256) of one blob with its versioned hash, its commitment and its
    /// proofs, or `None` if the blob does not exist. Takes less than a millisecond.
    ///
    /// Proofs that passed [`Self::check_blob_proofs`] need not be verified again for the same
    /// digest. A replacement with a higher fee, and a bundle for the next block, carry the same
    /// blobs.
    pub fn blob_digest(&self, index: usize) -> Option<B256> {
        let (hash, blob, commitment, proofs) = self.blob(index)?;
        let mut hasher = Keccak256::new();
        // All parts have a fixed length, except the list of proofs at the end.
        hasher.update(hash);
        hasher.update(blob);
        hasher.update(commitment);
        proofs.iter().for_each(|proof| hasher.update(proof));
        Some(hasher.finalize())
    }

    /// Returns the versioned hash of a blob, the blob, its commitment, and its proofs: one in the
    /// EIP-4844 form, 128 in the EIP-7594 form.
    fn blob(&self, index: usize) -> Option<(&B256, &Blob, &Bytes48, &[Bytes48])> {
        let PooledTransaction::Eip4844(signed) = self.envelope() else { return None };
        let sidecar = signed.tx().sidecar();
        let (proofs, per_blob) = proofs(sidecar);
        Some((
            signed.blob_versioned_hashes()?.get(index)?,
            sidecar.blobs().get(index)?,
            sidecar.commitments().get(index)?,
            proofs.chunks_exact(per_blob).nth(index)?,
        ))
    }
}

/// Returns all proofs, and the number of proofs per blob.
fn proofs(sidecar: &BlobTransactionSidecarVariant) -> (&[Bytes48], usize) {
    match sidecar {
        BlobTransactionSidecarVariant::Eip4844(sidecar) => (&sidecar.proofs, 1),
        BlobTransactionSidecarVariant::Eip7594(sidecar) => {
            (&sidecar.cell_proofs, CELLS_PER_EXT_BLOB)
        }
    }
}

/// Loads the KZG trusted setup, once per process. It takes one to four seconds, for which the first
/// verification of a proof would otherwise wait.
pub fn load_trusted_setup() {
    let _ = trusted_setup();
}

fn trusted_setup() -> &'static c_kzg::KzgSettings {
    // Without precomputation, which speeds up only the making of proofs and takes up to 96 MiB.
    c_kzg::ethereum_kzg_settings(0)
}
