//! Whether a blob transaction carries the blobs it names.

use alloy_consensus::Transaction as _;
use alloy_eips::eip7594::{BlobTransactionSidecarVariant, CELLS_PER_EXT_BLOB};
use chain_view::PooledTransaction;

use crate::{bundle::SidecarError, order::Transaction};

impl Transaction {
    /// Checks that the sidecar has what the transaction's versioned hashes name: as many blobs,
    /// commitments and proofs (one per blob in the EIP-4844 form, 128 cell proofs per blob in the
    /// EIP-7594 form), commitments that hash to them, and proofs that hold. A transaction without
    /// blobs passes.
    ///
    /// The proofs cost milliseconds per blob: not for a thread that must stay responsive. What the
    /// local node hands out it has checked itself.
    ///
    /// # Errors
    /// Names what does not fit.
    pub fn check_sidecar(&self) -> Result<(), SidecarError> {
        let PooledTransaction::Eip4844(signed) = self.envelope() else { return Ok(()) };
        let sidecar = signed.tx().sidecar();
        let hashes = signed.blob_versioned_hashes().unwrap_or_default();
        let blobs = hashes.len();
        let (blob_count, proof_count, proofs_needed) = match sidecar {
            BlobTransactionSidecarVariant::Eip4844(sidecar) => {
                (sidecar.blobs.len(), sidecar.proofs.len(), blobs)
            }
            BlobTransactionSidecarVariant::Eip7594(sidecar) => {
                (sidecar.blobs.len(), sidecar.cell_proofs.len(), blobs * CELLS_PER_EXT_BLOB)
            }
        };
        let counts = [
            ("blobs", blob_count, blobs),
            ("commitments", sidecar.commitments().len(), blobs),
            ("proofs", proof_count, proofs_needed),
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
        // Precomputation speeds up making proofs, not checking them, and costs up to 96 MiB.
        let settings = c_kzg::ethereum_kzg_settings(0);
        sidecar.validate(hashes, settings).map_err(|_| SidecarError::Proof)
    }
}
