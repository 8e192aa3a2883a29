//! Tests of the guard on random programs in random worlds, one block at a time on one EVM.
//!
//! They assert that the checked keys are the accounts read from the database, that the guard blocks
//! exactly when a listed address is named or read, that the list decides the same on the state, and
//! that the execution is the same with and without an inspector.
//!
//! `BLOCKLIST_RANDOM_TXS` sets the number of transactions (default 105,000, of which some 4 % are
//! invalid on purpose), `BLOCKLIST_SEED` the first seed. A failure prints the seed of its block.

use std::collections::{BTreeMap, BTreeSet};

use blocklist::{AttemptInspector, ExecuteError, How};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use revm::{
    InspectEvm,
    context::{TxEnv, result::ExecutionResult},
    context_interface::{Transaction, transaction::AuthorizationTr},
    primitives::{Address, hardfork::SpecId},
};

use crate::support::{
    COINBASE, evm_with, forks, guard_for, keys,
    random::{self, Universe, pick},
    world_of,
};

const DEFAULT_TXS: u64 = 105_000;
const MIN_EXECUTED: u64 = 100_000;
const TXS_PER_BLOCK: u64 = 10;

/// The testkit has such a function too, but the integration of rbuilder compiles this file without
/// it.
fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a whole number"))
}

/// How often each kind of event occurred. A generator that no longer produces one fails the test.
type Seen = BTreeMap<&'static str, u64>;

/// The addresses that the transaction itself names.
fn named(tx: &TxEnv) -> BTreeSet<Address> {
    let mut named: BTreeSet<Address> = [tx.caller].into();
    named.extend(tx.kind.to());
    named.extend(tx.access_list.0.iter().map(|item| item.address));
    for authorization in tx.authorization_list() {
        named.extend(authorization.authority());
        named.insert(authorization.address());
    }
    named
}

fn one_block(seed: u64, forks: &[SpecId]) -> Seen {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let spec = pick(&mut rng, forks);
    let universe = Universe::new(spec);
    let world = universe.world(&mut rng);
    let coinbase = if rng.random_bool(0.3) { universe.any(&mut rng) } else { COINBASE };
    let mut listed: Vec<Address> =
        (0..rng.random_range(0..4)).map(|_| universe.any(&mut rng)).collect();
    if rng.random_bool(0.2) {
        listed.push(pick(&mut rng, &universe.senders).create(rng.random_range(0..3)));
    }
    listed.retain(|address| *address != coinbase);
    let guard = guard_for(&listed, coinbase);

    let mut guarded = evm_with(world.clone(), spec, coinbase, ());
    let mut inspected = evm_with(world, spec, coinbase, AttemptInspector::default());
    let mut seen = Seen::new();
    let mut saw = |event, count| *seen.entry(event).or_default() += count;
    for index in 0..TXS_PER_BLOCK {
        let tx = random::transaction(
            &mut rng,
            &universe,
            spec,
            &mut inspected.ctx.journaled_state.database,
        );
        let context = || {
            format!("BLOCKLIST_SEED={seed} {spec} transaction {index}: {tx:?}, listed {listed:?}")
        };
        let named = named(&tx);
        saw("txs", 1);

        inspected.inspector.clear();
        inspected.ctx.journaled_state.database.forget_reads();
        let expected = inspected.inspect_tx(tx.clone());
        if expected.is_err() {
            // revm 34 leaves the accounts of an invalid transaction in the journal. The guard
            // discards them.
            let _ = revm::ExecuteEvm::finalize(&mut inspected);
        }
        let read = world_of(&inspected).accounts.clone();
        let commits = world_of(&guarded).commits;
        guarded.ctx.journaled_state.database.forget_reads();
        let decided = guard.execute(&mut guarded, tx.clone());

        // The keys are the accounts that were read, all of them and no others.
        if let Ok(expected) = &expected {
            assert_eq!(keys(&expected.state), read, "{}", context());
            let owners = &world_of(&inspected).storage_owners;
            assert!(owners.is_subset(&read), "{}", context());
            assert!(read.contains(&coinbase), "{}", context());
            saw("executed", 1);
        }

        let is_listed = |address: &Address| listed.contains(address);
        if named.iter().any(is_listed) {
            saw("blocked by the pre-check", 1);
            let blocked = decided.expect_err("a listed address is named").blocked();
            let blocked = blocked.unwrap_or_else(|| panic!("{}", context()));
            assert!(is_listed(&blocked.address) && blocked.how < How::TouchedByExecution);
            assert!(world_of(&guarded).accounts.is_empty(), "{}", context());
            assert_eq!(world_of(&guarded).commits, commits, "{}", context());
            continue;
        }
        let expected = match expected {
            Ok(expected) => expected,
            Err(error) => {
                saw("invalid", 1);
                assert_eq!(decided.map(drop), Err(ExecuteError::Evm(error)), "{}", context());
                assert_eq!(world_of(&guarded).commits, commits, "{}", context());
                continue;
            }
        };

        let how = match expected.result {
            ExecutionResult::Success { .. } => "succeeded",
            ExecutionResult::Revert { .. } => "reverted",
            ExecutionResult::Halt { .. } => "halted",
        };
        saw(how, 1);
        saw("accounts", read.len() as u64);
        let precompiles = read.iter().filter(|a| universe.precompiles.contains(a)).count();
        saw("precompiles", precompiles as u64);
        saw("delegated", u64::from(read.iter().any(|a| universe.delegated.contains(a))));
        saw("created", u64::from(expected.state.values().any(|account| account.is_created())));
        let attempts = inspected.inspector.attempts();
        saw("attempted only", u64::from(attempts.iter().any(|a| !read.contains(a))));

        let list_verdict = guard.list().check(&expected.state, coinbase);
        if read.iter().any(is_listed) {
            saw("blocked by the state", 1);
            let refused = decided.expect_err("a listed address was read");
            let blocked = refused.blocked().unwrap_or_else(|| panic!("{refused}: {}", context()));
            assert_eq!(list_verdict, Err(blocked), "{}", context());
            assert_eq!(blocked.how, How::TouchedByExecution, "{}", context());
            assert_eq!(Some(&blocked.address), read.iter().find(|a| is_listed(a)), "{}", context());
            assert_eq!(world_of(&guarded).accounts, read, "{}", context());
            assert_eq!(world_of(&guarded).commits, commits, "{}", context());
        } else {
            assert_eq!(list_verdict, Ok(()), "{}", context());
            let checked = decided.unwrap_or_else(|refused| panic!("{refused}: {}", context()));
            assert_eq!(checked.state(), &expected.state, "{}", context());
            assert_eq!(checked.output(), &expected.result, "{}", context());
            checked.commit();
            assert_eq!(world_of(&guarded).accounts, read, "{}", context());
            assert_eq!(world_of(&guarded).commits, commits + 1, "{}", context());
            revm::ExecuteCommitEvm::commit(&mut inspected, expected.state);
            saw("committed", 1);
        }
    }
    seen
}

#[test]
fn the_checked_accounts_are_those_read_in_random_blocks() {
    let txs = number("BLOCKLIST_RANDOM_TXS", DEFAULT_TXS);
    let first_seed = number("BLOCKLIST_SEED", 0);
    let forks: Vec<SpecId> = forks().collect();
    let blocks = txs.div_ceil(TXS_PER_BLOCK);
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64).min(8);
    let mut seen = Seen::new();
    let mut add = |part: Seen| {
        part.into_iter().for_each(|(event, count)| *seen.entry(event).or_default() += count)
    };
    std::thread::scope(|scope| {
        let parts: Vec<_> = (0..threads)
            .map(|thread| {
                let forks = &forks;
                scope.spawn(move || -> Vec<Seen> {
                    let blocks = (thread..blocks).step_by(threads as usize);
                    blocks.map(|block| one_block(first_seed + block, forks)).collect()
                })
            })
            .collect();
        for part in parts {
            part.join().expect("no block failed").into_iter().for_each(&mut add);
        }
    });
    println!("{seen:?}");

    assert!(seen["txs"] >= txs);
    if txs >= DEFAULT_TXS {
        // Far below the usual counts, and far above those of a broken generator.
        assert!(seen["executed"] >= MIN_EXECUTED, "{seen:?}");
        assert!(seen["accounts"] > 3 * seen["executed"] && seen["invalid"] > 0, "{seen:?}");
        assert_eq!(seen.len(), 14, "{seen:?}");
        let often =
            |(event, count): (&&str, &u64)| *event == "invalid" || *count > seen["txs"] / 100;
        assert!(seen.iter().all(often), "{seen:?}");
    }
}
