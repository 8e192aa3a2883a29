//! A Parquet file from outside, read in bounded pieces: why is at [`crate::recorder`]. Pages are read as if they were not
//! compressed, and decompressed here.

// Bytes from outside are read here: none of them may cause a panic.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::expect_used))]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::string_slice, clippy::unreachable))]

use std::{
    fs::File,
    io::{self, BufReader, Read},
    os::unix::fs::FileExt as _,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::Arc,
};

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use parquet::{
    basic::Compression,
    column::{
        page::{Page, PageMetadata, PageReader},
        reader::ColumnReaderImpl,
    },
    data_type::DataType,
    errors::{ParquetError, Result},
    file::{
        metadata::{ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData},
        reader::{ChunkReader, Length},
        serialized_reader::SerializedPageReader,
    },
};

use crate::{error::ReplayError, footer};

/// Longest footer that is read, in bytes: some 6,000 row groups of these columns have 16 MiB. The
/// parsed footer takes a few times as much.
pub const MAX_FOOTER_BYTES: u64 = 16 << 20;

/// Longest page that is read, in bytes, compressed or not: a page of the archives is 1 MiB and one
/// transaction, and a transaction with 72 blobs is 10 MB. One page of each of four columns is in
/// memory.
pub const MAX_PAGE_BYTES: usize = 64 << 20;

/// Longest dictionary, in bytes without compression: writers change to another encoding above 1
/// MiB. Each value takes at least four bytes of it, and 32 in memory.
pub const MAX_DICTIONARY_BYTES: usize = 16 << 20;

/// Four bytes of length, and the four bytes of the magic number.
const TAIL_BYTES: u64 = 8;
const MAGIC: &[u8] = b"PAR1";

/// Enough for a page header, which has some 30 bytes.
const HEADER_BUFFER_BYTES: usize = 256;

#[derive(Debug)]
pub(crate) struct Input {
    file: Arc<File>,
    bytes: u64,
}

impl Input {
    /// Opens a file and reads its footer.
    pub(crate) fn open(
        path: &Path,
    ) -> std::result::Result<(Arc<Self>, ParquetMetaData), ReplayError> {
        let unread = |source| ReplayError::Open { path: path.to_owned(), source };
        let file = File::open(path).map_err(unread)?;
        let bytes = file.metadata().map_err(unread)?.len();
        let input = Self { file: Arc::new(file), bytes };
        let metadata = input.footer().map_err(|error| ReplayError::NotParquet {
            path: path.to_owned(),
            reason: error.to_string(),
        })?;
        Ok((Arc::new(input), metadata))
    }

    fn footer(&self) -> Result<ParquetMetaData> {
        let Some(end) = self.bytes.checked_sub(TAIL_BYTES) else {
            return wrong(format!("{} bytes, less than its end alone", self.bytes));
        };
        let tail = self.get_bytes(end, TAIL_BYTES as usize)?;
        let (length, magic) = tail.split_at(4);
        if magic != MAGIC {
            return wrong("it does not end with PAR1: it is cut short, or something else".into());
        }
        let length = u64::from(u32::from_le_bytes(length.try_into().unwrap_or_default()));
        if length > MAX_FOOTER_BYTES || length > end {
            let limit = MAX_FOOTER_BYTES.min(end);
            return wrong(format!("the footer is {length} bytes long, at most {limit} are read"));
        }
        let footer = self.get_bytes(end.saturating_sub(length), length as usize)?;
        if !footer::is_plausible(&footer) {
            return wrong("the footer claims more than it holds".into());
        }
        caught(|| ParquetMetaDataReader::decode_metadata(&footer))
    }
}

impl Length for Input {
    fn len(&self) -> u64 {
        self.bytes
    }
}

impl ChunkReader for Input {
    type T = BufReader<At>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        let at = At { file: Arc::clone(&self.file), next: start };
        Ok(BufReader::with_capacity(HEADER_BUFFER_BYTES, at))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        if length > MAX_PAGE_BYTES {
            return wrong(format!("a page of {length} bytes, at most {MAX_PAGE_BYTES} are read"));
        }
        if start.checked_add(length as u64).is_none_or(|end| end > self.bytes) {
            let reason = format!("{length} bytes at {start} of a file of {} bytes", self.bytes);
            return Err(ParquetError::EOF(reason));
        }
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, start)?;
        Ok(bytes.into())
    }
}

/// Reads from its own position, so that several columns share a file.
#[derive(Debug)]
pub(crate) struct At {
    file: Arc<File>,
    next: u64,
}

impl Read for At {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.next)?;
        self.next = self.next.saturating_add(read as u64);
        Ok(read)
    }
}

/// One column of one row group, value by value.
pub(crate) struct Column<T: DataType> {
    reader: ColumnReaderImpl<T>,
    is_optional: bool,
    values: Vec<T::T>,
    definitions: Vec<i16>,
}

impl<T: DataType> Column<T> {
    pub(crate) fn open(input: &Arc<Input>, group: &RowGroupMetaData, index: usize) -> Result<Self> {
        let descriptor = group.schema_descr().column(index);
        let is_optional = descriptor.max_def_level() > 0;
        let pages = caught(|| Pages::open(input, group, index))?;
        let reader = caught(|| Ok(ColumnReaderImpl::new(descriptor, Box::new(pages))))?;
        Ok(Self { reader, is_optional, values: Vec::new(), definitions: Vec::new() })
    }

    /// The next value, `None` for a null.
    pub(crate) fn next(&mut self) -> Result<Option<T::T>> {
        self.values.clear();
        self.definitions.clear();
        let Self { reader, values, definitions, is_optional } = self;
        let definitions = is_optional.then_some(definitions);
        let (records, ..) = caught(|| reader.read_records(1, definitions, None, values))?;
        match records {
            0 => Err(ParquetError::EOF("its columns end before its row count".into())),
            _ => Ok(self.values.pop()),
        }
    }
}

/// Whether pages that are compressed in this way are read. Others are refused when their file is opened.
pub(crate) const fn is_read(compression: Compression) -> bool {
    matches!(compression, Compression::UNCOMPRESSED | Compression::GZIP(_))
}

/// The pages of a column, decompressed within the limits.
struct Pages {
    inner: SerializedPageReader<Input>,
    is_gzip: bool,
}

impl Pages {
    fn open(input: &Arc<Input>, group: &RowGroupMetaData, index: usize) -> Result<Self> {
        let column = group.column(index);
        let is_gzip = column.compression() != Compression::UNCOMPRESSED;
        let raw = column.clone().into_builder().set_compression(Compression::UNCOMPRESSED);
        let rows = usize::try_from(group.num_rows())?;
        let inner = SerializedPageReader::new(Arc::clone(input), &raw.build()?, rows, None)?;
        Ok(Self { inner, is_gzip })
    }

    /// Decompresses the bytes after the first `plain`, which are not compressed.
    fn inflate(&self, page: &Bytes, plain: usize, limit: usize) -> Result<Bytes> {
        let within = |bytes: usize| match bytes > limit {
            true => wrong(format!("a page of more than {limit} bytes")),
            false => Ok(()),
        };
        if !self.is_gzip {
            within(page.len())?;
            return Ok(page.clone());
        }
        let too_short = || ParquetError::EOF("a page shorter than its levels".into());
        let mut all = page.get(..plain).ok_or_else(too_short)?.to_vec();
        let decoder = MultiGzDecoder::new(page.get(plain..).ok_or_else(too_short)?);
        decoder.take((limit as u64).saturating_add(1)).read_to_end(&mut all)?;
        within(all.len())?;
        Ok(all.into())
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let Some(mut page) = self.inner.get_next_page()? else { return Ok(None) };
        match &mut page {
            Page::DataPage { buf, .. } => *buf = self.inflate(buf, 0, MAX_PAGE_BYTES)?,
            Page::DataPageV2 { is_compressed: false, .. } => {}
            Page::DataPageV2 { buf, def_levels_byte_len, rep_levels_byte_len, .. } => {
                let levels =
                    (*def_levels_byte_len as usize).saturating_add(*rep_levels_byte_len as usize);
                // Without values there are no compressed bytes.
                if buf.len() > levels {
                    *buf = self.inflate(buf, levels, MAX_PAGE_BYTES)?;
                }
            }
            Page::DictionaryPage { buf, num_values, .. } => {
                *buf = self.inflate(buf, 0, MAX_DICTIONARY_BYTES)?;
                if *num_values as usize > buf.len() / 4 {
                    let bytes = buf.len();
                    return wrong(format!("a dictionary of {num_values} values in {bytes} bytes"));
                }
            }
        }
        Ok(Some(page))
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.inner.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.inner.skip_next_page()
    }
}

impl Iterator for Pages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

/// Treats a panic of the parser as a file that it cannot read.
fn caught<T>(read: impl FnOnce() -> Result<T>) -> Result<T> {
    // After a panic nothing that it touched is used again, because the column is abandoned.
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| wrong("the parser panicked".into()))
}

fn wrong<T>(reason: String) -> Result<T> {
    Err(ParquetError::General(reason))
}
