//! Tests of the builder on a mock node with state.

use std::{
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use alloy::{
    primitives::{Address, B256, Bytes},
    providers::{IpcConnect, Provider as _, ProviderBuilder},
};
use blocklist::{BlockGuard, Blocklist, BlocklistConfig};
use mempool_ingest::{Fetcher, OrderPool, PoolConfig, order_pool::RawBundle};
use mock_node::{
    DEV_CHAIN_ID, NodeConfig,
    workload::{Account, listed, test_accounts, tokens},
};
use testkit::{
    command::{Running, Signal, command_line},
    ingest::{Node, PATIENCE, eventually, ingest},
    sign::signed,
    state::contracts::transfer_input,
};
use tokio::runtime::Runtime;

use crate::{
    builder::prefetch,
    candidates::Candidates,
    fill::{BOTH_WAYS, Built, Way, fill},
    run_with,
    state::{NextBlock, NodeState, Reads},
};

const FEE_RECIPIENT: Address = Address::repeat_byte(0xfe);
const CHILD: &str = "tests::a_command_that_does_not_end";

/// A node with state, and a pool that is fed from it.
struct World {
    node: Node,
    runtime: Runtime,
    _fetcher: Fetcher,
    pool: OrderPool,
}

impl World {
    fn new(preload: usize) -> Self {
        let node = Node::start(0, |node| NodeConfig {
            state: true,
            preload,
            listed_per_mille: 100,
            ..node
        });
        let runtime = Runtime::new().expect("a runtime");
        let (fetcher, pool) = runtime.block_on(ingest(node.fetcher()));
        Self { node, runtime, _fetcher: fetcher, pool }
    }

    /// Waits until `count` transactions are pooled.
    fn wait(&self, count: usize) {
        self.runtime.block_on(eventually("all are pooled", || self.pool.len() == count));
    }

    /// Makes the next block, on a state whose cache is empty.
    fn block(&self) -> (NextBlock, NodeState) {
        let has_head = eventually("the head is known", || self.pool.head().is_some());
        self.runtime.block_on(has_head);
        let head = self.pool.head().expect("it has one");
        let ipc = IpcConnect::new(self.node.node.ipc_path().to_owned());
        let node = self.runtime.block_on(ProviderBuilder::new().connect_ipc(ipc));
        let node = node.expect("it listens").erased();
        let reads = Reads::new(node, self.runtime.handle().clone(), head.hash);
        (NextBlock::after(head, DEV_CHAIN_ID, FEE_RECIPIENT, 12), NodeState::new(reads))
    }
}

fn candidates(pool: &OrderPool, block: &NextBlock) -> Candidates {
    let mut candidates = Candidates::default();
    candidates.follow(&mut pool.subscribe(block.number()));
    candidates
}

/// A guard over the addresses that the load reaches.
fn guard() -> BlockGuard {
    let list = Blocklist::from_addresses(listed().iter().copied(), &BlocklistConfig::default());
    BlockGuard::new(Arc::new(list.expect("a good list")), FEE_RECIPIENT).expect("not listed")
}

/// Signs a transfer of a token, which fails if it is of more than 10^24.
fn transfer(account: &Account, nonce: u64, tip_gwei: u128, fails: bool) -> (B256, Bytes) {
    let mut input = transfer_input(Address::repeat_byte(0x77), 5).to_vec();
    input[36..60].fill(if fails { 0x11 } else { 0 });
    signed(account, |tx| {
        (tx.nonce, tx.gas_limit) = (nonce, 100_000);
        tx.max_priority_fee_per_gas = tip_gwei * 1_000_000_000;
        (tx.to, tx.input) = (tokens()[0].into(), input.into());
    })
}

fn hashes(built: &Built) -> Vec<B256> {
    built.txs.iter().map(|(tx, ..)| tx.hash).collect()
}

#[test]
fn both_ways_fill_the_same_block_without_listed_addresses() {
    let world = World::new(300);
    world.wait(300);
    let ((block, mut state), (_, cold), guard) = (world.block(), world.block(), guard());
    let mut candidates = candidates(&world.pool, &block);
    // Without a prefetch nearly every transaction waits for reads; after it none does.
    let waited = fill(Way::PostState, &block, &guard, &candidates, &cold);
    assert!(waited.reads > 100, "{}", waited.reads);
    prefetch(&block, &mut state, &mut candidates, Instant::now() + PATIENCE);
    let built = BOTH_WAYS.map(|way| fill(way, &block, &guard, &candidates, &state));
    let [classic, ours] = &built;
    assert!(classic.is_like(ours) && waited.is_like(ours), "{built:?}");
    assert!(ours.txs.len() > 100 && ours.txs.iter().all(|(_, _, success)| *success));
    let mut ways: Vec<_> = ours.blocked.iter().map(|(_, blocked)| blocked.how.as_str()).collect();
    ways.sort_unstable();
    ways.dedup();
    assert_eq!(ways, ["access_list", "recipient", "touched_by_execution"]);
    assert_eq!((classic.reads, ours.reads), (0, 0));
}

#[test]
fn orders_are_included_by_tip_and_by_nonce() {
    let world = World::new(0);
    let accounts = test_accounts(23).split_off(20);
    let wanted = [(1, 0, 5), (2, 0, 4), (2, 1, 3), (0, 0, 1), (0, 1, 9)];
    let txs = wanted.map(|(account, nonce, tip)| transfer(&accounts[account], nonce, tip, false));
    for (_, raw) in &txs {
        world.node.node.submit(raw.clone()).expect("it is valid");
    }
    world.wait(txs.len());
    let (mut block, state) = world.block();
    let candidates = candidates(&world.pool, &block);
    let fill = |block: &NextBlock| fill(Way::PostState, block, &guard(), &candidates, &state);
    assert_eq!(hashes(&fill(&block)), txs.clone().map(|(hash, _)| hash));
    // A transaction is included only if its gas limit of 100,000 is left, which is the case twice.
    block.env.gas_limit = 160_000;
    assert_eq!(hashes(&fill(&block)), [txs[0].0, txs[1].0]);
}

#[test]
fn a_bundle_is_included_completely_unless_it_permits_less() {
    let world = World::new(0);
    let accounts = test_accounts(22).split_off(20);
    let [valid, fails] = [0, 1].map(|index| transfer(&accounts[index], 0, 7, index == 1));
    let to_listed = signed(&accounts[1], |tx| {
        (tx.to, tx.max_priority_fee_per_gas) = (listed()[3].into(), 7_000_000_000);
    });
    let (block, state) = world.block();
    // The second transaction, whether it may revert or be left out, and the transactions in the
    // block.
    let both = vec![valid.0, fails.0];
    for (second, may_revert, may_be_left_out, in_block) in [
        (&fails, false, false, vec![]),
        (&fails, true, false, both.clone()),
        (&fails, false, true, vec![valid.0]),
        (&fails, true, true, both),
        (&to_listed, true, false, vec![]),
    ] {
        let bundle = RawBundle {
            txs: vec![valid.1.clone(), second.1.clone()],
            reverting_tx_hashes: may_revert.then_some(second.0).into_iter().collect(),
            dropping_tx_hashes: may_be_left_out.then_some(second.0).into_iter().collect(),
            ..RawBundle::default()
        };
        let pool = OrderPool::new(PoolConfig::default()).expect("the defaults are valid");
        pool.insert_bundle(bundle.resolve(None, 100, SystemTime::now()).expect("it resolves"));
        let candidates = candidates(&pool, &block);
        for way in BOTH_WAYS {
            let built = fill(way, &block, &guard(), &candidates, &state);
            assert_eq!(hashes(&built), in_block, "{may_revert} {may_be_left_out} {way:?}");
            let blocked = usize::from(second.0 == to_listed.0);
            let counts = (built.bundles, built.left_out, built.blocked.len());
            let out = usize::from(in_block.is_empty());
            assert_eq!(counts, (1 - out, out - blocked, blocked));
        }
    }
}

#[test]
#[ignore = "run by the test below, in a process that a signal ends"]
fn a_command_that_does_not_end() {
    assert_eq!(run_with(command_line()), ExitCode::SUCCESS);
}

#[test]
fn a_signal_ends_the_command_with_its_summary() {
    let block_time = Duration::from_millis(500);
    let node = Node::start(0, |node| NodeConfig { state: true, preload: 20, block_time, ..node });
    let folder = tempfile::tempdir().expect("a folder");
    let list = folder.path().join("list");
    let lines: String = listed().iter().map(|address| format!("{address}\n")).collect();
    std::fs::write(&list, lines).expect("a file");
    let list = list.to_str().expect("text");
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let ipc = node.node.ipc_path().to_str().expect("text");
        let args = ["--ipc", ipc, "--blocklist", list, "--json", "--compare", "--slot", "500ms"];
        let running = Running::start(CHILD, args.map(Into::into));
        let mut running = running.expect("this binary runs");
        running.line(|line| line.starts_with("block ").then_some(())).expect("a block");
        let ended = running.end(Some(signal)).expect("it ends");
        assert_eq!(ended.status.code(), Some(0), "{signal}: {ended:?}");
        let summary = ended.json().expect("the summary");
        assert!(summary["blocks"].as_u64() >= Some(1), "{signal}: {summary}");
        assert_eq!(summary["fill_ms_p50"].as_array().map(Vec::len), Some(2), "{signal}: {summary}");
    }
}

/// Without a blocklist it used to build blocks of all orders.
#[test]
fn nothing_is_built_on_a_real_node_without_a_blocklist() {
    let running = Running::start(CHILD, ["--ipc", "/none.ipc"].map(str::to_owned));
    let ended = running.and_then(|running| running.end(None)).expect("this binary runs");
    assert_ne!(ended.status.code(), Some(0), "{ended:?}");
    assert!(ended.stderr.contains("--blocklist <FILE>"), "{ended:?}");
}
