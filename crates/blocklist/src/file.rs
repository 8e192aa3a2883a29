//! Reads a list from a file, completely and within the size limit.

// Bytes from outside are read here: none of them may cause a panic.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::expect_used))]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::string_slice, clippy::unreachable))]

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
    time::SystemTime,
};

use crate::{
    BlocklistConfig, Error, Reloaded, SharedBlocklist, config::READ_LIMIT, parse::check_length,
};

impl SharedBlocklist {
    /// Reads the first list from a file, dated by its modification time: reading a file again does
    /// not make its content newer, writing it does.
    ///
    /// Blocks on file I/O. To replace the file, write another one and rename it over this one, so
    /// that no incomplete file can be read.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::ChangedWhileRead`], [`Error::TooLarge`], and those of
    /// [`Self::new`].
    pub fn open(
        path: impl AsRef<Path>,
        config: BlocklistConfig,
        now: SystemTime,
    ) -> Result<Self, Error> {
        let (bytes, modified) = read(path.as_ref())?;
        Self::new(&bytes, modified, config, now)
    }

    /// Replaces the list in force by that of a file, dated as in [`Self::open`].
    ///
    /// # Errors
    /// As [`Self::open`]; the list in force stays.
    pub fn reload_file(&self, path: impl AsRef<Path>, now: SystemTime) -> Result<Reloaded, Error> {
        let (bytes, modified) = read(path.as_ref()).map_err(|error| self.failed(error))?;
        self.reload(&bytes, modified, now)
    }
}

/// Returns the content of a file and its modification time.
fn read(path: &Path) -> Result<(Vec<u8>, SystemTime), Error> {
    let unreadable = |source: io::Error| Error::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(unreadable)?;
    let before = length_and_time(&file).map_err(unreadable)?;
    let mut bytes = Vec::new();
    (&file).take(READ_LIMIT).read_to_end(&mut bytes).map_err(unreadable)?;
    check_length(&bytes)?;
    let after = length_and_time(&file).map_err(unreadable)?;
    if before != after || before.0 != bytes.len() as u64 {
        return Err(Error::ChangedWhileRead { path: path.to_owned() });
    }
    Ok((bytes, before.1))
}

fn length_and_time(file: &File) -> io::Result<(u64, SystemTime)> {
    let metadata = file.metadata()?;
    Ok((metadata.len(), metadata.modified()?))
}
