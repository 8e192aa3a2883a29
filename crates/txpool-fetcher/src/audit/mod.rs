//! Compares a node's pool with ours, and fetches what is missing. Entry: [`Comparison::run`].
//!
//! **Subscribe first, then list**, for start-up, reconnect, lag, reorg and audit alike. Every comparison
//! lists the pool instead of comparing counts: with one hash too many and one missing, these are equal.
//!
//! # Locks
//! | lock | who takes it | for how long |
//! |---|---|---|
//! | last comparison | a comparison at its end | one field |

mod compare;
mod list;

use std::{
    sync::{Mutex, atomic::AtomicU64},
    time::Instant,
};

pub(crate) use self::compare::Comparison;
pub use self::compare::{AuditMode, AuditReport};

/// The comparisons of one source, for display.
#[derive(Debug, Default)]
pub(crate) struct AuditState {
    /// How many were started.
    pub(crate) audits: AtomicU64,
    /// How many they still have to fetch.
    pub(crate) to_recover: AtomicU64,
    /// When the latest full comparison began.
    compared: Mutex<Option<Instant>>,
}
