//! Writes lines to stderr through a bounded queue and a thread of its own.
//!
//! If nobody reads stderr, for example because a pipe is full, only that thread waits. Lines for
//! which the queue has no room are dropped and counted.
//!
//! The lock of `written` is taken by the writing thread for an addition, and by [`flush`], which
//! waits on its condition variable.

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

/// The number of lines that may wait for the reader of stderr. The newest are dropped first. A line
/// of the log has some 200 bytes, so they take about a megabyte.
const MAX_LINES: usize = 4_096;

/// It is static because a process has one stderr.
static STDERR: OnceLock<Output> = OnceLock::new();

fn stderr() -> &'static Output {
    STDERR.get_or_init(|| Output::start(io::stderr(), MAX_LINES))
}

/// Starts the thread now, because starting one later may fail.
pub(crate) fn start() {
    stderr();
}

/// Queues a line, which ends with a line feed. Never waits.
pub(crate) fn write_line(line: &[u8]) {
    stderr().write_line(line);
}

/// Waits until all queued lines are written, for at most this time. Call it before the process
/// ends.
pub(crate) fn flush(limit: Duration) {
    stderr().flush(limit);
}

/// Returns the number of lines that were dropped because nobody read stderr.
pub(crate) fn dropped() -> u64 {
    stderr().dropped()
}

/// Returns whether the reader of stderr has closed its end.
pub(crate) fn is_closed() -> bool {
    stderr().progress.is_closed.load(Relaxed)
}

struct Output {
    queue: NonBlocking,
    dropped: ErrorCounter,
    /// The number of lines that were queued or dropped.
    lines: AtomicU64,
    progress: Arc<Progress>,
    /// Never dropped, because its `drop` prints to stdout when the queue is full, and stdout may be
    /// the same full pipe.
    _guard: WorkerGuard,
}

#[derive(Default)]
struct Progress {
    /// The number of lines that were written, or could not be.
    written: Mutex<u64>,
    changed: Condvar,
    is_closed: AtomicBool,
}

impl Output {
    fn start(writer: impl Write + Send + 'static, max_lines: usize) -> Self {
        let progress = Arc::<Progress>::default();
        let counting = CountingWriter { writer, progress: Arc::clone(&progress) };
        let builder = NonBlockingBuilder::default().lossy(true).thread_name("mempool-log");
        let (queue, guard) = builder.buffered_lines_limit(max_lines).finish(counting);
        let dropped = queue.error_counter();
        Self { queue, dropped, lines: AtomicU64::new(0), progress, _guard: guard }
    }

    fn write_line(&self, line: &[u8]) {
        self.lines.fetch_add(1, Relaxed);
        // A full queue is no error here: it is counted.
        let _ = self.queue.clone().write(line);
    }

    fn dropped(&self) -> u64 {
        self.dropped.dropped_lines() as u64
    }

    fn flush(&self, limit: Duration) {
        let is_behind = |written: &mut u64| *written + self.dropped() < self.lines.load(Relaxed);
        // The process ends, whether or not all lines were written in time.
        let mut written = self.progress.written.lock();
        let _ = self.progress.changed.wait_while_for(&mut written, is_behind, limit);
    }
}

/// Counts the lines that its thread has written.
struct CountingWriter<W> {
    writer: W,
    progress: Arc<Progress>,
}

impl<W: Write> Write for CountingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes).map(|()| bytes.len())
    }

    /// Writes one line: the queue passes each line in one call.
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

    /// Blocks each write until the test receives the line.
    struct SlowWriter(SyncSender<Vec<u8>>);

    impl Write for SlowWriter {
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
        (Output::start(SlowWriter(sender), max_lines), lines)
    }

    #[test]
    fn unread_lines_are_dropped_and_counted_without_blocking() {
        let (output, lines) = output(8);
        for number in 0..100 {
            output.write_line(format!("{number}\n").as_bytes());
        }
        // Eight lines are in the queue, and the thread holds at most one. While it takes a line,
        // the place of that line is not free yet.
        assert!((91..=93).contains(&output.dropped()), "{}", output.dropped());
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
    fn a_closed_reader_is_noticed() {
        let (output, lines) = output(8);
        drop(lines);
        output.write_line(b"lost\n");
        output.flush(Duration::from_secs(60));
        assert!(output.progress.is_closed.load(Relaxed));
    }
}
