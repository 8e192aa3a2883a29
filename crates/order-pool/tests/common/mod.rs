//! What the tests share: transactions that cost no signing, and heads.
#![allow(dead_code, reason = "each test file uses its own part")]

pub(crate) mod memory;

use std::{fmt::Debug, ops::Range, time::SystemTime};

use alloy_consensus::{EthereumTxEnvelope, Signed, TxEip1559, transaction::Recovered};
use alloy_primitives::{Address, B256, Bytes, Signature, U256, keccak256};
use order_pool::{
    Block, Bundle, BundleParts, Cancellation, Clock, Event, Head, Holder, InsertOutcome, OrderPool,
    Origin, PoolConfig, PrivateCancellation, PrivateTerms, ReplacementKey, Subscription,
    Transaction,
};

/// What a test transaction is made of; the rest is the same for all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spec {
    pub(crate) sender: u64,
    pub(crate) nonce: u64,
    pub(crate) max_fee: u128,
    pub(crate) max_tip: u128,
    /// Tells apart transactions that are equal otherwise.
    pub(crate) salt: u64,
    pub(crate) input_bytes: usize,
    pub(crate) gas_limit: u64,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            sender: 0,
            nonce: 0,
            max_fee: 100,
            max_tip: 1,
            salt: 0,
            input_bytes: 0,
            gas_limit: 21_000,
        }
    }
}

pub(crate) fn address(n: u64) -> Address {
    Address::left_padding_from(&(n + 1).to_be_bytes())
}

/// The `n`th of up to 256 addresses.
pub(crate) fn caller(n: u64) -> Holder {
    Holder::caller([10, 0, 0, n as u8].into())
}

pub(crate) fn hash(n: u64) -> B256 {
    keccak256(n.to_be_bytes())
}

pub(crate) fn tx(spec: Spec) -> Transaction {
    tx_from(spec, Origin::Mempool)
}

/// The pool trusts hash and sender of a recovered transaction, so tests need not sign.
pub(crate) fn tx_from(spec: Spec, origin: Origin) -> Transaction {
    let Spec { sender, nonce, max_fee, max_tip, salt, input_bytes, gas_limit } = spec;
    let mut preimage = Vec::new();
    for part in [u128::from(sender), u128::from(nonce), max_fee, max_tip, u128::from(salt)] {
        preimage.extend(part.to_be_bytes());
    }
    let inner = TxEip1559 {
        chain_id: 1,
        nonce,
        gas_limit,
        max_fee_per_gas: max_fee,
        max_priority_fee_per_gas: max_tip,
        input: Bytes::from(vec![1; input_bytes]),
        ..Default::default()
    };
    let signature = Signature::new(U256::from(1), U256::from(1), false);
    let signed = Signed::new_unchecked(inner, signature, keccak256(preimage));
    let recovered = Recovered::new_unchecked(EthereumTxEnvelope::Eip1559(signed), address(sender));
    Transaction::new(recovered, origin, SystemTime::UNIX_EPOCH)
}

/// The `n`th of many plain transactions, all of different senders.
pub(crate) fn nth(n: u64) -> Transaction {
    tx(Spec { sender: n, ..Default::default() })
}

/// A private transaction, of the same hash as the public one.
pub(crate) fn private_from(spec: Spec, terms: PrivateTerms) -> Transaction {
    let tx = tx_from(spec, Origin::Private);
    Transaction::private(tx.recovered().clone(), terms, tx.first_seen())
}

pub(crate) fn cancellation(key: ReplacementKey, nonce: Option<u64>, by: Holder) -> Cancellation {
    Cancellation { key, nonce, holder: by, sent_at: None }
}

/// The name of an outcome.
pub(crate) fn variant(outcome: impl Debug) -> String {
    format!("{outcome:?}").split([' ', '(']).next().unwrap_or_default().to_owned()
}

/// A pool whose clock stands still until the test advances it.
pub(crate) fn pool_by_hand(config: PoolConfig) -> (OrderPool, Clock) {
    let clock = Clock::manual();
    (OrderPool::with_clock(config, clock.clone()).expect("a valid configuration"), clock)
}

pub(crate) fn pool_with(config: PoolConfig) -> OrderPool {
    pool_by_hand(config).0
}

pub(crate) fn pool() -> OrderPool {
    pool_with(PoolConfig::default())
}

/// Until nothing is due.
pub(crate) fn upkeep(pool: &OrderPool) {
    while pool.upkeep() {}
}

/// Transactions `range`, each with [`nth`].
pub(crate) fn insert_all(pool: &OrderPool, range: Range<u64>) {
    for n in range {
        assert_eq!(pool.insert_transaction(nth(n)), InsertOutcome::Added);
    }
}

pub(crate) fn bundle(parts: BundleParts) -> Bundle {
    Bundle::new(parts).expect("a valid bundle")
}

/// A bundle without a key.
pub(crate) fn bundle_for(block: u64, txs: Vec<Transaction>, holder: Holder) -> Bundle {
    bundle(BundleParts { txs, block: Some(block), holder, ..Default::default() })
}

/// A block whose hash tells its number and its fork.
pub(crate) fn head(number: u64, fork: u64, parent_fork: u64, mined: &[B256]) -> Block {
    let (hash, parent) = (hash(number << 8 | fork), hash((number - 1) << 8 | parent_fork));
    Block::new(Head { timestamp: number * 12, ..Head::new(number, hash, parent) }, mined)
}

/// Everything that can be read now but heads, as short words: `+hash` and `-hash`.
pub(crate) fn journal(subscription: &mut Subscription) -> Vec<String> {
    let mut all = journal_with_heads(subscription);
    all.retain(|line| !line.starts_with("head "));
    all
}

/// Everything that can be read now, heads too.
pub(crate) fn journal_with_heads(subscription: &mut Subscription) -> Vec<String> {
    std::iter::from_fn(|| subscription.try_next())
        .map(|event| match event {
            Ok(Event::Added(order)) => format!("+{}", order.id()),
            Ok(Event::Removed { order, reason }) => format!("-{} {reason:?}", order.id()),
            Ok(Event::Head(head)) => format!("head {}", head.number),
            Ok(Event::CancelledPrivate(PrivateCancellation { hash, .. })) => format!("x{hash}"),
            Ok(other) => format!("{other:?}"),
            Err(lagged) => format!("lagged {} {}", lagged.missed, lagged.replay_unfinished),
        })
        .collect()
}
