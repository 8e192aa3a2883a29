//! Reads a file that mempool-dumpster's own code has written; `tests/archive/main.go` says how.

use std::{
    path::Path,
    time::{Duration, SystemTime},
};

use alloy_consensus::Transaction as _;
use alloy_primitives::address;
use mempool_recorder::{BadRow, RecorderConfig, Recording, RecordingConfig};
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use testkit::configured;

use crate::files::{insert_all, pool, record, segments, signed};

const ARCHIVE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/archive/archive.parquet");

/// The first-seen time of the first row: the beginning of September 2023.
const FIRST_SEEN: Duration = Duration::from_millis(1_693_526_400_000);

/// The types of the first rows; the sixth has no sidecar.
const TYPES: [u8; 6] = [0, 0, 1, 2, 4, 3];

#[test]
fn every_row_of_a_mempool_dumpster_file_is_read() {
    let signer = address!("0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266");
    for trust_senders in [false, true] {
        let config =
            configured(RecordingConfig::default(), |config| config.trust_senders = trust_senders);
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
            let offset = Duration::from_millis(index as u64);
            assert_eq!(row.seen_at, SystemTime::UNIX_EPOCH + FIRST_SEEN + offset);
        }
        assert_eq!(count, 26);
    }
}

/// Name and types of each column, and its maximum levels of definition and repetition.
fn columns(path: &Path) -> Vec<(String, [i16; 2])> {
    let file = SerializedFileReader::try_from(path).expect("a Parquet file");
    let columns = file.metadata().file_metadata().schema_descr().columns().iter();
    let column = columns.map(|column| {
        let (physical, converted) = (column.physical_type(), column.converted_type());
        let name = format!("{} {physical} {converted}", column.path().string());
        (name, [column.max_def_level(), column.max_rep_level()])
    });
    column.collect()
}

#[test]
fn our_columns_have_the_names_and_types_of_mempool_dumpster() {
    let folder = tempfile::tempdir().expect("a folder");
    let pool = pool();
    insert_all(&pool, &signed(1, 0));
    record(&pool, RecorderConfig::new(folder.path()));
    let mut archive = columns(Path::new(ARCHIVE));
    assert_eq!(archive.len(), 19);
    // Our three columns about inclusion may be null.
    for (_, levels) in &mut archive[15..18] {
        levels[0] += 1;
    }
    assert_eq!(columns(&segments(folder.path())[0]), archive);
}
