//! Pool and chain together, without a socket and without a clock. Every change returns the
//! notifications that subscribers must get.

use std::{cmp::Ordering, collections::BTreeSet, sync::Arc};

use alloy_consensus::Transaction as _;
use alloy_primitives::map::AddressHashMap;

use crate::{
    chain::{Chain, FullBlock},
    config::NodeConfig,
    error::{NodeError, TxRefused},
    pool::Pool,
    tx::SignedTx,
};

/// The notifications that follow from a change, in their order.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    pub(crate) heads: Vec<Arc<FullBlock>>,
    /// The transactions that became pending.
    pub(crate) announced: Vec<Arc<SignedTx>>,
}

#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) pool: Pool,
    pub(crate) chain: Chain,
    pool_limit: usize,
    block_gas_limit: u64,
    block_max_txs: usize,
}

impl Core {
    pub(crate) fn new(config: &NodeConfig, now_s: u64) -> Self {
        Self {
            pool: Pool::default(),
            chain: Chain::new(config.genesis_s.unwrap_or(now_s), config.block_gas_limit),
            pool_limit: config.pool_limit,
            block_gas_limit: config.block_gas_limit,
            block_max_txs: config.block_max_txs,
        }
    }

    pub(crate) fn submit(&mut self, tx: Arc<SignedTx>) -> Result<Effects, TxRefused> {
        if self.pool.len() >= self.pool_limit {
            return Err(TxRefused::Full { limit: self.pool_limit });
        }
        if self.chain.tx(&tx.hash).is_some() {
            return Err(TxRefused::AlreadyKnown);
        }
        let chain_nonce = self.chain.nonce(&tx.signer());
        let announced = self.pool.insert(tx, chain_nonce)?;
        Ok(Effects { announced, ..Effects::default() })
    }

    /// Mines what is pending, up to the block's limits.
    pub(crate) fn mine(&mut self, now_s: u64) -> (Arc<FullBlock>, Effects) {
        let base_fee = self.chain.next_base_fee_wei().into();
        let txs = self.pool.best(self.block_gas_limit, self.block_max_txs, base_fee);
        self.mine_these(txs, now_s)
    }

    /// Mines exactly these transactions, whether or not the pool has them. Their nonces must follow
    /// each other.
    pub(crate) fn mine_checked(
        &mut self,
        txs: Vec<Arc<SignedTx>>,
        now_s: u64,
    ) -> Result<(Arc<FullBlock>, Effects), TxRefused> {
        let mut nonces: AddressHashMap<u64> = AddressHashMap::default();
        for tx in &txs {
            let next = nonces.entry(tx.signer()).or_insert_with(|| self.chain.nonce(&tx.signer()));
            match tx.nonce().cmp(next) {
                Ordering::Less => {
                    return Err(TxRefused::NonceTooLow { has: tx.nonce(), expected: *next });
                }
                Ordering::Greater => {
                    return Err(TxRefused::NonceTooHigh { has: tx.nonce(), expected: *next });
                }
                Ordering::Equal => *next += 1,
            }
        }
        Ok(self.mine_these(txs, now_s))
    }

    fn mine_these(&mut self, txs: Vec<Arc<SignedTx>>, now_s: u64) -> (Arc<FullBlock>, Effects) {
        let block = self.chain.append(txs, now_s);
        let mut announced = Vec::new();
        // Each sender is visited once, because a visit walks all of its pending transactions.
        for signer in block.txs.iter().map(|tx| tx.signer()).collect::<BTreeSet<_>>() {
            announced.extend(self.pool.set_chain_nonce(signer, self.chain.nonce(&signer)));
        }
        (block.clone(), Effects { heads: vec![block], announced })
    }

    /// Mines empty blocks whose timestamps are `interval_s` seconds apart.
    pub(crate) fn mine_empty(&mut self, count: usize, interval_s: u64) -> Effects {
        let mut append =
            || self.chain.append(Vec::new(), self.chain.head().header.timestamp + interval_s);
        Effects { heads: (0..count).map(|_| append()).collect(), ..Effects::default() }
    }

    /// Replaces the newest `depth` blocks by as many empty ones. Their transactions become pending
    /// again.
    pub(crate) fn reorg(
        &mut self,
        depth: usize,
        now_s: u64,
    ) -> Result<(Vec<Arc<FullBlock>>, Effects), NodeError> {
        let available = self.chain.undoable();
        if depth == 0 || depth > available {
            return Err(NodeError::ReorgTooDeep { depth, available });
        }
        let mut chain = self.chain.clone();
        let mut removed: Vec<_> = (0..depth).map(|_| chain.pop()).collect();
        removed.reverse();
        (0..depth).for_each(|_| _ = chain.append(Vec::new(), now_s));
        Ok((removed, self.follow(chain)))
    }

    /// Begins another chain. All transactions of the pool and of the kept blocks are pending on it.
    pub(crate) fn reset(&mut self, now_s: u64) {
        let mut undone = Vec::new();
        while self.chain.undoable() > 0 {
            undone.push(self.chain.pop());
        }
        self.chain = self.chain.with_new_genesis(now_s);
        let old = std::mem::take(&mut self.pool);
        let mined = undone.iter().rev().flat_map(|block| &block.txs);
        for tx in mined.chain(old.pending()).chain(old.queued()) {
            let inserted = self.pool.insert(tx.clone(), self.chain.nonce(&tx.signer()));
            inserted.expect("no transaction is mined on the new chain, and each has its own nonce");
        }
    }

    /// Adopts the chain of another node. Transactions that only this node's chain had mined become
    /// pending again.
    pub(crate) fn follow(&mut self, chain: Chain) -> Effects {
        let (undone, heads) = (self.chain.without(&chain), chain.without(&self.chain));
        self.chain = chain;
        let mut announced = Vec::new();
        let changed = undone.iter().chain(&heads).flat_map(|block| &block.txs);
        for signer in changed.map(|tx| tx.signer()).collect::<BTreeSet<_>>() {
            announced.extend(self.pool.set_chain_nonce(signer, self.chain.nonce(&signer)));
        }
        for tx in undone.iter().flat_map(|block| &block.txs) {
            if self.chain.tx(&tx.hash).is_none()
                && let Ok(promoted) = self.pool.insert(tx.clone(), self.chain.nonce(&tx.signer()))
            {
                announced.extend(promoted);
            }
        }
        Effects { heads, announced }
    }
}

#[cfg(test)]
mod tests {
    use alloy_consensus::{SignableTransaction as _, TxEip1559, transaction::Recovered};
    use alloy_primitives::{Address, Signature, TxKind};
    use proptest::prelude::*;

    use super::*;

    fn tx(sender: u8, nonce: u64, fee: u128) -> Arc<SignedTx> {
        let sender = Address::with_last_byte(sender);
        let tx = TxEip1559 {
            nonce,
            gas_limit: 21_000,
            max_fee_per_gas: fee * 10_000_000_000,
            max_priority_fee_per_gas: fee,
            to: TxKind::Call(sender),
            ..TxEip1559::default()
        };
        let tx = tx.into_signed(Signature::test_signature()).into();
        Arc::new(SignedTx::new(Recovered::new_unchecked(tx, sender), None))
    }

    proptest! {
        /// Eight of twelve steps submit, two mine, one mines privately, and one is a reorg.
        #[test]
        fn pool_and_chain_agree_after_every_step(
            steps in proptest::collection::vec((0..12, 0u8..4, 0u64..8, 1u128..4), 1..60),
        ) {
            let mut core = Core::new(&NodeConfig::new("unused"), 0);
            for (kind, sender, nonce, fee) in steps {
                match kind {
                    // Some transactions are refused.
                    0..8 => _ = core.submit(tx(sender, nonce, fee)),
                    8..10 => {
                        let txs = 1 + nonce.min(4);
                        core.block_gas_limit = txs * 21_000;
                        let (block, _) = core.mine(0);
                        prop_assert!(block.txs.len() as u64 <= txs);
                    }
                    10 => {
                        let nonce = core.chain.nonce(&Address::with_last_byte(sender));
                        core.mine_checked(vec![tx(sender, nonce, 9)], 0).expect("the next nonce");
                    }
                    _ => {
                        let (depth, undoable) = (fee as usize, core.chain.undoable());
                        prop_assert_eq!(core.reorg(depth, 0).is_ok(), depth <= undoable);
                    }
                }
                core.pool.assert_consistent(|address| core.chain.nonce(address));
            }
            // All pending transactions can be mined, and the nonces of each sender are in order.
            core.block_gas_limit = u64::MAX;
            let pending = core.pool.pending_count();
            let (block, _) = core.mine(0);
            prop_assert_eq!(block.txs.len(), pending);
            for address in (0..4).map(Address::with_last_byte) {
                let txs = block.txs.iter().filter(|tx| tx.signer() == address);
                let nonces: Vec<_> = txs.map(|tx| tx.nonce()).collect();
                prop_assert!(nonces.windows(2).all(|pair| pair[1] == pair[0] + 1));
            }
        }
    }
}
