//! What the tests share: pools, transactions, and Parquet files with arbitrary columns.

use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use alloy_primitives::B256;
use mempool_recorder::{Recorded, Recorder, RecorderConfig, Recording, RecordingConfig};
use mock_node::workload::{Mix, PreparedTx, Workload, WorkloadConfig};
use order_pool::{Event, InsertOutcome, OrderPool, Origin, PoolConfig, Transaction};
use parquet::{
    basic::{Compression, GzipLevel},
    data_type::{ByteArray, ByteArrayType, Int64Type},
    file::{
        properties::WriterProperties, serialized_reader::SerializedFileReader,
        writer::SerializedFileWriter,
    },
    record::Row,
    schema::parser::parse_message_type,
};
use tempfile::TempDir;

pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) fn pool() -> OrderPool {
    OrderPool::new(PoolConfig::default()).expect("bounds")
}

/// Signed transactions, of which `blobs_per_mille` of a thousand carry blobs.
pub(crate) fn signed(count: usize, blobs_per_mille: u32) -> Vec<PreparedTx> {
    let mix = Mix { blobs_per_mille, six_blobs_per_mille: 0, ..Mix::default() };
    Workload::new(WorkloadConfig { mix, ..WorkloadConfig::new(7, 1337) }).prepare(count)
}

pub(crate) fn insert(pool: &OrderPool, tx: &PreparedTx) {
    let now = std::time::SystemTime::now();
    let outcome = pool.insert_transaction(Transaction::new(tx.recovered(), Origin::Mempool, now));
    assert!(matches!(outcome, InsertOutcome::Added), "{outcome:?}");
}

pub(crate) fn insert_all(pool: &OrderPool, txs: &[PreparedTx]) {
    for tx in txs {
        insert(pool, tx);
    }
}

/// The hashes of the pool's orders, in its order.
pub(crate) fn hashes(pool: &OrderPool) -> Vec<B256> {
    let mut subscription = pool.subscribe_all();
    let events = std::iter::from_fn(|| subscription.try_next());
    let added = events.filter_map(|event| match event.expect("it does not lag") {
        Event::Added(order) => Some(*order.id().hash()),
        _ => None,
    });
    added.collect()
}

/// Records what the pool holds in one segment. Returns the number of rows.
pub(crate) fn record(pool: &OrderPool, config: RecorderConfig) -> u64 {
    let end = Recorder::start(pool, config).expect("a folder").shutdown(LONG);
    assert!(end.ended);
    assert_eq!((end.stats.lost_events, end.stats.lost_rows), (0, 0));
    end.stats.rows
}

/// Records transactions in segments of `rows_per_segment` rows.
pub(crate) fn record_segments(folder: &Path, txs: &[PreparedTx], rows_per_segment: usize) {
    for txs in txs.chunks(rows_per_segment) {
        let pool = pool();
        insert_all(&pool, txs);
        assert_eq!(record(&pool, RecorderConfig::new(folder)), txs.len() as u64);
        // A segment is named after the millisecond in which its recorder started.
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A folder, and the path of a file that does not exist yet.
pub(crate) fn file() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("file.parquet");
    (folder, path)
}

pub(crate) fn open(path: &Path) -> Recording {
    Recording::open(path, RecordingConfig::default()).expect("a recording")
}

pub(crate) fn all(path: &Path) -> Vec<Recorded> {
    open(path).map(|row| row.expect("a good row")).collect()
}

/// The complete segments of a folder, in order.
pub(crate) fn segments(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "parquet"));
    paths.sort();
    paths
}

/// The rows of a folder's segments, by the row reader of the Parquet library.
pub(crate) fn rows(folder: &Path) -> Vec<Row> {
    let rows_of = |path: PathBuf| {
        let reader = SerializedFileReader::try_from(path.as_path()).expect("a Parquet file");
        reader.into_iter().map(|row| row.expect("a row"))
    };
    segments(folder).into_iter().flat_map(rows_of).collect()
}

/// A column of a hand-made file.
pub(crate) enum Values {
    Numbers(&'static str, Vec<i64>),
    /// An optional column, where `None` is null.
    Bytes(&'static str, Vec<Option<ByteArray>>),
}

pub(crate) fn hash_text(tx: &PreparedTx) -> Option<ByteArray> {
    Some(tx.hash.to_string().into_bytes().into())
}

pub(crate) fn raw(tx: &PreparedTx) -> Option<ByteArray> {
    Some(tx.raw.to_vec().into())
}

/// The required columns of a file, for rows that were seen at these times in milliseconds.
pub(crate) fn columns(times: &[i64], txs: &[PreparedTx]) -> [Values; 3] {
    [
        Values::Numbers("timestamp", times.to_vec()),
        Values::Bytes("hash", txs.iter().map(hash_text).collect()),
        Values::Bytes("rawTx", txs.iter().map(raw).collect()),
    ]
}

/// Writes the columns with gzip, in one row group.
pub(crate) fn write(path: &Path, columns: &[Values]) {
    let fields: String = columns
        .iter()
        .map(|column| match column {
            Values::Numbers(name, _) => format!("required int64 {name} (TIMESTAMP_MILLIS);"),
            Values::Bytes(name, _) => format!("optional binary {name};"),
        })
        .collect();
    let schema =
        Arc::new(parse_message_type(&format!("message m {{ {fields} }}")).expect("a schema"));
    let gzip = Compression::GZIP(GzipLevel::try_new(1).expect("a level"));
    let properties = Arc::new(WriterProperties::builder().set_compression(gzip).build());
    let file = File::create(path).expect("a file");
    let mut writer = SerializedFileWriter::new(file, schema, properties).expect("a writer");
    let mut group = writer.next_row_group().expect("a group");
    for column in columns {
        let mut next = group.next_column().expect("a column").expect("as many as fields");
        match column {
            Values::Numbers(_, values) => {
                next.typed::<Int64Type>().write_batch(values, None, None).expect("written");
            }
            Values::Bytes(_, values) => {
                let present: Vec<_> = values.iter().flatten().cloned().collect();
                let levels: Vec<_> =
                    values.iter().map(|value| i16::from(value.is_some())).collect();
                let typed = next.typed::<ByteArrayType>();
                typed.write_batch(&present, Some(&levels), None).expect("written");
            }
        }
        next.close().expect("closed");
    }
    group.close().expect("closed");
    writer.close().expect("closed");
}
