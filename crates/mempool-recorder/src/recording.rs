//! Reads a recording row by row.

// Bytes from outside are read here: none of them may cause a panic.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::expect_used))]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::string_slice, clippy::unreachable))]

use std::{
    collections::VecDeque,
    fmt, fs, io, mem,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
    vec,
};

use alloy_consensus::transaction::Recovered;
use alloy_eips::Decodable2718 as _;
use alloy_primitives::{Address, B256, Bytes};
use order_pool::PooledTransaction;
use parquet::{
    basic::{ConvertedType, LogicalType, TimeUnit, Type},
    data_type::{ByteArray, ByteArrayType, Int64Type},
    errors::ParquetError,
    file::metadata::RowGroupMetaData,
    schema::types::SchemaDescriptor,
};
use txpool_fetcher::{Malformed, RawTransaction, read_raw};

use crate::{
    columns::{FROM, HASH, RAW_TX, TIMESTAMP},
    error::{BadRow, ReplayError},
    file::{Column, Input, is_read},
    segment::EXTENSION,
};

/// The configuration of a [`Recording`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordingConfig {
    /// Whether blob transactions are read. Default true; without them they are skipped and counted
    /// ([`Recording::left_out`]).
    pub blobs: bool,
    /// Whether the column `from` is trusted, which saves the recovery of the sender, some 30 us for
    /// each transaction. Default false: a file with wrong senders would make a builder execute
    /// transactions that their senders have not signed. The hash is compared with the bytes in
    /// either case.
    pub trust_senders: bool,
}

impl Default for RecordingConfig {
    fn default() -> Self {
        Self { blobs: true, trust_senders: false }
    }
}

/// A transaction of a recording.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Recorded {
    /// The transaction with its sender.
    pub tx: Recovered<PooledTransaction>,
    /// Its encoded form, as it was recorded.
    pub raw: Bytes,
    /// When it was first seen, in whole milliseconds.
    pub seen_at: SystemTime,
}

/// Reads the files of a [`Recorder`](crate::Recorder), or a file of mempool-dumpster's archive: an
/// iterator over its rows in their order, without pacing. [`Replay`](crate::Replay) paces them.
///
/// Columns are found by their names. `timestamp`, `hash` and `rawTx` are required, `from` only if
/// it is trusted; pages may be compressed with gzip or not at all. One page of each of these
/// columns is in memory, of at most [`MAX_PAGE_BYTES`](crate::MAX_PAGE_BYTES).
pub struct Recording {
    config: RecordingConfig,
    /// Segments that are still to be read.
    files: VecDeque<PathBuf>,
    /// Files before the one that is open that cannot be read.
    skipped: VecDeque<BadRow>,
    file: Option<OpenFile>,
    left_out: u64,
}

impl fmt::Debug for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recording").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Recording {
    /// Opens a Parquet file, or a folder of segments, which are read in the order of their names.
    /// Unfinished files of a killed recorder are ignored. A file of a folder that cannot be read is a row with
    /// [`BadRow::Unreadable`], which names it; the others are read.
    ///
    /// # Errors
    /// The file, or every one of the folder, is not a Parquet file or lacks a column. The error is that of the first.
    pub fn open(path: impl AsRef<Path>, config: RecordingConfig) -> Result<Self, ReplayError> {
        let path = path.as_ref();
        let failed = |source| ReplayError::Open { path: path.to_owned(), source };
        let mut files = VecDeque::from([path.to_owned()]);
        if fs::metadata(path).map_err(failed)?.is_dir() {
            let entries = fs::read_dir(path).map_err(failed)?.map(|entry| Ok(entry?.path()));
            files = entries.collect::<io::Result<_>>().map_err(failed)?;
            files.retain(|file| file.extension().is_some_and(|extension| extension == EXTENSION));
            files.make_contiguous().sort();
        }
        let (mut skipped, mut failed) = (VecDeque::new(), None);
        while let Some(file) = files.pop_front() {
            match OpenFile::open(file.clone(), config) {
                Ok(open) => {
                    return Ok(Self { config, files, skipped, file: Some(open), left_out: 0 });
                }
                Err(error) => {
                    skipped.push_back(unreadable(&file, 0, &error));
                    failed.get_or_insert(error);
                }
            }
        }
        Err(failed.unwrap_or_else(|| ReplayError::NoSegment { path: path.to_owned() }))
    }

    /// Blob transactions that were skipped so far, as configured.
    #[must_use]
    pub const fn left_out(&self) -> u64 {
        self.left_out
    }
}

impl Iterator for Recording {
    type Item = Result<Recorded, BadRow>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(skipped) = self.skipped.pop_front() {
            return Some(Err(skipped));
        }
        loop {
            match self.file.as_mut().and_then(OpenFile::next) {
                Some(Ok(row)) if !self.config.blobs && row.carries_blobs() => {
                    self.left_out = self.left_out.saturating_add(1);
                }
                Some(row) => return Some(row.and_then(Row::decode)),
                None => {
                    self.file = None;
                    let path = self.files.pop_front()?;
                    match OpenFile::open(path.clone(), self.config) {
                        Ok(file) => self.file = Some(file),
                        Err(error) => return Some(Err(unreadable(&path, 0, &error))),
                    }
                }
            }
        }
    }
}

fn unreadable(path: &Path, rows: u64, error: &dyn fmt::Display) -> BadRow {
    BadRow::Unreadable { path: path.to_owned(), rows, reason: error.to_string() }
}

/// Makes a duration of a number in the unit of a timestamp.
type Unit = fn(u64) -> Duration;

struct OpenFile {
    path: PathBuf,
    input: Arc<Input>,
    columns: Columns,
    /// Those that are still to be read.
    groups: vec::IntoIter<RowGroupMetaData>,
    group: Option<Group>,
}

/// The positions of the columns.
#[derive(Clone, Copy)]
struct Columns {
    timestamp: usize,
    unit: Unit,
    hash: usize,
    raw: usize,
    from: Option<usize>,
}

struct Group {
    /// The remaining rows according to the file.
    rest: u64,
    unit: Unit,
    timestamp: Column<Int64Type>,
    hash: Column<ByteArrayType>,
    raw: Column<ByteArrayType>,
    from: Option<Column<ByteArrayType>>,
}

/// A row as in the file.
struct Row {
    seen_at: SystemTime,
    hash: B256,
    sender: Option<Address>,
    raw: Bytes,
}

impl OpenFile {
    fn open(path: PathBuf, config: RecordingConfig) -> Result<Self, ReplayError> {
        let (input, metadata) = Input::open(&path)?;
        let columns = Columns::find(&path, metadata.file_metadata().schema_descr(), config)?;
        let used = [Some(columns.timestamp), Some(columns.hash), Some(columns.raw), columns.from];
        for group in metadata.row_groups() {
            for column in used.iter().flatten().filter_map(|index| group.columns().get(*index)) {
                if !is_read(column.compression()) {
                    let codec = column.compression().to_string();
                    let codec = codec.split('(').next().unwrap_or_default();
                    let column = column.column_path().string();
                    let reason =
                        format!("is compressed with {codec}, must be GZIP or UNCOMPRESSED");
                    return Err(ReplayError::Column { path, column, reason });
                }
            }
        }
        let groups = metadata.into_builder().take_row_groups().into_iter();
        Ok(Self { path, input, columns, groups, group: None })
    }

    fn next(&mut self) -> Option<Result<Row, BadRow>> {
        loop {
            if let Some(group) = self.group.as_mut().filter(|group| group.rest > 0) {
                return Some(group.next().unwrap_or_else(|error| {
                    Err(unreadable(&self.path, mem::take(&mut group.rest), &error))
                }));
            }
            let metadata = self.groups.next()?;
            let rows = u64::try_from(metadata.num_rows()).unwrap_or(0);
            match Group::open(&self.input, &metadata, self.columns, rows) {
                Ok(group) => self.group = Some(group),
                Err(error) => return Some(Err(unreadable(&self.path, rows, &error))),
            }
        }
    }
}

impl Columns {
    fn find(
        path: &Path,
        schema: &SchemaDescriptor,
        config: RecordingConfig,
    ) -> Result<Self, ReplayError> {
        let find = |column: &str, expected: Type| {
            let wrong = |reason| {
                let (path, column) = (path.to_owned(), column.to_owned());
                ReplayError::Column { path, column, reason }
            };
            let mut all = schema.columns().iter();
            let index = all.position(|found| found.path().string() == column);
            let index = index.ok_or_else(|| wrong("is missing".into()))?;
            let found = schema.column(index);
            let is_plain = found.max_rep_level() == 0 && found.max_def_level() <= 1;
            if found.physical_type() == expected && is_plain {
                return Ok(index);
            }
            let (physical, converted) = (found.physical_type(), found.converted_type());
            Err(wrong(format!("is {physical} {converted}, expected {expected}")))
        };
        let bytes = |column| find(column, Type::BYTE_ARRAY);
        let timestamp = find(TIMESTAMP, Type::INT64)?;
        let column = schema.column(timestamp);
        let unit: Unit = match (column.logical_type_ref(), column.converted_type()) {
            (Some(LogicalType::Timestamp(timestamp)), _) => match timestamp.unit {
                TimeUnit::MILLIS => Duration::from_millis,
                TimeUnit::MICROS => Duration::from_micros,
                TimeUnit::NANOS => Duration::from_nanos,
            },
            (_, ConvertedType::TIMESTAMP_MICROS) => Duration::from_micros,
            _ => Duration::from_millis,
        };
        Ok(Self {
            timestamp,
            unit,
            hash: bytes(HASH)?,
            raw: bytes(RAW_TX)?,
            from: config.trust_senders.then(|| bytes(FROM)).transpose()?,
        })
    }
}

impl Group {
    fn open(
        input: &Arc<Input>,
        group: &RowGroupMetaData,
        columns: Columns,
        rest: u64,
    ) -> Result<Self, ParquetError> {
        let bytes = |index| Column::open(input, group, index);
        Ok(Self {
            rest,
            unit: columns.unit,
            timestamp: Column::open(input, group, columns.timestamp)?,
            hash: bytes(columns.hash)?,
            raw: bytes(columns.raw)?,
            from: columns.from.map(bytes).transpose()?,
        })
    }

    /// While there is a rest.
    fn next(&mut self) -> Result<Result<Row, BadRow>, ParquetError> {
        // Every column is read, whatever the others hold, so that they stay at the same row.
        let timestamp = self.timestamp.next()?;
        let hash = self.hash.next()?;
        let raw = self.raw.next()?;
        let from = self.from.as_mut().map(Column::next).transpose()?;
        self.rest = self.rest.saturating_sub(1);
        let row = || {
            let null = |column| BadRow::Null { column };
            let hash = hash.ok_or(null(HASH))?;
            let sender = |from: Option<ByteArray>| {
                let from = from.ok_or(null(FROM))?;
                hex(&from).map(Address::new).ok_or(BadRow::Sender)
            };
            let sender = from.map(sender).transpose()?;
            let value = timestamp.ok_or(null(TIMESTAMP))?;
            let since = u64::try_from(value).ok().map(self.unit);
            let seen_at = since.and_then(|since| SystemTime::UNIX_EPOCH.checked_add(since));
            Ok(Row {
                sender,
                seen_at: seen_at.ok_or(BadRow::Timestamp { value })?,
                hash: B256::from(hex(&hash).ok_or(BadRow::Hash)?),
                raw: Bytes::copy_from_slice(raw.ok_or(null(RAW_TX))?.data()),
            })
        };
        Ok(row())
    }
}

/// 0x and two digits for each byte.
fn hex<const N: usize>(text: &ByteArray) -> Option<[u8; N]> {
    let digits = text.data().strip_prefix(b"0x")?;
    alloy_primitives::hex::decode_to_array(digits).ok()
}

impl Row {
    /// The first byte is the type.
    fn carries_blobs(&self) -> bool {
        self.raw.first() == Some(&alloy_eips::eip2718::EIP4844_TX_TYPE_ID)
    }

    fn decode(self) -> Result<Recorded, BadRow> {
        let Self { seen_at, hash, sender, raw } = self;
        // A transaction that cannot be trusted is read with recovery, which reports the error.
        if let Some(sender) = sender
            && let Ok(tx) = PooledTransaction::decode_2718_exact(&raw)
            && *tx.tx_hash() == hash
            && !matches!(tx, PooledTransaction::Eip4844(_))
        {
            return Ok(Recorded { tx: Recovered::new_unchecked(tx, sender), raw, seen_at });
        }
        match read_raw(raw, hash) {
            RawTransaction::Decoded(tx, raw) => Ok(Recorded { tx: *tx, raw, seen_at }),
            RawTransaction::NoSidecar => Err(BadRow::NoSidecar { hash }),
            RawTransaction::Gone => Err(BadRow::Transaction { hash, reason: "it is empty".into() }),
            RawTransaction::Malformed(Malformed::OtherTransaction { found, .. }) => {
                Err(BadRow::OtherHash { hash, found })
            }
            RawTransaction::Malformed(Malformed::Signature) => Err(BadRow::Signature { hash }),
            RawTransaction::Malformed(Malformed::Sidecar(_)) => Err(BadRow::Sidecar { hash }),
            RawTransaction::Malformed(other) => {
                Err(BadRow::Transaction { hash, reason: other.to_string() })
            }
        }
    }
}
