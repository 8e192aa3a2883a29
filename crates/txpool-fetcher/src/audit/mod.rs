//! Compares the node's pool with ours.

mod compare;
mod list;

pub(crate) use self::{
    compare::Comparison,
    list::{Content, list},
};
pub use self::{
    compare::{AuditMode, AuditReport},
    list::SnapshotError,
};
