//! Shared by the tests: transactions that need no signing, and heads.
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

/// The fields of a test transaction. All others are equal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spec {
    pub(crate) sender: u64,
    pub(crate) nonce: u64,
    pub(crate) max_fee: u128,
    pub(crate) max_tip: u128,
    /// Distinguishes transactions that are otherwise equal.
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

/// Returns the `n`th of 256 callers.
pub(crate) fn caller(n: u64) -> Holder {
    Holder::caller([10, 0, 0, n as u8].into())
}

pub(crate) fn hash(n: u64) -> B256 {
    keccak256(n.to_be_bytes())
}

pub(crate) fn tx(spec: Spec) -> Transaction {
    tx_from(spec, Origin::Mempool)
}

/// Makes a transaction without signing it: the pool trusts the hash and the sender of a recovered
/// one.
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

/// Returns the `n`th of many plain transactions, each of another sender.
pub(crate) fn nth(n: u64) -> Transaction {
    tx(Spec { sender: n, ..Default::default() })
}

/// Returns a private transaction with the same hash as the public one.
pub(crate) fn private_from(spec: Spec, terms: PrivateTerms) -> Transaction {
    let tx = tx_from(spec, Origin::Private);
    Transaction::private(tx.recovered().clone(), terms, tx.first_seen())
}

pub(crate) fn cancellation(
    key: ReplacementKey,
    nonce: Option<u64>,
    holder: Holder,
) -> Cancellation {
    Cancellation { key, nonce, holder, sent_at: None }
}

/// Returns the name of an outcome.
pub(crate) fn variant(outcome: impl Debug) -> String {
    format!("{outcome:?}").split([' ', '(']).next().unwrap_or_default().to_owned()
}

/// Returns a pool whose clock stands still until the test advances it.
pub(crate) fn pool_with_clock(config: PoolConfig) -> (OrderPool, Clock) {
    let clock = Clock::manual();
    (OrderPool::with_clock(config, clock.clone()).expect("a valid configuration"), clock)
}

pub(crate) fn pool_with(config: PoolConfig) -> OrderPool {
    pool_with_clock(config).0
}

pub(crate) fn pool() -> OrderPool {
    pool_with(PoolConfig::default())
}

/// Runs upkeep until nothing is due.
pub(crate) fn upkeep(pool: &OrderPool) {
    while pool.upkeep() {}
}

/// Inserts transactions by [`nth`].
pub(crate) fn insert_all(pool: &OrderPool, range: Range<u64>) {
    for n in range {
        assert_eq!(pool.insert_transaction(nth(n)), InsertOutcome::Added);
    }
}

pub(crate) fn bundle(parts: BundleParts) -> Bundle {
    Bundle::new(parts).expect("a valid bundle")
}

/// Returns a bundle without a key.
pub(crate) fn bundle_for(block: u64, txs: Vec<Transaction>, holder: Holder) -> Bundle {
    bundle(BundleParts { txs, block: Some(block), holder, ..Default::default() })
}

/// Returns a block whose hash is that of its number and its fork.
pub(crate) fn head(number: u64, fork: u64, parent_fork: u64, mined: &[B256]) -> Block {
    let (hash, parent) = (hash(number << 8 | fork), hash((number - 1) << 8 | parent_fork));
    Block::new(Head { timestamp: number * 12, ..Head::new(number, hash, parent) }, mined)
}

/// Reads all events that are available now, without heads, as short texts: `+hash` and `-hash`.
pub(crate) fn journal(subscription: &mut Subscription) -> Vec<String> {
    let mut all = journal_with_heads(subscription);
    all.retain(|line| !line.starts_with("head "));
    all
}

/// Reads all events that are available now, with heads.
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
