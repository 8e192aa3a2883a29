//! Compresses the pages of a column in short steps.
//!
//! The codec of `parquet` compresses a page in one go: with blobs some 15 ms, for which a thread that
//! handles transactions may wait for the core, whatever the niceness of this one, because the kernel
//! lets a running thread finish its slice. Between two steps this one offers the core to those that wait.

use std::{
    io::{self, Write},
    thread,
};

use flate2::{Compression, write::GzEncoder};
use parquet::{
    column::page::{CompressedPage, Page, PageWriteSpec, PageWriter},
    errors::Result,
    file::writer::{SerializedPageWriter, TrackedWrite},
};

/// The lowest of nine levels: most of the data is random, and a higher level would gain nothing.
const LEVEL: Compression = Compression::new(1);

/// How many bytes are compressed or encoded between two pauses: about 0.1 ms.
pub(crate) const STEP_BYTES: usize = 8 << 10;

/// Lets a thread that waits for this core go first. It costs a system call.
pub(crate) fn pause() {
    #[cfg(test)]
    PAUSES.set(PAUSES.get() + 1);
    thread::yield_now();
}

#[cfg(test)]
thread_local! {
    /// Of this thread.
    pub(crate) static PAUSES: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Takes pages that are not compressed, and writes them compressed.
pub(crate) struct GzipPages<'a, W: Write>(SerializedPageWriter<'a, W>);

impl<'a, W: Write> GzipPages<'a, W> {
    pub(crate) fn new(chunk: &'a mut TrackedWrite<W>) -> Self {
        Self(SerializedPageWriter::new(chunk))
    }
}

impl<W: Write + Send> PageWriter for GzipPages<'_, W> {
    fn write_page(&mut self, page: CompressedPage) -> Result<PageWriteSpec> {
        let bytes = page.uncompressed_size();
        let mut page = page.compressed_page().clone();
        // The writer's version is 1, whose pages are compressed with their levels.
        if let Page::DataPage { buf, .. } | Page::DictionaryPage { buf, .. } = &mut page {
            *buf = gzip(buf)?.into();
        }
        self.0.write_page(CompressedPage::new(page, bytes))
    }

    fn close(&mut self) -> Result<()> {
        self.0.close()
    }
}

fn gzip(page: &[u8]) -> io::Result<Vec<u8>> {
    let mut out = GzEncoder::new(Vec::with_capacity(page.len() / 2), LEVEL);
    for step in page.chunks(STEP_BYTES) {
        out.write_all(step)?;
        pause();
    }
    out.finish()
}

/// Pauses after every write.
pub(crate) struct Pausing<W>(pub(crate) W);

impl<W: Write> Write for Pausing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.0.write(bytes)?;
        pause();
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
