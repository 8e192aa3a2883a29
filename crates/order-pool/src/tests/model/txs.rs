//! Transactions.

use super::*;

impl Model {
    /// A pooled transaction came again.
    fn came_again(&mut self, again: &Pooled) -> &'static str {
        let order = self.get_mut(again.id);
        let (was_public, external) = (order.public, order.external);
        order.public |= again.public;
        if again.public && !was_public {
            self.log.push((format!("p{}", again.id), None));
        }
        if !external {
            return "Known";
        }
        let state =
            |order: &Pooled| (order.holders.contains(&again.claim()), order.until, order.canceller);
        let before = state(self.get_mut(again.id));
        if !again.public && !self.hold(again.id, again) {
            return "Rejected";
        }
        let (head, has_head) = (self.head_number().unwrap_or(0), self.head_number().is_some());
        let later = match again.terms {
            Some(terms) if self.is_possible(again, MAX_AHEAD) => terms.max_block,
            Some(_) => 0,
            None => head + PUBLIC_BLOCKS,
        };
        let by_block = !again.public && (again.terms.is_some() || has_head);
        let order = self.get_mut(again.id);
        order.until = match order.until {
            None if by_block && later > 0 => Some(later.max(head + PUBLIC_BLOCKS)),
            until => until.map(|until| until.max(later)),
        };
        let signer = again.terms.and_then(|terms| terms.signer);
        order.canceller = order.canceller.filter(|own| again.public || signer == Some(*own));
        if !again.public && state(order) != before {
            self.tell_held(again.id, again.holder);
        }
        if again.public && self.make_room(&again.tx.expect("a transaction")) {
            self.get_mut(again.id).external = false;
        }
        "Known"
    }

    pub(super) fn insert(&mut self, order: Pooled) -> &'static str {
        let (id, view) = (order.id, order.tx.expect("a transaction"));
        if self.is_pooled(&id) {
            self.came_again(&order)
        } else if self.is_mined(&id) {
            let block = self.blocks.iter_mut().rev().find(|block| block.mined.contains(&id));
            let taken = &mut block.expect("it is mined").taken;
            match taken.iter_mut().find(|other| other.id == order.id) {
                Some(kept) => kept.public |= order.public,
                None => taken.push(order),
            }
            "Mined"
        } else if self.next_nonce(view.sender).is_some_and(|next| view.nonce < next) {
            "StaleNonce"
        } else if self.was_accepted(&id) && !self.may_return.contains_key(&id) {
            "AlreadyRemoved"
        } else if self.is_withdrawn(&order) {
            "Superseded"
        } else if !self.is_possible(&order, MAX_AHEAD) {
            "Rejected"
        } else if self.admit(order) {
            self.accept(id);
            "Added"
        } else {
            "Rejected"
        }
    }

    /// Whether the last block of a private transaction is ahead, and not too far.
    pub(super) fn is_possible(&self, order: &Pooled, max_ahead: u64) -> bool {
        order.public || order.terms.is_none_or(|terms| self.is_ahead(terms.max_block, max_ahead))
    }

    pub(super) fn is_ahead(&self, block: u64, max_ahead: u64) -> bool {
        self.head_number().is_none_or(|head| block > head && block <= head + max_ahead)
    }

    /// All transactions arrive and are cancelled at the same time.
    pub(super) fn is_withdrawn(&self, order: &Pooled) -> bool {
        let signer = order.terms.filter(|_| !order.public).and_then(|terms| terms.signer);
        signer.is_some_and(|signer| self.withdrawn.contains_key(&(signer, order.id)))
    }

    pub(super) fn withdraw(&mut self, id: B256, signer: Address) {
        if let Entry::Vacant(entry) = self.withdrawn.entry((signer, id)) {
            entry.insert((self.now, self.log.len()));
            self.log.push((format!("w{id} {signer}"), None));
        }
    }

    pub(super) fn cancel_private(&mut self, id: B256, signer: Address) -> CancelPrivateOutcome {
        let Some(order) = self.pooled.iter().find(|order| order.id == id) else {
            self.withdraw(id, signer);
            return CancelPrivateOutcome::Unknown;
        };
        if order.public {
            return CancelPrivateOutcome::Public;
        }
        if order.terms.is_none_or(|terms| terms.signer != Some(signer)) {
            self.withdraw(id, signer);
            return CancelPrivateOutcome::Unknown;
        }
        if order.canceller.is_none() {
            return CancelPrivateOutcome::Public;
        }
        self.release(id, "Cancelled", 0);
        self.withdraw(id, signer);
        CancelPrivateOutcome::Cancelled
    }

    /// After a head: the private transactions whose last block has passed, the earliest first, and those for
    /// one too far ahead, the farthest first.
    pub(super) fn pass_private(&mut self, number: u64) {
        let until = |order: &Pooled| Some((order.until?, order.seq, order.id, order.public));
        let mut kept: Vec<_> = self.pooled.iter().filter_map(until).collect();
        kept.sort();
        for (_, _, id, public) in kept.iter().filter(|(block, ..)| *block <= number) {
            match public {
                true => self.release(*id, "Expired", self.now + EXPIRED_PAUSE),
                false => self.release(*id, "BlockPassed", 0),
            }
        }
        let limit = number + MAX_KEPT_AHEAD;
        for (_, _, id, _) in kept.iter().rev().filter(|(block, ..)| *block > limit) {
            self.release(*id, "BlockTooFar", 0);
        }
    }
}
