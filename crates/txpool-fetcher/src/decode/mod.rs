//! Decodes the responses and announcements of a node into transactions. Entry: [`read_response`]
//! and `read_object`.
//!
//! Everything here is pure, and no input causes a panic. A transaction must have the requested or
//! announced hash.

// Bytes from outside are read here: none of them may cause a panic.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::expect_used))]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::string_slice, clippy::unreachable))]

mod object;
mod sidecar;
mod transaction;

pub(crate) use self::object::{FullAnnouncement, announced_hash, read_object};
pub use self::{
    sidecar::{SidecarError, verify_blob_proofs},
    transaction::{Malformed, RawTransaction, read_raw, read_response},
};
