//! The model's shares: which orders are evicted for a new one.

use super::*;

impl Model {
    /// Makes room in the node's share for a transaction, if it pays enough.
    pub(super) fn make_room(&mut self, view: &TxView) -> bool {
        let share = self.pooled.iter().filter(|order| !order.external);
        let txs = share.filter_map(|order| Some((order, order.tx?)));
        if txs.clone().count() >= MAX_TXS {
            // The one that pays the least, and of equal ones the newest.
            let worst = txs.min_by_key(|(order, tx)| (self.worth(tx), usize::MAX - order.seq));
            let (worst, tx) = worst.expect("the share is full");
            if self.worth(&tx) >= self.worth(view) {
                return false;
            }
            let id = worst.id;
            self.release(id, "Evicted");
        }
        true
    }

    /// Returns the claims that must end for another one; `Err` if there is no room for it.
    pub(super) fn victims(
        &self,
        new: &Pooled,
        claim: Claim,
        replaced: Option<B256>,
    ) -> Result<Vec<(B256, Claim)>, ()> {
        let (new_holder, is_private) = claim;
        let caps = if new.tx.is_some() { EXTERNAL } else { BUNDLES };
        let is_counted = |order: &&Pooled| order.tx.is_none() || order.external;
        let is_of_class = |order: &Pooled, other| order.class(other) == new.class(claim);
        let all: Vec<(&Pooled, Claim)> = self
            .pooled
            .iter()
            .filter(is_counted)
            .flat_map(|order| order.holders.iter().map(move |claim| (order, *claim)))
            .filter(|(order, other)| is_of_class(order, *other))
            .collect();
        let held_by = |holder: Holder| {
            all.iter().filter(move |(_, other)| other.0 == holder).map(|(order, _)| *order)
        };
        let count = |holder| held_by(holder).count();
        let of_sender = held_by(new_holder).filter(|order| order.signer == new.signer);
        if is_private && of_sender.count() >= MAX_OF_SENDER {
            return Err(());
        }
        let is_in_class = all.iter().any(|(order, _)| order.id == new.id);
        let mut victims: Vec<(B256, Claim)> = Vec::new();
        for scope in [Scope::Holder, Scope::Network, Scope::Half, Scope::Claims] {
            let left: Vec<_> = all
                .iter()
                .filter(|(order, other)| {
                    Some(order.id) != replaced && !victims.contains(&(order.id, *other))
                })
                .collect();
            let own = left.iter().filter(|(_, other)| other.0 == new_holder).count() + 1;
            let is_neighbour = |holder| network(holder) == network(new_holder);
            let orders: HashSet<_> = left.iter().map(|(order, _)| order.id).collect();
            let is_over = match scope {
                Scope::Holder => own > caps.for_holder(new_holder),
                Scope::Network => {
                    let near = left.iter().filter(|(_, other)| is_neighbour(other.0)).count();
                    near + 1 > caps.for_network(new_holder)
                }
                Scope::Half => orders.len() + usize::from(!is_in_class) > caps.half,
                Scope::Claims => left.len() + 1 > caps.claims,
            };
            if !is_over {
                continue;
            }
            let holders = all.iter().map(|(_, other)| other.0);
            let holders = holders.filter(|holder| match scope {
                Scope::Holder => *holder == new_holder,
                Scope::Network => is_neighbour(*holder),
                Scope::Half | Scope::Claims => true,
            });
            let mut larger: Vec<_> = holders.map(|holder| (count(holder), holder)).collect();
            larger.sort();
            larger.dedup();
            let larger = larger.into_iter().rev().take_while(|(count, _)| *count > own);
            let larger = larger.map(|(_, holder)| holder).filter(|_| scope != Scope::Holder);
            // Those that still have more without the victims.
            let has_more = |holder: &Holder| {
                count(*holder) - victims.iter().filter(|(_, other)| other.0 == *holder).count()
                    > own
            };
            let larger = larger.filter(has_more);
            let (loser, chosen) = larger
                .chain([new_holder])
                .find_map(|loser| {
                    let held: Vec<&Pooled> = held_by(loser).collect();
                    let is_kept = |order: &&&Pooled| {
                        let others = all.iter().filter(|(other, _)| other.id == order.id);
                        let others = others.map(|(_, other)| other.0);
                        let mut others = others.filter(|other| *other != loser);
                        Some(order.id) == replaced
                            || order.id == new.id
                            || victims.contains(&(order.id, (loser, is_private)))
                            || scope == Scope::Half && others.any(|other| !has_more(&other))
                    };
                    let is_own = loser == new_holder;
                    Some((loser, self.last_of(&held, new, replaced, is_own, is_kept)?))
                })
                .ok_or(())?;
            if scope == Scope::Half {
                let others = all.iter().filter(|(order, _)| order.id == chosen);
                let mut ended: Vec<_> = others.map(|(order, other)| (order.id, *other)).collect();
                ended.retain(|victim| !victims.contains(victim));
                victims.extend(ended);
            } else {
                victims.push((chosen, (loser, is_private)));
            }
        }
        Ok(victims)
    }

    /// Returns the order that a holder loses: the last evictable one of its signer with the most.
    fn last_of(
        &self,
        held: &[&Pooled],
        new: &Pooled,
        replaced: Option<B256>,
        is_own: bool,
        is_kept: impl Fn(&&&Pooled) -> bool,
    ) -> Option<B256> {
        let seq = if self.is_pooled(&new.id) { new.seq } else { usize::MAX };
        let new_key = (new.eviction_key().0, seq);
        let mut signers: Vec<(usize, EvictionKey, Option<Address>)> = Vec::new();
        for order in held {
            let of_signer = held.iter().filter(|other| other.signer == order.signer);
            let last =
                of_signer.clone().map(|other| other.eviction_key()).max().expect("it is one");
            signers.push((of_signer.count(), last, order.signer));
        }
        signers.sort();
        signers.dedup();
        let of_new = held.iter().filter(|other| other.signer == new.signer);
        let of_new = of_new.filter(|order| Some(order.id) != replaced);
        let own_last = of_new.clone().map(|other| other.eviction_key()).max().unwrap_or(new_key);
        let own = (of_new.clone().count() + 1, own_last.max(new_key));
        for (count, last, signer) in signers.into_iter().rev() {
            if is_own && signer == new.signer {
                continue;
            }
            if is_own && (count, last) <= own {
                break;
            }
            let items = held.iter().filter(|order| order.signer == signer);
            let items =
                items.filter(|order| new.tx.is_some() || order.eviction_key().0 >= new_key.0);
            let last =
                items.filter(|order| !is_kept(order)).max_by_key(|order| order.eviction_key());
            if let Some(last) = last {
                return Some(last.id);
            }
        }
        let own =
            of_new.filter(|order| is_own && order.eviction_key() > new_key && !is_kept(order));
        own.max_by_key(|order| order.eviction_key()).map(|order| order.id)
    }

    /// Ends claims, and evicts the orders that nobody holds any more.
    pub(super) fn evict(&mut self, victims: Vec<(B256, Claim)>) {
        for (id, claim) in victims {
            let order = self.get_mut(id);
            order.holders.retain(|held| *held != claim);
            match order.tx {
                _ if !order.holders.is_empty() => {}
                Some(_) => self.release(id, "Evicted"),
                None => _ = self.end_bundle(id, "Evicted"),
            }
        }
    }

    /// Adds a holder to a pooled order, if there is room. Returns whether there is.
    pub(super) fn hold(&mut self, id: B256, again: &Pooled) -> bool {
        let order = self.get_mut(id).clone();
        if order.holders.contains(&again.claim()) {
            return true;
        }
        let victims = self.victims(&order, again.claim(), None);
        if victims.is_ok() {
            self.get_mut(id).holders.push(again.claim());
        }
        self.evict(victims.clone().unwrap_or_default());
        victims.is_ok()
    }

    /// Makes room for the first of these claims for which there is room; if there are no claims,
    /// for the holder that sent the order. Returns that claim and those after it.
    pub(super) fn room_for_first(
        &mut self,
        order: &Pooled,
        mut claims: Vec<Claim>,
    ) -> Option<Vec<Claim>> {
        if claims.is_empty() {
            claims.push(order.claim());
        }
        while !claims.is_empty() {
            if let Ok(victims) = self.victims(order, claims[0], None) {
                self.evict(victims);
                return Some(claims);
            }
            claims.remove(0);
        }
        None
    }

    /// Adds an order with the first of these claims, and with those others that evict nothing.
    pub(super) fn add_with_claims(&mut self, mut order: Pooled, claims: &[Claim]) {
        let id = order.id;
        order.holders = vec![claims[0]];
        self.add(order);
        for claim in &claims[1..] {
            let order = self.get_mut(id).clone();
            if self.victims(&order, *claim, None).is_ok_and(|victims| victims.is_empty()) {
                self.get_mut(id).holders.push(*claim);
            }
        }
    }

    /// Publishes that an order has another holder, or is kept longer.
    pub(super) fn tell_held(&mut self, id: B256, holder: Holder) {
        let block = self.get_mut(id).block;
        self.log.push((format!("o{id} {holder:?}"), block));
    }

    pub(super) fn hold_bundle(&mut self, id: B256, again: &Pooled) -> &'static str {
        let is_known = self.get_mut(id).holders.contains(&again.claim());
        if !self.hold(id, again) {
            return "Rejected";
        }
        let is_later = again.key.is_some()
            && again.sent_at.is_some()
            && self.get_mut(id).sent_at < again.sent_at;
        if !is_known || is_later {
            self.tell_held(id, again.holder);
        }
        "Known"
    }

    pub(super) fn admit(&mut self, mut order: Pooled) -> bool {
        order.until = order.terms.filter(|_| !order.public).map(|terms| terms.max_block);
        order.deadline = order.until.is_none().then_some(self.now + RETENTION);
        order.listed = false;
        self.admit_with(order, Vec::new())
    }

    /// Puts back a transaction that a reorg un-mined.
    pub(super) fn reinsert(
        &mut self,
        order: Pooled,
        deadline: Option<u64>,
        until: Option<u64>,
    ) -> bool {
        let (id, canceller, claims) = (order.id, order.canceller, order.retained_claims());
        let is_back = self.admit_with(Pooled { listed: false, deadline, until, ..order }, claims);
        if is_back {
            self.get_mut(id).canceller = canceller;
        }
        is_back
    }

    fn admit_with(&mut self, mut order: Pooled, claims: Vec<Claim>) -> bool {
        let view = order.tx.expect("a transaction");
        order.external = !order.public;
        order.tip = order.external.then(|| self.worth(&view));
        if order.public {
            order.holders.clear();
            let admitted = self.make_room(&view);
            if admitted {
                self.add(order);
            }
            return admitted;
        }
        let claims = self.room_for_first(&order, claims);
        if let Some(claims) = &claims {
            self.add_with_claims(order, claims);
        }
        claims.is_some()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Holder,
    Network,
    Half,
    Claims,
}
