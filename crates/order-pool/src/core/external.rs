//! The transactions that external callers sent and the node has not announced.

use std::{cmp::Reverse, time::Duration};

use alloy_primitives::Address;

use super::{
    costs::Costs,
    limits::{Caps, Limits},
    shares::{New, Shares},
    tx_share::{TxEntry, TxList, Until},
};
use crate::{error::RejectReason, order::Transaction};

/// Tip at the base fee of its acceptance, and sequence number: who pays the least is evicted first,
/// and of those who pay the same the one accepted last, so that junk does not evict older ones.
type TipSeq = Reverse<(i128, Reverse<u64>)>;

/// By holder, then by sender. A fee is only a claim, so it ranks a transaction among its holder's.
type TxShares = Shares<Address, TipSeq>;

#[derive(Debug, Default)]
pub(super) struct External {
    list: TxList,
    raw: TxShares,
    /// Those of callers, and those of the host and of signers that it knows.
    private: [TxShares; 2],
    /// Bundles included.
    pub(super) costs: Costs,
}

impl External {
    pub(super) const fn list(&self) -> &TxList {
        &self.list
    }

    pub(super) fn next_due(&mut self, now: Duration) -> Option<u64> {
        self.list.next_due(now)
    }

    pub(super) fn set_until(&mut self, seq: u64, until: Until) {
        self.list.set_until(seq, until);
    }

    fn share(&mut self, tx: &Transaction) -> &mut TxShares {
        match tx.private_terms() {
            None => &mut self.raw,
            Some(_) => &mut self.private[usize::from(tx.holder().is_known())],
        }
    }

    pub(super) fn insert(&mut self, seq: u64, entry: TxEntry) {
        if let Some(tx) = entry.order.as_tx() {
            let item = item(entry.tip_wei, seq);
            let size_bytes = entry.order.size_bytes();
            self.share(tx).insert(tx.holder(), tx.sender(), item, size_bytes);
            self.costs.insert(&entry.order);
        }
        self.list.insert(seq, entry);
    }

    pub(super) fn remove(&mut self, seq: u64) -> Option<TxEntry> {
        let entry = self.list.remove(seq)?;
        self.costs.remove(&entry.order);
        let tx = entry.order.as_tx()?;
        let item = item(entry.tip_wei, seq);
        self.share(tx).remove(tx.holder(), tx.sender(), item, entry.order.size_bytes());
        Some(entry)
    }

    /// Which ones must be evicted so that a transaction fits: see [`Shares::room_for`].
    pub(super) fn room_for(
        &mut self,
        tx: &Transaction,
        tip_wei: i128,
        bytes: usize,
        limits: &Limits,
    ) -> Result<Vec<u64>, RejectReason> {
        let (holder, sender) = (tx.holder(), tx.sender());
        let options = &limits.options;
        let all = Caps { count: options.max_external_txs, bytes: options.max_external_tx_bytes };
        let is_private = tx.private_terms().is_some();
        let (own, all) = match is_private {
            true => (limits.private_txs.of_holder(&holder), limits.private_txs.half),
            false => (all, all),
        };
        if bytes > own.bytes {
            return Err(RejectReason::TooLarge { size_bytes: bytes, limit_bytes: own.bytes });
        }
        let (count, limit) =
            (self.share(tx).of_signer(&holder, &sender).count, limits.max_private_per_sender);
        if is_private && count >= limit {
            return Err(RejectReason::SenderFull { sender, count, limit });
        }
        let new = New { holder, signer: sender, item: item(tip_wei, u64::MAX), bytes };
        let share = match is_private {
            true => &self.private[usize::from(holder.is_known())],
            false => &self.raw,
        };
        let bytes_of = |Reverse((_, Reverse(seq))): &TipSeq| {
            self.list.get(*seq).map_or(0, |tx| tx.order.size_bytes())
        };
        let victims = share.room_for(&new, None, own, all, bytes_of, |_| true);
        let seq_of = |Reverse((_, Reverse(seq))): TipSeq| seq;
        Ok(victims.map_err(RejectReason::from)?.into_iter().map(seq_of).collect())
    }
}

const fn item(tip_wei: i128, seq: u64) -> TipSeq {
    Reverse((tip_wei, Reverse(seq)))
}
