//! Sidecars with valid KZG proofs, made once for the process.

use std::{
    sync::{Arc, OnceLock},
    thread,
};

use alloy_eips::{
    eip4844::{
        BYTES_PER_BLOB, Blob, BlobTransactionSidecar, Bytes48, FIELD_ELEMENTS_PER_BLOB,
        env_settings::EnvKzgSettings,
    },
    eip7594::{BlobTransactionSidecarEip7594, BlobTransactionSidecarVariant},
};
use serde::{Deserialize, Serialize};

use crate::tx::Sidecar;

/// Blobs of the larger kind of blob transaction. Mainnet has allowed 9 per block since Prague; Osaka allows at most 6
/// in one transaction (EIP-7594).
pub const MANY_BLOBS: usize = 6;

/// Which proofs stand in a sidecar.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum SidecarForm {
    /// 128 cell proofs per blob (EIP-7594), what nodes serve and accept since Osaka.
    #[default]
    CellProofs,
    /// One proof per blob (EIP-4844). anvil and geth take it in, reth refuses it.
    BlobProofs,
}

/// The sidecar with one blob, or with [`MANY_BLOBS`]. The first call for a form computes its proofs: about 0.2 s of
/// processor time per blob with cell proofs.
pub fn sidecar(form: SidecarForm, many: bool) -> BlobTransactionSidecarVariant {
    let (one, six) = made(form);
    if many { six.clone() } else { one.clone() }
}

pub(crate) fn shared_sidecar(form: SidecarForm, many: bool) -> Arc<Sidecar> {
    static SHARED: [OnceLock<Arc<Sidecar>>; 4] = [const { OnceLock::new() }; 4];
    let slot = usize::from(form == SidecarForm::BlobProofs) * 2 + usize::from(many);
    SHARED[slot].get_or_init(|| Arc::new(Sidecar::new(&sidecar(form, many)))).clone()
}

type Pair = (BlobTransactionSidecarVariant, BlobTransactionSidecarVariant);

fn made(form: SidecarForm) -> &'static Pair {
    static CELLS: OnceLock<Pair> = OnceLock::new();
    static BLOBS: OnceLock<Pair> = OnceLock::new();
    match form {
        SidecarForm::CellProofs => CELLS.get_or_init(|| {
            let parts = per_blob(|blob| {
                let made = BlobTransactionSidecarEip7594::try_from_blobs(vec![blob])
                    .expect("field elements are below the modulus");
                (made.commitments[0], made.cell_proofs)
            });
            join(parts, |blobs, commitments, proofs| {
                BlobTransactionSidecarEip7594::new(blobs, commitments, proofs).into()
            })
        }),
        SidecarForm::BlobProofs => BLOBS.get_or_init(|| {
            let parts = per_blob(|blob| {
                let made = BlobTransactionSidecar::try_from_blobs_with_settings(
                    vec![blob],
                    EnvKzgSettings::Default.get(),
                )
                .expect("field elements are below the modulus");
                (made.commitments[0], made.proofs)
            });
            join(parts, |blobs, commitments, proofs| {
                BlobTransactionSidecar::new(blobs, commitments, proofs).into()
            })
        }),
    }
}

type Part = (Blob, Bytes48, Vec<Bytes48>);

/// Runs the proving of each blob, half of them on another thread.
fn per_blob(prove: impl Fn(Blob) -> (Bytes48, Vec<Bytes48>) + Sync) -> Vec<Part> {
    let prove = |number: usize| {
        let blob = filled_blob(number);
        let (commitment, proofs) = prove(blob);
        (blob, commitment, proofs)
    };
    thread::scope(|scope| {
        let half = scope.spawn(|| (0..MANY_BLOBS / 2).map(prove).collect::<Vec<_>>());
        let rest: Vec<_> = (MANY_BLOBS / 2..MANY_BLOBS).map(prove).collect();
        let mut parts = half.join().expect("proving does not panic");
        parts.extend(rest);
        parts
    })
}

fn join(
    parts: Vec<Part>,
    build: impl Fn(Vec<Blob>, Vec<Bytes48>, Vec<Bytes48>) -> BlobTransactionSidecarVariant,
) -> Pair {
    let all = |parts: &[Part]| {
        build(
            parts.iter().map(|part| part.0).collect(),
            parts.iter().map(|part| part.1).collect(),
            parts.iter().flat_map(|part| part.2.iter().copied()).collect(),
        )
    };
    (all(&parts[..1]), all(&parts))
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
