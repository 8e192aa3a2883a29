//! What a recorder writes for the events of a pool, without its thread.

use std::{
    fs,
    ops::Range,
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
use testkit::configured;

use super::*;
use crate::{columns::STEP_ROWS, pages::STEP_BYTES};

/// A transaction with a sender of its own. The pool trusts hash and sender, so it needs no
/// signature.
fn tx(n: u64, origin: Origin) -> Transaction {
    tx_with_input(n, origin, 0)
}

fn tx_with_input(n: u64, origin: Origin, input_bytes: usize) -> Transaction {
    let inner = TxEip1559 {
        chain_id: 1,
        gas_limit: 21_000,
        max_fee_per_gas: 9,
        input: vec![0x5a; input_bytes].into(),
        ..Default::default()
    };
    let signature = Signature::new(U256::from(1), U256::from(1), false);
    let signed = Signed::new_unchecked(inner, signature, hash(n));
    let sender = Address::left_padding_from(&(n + 1).to_be_bytes());
    let tx = Recovered::new_unchecked(EthereumTxEnvelope::Eip1559(signed), sender);
    Transaction::new(tx, origin, SystemTime::UNIX_EPOCH + Duration::from_secs(5))
}

fn insert(pool: &OrderPool, tx: Transaction) {
    assert!(matches!(pool.insert_transaction(tx), InsertOutcome::Added));
}

/// Inserts transactions that the node has announced. Returns their hashes.
fn fill(pool: &OrderPool, numbers: Range<u64>) -> Vec<B256> {
    for n in numbers.clone() {
        insert(pool, tx(n, Origin::Mempool));
    }
    numbers.map(hash).collect()
}

fn hash(n: u64) -> B256 {
    keccak256(n.to_be_bytes())
}

/// Applies a head. `hash` and `parent` are the last bytes of the block hashes.
fn mine(pool: &OrderPool, number: u64, hash: u8, parent: u8, mined: &[B256]) {
    let hash = B256::with_last_byte(hash);
    let parent = B256::with_last_byte(parent);
    let head = Head { timestamp: 84, ..Head::new(number, hash, parent) };
    pool.on_head(Block::new(head, mined));
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

/// Reads all events, and writes the group.
fn write(follower: &mut Follower) -> RecorderStats {
    follower.read_events(Instant::now());
    follower.write_group();
    follower.counters.stats()
}

/// The hash of each row of the folder, and the block that included it.
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
fn events_that_leave_the_log_are_counted_and_the_rest_is_recorded() {
    let config = configured(PoolConfig::default(), |config| config.log_events = 256);
    let (folder, pool, mut follower) = follower(config);
    // It reads the empty pool, and then nothing until the log has wrapped.
    follower.read_events(Instant::now());
    let hashes = fill(&pool, 0..2_000);
    let stats = write(&mut follower);
    assert!(stats.lost_events >= 1_000, "{stats:?}");
    assert_eq!(stats.rows + stats.lost_events, 2_000);
    let recorded: Vec<_> = rows(folder.path()).into_iter().map(|(hash, _)| hash).collect();
    assert_eq!(recorded, hashes[stats.lost_events as usize..]);
}

/// Orders of the first replay were neither recorded nor counted.
#[test]
fn orders_pooled_at_the_start_are_recorded_although_the_log_wraps() {
    let config = configured(PoolConfig::default(), |config| config.log_events = 256);
    let (folder, pool, mut follower) = follower(config);
    fill(&pool, 0..500);
    follower.subscription = pool.subscribe_all();
    fill(&pool, 500..2_000);
    assert!(write(&mut follower).lost_events >= 1_000);
    let recorded = rows(folder.path()).into_iter().map(|(hash, _)| hash);
    assert!(recorded.eq((0..2_000).map(hash)));
}

#[test]
fn a_failed_group_is_counted_and_the_next_one_is_written() {
    let (folder, pool, mut follower) = follower(PoolConfig::default());
    fill(&pool, 0..2);
    fs::remove_dir_all(folder.path()).expect("a folder");
    let stats = write(&mut follower);
    assert_eq!((stats.lost_rows, stats.rows), (2, 0));
    fs::create_dir(folder.path()).expect("a folder");
    fill(&pool, 2..3);
    let stats = write(&mut follower);
    assert_eq!((stats.lost_rows, stats.rows), (2, 1));
    assert_eq!(rows(folder.path()).len(), 1);
}

#[test]
fn a_group_is_written_in_small_steps() {
    let count_pauses = |rows: u64, input_bytes: usize| {
        let (_folder, pool, mut follower) = follower(PoolConfig::default());
        for n in 0..rows {
            insert(&pool, tx_with_input(n, Origin::Mempool, input_bytes));
        }
        follower.read_events(Instant::now());
        let pauses = AtomicUsize::new(0);
        let pause = || {
            pauses.fetch_add(1, Relaxed);
        };
        let group_rows: Vec<_> = follower.group.rows().collect();
        let encoding = Encoding { blobs: true, announcers: &|_| Vec::new(), pause: &pause };
        let size = follower.segments.write(&group_rows, encoding).expect("a folder");
        follower.group.clear(&pause);
        assert!(size > 0 && follower.group.rows().next().is_none());
        pauses.into_inner()
    };
    let pauses_of_one_row = count_pauses(1, 0);
    // A single value is in one page, which is compressed in steps.
    let steps = (1 << 20) / STEP_BYTES;
    assert!(
        count_pauses(1, 1 << 20) >= pauses_of_one_row + steps,
        "{pauses_of_one_row} and {steps} more"
    );
    // 18 columns are encoded in steps of rows, and the rows are freed in such steps.
    let steps = 19 * (2_000 / STEP_ROWS);
    assert!(
        count_pauses(2_000, 0) >= pauses_of_one_row + steps,
        "{pauses_of_one_row} and {steps} more"
    );
}

#[test]
fn a_recorder_that_is_behind_does_not_pause() {
    let pool = OrderPool::new(PoolConfig::default()).expect("bounds");
    let mut subscription = pool.subscribe_all();
    let may_pause = |subscription: &Subscription| may_pause(subscription, Duration::ZERO);
    assert!(may_pause(&subscription));
    assert!(super::may_pause(&subscription, MAX_PAUSING - Duration::from_millis(1)));
    assert!(!super::may_pause(&subscription, MAX_PAUSING));
    fill(&pool, 0..MAX_BEHIND_EVENTS);
    assert!(!may_pause(&subscription));
    while subscription.try_next().is_some() {}
    assert!(may_pause(&subscription));
}

#[test]
fn a_group_is_written_at_its_rows_its_bytes_or_its_age() {
    let (_folder, pool, mut follower) = follower(PoolConfig::default());
    let age = Duration::from_secs(7);
    follower.limits = Limits { rows: 3, age, ..follower.limits };
    let start = Instant::now();
    let counts_at = |follower: &mut Follower, now| {
        follower.read_events(now);
        let stats = follower.counters.stats();
        (stats.rows, stats.segments)
    };
    fill(&pool, 0..4);
    assert_eq!(counts_at(&mut follower, start), (3, 1));
    assert_eq!(counts_at(&mut follower, start + age - Duration::from_millis(1)), (3, 1));
    assert_eq!(counts_at(&mut follower, start + age), (4, 2));
    follower.limits.bytes = 1;
    fill(&pool, 4..6);
    assert_eq!(counts_at(&mut follower, start + age), (6, 4));
}

/// The first row named a block that a reorg had undone.
#[test]
fn a_row_names_its_block_unless_a_reorg_has_undone_it() {
    let (folder, pool, mut follower) = follower(PoolConfig::default());
    let hashes = fill(&pool, 0..3);
    mine(&pool, 6, 6, 0, &hashes[2..]);
    mine(&pool, 7, 7, 6, &hashes[..2]);
    // The pool does not report that this block contains the second transaction too.
    mine(&pool, 7, 8, 6, &hashes[1..2]);
    write(&mut follower);
    let [first, second, third] = [0, 1, 2].map(hash);
    let expected = [(first, None), (second, None), (third, Some(6)), (first, None)];
    assert_eq!(rows(folder.path()), expected);
}

/// The next head that was read was taken for the one that had removed the transaction.
#[test]
fn a_row_names_no_block_if_its_head_was_missed() {
    let config = configured(PoolConfig::default(), |config| config.log_events = 256);
    let (folder, pool, mut follower) = follower(config);
    fill(&pool, 0..1);
    follower.read_events(Instant::now());
    let order = pool.get(&hash(0)).expect("it is pooled");
    let removed = Event::Removed { order, reason: RemoveReason::Mined };
    follower.group.on_event(&removed, Instant::now());
    fill(&pool, 1..1_000);
    mine(&pool, 8, 8, 0, &[]);
    assert!(write(&mut follower).lost_events > 0);
    assert_eq!(rows(folder.path())[0], (hash(0), None));
}

#[test]
fn transactions_of_external_callers_are_recorded_only_on_demand() {
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
        let stats = write(&mut follower);
        assert_eq!((stats.rows, stats.skipped), if external { (4, 0) } else { (2, 2) });
    }
}

#[test]
fn an_error_names_the_option_that_is_out_of_bounds() {
    let pool = OrderPool::new(PoolConfig::default()).expect("bounds");
    let folder = tempfile::tempdir().expect("a folder");
    let valid = RecorderConfig::new(folder.path());
    let error_text =
        |config| Recorder::start(&pool, config).expect_err("out of bounds").to_string();
    let short = RecorderConfig { group_age: Duration::from_millis(99), ..valid };
    assert_eq!(error_text(short), "group_age is 99ms, must be at least 100ms");
    let file = folder.path().join("file");
    fs::write(&file, "").expect("a file");
    assert!(
        error_text(RecorderConfig::new(&file))
            .starts_with(&format!("cannot write in {}", file.display()))
    );
}
