//! The pooled transactions of each sender.

use std::collections::{BTreeSet, btree_set};

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

    /// The sequence numbers of a sender's transactions from nonce `from` to below `to` (to the end
    /// if `None`), by nonce, then by acceptance.
    pub(crate) fn of(&self, sender: &Address, from: u64, to: Option<u64>) -> Vec<u64> {
        let found = self.0.get(sender);
        let (one, many): (Option<&NonceSeq>, Option<btree_set::Range<'_, NonceSeq>>) = match found {
            None => (None, None),
            Some(OfSender::One(tx)) => (Some(tx).filter(|tx| tx.0 >= from), None),
            Some(OfSender::Many(txs)) => (None, Some(txs.range((from, 0)..))),
        };
        one.into_iter()
            .chain(many.into_iter().flatten())
            .take_while(|(nonce, _)| to.is_none_or(|to| *nonce < to))
            .map(|(_, seq)| *seq)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_of_many_is_read_in_nonce_order_and_in_part() {
        let mut senders = Senders::default();
        let sender = Address::repeat_byte(1);
        for nonce in (0..1_000).rev() {
            senders.insert(sender, nonce, 5_000 - nonce);
            senders.insert(Address::repeat_byte(2), nonce, nonce);
        }
        senders.remove(&sender, 7, 4_993);
        let expected = |range: std::ops::Range<u64>| -> Vec<u64> {
            range.filter(|nonce| *nonce != 7).map(|nonce| 5_000 - nonce).collect()
        };
        assert_eq!(senders.of(&sender, 0, None), expected(0..1_000));
        assert_eq!(senders.of(&sender, 5, Some(9)), expected(5..9));
    }

    #[test]
    fn who_has_nothing_left_takes_nothing() {
        let mut senders = Senders::default();
        let [one, two] = [1, 2].map(Address::repeat_byte);
        senders.insert(one, 5, 1);
        assert_eq!((senders.of(&one, 5, None), senders.of(&one, 6, None)), (vec![1], vec![]));
        assert!(senders.of(&one, 0, Some(5)).is_empty() && senders.of(&two, 0, None).is_empty());
        for (nonce, seq) in [(5, 2), (5, 3)] {
            senders.insert(two, nonce, seq);
        }
        assert_eq!(senders.of(&two, 0, Some(6)), [2, 3]);
        senders.remove(&one, 5, 1);
        senders.remove(&two, 5, 3);
        senders.remove(&two, 5, 2);
        assert!(senders.0.is_empty());
    }
}
