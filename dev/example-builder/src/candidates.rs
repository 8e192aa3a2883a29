//! The orders that may be included in the next block, read from the events of the pool.

use std::{cmp::Reverse, slice, sync::Arc, time::SystemTime};

use alloy::primitives::{B256, map::B256Map};
use mempool_ingest::order_pool::{Bundle, Event, Order, Subscription, Transaction};
use revm::context::TxEnv;

/// A transaction converted for execution.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tx {
    pub(crate) hash: B256,
    pub(crate) blobs: u64,
    pub(crate) env: TxEnv,
}

impl Tx {
    fn new(tx: &Transaction) -> Self {
        let env = testkit::state::tx_env(tx.envelope(), tx.sender());
        Self { hash: *tx.hash(), blobs: tx.blob_count(), env }
    }
}

/// A transaction of the mempool, or a bundle.
#[derive(Debug)]
pub(crate) struct Candidate {
    order: Arc<Order>,
    pub(crate) txs: Vec<Tx>,
}

impl Candidate {
    pub(crate) fn bundle(&self) -> Option<&Bundle> {
        self.order.as_bundle()
    }

    /// The rank of the order, by which the best-paying comes first. A bundle pays the tips of its
    /// transactions, weighted by their gas limits. Equal orders are ranked by their first-seen
    /// time, then by hash. `None` if it cannot pay the base fee.
    pub(crate) fn rank(&self, base_fee_wei: u64) -> Option<(u128, Reverse<SystemTime>, B256)> {
        let (mut bid, mut gas) = (0_u128, 0_u128);
        for tx in txs(&self.order) {
            bid = bid.saturating_add(tx.tip(base_fee_wei)?.saturating_mul(tx.gas_limit().into()));
            gas += u128::from(tx.gas_limit());
        }
        let first_seen = txs(&self.order).first()?.first_seen();
        Some((bid / gas.max(1), Reverse(first_seen), *self.order.id().hash()))
    }
}

fn txs(order: &Order) -> &[Transaction] {
    match order {
        Order::Tx(tx) => slice::from_ref(tx),
        other => other.as_bundle().map_or(&[], Bundle::txs),
    }
}

/// The pooled orders for one block, and those of them that are new.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    pub(crate) all: B256Map<Candidate>,
    pub(crate) new: Vec<B256>,
}

impl Candidates {
    /// Reads the events of the pool since the last call.
    pub(crate) fn follow(&mut self, pool: &mut Subscription) {
        loop {
            match pool.visit(usize::MAX, |event| self.take(event)) {
                Ok(0) => return,
                Ok(_) => {}
                Err(_) => {
                    *self = Self::default();
                    pool.resync();
                }
            }
        }
    }

    fn take(&mut self, event: &Event) {
        match event {
            Event::Added(order) => {
                let hash = *order.id().hash();
                let txs = txs(order).iter().map(Tx::new).collect();
                self.all.insert(hash, Candidate { order: Arc::clone(order), txs });
                self.new.push(hash);
            }
            Event::Removed { order, .. } => drop(self.all.remove(order.id().hash())),
            _ => {}
        }
    }
}
