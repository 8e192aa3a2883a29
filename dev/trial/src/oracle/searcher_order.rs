//! Judges one order of a searcher from the messages that it was made, replaced and cancelled with.

use alloy_primitives::B256;

use super::Breach;

/// How a server answered a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Accepted,
    /// The message changes nothing.
    Refused,
    /// No answer came, or the machine was killed before it was sure to have published the order:
    /// the message may or may not have taken effect.
    InDoubt,
}

/// A searcher's message, as one builder hears of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// The content that the order has from then on; `None` after a cancellation.
    pub(crate) content: Option<B256>,
    pub(crate) outcome: Outcome,
    /// When the message must have taken effect.
    pub(crate) deadline: u64,
}

/// How far the chain that a builder knows is, compared with the block of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockPhase {
    /// The block is still to come.
    Open,
    /// The block, or one that contains the order, is being announced: the order may be there or
    /// not.
    Ending,
    /// The builder has known for a while that the block has passed, or that a block contains the
    /// order.
    Over,
}

/// Judges an order whose versions are all for one block. `held` are the versions that the pool
/// holds.
///
/// The order can be what the last message made of it that must have taken effect, or what any later
/// message made.
pub(super) fn judge(
    messages: &[Message],
    now: u64,
    phase: BlockPhase,
    held: &[B256],
) -> Option<Breach> {
    if phase == BlockPhase::Over {
        return (!held.is_empty()).then_some(Breach::Over);
    }
    let mut possible = vec![None];
    for message in messages {
        match message.outcome {
            Outcome::Refused => continue,
            Outcome::Accepted if message.deadline <= now => possible.clear(),
            Outcome::Accepted | Outcome::InDoubt => {}
        }
        possible.push(message.content);
    }
    if held.is_empty() {
        let may_lack = phase == BlockPhase::Ending || possible.contains(&None);
        return (!may_lack).then_some(Breach::Missing);
    }
    // Two versions are there while one replaces the other.
    if held.iter().all(|version| possible.contains(&Some(*version))) {
        None
    } else if possible.iter().any(Option::is_some) {
        Some(Breach::Replaced)
    } else {
        Some(Breach::Cancelled)
    }
}
