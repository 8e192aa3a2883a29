//! Shares: who must go for whom.

use super::*;

impl Model {
    /// Makes room in the node's share for one that pays so much, if it pays enough.
    pub(super) fn make_room(&mut self, view: &TxView) -> bool {
        let share = self.pooled.iter().filter(|order| !order.external);
        let txs = share.filter_map(|order| Some((order, order.tx?)));
        if txs.clone().count() >= MAX_TXS {
            // The one that pays the least, and of those the newest.
            let worst = txs.min_by_key(|(order, tx)| (self.worth(tx), usize::MAX - order.seq));
            let (worst, tx) = worst.expect("the share is full");
            if self.worth(&tx) >= self.worth(view) {
                return false;
            }
            let id = worst.id;
            self.release(id, "Evicted", 0);
        }
        true
    }

    /// Which claim of an external caller must end for another one; `Err` if it is the other that must.
    pub(super) fn victim(
        &self,
        new: &Pooled,
        replaced: Option<B256>,
    ) -> Result<Option<(B256, Claim)>, ()> {
        let claim = new.claim();
        let caps = match (new.tx, claim.1) {
            (None, _) => BUNDLES,
            (_, true) => PRIVATE,
            _ => [MAX_EXTERNAL; 3],
        };
        let is_counted = |order: &&Pooled| order.tx.is_none() || order.external;
        let all: Vec<(&Pooled, Claim)> = self
            .pooled
            .iter()
            .filter(is_counted)
            .flat_map(|order| order.holders.iter().map(move |claim| (order, *claim)))
            .filter(|(order, other)| order.class(*other) == new.class(claim))
            .collect();
        let held = |order: &&Pooled| Some(order.id) != replaced;
        let count = all.iter().filter(|(order, _)| held(order)).count() + 1;
        let of = |holder: Holder| {
            all.iter().filter(move |(_, of)| of.0 == holder).map(|(order, _)| *order)
        };
        let of_sender = of(new.holder).filter(|order| order.signer == new.signer);
        if claim.1 && of_sender.count() >= MAX_OF_SENDER {
            return Err(());
        }
        let own_count = of(new.holder).filter(held).count() + 1;
        let victim = if own_count > cap_of(new.holder, caps) {
            new.holder
        } else if count > caps[0] {
            // Those of others, the replaced one included.
            let sizes = all.iter().map(|(_, (holder, _))| (of(*holder).count(), *holder));
            let largest = sizes.max().expect("it is full");
            if largest.0 > own_count { largest.1 } else { new.holder }
        } else {
            return Ok(None);
        };
        let is_own = victim == new.holder;
        let at = if self.is_pooled(&new.id) { new.seq } else { usize::MAX };
        let new_place = (new.place().0, at);
        let mut signers: Vec<(usize, Place, Option<Address>)> = Vec::new();
        for order in of(victim) {
            let of_signer = of(victim).filter(|other| other.signer == order.signer);
            let last = of_signer.clone().map(|other| other.place()).max().expect("it is one");
            signers.push((of_signer.count(), last, order.signer));
        }
        signers.sort();
        signers.dedup();
        let of_new = of(victim).filter(|other| other.signer == new.signer).filter(held);
        let own_last = of_new.clone().map(|other| other.place()).max().unwrap_or(new_place);
        let own = (of_new.clone().count() + 1, own_last.max(new_place));
        for (count, last, signer) in signers.into_iter().rev() {
            if is_own && signer == new.signer {
                continue;
            }
            if is_own && (count, last) <= own {
                break;
            }
            let items = of(victim).filter(|order| order.signer == signer).filter(held);
            let last = items.max_by_key(|order| order.place());
            let last = last.filter(|order| order.tx.is_some() || order.place().0 >= new_place.0);
            if let Some(last) = last {
                return Ok(Some((last.id, (victim, claim.1))));
            }
        }
        let last = of_new.max_by_key(|order| order.place()).filter(|_| is_own);
        let last = last.filter(|order| order.place() > new_place);
        last.map(|order| Some((order.id, (victim, claim.1)))).ok_or(())
    }

    /// Ends a claim, and evicts the order if nobody holds it any more.
    pub(super) fn evict(&mut self, victim: Option<(B256, Claim)>) {
        let Some((id, claim)) = victim else { return };
        let order = self.get_mut(id);
        order.holders.retain(|held| *held != claim);
        match order.tx {
            _ if !order.holders.is_empty() => {}
            Some(_) => self.release(id, "Evicted", 0),
            None => _ = self.end_bundle(id, "Evicted"),
        }
    }

    /// Whoever sends a pooled order again holds it too, if there is room for that.
    pub(super) fn hold(&mut self, id: B256, again: &Pooled) -> bool {
        let order = self.get_mut(id);
        if order.holders.contains(&again.claim()) {
            return true;
        }
        let (holder, terms) = (again.holder, again.terms);
        let claimed = Pooled { holder, terms, ..order.clone() };
        let victim = self.victim(&claimed, None);
        if victim.is_ok() {
            self.get_mut(id).holders.push(again.claim());
        }
        self.evict(victim.unwrap_or_default());
        victim.is_ok()
    }

    /// Readers are told, as the order is kept for someone else too, or for longer.
    pub(super) fn tell_held(&mut self, id: B256, holder: Holder) {
        let block = self.get_mut(id).block;
        self.log.push((format!("o{id} {holder:?}"), block));
    }

    pub(super) fn hold_bundle(&mut self, id: B256, again: &Pooled) -> &'static str {
        let is_known = self.get_mut(id).holders.contains(&again.claim());
        if !self.hold(id, again) {
            return "Rejected";
        }
        if !is_known {
            self.tell_held(id, again.holder);
        }
        "Known"
    }

    pub(super) fn admit(&mut self, mut order: Pooled) -> bool {
        let view = order.tx.expect("a transaction");
        order.external = !order.public;
        order.until = order.terms.filter(|_| !order.public).map(|terms| terms.max_block);
        order.tip = order.external.then(|| self.worth(&view));
        let admitted = if order.public {
            self.make_room(&view)
        } else {
            let victim = self.victim(&order, None);
            self.evict(victim.unwrap_or_default());
            victim.is_ok()
        };
        if admitted {
            self.add(order);
        }
        admitted
    }
}
