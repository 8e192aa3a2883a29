//! Writes segments: files of one row group each, which get their name only when they are complete.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write as _},
    path::{Path, PathBuf},
    time::SystemTime,
};

use crate::{
    columns::{self, Encoding, Row},
    pages::PausingWriter,
};

/// The extension of a complete segment.
pub(crate) const EXTENSION: &str = "parquet";

/// The extension of a segment that is being written.
const UNFINISHED: &str = "unfinished";

/// The segments of one recorder. A name consists of the start of the recorder in milliseconds and a
/// number, so the names sort in the order of the rows.
#[derive(Debug)]
pub(crate) struct Segments {
    folder: PathBuf,
    start_ms: u128,
    number: u64,
    /// The next file, which is open already, so that a folder without write access is detected at
    /// the start.
    next: Option<File>,
}

impl Segments {
    pub(crate) fn create(folder: PathBuf, now: SystemTime) -> io::Result<Self> {
        fs::create_dir_all(&folder)?;
        let since_epoch = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let start_ms = since_epoch.as_millis();
        let mut segments = Self { folder, start_ms, number: 0, next: None };
        segments.remove_unfinished()?;
        segments.next = Some(segments.open()?);
        // Complete segments get their names by a hard link, which not every file system supports.
        let probe = segments.unfinished_path().with_extension("probe");
        fs::hard_link(segments.unfinished_path(), &probe)?;
        fs::remove_file(probe)?;
        Ok(segments)
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Removes the unfinished files of killed recorders. A recorder that still runs has locked its
    /// file.
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
    /// is removed, and the next call begins another one.
    pub(crate) fn write(&mut self, rows: &[Row<'_>], encoding: Encoding<'_>) -> io::Result<u64> {
        let file = self.next.take().map_or_else(|| self.open(), Ok)?;
        let unfinished = self.unfinished_path();
        let complete = self.complete_path();
        self.number += 1;
        let result = self.write_and_link(&file, rows, encoding, &unfinished, &complete);
        // If this fails, the file stays, and readers ignore it.
        if let Err(error) = fs::remove_file(&unfinished) {
            tracing::warn!(
                %error,
                path = %unfinished.display(),
                "an unfinished segment cannot be removed: remove it by hand"
            );
        }
        result
    }

    fn write_and_link(
        &self,
        file: &File,
        rows: &[Row<'_>],
        encoding: Encoding<'_>,
        unfinished: &Path,
        complete: &Path,
    ) -> io::Result<u64> {
        let bytes = Self::write_file(file, rows, encoding)?;
        // If the name exists, it belongs to another recorder. That file stays, and the rows of this
        // segment count as lost.
        fs::hard_link(unfinished, complete)?;
        // Without this, a loss of power may remove the name. If it fails, the rows count as lost,
        // although they may be there.
        File::open(&self.folder)?.sync_all()?;
        Ok(bytes)
    }

    fn write_file(file: &File, rows: &[Row<'_>], encoding: Encoding<'_>) -> io::Result<u64> {
        let writer = PausingWriter { inner: file, pause: encoding.pause };
        let mut out = BufWriter::with_capacity(1 << 16, writer);
        columns::write(&mut out, rows, encoding).map_err(io::Error::other)?;
        out.flush()?;
        drop(out);
        // After a loss of power, a name must not lead to a file without content.
        file.sync_data()?;
        Ok(file.metadata()?.len())
    }

    fn open(&self) -> io::Result<File> {
        let file = File::create_new(self.unfinished_path())?;
        file.lock()?;
        Ok(file)
    }

    fn complete_path(&self) -> PathBuf {
        self.folder.join(format!("{:013}-{:08}.{EXTENSION}", self.start_ms, self.number))
    }

    fn unfinished_path(&self) -> PathBuf {
        self.complete_path().with_extension(UNFINISHED)
    }
}

impl Drop for Segments {
    fn drop(&mut self) {
        if self.next.take().is_some() {
            // If it stays, it is empty, and readers ignore it.
            let _ = fs::remove_file(self.unfinished_path());
        }
    }
}
