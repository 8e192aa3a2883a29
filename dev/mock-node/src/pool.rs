//! The node's pool: per sender the nonces in a row are pending, what lies beyond a gap is queued.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
};

use alloy_consensus::Transaction as _;
use alloy_primitives::{
    Address, B256,
    map::{AddressHashMap, B256HashMap, HashSet},
};

use crate::{error::TxRefused, tx::SignedTx};

/// What a replacement must add to the fees of what it replaces, in percent: the default of reth and geth, for blob
/// transactions and others.
const PRICE_BUMP_PERCENT: u128 = 10;
const BLOB_PRICE_BUMP_PERCENT: u128 = 100;

#[derive(Debug, Default)]
pub(crate) struct Pool {
    txs: B256HashMap<Slot>,
    senders: AddressHashMap<Sender>,
    /// Pending transactions in the order in which they became so.
    order: BTreeMap<u64, B256>,
    next_place: u64,
}

#[derive(Debug)]
struct Slot {
    tx: Arc<SignedTx>,
    /// Its key in `order`; none while queued.
    place: Option<u64>,
}

#[derive(Debug, Default)]
struct Sender {
    by_nonce: BTreeMap<u64, B256>,
    /// The first nonce that is not pending.
    next: u64,
}

impl Pool {
    pub(crate) fn len(&self) -> usize {
        self.txs.len()
    }

    pub(crate) fn pending_count(&self) -> usize {
        self.order.len()
    }

    pub(crate) fn get(&self, hash: &B256) -> Option<&Arc<SignedTx>> {
        self.txs.get(hash).map(|slot| &slot.tx)
    }

    /// Pending transactions in the order in which they became so.
    pub(crate) fn pending(&self) -> impl Iterator<Item = &Arc<SignedTx>> {
        self.order.values().map(|hash| &self.txs[hash].tx)
    }

    /// Queued transactions in no order.
    pub(crate) fn queued(&self) -> impl Iterator<Item = &Arc<SignedTx>> {
        self.txs.values().filter(|slot| slot.place.is_none()).map(|slot| &slot.tx)
    }

    /// The nonce after the sender's last pending transaction, if it has any here.
    pub(crate) fn next_nonce(&self, sender: &Address) -> Option<u64> {
        self.senders.get(sender).map(|sender| sender.next)
    }

    /// Takes a transaction in. Returns those that thereby became pending, in their order.
    pub(crate) fn insert(
        &mut self,
        tx: Arc<SignedTx>,
        chain_nonce: u64,
    ) -> Result<Vec<Arc<SignedTx>>, TxRefused> {
        if self.txs.contains_key(&tx.hash) {
            return Err(TxRefused::AlreadyKnown);
        }
        if tx.nonce() < chain_nonce {
            return Err(TxRefused::NonceTooLow { has: tx.nonce(), expected: chain_nonce });
        }
        let sender = self
            .senders
            .entry(tx.signer())
            .or_insert_with(|| Sender { by_nonce: BTreeMap::new(), next: chain_nonce });
        match sender.by_nonce.entry(tx.nonce()) {
            Entry::Vacant(vacant) => {
                vacant.insert(tx.hash);
                let address = tx.signer();
                self.txs.insert(tx.hash, Slot { tx, place: None });
                Ok(self.promote(address))
            }
            Entry::Occupied(mut occupied) => {
                let old = occupied.get();
                check_bump(&self.txs[old].tx, &tx)?;
                let slot = self.txs.remove(old).expect("both indexes hold the same");
                occupied.insert(tx.hash);
                if let Some(place) = slot.place {
                    self.order.insert(place, tx.hash);
                }
                self.txs.insert(tx.hash, Slot { tx: tx.clone(), place: slot.place });
                Ok(if slot.place.is_some() { vec![tx] } else { Vec::new() })
            }
        }
    }

    /// Follows the chain: this sender's next nonce there is now `chain_nonce`, higher or, after a reorg, lower than
    /// before. What is behind it goes; returns what became pending.
    pub(crate) fn set_chain_nonce(
        &mut self,
        address: Address,
        chain_nonce: u64,
    ) -> Vec<Arc<SignedTx>> {
        let Some(sender) = self.senders.get_mut(&address) else {
            return Vec::new();
        };
        let kept = sender.by_nonce.split_off(&chain_nonce);
        let stale = std::mem::replace(&mut sender.by_nonce, kept);
        for hash in stale.into_values() {
            if let Some(Slot { place: Some(place), .. }) = self.txs.remove(&hash) {
                self.order.remove(&place);
            }
        }
        let sender = self.senders.get_mut(&address).expect("it was there above");
        if sender.by_nonce.is_empty() {
            self.senders.remove(&address);
            return Vec::new();
        }
        sender.next = chain_nonce;
        self.promote(address)
    }

    /// Gives a place to what follows the sender's pending transactions without a gap, and takes it from what no
    /// longer does.
    fn promote(&mut self, address: Address) -> Vec<Arc<SignedTx>> {
        let sender = self.senders.get_mut(&address).expect("only called for senders of the pool");
        let mut promoted = Vec::new();
        while let Some(hash) = sender.by_nonce.get(&sender.next) {
            let slot = self.txs.get_mut(hash).expect("both indexes hold the same");
            if slot.place.is_none() {
                slot.place = Some(self.next_place);
                self.order.insert(self.next_place, *hash);
                self.next_place += 1;
                promoted.push(slot.tx.clone());
            }
            sender.next += 1;
        }
        for hash in sender.by_nonce.range(sender.next..).map(|(_, hash)| hash) {
            let slot = self.txs.get_mut(hash).expect("both indexes hold the same");
            match slot.place.take() {
                Some(place) => self.order.remove(&place),
                // Demotion is contiguous too: after the first that was queued all are.
                None => break,
            };
        }
        promoted
    }

    /// The transactions of the next block: pending ones by age, each sender's by nonce, as far as they fit and can
    /// pay the base fee.
    pub(crate) fn best(
        &self,
        gas_limit: u64,
        max_txs: usize,
        base_fee_wei: u128,
    ) -> Vec<Arc<SignedTx>> {
        let mut gas_left = gas_limit;
        let mut taken: AddressHashMap<u64> = AddressHashMap::default();
        let mut blocked: HashSet<Address> = HashSet::default();
        let mut best = Vec::new();
        for tx in self.pending() {
            if best.len() >= max_txs || gas_left < 21_000 {
                break;
            }
            let sender = &self.senders[&tx.signer()];
            if blocked.contains(&tx.signer()) {
                continue;
            }
            // A reorg puts low nonces back behind higher ones: the place is the sender's, the nonce decides.
            let nonce = taken
                .entry(tx.signer())
                .or_insert_with(|| *sender.by_nonce.first_key_value().expect("it has this one").0);
            let tx = &self.txs[&sender.by_nonce[nonce]].tx;
            if tx.gas_limit() > gas_left || tx.max_fee_per_gas() < base_fee_wei {
                blocked.insert(tx.signer());
                continue;
            }
            *nonce += 1;
            gas_left -= tx.gas_limit();
            best.push(tx.clone());
        }
        best
    }

    #[cfg(test)]
    pub(crate) fn assert_consistent(&self, chain_nonce: impl Fn(&Address) -> u64) {
        let placed = self.txs.values().filter(|slot| slot.place.is_some()).count();
        assert_eq!(placed, self.order.len());
        for (place, hash) in &self.order {
            assert_eq!(self.txs[hash].place, Some(*place));
        }
        let mut count = 0;
        for (address, sender) in &self.senders {
            let first = chain_nonce(address);
            for (nonce, hash) in &sender.by_nonce {
                count += 1;
                assert!(*nonce >= first, "nothing stale stays");
                let in_row = (first..*nonce).all(|nonce| sender.by_nonce.contains_key(&nonce));
                assert_eq!(
                    self.txs[hash].place.is_some(),
                    in_row,
                    "pending is the row without a gap"
                );
            }
        }
        assert_eq!(count, self.txs.len());
    }
}

fn check_bump(old: &SignedTx, new: &SignedTx) -> Result<(), TxRefused> {
    let percent = if old.is_eip4844() { BLOB_PRICE_BUMP_PERCENT } else { PRICE_BUMP_PERCENT };
    let bumped = |fee: u128| fee.saturating_mul(100 + percent).div_ceil(100);
    let blob_fee_enough = match (old.max_fee_per_blob_gas(), new.max_fee_per_blob_gas()) {
        (Some(old), Some(new)) => new >= bumped(old),
        (None, None) => true,
        // reth and geth let no blob transaction replace another kind, nor the other way round.
        _ => false,
    };
    if new.max_fee_per_gas() >= bumped(old.max_fee_per_gas())
        && new.priority_fee_or_price() >= bumped(old.priority_fee_or_price())
        && blob_fee_enough
    {
        Ok(())
    } else {
        Err(TxRefused::Underpriced { stays: old.hash })
    }
}
