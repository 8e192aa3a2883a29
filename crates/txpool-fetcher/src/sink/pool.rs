//! The order pool as a sink.

use alloy_primitives::B256;
use order_pool::{InsertOutcome, OrderPool, OrderStatus, Origin, RejectReason, Transaction};

use crate::sink::{ChainEvent, Delivery, FetchedTransaction, Holding, TransactionSink};

impl TransactionSink for OrderPool {
    async fn deliver(&self, tx: FetchedTransaction) -> Delivery {
        match self.insert_transaction(Transaction::new(tx.tx, Origin::Mempool, tx.first_seen)) {
            InsertOutcome::Added => Delivery::Pooled,
            InsertOutcome::Known | InsertOutcome::AlreadyRemoved => Delivery::Known,
            InsertOutcome::Mined | InsertOutcome::StaleNonce { .. } => Delivery::Mined,
            InsertOutcome::Rejected(reason) => match reason {
                RejectReason::PaysTooLittle { .. } => Delivery::Postponed("pays_too_little"),
                RejectReason::TooLarge { .. } => Delivery::Refused("too_large"),
                _ => Delivery::Refused("rejected"),
            },
            // Any outcome that the pool adds later means that the transaction was not inserted.
            _ => Delivery::Refused("other"),
        }
    }

    fn may_block(&self) -> bool {
        // The writer holds its lock for at most some milliseconds, and an insert takes microseconds.
        false
    }

    async fn chain_event(&self, event: ChainEvent) {
        match event {
            ChainEvent::Head(block) => {
                // The pool counts the results of a block itself.
                let _ = self.on_head(block);
            }
            ChainEvent::Nonces(nonces) => self.on_nonces(nonces.block_hash, nonces.updates),
            // A builder may still want the transaction, so it stays until it expires.
            ChainEvent::Vanished(_) => {}
        }
    }

    fn holding(&self, hash: &B256) -> Holding {
        match self.status(hash) {
            OrderStatus::Pooled => Holding::Held,
            OrderStatus::Removed => Holding::Removed,
            OrderStatus::MayReturn => Holding::MayReturn,
            // Any standing that the pool adds later means that the transaction is not held.
            _ => Holding::Missing,
        }
    }
}
