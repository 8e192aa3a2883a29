//! The log: written to stderr, or kept for the live view while that is shown.
//!
//! The lock of the kept lines is held for one line by a thread that logs, and for a copy by the
//! thread of the view.

use std::{
    collections::VecDeque,
    io::{self, Write},
    sync::Arc,
};

use parking_lot::Mutex;
use tracing_subscriber::{
    Layer as _, filter::Targets, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

use crate::{output, print::Format};

/// The number of lines kept for the live view, more than a screen has. The oldest are dropped
/// first.
const MAX_LINES: usize = 200;

/// The directives of plain lines. alloy-pubsub logs three errors for each lost connection, which
/// the fetcher reports with the reason.
const PLAIN_DIRECTIVES: &str = "warn,alloy_pubsub=off";

/// The directives of the live view, which has room for the libraries' info lines.
const LIVE_DIRECTIVES: &str = "warn,alloy_pubsub=off,txpool_fetcher=info,load_control=info,\
                               mempool_ingest=info,order_stream=info";

/// The log's writer. It holds the kept lines while the live view is shown, and `None` otherwise.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log(Arc<Mutex<Option<VecDeque<String>>>>);

impl Log {
    /// Installs the subscriber.
    ///
    /// # Errors
    /// `RUST_LOG` is set and is not a list of directives.
    pub(crate) fn install(format: Format, is_live: bool) -> Result<Self, String> {
        let default = if is_live { LIVE_DIRECTIVES } else { PLAIN_DIRECTIVES };
        let variable = std::env::var("RUST_LOG").ok().filter(|variable| !variable.is_empty());
        let directives = variable.as_deref().unwrap_or(default);
        let filter: Targets =
            directives.parse().map_err(|error| format!("RUST_LOG is `{directives}`: {error}"))?;
        let log = Self::default();
        let writer = log.clone();
        let lines = tracing_subscriber::fmt::layer()
            .with_ansi(false)
            .with_target(!is_live)
            .with_writer(move || writer.clone());
        let lines = match format {
            #[cfg(feature = "config")]
            Format::Json => lines.json().boxed(),
            Format::Text => lines.boxed(),
        };
        tracing_subscriber::registry().with(lines).with(filter).init();
        Ok(log)
    }

    /// Keeps lines from now on, instead of writing them to stderr.
    pub(crate) fn keep(&self) {
        *self.0.lock() = Some(VecDeque::new());
    }

    /// Writes lines to stderr again.
    pub(crate) fn release(&self) {
        *self.0.lock() = None;
    }

    /// Returns the kept lines, the oldest first.
    pub(crate) fn kept(&self) -> Vec<String> {
        self.0.lock().iter().flatten().cloned().collect()
    }
}

/// The subscriber writes each line in one call.
impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut lines = self.0.lock();
        let Some(lines) = &mut *lines else {
            output::write_line(bytes);
            return Ok(bytes.len());
        };
        let text = String::from_utf8_lossy(bytes);
        if lines.len() == MAX_LINES {
            lines.pop_front();
        }
        // A line begins with the time, as in 2026-01-31T23:59:59.999999Z. The view shows hours,
        // minutes and seconds.
        let (time, rest) = text.get(11..19).zip(text.get(27..)).unwrap_or(("", &text));
        lines.push_back(format!("{time}{}", rest.trim_end()));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
