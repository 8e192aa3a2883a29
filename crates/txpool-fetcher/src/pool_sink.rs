//! The order pool as a sink.

use alloy_primitives::{Address, B256};
use order_pool::{Block, Head, InsertOutcome, OrderPool, Origin, RejectReason, Transaction};

use crate::sink::{Delivery, FetchedTransaction, HeadUpdate, Holding, TransactionSink};

impl TransactionSink for OrderPool {
    async fn deliver(&self, tx: FetchedTransaction) -> Delivery {
        match self.insert_transaction(Transaction::new(tx.tx, Origin::Mempool, tx.first_seen)) {
            InsertOutcome::Added => Delivery::Pooled,
            InsertOutcome::Known => Delivery::Known,
            InsertOutcome::Mined | InsertOutcome::StaleNonce { .. } => Delivery::Mined,
            InsertOutcome::Rejected(RejectReason::PaysTooLittle { .. }) => {
                Delivery::Refused("pays_too_little")
            }
            InsertOutcome::Rejected(RejectReason::TooLarge { .. }) => {
                Delivery::Refused("too_large")
            }
            InsertOutcome::Rejected(_) => Delivery::Refused("rejected"),
            // A new outcome of the pool's that is none of the above did not put it in.
            _ => Delivery::Refused("other"),
        }
    }

    fn head(&self, head: &HeadUpdate) {
        let block = Head::new(head.number, head.hash, head.parent_hash)
            .with_timestamp(head.timestamp)
            .with_next_base_fee_wei(head.next_base_fee_wei)
            .with_gas_limit(head.gas_limit)
            .with_fee_recipient(head.fee_recipient);
        self.on_head(Block::new(block, head.mined.as_slice()));
    }

    fn nonces(&self, block_hash: B256, next_nonces: &[(Address, u64)]) {
        self.on_nonces(block_hash, next_nonces.iter().copied());
    }

    fn holding(&self, hash: &B256) -> Holding {
        if self.contains(hash) {
            Holding::Held
        } else if self.was_seen(hash) {
            Holding::Removed
        } else {
            Holding::Missing
        }
    }
}
