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

    /// Which order of an external caller must go for another one; `Err` if the other must.
    pub(super) fn victim(
        &self,
        new: &Pooled,
        replaced: Option<B256>,
        caps: [usize; 3],
    ) -> Result<Option<(B256, Holder)>, ()> {
        let class = new.class(new.claim());
        let is_counted = |order: &&Pooled| order.tx.is_none() || order.external;
        let all: Vec<(&Pooled, Holder)> = self
            .pooled
            .iter()
            .filter(is_counted)
            .flat_map(|order| order.holders.iter().map(move |claim| (order, *claim)))
            .filter(|(order, claim)| order.class(*claim) == class)
            .map(|(order, (holder, _))| (order, holder))
            .collect();
        let held = |order: &&Pooled| Some(order.id) != replaced;
        let count = all.iter().filter(|(order, _)| held(order)).count() + 1;
        let of = |holder: Holder| {
            all.iter().filter(move |(_, of)| *of == holder).map(|(order, _)| *order)
        };
        let own_count = of(new.holder).filter(held).count() + 1;
        let victim = if own_count > cap_of(new.holder, caps) {
            new.holder
        } else if count > caps[0] {
            // Those of others, the replaced one included.
            let sizes = all.iter().map(|(_, holder)| (of(*holder).count(), *holder));
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
                return Ok(Some((last.id, victim)));
            }
        }
        let last = of_new.max_by_key(|order| order.place()).filter(|_| is_own);
        let last = last.filter(|order| order.place() > new_place);
        last.map(|order| Some((order.id, victim))).ok_or(())
    }

    /// Ends a claim; returns whether nobody holds the order any more.
    pub(super) fn lose(&mut self, id: B256, claim: (Holder, bool)) -> bool {
        let order = self.pooled.iter_mut().find(|order| order.id == id).expect("it is pooled");
        order.holders.retain(|held| *held != claim);
        order.holders.is_empty()
    }

    pub(super) fn admit(&mut self, mut order: Pooled) -> bool {
        let view = order.tx.expect("a transaction");
        order.external = !order.public;
        order.until = order.terms.filter(|_| !order.public).map(|terms| terms.max_block);
        order.tip = order.external.then(|| self.worth(&view));
        let admitted = match order.external {
            true => self.make_external_room(&order),
            false => self.make_room(&view),
        };
        if admitted {
            self.add(order);
        }
        admitted
    }

    pub(super) fn external_victim(&self, order: &Pooled) -> Result<Option<(B256, Holder)>, ()> {
        let is_alike = |other: &&Pooled| {
            let is_held = other.holders.contains(&(order.holder, true));
            other.external && is_held && other.signer == order.signer
        };
        if order.terms.is_some() && self.pooled.iter().filter(is_alike).count() >= MAX_OF_SENDER {
            return Err(());
        }
        self.victim(order, None, if order.terms.is_some() { PRIVATE } else { [MAX_EXTERNAL; 3] })
    }

    pub(super) fn make_external_room(&mut self, order: &Pooled) -> bool {
        let victim = self.external_victim(order);
        self.evict_external(victim.unwrap_or_default(), order.terms.is_some());
        victim.is_ok()
    }

    pub(super) fn evict_external(&mut self, victim: Option<(B256, Holder)>, is_private: bool) {
        if let Some((victim, holder)) = victim
            && self.lose(victim, (holder, is_private))
        {
            self.release(victim, "Evicted", 0);
        }
    }

    /// A pooled bundle came again.
    pub(super) fn hold_bundle(&mut self, id: B256, holder: Holder) -> &'static str {
        let at = self.pooled.iter().position(|order| order.id == id).expect("it is pooled");
        if self.pooled[at].holders.contains(&(holder, false)) {
            return "Known";
        }
        let claimed = Pooled { holder, ..self.pooled[at].clone() };
        let Ok(victim) = self.victim(&claimed, None, BUNDLES) else { return "Rejected" };
        self.pooled[at].holders.push((holder, false));
        self.evict_bundle(victim);
        "Known"
    }

    pub(super) fn evict_bundle(&mut self, victim: Option<(B256, Holder)>) {
        if let Some((victim, holder)) = victim
            && self.lose(victim, (holder, false))
        {
            self.end_bundle(victim, "Evicted");
        }
    }
}
