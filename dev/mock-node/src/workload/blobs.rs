//! Sidecars with valid KZG proofs.
//!
//! The blobs are always the same, so their commitments and proofs are stored in `proofs.bin`.
//! Computing them would take 0.2 s of CPU time for each blob, and a second for the trusted setup.

use std::sync::{Arc, OnceLock};

use alloy_eips::{
    eip4844::{BYTES_PER_BLOB, Blob, Bytes48, FIELD_ELEMENTS_PER_BLOB},
    eip7594::{BlobTransactionSidecarEip7594, CELLS_PER_EXT_BLOB},
};

use crate::tx::Sidecar;

/// Blobs of the larger kind of blob transaction. Mainnet has allowed 9 per block since Prague;
/// Osaka allows at most 6 in one transaction (EIP-7594).
pub(crate) const MANY_BLOBS: usize = 6;

/// The stored bytes of each blob: its commitment and the proofs of its cells.
const STORED_BYTES: usize = 48 * (1 + CELLS_PER_EXT_BLOB);
static PROOFS: &[u8; MANY_BLOBS * STORED_BYTES] = include_bytes!("proofs.bin");

/// Makes a sidecar of one blob or [`MANY_BLOBS`] with cell proofs (EIP-7594), as nodes serve and
/// accept since Osaka.
fn sidecar(many: bool) -> BlobTransactionSidecarEip7594 {
    let (mut blobs, mut commitments, mut proofs) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..if many { MANY_BLOBS } else { 1 } {
        let mut kept = PROOFS[number * STORED_BYTES..][..STORED_BYTES]
            .chunks_exact(48)
            .map(Bytes48::from_slice);
        blobs.push(filled_blob(number));
        commitments.extend(kept.next());
        proofs.extend(kept);
    }
    BlobTransactionSidecarEip7594::new(blobs, commitments, proofs)
}

pub(super) fn shared_sidecar(many: bool) -> Arc<Sidecar> {
    static SHARED: [OnceLock<Arc<Sidecar>>; 2] = [const { OnceLock::new() }; 2];
    let shared = &SHARED[usize::from(many)];
    shared.get_or_init(|| Arc::new(Sidecar::new(&sidecar(many).into()))).clone()
}

/// Fills a blob like compressed rollup data: every field element is full, except for its first
/// byte, which is zero so that the element is below the modulus.
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
    use super::*;

    #[test]
    fn the_stored_proofs_match_the_blobs() {
        let computed: Vec<u8> = (0..MANY_BLOBS)
            .flat_map(|number| {
                let blob = vec![filled_blob(number)];
                let cells = BlobTransactionSidecarEip7594::try_from_blobs(blob).expect("valid");
                [cells.commitments, cells.cell_proofs].concat()
            })
            .flatten()
            .collect();
        let path = std::env::temp_dir().join("proofs.bin");
        if computed != PROOFS {
            std::fs::write(&path, computed).expect("a file");
            panic!("the correct proofs are in {}", path.display());
        }
    }
}
