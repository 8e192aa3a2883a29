//! Compresses the pages of a column in short steps. Between the steps the caller can yield the core
//! to waiting threads; [`crate::recorder`] says why.

use std::io::{self, Write};

use flate2::{Compression, write::GzEncoder};
use parquet::{
    column::page::{CompressedPage, Page, PageWriteSpec, PageWriter},
    errors::Result,
    file::writer::{SerializedPageWriter, TrackedWrite},
};

/// The lowest of nine levels. Most of the data is random, so a higher level would gain nothing.
const LEVEL: Compression = Compression::new(1);

/// How many bytes are compressed or encoded between two pauses: about 0.1 ms.
pub(crate) const STEP_BYTES: usize = 8 << 10;

/// A function that is called between two steps.
pub(crate) type Pause<'a> = &'a (dyn Fn() + Sync);

/// Accepts uncompressed pages and writes them compressed.
pub(crate) struct GzipPages<'a, W: Write> {
    inner: SerializedPageWriter<'a, W>,
    pause: Pause<'a>,
}

impl<'a, W: Write> GzipPages<'a, W> {
    pub(crate) fn new(chunk: &'a mut TrackedWrite<W>, pause: Pause<'a>) -> Self {
        Self { inner: SerializedPageWriter::new(chunk), pause }
    }
}

impl<W: Write + Send> PageWriter for GzipPages<'_, W> {
    fn write_page(&mut self, page: CompressedPage) -> Result<PageWriteSpec> {
        let uncompressed_bytes = page.uncompressed_size();
        let mut page = page.compressed_page().clone();
        // Pages of format version 1, which the writer uses, are compressed together with their
        // levels.
        if let Page::DataPage { buf, .. } | Page::DictionaryPage { buf, .. } = &mut page {
            *buf = gzip(buf, self.pause)?.into();
        }
        self.inner.write_page(CompressedPage::new(page, uncompressed_bytes))
    }

    fn close(&mut self) -> Result<()> {
        self.inner.close()
    }
}

fn gzip(page: &[u8], pause: Pause<'_>) -> io::Result<Vec<u8>> {
    let mut out = GzEncoder::new(Vec::with_capacity(page.len() / 2), LEVEL);
    for step in page.chunks(STEP_BYTES) {
        out.write_all(step)?;
        pause();
    }
    out.finish()
}

/// A writer that pauses after every write.
pub(crate) struct PausingWriter<'a, W> {
    pub(crate) inner: W,
    pub(crate) pause: Pause<'a>,
}

impl<W: Write> Write for PausingWriter<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        (self.pause)();
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
