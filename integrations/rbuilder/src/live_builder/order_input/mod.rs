//! The parts of rbuilder's `order_input` that [`txpool_fetcher`] uses.

#![allow(missing_docs, reason = "rbuilder documents the originals")]

pub mod txpool_fetcher;

use std::{path::PathBuf, sync::Arc};

use rbuilder_primitives::Order;

#[derive(Clone, Debug)]
pub enum MempoolSource {
    Ipc(PathBuf),
    Ws(String),
}

/// The original has more fields.
#[derive(Clone, Debug)]
pub struct OrderInputConfig {
    pub mempool_source: Option<MempoolSource>,
}

/// The original has cancellations too.
#[derive(Clone, Debug)]
pub enum ReplaceableOrderPoolCommand {
    Order(Arc<Order>),
}
