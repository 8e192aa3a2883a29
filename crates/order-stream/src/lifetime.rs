//! Decides how long the private stream keeps a message, which its publisher sends with the message
//! (JetStream's per-message TTL). Pure.
//!
//! Public messages have no lifetime of their own: all leave with the age of their stream. Neither
//! have cancellations. A cancellation must outlive every order that it cancels, so it stays as long
//! as the longest order.
//!
//! The lifetime does not replace the wait for a head (`wait_for_head` in [`crate::source`]). The
//! lifetime of a bundle ends a margin after the estimated time of its block, so a builder that
//! starts still reads bundles for past blocks, and
//! `a_late_builder_has_the_latest_bundles_of_a_caller_with_many` fails without the wait.

use std::time::Duration;

use chain_view::Head;
use order_pool::{DEFAULT_TX_RETENTION, MAX_BLOCKS_AHEAD, Order};

use crate::{follow::Item, streams::DEFAULT_PRIVATE_MAX_AGE, wire::Record};

/// The time between two blocks of mainnet. On a chain with faster blocks messages stay for longer
/// than necessary.
const SLOT: Duration = Duration::from_secs(12);

/// How much later than estimated a block may come: eleven missed slots, or on a chain with slower
/// blocks as much. It is what the stream's default age leaves for the farthest block.
const MARGIN: Duration =
    DEFAULT_PRIVATE_MAX_AGE.saturating_sub(SLOT.saturating_mul(MAX_BLOCKS_AHEAD as u32));

/// Returns how long the stream keeps a private message that is sent when the chain is at `head`;
/// `None` stands for the age of the stream.
///
/// A raw transaction stays as long as pools keep it. The time counts from its storing and not from
/// its arrival, because a reorg may have brought it back since. A bundle or a private transaction
/// stays until its last block.
pub(crate) fn lifetime(item: &Item, head: Option<Head>) -> Option<Duration> {
    let Record::Order(order) = &item.record else { return None };
    let last_block = match &**order {
        Order::Tx(tx) if tx.is_public() => return None,
        Order::Tx(tx) => {
            let terms = match &item.additional_holder {
                Some(additional) => additional.terms.as_ref(),
                None => tx.private_terms(),
            };
            match terms {
                Some(terms) => terms.max_block,
                None => return Some(DEFAULT_TX_RETENTION),
            }
        }
        Order::Bundle(bundle) => bundle.block()?,
        _ => return None,
    };
    let blocks_left = last_block.saturating_sub(head?.number);
    // Beyond it the age of the stream decides.
    (blocks_left <= MAX_BLOCKS_AHEAD).then(|| SLOT * blocks_left as u32 + MARGIN)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use alloy_primitives::B256;
    use order_pool::{Bundle, Holder, Origin, PrivateCancellation, PrivateTerms, Transaction};

    use super::*;
    use crate::{
        follow::AdditionalHolder,
        tests::{SIGNER, head, parts, time, txs},
    };

    fn seconds_kept(record: Record, head: Option<Head>) -> Option<u64> {
        lifetime(&Item::shared(record), head).map(|lifetime| lifetime.as_secs())
    }

    fn order(order: impl Into<Order>) -> Record {
        Record::Order(Arc::new(order.into()))
    }

    #[test]
    fn orders_stay_until_their_last_block_and_cancellations_as_long_as_the_stream_keeps_them() {
        let tx = txs(1).remove(0);
        let at_block_ten = Some(head(10, 0, 0));
        let raw = |origin| order(Order::Tx(Transaction::new(tx.clone(), origin, time(1))));
        assert_eq!(seconds_kept(raw(Origin::Mempool), at_block_ten), None);
        assert_eq!(seconds_kept(raw(Origin::Rpc), None), Some(60));
        let holder = Holder::Host;
        let cancellation =
            PrivateCancellation { hash: B256::ZERO, signer: SIGNER, cancelled_at: time(1), holder };
        assert_eq!(seconds_kept(Record::CancelPrivate(cancellation), at_block_ten), None);

        let bundle = |block| {
            let parts = parts(&Transaction::new(tx.clone(), Origin::Rpc, time(1)), block);
            order(Order::Bundle(Bundle::new(parts).expect("a bundle")))
        };
        assert_eq!(seconds_kept(bundle(11), at_block_ten), Some(144));
        assert_eq!(seconds_kept(bundle(74), at_block_ten), Some(900), "the farthest block");
        assert_eq!(seconds_kept(bundle(9), at_block_ten), Some(132), "a reorg may undo the tenth");
        assert_eq!(seconds_kept(bundle(11), None), None, "the head is not known");

        let terms = |max_block| PrivateTerms { signer: Some(SIGNER), max_block };
        let private = Transaction::private(tx.clone(), terms(12), time(1));
        assert_eq!(seconds_kept(order(Order::Tx(private.clone())), at_block_ten), Some(156));
        let additional = AdditionalHolder { holder, terms: Some(terms(20)), sent_at: time(1) };
        let item =
            Item { additional_holder: Some(additional), ..Item::shared(order(Order::Tx(private))) };
        let kept = lifetime(&item, at_block_ten);
        assert_eq!(kept, Some(Duration::from_secs(252)), "the terms of the other holder");
    }
}
