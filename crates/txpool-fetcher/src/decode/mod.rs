//! Decodes what a node sends as a transaction.

mod object;
mod sidecar;
mod transaction;

pub(crate) use self::{
    object::announced_hash,
    transaction::{is_on_chain, read_hex},
};
pub use self::{
    object::{FullAnnouncement, FullTransaction, ObjectError, read_object},
    sidecar::{SidecarError, verify_blob_proofs},
    transaction::{Answer, Malformed, read_answer, read_raw},
};
