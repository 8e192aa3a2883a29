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

pub use self::compare::{AuditMode, AuditReport};
pub(crate) use self::compare::{AuditState, Comparison};
