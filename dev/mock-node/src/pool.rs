//! The node's pool: a sender's transactions are pending up to the first missing nonce, and queued
//! after it.

use std::{collections::BTreeMap, sync::Arc};

use alloy_consensus::Transaction as _;
use alloy_primitives::{
    Address, B256,
    map::{AddressHashMap, B256HashMap, HashSet},
};

use crate::{error::TxRefused, tx::SignedTx};

/// By how much a replacement must raise the fees, in percent: the defaults of reth and geth, for
/// blob transactions and for others.
const PRICE_BUMP_PERCENT: u128 = 10;
const BLOB_PRICE_BUMP_PERCENT: u128 = 100;

#[derive(Debug, Default)]
pub(crate) struct Pool {
    /// All transactions in the order of their arrival. A replacement takes the place of the
    /// transaction that it replaces.
    order: BTreeMap<u64, Arc<SignedTx>>,
    /// The key of each transaction in `order`.
    places: B256HashMap<u64>,
    senders: AddressHashMap<Sender>,
    next_place: u64,
}

#[derive(Debug, Default)]
struct Sender {
    by_nonce: BTreeMap<u64, Arc<SignedTx>>,
    /// The first nonce that is not pending.
    next: u64,
}

impl Sender {
    /// Makes transactions pending that follow the pending ones without a gap, and returns them.
    fn promote(&mut self) -> Vec<Arc<SignedTx>> {
        let mut promoted = Vec::new();
        while let Some(tx) = self.by_nonce.get(&self.next) {
            promoted.push(tx.clone());
            self.next += 1;
        }
        promoted
    }
}

impl Pool {
    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    pub(crate) fn get(&self, hash: &B256) -> Option<&Arc<SignedTx>> {
        self.order.get(self.places.get(hash)?)
    }

    fn is_pending(&self, tx: &SignedTx) -> bool {
        tx.nonce() < self.senders[&tx.signer()].next
    }

    /// Pending transactions in the order of their arrival.
    pub(crate) fn pending(&self) -> impl Iterator<Item = &Arc<SignedTx>> {
        self.order.values().filter(|tx| self.is_pending(tx))
    }

    pub(crate) fn queued(&self) -> impl Iterator<Item = &Arc<SignedTx>> {
        self.order.values().filter(|tx| !self.is_pending(tx))
    }

    pub(crate) fn pending_count(&self) -> usize {
        let counts =
            self.senders.values().map(|sender| sender.by_nonce.range(..sender.next).count());
        counts.sum()
    }

    /// The nonce after the sender's last pending transaction, if it has any here.
    pub(crate) fn next_nonce(&self, sender: &Address) -> Option<u64> {
        self.senders.get(sender).map(|sender| sender.next)
    }

    /// Inserts a transaction. Returns the transactions that became pending, in their order.
    pub(crate) fn insert(
        &mut self,
        tx: Arc<SignedTx>,
        chain_nonce: u64,
    ) -> Result<Vec<Arc<SignedTx>>, TxRefused> {
        if self.places.contains_key(&tx.hash) {
            return Err(TxRefused::AlreadyKnown);
        }
        if tx.nonce() < chain_nonce {
            return Err(TxRefused::NonceTooLow { has: tx.nonce(), expected: chain_nonce });
        }
        let none = || Sender { by_nonce: BTreeMap::new(), next: chain_nonce };
        let sender = self.senders.entry(tx.signer()).or_insert_with(none);
        let place = match sender.by_nonce.get(&tx.nonce()) {
            Some(old) => {
                check_bump(old, &tx)?;
                self.places.remove(&old.hash).expect("all indexes hold the same transactions")
            }
            None => {
                self.next_place += 1;
                self.next_place
            }
        };
        sender.by_nonce.insert(tx.nonce(), tx.clone());
        self.places.insert(tx.hash, place);
        self.order.insert(place, tx.clone());
        Ok(if tx.nonce() < sender.next { vec![tx] } else { sender.promote() })
    }

    /// Sets the next nonce of an account on the chain, which is higher than before or, after a
    /// reorg, lower. Removes transactions with lower nonces, and returns the transactions that
    /// became pending.
    pub(crate) fn set_chain_nonce(
        &mut self,
        address: Address,
        chain_nonce: u64,
    ) -> Vec<Arc<SignedTx>> {
        let Some(sender) = self.senders.get_mut(&address) else {
            return Vec::new();
        };
        let kept = sender.by_nonce.split_off(&chain_nonce);
        for stale in std::mem::replace(&mut sender.by_nonce, kept).into_values() {
            let place =
                self.places.remove(&stale.hash).expect("all indexes hold the same transactions");
            self.order.remove(&place);
        }
        if sender.by_nonce.is_empty() {
            self.senders.remove(&address);
            return Vec::new();
        }
        let before = std::mem::replace(&mut sender.next, chain_nonce);
        let mut promoted = sender.promote();
        promoted.retain(|tx| tx.nonce() >= before);
        promoted
    }

    /// Selects the transactions of the next block: pending ones by age, those of each sender by
    /// nonce, as far as they fit and can pay the base fee.
    pub(crate) fn best(&self, gas_limit: u64, max_txs: usize, fee_wei: u128) -> Vec<Arc<SignedTx>> {
        let mut gas_left = gas_limit;
        let mut taken: AddressHashMap<u64> = AddressHashMap::default();
        let mut blocked: HashSet<Address> = HashSet::default();
        let mut best = Vec::new();
        for tx in self.pending() {
            if best.len() >= max_txs || gas_left < 21_000 {
                break;
            }
            if blocked.contains(&tx.signer()) {
                continue;
            }
            let by_nonce = &self.senders[&tx.signer()].by_nonce;
            // After a reorg, low nonces can stand behind higher ones. So the place in the order
            // selects the sender, and the nonce selects its transaction.
            let nonce = taken
                .entry(tx.signer())
                .or_insert_with(|| *by_nonce.first_key_value().expect("it has this one").0);
            let tx = &by_nonce[nonce];
            if tx.gas_limit() > gas_left || tx.max_fee_per_gas() < fee_wei {
                blocked.insert(tx.signer());
                continue;
            }
            *nonce += 1;
            gas_left -= tx.gas_limit();
            best.push(tx.clone());
        }
        best
    }

    /// Asserts that the indexes agree, and that exactly the gapless nonces of each sender are
    /// pending.
    #[cfg(test)]
    pub(crate) fn assert_consistent(&self, chain_nonce: impl Fn(&Address) -> u64) {
        for (place, tx) in &self.order {
            assert_eq!(self.places[&tx.hash], *place);
            assert_eq!(self.senders[&tx.signer()].by_nonce[&tx.nonce()].hash, tx.hash);
        }
        let count = self.senders.values().map(|sender| sender.by_nonce.len()).sum::<usize>();
        assert_eq!((self.places.len(), count), (self.order.len(), self.order.len()));
        for (address, Sender { by_nonce, next }) in &self.senders {
            let first = chain_nonce(address);
            assert!(by_nonce.keys().all(|nonce| *nonce >= first), "mined nonces are removed");
            let gapless = (first..).take_while(|nonce| by_nonce.contains_key(nonce)).count();
            assert_eq!(next - first, gapless as u64, "pending up to the first missing nonce");
        }
    }
}

fn check_bump(old: &SignedTx, new: &SignedTx) -> Result<(), TxRefused> {
    let percent = if old.is_eip4844() { BLOB_PRICE_BUMP_PERCENT } else { PRICE_BUMP_PERCENT };
    let bumped = |fee: u128| fee.saturating_mul(100 + percent).div_ceil(100);
    let blob_fee_enough = match (old.max_fee_per_blob_gas(), new.max_fee_per_blob_gas()) {
        (Some(old), Some(new)) => new >= bumped(old),
        (None, None) => true,
        // In reth and geth a blob transaction cannot replace another kind, nor the other way round.
        _ => false,
    };
    if new.max_fee_per_gas() >= bumped(old.max_fee_per_gas())
        && new.priority_fee_or_price() >= bumped(old.priority_fee_or_price())
        && blob_fee_enough
    {
        Ok(())
    } else {
        Err(TxRefused::Underpriced { existing: old.hash })
    }
}
