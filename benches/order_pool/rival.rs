//! The rival: one mutex around everything, as such pools are commonly written. Orders are cloned
//! into a new sink's channel under the lock, each event is sent to every sink under the lock, and
//! a head looks up every sender's nonce.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
};

use alloy_primitives::{Address, B256};
use order_pool::{Order, Transaction};

#[derive(Clone, Debug)]
pub(crate) enum RivalEvent {
    Added(Arc<Order>),
    Removed(B256),
}

#[derive(Debug, Default)]
struct State {
    orders: BTreeMap<u64, Arc<Order>>,
    by_hash: HashMap<B256, u64>,
    next: u64,
    sinks: Vec<Sender<RivalEvent>>,
}

#[derive(Debug, Default)]
pub(crate) struct MutexPool {
    state: Mutex<State>,
}

impl MutexPool {
    pub(crate) fn insert(&self, tx: Transaction) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let hash = *tx.hash();
        if state.by_hash.contains_key(&hash) {
            return false;
        }
        let order = Arc::new(Order::Tx(tx));
        let seq = state.next;
        state.next += 1;
        state.by_hash.insert(hash, seq);
        state.orders.insert(seq, Arc::clone(&order));
        state.sinks.retain(|sink| sink.send(RivalEvent::Added(Arc::clone(&order))).is_ok());
        true
    }

    pub(crate) fn subscribe(&self) -> Receiver<RivalEvent> {
        let (sender, receiver) = channel();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for order in state.orders.values() {
            sender.send(RivalEvent::Added(Arc::clone(order))).expect("the receiver is here");
        }
        state.sinks.push(sender);
        receiver
    }

    /// Removes what was mined, and what a look-up of each sender's nonce shows to be stale.
    pub(crate) fn on_head(&self, mined: &[B256], nonces: &HashMap<Address, u64>) -> usize {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        let before = state.orders.len();
        let mut gone: Vec<u64> =
            mined.iter().filter_map(|hash| state.by_hash.get(hash).copied()).collect();
        for (seq, order) in &state.orders {
            let Some(tx) = order.as_tx() else { continue };
            if nonces.get(&tx.sender()).is_some_and(|next| tx.nonce() < *next) {
                gone.push(*seq);
            }
        }
        for seq in gone {
            if let Some(order) = state.orders.remove(&seq) {
                let hash = *order.id().hash();
                state.by_hash.remove(&hash);
                state.sinks.retain(|sink| sink.send(RivalEvent::Removed(hash)).is_ok());
            }
        }
        before - state.orders.len()
    }
}
