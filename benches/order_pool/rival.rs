//! The rival: one mutex around everything, as such pools are commonly written. Under the lock it
//! clones all orders into a new sink's channel, and sends each event to every sink.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
};

use alloy_primitives::B256;
use order_pool::{Order, Transaction};

#[derive(Debug, Default)]
struct State {
    orders: BTreeMap<u64, Arc<Order>>,
    by_hash: HashMap<B256, u64>,
    next: u64,
    sinks: Vec<Sender<Arc<Order>>>,
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
        state.sinks.retain(|sink| sink.send(Arc::clone(&order)).is_ok());
        true
    }

    pub(crate) fn subscribe(&self) -> Receiver<Arc<Order>> {
        let (sender, receiver) = channel();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for order in state.orders.values() {
            sender.send(Arc::clone(order)).expect("the receiver is here");
        }
        state.sinks.push(sender);
        receiver
    }
}
