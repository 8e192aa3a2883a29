//! Compares a node's pool with ours, and fetches what is missing. Entry: [`Comparison::run`].
//!
//! **Subscribe first, then list.** Transactions that the node accepts after the subscription are
//! announced, those from before are listed, and the overlap is deduplicated. So start-up, reconnect,
//! lag, reorg and audit share one mechanism: list the node's pending hashes, subtract ours, fetch the
//! rest. Every comparison lists the pool instead of comparing counts: with one hash too many and one
//! missing, the counts are equal.
//!
//! # Locks
//! | lock | who takes it | for how long |
//! |---|---|---|
//! | last comparison | a comparison at its end | one field |

mod compare;
mod list;
mod state;

pub use self::compare::{AuditMode, AuditReport};
pub(crate) use self::{
    compare::Comparison,
    state::{AuditState, Listings},
};
