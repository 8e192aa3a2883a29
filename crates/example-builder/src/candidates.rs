//! The orders that may go into the next block, as the pool tells them.

use std::{sync::Arc, time::SystemTime};

use alloy_primitives::{Address, B256, map::B256Map};
use mempool_ingest::order_pool::{Bundle, EventRef, Order, OrderId, Subscription, Transaction};
use revm::context::TxEnv;

use crate::env::tx_env;

/// A transaction in the form in which it is executed.
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

/// A bundle in the form in which it is executed.
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

    /// The tip that its transactions bid, weighed by their gas limits. What they pay the fee recipient beside it is
    /// not known before they are executed.
    pub(crate) fn tip_wei(&self, base_fee_wei: u64) -> u128 {
        let weighed = |tx: &Candidate| {
            tx.tip_wei(base_fee_wei).unwrap_or(0).saturating_mul(tx.gas_limit.into())
        };
        let gas: u128 = self.txs.iter().map(|tx| u128::from(tx.gas_limit)).sum();
        self.txs.iter().map(weighed).fold(0, u128::saturating_add) / gas.max(1)
    }
}

/// What is pooled for one block, and what of it is new.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    pub(crate) txs: B256Map<Arc<Candidate>>,
    pub(crate) bundles: B256Map<Arc<CandidateBundle>>,
    new: Vec<Arc<Candidate>>,
    new_bundles: Vec<Arc<CandidateBundle>>,
    /// Of the block before: most of them are still there, and need no conversion.
    before: B256Map<Arc<Candidate>>,
    pub(crate) lagged: u64,
}

impl Candidates {
    /// Begins anew, for another block.
    pub(crate) fn renew(&mut self) {
        self.before = std::mem::take(&mut self.txs);
        self.bundles.clear();
        self.new.clear();
        self.new_bundles.clear();
    }

    /// Takes the events of the pool since the last time.
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

    fn take(&mut self, event: EventRef<'_>) {
        match event {
            EventRef::Added(order) => match order.as_ref() {
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
            EventRef::Removed { order, .. } => match order.id() {
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

    /// What has come since the last time and is still there.
    pub(crate) fn take_new(&mut self) -> Vec<TxEnv> {
        let bundles = std::mem::take(&mut self.new_bundles);
        let bundled = bundles.iter().flat_map(|bundle| &bundle.txs).map(|tx| tx.env.clone());
        let txs = std::mem::take(&mut self.new);
        let there = txs.iter().filter(|tx| self.txs.contains_key(&tx.hash));
        there.map(|tx| tx.env.clone()).chain(bundled).collect()
    }
}
