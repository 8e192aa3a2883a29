//! The files: each is one row group, and gets its name only when it is complete.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write as _},
    path::{Path, PathBuf},
    time::SystemTime,
};

use crate::{
    columns::{self, Encoding, Row},
    pages::Pausing,
};

/// The extension of a complete segment.
pub(crate) const EXTENSION: &str = "parquet";

/// The extension until then.
const UNFINISHED: &str = "unfinished";

/// Names sort in the order of their rows: the start of the recorder in milliseconds, then a number.
#[derive(Debug)]
pub(crate) struct Segments {
    folder: PathBuf,
    start_ms: u128,
    number: u64,
    /// The next file, already open, so that a folder that cannot be written to is detected at the
    /// start.
    next: Option<File>,
}

impl Segments {
    pub(crate) fn create(folder: PathBuf, start: SystemTime) -> io::Result<Self> {
        fs::create_dir_all(&folder)?;
        let since = start.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut segments = Self { folder, start_ms: since.as_millis(), number: 0, next: None };
        segments.remove_unfinished()?;
        segments.next = Some(segments.open()?);
        // By which complete segments get their names: not every file system has hard links.
        let probe = segments.unfinished().with_extension("probe");
        fs::hard_link(segments.unfinished(), &probe)?;
        fs::remove_file(probe)?;
        Ok(segments)
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Removes what recorders have left that were killed. One that still runs has locked its file.
    fn remove_unfinished(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            let is_unfinished = path.extension().is_some_and(|found| found == UNFINISHED);
            if is_unfinished && File::open(&path)?.try_lock().is_ok() {
                fs::remove_file(&path)?;
            }
        }
        Ok(())
    }

    /// Writes a segment and gives it its name. Returns its size in bytes. After an error the file
    /// is removed, and the next call begins another.
    pub(crate) fn write(&mut self, rows: &[Row<'_>], how: Encoding<'_>) -> io::Result<u64> {
        let file = self.next.take().map_or_else(|| self.open(), Ok)?;
        let (unfinished, complete) = (self.unfinished(), self.complete());
        self.number += 1;
        let written = Self::fill(&file, rows, how).and_then(|bytes| {
            // An existing name belongs to another recorder: that file stays, and this segment
            // counts as lost.
            fs::hard_link(&unfinished, complete)?;
            // Else a loss of power may take the name. If this fails the rows count as lost, though they may be there.
            File::open(&self.folder)?.sync_all()?;
            Ok(bytes)
        });
        // The remaining file is ignored by readers.
        if let Err(error) = fs::remove_file(&unfinished) {
            tracing::warn!(%error, path = %unfinished.display(), "cannot remove");
        }
        written
    }

    fn fill(file: &File, rows: &[Row<'_>], how: Encoding<'_>) -> io::Result<u64> {
        let mut out = BufWriter::with_capacity(1 << 16, Pausing { inner: file, pause: how.pause });
        columns::write(&mut out, rows, how).map_err(io::Error::other)?;
        out.flush()?;
        drop(out);
        // After a loss of power a name must not lead to a file without content.
        file.sync_data()?;
        Ok(file.metadata()?.len())
    }

    fn open(&self) -> io::Result<File> {
        let file = File::create_new(self.unfinished())?;
        file.lock()?;
        Ok(file)
    }

    fn complete(&self) -> PathBuf {
        self.folder.join(format!("{:013}-{:08}.{EXTENSION}", self.start_ms, self.number))
    }

    fn unfinished(&self) -> PathBuf {
        self.complete().with_extension(UNFINISHED)
    }
}

impl Drop for Segments {
    fn drop(&mut self) {
        if self.next.take().is_some() {
            // It is empty, and readers ignore it.
            let _ = fs::remove_file(self.unfinished());
        }
    }
}
