//! Compares a node's pool with ours, and fetches what is missing. Entry: [`Comparison::run`].
//!
//! **Subscribe first, then list.** Transactions that the node accepts after the subscription are
//! announced, those from before are listed, and the overlap is deduplicated. So start-up, reconnect,
//! lag, reorg and audit share one mechanism: list the node's pending hashes, subtract ours, fetch the
//! rest.
//!
//! - Before a hash counts as missing, both sides get time to settle: everything that was read from
//!   the socket before is processed first. Transactions that were delivered during the comparison are
//!   newer than the list and are not judged by it.
//! - A comparison for a lag, or on the timer, first waits until live work has caught up: what overran
//!   the buffer is fetched behind what is announced now.
//! - Every comparison lists the pool instead of comparing counts: with one hash too many and one
//!   missing, the counts are equal.
//! - A transaction that we hold, that the node no longer lists and that is in no block is marked as
//!   vanished and stays in the sink, because a builder may still want it. Nothing is marked while the
//!   node counts transactions that it does not list, nor with several sources, because their pools
//!   differ.
//! - Transactions that the node counts but does not list (blob transactions on geth) are reported as
//!   a number.
//!
//! # Locks
//! | lock | who takes it | for how long |
//! |---|---|---|
//! | last comparison | a comparison at its end | one field |

mod compare;
mod list;
mod state;

pub use self::compare::{AuditMode, AuditReport};
pub(crate) use self::{compare::Comparison, state::AuditState};
