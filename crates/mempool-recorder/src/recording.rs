//! Reads a recording row by row, from one file or from a folder of segments.

// This module reads bytes from outside, which must not cause a panic.
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
    file::{Column, Input, is_supported},
    segment::EXTENSION,
};

/// The configuration of a [`Recording`].
///
/// Make one with [`Self::default`] and then set its fields: the struct gets more fields in
/// later versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordingConfig {
    /// Whether blob transactions are read. Default true. If false, they are skipped and counted
    /// ([`Recording::left_out`]).
    pub blobs: bool,
    /// Whether the column `from` is trusted, which saves the recovery of the sender, some 30 us for
    /// each transaction. Default false: a file with wrong senders would make a builder execute
    /// transactions that their senders have not signed. The hash is compared with the bytes in both
    /// cases.
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
    /// Its encoding in EIP-2718 form, as it was recorded; without the header if it was recorded in
    /// an RLP string.
    pub raw: Bytes,
    /// When it was first seen, with a precision of milliseconds.
    pub seen_at: SystemTime,
}

/// An iterator over the rows of a [`Recorder`](crate::Recorder)'s files, or of a file of
/// mempool-dumpster's archive, in their order. It does not pace them; [`Replay`](crate::Replay)
/// does.
///
/// Columns are found by their names. `timestamp`, `hash` and `rawTx` are required, `from` only if
/// it is trusted. Pages may be compressed with gzip or not at all. One page of each of these
/// columns is in memory. A page has at most [`MAX_PAGE_BYTES`](crate::MAX_PAGE_BYTES).
///
/// Rows that cannot be read are errors between the other rows. A file that cannot be read is one
/// error.
pub struct Recording {
    config: RecordingConfig,
    /// The segments that are still to be read.
    files: VecDeque<PathBuf>,
    /// One error for each file that could not be read before the first one that could. They are
    /// returned before its rows.
    unreadable: VecDeque<BadRow>,
    open_file: Option<OpenFile>,
    /// Blob transactions that were skipped.
    left_out: u64,
}

impl fmt::Debug for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recording").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Recording {
    /// Opens a Parquet file, or a folder of segments, which are read in the order of their names.
    /// Unfinished files of a killed recorder are ignored. A file of a folder that cannot be read
    /// gives a row with [`BadRow::Unreadable`], which names it, and the others are read.
    ///
    /// # Errors
    /// The file, or every file of the folder, is not a Parquet file or lacks a column. The error is
    /// that of the first file.
    pub fn open(path: impl AsRef<Path>, config: RecordingConfig) -> Result<Self, ReplayError> {
        let path = path.as_ref();
        let open_error = |source| ReplayError::Open { path: path.to_owned(), source };
        let mut files = VecDeque::from([path.to_owned()]);
        if fs::metadata(path).map_err(open_error)?.is_dir() {
            files = list_segments(path).map_err(open_error)?;
        }
        let mut unreadable = VecDeque::new();
        let mut first_error = None;
        while let Some(file) = files.pop_front() {
            match OpenFile::open(file.clone(), config) {
                Ok(open_file) => {
                    let open_file = Some(open_file);
                    return Ok(Self { config, files, unreadable, open_file, left_out: 0 });
                }
                Err(error) => {
                    unreadable.push_back(unreadable_file(&file, &error));
                    first_error.get_or_insert(error);
                }
            }
        }
        Err(first_error.unwrap_or_else(|| ReplayError::NoSegment { path: path.to_owned() }))
    }

    /// Returns how many blob transactions were skipped so far, because [`RecordingConfig::blobs`]
    /// is false.
    #[must_use]
    pub const fn left_out(&self) -> u64 {
        self.left_out
    }
}

impl Iterator for Recording {
    type Item = Result<Recorded, BadRow>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(bad) = self.unreadable.pop_front() {
            return Some(Err(bad));
        }
        loop {
            match self.open_file.as_mut().and_then(OpenFile::next) {
                Some(Ok(row)) if !self.config.blobs && row.carries_blobs() => {
                    self.left_out = self.left_out.saturating_add(1);
                }
                Some(result) => match result.and_then(Row::decode) {
                    // It was recorded in an RLP string.
                    Ok(recorded) if !self.config.blobs && is_blob(&recorded) => {
                        self.left_out = self.left_out.saturating_add(1);
                    }
                    result => return Some(result),
                },
                None => {
                    self.open_file = None;
                    let path = self.files.pop_front()?;
                    match OpenFile::open(path.clone(), self.config) {
                        Ok(open_file) => self.open_file = Some(open_file),
                        Err(error) => return Some(Err(unreadable_file(&path, &error))),
                    }
                }
            }
        }
    }
}

/// Returns the segments of a folder, in the order of their names.
fn list_segments(folder: &Path) -> io::Result<VecDeque<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == EXTENSION) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files.into())
}

/// Returns the error for a whole file, whose number of rows is not known.
fn unreadable_file(path: &Path, error: &dyn fmt::Display) -> BadRow {
    unreadable_rows(path, 0, error)
}

fn unreadable_rows(path: &Path, rows: u64, error: &dyn fmt::Display) -> BadRow {
    BadRow::Unreadable { path: path.to_owned(), rows, reason: error.to_string() }
}

/// Converts a number in the unit of a timestamp column to a duration.
type TimestampUnit = fn(u64) -> Duration;

struct OpenFile {
    path: PathBuf,
    input: Arc<Input>,
    columns: Columns,
    /// The row groups that are still to be read.
    groups: vec::IntoIter<RowGroupMetaData>,
    group: Option<Group>,
}

/// The positions of the columns.
#[derive(Clone, Copy)]
struct Columns {
    timestamp: usize,
    unit: TimestampUnit,
    hash: usize,
    raw: usize,
    /// The column `from`, if it is trusted.
    sender: Option<usize>,
}

/// The row group that is being read.
struct Group {
    /// The number of rows that are still to be read, according to the file.
    remaining_rows: u64,
    unit: TimestampUnit,
    timestamp: Column<Int64Type>,
    hash: Column<ByteArrayType>,
    raw: Column<ByteArrayType>,
    sender: Option<Column<ByteArrayType>>,
}

/// A row as it is in the file.
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
        let used = [Some(columns.timestamp), Some(columns.hash), Some(columns.raw), columns.sender];
        for group in metadata.row_groups() {
            for column in used.iter().flatten().filter_map(|index| group.columns().get(*index)) {
                if !is_supported(column.compression()) {
                    let codec = column.compression().to_string();
                    // The codec may be followed by its level, in parentheses.
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

    /// Returns the next row, or one error for all rows of a row group that are lost because the
    /// group cannot be read any further. The groups after it are read all the same.
    fn next(&mut self) -> Option<Result<Row, BadRow>> {
        loop {
            if let Some(group) = self.group.as_mut().filter(|group| group.remaining_rows > 0) {
                return Some(group.next_row().unwrap_or_else(|error| {
                    let lost_rows = mem::take(&mut group.remaining_rows);
                    Err(unreadable_rows(&self.path, lost_rows, &error))
                }));
            }
            let metadata = self.groups.next()?;
            let rows = u64::try_from(metadata.num_rows()).unwrap_or(0);
            match Group::open(&self.input, &metadata, self.columns, rows) {
                Ok(group) => self.group = Some(group),
                Err(error) => return Some(Err(unreadable_rows(&self.path, rows, &error))),
            }
        }
    }
}

impl Columns {
    /// Finds the columns by their names, and the unit of the timestamps.
    ///
    /// # Errors
    /// A column is missing, or has another type.
    fn find(
        path: &Path,
        schema: &SchemaDescriptor,
        config: RecordingConfig,
    ) -> Result<Self, ReplayError> {
        let required = |column, expected| find_column(path, schema, column, expected);
        let timestamp = required(TIMESTAMP, Type::INT64)?;
        let column = schema.column(timestamp);
        let unit: TimestampUnit = match (column.logical_type_ref(), column.converted_type()) {
            (Some(LogicalType::Timestamp(timestamp)), _) => match timestamp.unit {
                TimeUnit::MILLIS => Duration::from_millis,
                TimeUnit::MICROS => Duration::from_micros,
                TimeUnit::NANOS => Duration::from_nanos,
            },
            (_, ConvertedType::TIMESTAMP_MICROS) => Duration::from_micros,
            // Also if the column does not name its unit: the archive has milliseconds.
            _ => Duration::from_millis,
        };
        let hash = required(HASH, Type::BYTE_ARRAY)?;
        let raw = required(RAW_TX, Type::BYTE_ARRAY)?;
        let sender =
            if config.trust_senders { Some(required(FROM, Type::BYTE_ARRAY)?) } else { None };
        Ok(Self { timestamp, unit, hash, raw, sender })
    }
}

/// Returns the index of a column. It must have the expected type and must not be a list.
fn find_column(
    path: &Path,
    schema: &SchemaDescriptor,
    column: &str,
    expected: Type,
) -> Result<usize, ReplayError> {
    let error = |reason| {
        Err(ReplayError::Column { path: path.to_owned(), column: column.to_owned(), reason })
    };
    let mut columns = schema.columns().iter();
    let Some(index) = columns.position(|found| found.path().string() == column) else {
        return error("is missing".into());
    };
    let found = schema.column(index);
    let is_plain = found.max_rep_level() == 0 && found.max_def_level() <= 1;
    if found.physical_type() != expected || !is_plain {
        let (physical, converted) = (found.physical_type(), found.converted_type());
        return error(format!("is {physical} {converted}, expected {expected}"));
    }
    Ok(index)
}

impl Group {
    fn open(
        input: &Arc<Input>,
        group: &RowGroupMetaData,
        columns: Columns,
        remaining_rows: u64,
    ) -> Result<Self, ParquetError> {
        let open_column = |index| Column::open(input, group, index);
        Ok(Self {
            remaining_rows,
            unit: columns.unit,
            timestamp: Column::open(input, group, columns.timestamp)?,
            hash: open_column(columns.hash)?,
            raw: open_column(columns.raw)?,
            sender: columns.sender.map(open_column).transpose()?,
        })
    }

    /// Reads the next row. There must be a remaining row.
    fn next_row(&mut self) -> Result<Result<Row, BadRow>, ParquetError> {
        // Every column is read, whatever the others hold, so that all stay at the same row.
        let values = RowValues {
            timestamp: self.timestamp.next_value()?,
            hash: self.hash.next_value()?,
            raw: self.raw.next_value()?,
            sender: self.sender.as_mut().map(Column::next_value).transpose()?,
        };
        self.remaining_rows = self.remaining_rows.saturating_sub(1);
        Ok(values.parse(self.unit))
    }
}

/// The values of a row. `None` is a null; `sender` is outer `None` if the column is not read.
struct RowValues {
    timestamp: Option<i64>,
    hash: Option<ByteArray>,
    raw: Option<ByteArray>,
    sender: Option<Option<ByteArray>>,
}

impl RowValues {
    fn parse(self, unit: TimestampUnit) -> Result<Row, BadRow> {
        let hash = self.hash.ok_or(BadRow::Null { column: HASH })?;
        let sender = match self.sender {
            None => None,
            Some(None) => return Err(BadRow::Null { column: FROM }),
            Some(Some(text)) => Some(parse_hex(&text).map(Address::new).ok_or(BadRow::Sender)?),
        };
        let timestamp = self.timestamp.ok_or(BadRow::Null { column: TIMESTAMP })?;
        let seen_at = u64::try_from(timestamp)
            .ok()
            .and_then(|value| SystemTime::UNIX_EPOCH.checked_add(unit(value)))
            .ok_or(BadRow::Timestamp { value: timestamp })?;
        let hash = B256::from(parse_hex(&hash).ok_or(BadRow::Hash)?);
        let raw = self.raw.ok_or(BadRow::Null { column: RAW_TX })?;
        Ok(Row { seen_at, hash, sender, raw: Bytes::copy_from_slice(raw.data()) })
    }
}

/// Parses `0x` and two digits for each byte.
fn parse_hex<const N: usize>(text: &ByteArray) -> Option<[u8; N]> {
    let digits = text.data().strip_prefix(b"0x")?;
    alloy_primitives::hex::decode_to_array(digits).ok()
}

fn is_blob(recorded: &Recorded) -> bool {
    matches!(recorded.tx.inner(), PooledTransaction::Eip4844(_))
}

impl Row {
    fn carries_blobs(&self) -> bool {
        // The first byte of an encoded transaction is its type.
        self.raw.first() == Some(&alloy_eips::eip2718::EIP4844_TX_TYPE_ID)
    }

    fn decode(self) -> Result<Recorded, BadRow> {
        let Self { seen_at, hash, sender, raw } = self;
        // All others are read below, which recovers their senders: a blob transaction, whose
        // sidecar is checked there, and one that cannot be decoded or has another hash, for which
        // the error is made there.
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
