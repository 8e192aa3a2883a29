//! The loads, which are the same for both pools.

use std::{
    hint::black_box,
    time::{Duration, Instant, SystemTime},
};

use alloy_consensus::{EthereumTxEnvelope, Signed, TxEip1559, transaction::Recovered};
use alloy_primitives::{Address, B256, Bytes, Signature, U256, keccak256};
use hdrhistogram::Histogram;
use order_pool::{
    Block, Bundle, BundleParts, Event, Head, Holder, InsertOutcome, OrderPool, Origin, PoolConfig,
    Transaction,
};

use testkit::{bench::pace, figures::histogram};

use crate::rival::MutexPool;

/// The number of inserts a second.
const TPS: u32 = 2_000;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    pub(crate) replayed: u64,
    pub(crate) rounds: usize,
    pub(crate) window: Duration,
}

impl Scale {
    pub(crate) const fn new(is_quick: bool) -> Self {
        let (replayed, rounds, window_ms) =
            if is_quick { (2_000, 1, 200) } else { (20_000, 5, 3_000) };
        Self { replayed, rounds, window: Duration::from_millis(window_ms) }
    }
}

pub(crate) fn sender(n: u64) -> Address {
    Address::left_padding_from(&(n + 1).to_be_bytes())
}

/// Returns the `n`th of many different plain transactions with 200 bytes of input. They are not
/// signed: the pool trusts the hash and the sender of a recovered transaction.
pub(crate) fn nth(n: u64) -> Transaction {
    paying(n, 1_000 + u128::from(n % 97), 1 + u128::from(n % 89))
}

/// As [`nth`], but each transaction pays more than the one before.
pub(crate) fn rising(n: u64) -> Transaction {
    paying(n, 1_000 + u128::from(n), 1_000 + u128::from(n))
}

fn paying(n: u64, max_fee_per_gas: u128, max_priority_fee_per_gas: u128) -> Transaction {
    let input = Bytes::from(vec![1; 200]);
    let tx = TxEip1559 { max_fee_per_gas, max_priority_fee_per_gas, input, ..Default::default() };
    made(tx, n, keccak256(n.to_be_bytes()), Origin::Mempool)
}

/// Returns a raw transaction of an external caller.
pub(crate) fn external(n: u64, nonce: u64, input_bytes: usize) -> Transaction {
    let input = vec![1; input_bytes].into();
    let hash = keccak256([n.to_be_bytes(), nonce.to_be_bytes()].concat());
    made(TxEip1559 { nonce, input, ..Default::default() }, n, hash, Origin::Rpc)
}

fn made(tx: TxEip1559, n: u64, hash: B256, origin: Origin) -> Transaction {
    let inner = TxEip1559 { chain_id: 1, gas_limit: 21_000, ..tx };
    let signature = Signature::new(U256::from(1), U256::from(1), false);
    let signed = Signed::new_unchecked(inner, signature, hash);
    let tx = Recovered::new_unchecked(EthereumTxEnvelope::Eip1559(signed), sender(n));
    Transaction::new(tx, origin, SystemTime::UNIX_EPOCH)
}

pub(crate) fn block_hash(number: u64) -> B256 {
    keccak256(number.to_be_bytes())
}

/// Returns the block with this number, on the one before it.
pub(crate) fn head(number: u64, mined: Vec<B256>) -> Block {
    Block::new(Head::new(number, block_hash(number), block_hash(number - 1)), mined)
}

pub(crate) fn caller(n: u64) -> Holder {
    Holder::caller([10, 0, 0, n as u8].into())
}

/// Returns the `n`th bundle for a block, with a uuid and a signer of its own.
pub(crate) fn bundle(n: u64, block: u64, txs: Vec<Transaction>, holder: Holder) -> Bundle {
    let parts = BundleParts {
        txs,
        block: Some(block),
        uuid: Some(Default::default()),
        signer: Some(sender(n)),
        holder,
        ..BundleParts::default()
    };
    Bundle::new(parts).expect("a valid bundle")
}

/// Fills a pool at block 1 with bundles for the next three blocks, half of them the host's, so that
/// both halves can be full.
pub(crate) fn with_bundles(
    pool: OrderPool,
    count: u64,
    txs: impl Fn(u64) -> Vec<Transaction>,
) -> OrderPool {
    for n in 0..count {
        let holder = if n % 2 == 0 { Holder::Host } else { caller(n / 2 % 16) };
        let outcome = pool.insert_bundle(bundle(n, 2 + n % 3, txs(n), holder));
        assert_eq!(outcome, InsertOutcome::Added);
    }
    pool
}

pub(crate) fn filled(count: u64) -> OrderPool {
    let pool = OrderPool::new(PoolConfig::default()).expect("the default is valid");
    for n in 0..count {
        assert_eq!(pool.insert_transaction(nth(n)), InsertOutcome::Added);
    }
    pool
}

pub(crate) fn filled_rival(count: u64) -> MutexPool {
    let pool = MutexPool::default();
    (0..count).for_each(|n| assert!(pool.insert(nth(n))));
    pool
}

/// Does what a reader does with an order: reads its sender and its fees.
fn read_order(order: &order_pool::Order) -> u64 {
    let tx = order.as_tx().expect("only transactions here");
    tx.nonce() ^ (tx.tip(500).unwrap_or(0) as u64) ^ u64::from(tx.sender()[19])
}

/// Reads one whole replay, by reference. Returns the number of orders in it.
pub(crate) fn replay(pool: &OrderPool) -> u64 {
    let mut reader = pool.subscribe(1);
    let (mut count, mut sum) = (0, 0);
    while reader.is_replaying() {
        let shown = reader.visit(256, |event| {
            if let Event::Added(order) = event {
                sum ^= read_order(order);
                count += 1;
            }
        });
        shown.expect("a replay is shorter than the log");
    }
    black_box(sum);
    count
}

pub(crate) fn replay_rival(pool: &MutexPool, at_least: u64) -> u64 {
    let receiver = pool.subscribe();
    let (mut count, mut sum) = (0, 0);
    while count < at_least {
        sum ^= read_order(&receiver.recv().expect("the pool lives"));
        count += 1;
    }
    black_box(sum);
    count
}

/// Inserts 2,000 transactions a second for a while. Returns the time of each insert in nanoseconds.
/// The transactions are made before.
pub(crate) fn paced(window: Duration, first: u64, insert: impl Fn(Transaction)) -> Histogram<u64> {
    let count = (window.as_secs_f64() * f64::from(TPS)) as u64;
    let txs: Vec<_> = (first..first + count).map(nth).collect();
    let mut times = histogram();
    // The thread sleeps between inserts, as a worker that waits for its socket does. Each insert is
    // timed from its own start.
    for (tx, _) in txs.into_iter().zip(pace(Some(TPS))) {
        let began = Instant::now();
        insert(tx);
        times.saturating_record(began.elapsed().as_nanos() as u64);
    }
    times
}
