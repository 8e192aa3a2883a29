//! The pool against a naive model: plain lists and sorted scans, random sequences of operations,
//! equal after every step.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    time::{Duration, SystemTime},
};

use alloy_primitives::{Address, B256, keccak256};
use order_pool::{
    Block, Bundle, BundleParts, CancelOutcome, CancelPrivateOutcome, Clock, Event, Head, Holder,
    OrderPool, OrderStatus, Origin, PoolConfig, PrivateTerms, Relation, ReplacementKey,
    Subscription, Transaction,
};
use proptest::prelude::*;
use uuid::Uuid;

use super::common::{Spec, address, cancellation, hash, nth, private_from, tx_from, variant};
use crate::core::{Caps, Division, Limits};

/// What one holder may have, by the caps of a class.
fn cap_of(holder: Holder, [half, per_signer, per_caller]: [usize; 3]) -> usize {
    match holder {
        Holder::Host => half,
        Holder::Signer(_) => per_signer,
        Holder::Caller(_) => per_caller,
    }
}

fn holder(n: u8) -> Holder {
    match n {
        0 => Holder::Host,
        1 => Holder::Signer(address(50)),
        n => Holder::caller([10, 0, 0, n].into()),
    }
}

const MAX_TXS: usize = 12;
const MAX_EXTERNAL: usize = 4;
const MAX_OF_SENDER: usize = 3;
/// Of all of a class, of a known signer, of a caller.
const PRIVATE: [usize; 3] = [5, 4, 3];
const BUNDLES: [usize; 3] = [5, 3, 2];
const KEYS: [usize; 3] = [3, 2, 1];
const DEDUPE: usize = 40;
const BLOCKS: usize = 4;
const RETENTION: u64 = 50;
const EXPIRED_PAUSE: u64 = 30;
const LOG_EVENTS: usize = 64;
const MAX_AHEAD: u64 = 3;
/// What private transactions pay at most, and some of the others.
const PRIVATE_FEE: u128 = 19;
/// The bundle that has no transactions, if it has a key.
const EMPTY: u64 = 6;
/// How many more blocks a private transaction is kept that has become public.
const PUBLIC_BLOCKS: u64 = 5;

fn limits() -> Limits {
    let options = PoolConfig {
        max_txs: MAX_TXS,
        max_external_txs: MAX_EXTERNAL,
        tx_retention: Duration::from_secs(RETENTION),
        log_events: LOG_EVENTS,
        ..PoolConfig::default()
    };
    let division = |counts: [usize; 3]| {
        let [half, per_signer, per_caller] = counts.map(|count| Caps { count, bytes: usize::MAX });
        Division { half, per_signer, per_caller }
    };
    Limits {
        private_txs: division(PRIVATE),
        max_private_per_sender: MAX_OF_SENDER,
        bundles: division(BUNDLES),
        keys: division(KEYS),
        dedupe_window: DEDUPE,
        recent_blocks: BLOCKS,
        expired_pause: Duration::from_secs(EXPIRED_PAUSE),
        cancellation_retention: Duration::from_secs(RETENTION / 2),
        max_blocks_ahead: MAX_AHEAD,
        ..options.into()
    }
}

/// A uuid and its signer by their number, and the replacement nonce.
type Keyed = (usize, Option<u64>);

// Plain comments, so that each operation stands on one line.
#[derive(Clone, Debug)]
enum Op {
    // Without a holder it was announced by the node.
    Insert { sender: u64, nonce: u64, max_fee: u128, max_tip: u128, holder: Option<u8> },
    // Of a private transaction, until so many blocks ahead.
    Private { sender: u64, nonce: u64, max_tip: u128, ahead: u64, holder: u8 },
    // Of one of the transactions that are pooled or that a block took.
    CancelPrivate { which: usize, signer: u64 },
    // One of what is pooled once more, without a holder by the node, with a block as a private transaction.
    Again { which: usize, holder: Option<u8>, ahead: Option<u64> },
    // Many at once, so that logs wrap and caps are met.
    Burst { salt: u64 },
    // The signer is that of one without a key.
    Bundle { n: u64, ahead: Option<u64>, key: Option<Keyed>, signer: Option<u64>, holder: u8 },
    Cancel { key: Keyed, holder: u8 },
    // On the newest block, mining some of what is pooled and some that is not.
    Head { mined: u8, unknown: u64, base_fee: Option<u64> },
    // Replaces the newest `depth` blocks by one.
    Reorg { depth: usize, mined: u8 },
    // A head whose parent was never told.
    Gap { skip: u64 },
    Nonces { back: usize, sender: u64, next: u64 },
    Pass { seconds: u64 },
    Upkeep,
    Subscribe { ahead: Option<u64> },
    Read { which: usize, max: usize },
    Resync { which: usize },
    Drop { which: usize },
}

fn op() -> impl Strategy<Value = Op> {
    let key = || (0_usize..6, prop::option::weighted(0.8, 0_u64..8));
    let (ahead, signer) = (prop::option::of(0_u64..6), prop::option::of(2_u64..5));
    // Few, so that the same one comes again.
    let fee = prop::sample::select(vec![3_u128, 11, PRIVATE_FEE]);
    prop_oneof![
        12 => (0_u64..5, 0_u64..4, fee, 0_u128..8, prop::option::weighted(0.4, 0_u8..4))
            .prop_map(|(sender, nonce, max_fee, max_tip, holder)| {
                Op::Insert { sender, nonce, max_fee, max_tip, holder }
            }),
        6 => (0_u64..5, 0_u64..4, 0_u128..8, 0_u64..6, 0_u8..4)
            .prop_map(|(sender, nonce, max_tip, ahead, holder)| {
                Op::Private { sender, nonce, max_tip, ahead, holder }
            }),
        2 => (0_usize..20, 0_u64..2)
            .prop_map(|(which, signer)| Op::CancelPrivate { which, signer }),
        6 => (0_usize..20, prop::option::weighted(0.9, 0_u8..4), prop::option::of(0_u64..6))
            .prop_map(|(which, holder, ahead)| Op::Again { which, holder, ahead }),
        1 => (0_u64..4).prop_map(|salt| Op::Burst { salt }),
        6 => (0_u64..=EMPTY, ahead, prop::option::of(key()), signer, 0_u8..4)
            .prop_map(|(n, ahead, key, signer, holder)| {
                Op::Bundle { n, ahead, key, signer, holder }
            }),
        3 => (key(), 0_u8..4).prop_map(|(key, holder)| Op::Cancel { key, holder }),
        4 => (0_u8..8, 0_u64..40, prop::option::of(0_u64..20))
            .prop_map(|(mined, unknown, base_fee)| Op::Head { mined, unknown, base_fee }),
        2 => (1_usize..4, 0_u8..8).prop_map(|(depth, mined)| Op::Reorg { depth, mined }),
        1 => (1_u64..3).prop_map(|skip| Op::Gap { skip }),
        3 => (0_usize..3, 0_u64..17, 0_u64..5)
            .prop_map(|(back, sender, next)| Op::Nonces { back, sender, next }),
        3 => (1_u64..20).prop_map(|seconds| Op::Pass { seconds }),
        3 => Just(Op::Upkeep),
        2 => prop::option::of(0_u64..4).prop_map(|ahead| Op::Subscribe { ahead }),
        6 => (0_usize..4, 1_usize..40).prop_map(|(which, max)| Op::Read { which, max }),
        1 => (0_usize..4).prop_map(|which| Op::Resync { which }),
        1 => (0_usize..4).prop_map(|which| Op::Drop { which }),
    ]
}

/// An order as the model sees it.
#[derive(Clone, Debug, Default)]
struct Pooled {
    seq: usize,
    id: B256,
    block: Option<u64>,
    deadline: u64,
    tx: Option<TxView>,
    /// In the share of external callers.
    external: bool,
    /// Of one that an external caller sent: its tip when it was accepted.
    tip: Option<i128>,
    /// The node has announced it.
    public: bool,
    /// Of a private one, what its sender asked for.
    terms: Option<PrivateTerms>,
    /// The block until which it is kept, if it is kept until one.
    until: Option<u64>,
    key: Option<usize>,
    /// Who sent it first.
    holder: Holder,
    /// All who sent it and have not lost it since, each with whether it was sent as a private one.
    holders: Vec<(Holder, bool)>,
    signer: Option<Address>,
    /// Who may cancel a private one.
    canceller: Option<Address>,
    nonce: Option<u64>,
    /// What a bundle contains: hash, sender, and whether it may do without.
    contents: Vec<(B256, u64, bool)>,
    content: B256,
}

impl Pooled {
    /// Where it stands among those of its signer, or of its sender: the last goes first.
    fn place(&self) -> Place {
        match self.tip {
            Some(tip) => (-tip, self.seq),
            None => (self.block.unwrap_or(0).into(), self.seq),
        }
    }

    /// What it counts as for who sent it first.
    fn claim(&self) -> (Holder, bool) {
        (self.holder, self.terms.is_some())
    }

    /// What shares caps with a claim on it: bundles, or private or raw transactions, of callers or of
    /// others.
    fn class(&self, (holder, is_private): (Holder, bool)) -> (bool, bool, bool) {
        let is_raw = self.tx.is_some() && !is_private;
        (self.tx.is_some(), is_raw, is_raw || is_known(holder))
    }
}

type Place = (i128, usize);

fn is_known(holder: Holder) -> bool {
    !matches!(holder, Holder::Caller(_))
}

#[derive(Clone, Copy, Debug)]
struct TxView {
    sender: u64,
    nonce: u64,
    fee: i128,
    tip: i128,
}

#[derive(Clone, Debug, Default)]
struct KeyModel {
    nonce: Option<u64>,
    is_final: bool,
    holder: Holder,
    tombstone: Option<usize>,
    /// When it was last touched without a bundle.
    idle_since: Option<u64>,
}

#[derive(Clone, Debug)]
struct BlockModel {
    head: Head,
    mined: Vec<B256>,
    raised: BTreeMap<u64, u64>,
    taken: Vec<Pooled>,
}

type KeySlot = (usize, Option<u64>);

/// What a subscriber is told, as a line, and the block it concerns.
type Line = (String, Option<u64>);

#[derive(Debug, Default)]
struct Model {
    now: u64,
    pooled: Vec<Pooled>,
    accepted: Vec<B256>,
    forgotten: Vec<(B256, usize)>,
    /// What was evicted or has expired, and from when on it is offered again.
    may_return: BTreeMap<B256, u64>,
    blocks: Vec<BlockModel>,
    /// By key and block; without one, the key's cancellations.
    keys: BTreeMap<KeySlot, KeyModel>,
    /// Cancelled private transactions, by signer: since when, and the place in the log.
    withdrawn: BTreeMap<(Address, B256), (u64, usize)>,
    /// Those that are forgotten, and the next place in the log: what joins behind it does not see them.
    ended: Vec<(usize, usize)>,
    log: Vec<Line>,
}

impl Model {
    fn is_pooled(&self, id: &B256) -> bool {
        self.pooled.iter().any(|order| order.id == *id)
    }

    /// Among the last accepted, unless forgotten since.
    fn was_accepted(&self, id: &B256) -> bool {
        let from = self.accepted.len().saturating_sub(DEDUPE);
        self.accepted.iter().enumerate().skip(from).any(|(at, accepted)| {
            accepted == id && !self.forgotten.iter().any(|(gone, when)| gone == id && *when > at)
        })
    }

    fn next_nonce(&self, sender: u64) -> Option<u64> {
        self.blocks.iter().filter_map(|block| block.raised.get(&sender)).max().copied()
    }

    fn is_mined(&self, id: &B256) -> bool {
        self.blocks.iter().any(|block| block.mined.contains(id))
    }

    fn base_fee(&self) -> i128 {
        self.blocks.last().and_then(|b| b.head.next_base_fee_wei).map_or(0, i128::from)
    }

    fn worth(&self, tx: &TxView) -> i128 {
        tx.tip.min(tx.fee - self.base_fee())
    }

    fn add(&mut self, mut order: Pooled) {
        order.holders = vec![order.claim()];
        order.canceller = order.terms.and_then(|terms| terms.signer);
        order.seq = self.log.len();
        order.deadline = self.now + RETENTION;
        self.log.push((format!("+{}", order.id), order.block));
        self.pooled.push(order);
    }

    fn remove(&mut self, id: B256, reason: &str) -> Pooled {
        let at = self.pooled.iter().position(|order| order.id == id).expect("it is pooled");
        let order = self.pooled.remove(at);
        self.log.push((format!("-{id} {reason}"), order.block));
        order
    }

    /// Makes room in the node's share for one that pays so much, if it pays enough.
    fn make_room(&mut self, view: &TxView) -> bool {
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

    /// Removes what may come again from a time on.
    fn release(&mut self, id: B256, reason: &str, offered_at: u64) {
        self.remove(id, reason);
        self.may_return.insert(id, offered_at);
    }

    /// Which order of an external caller must go for another one; `Err` if the other must.
    fn victim(
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
    fn lose(&mut self, id: B256, claim: (Holder, bool)) -> bool {
        let order = self.pooled.iter_mut().find(|order| order.id == id).expect("it is pooled");
        order.holders.retain(|held| *held != claim);
        order.holders.is_empty()
    }

    fn admit(&mut self, mut order: Pooled) -> bool {
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

    fn external_victim(&self, order: &Pooled) -> Result<Option<(B256, Holder)>, ()> {
        let is_alike = |other: &&Pooled| {
            let is_held = other.holders.contains(&(order.holder, true));
            other.external && is_held && other.signer == order.signer
        };
        if order.terms.is_some() && self.pooled.iter().filter(is_alike).count() >= MAX_OF_SENDER {
            return Err(());
        }
        self.victim(order, None, if order.terms.is_some() { PRIVATE } else { [MAX_EXTERNAL; 3] })
    }

    fn make_external_room(&mut self, order: &Pooled) -> bool {
        let victim = self.external_victim(order);
        self.evict_external(victim.unwrap_or_default(), order.terms.is_some());
        victim.is_ok()
    }

    fn evict_external(&mut self, victim: Option<(B256, Holder)>, is_private: bool) {
        if let Some((victim, holder)) = victim
            && self.lose(victim, (holder, is_private))
        {
            self.release(victim, "Evicted", 0);
        }
    }

    /// A pooled transaction came again.
    fn came_again(&mut self, again: &Pooled) -> &'static str {
        let at = self.pooled.iter().position(|order| order.id == again.id).expect("it is pooled");
        if again.public && !self.pooled[at].public {
            self.pooled[at].public = true;
            self.log.push((format!("p{}", again.id), None));
        }
        if !self.pooled[at].external {
            return "Known";
        }
        let is_new = !again.public && !self.pooled[at].holders.contains(&again.claim());
        let (holder, terms) = (again.holder, again.terms);
        let claimed = Pooled { holder, terms, ..self.pooled[at].clone() };
        let victim = if is_new { self.external_victim(&claimed) } else { Ok(None) };
        let Ok(victim) = victim else { return "Rejected" };
        let (head, has_head) = (self.head_number().unwrap_or(0), self.head_number().is_some());
        let later = match again.terms {
            Some(terms) if self.is_possible(again) => terms.max_block,
            Some(_) => 0,
            None => head + PUBLIC_BLOCKS,
        };
        let until = &mut self.pooled[at].until;
        let by_block = !again.public && (again.terms.is_some() || has_head);
        *until = match again.terms {
            _ if by_block && until.is_none() && later > 0 => Some(later.max(head + PUBLIC_BLOCKS)),
            _ => until.map(|until| until.max(later)),
        };
        if is_new {
            self.pooled[at].holders.push(again.claim());
        }
        if !again.public && again.terms.and_then(|terms| terms.signer) != self.pooled[at].canceller
        {
            self.pooled[at].canceller = None;
        }
        self.evict_external(victim, again.terms.is_some());
        if again.public && self.make_room(&again.tx.expect("a transaction")) {
            let at = self.pooled.iter().position(|order| order.id == again.id);
            self.pooled[at.expect("only others went")].external = false;
        }
        "Known"
    }

    /// A pooled bundle came again.
    fn hold_bundle(&mut self, id: B256, holder: Holder) -> &'static str {
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

    fn evict_bundle(&mut self, victim: Option<(B256, Holder)>) {
        if let Some((victim, holder)) = victim
            && self.lose(victim, (holder, false))
        {
            self.end_bundle(victim, "Evicted");
        }
    }

    fn accept(&mut self, id: B256) {
        if self.was_accepted(&id) {
            self.forgotten.push((id, self.accepted.len()));
        }
        self.may_return.remove(&id);
        self.accepted.push(id);
    }

    fn is_taken(&self, (hash, sender, _): &(B256, u64, bool)) -> bool {
        self.is_mined(hash) || self.next_nonce(*sender).is_some_and(|next| next > 0)
    }

    /// Whether blocks took what a bundle cannot do without, or all of it.
    fn bundle_is_taken(&self, order: &Pooled) -> bool {
        order.contents.iter().any(|tx| !tx.2 && self.is_taken(tx))
            || order.contents.iter().all(|tx| self.is_taken(tx))
    }

    /// Removes a bundle, and leaves its key without one.
    fn end_bundle(&mut self, id: B256, reason: &str) -> Pooled {
        let order = self.remove(id, reason);
        if matches!(reason, "Evicted" | "BlockTooFar") {
            self.may_return.insert(id, 0);
        }
        if let Some(slot) = Self::slot_of(&order) {
            self.idle(slot);
            self.forget_excess(self.slot(slot).holder);
        }
        order
    }

    /// The pooled bundles that `is` says so of, as accepted.
    fn bundles(&self, is: impl Fn(&Pooled) -> bool) -> Vec<B256> {
        let found = self.pooled.iter().filter(|order| order.tx.is_none() && is(order));
        let mut found: Vec<_> = found.map(|order| (order.seq, order.id)).collect();
        found.sort();
        found.into_iter().map(|(_, id)| id).collect()
    }

    fn insert(&mut self, order: Pooled) -> &'static str {
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
        } else if !self.is_possible(&order) {
            "Rejected"
        } else if self.admit(order) {
            self.accept(id);
            "Added"
        } else {
            "Rejected"
        }
    }

    /// Whether the last block of a private transaction is ahead, and not too far.
    fn is_possible(&self, order: &Pooled) -> bool {
        order.public || order.terms.is_none_or(|terms| self.is_ahead(terms.max_block))
    }

    fn is_ahead(&self, block: u64) -> bool {
        self.head_number().is_none_or(|head| block > head && block <= head + MAX_AHEAD)
    }

    /// All transactions arrive and are cancelled at the same time.
    fn is_withdrawn(&self, order: &Pooled) -> bool {
        let signer = order.terms.filter(|_| !order.public).and_then(|terms| terms.signer);
        signer.is_some_and(|signer| self.withdrawn.contains_key(&(signer, order.id)))
    }

    fn withdraw(&mut self, id: B256, signer: Address) {
        if let Entry::Vacant(entry) = self.withdrawn.entry((signer, id)) {
            entry.insert((self.now, self.log.len()));
            self.log.push((format!("w{id} {signer}"), None));
        }
    }

    fn cancel_private(&mut self, id: B256, signer: Address) -> CancelPrivateOutcome {
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
    fn pass_private(&mut self, number: u64) {
        let until = |order: &Pooled| Some((order.until?, order.seq, order.id, order.public));
        let mut kept: Vec<_> = self.pooled.iter().filter_map(until).collect();
        kept.sort();
        for (_, _, id, public) in kept.iter().filter(|(block, ..)| *block <= number) {
            match public {
                true => self.release(*id, "Expired", self.now + EXPIRED_PAUSE),
                false => self.release(*id, "BlockPassed", 0),
            }
        }
        let limit = number + MAX_AHEAD.max(PUBLIC_BLOCKS);
        for (_, _, id, _) in kept.iter().rev().filter(|(block, ..)| *block > limit) {
            self.release(*id, "BlockTooFar", 0);
        }
    }

    /// Settles a key's message, or says why it does not count.
    fn place(&self, key: usize, block: u64, nonce: Option<u64>) -> Result<u64, &'static str> {
        let [all, own] = [None, Some(block)].map(|block| self.slot((key, block)));
        match (nonce, all.nonce.max(own.nonce)) {
            _ if all.is_final => Err("CancelledPermanently"),
            (Some(nonce), Some(current)) if nonce <= current => Err("Superseded"),
            (Some(nonce), _) => Ok(nonce),
            (None, current) => Ok(current.map_or(0, |current| current + 1)),
        }
    }

    fn slot(&self, slot: KeySlot) -> KeyModel {
        self.keys.get(&slot).cloned().unwrap_or_default()
    }

    /// The slot of a bundle that has a key.
    fn slot_of(order: &Pooled) -> Option<KeySlot> {
        order.key.map(|key| (key, Some(order.block.unwrap_or(0))))
    }

    /// A slot gets a bundle.
    fn fill(&mut self, slot: KeySlot, &Pooled { nonce, holder, .. }: &Pooled) {
        self.keys.insert(slot, KeyModel { nonce, holder, ..KeyModel::default() });
    }

    /// The pooled bundle of a key for a block.
    fn of_slot(&self, slot: KeySlot) -> Option<B256> {
        let mut pooled = self.pooled.iter();
        pooled.find(|order| Self::slot_of(order) == Some(slot)).map(|order| order.id)
    }

    fn idle(&mut self, slot: KeySlot) {
        if self.of_slot(slot).is_none() {
            self.keys.entry(slot).or_default().idle_since = Some(self.now);
        }
    }

    fn cancel(&mut self, key: usize, nonce: Option<u64>, holder: Holder) -> &'static str {
        let all = self.slot((key, None));
        if all.is_final {
            return "CancelledPermanently";
        }
        let blocks = self.keys.range((key, Some(0))..=(key, Some(u64::MAX)));
        let blocks: Vec<_> = blocks.map(|(slot, state)| (*slot, state.nonce)).collect();
        let lowest = blocks.iter().map(|(_, nonce)| *nonce).min().flatten();
        if nonce.is_some() && nonce <= all.nonce.max(lowest) {
            return "Superseded";
        }
        for (slot, of_block) in blocks {
            if nonce.is_none() || of_block < nonce {
                if let Some(id) = self.of_slot(slot) {
                    self.remove(id, "Cancelled");
                }
                self.keys.remove(&slot);
            }
        }
        let state = self.keys.entry((key, None)).or_default();
        state.nonce = nonce.or(state.nonce);
        state.is_final |= nonce.is_none();
        state.holder = holder;
        state.tombstone = Some(self.log.len());
        let told = if state.is_final { None } else { state.nonce };
        self.log.push((format!("x{key} {told:?}"), None));
        self.idle((key, None));
        self.forget_excess(holder);
        "Cancelled"
    }

    /// A bundle without transactions cancels those up to its nonce, or else up to the highest.
    fn cancel_by_bundle(&mut self, key: usize, nonce: Option<u64>, by: Holder) -> &'static str {
        let slots = self.keys.range((key, None)..=(key, Some(u64::MAX)));
        let highest = slots.map(|(_, state)| state.nonce).max().flatten();
        let nonce = nonce.unwrap_or(highest.map_or(0, |highest| highest + 1));
        self.cancel(key, Some(nonce), by)
    }

    fn idle_keys(&self) -> Vec<(u64, ReplacementKey, KeySlot)> {
        let idle = self.keys.iter().filter(|(slot, _)| self.of_slot(**slot).is_none());
        let since = |state: &KeyModel| state.idle_since.expect("it is idle");
        let mut idle: Vec<_> =
            idle.map(|(slot, state)| (since(state), key(slot.0), *slot)).collect();
        idle.sort();
        idle
    }

    fn forget(&mut self, slot: KeySlot) {
        let state = self.keys.remove(&slot).expect("it is known");
        if state.tombstone.is_some() {
            self.log.push((format!("f{}", slot.0), None));
        }
    }

    /// After a key lost its bundle: of its holder, or else of the largest one, the oldest of the signer
    /// with the most goes.
    fn forget_excess(&mut self, holder: Holder) {
        loop {
            let idle = self.idle_keys();
            let holder_of = |slot: KeySlot| self.slot(slot).holder;
            let class: Vec<_> = idle
                .iter()
                .filter(|(_, _, slot)| is_known(holder_of(*slot)) == is_known(holder))
                .collect();
            let of = |holder| class.iter().filter(move |(_, _, slot)| holder_of(*slot) == holder);
            let from = if of(holder).count() > cap_of(holder, KEYS) {
                holder
            } else if class.len() > KEYS[0] {
                let sizes = class.iter().map(|(_, _, slot)| holder_of(*slot));
                sizes.max_by_key(|holder| (of(*holder).count(), *holder)).expect("not empty")
            } else {
                return;
            };
            let count = |signer| of(from).filter(|(_, key, _)| key.signer == signer).count();
            let oldest = |signer| of(from).find(|(_, key, _)| key.signer == signer).copied();
            let signers = of(from).map(|(_, key, _)| key.signer);
            let most = signers.max_by_key(|signer| {
                let (since, key, slot) = oldest(*signer).expect("it has one");
                (count(*signer), std::cmp::Reverse((since, key, slot.1)), *signer)
            });
            let (_, _, slot) = *oldest(most.expect("not empty")).expect("it has one");
            self.forget(slot);
        }
    }

    fn head_number(&self) -> Option<u64> {
        self.blocks.last().map(|block| block.head.number)
    }

    /// The block of a bundle: without one it is for the next.
    fn settled_block(&self, order: &Pooled) -> Option<u64> {
        order.block.or(self.head_number().map(|head| head + 1))
    }

    fn insert_bundle(
        &mut self,
        mut order: Pooled,
        nonce: Option<u64>,
        settled: B256,
    ) -> &'static str {
        let content = order.content;
        let block = self.settled_block(&order).unwrap_or(0);
        let slot = order.key.map(|key| (key, Some(block)));
        let old = slot.and_then(|slot| self.of_slot(slot));
        let is_same = |other: &Pooled| Some(other.id) == old && other.content == content;
        if let Some(same) = self.pooled.iter().find(|other| is_same(other)) {
            return self.hold_bundle(same.id, order.holder);
        }
        if let Some(key) = order.key.filter(|_| order.contents.is_empty()) {
            return self.cancel_by_bundle(key, nonce, order.holder);
        }
        let nonce = match order.key.map(|key| self.place(key, block, nonce)).transpose() {
            Ok(nonce) => nonce,
            Err(why) => return why,
        };
        if order.block.is_some_and(|block| !self.is_ahead(block)) || self.bundle_is_taken(&order) {
            return "Rejected";
        }
        if let Some(slot) = slot.filter(|slot| !self.keys.contains_key(slot))
            && self.head_number().is_none()
            && self.keys.keys().filter(|other| other.0 == slot.0 && other.1.is_some()).count()
                >= MAX_AHEAD as usize
        {
            return "Rejected";
        }
        order.block = self.settled_block(&order);
        order.id = settled;
        order.nonce = nonce;
        let id = settled;
        if self.is_pooled(&id) {
            return self.hold_bundle(settled, order.holder);
        }
        if self.was_accepted(&id) && !self.may_return.contains_key(&id) {
            return "AlreadyRemoved";
        }
        let Ok(victim) = self.victim(&order, old, BUNDLES) else { return "Rejected" };
        self.evict_bundle(victim);
        if let Some(old) = old {
            self.remove(old, "Replaced");
        }
        if let Some(slot) = slot {
            let now = self.now;
            let all = self.keys.get_mut(&(slot.0, None));
            if let Some(all) = all.filter(|all| all.tombstone.is_some()) {
                (all.tombstone, all.idle_since) = (None, Some(now));
            }
            self.fill(slot, &order);
        }
        self.accept(id);
        self.add(order);
        if old.is_some() { "Replaced" } else { "Added" }
    }

    /// Brings a bundle back that a reorg has freed.
    fn put_back_bundle(&mut self, order: Pooled) {
        let slot = Self::slot_of(&order);
        let is_latest = slot.is_none_or(|slot| {
            let (own, all) = (self.slot(slot), self.slot((slot.0, None)));
            self.of_slot(slot).is_none()
                && !all.is_final
                && all.nonce < order.nonce
                && (own.nonce.is_none() || own.nonce == order.nonce)
        });
        let has_room = self.victim(&order, None, BUNDLES) == Ok(None);
        if order.block.is_none_or(|block| self.is_ahead(block))
            && is_latest
            && has_room
            && !self.bundle_is_taken(&order)
            && !self.is_pooled(&order.id)
        {
            if let Some(slot) = slot {
                self.fill(slot, &order);
            }
            self.add(order);
        }
    }

    fn on_head(&mut self, block: Block, replaced: usize) {
        let Block { head, mined: hashes, .. } = block;
        let undone = self.blocks.split_off(self.blocks.len() - replaced);
        let number = head.number;
        let is_gap = self.blocks.last().is_some_and(|last| last.head.hash != head.parent_hash);
        let unproven = if is_gap { std::mem::take(&mut self.blocks) } else { Vec::new() };
        self.may_return.retain(|id, _| !hashes.contains(id));
        self.blocks.push(BlockModel {
            head,
            mined: hashes.to_vec(),
            raised: BTreeMap::new(),
            taken: Vec::new(),
        });
        if self.blocks.len() > BLOCKS {
            self.blocks.remove(0);
        }
        let mut raised = Vec::new();
        for hash in hashes.iter() {
            if self.is_pooled(hash) {
                let order = self.remove(*hash, "Mined");
                raised.extend(
                    order
                        .tx
                        .and_then(|tx| self.raise(self.blocks.len() - 1, tx.sender, tx.nonce + 1)),
                );
                self.blocks.last_mut().expect("just pushed").taken.push(order);
            }
        }
        for hash in hashes.iter() {
            let with_it = |order: &Pooled| order.contents.iter().any(|tx| tx.0 == *hash);
            for id in self.bundles(|order| with_it(order) && self.bundle_is_taken(order)) {
                let order = self.end_bundle(id, "Mined");
                self.blocks.last_mut().expect("just pushed").taken.push(order);
            }
        }
        let too_far = number + MAX_AHEAD + 1..=u64::MAX;
        for (reason, blocks) in [("BlockPassed", 0..=number), ("BlockTooFar", too_far)] {
            let bundles = self.pooled.iter().filter(|order| order.tx.is_none());
            let over = bundles.filter(|order| blocks.contains(&order.block.unwrap_or(0)));
            let mut over: Vec<_> = over.map(|order| (order.block, order.seq, order.id)).collect();
            over.sort();
            for (_, _, id) in over {
                self.end_bundle(id, reason);
            }
        }
        self.pass_private(number);
        let gone = || undone.iter().chain(&unproven);
        let mut free: Vec<B256> = gone().flat_map(|block| block.mined.clone()).collect();
        free.extend(gone().flat_map(|block| &block.taken).map(|order| order.id));
        let taken = undone.into_iter().flat_map(|mut block| {
            block.taken.sort_by_key(|order| !block.mined.contains(&order.id));
            block.taken
        });
        for order in taken {
            let Some(view) = order.tx else {
                self.put_back_bundle(order);
                continue;
            };
            let stale = self.next_nonce(view.sender).is_some_and(|next| view.nonce < next);
            let is_here = self.is_mined(&order.id) || self.is_pooled(&order.id);
            let is_valid = self.is_possible(&order) && !self.is_withdrawn(&order);
            if !stale && !is_here && is_valid {
                self.admit(order);
            }
        }
        for id in free {
            if !self.is_mined(&id) && !self.is_pooled(&id) {
                self.forgotten.push((id, self.accepted.len()));
            }
        }
        self.log.push((head_line(&head), None));
        self.end_stale(self.blocks.len() - 1, &raised);
    }

    fn on_nonces(&mut self, block: &B256, sender: u64, next: u64) {
        let Some(at) = self.blocks.iter().position(|b| b.head.hash == *block) else { return };
        let raised = self.raise(at, sender, next);
        self.end_stale(at, raised.as_slice());
    }

    /// What a block says of a nonce, if that is news.
    fn raise(&mut self, at: usize, sender: u64, next: u64) -> Option<(u64, u64)> {
        let before = self.next_nonce(sender);
        let word = self.blocks[at].raised.entry(sender).or_default();
        *word = next.max(*word);
        before.is_none_or(|known| known < next).then_some((sender, next))
    }

    fn end_stale(&mut self, at: usize, raised: &[(u64, u64)]) {
        for (sender, next) in raised {
            let txs = self.pooled.iter().filter_map(|order| Some((order.tx?, order)));
            let mut stale: Vec<_> = txs
                .filter(|(tx, _)| tx.sender == *sender && tx.nonce < *next)
                .map(|(tx, order)| (tx.nonce, order.seq, order.id))
                .collect();
            stale.sort();
            for (_, _, id) in stale {
                let order = self.remove(id, "StaleNonce");
                self.blocks[at].taken.push(order);
            }
        }
        for (sender, next) in raised {
            let with_it = |order: &Pooled| order.contents.iter().any(|tx| tx.1 == *sender);
            let is_over =
                |order: &Pooled| *next > 0 && with_it(order) && self.bundle_is_taken(order);
            for id in self.bundles(is_over) {
                let order = self.end_bundle(id, "StaleNonce");
                self.blocks[at].taken.push(order);
            }
        }
    }

    fn upkeep(&mut self) {
        loop {
            let due = self.pooled.iter().filter(|order| {
                order.tx.is_some() && order.until.is_none() && order.deadline <= self.now
            });
            if let Some(id) = due.min_by_key(|order| order.seq).map(|order| order.id) {
                self.release(id, "Expired", self.now + EXPIRED_PAUSE);
                continue;
            }
            let over = |_: &_, (since, _): &mut (u64, usize)| *since + RETENTION / 2 <= self.now;
            let over = self.withdrawn.extract_if(.., over).map(|(_, (_, seq))| seq);
            self.ended.extend(over.map(|seq| (seq, self.log.len())));
            match self.idle_keys().first() {
                Some((since, _, slot)) if since + RETENTION / 2 <= self.now => {
                    let slot = *slot;
                    self.forget(slot);
                }
                _ => break,
            }
        }
    }

    /// What the pool must say of a hash once its upkeep is done.
    fn status(&self, id: &B256) -> OrderStatus {
        match self.may_return.get(id) {
            _ if self.is_pooled(id) => OrderStatus::Pooled,
            _ if !self.was_accepted(id) => OrderStatus::Unknown,
            Some(offered_at) if *offered_at <= self.now => OrderStatus::MayReturn,
            _ => OrderStatus::Removed,
        }
    }

    /// The head, then what is live, in the order of acceptance, tombstones included.
    fn snapshot(&self, block: Option<u64>) -> Vec<String> {
        let orders =
            self.pooled.iter().map(|order| (order.seq, format!("+{}", order.id), order.block));
        let tombstones = self.keys.values().filter_map(|state| state.tombstone);
        let ended = self.ended.iter().filter(|(_, end)| *end >= self.log.len());
        let withdrawn = self.withdrawn.values().map(|(_, seq)| *seq).chain(ended.map(|it| it.0));
        let tombstones =
            tombstones.chain(withdrawn).map(|seq| (seq, self.log[seq].0.clone(), None));
        let mut live: Vec<_> = orders.chain(tombstones).collect();
        live.sort();
        let live = live.into_iter().filter(|(_, _, only)| concerns(*only, block));
        let head = self.blocks.last().map(|block| head_line(&block.head));
        head.into_iter().chain(live.map(|(_, line, _)| line)).collect()
    }
}

fn concerns(only: Option<u64>, block: Option<u64>) -> bool {
    match (only, block) {
        (Some(only), Some(block)) => only == block,
        _ => true,
    }
}

/// A subscription, and what it must show next.
struct Reader {
    real: Subscription,
    block: Option<u64>,
    replay: Vec<String>,
    at: usize,
    next: usize,
}

struct Run {
    pool: OrderPool,
    clock: Clock,
    model: Model,
    readers: Vec<Reader>,
    forks: u64,
}

fn key(n: usize) -> ReplacementKey {
    // Two uuids, two signers: keys that differ in one of both.
    ReplacementKey { uuid: Uuid::from_u128(n as u128 / 2), signer: address(n as u64 % 2) }
}

fn key_number(key: ReplacementKey) -> u64 {
    (key.uuid.as_u128() as u64) * 2 + u64::from(key.signer != address(0))
}

fn view(tx: &Transaction, sender: u64) -> Pooled {
    let (fee, tip) = (tx.max_fee_wei() as i128, tx.max_tip_wei() as i128);
    let tx_view = TxView { sender, nonce: tx.nonce(), fee, tip };
    Pooled {
        tx: Some(tx_view),
        public: tx.is_public(),
        terms: tx.private_terms().copied(),
        signer: Some(tx.sender()),
        id: *tx.hash(),
        holder: tx.holder(),
        ..Pooled::default()
    }
}

fn head_line(head: &Head) -> String {
    format!("h{} {}", head.number, head.hash)
}

fn line(event: Event) -> String {
    match event {
        Event::Added(order) => format!("+{}", order.id().hash()),
        Event::Removed { order, reason } => format!("-{} {reason:?}", order.id().hash()),
        Event::BecamePublic(order) => format!("p{}", order.id().hash()),
        Event::Cancelled(x) => format!("x{} {:?}", key_number(x.key), x.nonce),
        Event::CancelledPrivate(x) => format!("w{} {}", x.hash, x.signer),
        Event::CancellationForgotten(key) => format!("f{}", key_number(key)),
        Event::Head(head) => head_line(&head),
    }
}

impl Run {
    fn new() -> Self {
        let clock = Clock::manual();
        let pool = OrderPool::with_limits(limits(), clock.clone());
        let (model, readers) = (Model::default(), Vec::new());
        Self { pool, clock, model, readers, forks: 0 }
    }

    fn insert(&mut self, spec: Spec, by: Option<u8>) {
        let tx = match by {
            Some(by) => tx_from(spec, Origin::Rpc).held_by(holder(by)),
            None => tx_from(spec, Origin::Mempool),
        };
        self.insert_tx(spec.sender, tx);
    }

    fn insert_tx(&mut self, sender: u64, tx: Transaction) {
        let expected = self.model.insert(view(&tx, sender));
        assert_eq!(variant(self.pool.insert_transaction(tx)), expected);
    }

    fn terms(&self, sender: u64, ahead: u64) -> PrivateTerms {
        let max_block = self.model.head_number().unwrap_or(9) + ahead;
        PrivateTerms { signer: Some(address(sender % 2)), max_block }
    }

    /// Some of the pooled transactions, chosen by the bits of `mask`.
    fn pooled_txs(&self, mask: u8) -> Vec<B256> {
        let txs = self.model.pooled.iter().filter(|order| order.tx.is_some());
        let chosen = txs.enumerate().filter(|(n, _)| mask >> (n % 3) & 1 == 1);
        chosen.map(|(_, order)| order.id).collect()
    }

    fn head(&mut self, parent: Option<(u64, B256)>, mined: Vec<B256>, fee: Option<u64>) -> Block {
        self.forks += 1;
        let (number, parent_hash) = parent.unwrap_or((9, B256::ZERO));
        let head = Head::new(number + 1, hash(1 << 40 | self.forks), parent_hash);
        Block::new(Head { next_base_fee_wei: fee, ..head }, mined)
    }

    fn on_head(&mut self, block: Block, replaced: usize) {
        assert_eq!(self.pool.on_head(block.clone()).replaced(), replaced);
        assert_eq!(self.pool.on_head(block.clone()), Relation::Repeat);
        self.model.on_head(block, replaced);
    }

    fn tip(&self) -> Option<(u64, B256)> {
        self.model.blocks.last().map(|block| (block.head.number, block.head.hash))
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::Insert { sender, nonce, max_fee, max_tip, holder } => {
                self.insert(Spec { sender, nonce, max_fee, max_tip, ..Spec::default() }, holder);
            }
            Op::Private { sender, nonce, max_tip, ahead, holder: by } => {
                // Some of them are those that others hand in too.
                let spec = Spec { sender, nonce, max_fee: PRIVATE_FEE, max_tip, ..Spec::default() };
                let terms = self.terms(sender, ahead);
                self.insert_tx(sender, private_from(spec, terms).held_by(holder(by)));
            }
            Op::Again { which, holder: by, ahead } => {
                let Some(pooled) = self.model.pooled.get(which).cloned() else { return };
                let order = self.pool.get(&pooled.id).expect("what the model holds");
                let holder = holder(by.unwrap_or(0));
                if let (Some(tx), Some(view)) = (order.as_tx(), pooled.tx) {
                    let (tx, at) = (tx.recovered().clone(), tx.first_seen());
                    let tx = match (by, ahead) {
                        (None, _) => Transaction::new(tx, Origin::Mempool, at),
                        (_, None) => Transaction::new(tx, Origin::Rpc, at),
                        (_, Some(ahead)) => {
                            Transaction::private(tx, self.terms(view.sender, ahead), at)
                        }
                    };
                    self.insert_tx(view.sender, tx.held_by(holder));
                } else if let Some(bundle) = order.as_bundle() {
                    let parts = BundleParts { holder, ..bundle.parts().clone() };
                    self.insert_bundle(parts, pooled.key, pooled.contents);
                }
            }
            Op::CancelPrivate { which, signer } => {
                let taken = self.model.blocks.iter().rev().flat_map(|block| &block.taken);
                let txs = self.model.pooled.iter().chain(taken).filter(|order| order.tx.is_some());
                let Some(id) = txs.map(|order| order.id).nth(which) else { return };
                let expected = self.model.cancel_private(id, address(signer));
                // Later than any of them was sent; the clock that ends it is the pool's.
                let at = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 33));
                assert_eq!(
                    self.pool.cancel_private(&id, address(signer), Holder::Host, at),
                    expected
                );
            }
            Op::Burst { salt } => (0..40).for_each(|n| {
                let (sender, max_fee, max_tip) = (n % 5, 30 + u128::from(n), u128::from(n));
                let spec = Spec { sender, nonce: 9, max_fee, max_tip, salt, ..Spec::default() };
                self.insert(spec, None);
            }),
            Op::Bundle { n, ahead, key, signer, holder: by } => {
                self.bundle(n, ahead, key, signer, holder(by));
            }
            Op::Cancel { key: (n, nonce), holder: by } => {
                let before = self.model.pooled.len();
                let expected = self.model.cancel(n, nonce, holder(by));
                let cancelled = self.pool.cancel_bundle(cancellation(key(n), nonce, holder(by)));
                assert_eq!(variant(cancelled), expected);
                if let CancelOutcome::Cancelled { removed } = cancelled {
                    assert_eq!(removed, before - self.model.pooled.len());
                }
            }
            Op::Head { mined, unknown, base_fee } => {
                let mut mined = self.pooled_txs(mined);
                // What has left, too.
                let mut left = self.model.may_return.keys().filter(|id| !self.model.is_pooled(id));
                mined.extend(left.nth(unknown as usize));
                // What bundles contain, or what nobody has sent.
                mined.push(match unknown {
                    0..6 => *nth(100 + unknown).hash(),
                    6..12 => *nth(200 + unknown - 6).hash(),
                    _ => hash(unknown),
                });
                let head = self.head(self.tip(), mined, base_fee);
                self.on_head(head, 0);
            }
            Op::Reorg { depth, mined } => {
                let depth = depth.min(self.model.blocks.len().saturating_sub(1));
                let at = self.model.blocks.len() - depth;
                let parent = at.checked_sub(1).map(|at| &self.model.blocks[at].head);
                let parent = parent.map(|head| (head.number, head.hash));
                let mut hashes = self.pooled_txs(mined);
                // Half of what it un-mines it mines again.
                let undone = self.model.blocks[at..].iter().flat_map(|block| &block.mined);
                hashes.extend(undone.step_by(2));
                let head = self.head(parent, hashes, None);
                self.on_head(head, depth);
            }
            Op::Gap { skip } => {
                let Some((number, _)) = self.tip() else { return };
                let parent = (number + skip, hash(1 << 41 | self.forks));
                let head = self.head(Some(parent), Vec::new(), None);
                self.on_head(head, 0);
            }
            Op::Nonces { back, sender, next } => {
                // A sender of transactions, or of what bundles contain.
                let sender = match sender {
                    0..5 => sender,
                    5..11 => 95 + sender,
                    _ => 189 + sender,
                };
                let at = self.model.blocks.len().checked_sub(1 + back);
                let block = at.map_or(B256::ZERO, |at| self.model.blocks[at].head.hash);
                self.model.on_nonces(&block, sender, next);
                self.pool.on_nonces(block, [(address(sender), next)]);
            }
            Op::Pass { seconds } => {
                self.model.now += seconds;
                self.clock.advance(Duration::from_secs(seconds));
            }
            Op::Upkeep => {
                self.model.upkeep();
                while self.pool.upkeep() {}
                for id in &self.model.accepted {
                    assert_eq!(self.pool.status(id), self.model.status(id));
                }
            }
            Op::Subscribe { ahead } => {
                let block = ahead.map(|ahead| self.model.head_number().unwrap_or(0) + ahead);
                let real = match block {
                    Some(block) => self.pool.subscribe(block),
                    None => self.pool.subscribe_all(),
                };
                if self.readers.len() < 4 {
                    let (replay, next) = (self.model.snapshot(block), self.model.log.len());
                    self.readers.push(Reader { real, block, replay, at: 0, next });
                }
            }
            Op::Read { which, max } => {
                if let Some(reader) = self.readers.get_mut(which) {
                    reader.read(&self.model, max);
                }
            }
            Op::Resync { which } => {
                if let Some(reader) = self.readers.get_mut(which) {
                    reader.real.resync();
                    reader.replay = self.model.snapshot(reader.block);
                    (reader.at, reader.next) = (0, self.model.log.len());
                }
            }
            Op::Drop { which } => {
                if which < self.readers.len() {
                    self.readers.remove(which);
                }
            }
        }
    }

    fn bundle(
        &mut self,
        n: u64,
        ahead: Option<u64>,
        with: Option<Keyed>,
        signer: Option<u64>,
        holder: Holder,
    ) {
        let block = ahead.map(|ahead| self.model.head_number().unwrap_or(9) + ahead);
        let key_of = with.map(|(n, _)| key(n));
        let signer = key_of.map_or(signer.map(address), |key| Some(key.signer));
        // Every other bundle may do without its second transaction.
        let mut txs = Vec::new();
        if n != EMPTY || with.is_none() {
            txs.push(nth(100 + n));
            txs.extend((n % 2 == 1).then(|| nth(200 + n)));
        }
        let dropping: Vec<B256> = txs.iter().skip(1).map(|tx| *tx.hash()).collect();
        let contents = txs.iter().zip([100 + n, 200 + n]);
        let contents = contents.map(|(tx, sender)| (*tx.hash(), sender, sender >= 200)).collect();
        let parts = BundleParts {
            txs,
            block,
            dropping_tx_hashes: dropping,
            uuid: key_of.map(|key| key.uuid),
            signer,
            replacement_nonce: with.and_then(|(_, nonce)| nonce),
            holder,
            first_seen: Some(SystemTime::UNIX_EPOCH),
            ..Default::default()
        };
        self.insert_bundle(parts, with.map(|(n, _)| n), contents);
    }

    fn insert_bundle(
        &mut self,
        parts: BundleParts,
        key: Option<usize>,
        contents: Vec<(B256, u64, bool)>,
    ) {
        let BundleParts { block, signer, holder, replacement_nonce: nonce, .. } = parts;
        let bundle = Bundle::new(parts).expect("a valid bundle");
        let content = *bundle.id();
        let order = Pooled { block, key, signer, contents, content, holder, ..Pooled::default() };
        let settled = self.settled_id(&order, nonce);
        let expected = self.model.insert_bundle(order, nonce, settled);
        assert_eq!(variant(self.pool.insert_bundle(bundle)), expected);
    }

    /// The id by its definition: a hash over what was sent, then the block and the nonce that it
    /// got, each with its presence.
    fn settled_id(&self, order: &Pooled, nonce: Option<u64>) -> B256 {
        let block = self.model.settled_block(order);
        let place = |key| self.model.place(key, block.unwrap_or(0), nonce).ok();
        let nonce = order.key.and_then(place);
        let mut preimage = order.content.to_vec();
        for number in [block, nonce] {
            preimage.push(u8::from(number.is_some()));
            preimage.extend(number.unwrap_or(0).to_be_bytes());
        }
        keccak256(preimage)
    }

    fn check(&self) {
        let (pool, model) = (&self.pool, &self.model);
        assert_eq!(pool.len(), model.pooled.len());
        let mut bytes = 0;
        for order in &model.pooled {
            let found = pool.get(&order.id).expect("what the model holds");
            assert_eq!((found.as_tx().is_some(), found.block()), (order.tx.is_some(), order.block));
            assert_eq!(pool.status(&order.id), OrderStatus::Pooled);
            bytes += found.size_bytes();
        }
        assert_eq!(pool.bytes(), bytes);
        let head = |head: Head| (head.number, head.hash);
        assert_eq!(pool.head().map(head), model.blocks.last().map(|block| head(block.head)));
        let stats = pool.stats();
        let txs = model.pooled.iter().filter(|order| order.tx.is_some()).count();
        assert_eq!((stats.txs, stats.keys), (txs as u64, model.keys.len() as u64));
        // The counters add up: what came in and was not removed is there.
        let removed = stats.mined + stats.stale + stats.expired + stats.evicted;
        let removed = removed + stats.block_passed + stats.replaced + stats.cancelled;
        let removed = removed + stats.block_too_far;
        let external = model.pooled.iter().filter(|order| order.external).count();
        assert_eq!(stats.external_txs, external as u64);
        assert!(stats.inserted + stats.put_back - removed == pool.len() as u64);
    }
}

impl Reader {
    fn read(&mut self, model: &Model, max: usize) {
        for _ in 0..max {
            let expected = match self.replay.get(self.at) {
                Some(line) => Some(line.clone()),
                None => {
                    while model.log.get(self.next).is_some_and(|(_, b)| !concerns(*b, self.block)) {
                        self.next += 1;
                    }
                    model.log.get(self.next).map(|(line, _)| line.clone())
                }
            };
            match self.real.try_next() {
                Some(Err(lagged)) => {
                    // Exact, and not before the log has wrapped.
                    self.next = model.log.len() - self.real.behind() as usize;
                    self.at = self.replay.len();
                    assert!(lagged.missed > 0);
                    assert!(model.log.len() - self.next >= LOG_EVENTS, "it forgot too early");
                }
                found => {
                    assert_eq!(found.map(|event| line(event.expect("no lag"))), expected);
                    match self.at < self.replay.len() {
                        true => self.at += 1,
                        false => self.next += usize::from(expected.is_some()),
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2_000,
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_pool_equals_a_naive_model_after_every_step(
        ops in prop::collection::vec(op(), 200),
    ) {
        let mut run = Run::new();
        for op in ops {
            run.step(op);
            run.check();
        }
        // In the end everyone reads everything.
        for reader in &mut run.readers {
            reader.read(&run.model, run.model.log.len() + reader.replay.len() + 1);
        }
    }
}
