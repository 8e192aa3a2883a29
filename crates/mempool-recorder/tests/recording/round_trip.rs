//! Recordings that are read and replayed.

use std::time::SystemTime;

use mempool_recorder::{
    BadRow, RecorderConfig, Recording, RecordingConfig, Replay, ReplayEndReason, Speed,
};
use order_pool::PooledTransaction;
use parquet::record::RowAccessor as _;
use testkit::configured;

use crate::files::{
    LONG, Values, all, columns, file, hash_text, hashes, insert_all, open, pool, raw, record,
    record_segments, rows, segments, signed, write,
};

#[test]
fn a_replay_gives_the_same_hashes_in_the_same_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let replayed = pool();
    let txs = signed(300, 20);
    assert!(txs.iter().any(|tx| tx.raw.len() > 130_000), "none with blobs");
    record_segments(folder.path(), &txs, 64);
    assert_eq!(segments(folder.path()).len(), 5);

    let replay =
        Replay::start(open(folder.path()), Speed::Max, replayed.clone()).expect("a thread");
    assert_eq!(replay.wait(LONG), Some(ReplayEndReason::Finished));
    let counts = replay.counts();
    assert_eq!((counts.pooled, counts.bad_rows(), counts.left_out), (300, 0, 0));
    assert_eq!(hashes(&replayed), txs.iter().map(|tx| tx.hash).collect::<Vec<_>>());
    for (row, tx) in all(folder.path()).iter().zip(&txs) {
        assert_eq!((&row.raw, row.tx.signer()), (&tx.raw, tx.sender));
    }
}

#[test]
fn a_file_that_is_read_to_its_end_is_closed() {
    let folder = tempfile::tempdir().expect("a folder");
    record_segments(folder.path(), &signed(2, 0), 1);
    let path = folder.path().canonicalize().expect("a folder");
    let open_files = || {
        let all = std::fs::read_dir("/proc/self/fd").expect("Linux");
        // Other tests may close their files meanwhile.
        all.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok())
            .filter(|open| open.starts_with(&path))
            .count()
    };
    let mut recording = open(&path);
    assert_eq!((open_files(), recording.by_ref().count()), (1, 2));
    assert_eq!(open_files(), 0);
}

#[test]
fn the_columns_hold_the_fields_of_the_transaction() {
    use alloy_consensus::Transaction as _;
    let folder = tempfile::tempdir().expect("a folder");
    let pool = pool();
    let before = SystemTime::now();
    insert_all(&pool, &signed(40, 0));
    record(&pool, RecorderConfig::new(folder.path()));
    assert_eq!(segments(folder.path()).len(), 1);
    let (rows, all) = (rows(folder.path()), all(folder.path()));
    assert_eq!((rows.len(), all.len()), (40, 40));
    for (row, recorded) in rows.into_iter().zip(all) {
        let tx: &PooledTransaction = recorded.tx.inner();
        let text = |index| row.get_string(index).expect("text").clone();
        assert_eq!(text(1), format!("{:#x}", tx.tx_hash()));
        assert_eq!((text(2), row.get_long(3).ok()), ("1337".into(), Some(tx.tx_type() as i64)));
        assert_eq!(text(4), format!("{:#x}", recorded.tx.signer()));
        assert_eq!(text(5), tx.to().map_or_else(String::new, |to| format!("{to:#x}")));
        assert_eq!((text(6), text(7)), (tx.value().to_string(), tx.nonce().to_string()));
        assert_eq!(
            (text(8), text(11)),
            (tx.gas_limit().to_string(), tx.max_fee_per_gas().to_string())
        );
        let tip = tx.max_priority_fee_per_gas().unwrap_or(tx.max_fee_per_gas());
        assert_eq!((text(9), text(10)), (tx.max_fee_per_gas().to_string(), tip.to_string()));
        assert_eq!(row.get_long(12).ok(), Some(tx.input().len() as i64));
        let selector = tx.input().get(..4);
        let selector = selector.map_or_else(String::new, alloy_primitives::hex::encode_prefixed);
        assert_eq!(text(13), selector);
        assert_eq!(row.get_list(14).expect("a list").elements().len(), 1);
        assert!(row.get_long(15).is_err(), "in no block");
        let age = recorded.seen_at.duration_since(before - std::time::Duration::from_millis(1));
        assert!(age.is_ok_and(|age| age < LONG), "{recorded:?}");
    }
}

#[test]
fn recorder_and_recording_leave_out_blobs_on_demand() {
    let folder = tempfile::tempdir().expect("a folder");
    let (with, without) = (folder.path().join("with"), folder.path().join("without"));
    let pool = pool();
    let txs = signed(100, 50);
    insert_all(&pool, &txs);
    let blobs = txs.iter().filter(|tx| tx.raw.len() > 130_000).count();
    assert!(blobs > 0);
    record(&pool, RecorderConfig::new(&with));
    record(&pool, configured(RecorderConfig::new(&without), |config| config.blobs = false));

    let config = configured(RecordingConfig::default(), |config| config.blobs = false);
    let mut recording = Recording::open(&with, config).expect("a recording");
    assert_eq!(recording.by_ref().filter(Result::is_ok).count(), 100 - blobs);
    assert_eq!(recording.left_out(), blobs as u64);

    let size = |folder| {
        segments(folder).iter().map(|path| path.metadata().expect("metadata").len()).sum::<u64>()
    };
    assert!(size(&without) < 100_000 && size(&with) > 130_000);
    let rows: Vec<_> = open(&without).collect();
    let missing = rows.iter().filter(|row| matches!(row, Err(BadRow::NoSidecar { .. }))).count();
    assert_eq!((rows.len(), missing), (100, blobs));
}

/// It was delivered, because its first byte is not its type.
#[test]
fn a_blob_transaction_in_an_rlp_string_is_left_out_on_demand() {
    let (_folder, path) = file();
    let tx = signed(100, 50).into_iter().find(|tx| tx.raw.len() > 130_000).expect("one with blobs");
    // A string whose length takes three bytes.
    let length = (tx.raw.len() as u32).to_be_bytes();
    let in_string = [&[0xba], &length[1..], &tx.raw[..]].concat();
    let [times, hash, _] = columns(&[5], std::slice::from_ref(&tx));
    write(&path, &[times, hash, Values::Bytes("rawTx", vec![Some(in_string.into())])]);
    let read = |blobs| {
        let config = configured(RecordingConfig::default(), |config| config.blobs = blobs);
        let mut recording = Recording::open(&path, config).expect("a recording");
        let rows: Vec<_> = recording.by_ref().map(|row| row.expect("a row").raw).collect();
        (rows, recording.left_out())
    };
    assert_eq!(read(true), (vec![tx.raw.clone()], 0));
    assert_eq!(read(false), (vec![], 1));
}

#[test]
fn an_error_names_the_required_column_that_is_missing() {
    let (_folder, path) = file();
    let txs = signed(1, 0);
    let columns = || columns(&[5], &txs);
    write(&path, &columns());
    assert_eq!(all(&path).len(), 1);
    for (missing, name) in ["timestamp", "hash", "rawTx"].into_iter().enumerate() {
        let rest = columns().into_iter().enumerate().filter(|(index, _)| *index != missing);
        write(&path, &rest.map(|(_, column)| column).collect::<Vec<_>>());
        let error = Recording::open(&path, RecordingConfig::default()).expect_err("incomplete");
        assert_eq!(error.to_string(), format!("column {name} of {} is missing", path.display()));
    }
    write(&path, &columns());
    let trusting = configured(RecordingConfig::default(), |config| config.trust_senders = true);
    let error = Recording::open(&path, trusting).expect_err("no senders");
    assert_eq!(error.to_string(), format!("column from of {} is missing", path.display()));
    write(&path, &[Values::Bytes("timestamp", vec![None])]);
    let error = Recording::open(&path, RecordingConfig::default()).expect_err("no number");
    assert!(error.to_string().starts_with("column timestamp of "), "{error}");
}

#[test]
fn a_bad_row_is_counted_by_reason_and_the_next_is_replayed() {
    let (_folder, path) = file();
    let txs = signed(3, 0);
    let [first, second, third] = [0, 1, 2].map(|n| (hash_text(&txs[n]), raw(&txs[n])));
    let bytes = |bytes: &[u8]| Some(bytes.to_vec().into());
    let cut = bytes(&txs[1].raw[..txs[1].raw.len() - 1]);
    let rows = [
        (1, first.clone()),
        (2, (None, second.1.clone())),
        (3, (second.0.clone(), None)),
        (4, (bytes(b"0xabc"), second.1.clone())),
        (-5, second.clone()),
        (6, (second.0.clone(), cut)),
        (7, (second.0.clone(), first.1)),
        (8, (second.0, bytes(&[]))),
        (9, third),
    ];
    let (times, (hash, raw)): (Vec<_>, (Vec<_>, Vec<_>)) = rows.into_iter().unzip();
    let [times, hash] = [Values::Numbers("timestamp", times), Values::Bytes("hash", hash)];
    write(&path, &[Values::Bytes("rawTx", raw), times, hash]);
    let pool = pool();
    let replay = Replay::start(open(&path), Speed::Max, pool.clone()).expect("a thread");
    assert_eq!(replay.wait(LONG), Some(ReplayEndReason::Finished));
    let counts = replay.counts();
    let bad: Vec<_> =
        BadRow::REASONS.into_iter().zip(counts.bad).filter(|(_, count)| *count > 0).collect();
    assert_eq!(
        bad,
        [("null", 2), ("hash", 1), ("timestamp", 1), ("transaction", 2), ("other_hash", 1)]
    );
    assert_eq!((counts.pooled, hashes(&pool)), (2, vec![txs[0].hash, txs[2].hash]));
}

#[test]
fn the_senders_of_a_file_are_trusted_only_on_demand() {
    let (_folder, path) = file();
    let txs = signed(3, 0);
    let forged = format!("{:#x}", alloy_primitives::Address::repeat_byte(0x66)).into_bytes();
    let [times, _, raw] = columns(&[1, 2, 3], &txs);
    let hash = [0, 0, 2].map(|n| hash_text(&txs[n]));
    let senders = [forged.clone(), forged, b"0x66".to_vec()].map(|sender| Some(sender.into()));
    let bytes = |name, values: [_; 3]| Values::Bytes(name, values.into());
    write(&path, &[times, bytes("hash", hash), bytes("from", senders), raw]);
    let mut rows = open(&path);
    assert_eq!(rows.next().expect("a row").expect("good").tx.signer(), txs[0].sender);
    let trusting = configured(RecordingConfig::default(), |config| config.trust_senders = true);
    let mut rows = Recording::open(&path, trusting).expect("a recording");
    let trusted = rows.next().expect("a row").expect("good").tx.signer();
    assert_eq!(trusted, alloy_primitives::Address::repeat_byte(0x66));
    // The hash is never trusted.
    assert!(matches!(rows.next(), Some(Err(BadRow::OtherHash { .. }))));
    assert!(matches!(rows.next(), Some(Err(BadRow::Sender))));
    assert!(rows.next().is_none());
}

#[test]
fn a_replay_stops_while_it_waits_for_a_row() {
    let (_folder, path) = file();
    let txs = signed(2, 0);
    // The rows are a year apart, which is cut to an hour.
    write(&path, &columns(&[0, 365 * 86_400_000], &txs));
    let pool = pool();
    let mut orders = pool.subscribe_all();
    let replay = Replay::start(open(&path), Speed::RECORDED, pool).expect("a thread");
    assert!(orders.next_timeout(LONG).is_some(), "the first row is due at once");
    let end = replay.shutdown(LONG);
    assert_eq!((end.reason, end.ended, end.counts.pooled), (ReplayEndReason::Stopped, true, 1));
}
