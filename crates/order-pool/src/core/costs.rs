//! What the orders of external callers may cost the sender of their first transaction.

use std::collections::{BTreeMap, btree_map::Entry};

use alloy_primitives::{Address, U256};

use crate::{
    error::RejectReason,
    order::{Funds, Order},
};

/// Sender, nonce and cost in wei, with the number of such orders.
#[derive(Debug, Default)]
pub(super) struct Costs(BTreeMap<(Address, u64, U256), usize>);

impl Costs {
    pub(super) fn insert(&mut self, order: &Order) {
        if let Some(cost) = of(order) {
            *self.0.entry(cost).or_default() += 1;
        }
    }

    pub(super) fn remove(&mut self, order: &Order) {
        if let Some(cost) = of(order)
            && let Entry::Occupied(mut count) = self.0.entry(cost)
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
        let Some((sender, nonce, mut cost_wei)) = of(order) else { return Ok(()) };
        let own_wei = cost_wei;
        let to = next_nonce.saturating_add(u64::from(max_nonces_ahead) + 1);
        let (start, mut end) = ((sender, next_nonce, U256::ZERO), (sender, to, U256::ZERO));
        while let Some((&(_, at, dearest), _)) = self.0.range(start..end).next_back() {
            let counted = if at == nonce { dearest.saturating_sub(own_wei) } else { dearest };
            cost_wei = cost_wei.saturating_add(counted);
            end = (sender, at, U256::ZERO);
        }
        if cost_wei > balance_wei {
            return Err(RejectReason::InsufficientFunds { sender, balance_wei, cost_wei });
        }
        Ok(())
    }
}

/// A bundle may do without its first transaction, or pay for the others: then they cost nothing.
fn of(order: &Order) -> Option<(Address, u64, U256)> {
    let tx = match order {
        Order::Tx(tx) => tx,
        Order::Bundle(bundle) => {
            bundle.txs().first().filter(|tx| !bundle.is_optional(tx.hash()))?
        }
    };
    Some((tx.sender(), tx.nonce(), tx.max_cost_wei()))
}
