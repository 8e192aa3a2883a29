//! Implements [`TransactionSink`] for the order pool.

use alloy_primitives::B256;
use order_pool::{InsertOutcome, Order, OrderPool, OrderStatus, Origin, RejectReason, Transaction};

use crate::sink::{ChainEvent, Delivery, FetchedTransaction, Holding, TransactionSink};

impl TransactionSink for OrderPool {
    async fn deliver(&self, tx: FetchedTransaction) -> Delivery {
        let is_listed = tx.is_listed;
        // By the clock of the other orders in the pool, which cannot be set.
        let first_seen = order_pool::arrival_at(tx.announced_at);
        let tx = Transaction::new(tx.tx, Origin::Mempool, first_seen);
        match self.insert_transaction(if is_listed { tx.listed() } else { tx }) {
            InsertOutcome::Added => Delivery::Pooled,
            InsertOutcome::Known | InsertOutcome::AlreadyRemoved => Delivery::Known,
            InsertOutcome::Mined | InsertOutcome::StaleNonce { .. } => Delivery::Mined,
            InsertOutcome::Rejected(reason) => match reason {
                RejectReason::PaysTooLittle { .. } => Delivery::Postponed("pays_too_little"),
                RejectReason::TooLarge { .. } => Delivery::Refused("too_large"),
                _ => Delivery::Refused("rejected"),
            },
            // An outcome that the pool adds later means that the transaction was not inserted.
            _ => Delivery::Refused("other"),
        }
    }

    fn feed(&self) -> impl Send + 'static {
        OrderPool::feed(self)
    }

    fn may_block(&self) -> bool {
        // The pool's writer holds its lock for some milliseconds at most, and an insert takes
        // microseconds.
        false
    }

    async fn chain_event(&self, event: ChainEvent) {
        match event {
            ChainEvent::Head(block) => {
                // The pool counts the effects of a block itself.
                let _ = self.on_head(block);
            }
            ChainEvent::Nonces(nonces) => self.on_nonces(nonces.block_hash, nonces.updates),
            // A builder may still want the transaction, so it stays for the retention.
            ChainEvent::Vanished(hash) | ChainEvent::Unlisted(hash) => self.on_unlisted(&[hash]),
            ChainEvent::Listed(hash) => self.on_listed(&[hash]),
            ChainEvent::Reset => self.on_chain_reset(),
        }
    }

    fn holding(&self, hash: &B256) -> Holding {
        match self.status(hash) {
            // It is public now. The pool learns that when it gets it.
            OrderStatus::Pooled if self.get(hash).is_some_and(|order| is_private(&order)) => {
                Holding::Missing
            }
            OrderStatus::Pooled => Holding::Held,
            OrderStatus::Removed => Holding::Removed,
            OrderStatus::MayReturn => Holding::MayReturn,
            // A status that the pool adds later means that the transaction is not held.
            _ => Holding::Missing,
        }
    }
}

fn is_private(order: &Order) -> bool {
    order.as_tx().is_some_and(|tx| !tx.is_public())
}
