//! Decides by when a promise must be kept, from the faults that disturb the path of an order.

use std::time::Duration;

use super::GRACE_NS;
use crate::world::Part;

/// A bundle for the next block reaches the builders of a fleet in time if the next head comes this
/// much later.
const NEXT_BLOCK_NS: u64 = 500_000_000;

/// A period in which a part of the world may be late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Disturbance {
    pub(crate) part: Part,
    pub(crate) begins: u64,
    pub(crate) ends: u64,
}

impl Disturbance {
    pub(crate) const fn new(part: Part, begins: u64, duration: Duration) -> Self {
        Self { part, begins, ends: begins + duration.as_nanos() as u64 }
    }

    /// Inserts it in the order in which disturbances begin, which [`deadline`] needs.
    pub(crate) fn add_to(self, disturbances: &mut Vec<Self>) {
        let index = disturbances.partition_point(|other| other.begins <= self.begins);
        disturbances.insert(index, self);
    }
}

/// Returns when an order that came at `received_at` must have arrived, if its path leads over these
/// parts: after the grace, or a grace after the last disturbance that it met. A fault during the
/// recovery from another one extends it.
pub(crate) fn deadline(received_at: u64, path: &[Part], disturbances: &[Disturbance]) -> u64 {
    let mut deadline = received_at + GRACE_NS;
    for disturbance in disturbances {
        let is_on_path = disturbance.part == Part::All || path.contains(&disturbance.part);
        if is_on_path && disturbance.begins <= deadline && disturbance.ends >= received_at {
            deadline = deadline.max(disturbance.ends + GRACE_NS);
        }
    }
    deadline
}

/// Whether a fault disturbed the path of an order that came at `received_at`.
pub(crate) fn is_disturbed(received_at: u64, path: &[Part], disturbances: &[Disturbance]) -> bool {
    deadline(received_at, path, disturbances) > received_at + GRACE_NS
}

/// Returns the head at a time, and when the next one came. Heads are numbers, each with its time,
/// oldest first.
fn head_at(heads: &[(u64, u64)], now: u64) -> (Option<u64>, Option<u64>) {
    let known = heads.partition_point(|(_, announced_at)| *announced_at <= now);
    let number = heads[..known].last().map(|(number, _)| *number);
    (number, heads.get(known).map(|(_, announced_at)| *announced_at))
}

/// Whether a bundle for the next block that a machine accepted must reach the other builders of a
/// fleet: the machine knew the chain's head, and the next head came more than [`NEXT_BLOCK_NS`]
/// later.
pub(crate) fn is_for_next_block(
    machine_heads: &[(u64, u64)],
    chain_heads: &[(u64, u64)],
    answered_at: u64,
) -> bool {
    let (latest, next_at) = head_at(chain_heads, answered_at);
    let is_close = next_at.is_some_and(|next_at| next_at - answered_at <= NEXT_BLOCK_NS);
    head_at(machine_heads, answered_at).0 == latest && !is_close
}
