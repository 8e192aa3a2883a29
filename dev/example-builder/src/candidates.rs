//! The orders that may go into the next block, from the pool's events.

use std::{sync::Arc, time::SystemTime};

use alloy_primitives::{Address, B256, map::B256Map};
use mempool_ingest::order_pool::{Bundle, Event, Order, OrderId, Subscription, Transaction};
use revm::context::TxEnv;

use crate::env::tx_env;

/// A transaction converted for execution.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub(crate) hash: B256,
    pub(crate) sender: Address,
    pub(crate) nonce: u64,
    pub(crate) gas_limit: u64,
    pub(crate) blobs: u64,
    pub(crate) first_seen: SystemTime,
    pub(crate) env: TxEnv,
    max_fee_wei: u128,
    max_tip_wei: u128,
}

impl Candidate {
    pub(crate) fn new(tx: &Transaction) -> Self {
        Self {
            hash: *tx.hash(),
            sender: tx.sender(),
            nonce: tx.nonce(),
            gas_limit: tx.gas_limit(),
            blobs: tx.blob_count(),
            first_seen: tx.first_seen(),
            env: tx_env(tx),
            max_fee_wei: tx.max_fee_wei(),
            max_tip_wei: tx.max_tip_wei(),
        }
    }

    /// What it pays the fee recipient per gas; `None` if it cannot pay the base fee.
    pub(crate) fn tip_wei(&self, base_fee_wei: u64) -> Option<u128> {
        Some(self.max_fee_wei.checked_sub(base_fee_wei.into())?.min(self.max_tip_wei))
    }
}

/// A bundle converted for execution.
#[derive(Debug)]
pub(crate) struct CandidateBundle {
    pub(crate) hash: B256,
    pub(crate) txs: Vec<Candidate>,
    pub(crate) order: Arc<Order>,
}

impl CandidateBundle {
    fn new(order: Arc<Order>) -> Option<Self> {
        let bundle = order.as_bundle()?;
        let txs = bundle.txs().iter().map(Candidate::new).collect();
        Some(Self { hash: *bundle.id(), txs, order })
    }

    pub(crate) fn bundle(&self) -> &Bundle {
        self.order.as_bundle().expect("it was made from one")
    }

    /// The tip that its transactions bid, weighted by their gas limits. Further payments to the fee
    /// recipient are not known before the execution.
    pub(crate) fn tip_wei(&self, base_fee_wei: u64) -> u128 {
        let weighed = |tx: &Candidate| {
            tx.tip_wei(base_fee_wei).unwrap_or(0).saturating_mul(tx.gas_limit.into())
        };
        let gas: u128 = self.txs.iter().map(|tx| u128::from(tx.gas_limit)).sum();
        self.txs.iter().map(weighed).fold(0, u128::saturating_add) / gas.max(1)
    }
}

/// The pooled orders for one block, and the new ones among them.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    pub(crate) txs: B256Map<Arc<Candidate>>,
    pub(crate) bundles: B256Map<Arc<CandidateBundle>>,
    new: Vec<Arc<Candidate>>,
    new_bundles: Vec<Arc<CandidateBundle>>,
    /// From the block before: most of them are still pooled, and need no conversion.
    before: B256Map<Arc<Candidate>>,
    pub(crate) lagged: u64,
}

impl Candidates {
    /// Starts again for another block.
    pub(crate) fn renew(&mut self) {
        self.before = std::mem::take(&mut self.txs);
        self.bundles.clear();
        self.new.clear();
        self.new_bundles.clear();
    }

    /// Reads the pool's events since the last call.
    pub(crate) fn follow(&mut self, pool: &mut Subscription) {
        loop {
            match pool.visit(usize::MAX, |event| self.take(event)) {
                Ok(0) => return,
                Ok(_) => {}
                Err(lagged) => {
                    self.lagged += lagged.missed;
                    self.renew();
                    pool.resync();
                }
            }
        }
    }

    fn take(&mut self, event: &Event) {
        match event {
            Event::Added(order) => match order.as_ref() {
                Order::Tx(tx) => {
                    let known = self.before.remove(tx.hash());
                    let tx = known.unwrap_or_else(|| Arc::new(Candidate::new(tx)));
                    self.new.push(Arc::clone(&tx));
                    self.txs.insert(tx.hash, tx);
                }
                _ => {
                    if let Some(bundle) = CandidateBundle::new(Arc::clone(order)).map(Arc::new) {
                        self.new_bundles.push(Arc::clone(&bundle));
                        self.bundles.insert(bundle.hash, bundle);
                    }
                }
            },
            Event::Removed { order, .. } => match order.id() {
                OrderId::Tx(hash) => drop(self.txs.remove(&hash)),
                id => drop(self.bundles.remove(id.hash())),
            },
            _ => {}
        }
    }

    /// A transaction by its hash, alone or in a bundle.
    pub(crate) fn env_of(&self, hash: &B256) -> Option<TxEnv> {
        let alone = self.txs.get(hash).map(|tx| tx.env.clone());
        alone.or_else(|| {
            let bundled = self.bundles.values().flat_map(|bundle| &bundle.txs);
            bundled.filter(|tx| tx.hash == *hash).map(|tx| tx.env.clone()).next()
        })
    }

    /// The orders that were added since the last call and are still pooled.
    pub(crate) fn take_new(&mut self) -> Vec<TxEnv> {
        let bundles = std::mem::take(&mut self.new_bundles);
        let bundled = bundles.iter().flat_map(|bundle| &bundle.txs).map(|tx| tx.env.clone());
        let txs = std::mem::take(&mut self.new);
        let there = txs.iter().filter(|tx| self.txs.contains_key(&tx.hash));
        there.map(|tx| tx.env.clone()).chain(bundled).collect()
    }
}
