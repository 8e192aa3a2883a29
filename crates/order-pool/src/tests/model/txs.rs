//! The model's transactions.

use super::*;

impl Model {
    /// Applies a pooled transaction that was inserted again.
    fn insert_duplicate(&mut self, again: &Pooled) -> &'static str {
        let (id, is_listed) = (again.id, again.listed);
        if again.public {
            let order = self.get_mut(id);
            let (was_public, external) = (order.public, order.external);
            order.public = true;
            if !was_public {
                self.log.push((format!("p{id}"), None));
            }
            if external && self.make_room(&again.tx.expect("a transaction")) {
                let order = self.get_mut(id);
                order.external = false;
                order.holders.clear();
            }
            if is_listed {
                self.list(id);
            } else {
                self.keep_for_retention(id);
            }
            return "Known";
        }
        let external = self.get_mut(id).external;
        let mut is_news = external && !self.get_mut(id).holders.contains(&again.claim());
        if external && !self.hold(id, again) {
            return "Rejected";
        }
        let order = self.get_mut(id);
        let before = order.canceller;
        let signer = again.terms.and_then(|terms| terms.signer);
        order.canceller = before.filter(|own| signer == Some(*own));
        is_news |= order.canceller != before;
        is_news |= match again.terms {
            None => self.keep_for_retention(id),
            Some(terms) => {
                let is_ahead = self.is_ahead(terms.max_block, MAX_AHEAD);
                let order = self.get_mut(id);
                let is_longer = is_ahead && order.until < Some(terms.max_block);
                order.until = order.until.max(Some(terms.max_block).filter(|_| is_longer));
                is_longer
            }
        };
        if is_news && !self.get_mut(id).public {
            self.tell_held(id, again.holder);
        }
        "Known"
    }

    /// Returns whether it is kept longer.
    fn keep_for_retention(&mut self, id: B256) -> bool {
        let deadline = self.now + RETENTION;
        let order = self.get_mut(id);
        let is_longer = !order.listed
            && order.deadline.is_none_or(|before| before + LEAST_EXTENSION <= deadline);
        if is_longer {
            order.deadline = Some(deadline);
        }
        is_longer
    }

    /// A node lists a transaction. Of listed ones with its nonce, one that pays less was replaced.
    pub(super) fn list(&mut self, id: B256) {
        let order = self.get_mut(id);
        (order.listed, order.deadline) = (true, None);
        let view = order.tx.expect("a transaction");
        let is_below = |one: &TxView, other: &TxView| {
            one.fee < other.fee && one.tip.min(one.fee) < other.tip.min(other.fee)
        };
        let mut replaced = Vec::new();
        for other in self.pooled.iter().filter(|other| other.listed && other.id != id) {
            let other_view = other.tx.expect("only transactions are listed");
            if (other_view.sender, other_view.nonce) == (view.sender, view.nonce) {
                replaced.extend(is_below(&other_view, &view).then_some(other.id));
                replaced.extend(is_below(&view, &other_view).then_some(id));
            }
        }
        replaced.into_iter().for_each(|id| self.unlist(id));
    }

    pub(super) fn unlist(&mut self, id: B256) {
        let order = self.get_mut(id);
        if std::mem::take(&mut order.listed) {
            self.keep_for_retention(id);
        }
    }

    pub(super) fn insert(&mut self, order: Pooled) -> &'static str {
        let (id, view) = (order.id, order.tx.expect("a transaction"));
        let is_listed = order.listed;
        if self.is_pooled(&id) {
            self.insert_duplicate(&order)
        } else if self.is_mined(&id) {
            let block = self.blocks.iter_mut().rev().find(|block| block.mined.contains(&id));
            let removed = &mut block.expect("it is mined").removed;
            match removed.iter_mut().find(|other| other.id == order.id) {
                Some(kept) => kept.public |= order.public,
                None => {
                    let until = order.terms.map(|terms| terms.max_block);
                    let deadline = until.is_none().then_some(0);
                    let canceller = order.terms.and_then(|terms| terms.signer);
                    removed.push(Pooled { until, deadline, canceller, listed: false, ..order });
                }
            }
            "Mined"
        } else if self.next_nonce(view.sender).is_some_and(|next| view.nonce < next) {
            "StaleNonce"
        } else if self.was_accepted(&id) && !self.may_return.contains(&id) {
            "AlreadyRemoved"
        } else if self.is_withdrawn(&order) {
            "Superseded"
        } else if !self.is_possible(&order, MAX_AHEAD) {
            "Rejected"
        } else if self.admit(order) {
            if is_listed {
                self.list(id);
            }
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
        if order.canceller != Some(signer) {
            return CancelPrivateOutcome::Public;
        }
        self.release(id, "Cancelled");
        self.withdraw(id, signer);
        CancelPrivateOutcome::Cancelled
    }

    /// After a head: ends private transactions whose last block has passed, the earliest first, and
    /// those for a block too far ahead, the farthest first.
    pub(super) fn pass_private(&mut self, number: u64) {
        let until = |order: &Pooled| Some((order.until?, order.seq, order.id));
        let mut kept: Vec<_> = self.pooled.iter().filter_map(until).collect();
        kept.sort();
        for (_, _, id) in kept.iter().filter(|(block, ..)| *block <= number) {
            self.end_terms(*id, "BlockPassed");
        }
        let limit = number + MAX_KEPT_AHEAD;
        for (_, _, id) in kept.iter().rev().filter(|(block, ..)| *block > limit) {
            self.end_terms(*id, "BlockTooFar");
        }
    }

    fn end_terms(&mut self, id: B256, reason: &str) {
        let order = self.get_mut(id);
        if order.listed || order.deadline.is_some() {
            order.until = None;
        } else {
            self.release(id, reason);
        }
    }
}
