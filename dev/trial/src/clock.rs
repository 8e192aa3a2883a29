//! Clocks of machines: a library that is loaded into a machine's process adds an offset to the kernel's wall clock, which
//! the conductor changes while the process runs. Time spans are not touched: they are of the monotonic clock.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

/// The library's source; it is compiled at the start of a run.
const SOURCE: &str = include_str!("clock.c");

/// How a machine's clock goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClockFault {
    /// It jumps by so many milliseconds.
    Step(i64),
    /// It runs ahead by so many milliseconds a second, or falls behind.
    Drift(i64),
}

/// Compiles the library into this folder, with the system's C compiler.
pub(crate) fn compile(folder: &Path) -> io::Result<PathBuf> {
    let (source, library) = (folder.join("clock.c"), folder.join("clock.so"));
    fs::write(&source, SOURCE)?;
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source);
    if !compiler.status()?.success() {
        return Err(io::Error::other("cc cannot compile clock.c"));
    }
    Ok(library)
}

/// A machine's clock.
#[derive(Debug)]
pub(crate) struct Clock {
    library: PathBuf,
    /// Holds the offset.
    file: PathBuf,
    offset_ms: i64,
    drift_ms_per_s: i64,
    /// When the drift began.
    since: Instant,
}

impl Clock {
    pub(crate) fn new(library: &Path, file: PathBuf) -> io::Result<Self> {
        let library = library.to_owned();
        let clock = Self { library, file, offset_ms: 0, drift_ms_per_s: 0, since: Instant::now() };
        fs::write(&clock.file, [0; 8])?;
        Ok(clock)
    }

    /// What a process that shall have this clock must find in its environment.
    pub(crate) fn variables(&self) -> Vec<(String, PathBuf)> {
        let variables = [("LD_PRELOAD", &self.library), ("TRIAL_CLOCK", &self.file)];
        variables.map(|(name, path)| (name.to_owned(), path.clone())).to_vec()
    }

    /// How far the clock is ahead, in milliseconds.
    pub(crate) fn offset_ms(&self) -> i64 {
        offset_ms(self.offset_ms, self.drift_ms_per_s, self.since.elapsed())
    }

    pub(crate) fn strike(&mut self, fault: ClockFault) -> io::Result<()> {
        (self.offset_ms, self.since) = (self.offset_ms(), Instant::now());
        match fault {
            ClockFault::Step(by_ms) => self.offset_ms += by_ms,
            ClockFault::Drift(ms_per_s) => self.drift_ms_per_s = ms_per_s,
        }
        self.tick()
    }

    /// It is right again.
    pub(crate) fn set_right(&mut self) -> io::Result<()> {
        (self.offset_ms, self.drift_ms_per_s) = (0, 0);
        self.tick()
    }

    /// Shows the offset of now to the machine's process; to be called again and again while the clock drifts.
    pub(crate) fn tick(&self) -> io::Result<()> {
        // In place: the process has mapped the file.
        use std::os::unix::fs::FileExt as _;
        let file = fs::File::options().write(true).open(&self.file)?;
        file.write_all_at(&(self.offset_ms() * 1_000_000).to_ne_bytes(), 0)
    }

    pub(crate) const fn is_drifting(&self) -> bool {
        self.drift_ms_per_s != 0
    }
}

const fn offset_ms(begin_ms: i64, drift_ms_per_s: i64, elapsed: Duration) -> i64 {
    begin_ms + drift_ms_per_s * elapsed.as_millis() as i64 / 1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of another process: the library must be there before the C library.
    #[test]
    fn a_process_reads_the_clock_that_the_conductor_sets() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let library = compile(folder.path()).expect("a C compiler");
        let mut clock = Clock::new(&library, folder.path().join("offset")).expect("a file");
        let mut ahead_s = |fault| {
            clock.strike(fault).expect("the file is there");
            let mut date = Command::new("date");
            let date = date.arg("+%s").envs(clock.variables()).output().expect("date runs");
            let shown: i64 = String::from_utf8(date.stdout).unwrap().trim().parse().unwrap();
            shown - std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() as i64
        };
        assert!((3_599..=3_601).contains(&ahead_s(ClockFault::Step(3_600_000))));
        assert!((-6..=-4).contains(&ahead_s(ClockFault::Step(-3_605_000))));
        assert_eq!(offset_ms(-5_000, 20, Duration::from_secs(10)), -4_800);
    }
}
