//! Recordings that are damaged or made to do harm.

use std::{collections::BTreeSet, fs, sync::OnceLock};

use alloy_primitives::B256;
use mempool_recorder::{BadRow, MAX_PAGE_BYTES, Recording, RecordingConfig, ReplayError};
use proptest::prelude::*;
use testkit::{
    configured,
    corpus::{Seed, damaged_seeds, seeds},
};

use crate::files::{Values, all, columns, file, open, record_segments, segments, signed, write};

/// A folder of two segments: 20 rows, then 10.
fn two_segments() -> (tempfile::TempDir, [Vec<u8>; 2]) {
    let folder = tempfile::tempdir().expect("a folder");
    record_segments(folder.path(), &signed(30, 0), 20);
    let paths = segments(folder.path());
    let [first, second] = paths.as_slice() else { panic!("{paths:?}") };
    let bytes = [first, second].map(|path| fs::read(path).expect("a file"));
    (folder, bytes)
}

#[test]
fn a_file_with_an_unsupported_codec_is_rejected_by_name() {
    let (folder, [first, _]) = two_segments();
    let path = folder.path().join("other.parquet");
    // The footer has the codec, which is the fourth field, before the number of values.
    let gzip = [0x15, 0x04, 0x16];
    for (code, name) in [(1, "SNAPPY"), (4, "BROTLI"), (5, "LZ4"), (6, "ZSTD"), (7, "LZ4_RAW")] {
        let mut bytes = first.clone();
        for index in 0..bytes.len() - gzip.len() {
            if first[index..].starts_with(&gzip) {
                bytes[index + 1] = 2 * code;
            }
        }
        fs::write(&path, bytes).expect("a file");
        let error = Recording::open(&path, RecordingConfig::default()).expect_err("no codec");
        let ReplayError::Column { reason, .. } = &error else { panic!("{error}") };
        assert!(reason.starts_with(&format!("is compressed with {name}, ")), "{error}");
    }
}

#[test]
fn a_truncated_last_segment_costs_no_row_of_the_others() {
    let (folder, [_, last]) = two_segments();
    let path = segments(folder.path()).pop().expect("two");
    for end in 0..last.len() {
        fs::write(&path, &last[..end]).expect("a file");
        let mut rows = open(folder.path());
        assert_eq!(rows.by_ref().take(20).filter(Result::is_ok).count(), 20, "cut at {end}");
        let Some(Err(bad @ BadRow::Unreadable { rows: 0, .. })) = rows.next() else {
            panic!("cut at {end}")
        };
        // The number of rows of the file is not known, so the message names none.
        let message = bad.to_string();
        assert!(message.starts_with(&format!("{} cannot be read: ", path.display())), "{message}");
        assert!(rows.next().is_none(), "cut at {end}");
        // As a file of its own it is rejected.
        assert!(Recording::open(&path, RecordingConfig::default()).is_err(), "cut at {end}");
    }
    // A killed recorder leaves it unnamed.
    fs::rename(&path, path.with_extension("unfinished")).expect("renamed");
    assert_eq!(all(folder.path()).len(), 20);
}

#[test]
fn a_page_beyond_the_bound_is_not_decompressed() {
    let (_folder, path) = file();
    let [time, hash, _] = columns(&[1], &signed(1, 0));
    let long = vec![0; MAX_PAGE_BYTES + 1].into();
    write(&path, &[time, hash, Values::Bytes("rawTx", vec![Some(long)])]);
    assert!(fs::metadata(&path).expect("a file").len() < 1 << 20, "it is not compressed");
    let rows: Vec<_> = open(&path).collect();
    let [Err(BadRow::Unreadable { rows: 1, reason, .. })] = rows.as_slice() else {
        panic!("{rows:?}")
    };
    assert!(reason.contains("a page of more than"), "{reason}");
}

#[test]
fn a_footer_that_claims_too_much_is_rejected_before_memory_is_reserved() {
    let (_folder, path) = file();
    // Field 2 is a list of 2^31 - 1 structs.
    let many = [0x15, 0x02, 0x19, 0xfc, 0xff, 0xff, 0xff, 0xff, 0x07, 0x00];
    // The only element of the schema has as many children.
    let children = [0x29, 0x1c, 0x55, 0xfe, 0xff, 0xff, 0xff, 0x0f, 0x00, 0x00];
    // The schema nests groups a million levels deep.
    let version_and_list = [0x15, 0x02, 0x19, 0xfc, 0xc0, 0x84, 0x3d];
    let groups = [0x48, 0x01, b'g', 0x15, 0x02, 0x00].repeat(1_000_000);
    let deep = [&version_and_list[..], &groups, &[0x00]].concat();
    for footer in [&many[..], &children, &deep] {
        fs::write(&path, framed(footer)).expect("a file");
        let error = Recording::open(&path, RecordingConfig::default()).expect_err("a lie");
        assert!(error.to_string().ends_with("the footer claims more than it holds"), "{error}");
    }
}

/// A file that consists of this footer.
fn framed(footer: &[u8]) -> Vec<u8> {
    [b"PAR1", footer, &(footer.len() as u32).to_le_bytes(), b"PAR1"].concat()
}

proptest! {
    #[test]
    fn any_bytes_are_a_recording_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let (_folder, path) = file();
        for content in [framed(&bytes), bytes] {
            fs::write(&path, content).expect("a file");
            // Any result is right, as long as nothing panics.
            let _ = Recording::open(&path, RecordingConfig::default()).map(Iterator::count);
        }
    }

    #[test]
    fn a_damaged_recording_gives_no_foreign_transaction(bytes in damaged_seeds("recordings")) {
        let (_folder, path) = file();
        fs::write(&path, bytes).expect("a file");
        for trust_senders in [false, true] {
            let config = configured(RecordingConfig::default(), |config| config.trust_senders = trust_senders);
            let Ok(rows) = Recording::open(&path, config) else { return Ok(()) };
            let rows: Vec<_> = rows.flatten().collect();
            prop_assert!(rows.len() <= corpus_hashes().len(), "{} rows", rows.len());
            for row in rows {
                prop_assert!(corpus_hashes().contains(row.tx.inner().hash()), "{:?}", row.tx);
            }
        }
    }
}

/// The hashes of the transactions in the recordings of the corpus.
fn corpus_hashes() -> &'static BTreeSet<B256> {
    static HASHES: OnceLock<BTreeSet<B256>> = OnceLock::new();
    HASHES.get_or_init(|| {
        let (_folder, path) = file();
        let rows = seeds("recordings").into_iter().filter(Seed::is_good).flat_map(|seed| {
            fs::write(&path, &seed.bytes).expect("a file");
            all(&path)
        });
        rows.map(|row| *row.tx.inner().hash()).collect()
    })
}

#[test]
fn the_recordings_of_the_corpus_are_read_whole_or_rejected() {
    let (_folder, path) = file();
    for seed in seeds("recordings") {
        fs::write(&path, &seed.bytes).expect("a file");
        let rows = Recording::open(&path, RecordingConfig::default());
        let rows: Vec<_> = rows.map_or(Vec::new(), Iterator::collect);
        let is_whole = !rows.is_empty() && rows.iter().all(Result::is_ok);
        assert_eq!(is_whole, seed.is_good(), "{}", seed.name);
    }
}

/// Such a file failed the whole folder if it was the first.
#[test]
fn a_file_that_is_no_recording_is_named_and_skipped() {
    let folder = tempfile::tempdir().expect("a folder");
    let txs = signed(4, 0);
    record_segments(folder.path(), &txs, 2);
    for name in ["0.parquet", "9.parquet"] {
        std::fs::write(folder.path().join(name), "no Parquet file").expect("a file");
    }
    let (read, bad): (Vec<_>, Vec<_>) = open(folder.path()).partition(Result::is_ok);
    let hashes: Vec<_> =
        read.into_iter().map(|row| *row.expect("it is read").tx.inner().tx_hash()).collect();
    assert_eq!(hashes, txs.iter().map(|tx| tx.hash).collect::<Vec<_>>());
    let named: Vec<_> = bad.iter().map(|row| format!("{row:?}")).collect();
    assert!(named[0].contains("0.parquet") && named[1].contains("9.parquet"), "{named:?}");
    assert_eq!(named.len(), 2, "{named:?}");

    let junk = tempfile::tempdir().expect("a folder");
    std::fs::write(junk.path().join("0.parquet"), "no Parquet file").expect("a file");
    let error = Recording::open(junk.path(), RecordingConfig::default()).expect_err("no file");
    assert!(matches!(error, ReplayError::NotParquet { .. }), "{error}");
}
