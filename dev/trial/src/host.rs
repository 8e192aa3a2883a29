//! The clock and the threads of a machine.
//!
//! A library that is loaded into a machine's process adds an offset to the kernel's wall clock and
//! refuses threads, as the conductor writes while the process runs. Time spans are not touched:
//! they are of the monotonic clock. Threads are refused here because Linux does not bound those of
//! root.

use std::{
    fs, io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

/// The library's source; it is compiled at the start of a run.
const SOURCE: &str = include_str!("host.c");

/// The bytes of the page that the library reads: the offset in nanoseconds, then whether threads
/// are refused.
const PAGE_BYTES: usize = 16;
const REFUSES_THREADS: u64 = 8;

/// How a machine's clock goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClockFault {
    /// It jumps by this many milliseconds.
    Step(i64),
    /// It gains this many milliseconds a second, or loses them.
    Drift(i64),
}

/// Compiles the library into this folder, with the system's C compiler.
pub(crate) fn compile(folder: &Path) -> io::Result<PathBuf> {
    let (source, library) = (folder.join("host.c"), folder.join("host.so"));
    fs::write(&source, SOURCE)?;
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source).arg("-ldl");
    if !compiler.status()?.success() {
        return Err(io::Error::other("cc cannot compile host.c"));
    }
    Ok(library)
}

/// The page of one machine.
#[derive(Debug)]
pub(crate) struct Host {
    library: PathBuf,
    page: PathBuf,
    /// The clock's offset at `drift_since`.
    offset_ms: i64,
    drift_ms_per_s: i64,
    drift_since: Instant,
}

impl Host {
    pub(crate) fn new(library: &Path, page: PathBuf) -> io::Result<Self> {
        fs::write(&page, [0; PAGE_BYTES])?;
        let library = library.to_owned();
        Ok(Self { library, page, offset_ms: 0, drift_ms_per_s: 0, drift_since: Instant::now() })
    }

    /// Returns the environment variables of a process that runs on this machine.
    pub(crate) fn variables(&self) -> Vec<(String, PathBuf)> {
        let variables = [("LD_PRELOAD", &self.library), ("TRIAL_HOST", &self.page)];
        variables.map(|(name, path)| (name.to_owned(), path.clone())).to_vec()
    }

    /// Returns how far the clock is ahead, in milliseconds.
    fn offset_ms(&self) -> i64 {
        offset_ms(self.offset_ms, self.drift_ms_per_s, self.drift_since.elapsed())
    }

    pub(crate) fn disturb_clock(&mut self, fault: ClockFault) -> io::Result<()> {
        (self.offset_ms, self.drift_since) = (self.offset_ms(), Instant::now());
        match fault {
            ClockFault::Step(step_ms) => self.offset_ms += step_ms,
            ClockFault::Drift(ms_per_s) => self.drift_ms_per_s = ms_per_s,
        }
        self.write_offset()
    }

    /// Sets the clock right.
    pub(crate) fn correct_clock(&mut self) -> io::Result<()> {
        (self.offset_ms, self.drift_ms_per_s) = (0, 0);
        self.write_offset()
    }

    /// Shows the present offset to the machine's process. While the clock drifts it must be written
    /// again and again.
    pub(crate) fn write_offset(&self) -> io::Result<()> {
        self.write(0, self.offset_ms() * 1_000_000)
    }

    /// From now on the machine's process can start no thread, or can again.
    pub(crate) fn refuse_threads(&self, is_refused: bool) -> io::Result<()> {
        self.write(REFUSES_THREADS, i64::from(is_refused))
    }

    pub(crate) const fn is_drifting(&self) -> bool {
        self.drift_ms_per_s != 0
    }

    /// Writes in place, since the process has mapped the file.
    fn write(&self, offset: u64, value: i64) -> io::Result<()> {
        let file = fs::File::options().write(true).open(&self.page)?;
        file.write_all_at(&value.to_ne_bytes(), offset)
    }
}

const fn offset_ms(begin_ms: i64, drift_ms_per_s: i64, elapsed: Duration) -> i64 {
    begin_ms + drift_ms_per_s * elapsed.as_millis() as i64 / 1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(folder: &Path) -> Host {
        let library = compile(folder).expect("a C compiler");
        Host::new(&library, folder.join("page")).expect("a file")
    }

    /// Another process reads it: the library must be loaded before the C library.
    #[test]
    fn a_process_reads_the_clock_that_the_conductor_sets() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let mut host = host(folder.path());
        let mut ahead_s = |fault| {
            host.disturb_clock(fault).expect("the page is there");
            let mut date = Command::new("date");
            let date = date.arg("+%s").envs(host.variables()).output().expect("date runs");
            let shown: i64 = String::from_utf8(date.stdout).unwrap().trim().parse().unwrap();
            shown - std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() as i64
        };
        assert!((3_599..=3_601).contains(&ahead_s(ClockFault::Step(3_600_000))));
        assert!((-6..=-4).contains(&ahead_s(ClockFault::Step(-3_605_000))));
        assert_eq!(offset_ms(-5_000, 20, Duration::from_secs(10)), -4_800);
    }

    #[test]
    fn a_process_starts_no_thread_while_the_conductor_refuses_them() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let host = host(folder.path());
        let program = folder.path().join("thread");
        let source = folder.path().join("thread.c");
        let text = "#include <pthread.h>\n\
            static void *run(void *argument) { return argument; }\n\
            int main(void) { pthread_t thread; return pthread_create(&thread, 0, run, 0) != 0; }\n";
        fs::write(&source, text).unwrap();
        let compiled = Command::new("cc").arg("-o").arg(&program).arg(&source).status();
        assert!(compiled.unwrap().success());
        for is_refused in [false, true, false] {
            host.refuse_threads(is_refused).unwrap();
            let status = Command::new(&program).envs(host.variables()).status().unwrap();
            assert_eq!(status.success(), !is_refused);
        }
    }
}
