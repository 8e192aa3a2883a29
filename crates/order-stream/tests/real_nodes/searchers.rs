//! Searchers who send, replace and cancel orders at any machine of a fleet. What each builder must
//! hold in the end follows from their log alone.

use std::{collections::BTreeMap, fmt, ops::Range};

use alloy_consensus::transaction::Recovered;
use alloy_primitives::Address;
use order_pool::{
    Bundle, BundleParts, CancelOutcome, CancelPrivateOutcome, Cancellation, Holder, InsertOutcome,
    PrivateTerms, ReplacementKey,
};
use order_stream::WallClock;
use uuid::Uuid;

use super::*;

const SIGNERS: u64 = 50;

/// The last block of every order, which no run reaches.
pub(crate) const LAST_BLOCK: u64 = 160;

/// A machine that searchers can reach.
#[derive(Clone, Copy)]
pub(crate) struct Recipient<'a> {
    pub(crate) pool: &'a OrderPool,
    pub(crate) clock: WallClock,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Open,
    /// It may be sent again.
    Cancelled,
    /// Its key is cancelled for ever.
    CancelledPermanently,
}

/// A bundle with all its versions, or a private transaction.
struct SearcherOrder {
    signer: Address,
    /// `None` for a private transaction.
    uuid: Option<Uuid>,
    /// The latest version.
    tx: Transaction,
    status: Status,
    sent_at: Instant,
}

impl SearcherOrder {
    fn key(&self) -> Option<ReplacementKey> {
        Some(ReplacementKey { uuid: self.uuid?, signer: self.signer })
    }

    /// Sends the latest message about this order to a machine, which must accept it.
    fn send(&mut self, machine: Recipient<'_>) {
        let holder = Holder::Signer(self.signer);
        let now = machine.clock.now();
        let is_accepted = match (self.key(), self.status) {
            (Some(key), Status::CancelledPermanently) => {
                let cancellation = Cancellation { key, nonce: None, holder, sent_at: None };
                let outcome = machine.pool.cancel_bundle(cancellation);
                matches!(outcome, CancelOutcome::Cancelled { .. })
            }
            (Some(key), status) => {
                let is_open = status == Status::Open;
                let parts = BundleParts {
                    txs: if is_open { vec![self.tx.clone()] } else { Vec::new() },
                    block: is_open.then_some(LAST_BLOCK),
                    uuid: Some(key.uuid),
                    signer: Some(key.signer),
                    holder,
                    first_seen: Some(now),
                    ..BundleParts::default()
                };
                let outcome = machine.pool.insert_bundle(Bundle::new(parts).expect("a bundle"));
                use InsertOutcome::{Added, Cancelled, Known, Replaced};
                matches!(outcome, Added | Cancelled | Known | Replaced { .. })
            }
            (None, Status::Open) => {
                let terms = PrivateTerms { signer: Some(self.signer), max_block: LAST_BLOCK };
                let tx = Transaction::private(self.tx.recovered().clone(), terms, now);
                let outcome = machine.pool.insert_transaction(tx.held_by(holder));
                // The machine still holds it, if it was cancelled at another one.
                matches!(outcome, InsertOutcome::Added | InsertOutcome::Known)
            }
            (None, _) => {
                let hash = self.tx.hash();
                let outcome = machine.pool.cancel_private(hash, self.signer, holder, now);
                matches!(outcome, CancelPrivateOutcome::Cancelled | CancelPrivateOutcome::Unknown)
            }
        };
        assert!(is_accepted, "{:?} of {}: {:?}", self.uuid, self.signer, self.status);
        self.sent_at = Instant::now();
    }
}

pub(crate) struct Searchers {
    random: u64,
    /// How long a searcher waits before the next message about an order. The times of two messages
    /// about one order that reach different machines are exact to the delay between a machine and
    /// the stream.
    pause: Duration,
    /// Transactions that are not sent yet.
    unsent: Vec<Transaction>,
    orders: Vec<SearcherOrder>,
    replacements: u64,
    cancellations: u64,
    sent_again: u64,
}

/// How many orders of a builder differ from what it must hold.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Differences {
    pub(crate) missing: usize,
    /// Replaced versions, and transactions that a block contains.
    pub(crate) stale: usize,
    pub(crate) cancelled_and_there: usize,
    /// Orders that nobody has sent.
    pub(crate) unknown: usize,
    /// Orders that were added while they were there.
    pub(crate) twice: usize,
}

impl fmt::Display for Searchers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bundles = self.orders.iter().filter(|order| order.uuid.is_some()).count();
        let open = self.orders.iter().filter(|order| order.status == Status::Open).count();
        write!(
            f,
            "{SIGNERS} signers sent {bundles} bundles and {} private transactions, {} \
             replacements, {} cancellations, {} again after a cancellation: {open} are open",
            self.orders.len() - bundles,
            self.replacements,
            self.cancellations,
            self.sent_again
        )
    }
}

impl Searchers {
    pub(crate) fn new(seed: u64, count: usize, pause: Duration) -> Self {
        // Each transaction has its own sender: a pool holds few private transactions of one sender.
        let with_own_sender = |(n, tx): (usize, Transaction)| {
            let sender = Address::left_padding_from(&(n as u64 + 1_000).to_be_bytes());
            let tx = Recovered::new_unchecked(tx.recovered().inner().clone(), sender);
            Transaction::new(tx, Origin::Rpc, SystemTime::now())
        };
        let unsent = transactions(seed, count, 0).into_iter().enumerate().map(with_own_sender);
        Self {
            random: seed,
            pause,
            unsent: unsent.collect(),
            orders: Vec::new(),
            replacements: 0,
            cancellations: 0,
            sent_again: 0,
        }
    }

    /// A random number in a range.
    fn random(&mut self, range: Range<usize>) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        range.start + (self.random >> 33) as usize % range.len()
    }

    /// A random order with this status about which nothing was sent for a while.
    fn choose(&mut self, status: Status) -> Option<usize> {
        let found: Vec<_> = (0..self.orders.len())
            .filter(|index| {
                let order = &self.orders[*index];
                order.status == status && order.sent_at.elapsed() >= self.pause
            })
            .collect();
        if found.is_empty() { None } else { Some(found[self.random(0..found.len())]) }
    }

    fn next_tx(&mut self) -> Transaction {
        self.unsent.pop().expect("more transactions")
    }

    fn add_order(&mut self) -> usize {
        let signer = self.random(1..SIGNERS as usize + 1) as u64;
        let is_bundle = self.random(0..4) != 0;
        let uuid = Uuid::from_u128(self.orders.len() as u128);
        let order = SearcherOrder {
            signer: Address::left_padding_from(&signer.to_be_bytes()),
            uuid: is_bundle.then_some(uuid),
            tx: self.next_tx(),
            status: Status::Open,
            sent_at: Instant::now(),
        };
        self.orders.push(order);
        self.orders.len() - 1
    }

    /// One searcher sends one message, to one of the machines or to all of them.
    pub(crate) fn act(&mut self, machines: &[Recipient<'_>]) {
        let kind = self.random(0..10);
        let status = if kind == 9 { Status::Cancelled } else { Status::Open };
        let chosen = if kind < 4 { None } else { self.choose(status) };
        let index = match chosen {
            None => self.add_order(),
            Some(index) => {
                let is_bundle = self.orders[index].uuid.is_some();
                if kind == 9 {
                    self.orders[index].status = Status::Open;
                    self.sent_again += 1;
                } else if kind < 7 && is_bundle {
                    self.orders[index].tx = self.next_tx();
                    self.replacements += 1;
                } else {
                    self.orders[index].status = if kind == 8 && is_bundle {
                        Status::CancelledPermanently
                    } else {
                        Status::Cancelled
                    };
                    self.cancellations += 1;
                }
                index
            }
        };
        let first = self.random(0..machines.len());
        let count = if self.random(0..5) == 0 { machines.len() } else { 1 };
        for n in 0..count {
            self.orders[index].send(machines[(first + n) % machines.len()]);
        }
    }

    /// Compares the private orders of a pool with what the searchers want.
    pub(crate) fn differences(&self, pool: &OrderPool) -> Differences {
        let mut bundles = BTreeMap::<_, Vec<B256>>::new();
        let mut private = BTreeSet::new();
        let mut events = pool.subscribe_all();
        while events.is_replaying() {
            let Some(Ok(Event::Added(order))) = events.try_next() else { continue };
            if let Some(bundle) = order.as_bundle() {
                let key = bundle.key().expect("all have one");
                bundles.entry((key.signer, key.uuid)).or_default().push(*bundle.txs()[0].hash());
            } else if order.as_tx().is_some_and(|tx| !tx.is_public()) {
                private.insert(*order.id().hash());
            }
        }
        let mut differences = Differences::default();
        for order in &self.orders {
            let hash = *order.tx.hash();
            let held = match order.uuid {
                Some(uuid) => bundles.remove(&(order.signer, uuid)).unwrap_or_default(),
                None => private.take(&hash).into_iter().collect(),
            };
            if order.status == Status::Open {
                differences.missing += usize::from(!held.contains(&hash));
                differences.stale += held.iter().filter(|version| **version != hash).count();
            } else {
                differences.cancelled_and_there += held.len();
            }
        }
        differences.unknown = bundles.values().map(Vec::len).sum::<usize>() + private.len();
        differences
    }
}

/// The comparison of the runs below must find something where there is something.
#[test]
fn missing_stale_and_cancelled_orders_are_found_in_a_pool() {
    let (first, second) = (pool(), pool());
    let recipient = |pool| Recipient { pool, clock: WallClock::default() };
    let mut searchers = Searchers::new(1, 400, Duration::ZERO);
    (0..200).for_each(|_| searchers.act(&[recipient(&first)]));
    assert_eq!(searchers.differences(&first), Differences::default());
    (0..200).for_each(|_| searchers.act(&[recipient(&second)]));
    let Differences { missing, stale, cancelled_and_there, unknown, .. } =
        searchers.differences(&first);
    assert!(missing > 0 && stale > 0 && cancelled_and_there > 0, "{searchers}");
    let others = Searchers::new(2, 1, Duration::ZERO).differences(&first);
    assert!(unknown == 0 && others.unknown > 0 && others.missing == 0, "{others:?}");
}
