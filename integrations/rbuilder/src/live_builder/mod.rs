//! The parts of rbuilder's `live_builder` that the adapters use.

pub mod order_input;

/// The type of rbuilder's lists.
pub mod block_list_provider {
    /// A set of listed addresses.
    pub type BlockList = ahash::HashSet<alloy_primitives::Address>;
}
