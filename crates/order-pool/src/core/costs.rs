//! What the orders of each external caller may cost the sender of their first transaction.

use std::collections::{BTreeMap, btree_map::Entry};

use alloy_primitives::{Address, U256};

use crate::{
    error::RejectReason,
    holder::Holder,
    order::{Funds, Order},
};

/// Sender, nonce and cost in wei.
pub(super) type Cost = (Address, u64, U256);

/// By holder, with the number of such orders.
#[derive(Debug, Default)]
pub(super) struct Costs(BTreeMap<(Holder, Cost), usize>);

impl Costs {
    pub(super) fn insert(&mut self, holder: Holder, cost: Option<Cost>) {
        if let Some(cost) = cost {
            *self.0.entry((holder, cost)).or_default() += 1;
        }
    }

    pub(super) fn remove(&mut self, holder: Holder, cost: Option<Cost>) {
        if let Some(cost) = cost
            && let Entry::Occupied(mut count) = self.0.entry((holder, cost))
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    /// Whether the sender of an order can pay for it and for its other ones. Of each nonce, the
    /// dearest counts: one look-up each.
    pub(super) fn check(&self, order: &Order, funds: &Funds) -> Result<(), RejectReason> {
        let &Funds { balance_wei, next_nonce, max_nonces_ahead } = funds;
        let Some((sender, nonce, mut cost_wei)) = cost_of(order) else { return Ok(()) };
        let own_wei = cost_wei;
        let to = next_nonce.saturating_add(u64::from(max_nonces_ahead) + 1);
        let at = |nonce| (order.holder(), (sender, nonce, U256::ZERO));
        let (start, mut end) = (at(next_nonce), at(to));
        while let Some((&(_, (_, other, dearest)), _)) = self.0.range(start..end).next_back() {
            let counted = if other == nonce { dearest.saturating_sub(own_wei) } else { dearest };
            cost_wei = cost_wei.saturating_add(counted);
            end = at(other);
        }
        if cost_wei > balance_wei {
            return Err(RejectReason::InsufficientFunds { sender, balance_wei, cost_wei });
        }
        Ok(())
    }
}

/// A bundle may do without its first transaction, or pay for the others: then they cost nothing.
pub(super) fn cost_of(order: &Order) -> Option<Cost> {
    let tx = match order {
        Order::Tx(tx) => tx,
        Order::Bundle(bundle) => {
            bundle.txs().first().filter(|tx| !bundle.is_optional(tx.hash()))?
        }
    };
    Some((tx.sender(), tx.nonce(), tx.max_cost_wei()))
}
