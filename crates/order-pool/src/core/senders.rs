//! The pooled transactions of each sender.

use std::collections::BTreeSet;

use alloy_primitives::{Address, map::AddressHashMap};

/// Nonce and sequence number.
type NonceSeq = (u64, u64);

/// Nearly every sender has one transaction in the pool, but some may have 100,000.
#[derive(Debug)]
enum OfSender {
    One(NonceSeq),
    Many(BTreeSet<NonceSeq>),
}

/// By nonce, then by acceptance.
#[derive(Debug, Default)]
pub(crate) struct Senders(AddressHashMap<OfSender>);

impl Senders {
    pub(crate) fn insert(&mut self, sender: Address, nonce: u64, seq: u64) {
        let tx = (nonce, seq);
        match self.0.get_mut(&sender) {
            None => _ = self.0.insert(sender, OfSender::One(tx)),
            Some(OfSender::Many(txs)) => _ = txs.insert(tx),
            Some(one) => {
                if let OfSender::One(first) = *one {
                    *one = OfSender::Many([first, tx].into());
                }
            }
        }
    }

    pub(crate) fn remove(&mut self, sender: &Address, nonce: u64, seq: u64) {
        let is_empty = match self.0.get_mut(sender) {
            None => return,
            Some(OfSender::One(tx)) => *tx == (nonce, seq),
            Some(OfSender::Many(txs)) => {
                txs.remove(&(nonce, seq));
                txs.is_empty()
            }
        };
        if is_empty {
            self.0.remove(sender);
        }
    }

    /// The sequence number of a sender's first transaction below nonce `to`: by nonce, then by
    /// acceptance.
    pub(crate) fn first_below(&self, sender: &Address, to: u64) -> Option<u64> {
        let first = match self.0.get(sender)? {
            OfSender::One(tx) => tx,
            OfSender::Many(txs) => txs.first()?,
        };
        (first.0 < to).then_some(first.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_nonce_comes_first_and_who_has_nothing_left_takes_nothing() {
        let mut senders = Senders::default();
        let [many, one] = [1, 2].map(Address::repeat_byte);
        for nonce in (0..1_000).rev() {
            senders.insert(many, nonce, 5_000 - nonce);
        }
        senders.insert(many, 0, 1);
        senders.insert(one, 5, 6_000);
        for (nonce, seq) in [(0, 1), (0, 5_000), (1, 4_999)] {
            assert_eq!(senders.first_below(&many, nonce), None);
            assert_eq!(senders.first_below(&many, 1_000), Some(seq));
            senders.remove(&many, nonce, seq);
        }
        assert_eq!(
            (senders.first_below(&one, 5), senders.first_below(&one, 6)),
            (None, Some(6_000))
        );
        senders.remove(&one, 5, 6_000);
        (2..1_000).for_each(|nonce| senders.remove(&many, nonce, 5_000 - nonce));
        assert!(senders.0.is_empty());
    }
}
