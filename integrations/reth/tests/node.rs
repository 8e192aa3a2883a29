//! A pool and a chain behind reth's traits: what the adapter makes of them, and the whole way
//! through the fetcher.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex},
    time::Duration,
};

use alloy_consensus::{
    BlockBody, Header, SignableTransaction as _, TxEip1559, TxEip4844, TxEip4844WithSidecar,
    transaction::{Recovered, TxHashRef as _},
};
use alloy_eips::{
    BlockHashOrNumber, eip4844::Blob, eip4844::BlobTransactionSidecar,
    eip7594::BlobTransactionSidecarVariant,
};
use alloy_primitives::{Address, B256, Signature, TxHash, U256};
use futures::{FutureExt as _, StreamExt as _, stream};
use reth_ethereum::{
    Block, EthPrimitives, RethPool,
    chainspec::{ChainSpecProvider, EthChainSpec},
    pool::{
        AllPoolTransactions, PoolTransaction, TransactionListenerKind, TransactionPool,
        ValidPoolTransaction,
    },
    primitives::RecoveredBlock,
    provider::{
        BlockNumReader, BlockReader, CanonStateNotification, CanonStateNotificationStream,
        CanonStateSubscriptions, Chain, NodePrimitivesProvider, ProviderError, ProviderResult,
        TransactionVariant,
    },
};
use tokio::sync::{broadcast, mpsc};
use txpool_fetcher::{
    ChainEvent, Fetcher, FetcherConfig, InProcessPool as _, NonceUpdate, PooledTransaction,
    SinkEvent,
};

const CHAIN_ID: u64 = 1337;
const ALICE: Address = Address::repeat_byte(0xaa);
const BOB: Address = Address::repeat_byte(0xbb);

/// The signature is nobody's: in the node's own process nobody asks.
fn plain(sender: Address, nonce: u64) -> Recovered<PooledTransaction> {
    let tx = TxEip1559 { chain_id: CHAIN_ID, nonce, ..TxEip1559::default() };
    let signed = tx.into_signed(signature(sender));
    Recovered::new_unchecked(PooledTransaction::Eip1559(signed), sender)
}

fn blob(sender: Address, nonce: u64) -> Recovered<PooledTransaction> {
    let sidecar = BlobTransactionSidecar {
        blobs: vec![Blob::default()],
        commitments: vec![Default::default()],
        proofs: vec![Default::default()],
    };
    let tx = TxEip4844WithSidecar {
        tx: TxEip4844 { chain_id: CHAIN_ID, nonce, ..TxEip4844::default() },
        sidecar: BlobTransactionSidecarVariant::Eip4844(sidecar),
    };
    let signed = tx.into_signed(signature(sender));
    Recovered::new_unchecked(PooledTransaction::Eip4844(signed), sender)
}

/// So that two senders have two hashes.
fn signature(sender: Address) -> Signature {
    Signature::new(U256::from_be_slice(sender.as_slice()), U256::ONE, false)
}

#[derive(Clone, Debug)]
struct Pooled(TxHash);

impl PoolTransaction for Pooled {
    type Pooled = PooledTransaction;

    fn hash(&self) -> &TxHash {
        &self.0
    }
}

#[derive(Clone, Debug, Default)]
struct Pool(Arc<Mutex<PoolState>>);

#[derive(Debug, Default)]
struct PoolState {
    txs: HashMap<TxHash, Recovered<PooledTransaction>>,
    queued: BTreeSet<TxHash>,
    listeners: Vec<(TransactionListenerKind, mpsc::Sender<TxHash>)>,
}

impl Pool {
    /// Returns its hash.
    fn add(&self, tx: Recovered<PooledTransaction>, queued: bool) -> TxHash {
        let (mut state, hash) = (self.0.lock().unwrap(), *tx.tx_hash());
        state.txs.insert(hash, tx);
        if queued {
            state.queued.insert(hash);
        } else {
            for (_, listener) in &state.listeners {
                // reth too drops it when the listener is full.
                let _ = listener.try_send(hash);
            }
        }
        hash
    }
}

impl TransactionPool for Pool {
    type Transaction = Pooled;

    fn pending_transactions_listener_for(
        &self,
        kind: TransactionListenerKind,
    ) -> mpsc::Receiver<TxHash> {
        let (sender, receiver) = mpsc::channel(2_048);
        self.0.lock().unwrap().listeners.push((kind, sender));
        receiver
    }

    fn get_pooled_transaction_element(
        &self,
        tx_hash: TxHash,
    ) -> Option<Recovered<PooledTransaction>> {
        self.0.lock().unwrap().txs.get(&tx_hash).cloned()
    }

    fn all_transactions(&self) -> AllPoolTransactions<Pooled> {
        let state = self.0.lock().unwrap();
        let (queued, pending) = state
            .txs
            .keys()
            .map(|hash| Arc::new(ValidPoolTransaction { transaction: Pooled(*hash) }))
            .partition(|tx| state.queued.contains(tx.hash()));
        AllPoolTransactions { pending, queued }
    }
}

#[derive(Debug)]
struct Spec;

impl EthChainSpec for Spec {
    fn chain_id(&self) -> u64 {
        CHAIN_ID
    }
}

#[derive(Clone, Debug)]
struct Canonical {
    blocks: Arc<Mutex<Vec<RecoveredBlock<Block>>>>,
    notifications: broadcast::Sender<CanonStateNotification<EthPrimitives>>,
}

fn block(
    number: u64,
    parent_hash: B256,
    txs: &[&Recovered<PooledTransaction>],
) -> RecoveredBlock<Block> {
    let header = Header {
        number,
        parent_hash,
        base_fee_per_gas: Some(7),
        gas_limit: 30_000_000,
        gas_used: 15_000_000,
        timestamp: 1_800_000_000 + 12 * number,
        beneficiary: BOB,
        // So that a reorg has another hash.
        extra_data: vec![txs.len() as u8].into(),
        ..Header::default()
    };
    let hash = header.hash_slow();
    // Without the sidecars.
    let transactions = txs.iter().map(|tx| tx.inner().clone().into()).collect();
    let body = BlockBody { transactions, ..BlockBody::default() };
    RecoveredBlock::new(Block { header, body }, txs.iter().map(|tx| tx.signer()).collect(), hash)
}

fn chain_of(blocks: &[RecoveredBlock<Block>]) -> Arc<Chain<EthPrimitives>> {
    let by_number =
        |block: &RecoveredBlock<Block>| (block.header().number, Arc::new(block.clone()));
    Arc::new(Chain(blocks.iter().map(by_number).collect::<BTreeMap<_, _>>()))
}

impl Canonical {
    fn commit(&self, blocks: &[RecoveredBlock<Block>]) {
        self.blocks.lock().unwrap().extend_from_slice(blocks);
        let _ = self.notifications.send(CanonStateNotification::Commit { new: chain_of(blocks) });
    }

    /// Undoes the last block; nothing takes the place of it if `blocks` is empty.
    fn reorg(&self, blocks: &[RecoveredBlock<Block>]) {
        let old = self.blocks.lock().unwrap().pop().expect("a block");
        self.blocks.lock().unwrap().extend_from_slice(blocks);
        let (old, new) = (chain_of(&[old]), chain_of(blocks));
        let _ = self.notifications.send(CanonStateNotification::Reorg { old, new });
    }
}

impl ChainSpecProvider for Canonical {
    type ChainSpec = Spec;

    fn chain_spec(&self) -> Arc<Spec> {
        Arc::new(Spec)
    }
}

impl BlockNumReader for Canonical {
    fn best_block_number(&self) -> ProviderResult<u64> {
        let blocks = self.blocks.lock().unwrap();
        blocks.last().map(|block| block.header().number).ok_or(ProviderError)
    }
}

impl BlockReader for Canonical {
    type Block = Block;

    fn recovered_block(
        &self,
        id: BlockHashOrNumber,
        transaction_kind: TransactionVariant,
    ) -> ProviderResult<Option<RecoveredBlock<Block>>> {
        assert_eq!(transaction_kind, TransactionVariant::WithHash);
        let is_it = |block: &&RecoveredBlock<Block>| match id {
            BlockHashOrNumber::Hash(hash) => block.hash() == hash,
            BlockHashOrNumber::Number(number) => block.header().number == number,
        };
        Ok(self.blocks.lock().unwrap().iter().find(is_it).cloned())
    }
}

impl NodePrimitivesProvider for Canonical {
    type Primitives = EthPrimitives;
}

impl CanonStateSubscriptions for Canonical {
    fn canonical_state_stream(&self) -> CanonStateNotificationStream<EthPrimitives> {
        let receiver = self.notifications.subscribe();
        stream::unfold(receiver, |mut receiver| async {
            Some((receiver.recv().await.ok()?, receiver))
        })
        .boxed()
    }
}

fn node() -> RethPool<Pool, Canonical> {
    let blocks = Arc::new(Mutex::new(vec![block(10, B256::ZERO, &[])]));
    let chain = Canonical { blocks, notifications: broadcast::channel(16).0 };
    RethPool { pool: Pool::default(), chain }
}

#[test]
fn the_pool_is_listed_by_sub_pool_and_read_with_senders_and_sidecars() {
    let node = node();
    assert_eq!(node.chain_id(), CHAIN_ID);
    let mut announced = node.announcements();
    let (pending, with_blob) = (plain(ALICE, 0), blob(BOB, 0));
    let pending_hash = node.pool.add(pending.clone(), false);
    let blob_hash = node.pool.add(with_blob.clone(), false);
    let queued_hash = node.pool.add(plain(ALICE, 5), true);
    let pooled = node.pooled();
    assert_eq!(BTreeSet::from_iter(pooled.pending), [pending_hash, blob_hash].into());
    assert_eq!(pooled.queued, [queued_hash]);
    assert_eq!(node.get(&pending_hash), Some(pending));
    assert_eq!(node.get(&blob_hash), Some(with_blob), "with its sidecar");
    assert_eq!(node.get(&B256::ZERO), None);

    // What became pending, in this order; also what peers are not sent.
    for hash in [pending_hash, blob_hash] {
        let next = announced.next().now_or_never().expect("at once");
        assert_eq!(next, Some(txpool_fetcher::PoolAnnouncement::Pending(hash)));
    }
    assert!(announced.next().now_or_never().is_none(), "the queued one is not announced");
    assert_eq!(node.pool.0.lock().unwrap().listeners[0].0, TransactionListenerKind::All);
    // The pool is gone: a lost connection.
    node.pool.0.lock().unwrap().listeners.clear();
    assert_eq!(announced.next().now_or_never(), Some(None));
}

#[test]
fn what_the_listener_had_no_room_for_is_told_as_a_lag() {
    let node = node();
    let mut announced = node.announcements();
    (0..2_100).for_each(|nonce| _ = node.pool.add(plain(ALICE, nonce), false));
    let mut lags = 0;
    for _ in 0..2_049 {
        let next = announced.next().now_or_never().expect("at once").expect("the pool is there");
        lags += usize::from(next == txpool_fetcher::PoolAnnouncement::Lagged(0));
    }
    assert_eq!(lags, 1);
    assert!(announced.next().now_or_never().is_none(), "the other 52 are told to nobody");
}

#[test]
fn commits_and_reorgs_are_their_new_blocks_and_a_revert_is_none() {
    let node = node();
    let genesis = node.latest_block().expect("a block").block.head;
    assert_eq!((genesis.number, genesis.gas_limit), (10, 30_000_000));
    assert_eq!((genesis.base_fee_wei, genesis.next_base_fee_wei), (Some(7), Some(7)), "half full");
    let mut blocks = node.blocks();
    let (first, second, other) = (plain(ALICE, 3), plain(ALICE, 4), blob(BOB, 0));
    let eleven = block(11, genesis.hash, &[&first, &other, &second]);
    let twelve = block(12, eleven.hash(), &[]);
    node.chain.commit(&[eleven.clone(), twelve.clone()]);
    let replaced = block(12, eleven.hash(), &[&plain(ALICE, 5)]);
    node.chain.reorg(std::slice::from_ref(&replaced));
    node.chain.reorg(&[]);

    let mut next = || blocks.next().now_or_never().map(|block| block.expect("no end"));
    let mined = next().expect("the first of the commit");
    assert_eq!((mined.block.head.number, mined.block.head.hash), (11, eleven.hash()));
    assert_eq!(mined.block.head.parent_hash, genesis.hash);
    assert_eq!(mined.block.head.fee_recipient, BOB);
    assert_eq!(mined.block.mined[..], [&first, &other, &second].map(|tx| *tx.tx_hash()));
    let mut nonces = mined.nonces;
    nonces.sort_by_key(|update| update.sender);
    assert_eq!(nonces, [NonceUpdate::new(ALICE, 5), NonceUpdate::new(BOB, 1)]);
    assert_eq!(next().expect("the second").block.head.hash, twelve.hash());
    let head = next().expect("the reorg").block.head;
    assert_eq!((head.hash, head.parent_hash), (replaced.hash(), eleven.hash()));
    assert!(next().is_none(), "a revert has no new block");
    assert_eq!(node.latest_block().expect("a block").block.head.hash, eleven.hash());
    assert_eq!(node.block(&eleven.hash()).expect("it is known").block.mined.len(), 3);
    assert_eq!(node.block(&replaced.hash()), None, "it was undone");
    node.chain.blocks.lock().unwrap().clear();
    assert_eq!(node.latest_block(), None, "an error of the database");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_that_is_pending_arrives_once_and_blocks_become_heads_and_nonces() {
    let node = node();
    let (pool, chain) = (node.pool.clone(), node.chain.clone());
    let genesis = node.latest_block().expect("a block").block.head.hash;
    let before = [plain(ALICE, 0), plain(BOB, 0), plain(ALICE, 9)];
    let listed = [0, 1, 2].map(|n| pool.add(before[n].clone(), n == 2));
    let (sink, mut events) = mpsc::channel::<SinkEvent>(64);
    let source = FetcherConfig::in_process("reth", Arc::new(node));
    let fetcher = Fetcher::start(source, sink).await.unwrap();
    let mut next = async || {
        let event = tokio::time::timeout(Duration::from_secs(10), events.recv()).await;
        event.expect("within the time limit").expect("the fetcher runs")
    };

    // The head of that moment, and what was pending in the pool: in no order of each other.
    let mut found = BTreeSet::new();
    let mut heads = Vec::new();
    while found.len() < 2 || heads.is_empty() {
        match next().await {
            SinkEvent::Transaction(tx) => assert!(found.insert(tx.hash()), "a second time"),
            SinkEvent::Chain(ChainEvent::Head(block)) => heads.push(block.head.hash),
            SinkEvent::Chain(ChainEvent::Nonces(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((found, heads), ([listed[0], listed[1]].into(), vec![genesis]));

    let announced = blob(BOB, 1);
    let hash = pool.add(announced.clone(), false);
    match next().await {
        SinkEvent::Transaction(tx) => assert_eq!((tx.hash(), tx.tx), (hash, announced.clone())),
        other => panic!("{other:?}"),
    }
    let eleven = block(11, genesis, &[&before[0], &before[1], &announced]);
    let replaced = block(11, genesis, &[&before[0]]);
    for (block, mined, senders) in [(eleven, 3, 2), (replaced, 1, 1)] {
        let blocks = std::slice::from_ref(&block);
        if mined == 3 {
            chain.commit(blocks)
        } else {
            chain.reorg(blocks)
        }
        let (mut head, mut nonces) = (None, None);
        while head.is_none() || nonces.is_none() {
            match next().await {
                SinkEvent::Chain(ChainEvent::Head(told)) => head = Some(told),
                SinkEvent::Chain(ChainEvent::Nonces(told)) => nonces = Some(told),
                other => panic!("{other:?}"),
            }
        }
        let (head, nonces) = (head.unwrap(), nonces.unwrap());
        assert_eq!((head.head.hash, head.mined.len()), (block.hash(), mined));
        assert_eq!((nonces.block_hash, nonces.updates.len()), (block.hash(), senders));
    }
    let counts = fetcher.shutdown(Duration::from_secs(5)).await.counts;
    assert_eq!((counts.balance(), counts.pooled), (0, 3), "{counts:?}");
}

#[test]
fn the_page_shows_the_main_file_and_every_dependency_of_it() {
    let page = include_str!("../README.md");
    let main = include_str!("../src/main.rs");
    assert!(page.contains(&format!("```rust,ignore\n{main}```")));
    let manifest = page.split("```toml").nth(1).and_then(|rest| rest.split("```").next());
    let manifest = manifest.expect("a manifest");
    for code in [main, include_str!("../src/pool.rs")] {
        let imports = code.lines().filter_map(|line| line.strip_prefix("use "));
        let crates = imports.filter_map(|import| import.split(':').next());
        for name in crates.filter(|name| !["crate", "std"].contains(name)) {
            let line = format!("\n{} = ", name.replace('_', "-"));
            assert!(manifest.contains(&line), "{name}");
        }
    }
    for name in ["eyre", "tracing"] {
        assert!(manifest.contains(&format!("\n{name} = ")), "{name}");
    }
}
