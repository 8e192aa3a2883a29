//! Searchers beside the fleet of `kills.rs`: fifty signers who send bundles and private transactions, replace bundles
//! without a nonce and cancel, each time at any machine that runs, sometimes at both. Who loses a machine without a
//! shutdown sends its latest messages again. What a builder must hold in the end follows from their log alone.

use std::{collections::BTreeMap, fmt};

use alloy_primitives::Address;
use order_pool::{
    Bundle, BundleParts, CancelOutcome, CancelPrivateOutcome, Cancellation, Holder, InsertOutcome,
    PrivateTerms, ReplacementKey,
};
use uuid::Uuid;

use super::*;

const SIGNERS: u64 = 50;

/// How old the messages are that are sent again when their machine is gone.
const SENT_AGAIN: Duration = Duration::from_secs(15);

/// What a searcher wants of one uuid, or of one private transaction.
struct Wish {
    signer: Address,
    /// Of a bundle.
    uuid: Option<Uuid>,
    /// Of its latest version.
    tx: Transaction,
    is_cancelled: bool,
    /// Who was told, and when, of the latest message.
    told: Vec<(usize, Instant)>,
}

impl Wish {
    fn key(&self) -> Option<ReplacementKey> {
        Some(ReplacementKey { uuid: self.uuid?, signer: self.signer })
    }

    /// Tells a machine, which must respond with success; or, to the cancellation of a private transaction, that it does
    /// not know it.
    fn tell(&mut self, number: usize, machine: &OrderPool) {
        let (tx, now) = (self.tx.clone(), SystemTime::now());
        let is_success = match (self.key(), self.is_cancelled) {
            (Some(key), true) => matches!(
                machine.cancel_bundle(Cancellation { key, nonce: None, holder: Holder::Host }),
                CancelOutcome::Cancelled { .. } | CancelOutcome::CancelledPermanently
            ),
            (None, true) => matches!(
                machine.cancel_private(tx.hash(), self.signer, Holder::Host, None),
                CancelPrivateOutcome::Cancelled | CancelPrivateOutcome::Unknown
            ),
            (key, false) => {
                let outcome = if key.is_some() {
                    let parts = BundleParts {
                        txs: vec![tx],
                        uuid: self.uuid,
                        signer: Some(self.signer),
                        first_seen: Some(now),
                        ..BundleParts::default()
                    };
                    machine.insert_bundle(Bundle::new(parts).expect("a bundle"))
                } else {
                    let terms = PrivateTerms { signer: Some(self.signer), max_block: 20 };
                    let tx = Transaction::private(tx.recovered().clone(), terms, now);
                    machine.insert_transaction(tx)
                };
                use InsertOutcome::{Added, Known, Replaced};
                matches!(outcome, Added | Known | Replaced { .. })
            }
        };
        assert!(is_success, "{:?} of {} at {number}", self.uuid, self.signer);
        self.told.push((number, Instant::now()));
    }
}

pub(crate) struct Searchers {
    random: u64,
    /// Not sent yet.
    txs: Vec<Transaction>,
    wishes: Vec<Wish>,
    /// Which of these are not cancelled.
    open: Vec<usize>,
    messages: [u64; 4],
    again: u64,
}

/// How many orders are not in a builder as the searchers want it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Wrong {
    missing: usize,
    stale: usize,
    cancelled: usize,
    /// That nobody has sent.
    unknown: usize,
}

impl fmt::Display for Searchers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [bundles, private, replaced, cancelled] = self.messages;
        let (wishes, open, again) = (self.wishes.len(), self.open.len(), self.again);
        write!(
            f,
            "{SIGNERS} signers sent {bundles} bundles and {private} private transactions, {replaced} replacements and \
             {cancelled} cancellations, {again} again to another machine: {open} of {wishes} orders are valid"
        )
    }
}

impl Searchers {
    pub(crate) fn new(seed: u64, count: usize) -> Self {
        let txs = transactions(seed, count, 0).into_iter().enumerate().map(|(n, tx)| {
            // Each of a sender of its own, as a pool holds few private ones of each.
            let sender = Address::left_padding_from(&(n as u64 + 1_000).to_be_bytes());
            let tx = Recovered::new_unchecked(tx.recovered().inner().clone(), sender);
            Transaction::new(tx, Origin::Rpc, SystemTime::now())
        });
        let txs = txs.collect();
        println!("searchers: seed {seed}");
        let (wishes, open) = (Vec::new(), Vec::new());
        Self { random: seed, txs, wishes, open, messages: [0; 4], again: 0 }
    }

    fn below(&mut self, limit: usize) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) as usize % limit
    }

    pub(crate) fn sent(&self) -> u64 {
        self.messages.iter().sum()
    }

    /// One of them sends one message to one of the machines that run, or to all.
    pub(crate) fn act(&mut self, machines: &[(usize, &OrderPool)]) {
        let what = self.below(10);
        let at = if what < 4 || self.open.is_empty() {
            let (signer, uuid) = (self.below(SIGNERS as usize), self.wishes.len() as u128);
            let uuid = (what != 0).then(|| Uuid::from_u128(uuid));
            let signer = Address::left_padding_from(&(signer as u64 + 1).to_be_bytes());
            let tx = self.txs.pop().expect("more transactions");
            self.wishes.push(Wish { signer, uuid, tx, is_cancelled: false, told: Vec::new() });
            self.open.push(self.wishes.len() - 1);
            self.messages[usize::from(uuid.is_none())] += 1;
            self.wishes.len() - 1
        } else {
            let chosen = self.below(self.open.len());
            let at = self.open[chosen];
            if what < 8 && self.wishes[at].uuid.is_some() {
                self.wishes[at].tx = self.txs.pop().expect("more transactions");
                self.messages[2] += 1;
            } else {
                self.wishes[at].is_cancelled = true;
                self.open.swap_remove(chosen);
                self.messages[3] += 1;
            }
            at
        };
        self.wishes[at].told.clear();
        let (first, is_for_all) = (self.below(machines.len()), self.below(5) == 0);
        for n in 0..if is_for_all { machines.len() } else { 1 } {
            let (number, machine) = machines[(first + n) % machines.len()];
            self.wishes[at].tell(number, machine);
        }
    }

    /// A machine is gone: what it alone was told in the end is sent again.
    pub(crate) fn lose(&mut self, gone: usize, (number, machine): (usize, &OrderPool)) {
        for wish in &mut self.wishes {
            if wish.told.iter().all(|(told, at)| *told == gone && at.elapsed() < SENT_AGAIN) {
                wish.tell(number, machine);
                self.again += 1;
            }
        }
    }

    /// What a pool holds that the searchers do not want, and lacks of what they want.
    pub(crate) fn wrong(&self, pool: &OrderPool) -> Wrong {
        let mut bundles = BTreeMap::new();
        let mut private = BTreeSet::new();
        let mut events = pool.subscribe_all();
        while events.is_replaying() {
            let Some(Ok(Event::Added(order))) = events.try_next() else { continue };
            if let Some(bundle) = order.as_bundle() {
                let key = bundle.key().map(|key| (key.signer, key.uuid));
                bundles.insert(key.expect("a key"), *bundle.txs()[0].hash());
            } else if order.as_tx().is_some_and(|tx| tx.private_terms().is_some()) {
                private.insert(*order.id().hash());
            }
        }
        let mut wrong = Wrong::default();
        for wish in &self.wishes {
            let hash = wish.tx.hash();
            let held = match wish.uuid {
                Some(uuid) => bundles.remove(&(wish.signer, uuid)),
                None => private.take(hash),
            };
            match held {
                Some(_) if wish.is_cancelled => wrong.cancelled += 1,
                Some(held) if held != *hash => wrong.stale += 1,
                None if !wish.is_cancelled => wrong.missing += 1,
                _ => {}
            }
        }
        wrong.unknown = bundles.len() + private.len();
        wrong
    }
}

#[test]
fn the_searchers_log_finds_what_is_missing_stale_or_cancelled_in_a_pool() {
    let (first, second) = (pool(), pool());
    let mut searchers = Searchers::new(1, 400);
    (0..200).for_each(|_| searchers.act(&[(0, &first)]));
    assert_eq!(searchers.wrong(&first), Wrong::default());
    (0..200).for_each(|_| searchers.act(&[(1, &second)]));
    let Wrong { missing, stale, cancelled, unknown } = searchers.wrong(&first);
    assert!(missing > 0 && stale > 0 && cancelled > 0, "{searchers}");
    assert_eq!((unknown, Searchers::new(1, 1).wrong(&first).missing), (0, 0));
}
