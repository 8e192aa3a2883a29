use std::{
    fs,
    path::Path,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::SystemTime,
};

use alloy_consensus::{EthereumTxEnvelope, Signed, TxEip1559, transaction::Recovered};
use alloy_primitives::{Address, B256, Signature, U256, keccak256};
use order_pool::{
    Block, Event, Head, InsertOutcome, Origin, PoolConfig, RemoveReason, Transaction,
};
use parquet::{
    file::reader::{FileReader as _, SerializedFileReader},
    record::RowAccessor as _,
};
use tempfile::TempDir;

use super::*;
use crate::{columns::STEP_ROWS, pages::STEP_BYTES};

/// Of a sender of its own. The pool believes hash and sender, so nothing need be signed.
fn tx(n: u64, origin: Origin) -> Transaction {
    tx_with_input(n, origin, 0)
}

fn tx_with_input(n: u64, origin: Origin, bytes: usize) -> Transaction {
    let inner = TxEip1559 {
        chain_id: 1,
        gas_limit: 21_000,
        max_fee_per_gas: 9,
        input: vec![0x5a; bytes].into(),
        ..Default::default()
    };
    let signature = Signature::new(U256::from(1), U256::from(1), false);
    let signed = Signed::new_unchecked(inner, signature, keccak256(n.to_be_bytes()));
    let sender = Address::left_padding_from(&(n + 1).to_be_bytes());
    let tx = Recovered::new_unchecked(EthereumTxEnvelope::Eip1559(signed), sender);
    Transaction::new(tx, origin, SystemTime::UNIX_EPOCH + Duration::from_secs(5))
}

fn insert(pool: &OrderPool, tx: Transaction) {
    assert!(matches!(pool.insert_transaction(tx), InsertOutcome::Added));
}

/// A follower of an empty pool, and the folder of its segments.
fn follower(config: PoolConfig) -> (TempDir, OrderPool, Follower) {
    let folder = tempfile::tempdir().expect("a folder");
    let pool = OrderPool::new(config).expect("bounds");
    let counters = Arc::new(RecorderCounters::new());
    let config = RecorderConfig::new(folder.path());
    let follower = Follower::new(pool.subscribe_all(), config, counters).expect("a folder");
    (folder, pool, follower)
}

/// The number in a hash of [`tx`], of each row of the folder, and the block that took it.
fn rows(folder: &Path) -> Vec<(B256, Option<i64>)> {
    let mut files: Vec<_> = fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "parquet"));
    files.sort();
    let mut all = Vec::new();
    for path in files {
        let reader = SerializedFileReader::try_from(path.as_path()).expect("a Parquet file");
        for row in reader.get_row_iter(None).expect("rows") {
            let row = row.expect("a row");
            let hash = row.get_string(1).expect("a hash").parse().expect("hex");
            all.push((hash, row.get_long(15).ok()));
        }
    }
    all
}

#[test]
fn what_the_log_forgets_while_the_thread_stalls_is_counted_and_the_rest_is_recorded() {
    let config = PoolConfig { log_events: 256, ..PoolConfig::default() };
    let (folder, pool, mut follower) = follower(config);
    let all: Vec<_> = (0..2_000).map(|n| tx(n, Origin::Mempool)).collect();
    let hashes: Vec<_> = all.iter().map(|tx| *tx.hash()).collect();
    // It has read what was there at its start, which is nothing; then nothing reads.
    follower.follow(Instant::now());
    all.into_iter().for_each(|tx| insert(&pool, tx));
    follower.follow(Instant::now());
    follower.write();
    let stats = follower.counters.stats();
    assert!(stats.lost_events >= 1_000, "{stats:?}");
    assert_eq!(stats.rows + stats.lost_events, 2_000);
    let recorded: Vec<_> = rows(folder.path()).into_iter().map(|(hash, _)| hash).collect();
    assert_eq!(recorded, hashes[stats.lost_events as usize..]);
}

/// They were neither recorded nor counted.
#[test]
fn orders_that_were_pooled_at_the_start_are_recorded_if_the_log_wraps_before_they_are_read() {
    let config = PoolConfig { log_events: 256, ..PoolConfig::default() };
    let (folder, pool, mut follower) = follower(config);
    let hashes: Vec<_> = (0..2_000).map(|n| *tx(n, Origin::Mempool).hash()).collect();
    (0..500).for_each(|n| insert(&pool, tx(n, Origin::Mempool)));
    follower.subscription = pool.subscribe_all();
    (500..2_000).for_each(|n| insert(&pool, tx(n, Origin::Mempool)));
    follower.follow(Instant::now());
    follower.write();
    assert!(follower.counters.stats().lost_events >= 1_000);
    let recorded: Vec<_> = rows(folder.path()).into_iter().map(|(hash, _)| hash).collect();
    assert_eq!(recorded, hashes);
}

#[test]
fn a_group_that_cannot_be_written_is_counted_and_the_next_one_is_written() {
    let (folder, pool, mut follower) = follower(PoolConfig::default());
    insert(&pool, tx(0, Origin::Mempool));
    insert(&pool, tx(1, Origin::Mempool));
    fs::remove_dir_all(folder.path()).expect("a folder");
    follower.follow(Instant::now());
    follower.write();
    assert_eq!((follower.counters.stats().lost_rows, follower.counters.stats().rows), (2, 0));
    fs::create_dir(folder.path()).expect("a folder");
    insert(&pool, tx(2, Origin::Mempool));
    follower.follow(Instant::now());
    follower.write();
    assert_eq!((follower.counters.stats().lost_rows, follower.counters.stats().rows), (2, 1));
    assert_eq!(rows(folder.path()).len(), 1);
}

#[test]
fn a_group_is_written_in_steps_of_few_bytes_and_few_rows() {
    let written = |rows: u64, bytes: usize| {
        let (_folder, pool, mut follower) = follower(PoolConfig::default());
        (0..rows).for_each(|n| insert(&pool, tx_with_input(n, Origin::Mempool, bytes)));
        follower.follow(Instant::now());
        let pauses = AtomicUsize::new(0);
        let pause = || {
            pauses.fetch_add(1, Relaxed);
        };
        let of_group: Vec<_> = follower.group.rows().collect();
        let how = Encoding { blobs: true, announcers: &|_| Vec::new(), pause: &pause };
        let size = follower.segments.write(&of_group, how).expect("a folder");
        follower.group.clear(&pause);
        assert!(size > 0 && follower.group.is_empty());
        pauses.into_inner()
    };
    let small = written(1, 0);
    // A single value: it is in one page, and that is compressed in steps.
    let steps = (1 << 20) / STEP_BYTES;
    assert!(written(1, 1 << 20) >= small + steps, "{small} and {steps} more");
    // 18 columns are encoded in steps of rows, and the rows are freed in such.
    let steps = 19 * (2_000 / STEP_ROWS);
    assert!(written(2_000, 0) >= small + steps, "{small} and {steps} more");
}

#[test]
fn a_recorder_that_is_behind_or_writes_for_long_does_not_pause() {
    let pool = OrderPool::new(PoolConfig::default()).expect("bounds");
    let mut subscription = pool.subscribe_all();
    let start = Instant::now();
    let are_due = |subscription: &Subscription, now| Turns { subscription, start }.are_due(now);
    assert!(are_due(&subscription, start));
    assert!(are_due(&subscription, start + MAX_PAUSING - Duration::from_millis(1)));
    assert!(!are_due(&subscription, start + MAX_PAUSING));
    (0..MAX_BEHIND).for_each(|n| insert(&pool, tx(n, Origin::Mempool)));
    assert!(!are_due(&subscription, start));
    while subscription.try_next().is_some() {}
    assert!(are_due(&subscription, start));
}

#[test]
fn a_group_is_written_at_its_rows_its_bytes_or_its_age() {
    let (_folder, pool, mut follower) = follower(PoolConfig::default());
    let age = Duration::from_secs(7);
    follower.limits = Limits { rows: 3, age, ..follower.limits };
    let start = Instant::now();
    (0..4).for_each(|n| insert(&pool, tx(n, Origin::Mempool)));
    follower.follow(start);
    assert_eq!(follower.counters.stats().rows, 3);
    follower.follow(start + age - Duration::from_millis(1));
    assert_eq!(follower.counters.stats().rows, 3);
    follower.follow(start + age);
    assert_eq!((follower.counters.stats().rows, follower.counters.stats().segments), (4, 2));
    follower.limits.bytes = 1;
    (4..6).for_each(|n| insert(&pool, tx(n, Origin::Mempool)));
    follower.follow(start + age);
    assert_eq!((follower.counters.stats().rows, follower.counters.stats().segments), (6, 4));
}

#[test]
fn a_row_names_the_block_that_took_its_transaction_if_that_came_before_it_was_written() {
    let (folder, pool, mut follower) = follower(PoolConfig::default());
    let all: Vec<_> = (0..3).map(|n| tx(n, Origin::Mempool)).collect();
    let hashes: Vec<_> = all.iter().map(|tx| *tx.hash()).collect();
    all.into_iter().for_each(|tx| insert(&pool, tx));
    let head = Head { timestamp: 84, ..Head::new(7, B256::with_last_byte(7), B256::ZERO) };
    let _ = pool.on_head(Block::new(head, vec![hashes[1]]));
    follower.follow(Instant::now());
    follower.write();
    let found = rows(folder.path());
    assert_eq!(found, [(hashes[0], None), (hashes[1], Some(7)), (hashes[2], None)]);
}

/// The first row named the block that a reorg had undone.
#[test]
fn a_row_names_no_block_once_a_reorg_has_undone_it() {
    let (folder, pool, mut follower) = follower(PoolConfig::default());
    let hashes = [0, 1, 2].map(|n| *tx(n, Origin::Mempool).hash());
    (0..3).for_each(|n| insert(&pool, tx(n, Origin::Mempool)));
    let head = |number, hash, parent| {
        let [hash, parent] = [hash, parent].map(B256::with_last_byte);
        Head { timestamp: 84, ..Head::new(number, hash, parent) }
    };
    let _ = pool.on_head(Block::new(head(6, 6, 0), vec![hashes[2]]));
    let _ = pool.on_head(Block::new(head(7, 7, 6), hashes[..2].to_vec()));
    // The pool does not tell that this one contains the second too.
    let _ = pool.on_head(Block::new(head(7, 8, 6), vec![hashes[1]]));
    follower.follow(Instant::now());
    follower.write();
    let found = rows(folder.path());
    let [first, second, third] = hashes;
    assert_eq!(found, [(first, None), (second, None), (third, Some(6)), (first, None)]);
}

/// The next head that was read counted as the one that had removed it.
#[test]
fn a_row_names_no_block_if_the_head_that_removed_its_transaction_was_missed() {
    let config = PoolConfig { log_events: 256, ..PoolConfig::default() };
    let (folder, pool, mut follower) = follower(config);
    let hash = *tx(0, Origin::Mempool).hash();
    insert(&pool, tx(0, Origin::Mempool));
    follower.follow(Instant::now());
    let order = pool.get(&hash).expect("it is pooled");
    let removed = Event::Removed { order, reason: RemoveReason::Mined };
    follower.group.take(&removed, Instant::now());
    (1..1_000).for_each(|n| insert(&pool, tx(n, Origin::Mempool)));
    let head = Head { timestamp: 84, ..Head::new(8, B256::with_last_byte(8), B256::ZERO) };
    let _ = pool.on_head(Block::new(head, vec![]));
    follower.follow(Instant::now());
    follower.write();
    assert!(follower.counters.stats().lost_events > 0);
    assert_eq!(rows(folder.path())[0], (hash, None));
}

#[test]
fn what_only_external_callers_have_sent_is_recorded_on_demand_alone() {
    for external in [false, true] {
        let (_folder, pool, mut follower) = follower(PoolConfig::default());
        follower.external = external;
        let origins = [Origin::Rpc, Origin::Mempool, Origin::Private, Origin::Rpc];
        for (n, origin) in origins.into_iter().enumerate() {
            insert(&pool, tx(n as u64, origin));
        }
        // The last one becomes public before the group is written.
        let again = pool.insert_transaction(tx(3, Origin::Mempool));
        assert!(matches!(again, InsertOutcome::Known), "{again:?}");
        follower.follow(Instant::now());
        follower.write();
        let stats = follower.counters.stats();
        assert_eq!((stats.rows, stats.skipped), if external { (4, 0) } else { (2, 2) });
    }
}

#[test]
fn bounds_are_checked_and_named() {
    let pool = OrderPool::new(PoolConfig::default()).expect("bounds");
    let folder = tempfile::tempdir().expect("a folder");
    let good = RecorderConfig::new(folder.path());
    let said = |config| Recorder::start(&pool, config).expect_err("out of bounds").to_string();
    let short = RecorderConfig { group_age: Duration::from_millis(99), ..good };
    assert_eq!(said(short), "group_age is 99ms, must be at least 100ms");
    let file = folder.path().join("file");
    fs::write(&file, "").expect("a file");
    assert!(
        said(RecorderConfig::new(&file))
            .starts_with(&format!("cannot write in {}", file.display()))
    );
}
