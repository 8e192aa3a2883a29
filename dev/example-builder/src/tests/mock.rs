//! The parts on the mock node.

use std::{
    collections::BTreeSet,
    os::unix::net::UnixListener,
    sync::{Arc, atomic::AtomicBool, atomic::Ordering::SeqCst, mpsc},
    time::{Duration, SystemTime},
};

use alloy_primitives::{Address, B256, Bytes};
use blocklist::{BlocklistConfig, SharedBlocklist};
use mempool_ingest::order_pool::{Block, RawBundle};
use mock_node::{
    NodeConfig,
    contracts::transfer_input,
    workload::{listed, tokens},
};

use super::world::{FEE_RECIPIENT, TIMEOUT, Wanted, World, guard, sign, spare_accounts};
use crate::{
    builder::{Builder, BuilderConfig, Report},
    fill::{Built, Way, fill},
    rpc::{Call, ReadError, Rpc},
    warm::warm,
};

const GAS_LIMIT: u64 = 60_000_000;

fn hashes(built: &Built) -> Vec<B256> {
    built.txs.iter().map(|(tx, _)| tx.hash).collect()
}

/// A transfer of a token; more than 10^24 is more than anybody has.
fn token_transfer(nonce: u64, tip_gwei: u128, fails: bool) -> Wanted {
    let to = Address::repeat_byte(0x77);
    let mut input = transfer_input(to, 5).to_vec();
    if fails {
        input[36..68].fill(0x11);
    }
    Wanted { nonce, tip_gwei, to: tokens()[0], input: input.into() }
}

#[test]
fn every_way_fills_the_same_block_and_no_listed_address_is_in_it() {
    let world = World::new(|node| NodeConfig { preload: 400, listed_per_mille: 100, ..node });
    world.ingest_pending();
    let block = world.next_block(GAS_LIMIT);
    let (state, guard) = (world.state(&block), guard());
    let mut candidates = world.candidates(&block);
    warm(&state, &block, candidates.take_new()).expect("the node answers");
    let built: Vec<Built> = Way::STEPS
        .iter()
        .map(|(_, way)| fill(*way, &block, &guard, &candidates, &state).expect("it fills"))
        .collect();
    let ours = built.last().expect("there are five");
    for (built, (name, _)) in built.iter().zip(Way::STEPS) {
        assert_eq!(built.outcome(), ours.outcome(), "{name}");
        assert_eq!((built.unread, built.invalid), (0, 0), "{name}");
    }
    assert!(ours.txs.len() > 100, "{}", ours.txs.len());
    assert!(ours.txs.iter().all(|(tx, _)| tx.success), "the load's calls succeed");
    let ways: BTreeSet<_> = ours.blocked.iter().map(|(_, by)| by.how.as_str()).collect();
    assert_eq!(
        ways,
        BTreeSet::from(["access_list", "recipient", "touched_by_execution"]),
        "the load reaches listed addresses in three ways"
    );
    for hash in hashes(ours) {
        let tx = candidates.env_of(&hash).expect("it was a candidate");
        let text = format!("{tx:?}").to_lowercase();
        for address in listed() {
            assert!(!text.contains(&format!("{address:x}")), "{hash} names {address}");
        }
    }
    // What was read ahead is not waited for; without, nearly every transaction waits.
    assert_eq!(ours.waited_for, 0);
    let [classic, cached] = [built[0].waited_for, built[1].waited_for];
    assert!(cached > 100 && classic > cached, "{classic} {cached}");
}

#[test]
fn the_best_paying_come_first_and_each_senders_nonces_in_order() {
    let world = World::new(|node| node);
    let accounts = spare_accounts();
    let put = |account: usize, nonce, tip| {
        world.pool(sign(&accounts[account], token_transfer(nonce, tip, false)).1)
    };
    let cheap_then_dear = [put(0, 0, 1), put(0, 1, 9)];
    let middle = put(1, 0, 5);
    let gap = put(2, 1, 8);
    let (low, high) = (put(3, 0, 2), put(3, 0, 4));
    let after = put(3, 1, 3);
    let block = world.next_block(GAS_LIMIT);
    let (state, candidates) = (world.state(&block), world.candidates(&block));
    let built = fill(Way::OURS, &block, &guard(), &candidates, &state).expect("it fills");
    let expected = [middle, high, after, cheap_then_dear[0], cheap_then_dear[1]];
    assert_eq!(hashes(&built), expected, "{low} has a used nonce, {gap} waits for one");
    // A transaction comes in only if all of its limit of 100,000 is left: that is so twice.
    let block = world.next_block(160_000);
    let built = fill(Way::OURS, &block, &guard(), &candidates, &state).expect("it fills");
    assert_eq!(hashes(&built), expected[..2]);
}

#[test]
fn a_bundle_is_in_whole_or_not_at_all_but_for_what_it_allows() {
    let accounts = spare_accounts();
    // Who may revert, who may be left out, and what is in the block of: good, failing.
    let cases: [(bool, bool, &[bool]); 4] = [
        (false, false, &[]),
        (true, false, &[true, false]),
        (false, true, &[true]),
        (true, true, &[true, false]),
    ];
    for (may_revert, may_be_left_out, in_block) in cases {
        for way in [Way::OURS, Way::CLASSIC] {
            let world = World::new(|node| node);
            let valid = sign(&accounts[0], token_transfer(0, 7, false));
            let failing = sign(&accounts[1], token_transfer(0, 7, true));
            // Behind the bundle: what only stands if the bundle left no trace, and if it did.
            let same_nonce = world.pool(sign(&accounts[0], token_transfer(0, 1, false)).1);
            let next_nonce = world.pool(sign(&accounts[0], token_transfer(1, 1, false)).1);
            world.bundle(RawBundle {
                txs: vec![valid.1, failing.1],
                reverting_tx_hashes: may_revert.then_some(failing.0).into_iter().collect(),
                dropping_tx_hashes: may_be_left_out.then_some(failing.0).into_iter().collect(),
                ..RawBundle::default()
            });
            let block = world.next_block(GAS_LIMIT);
            let (state, candidates) = (world.state(&block), world.candidates(&block));
            let built = fill(way, &block, &guard(), &candidates, &state).expect("it fills");
            let bundled = [valid.0, failing.0];
            let of_bundle: Vec<bool> = built
                .txs
                .iter()
                .filter(|(tx, _)| bundled.contains(&tx.hash))
                .map(|(tx, _)| tx.success)
                .collect();
            assert_eq!(of_bundle, in_block, "{may_revert} {may_be_left_out}");
            let there = hashes(&built);
            assert_eq!(there.contains(&same_nonce), in_block.is_empty(), "{way:?}");
            assert!(there.contains(&next_nonce));
            assert_eq!(
                (built.bundles, built.failed_bundles),
                match in_block.is_empty() {
                    true => (0, 1),
                    false => (1, 0),
                }
            );
        }
    }
}

#[test]
fn a_bundle_that_reaches_a_listed_address_is_blocked_whole() {
    let world = World::new(|node| node);
    let accounts = spare_accounts();
    let valid = sign(&accounts[0], token_transfer(0, 7, false));
    let bad = Wanted { nonce: 0, tip_gwei: 7, to: listed()[3], input: Bytes::new() };
    let bad = sign(&accounts[1], bad);
    world.bundle(RawBundle {
        txs: vec![valid.1, bad.1],
        reverting_tx_hashes: vec![bad.0],
        ..RawBundle::default()
    });
    let block = world.next_block(GAS_LIMIT);
    let (state, candidates) = (world.state(&block), world.candidates(&block));
    let built = fill(Way::OURS, &block, &guard(), &candidates, &state).expect("it fills");
    assert_eq!((built.txs.len(), built.blocked.len()), (0, 1));
    assert_eq!(built.blocked[0].1.address, listed()[3]);
}

#[test]
fn a_bundles_window_of_time_and_its_wish_for_a_refund_are_respected() {
    let world = World::new(|node| node);
    let block = world.next_block(GAS_LIMIT);
    let now = block.env.timestamp.to::<u64>();
    let accounts = spare_accounts();
    let bundle = |account: usize| RawBundle {
        txs: vec![sign(&accounts[account], token_transfer(0, 7, false)).1],
        ..RawBundle::default()
    };
    world.bundle(RawBundle { min_timestamp: Some(now), max_timestamp: Some(now), ..bundle(0) });
    world.bundle(RawBundle { min_timestamp: Some(now + 1), ..bundle(1) });
    world.bundle(RawBundle { max_timestamp: Some(now - 1), ..bundle(2) });
    world.bundle(RawBundle { refund_percent: Some(90), ..bundle(3) });
    let (state, candidates) = (world.state(&block), world.candidates(&block));
    assert_eq!(candidates.bundles.len(), 4);
    let built = fill(Way::OURS, &block, &guard(), &candidates, &state).expect("it fills");
    assert_eq!((built.bundles, built.txs.len()), (1, 1));
}

#[test]
fn at_each_head_a_block_is_built_and_a_stop_ends_the_thread() {
    let world = World::new(|node| NodeConfig { preload: 60, ..node });
    world.ingest_pending();
    let (reports, told) = mpsc::channel();
    let stop = Arc::new(AtomicBool::new(false));
    let now = SystemTime::now();
    let list = SharedBlocklist::new(
        format!("{}\n", listed()[0]).as_bytes(),
        now,
        BlocklistConfig::default(),
        now,
    );
    let builder = Builder {
        config: BuilderConfig {
            fee_recipient: FEE_RECIPIENT,
            gas_limit: GAS_LIMIT,
            fill_at_percent: 50,
            slot: Duration::from_millis(200),
            ways: vec![Way::OURS],
        },
        rpc: Arc::clone(&world.rpc),
        pool: world.pool.clone(),
        list: Arc::new(list.expect("a good list")),
        stop: Arc::clone(&stop),
    };
    let thread = std::thread::spawn(move || {
        builder.run(|report| reports.send(report).expect("the test listens"))
    });
    // Nothing is mined with it.
    world.node.mine_only(&[]).expect("an empty block");
    world.pool.on_head(Block::new(world.head(), []));
    let slot = loop {
        match told.recv_timeout(TIMEOUT).expect("a report") {
            Report::Slot(slot) => break slot,
            Report::Missed => {}
            Report::NoBlock(reason) => panic!("{reason}"),
        }
    };
    assert_eq!(slot.built[0].txs.len(), 60);
    assert_eq!(slot.found_listed, None);
    assert_eq!(slot.built[0].waited_for, 0);
    stop.store(true, SeqCst);
    thread.join().expect("no panic").expect("no error");
}

#[test]
fn a_node_that_is_silent_or_gone_is_an_error_in_time() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("silent.ipc");
    let listener = UnixListener::bind(&path).expect("a socket");
    let limit = Duration::from_millis(50);
    let rpc = Rpc::connect(&path, limit).expect("it listens");
    let request = || rpc.one(Call("eth_chainId", "[]".into()));
    assert!(matches!(request(), Err(ReadError::Timeout { .. })));
    drop(listener.accept().expect("it has connected"));
    drop(listener);
    assert!(matches!(request(), Err(ReadError::Closed | ReadError::Timeout { .. })));
}
