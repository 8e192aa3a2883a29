//! Sidecars with valid KZG proofs.
//!
//! The blobs are always the same, so their commitments and proofs are kept in `proofs.bin`: to compute them takes 0.2 s
//! of CPU time for each blob, and a second before that for the trusted setup.

use std::sync::{Arc, OnceLock};

use alloy_eips::{
    eip4844::{BYTES_PER_BLOB, Blob, BlobTransactionSidecar, Bytes48, FIELD_ELEMENTS_PER_BLOB},
    eip7594::{BlobTransactionSidecarEip7594, BlobTransactionSidecarVariant, CELLS_PER_EXT_BLOB},
};

use crate::tx::Sidecar;

/// Blobs of the larger kind of blob transaction. Mainnet has allowed 9 per block since Prague; Osaka allows at most 6
/// in one transaction (EIP-7594).
pub const MANY_BLOBS: usize = 6;

/// Of each blob the commitment, the proof of the blob and those of its cells.
const KEPT: usize = 48 * (2 + CELLS_PER_EXT_BLOB);
static PROOFS: &[u8; MANY_BLOBS * KEPT] = include_bytes!("proofs.bin");

/// Which proofs stand in a sidecar.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SidecarForm {
    /// 128 cell proofs per blob (EIP-7594), what nodes serve and accept since Osaka.
    #[default]
    CellProofs,
    /// One proof per blob (EIP-4844). anvil and geth take it in, reth refuses it.
    BlobProofs,
}

/// The sidecar with one blob, or with [`MANY_BLOBS`].
pub fn sidecar(form: SidecarForm, many: bool) -> BlobTransactionSidecarVariant {
    let (mut blobs, mut commitments, mut proofs) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..if many { MANY_BLOBS } else { 1 } {
        let mut kept = PROOFS[number * KEPT..][..KEPT].chunks_exact(48).map(Bytes48::from_slice);
        blobs.push(filled_blob(number));
        commitments.extend(kept.next());
        let of_blob = kept.next();
        match form {
            SidecarForm::CellProofs => proofs.extend(kept),
            SidecarForm::BlobProofs => proofs.extend(of_blob),
        }
    }
    match form {
        SidecarForm::CellProofs => {
            BlobTransactionSidecarEip7594::new(blobs, commitments, proofs).into()
        }
        SidecarForm::BlobProofs => BlobTransactionSidecar::new(blobs, commitments, proofs).into(),
    }
}

pub(super) fn shared_sidecar(form: SidecarForm, many: bool) -> Arc<Sidecar> {
    static SHARED: [OnceLock<Arc<Sidecar>>; 4] = [const { OnceLock::new() }; 4];
    let slot = usize::from(form == SidecarForm::BlobProofs) * 2 + usize::from(many);
    SHARED[slot].get_or_init(|| Arc::new(Sidecar::new(&sidecar(form, many)))).clone()
}

/// Bytes like compressed rollup data: every field element full, its first byte zero so that it is below the modulus.
fn filled_blob(number: usize) -> Blob {
    let mut bytes = [0; BYTES_PER_BLOB];
    let mut state = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(number as u64 + 1);
    for element in 0..FIELD_ELEMENTS_PER_BLOB as usize {
        for byte in &mut bytes[element * 32 + 1..(element + 1) * 32] {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *byte = state as u8;
        }
    }
    Blob::new(bytes)
}

#[cfg(test)]
mod tests {
    use alloy_eips::eip4844::env_settings::EnvKzgSettings;

    use super::*;

    #[test]
    fn the_kept_proofs_are_those_that_the_blobs_have() {
        let computed: Vec<u8> = (0..MANY_BLOBS)
            .flat_map(|number| {
                let blob = || vec![filled_blob(number)];
                let cells = BlobTransactionSidecarEip7594::try_from_blobs(blob()).expect("valid");
                let settings = EnvKzgSettings::Default.get();
                let of_blob =
                    BlobTransactionSidecar::try_from_blobs_with_settings(blob(), settings);
                [cells.commitments, of_blob.expect("valid").proofs, cells.cell_proofs].concat()
            })
            .flatten()
            .collect();
        let path = std::env::temp_dir().join("proofs.bin");
        if computed != PROOFS {
            std::fs::write(&path, computed).expect("a file");
            panic!("the right proofs are in {}", path.display());
        }
    }
}
