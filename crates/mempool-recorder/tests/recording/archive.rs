//! A file that mempool-dumpster's own code has written; `tests/archive/main.go` says how.

use std::{
    path::Path,
    time::{Duration, SystemTime},
};

use alloy_consensus::Transaction as _;
use alloy_primitives::address;
use mempool_recorder::{BadRow, Recording, RecordingConfig};
use parquet::file::reader::{FileReader as _, SerializedFileReader};

use crate::round_trip::{COLUMNS, fields};

const ARCHIVE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/archive/archive.parquet");

/// In the first second of September 2023.
const FIRST_SEEN: Duration = Duration::from_millis(1_693_526_400_000);

/// Of the rows in their order; the sixth has no sidecar.
const TYPES: [u8; 6] = [0, 0, 1, 2, 4, 3];

#[test]
fn every_row_of_a_file_of_mempool_dumpster_is_read() {
    let signer = address!("0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266");
    for trust_senders in [false, true] {
        let config = RecordingConfig::default().with_trust_senders(trust_senders);
        let rows = Recording::open(ARCHIVE, config).expect("a recording");
        let mut count = 0;
        for (index, row) in rows.enumerate() {
            count += 1;
            let row = match row {
                Err(BadRow::NoSidecar { .. }) if index == 5 => continue,
                row => row.expect("a good row"),
            };
            assert_eq!(row.tx.signer(), signer, "row {index}");
            let tx = row.tx.inner();
            assert_eq!(tx.nonce(), index as u64);
            assert_eq!(tx.tx_type() as u8, TYPES.get(index).copied().unwrap_or(3), "row {index}");
            let after = Duration::from_millis(index as u64);
            assert_eq!(row.seen_at, SystemTime::UNIX_EPOCH + FIRST_SEEN + after);
        }
        assert_eq!(count, 26);
    }
}

#[test]
fn our_columns_are_those_of_its_file_but_for_the_inclusion_which_may_be_null() {
    let archive = Path::new(ARCHIVE);
    let ours: Vec<_> = COLUMNS.map(|field| field.replace("OPTIONAL", "REQUIRED")).into();
    assert_eq!(fields(archive), ours);
    // Of 1 MiB each, so its reader has seen the end of one.
    let file = SerializedFileReader::try_from(archive).expect("a Parquet file");
    let raw = file.metadata().row_group(0).columns().last().expect("as many as fields");
    assert_eq!(raw.column_path().string(), "rawTx");
    assert!(raw.uncompressed_size() > 2 << 20, "{} bytes", raw.uncompressed_size());
}
