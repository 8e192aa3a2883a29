//! Reads a Parquet file from outside in bounded pieces; [`crate::recorder`] says why. The parser
//! reads the pages as if they were not compressed, and this module decompresses them.

// This module reads bytes from outside, which must not cause a panic.
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

/// The longest footer that is read, in bytes. It suffices for some 6,000 row groups of these
/// columns. The parsed footer takes a few times as much memory.
pub const MAX_FOOTER_BYTES: u64 = 16 << 20;

/// The longest page that is read, in bytes, compressed or not. A page of the archives has 1 MiB and
/// one transaction, and a transaction with 72 blobs has 10 MB. One page of each of four columns is
/// in memory.
pub const MAX_PAGE_BYTES: usize = 64 << 20;

/// The longest dictionary that is read, in bytes without compression. Writers change to another
/// encoding above 1 MiB. Each value takes at least four bytes of it, and 32 bytes in memory.
pub const MAX_DICTIONARY_BYTES: usize = 16 << 20;

/// The end of a file: the length of the footer in four bytes, and the four bytes of the magic
/// number.
const TAIL_BYTES: u64 = 8;
const MAGIC: &[u8] = b"PAR1";

/// The buffer for a page header, which has some 30 bytes.
const HEADER_BUFFER_BYTES: usize = 256;

#[derive(Debug)]
pub(crate) struct Input {
    file: Arc<File>,
    bytes: u64,
}

impl Input {
    /// Opens a file and reads its footer.
    ///
    /// # Errors
    /// [`ReplayError::Open`] if the file cannot be opened. [`ReplayError::NotParquet`] if the
    /// footer is missing, damaged or too large, and also if the disk cannot read it.
    pub(crate) fn open(
        path: &Path,
    ) -> std::result::Result<(Arc<Self>, ParquetMetaData), ReplayError> {
        let open_error = |source| ReplayError::Open { path: path.to_owned(), source };
        let file = File::open(path).map_err(open_error)?;
        let bytes = file.metadata().map_err(open_error)?.len();
        let input = Self { file: Arc::new(file), bytes };
        let metadata = input.read_footer().map_err(|error| ReplayError::NotParquet {
            path: path.to_owned(),
            reason: error.to_string(),
        })?;
        Ok((Arc::new(input), metadata))
    }

    fn read_footer(&self) -> Result<ParquetMetaData> {
        let Some(end) = self.bytes.checked_sub(TAIL_BYTES) else {
            return invalid(format!("it has {} bytes, fewer than its end alone", self.bytes));
        };
        let tail = self.get_bytes(end, TAIL_BYTES as usize)?;
        let (length, magic) = tail.split_at(4);
        if magic != MAGIC {
            return invalid("it does not end with PAR1: it is truncated or no Parquet file".into());
        }
        let length = u64::from(u32::from_le_bytes(length.try_into().unwrap_or_default()));
        if length > MAX_FOOTER_BYTES || length > end {
            let limit = MAX_FOOTER_BYTES.min(end);
            return invalid(format!("the footer has {length} bytes, at most {limit} are read"));
        }
        let footer = self.get_bytes(end.saturating_sub(length), length as usize)?;
        if !footer::is_plausible(&footer) {
            return invalid("the footer claims more than it holds".into());
        }
        catch_panic(|| ParquetMetaDataReader::decode_metadata(&footer))
    }
}

impl Length for Input {
    fn len(&self) -> u64 {
        self.bytes
    }
}

impl ChunkReader for Input {
    type T = BufReader<FileCursor>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        let cursor = FileCursor { file: Arc::clone(&self.file), position: start };
        Ok(BufReader::with_capacity(HEADER_BUFFER_BYTES, cursor))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        if length > MAX_PAGE_BYTES {
            return invalid(format!(
                "a page has {length} bytes, at most {MAX_PAGE_BYTES} are read"
            ));
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

/// A reader with a position of its own, so that several columns share a file.
#[derive(Debug)]
pub(crate) struct FileCursor {
    file: Arc<File>,
    position: u64,
}

impl Read for FileCursor {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.position)?;
        self.position = self.position.saturating_add(read as u64);
        Ok(read)
    }
}

/// Reads one column of one row group, value by value.
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
        let pages = catch_panic(|| Pages::open(input, group, index))?;
        let reader = catch_panic(|| Ok(ColumnReaderImpl::new(descriptor, Box::new(pages))))?;
        Ok(Self { reader, is_optional, values: Vec::new(), definitions: Vec::new() })
    }

    /// Returns the next value; `None` for a null.
    pub(crate) fn next_value(&mut self) -> Result<Option<T::T>> {
        self.values.clear();
        self.definitions.clear();
        let Self { reader, values, definitions, is_optional } = self;
        let definitions = is_optional.then_some(definitions);
        let (records, ..) = catch_panic(|| reader.read_records(1, definitions, None, values))?;
        if records == 0 {
            return Err(ParquetError::EOF("its columns have fewer values than it has rows".into()));
        }
        Ok(self.values.pop())
    }
}

/// Whether this module decompresses the codec. A file with another codec is rejected when it is
/// opened.
pub(crate) const fn is_supported(compression: Compression) -> bool {
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
        // The parser must not decompress the pages, because it does so without a bound.
        let uncompressed =
            column.clone().into_builder().set_compression(Compression::UNCOMPRESSED).build()?;
        let rows = usize::try_from(group.num_rows())?;
        let inner = SerializedPageReader::new(Arc::clone(input), &uncompressed, rows, None)?;
        Ok(Self { inner, is_gzip })
    }

    /// Decompresses a page, except its first `uncompressed_bytes`.
    fn decompress(&self, page: &Bytes, uncompressed_bytes: usize, limit: usize) -> Result<Bytes> {
        if !self.is_gzip {
            check_size(page.len(), limit)?;
            return Ok(page.clone());
        }
        let (Some(uncompressed), Some(compressed)) =
            (page.get(..uncompressed_bytes), page.get(uncompressed_bytes..))
        else {
            return Err(ParquetError::EOF("a page is shorter than its levels".into()));
        };
        let mut output = uncompressed.to_vec();
        // One byte more than the limit shows that the limit is exceeded.
        MultiGzDecoder::new(compressed)
            .take((limit as u64).saturating_add(1))
            .read_to_end(&mut output)?;
        check_size(output.len(), limit)?;
        Ok(output.into())
    }
}

fn check_size(bytes: usize, limit: usize) -> Result<()> {
    if bytes > limit {
        return invalid(format!("a page of more than {limit} bytes"));
    }
    Ok(())
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let Some(mut page) = self.inner.get_next_page()? else { return Ok(None) };
        match &mut page {
            Page::DataPage { buf, .. } => *buf = self.decompress(buf, 0, MAX_PAGE_BYTES)?,
            Page::DataPageV2 { is_compressed: false, .. } => {}
            Page::DataPageV2 { buf, def_levels_byte_len, rep_levels_byte_len, .. } => {
                let levels =
                    (*def_levels_byte_len as usize).saturating_add(*rep_levels_byte_len as usize);
                // A page without values has no compressed bytes.
                if buf.len() > levels {
                    *buf = self.decompress(buf, levels, MAX_PAGE_BYTES)?;
                }
            }
            Page::DictionaryPage { buf, num_values, .. } => {
                *buf = self.decompress(buf, 0, MAX_DICTIONARY_BYTES)?;
                if *num_values as usize > buf.len() / 4 {
                    let bytes = buf.len();
                    return invalid(format!(
                        "a dictionary claims {num_values} values in {bytes} bytes"
                    ));
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

/// Converts a panic of the parser to an error.
fn catch_panic<T>(read: impl FnOnce() -> Result<T>) -> Result<T> {
    // Unwind safety: after an error the column is abandoned, so nothing that it touched is used
    // again.
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| invalid("the parser panicked".into()))
}

fn invalid<T>(reason: String) -> Result<T> {
    Err(ParquetError::General(reason))
}
