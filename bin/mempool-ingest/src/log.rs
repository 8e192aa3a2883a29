//! The log: on stderr, or among the events of the live view while that is shown.

use std::{
    collections::VecDeque,
    io::{self, Write},
    sync::{Arc, Mutex, MutexGuard},
    time::{SystemTime, UNIX_EPOCH},
};

use tracing_subscriber::{EnvFilter, fmt::MakeWriter};

/// Lines kept for the live view, more than a screen has. The oldest is dropped first; `--plain`
/// prints all of them.
const MAX_LINES: usize = 200;

#[derive(Clone, Debug, Default)]
pub(crate) struct Log(Arc<Mutex<Option<VecDeque<String>>>>);

impl Log {
    /// Installs the subscriber. For a live view, the library's info lines are logged too.
    pub(crate) fn install(live: bool) -> Self {
        let log = Self::default();
        let default = match live {
            true => {
                "warn,txpool_fetcher=info,load_control=info,mempool_ingest=info,order_stream=info,alloy_transport_ipc=off"
            }
            false => "warn,alloy_transport_ipc=off",
        };
        let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| default.into());
        let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(log.clone());
        match live {
            true => subscriber.with_ansi(false).with_target(false).without_time().init(),
            false => subscriber.init(),
        }
        log
    }

    fn lines(&self) -> MutexGuard<'_, Option<VecDeque<String>>> {
        self.0.lock().expect("nobody panics with it")
    }

    /// From now on lines are kept, and not written to stderr.
    pub(crate) fn keep(&self) {
        *self.lines() = Some(VecDeque::new());
    }

    /// Lines are written to stderr again.
    pub(crate) fn release(&self) {
        *self.lines() = None;
    }

    pub(crate) fn kept(&self) -> Vec<String> {
        self.lines().iter().flatten().cloned().collect()
    }
}

/// Collects one line, which the subscriber writes in one piece.
pub(crate) struct LineWriter(Log);

impl Write for LineWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut lines = self.0.lines();
        let Some(lines) = &mut *lines else { return io::stderr().write(bytes) };
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let (hours, minutes) = (seconds / 3_600 % 24, seconds / 60 % 60);
        let text = String::from_utf8_lossy(bytes);
        if lines.len() == MAX_LINES {
            lines.pop_front();
        }
        lines.push_back(format!("{hours:02}:{minutes:02}:{:02} {}", seconds % 60, text.trim_end()));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = LineWriter;

    fn make_writer(&self) -> LineWriter {
        LineWriter(self.clone())
    }
}
