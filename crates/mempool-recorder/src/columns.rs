//! The columns of Flashbots' mempool-dumpster, and how a group of rows is written in them.
//!
//! Names, order and types are those of `TxSummaryEntry` in its `common/txsummary.go`: numbers that
//! may exceed 64 bits are decimal text, hashes and addresses hex text, `rawTx` is bytes. Where it
//! writes 0 for a transaction that is in no block, the three columns about inclusion are null here.

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

/// When a transaction was first seen.
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

/// How many rows of a column other than `rawTx` are encoded, or rows freed, between two pauses: some
/// 0.05 ms.
pub(crate) const STEP_ROWS: usize = 128;

/// The block that included a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inclusion {
    pub(crate) block: u64,
    pub(crate) timestamp_s: u64,
}

/// A transaction, with the block that included it.
pub(crate) type Row<'a> = (&'a Transaction, Option<Inclusion>);

/// Names the nodes that have announced a transaction.
pub(crate) type Announcers = dyn Fn(&B256) -> Vec<String> + Send;

/// How rows are written.
#[derive(Clone, Copy)]
pub(crate) struct Encoding<'a> {
    /// With their blobs.
    pub(crate) blobs: bool,
    /// Without a name, the origin stands for the nodes.
    pub(crate) announcers: &'a Announcers,
    /// Is called every 0.1 ms or so.
    pub(crate) pause: Pause<'a>,
}

/// Writes a file of one row group. Each column is built, written and freed before the next.
pub(crate) fn write<W: Write + Send>(out: W, rows: &[Row<'_>], how: Encoding<'_>) -> Result<()> {
    let schema = Arc::new(parse_message_type(SCHEMA)?);
    // Not compressed by the crate: `GzipPages` does it.
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::UNCOMPRESSED)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_offset_index_disabled(true)
        .set_max_row_group_row_count(None)
        .set_column_statistics_enabled(ColumnPath::from(TIMESTAMP), EnabledStatistics::Chunk);
    // Values that differ in every row gain nothing from a dictionary.
    for column in [TIMESTAMP, HASH, RAW_TX] {
        properties = properties.set_column_dictionary_enabled(ColumnPath::from(column), false);
    }
    let mut file = SerializedFileWriter::new(out, schema, Arc::new(properties.build()))?;
    let (schema, properties) = (file.schema_descr().clone(), Arc::clone(file.properties()));
    let writer = file.next_row_group()?;
    Group { rows, pause: how.pause, schema, properties, next: 0, writer }.write(how)?;
    file.close()?;
    Ok(())
}

struct Group<'a, 'w, W: Write> {
    rows: &'a [Row<'a>],
    pause: Pause<'a>,
    schema: SchemaDescriptor,
    properties: WriterPropertiesPtr,
    /// The index of the next column.
    next: usize,
    writer: SerializedRowGroupWriter<'w, W>,
}

impl<W: Write + Send> Group<'_, '_, W> {
    fn write(mut self, how: Encoding<'_>) -> Result<()> {
        self.numbers(|row| unix_millis(row.first_seen()))?;
        self.texts(|row| format!("{:#x}", row.hash()))?;
        self.texts(|row| row.envelope().chain_id().unwrap_or(0).to_string())?;
        self.numbers(|row| row.envelope().tx_type() as i64)?;
        self.texts(|row| format!("{:#x}", row.sender()))?;
        self.texts(|row| row.envelope().to().map_or_else(String::new, |to| format!("{to:#x}")))?;
        self.texts(|row| row.envelope().value().to_string())?;
        self.texts(|row| row.nonce().to_string())?;
        self.texts(|row| row.gas_limit().to_string())?;
        // As in geth: for a transaction without a gas price, its fee cap.
        self.texts(|row| {
            let envelope = row.envelope();
            envelope.gas_price().unwrap_or_else(|| envelope.max_fee_per_gas()).to_string()
        })?;
        self.texts(|row| row.max_tip_wei().to_string())?;
        self.texts(|row| row.max_fee_wei().to_string())?;
        self.numbers(|row| row.envelope().input().len() as i64)?;
        self.texts(|row| {
            let selector = row.envelope().input().get(..4);
            selector.map_or_else(String::new, alloy_primitives::hex::encode_prefixed)
        })?;
        self.column(|rows, column| sources(rows, how.announcers, column))?;
        self.inclusions(|_, inclusion| inclusion.block as i64)?;
        self.inclusions(|_, inclusion| millis(inclusion))?;
        self.inclusions(|row, inclusion| millis(inclusion) - unix_millis(row.first_seen()))?;
        self.column(|rows, column| raw_txs(rows, how, column))?;
        self.writer.close()?;
        Ok(())
    }

    /// Writes the next column, which `encode` does for a few rows at a time.
    fn column<T: DataType>(
        &mut self,
        mut encode: impl FnMut(&[Row<'_>], &mut ColumnWriterImpl<'_, T>) -> Result<usize>,
    ) -> Result<()> {
        let mut chunk = TrackedWrite::new(Vec::new());
        let pages = Box::new(GzipPages::new(&mut chunk, self.pause));
        let descriptor = self.schema.column(self.next);
        self.next += 1;
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

    fn numbers(&mut self, value: impl Fn(&Transaction) -> i64) -> Result<()> {
        self.column::<Int64Type>(|rows, column| {
            let values: Vec<_> = rows.iter().map(|(row, _)| value(row)).collect();
            column.write_batch(&values, None, None)
        })
    }

    fn texts(&mut self, value: impl Fn(&Transaction) -> String) -> Result<()> {
        self.column::<ByteArrayType>(|rows, column| {
            let text = |(row, _): &Row<'_>| ByteArray::from(value(row).into_bytes());
            let values: Vec<_> = rows.iter().map(text).collect();
            column.write_batch(&values, None, None)
        })
    }

    fn inclusions(&mut self, value: impl Fn(&Transaction, Inclusion) -> i64) -> Result<()> {
        self.column::<Int64Type>(|rows, column| {
            let included = rows.iter().filter_map(|(row, included)| Some((row, (*included)?)));
            let values: Vec<_> = included.map(|(row, included)| value(row, included)).collect();
            let definitions = rows.iter().map(|(_, included)| i16::from(included.is_some()));
            let definitions: Vec<_> = definitions.collect();
            column.write_batch(&values, Some(&definitions), None)
        })
    }
}

/// The nodes and the external callers that a transaction came from until now.
fn sources(
    rows: &[Row<'_>],
    announcers: &Announcers,
    column: &mut ColumnWriterImpl<'_, ByteArrayType>,
) -> Result<usize> {
    let (mut values, mut repetitions) = (Vec::new(), Vec::new());
    for (row, _) in rows {
        let second = row.second_origin().map(|(origin, _)| origin);
        for origin in std::iter::once(row.origin()).chain(second) {
            let nodes = match origin {
                Origin::Mempool => announcers(row.hash()),
                _ => Vec::new(),
            };
            if nodes.is_empty() {
                values.push(ByteArray::from(source(origin)));
            }
            values.extend(nodes.iter().map(|name| ByteArray::from(name.as_str())));
        }
        repetitions.push(0);
        repetitions.resize(values.len(), 1);
    }
    let definitions = vec![1; values.len()];
    column.write_batch(&values, Some(&definitions), Some(&repetitions))
}

/// A row may have any number of bytes, so there are pauses between them too.
fn raw_txs(
    rows: &[Row<'_>],
    how: Encoding<'_>,
    column: &mut ColumnWriterImpl<'_, ByteArrayType>,
) -> Result<usize> {
    let mut bytes = 0;
    for (row, _) in rows {
        let raw = ByteArray::from(encoded(row, how.blobs));
        bytes += raw.len();
        column.write_batch(&[raw], None, None)?;
        if bytes >= STEP_BYTES {
            bytes = 0;
            (how.pause)();
        }
    }
    Ok(rows.len())
}

fn source(origin: Origin) -> &'static str {
    match origin {
        Origin::Mempool => "mempool",
        Origin::Rpc => "rpc",
        Origin::Private => "private",
        _ => "other",
    }
}

fn unix_millis(time: SystemTime) -> i64 {
    // For a clock before 1970 there is no better value.
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

fn millis(inclusion: Inclusion) -> i64 {
    i64::try_from(inclusion.timestamp_s.saturating_mul(1_000)).unwrap_or(i64::MAX)
}

/// EIP-2718; a blob transaction in network form, or, without blobs, in the form of a block.
fn encoded(tx: &Transaction, blobs: bool) -> Vec<u8> {
    match tx.envelope() {
        PooledTransaction::Eip4844(signed) if !blobs => {
            let tx = signed.tx().tx().clone();
            Signed::new_unchecked(tx, *signed.signature(), *signed.hash()).encoded_2718()
        }
        envelope => envelope.encoded_2718(),
    }
}
