//! Writes a group of rows in the columns of Flashbots' mempool-dumpster.
//!
//! Names, order and types of the columns are those of `TxSummaryEntry` in its
//! `common/txsummary.go`: numbers that may exceed 64 bits are decimal text, hashes and addresses
//! are hex text, `rawTx` is bytes. For a transaction that is in no block, mempool-dumpster writes 0
//! in the three columns about inclusion, and this module writes null.

use std::{io::Write, sync::Arc, time::SystemTime};

use alloy_consensus::{Signed, Transaction as _};
use alloy_eips::Encodable2718 as _;
use alloy_primitives::B256;
use bytes::Bytes;
use order_pool::{Origin, PooledTransaction, Transaction};
use parquet::{
    basic::{Compression, GzipLevel},
    column::writer::ColumnWriterImpl,
    data_type::{ByteArray, ByteArrayType, DataType, Int64Type},
    errors::Result,
    file::{
        properties::{EnabledStatistics, WriterProperties, WriterPropertiesPtr},
        writer::{SerializedFileWriter, SerializedRowGroupWriter, TrackedWrite},
    },
    schema::{
        parser::parse_message_type,
        types::{ColumnPath, SchemaDescriptor},
    },
};

use crate::pages::{GzipPages, Pause, STEP_BYTES};

/// The column with the time when a transaction was first seen.
pub(crate) const TIMESTAMP: &str = "timestamp";
pub(crate) const HASH: &str = "hash";
pub(crate) const FROM: &str = "from";
pub(crate) const RAW_TX: &str = "rawTx";

const SCHEMA: &str = "
message transactions {
    required int64 timestamp (TIMESTAMP_MILLIS);
    required binary hash (UTF8);
    required binary chainId (UTF8);
    required int64 txType;
    required binary from (UTF8);
    required binary to (UTF8);
    required binary value (UTF8);
    required binary nonce (UTF8);
    required binary gas (UTF8);
    required binary gasPrice (UTF8);
    required binary gasTipCap (UTF8);
    required binary gasFeeCap (UTF8);
    required int64 dataSize;
    required binary data4Bytes (UTF8);
    required group sources (LIST) {
        repeated group list {
            required binary element (UTF8);
        }
    }
    optional int64 includedAtBlockHeight;
    optional int64 includedBlockTimestamp (TIMESTAMP_MILLIS);
    optional int64 inclusionDelayMs;
    required binary rawTx;
}";

/// How many rows of a column other than `rawTx` are encoded, or how many rows are freed, between
/// two pauses: some 0.05 ms.
pub(crate) const STEP_ROWS: usize = 128;

/// The block that included a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inclusion {
    pub(crate) block: u64,
    pub(crate) timestamp_s: u64,
}

/// A transaction to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row<'a> {
    pub(crate) tx: &'a Transaction,
    /// The block that included it, if one had when the row was written.
    pub(crate) inclusion: Option<Inclusion>,
}

/// A function that returns the names of the nodes that have announced a transaction.
pub(crate) type Announcers = dyn Fn(&B256) -> Vec<String> + Send;

/// How rows are written.
#[derive(Clone, Copy)]
pub(crate) struct Encoding<'a> {
    /// Whether blob transactions are written with their blobs.
    pub(crate) blobs: bool,
    /// If it returns no name, the origin is written instead.
    pub(crate) announcers: &'a Announcers,
    /// It is called about every 0.1 ms.
    pub(crate) pause: Pause<'a>,
}

/// Writes a file of one row group. Each column is built, written and freed before the next one.
pub(crate) fn write<W: Write + Send>(
    out: W,
    rows: &[Row<'_>],
    encoding: Encoding<'_>,
) -> Result<()> {
    let schema = Arc::new(parse_message_type(SCHEMA)?);
    // `GzipPages` compresses the pages, not the Parquet library.
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::UNCOMPRESSED)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_offset_index_disabled(true)
        .set_max_row_group_row_count(None)
        .set_column_statistics_enabled(ColumnPath::from(TIMESTAMP), EnabledStatistics::Chunk);
    // A dictionary gains nothing if the values differ in every row.
    for column in [TIMESTAMP, HASH, RAW_TX] {
        properties = properties.set_column_dictionary_enabled(ColumnPath::from(column), false);
    }
    let mut file = SerializedFileWriter::new(out, schema, Arc::new(properties.build()))?;
    let schema = file.schema_descr().clone();
    let properties = Arc::clone(file.properties());
    let writer = file.next_row_group()?;
    let pause = encoding.pause;
    RowGroup { rows, pause, schema, properties, next_column: 0, writer }.write(encoding)?;
    file.close()?;
    Ok(())
}

struct RowGroup<'a, 'w, W: Write> {
    rows: &'a [Row<'a>],
    pause: Pause<'a>,
    schema: SchemaDescriptor,
    properties: WriterPropertiesPtr,
    /// The index of the next column.
    next_column: usize,
    writer: SerializedRowGroupWriter<'w, W>,
}

impl<W: Write + Send> RowGroup<'_, '_, W> {
    fn write(mut self, encoding: Encoding<'_>) -> Result<()> {
        self.write_numbers(|tx| unix_millis(tx.first_seen()))?;
        self.write_texts(|tx| format!("{:#x}", tx.hash()))?;
        self.write_texts(|tx| tx.envelope().chain_id().unwrap_or(0).to_string())?;
        self.write_numbers(|tx| tx.envelope().tx_type() as i64)?;
        self.write_texts(|tx| format!("{:#x}", tx.sender()))?;
        self.write_texts(|tx| {
            tx.envelope().to().map_or_else(String::new, |to| format!("{to:#x}"))
        })?;
        self.write_texts(|tx| tx.envelope().value().to_string())?;
        self.write_texts(|tx| tx.nonce().to_string())?;
        self.write_texts(|tx| tx.gas_limit().to_string())?;
        // As in geth, the gas price of a transaction without one is its fee cap.
        self.write_texts(|tx| {
            let envelope = tx.envelope();
            envelope.gas_price().unwrap_or_else(|| envelope.max_fee_per_gas()).to_string()
        })?;
        self.write_texts(|tx| tx.max_tip_wei().to_string())?;
        self.write_texts(|tx| tx.max_fee_wei().to_string())?;
        self.write_numbers(|tx| tx.envelope().input().len() as i64)?;
        self.write_texts(|tx| {
            let selector = tx.envelope().input().get(..4);
            selector.map_or_else(String::new, alloy_primitives::hex::encode_prefixed)
        })?;
        self.write_column(|rows, column| write_sources(rows, encoding.announcers, column))?;
        self.write_inclusions(|_, inclusion| inclusion.block as i64)?;
        self.write_inclusions(|_, inclusion| inclusion_millis(inclusion))?;
        self.write_inclusions(|tx, inclusion| {
            inclusion_millis(inclusion) - unix_millis(tx.first_seen())
        })?;
        self.write_column(|rows, column| write_raw_txs(rows, encoding, column))?;
        self.writer.close()?;
        Ok(())
    }

    /// Writes the next column. `encode` writes a few rows at a time.
    fn write_column<T: DataType>(
        &mut self,
        mut encode: impl FnMut(&[Row<'_>], &mut ColumnWriterImpl<'_, T>) -> Result<usize>,
    ) -> Result<()> {
        let mut chunk = TrackedWrite::new(Vec::new());
        let pages = Box::new(GzipPages::new(&mut chunk, self.pause));
        let descriptor = self.schema.column(self.next_column);
        self.next_column += 1;
        let mut column = ColumnWriterImpl::new(descriptor, Arc::clone(&self.properties), pages);
        for rows in self.rows.chunks(STEP_ROWS) {
            encode(rows, &mut column)?;
            (self.pause)();
        }
        let mut closed = column.close()?;
        let gzip = Compression::GZIP(GzipLevel::default());
        closed.metadata = closed.metadata.into_builder().set_compression(gzip).build()?;
        self.writer.append_column(&Bytes::from(chunk.into_inner()?), closed)
    }

    fn write_numbers(&mut self, value: impl Fn(&Transaction) -> i64) -> Result<()> {
        self.write_column::<Int64Type>(|rows, column| {
            let values: Vec<_> = rows.iter().map(|row| value(row.tx)).collect();
            column.write_batch(&values, None, None)
        })
    }

    fn write_texts(&mut self, value: impl Fn(&Transaction) -> String) -> Result<()> {
        self.write_column::<ByteArrayType>(|rows, column| {
            let values: Vec<_> =
                rows.iter().map(|row| ByteArray::from(value(row.tx).into_bytes())).collect();
            column.write_batch(&values, None, None)
        })
    }

    fn write_inclusions(&mut self, value: impl Fn(&Transaction, Inclusion) -> i64) -> Result<()> {
        self.write_column::<Int64Type>(|rows, column| {
            let values: Vec<_> =
                rows.iter().filter_map(|row| Some(value(row.tx, row.inclusion?))).collect();
            // 1 for a value, 0 for a null.
            let definitions: Vec<_> =
                rows.iter().map(|row| i16::from(row.inclusion.is_some())).collect();
            column.write_batch(&values, Some(&definitions), None)
        })
    }
}

/// Writes the names of the nodes, or the origins, that a transaction came from until now.
fn write_sources(
    rows: &[Row<'_>],
    announcers: &Announcers,
    column: &mut ColumnWriterImpl<'_, ByteArrayType>,
) -> Result<usize> {
    let mut values = Vec::new();
    let mut repetitions = Vec::new();
    for Row { tx, .. } in rows {
        let second_origin = tx.second_origin().map(|(origin, _)| origin);
        for origin in std::iter::once(tx.origin()).chain(second_origin) {
            let nodes = match origin {
                Origin::Mempool => announcers(tx.hash()),
                _ => Vec::new(),
            };
            if nodes.is_empty() {
                values.push(ByteArray::from(origin_name(origin)));
            }
            values.extend(nodes.iter().map(|name| ByteArray::from(name.as_str())));
        }
        // 0 begins the list of a row, 1 continues it.
        repetitions.push(0);
        repetitions.resize(values.len(), 1);
    }
    let definitions = vec![1; values.len()];
    column.write_batch(&values, Some(&definitions), Some(&repetitions))
}

/// Writes encoded transactions. A row may have any number of bytes, so it pauses between rows too.
fn write_raw_txs(
    rows: &[Row<'_>],
    encoding: Encoding<'_>,
    column: &mut ColumnWriterImpl<'_, ByteArrayType>,
) -> Result<usize> {
    let mut bytes_since_pause = 0;
    for Row { tx, .. } in rows {
        let raw = ByteArray::from(encode(tx, encoding.blobs));
        bytes_since_pause += raw.len();
        column.write_batch(&[raw], None, None)?;
        if bytes_since_pause >= STEP_BYTES {
            bytes_since_pause = 0;
            (encoding.pause)();
        }
    }
    Ok(rows.len())
}

fn origin_name(origin: Origin) -> &'static str {
    match origin {
        Origin::Mempool => "mempool",
        Origin::Rpc => "rpc",
        Origin::Private => "private",
        _ => "other",
    }
}

fn unix_millis(time: SystemTime) -> i64 {
    // A clock before 1970 gives 0.
    let since_epoch = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX)
}

fn inclusion_millis(inclusion: Inclusion) -> i64 {
    i64::try_from(inclusion.timestamp_s.saturating_mul(1_000)).unwrap_or(i64::MAX)
}

/// Encodes a transaction by EIP-2718: a blob transaction in network form, or without blobs in the
/// form that it has in a block.
fn encode(tx: &Transaction, blobs: bool) -> Vec<u8> {
    match tx.envelope() {
        PooledTransaction::Eip4844(signed) if !blobs => {
            let tx = signed.tx().tx().clone();
            Signed::new_unchecked(tx, *signed.signature(), *signed.hash()).encoded_2718()
        }
        envelope => envelope.encoded_2718(),
    }
}
