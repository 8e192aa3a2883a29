//! What keeping listed addresses out of a block costs, for a mix of transactions.
//!
//! Three ways to execute the same block, each with a per-block read cache over the same state:
//! - *bare*: no check at all;
//! - *post*: [`BlockGuard::execute`], pre-check and post-execution state;
//! - *classic*: an `AccessListInspector` under each transaction on one EVM, then its addresses, the
//!   sender and the recipient against the list: the check that builders ran, without its other
//!   costs.
//!
//! A round executes a block in each way, in an order that rotates; a ratio is the median over the
//! rounds of the ratio within a round, with the least and the most. Building the EVM and the cache
//! is outside the timed part. Every block's gas, logs and statuses are asserted to be the same in
//! all ways, and so is which transactions are refused when a contract that the swaps reach is
//! listed.
//!
//! `cargo bench --bench blocklist`; with `-- --test` two rounds of each, to see that it runs.

mod world;

use std::{
    hint::black_box,
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use blocklist::{BlockGuard, Blocklist, BlocklistConfig};
use revm::{
    Context, ExecuteCommitEvm, ExecuteEvm, InspectEvm, MainBuilder, MainContext,
    context::{BlockEnv, CfgEnv, TxEnv, result::ExecutionResult},
    database::CacheDB,
    handler::MainnetContext,
    primitives::{Address, hardfork::SpecId},
    state::EvmState,
};
use revm_inspectors::access_list::AccessListInspector;
use testkit::{
    bench::Args,
    figures::{Rounds, Spread, Table},
};

use crate::world::{Node, TXS, block};

const COINBASE: Address = Address::repeat_byte(0xfe);
const ROUNDS: usize = 720;
const TIME_LIMIT: Duration = Duration::from_secs(200);

type Cached<'n> = CacheDB<&'n Node>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Bare,
    Post,
    Classic,
}

const WAYS: [Way; 3] = [Way::Bare, Way::Post, Way::Classic];

/// What a block came to: the same in all ways, or the comparison is void.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Work {
    txs: usize,
    refused: usize,
    succeeded: usize,
    gas: u64,
    logs: usize,
}

impl Work {
    fn add(&mut self, result: &ExecutionResult) {
        self.txs += 1;
        self.succeeded += usize::from(result.is_success());
        self.gas += result.tx_gas_used();
        self.logs += result.logs().len();
    }
}

fn context(db: Cached<'_>) -> MainnetContext<Cached<'_>> {
    let block = BlockEnv { beneficiary: COINBASE, gas_limit: 60_000_000, ..BlockEnv::default() };
    Context::mainnet().with_db(db).with_cfg(CfgEnv::new_with_spec(SpecId::OSAKA)).with_block(block)
}

/// The check as it was done: whoever the inspector saw, sender and recipient. Takes the map as it
/// is, without sorting it into an access list, which favours this side.
fn classic_passes(list: &Blocklist, tx: &TxEnv, inspector: &AccessListInspector) -> bool {
    !list.contains(&tx.caller)
        && !tx.kind.to().is_some_and(|to| list.contains(to))
        && !inspector.touched_slots().keys().any(|address| list.contains(address))
}

fn run(way: Way, node: &Node, guard: &BlockGuard, txs: Vec<TxEnv>) -> (Duration, Work) {
    let context = context(CacheDB::new(node));
    match way {
        Way::Bare => {
            let mut evm = context.build_mainnet();
            timed(txs, |tx| {
                let executed = evm.transact(tx).expect("valid");
                evm.commit(executed.state);
                Some(executed.result)
            })
        }
        Way::Post => {
            let mut evm = context.build_mainnet();
            timed(txs, |tx| match guard.execute(&mut evm, tx) {
                Ok(checked) => Some(checked.commit()),
                Err(error) => {
                    assert!(error.blocked().is_some(), "{error}");
                    None
                }
            })
        }
        Way::Classic => {
            let mut evm = context.build_mainnet_with_inspector(AccessListInspector::default());
            timed(txs, |tx| {
                let executed = evm.inspect(tx, AccessListInspector::default()).expect("valid");
                let inspector = mem::take(&mut evm.inspector);
                classic_passes(guard.list(), &evm.ctx.tx, &inspector).then(|| {
                    evm.commit(executed.state);
                    executed.result
                })
            })
        }
    }
}

/// Executes each; without a result it was refused.
fn timed(
    txs: Vec<TxEnv>,
    mut execute: impl FnMut(TxEnv) -> Option<ExecutionResult>,
) -> (Duration, Work) {
    let mut work = Work::default();
    let start = Instant::now();
    for tx in txs {
        match execute(tx) {
            Some(result) => work.add(&result),
            None => work.refused += 1,
        }
    }
    (start.elapsed(), work)
}

/// The check by itself: pre-check and state check of a block's transactions, whose states were
/// collected beforehand and are out of the nearest cache.
fn check_alone(node: &Node, guard: &BlockGuard) -> Duration {
    let mut evm = context(CacheDB::new(node)).build_mainnet();
    let execute = |tx: TxEnv| {
        let state = evm.transact(tx.clone()).expect("valid").state;
        evm.commit(state.clone());
        (tx, state)
    };
    let states: Vec<(TxEnv, EvmState)> = block().into_iter().map(execute).collect();
    let start = Instant::now();
    for (tx, state) in &states {
        black_box(guard.precheck(tx)).expect("not listed");
        black_box(guard.list().check(state, COINBASE)).expect("not listed");
    }
    start.elapsed()
}

fn guard(addresses: impl IntoIterator<Item = Address>) -> BlockGuard {
    let list =
        Blocklist::from_addresses(addresses, &BlocklistConfig::default()).expect("not empty");
    BlockGuard::new(Arc::new(list), COINBASE).expect("the coinbase is not listed")
}

struct Row {
    listed: u64,
    read_us: u128,
    /// In the order of [`WAYS`].
    ways: [Rounds<Way, Duration>; WAYS.len()],
    check_alone: Rounds<(), Duration>,
    work: Option<Work>,
}

impl Row {
    fn ratio(&self, numerator: Way, denominator: Way) -> Spread {
        self.ways[numerator as usize].ratio(&self.ways[denominator as usize], Duration::as_secs_f64)
    }

    fn micros_per_tx(&self, way: Way) -> f64 {
        self.ways[way as usize].median(Duration::as_secs_f64) * 1e6 / TXS as f64
    }

    fn check_alone_ns(&self) -> f64 {
        self.check_alone.median(Duration::as_secs_f64) * 1e9 / TXS as f64
    }
}

fn measure(rounds: usize) -> Vec<Row> {
    let nodes = [0, 2].map(|us| Node::new(Duration::from_micros(us)));
    let guards =
        [100, 10_000].map(|length| (length, guard((0..length).map(|n| world::numbered(0xbb, n)))));
    let mut rows = Vec::new();
    for node in &nodes {
        for (listed, guard) in &guards {
            let row = Row {
                listed: *listed,
                read_us: node.read_time.as_micros(),
                ways: WAYS.map(Rounds::new),
                check_alone: Rounds::new(()),
                work: None,
            };
            rows.push((node, guard, row));
        }
    }
    let start = Instant::now();
    for round in 0..rounds {
        for (node, guard, row) in &mut rows {
            for turn in 0..WAYS.len() {
                let rounds = &mut row.ways[(turn + round) % WAYS.len()];
                let (time, work) = run(rounds.contender, node, guard, block());
                rounds.runs.push(time);
                assert_eq!(*row.work.get_or_insert(work), work, "{:?}", rounds.contender);
            }
            row.check_alone.runs.push(check_alone(node, guard));
        }
        if start.elapsed() > TIME_LIMIT {
            println!("stopped after {} rounds: {TIME_LIMIT:?} are over", round + 1);
            break;
        }
    }
    rows.into_iter().map(|(_, _, row)| row).collect()
}

/// The comparison is only worth something if both sides refuse the same transactions.
fn assert_the_ways_refuse_alike() {
    let node = Node::new(Duration::ZERO);
    let guard = guard([world::reached_by_swaps_alone()]);
    // A refused transaction leaves its sender's nonce, so each sender sends one.
    let of_each = || block().into_iter().filter(|tx| tx.nonce == 0).collect();
    let [post, classic] = [Way::Post, Way::Classic].map(|way| run(way, &node, &guard, of_each()).1);
    assert_eq!(post, classic);
    assert!(post.refused > 0);
}

fn print(rows: &[Row]) {
    let mut table = Table::new(
        "listed | read us | bare us/tx | post us/tx | classic us/tx | check ns/tx | \
         post / bare | classic / post",
    );
    for row in rows {
        let micros = |way| format!("{:.2}", row.micros_per_tx(way));
        table.row([
            row.listed.to_string(),
            row.read_us.to_string(),
            micros(Way::Bare),
            micros(Way::Post),
            micros(Way::Classic),
            format!("{:.0}", row.check_alone_ns()),
            row.ratio(Way::Post, Way::Bare).to_string(),
            row.ratio(Way::Classic, Way::Post).to_string(),
        ]);
    }
    print!("\n{table}");
    println!();
    for row in rows {
        let work = row.work.expect("there was a round");
        println!(
            "mix, {} listed, {} us per cold read: the check takes {:.2} % of the execution by itself \
             and {:+.2} % in place (goal: at most 1 %); classic / post {:.2}; {} transactions, {} gas \
             and {} logs in every way, {} blocks each",
            row.listed,
            row.read_us,
            row.check_alone_ns() / 10.0 / row.micros_per_tx(Way::Bare),
            (row.ratio(Way::Post, Way::Bare).median - 1.0) * 100.0,
            row.ratio(Way::Classic, Way::Post).median,
            work.txs,
            work.gas,
            work.logs,
            row.check_alone.runs.len(),
        );
    }
}

fn main() {
    assert_the_ways_refuse_alike();
    let rows = measure(if Args::read().is_test() { 2 } else { ROUNDS });
    for row in &rows {
        let work = row.work.expect("there was a round");
        assert_eq!((work.succeeded, work.refused), (TXS as usize, 0));
    }
    print(&rows);
}
