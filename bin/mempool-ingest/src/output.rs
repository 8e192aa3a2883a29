//! What the command writes to stderr: one bounded queue, and one thread that waits for whoever reads it.
//!
//! A reader that stops reading, as a full pipe does, holds up that thread and nothing else. Lines for which the queue has no
//! room are dropped and counted.
//!
//! `written` is locked by the writing thread for an addition, and by [`flush`], which waits on its condition variable.

use std::{
    io::{self, Write},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::{Condvar, Mutex};
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};

/// Lines that wait for the reader of stderr; the newest are dropped first. A line of the log has some 200 bytes, so they take
/// about a megabyte.
const MAX_LINES: usize = 4_096;

/// A process has one stderr.
static STDERR: OnceLock<Output> = OnceLock::new();

fn stderr() -> &'static Output {
    STDERR.get_or_init(|| Output::start(io::stderr(), MAX_LINES))
}

/// Starts the thread, so that nothing depends on starting one later.
pub(crate) fn start() {
    stderr();
}

/// Queues a line, which ends with a line feed. Never waits.
pub(crate) fn line(line: &[u8]) {
    stderr().line(line);
}

/// Waits until all lines that are queued have been written, for at most this time. Call it before the process ends.
pub(crate) fn flush(limit: Duration) {
    stderr().flush(limit);
}

/// The number of lines that were dropped because nobody read stderr.
pub(crate) fn dropped() -> u64 {
    stderr().dropped()
}

/// Whether a line could not be written because the reader of stderr has closed its end.
pub(crate) fn is_closed() -> bool {
    stderr().progress.is_closed.load(Relaxed)
}

struct Output {
    queue: NonBlocking,
    dropped: ErrorCounter,
    /// Lines that were queued or dropped.
    lines: AtomicU64,
    progress: Arc<Progress>,
    /// Never dropped: its `drop` prints to stdout when the queue is full, which may be the same full pipe.
    _guard: WorkerGuard,
}

#[derive(Default)]
struct Progress {
    /// Lines that were written, or failed.
    written: Mutex<u64>,
    changed: Condvar,
    is_closed: AtomicBool,
}

impl Output {
    fn start(writer: impl Write + Send + 'static, max_lines: usize) -> Self {
        let progress = Arc::<Progress>::default();
        let counting = Counting { writer, progress: Arc::clone(&progress) };
        let builder = NonBlockingBuilder::default().lossy(true).thread_name("mempool-log");
        let (queue, guard) = builder.buffered_lines_limit(max_lines).finish(counting);
        let dropped = queue.error_counter();
        Self { queue, dropped, lines: AtomicU64::new(0), progress, _guard: guard }
    }

    fn line(&self, line: &[u8]) {
        self.lines.fetch_add(1, Relaxed);
        // A full queue is counted, and is no error.
        let _ = self.queue.clone().write(line);
    }

    fn dropped(&self) -> u64 {
        self.dropped.dropped_lines() as u64
    }

    fn flush(&self, limit: Duration) {
        let is_behind = |written: &mut u64| *written + self.dropped() < self.lines.load(Relaxed);
        // Whether it was in time is of no interest: the process ends.
        let mut written = self.progress.written.lock();
        let _ = self.progress.changed.wait_while_for(&mut written, is_behind, limit);
    }
}

/// Counts the lines that were written, on the thread that writes them.
struct Counting<W> {
    writer: W,
    progress: Arc<Progress>,
}

impl<W: Write> Write for Counting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes).map(|()| bytes.len())
    }

    /// Of one line.
    fn write_all(&mut self, line: &[u8]) -> io::Result<()> {
        let written = self.writer.write_all(line);
        if let Err(error) = &written
            && error.kind() == io::ErrorKind::BrokenPipe
        {
            self.progress.is_closed.store(true, Relaxed);
        }
        *self.progress.written.lock() += 1;
        self.progress.changed.notify_all();
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::mpsc::{Receiver, SyncSender, sync_channel},
        time::Instant,
    };

    use super::*;

    /// Writes a line when the test takes it.
    struct Slow(SyncSender<Vec<u8>>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.send(bytes.to_vec()).map_err(|_| io::ErrorKind::BrokenPipe)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn output(max_lines: usize) -> (Output, Receiver<Vec<u8>>) {
        let (sender, lines) = sync_channel(0);
        (Output::start(Slow(sender), max_lines), lines)
    }

    #[test]
    fn lines_that_nobody_reads_are_dropped_and_counted_and_hold_up_nobody() {
        let (output, lines) = output(8);
        for number in 0..100 {
            output.line(format!("{number}\n").as_bytes());
        }
        // Eight in the queue, and at most one that the thread holds.
        assert!((91..=92).contains(&output.dropped()), "{}", output.dropped());
        output.flush(Duration::from_millis(1));
        let kept = 100 - output.dropped();
        for number in 0..kept {
            assert_eq!(lines.recv().expect("it is written"), format!("{number}\n").as_bytes());
        }
        let start = Instant::now();
        output.flush(Duration::from_secs(60));
        assert!(start.elapsed() < Duration::from_secs(60), "nothing waits any more");
    }

    #[test]
    fn a_reader_that_has_gone_is_noticed() {
        let (output, lines) = output(8);
        drop(lines);
        output.line(b"lost\n");
        output.flush(Duration::from_secs(60));
        assert!(output.progress.is_closed.load(Relaxed));
    }
}
