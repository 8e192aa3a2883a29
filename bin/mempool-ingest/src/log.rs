//! The log: on stderr, or among the events of the live view while that is shown.
//!
//! The lock of the kept lines is held for one line by any thread that logs, and for a copy by the thread of the view.

use std::{
    collections::VecDeque,
    io::{self, Write},
    sync::Arc,
};

use parking_lot::Mutex;
use tracing_subscriber::{
    Layer as _, filter::Targets, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

use crate::{output, say::Format};

/// Lines kept for the live view, more than a screen has. The oldest is dropped first; `--plain`
/// prints all of them.
const MAX_LINES: usize = 200;

/// alloy-pubsub logs three errors for each lost connection, which the fetcher reports with its reason. What the transports
/// log says why they ended it.
const QUIET: &str = "warn,alloy_pubsub=off";
/// For a live view, the library's info lines are logged too.
const LIVE: &str = "warn,alloy_pubsub=off,txpool_fetcher=info,load_control=info,mempool_ingest=info,order_stream=info";

#[derive(Clone, Debug, Default)]
pub(crate) struct Log(Arc<Mutex<Option<VecDeque<String>>>>);

impl Log {
    /// Installs the subscriber. Fails if `RUST_LOG` is set and holds no directives.
    pub(crate) fn install(format: Format, live: bool) -> Result<Self, String> {
        let default = if live { LIVE } else { QUIET };
        let wanted = std::env::var("RUST_LOG").ok().filter(|wanted| !wanted.is_empty());
        let wanted = wanted.as_deref().unwrap_or(default);
        let filter: Targets =
            wanted.parse().map_err(|error| format!("RUST_LOG is `{wanted}`: {error}"))?;
        let log = Self::default();
        let writer = log.clone();
        let lines = tracing_subscriber::fmt::layer()
            .with_ansi(false)
            .with_target(!live)
            .with_writer(move || writer.clone());
        let lines = match format {
            #[cfg(feature = "config")]
            Format::Json => lines.json().boxed(),
            Format::Text => lines.boxed(),
        };
        tracing_subscriber::registry().with(lines).with(filter).init();
        Ok(log)
    }

    /// From now on lines are kept, and not written to stderr.
    pub(crate) fn keep(&self) {
        *self.0.lock() = Some(VecDeque::new());
    }

    /// Lines are written to stderr again.
    pub(crate) fn release(&self) {
        *self.0.lock() = None;
    }

    pub(crate) fn kept(&self) -> Vec<String> {
        self.0.lock().iter().flatten().cloned().collect()
    }
}

/// Of one line, which the subscriber writes in one piece.
impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut lines = self.0.lock();
        let Some(lines) = &mut *lines else {
            output::line(bytes);
            return Ok(bytes.len());
        };
        let text = String::from_utf8_lossy(bytes);
        if lines.len() == MAX_LINES {
            lines.pop_front();
        }
        // It begins with the time, as in 2026-01-31T23:59:59.999999Z: the second is enough here.
        let parts = text.get(11..19).zip(text.get(27..));
        let (time, rest) = parts.unwrap_or(("", &text));
        lines.push_back(format!("{time}{}", rest.trim_end()));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
