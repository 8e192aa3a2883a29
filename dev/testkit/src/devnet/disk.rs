//! The disk of a server that can become full.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::PathBuf,
    process::Command,
};

use super::process::cannot;

/// The file that fills a disk.
const FILLER: &str = "filler";

/// A file system of a bounded size, in memory; unmounted when dropped. This process needs the right
/// to mount.
#[derive(Debug)]
pub struct Disk(PathBuf);

impl Disk {
    /// Mounts an empty disk of `size_mib` MiB at a path, which is created if it does not exist.
    pub fn mount(path: PathBuf, size_mib: usize) -> io::Result<Self> {
        fs::create_dir_all(&path)?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size_mib}m"), "tmpfs"]).arg(&path);
        if !mount.status().map_err(cannot("run mount"))?.success() {
            return Err(io::Error::other("mount failed: a disk that can be full needs root"));
        }
        Ok(Self(path))
    }

    /// Writes until there is no room.
    pub fn fill(&self) -> io::Result<()> {
        let mut file = File::create(self.0.join(FILLER))?;
        let block = vec![0; 64 << 10];
        loop {
            match file.write_all(&block) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::StorageFull => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Removes what [`Self::fill`] wrote.
    pub fn empty(&self) -> io::Result<()> {
        fs::remove_file(self.0.join(FILLER))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: a server that was killed a moment ago may still hold its files.
        let unmounted = Command::new("umount").arg("-l").arg(&self.0).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            eprintln!("warning: {} stays mounted", self.0.display());
        }
    }
}
