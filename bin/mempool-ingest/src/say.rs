//! What the command itself says on stderr: lines of text, or with `--log-format json` one JSON object a line.

use std::{
    error::Error,
    fmt,
    io::{self, Write as _, stderr},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use serde::Serialize;
use serde_json::json;
use tracing_subscriber::fmt::{
    format::Writer,
    time::{FormatTime as _, SystemTime},
};

/// A process has one stderr.
static JSON: AtomicBool = AtomicBool::new(false);

/// The form of the log and of these lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
#[cfg_attr(feature = "config", derive(serde::Deserialize), serde(rename_all = "snake_case"))]
pub(crate) enum Format {
    #[default]
    Text,
    #[cfg(feature = "config")]
    Json,
}

impl Format {
    /// Of all lines from now on.
    pub(crate) fn set(self) {
        JSON.store(self != Self::Text, Relaxed);
    }
}

/// Writes a line, as `eprintln!` does. A stderr that nobody reads is no reason to panic.
macro_rules! say {
    ($($text:tt)*) => {{
        // Who closed stderr wants to read nothing.
        let _ = $crate::say::line("INFO", format_args!($($text)*));
    }};
}

/// Writes a line of a warning.
macro_rules! say_warning {
    ($($text:tt)*) => {{
        // As above.
        let _ = $crate::say::line("WARN", format_args!($($text)*));
    }};
}

pub(crate) use {say, say_warning};

/// Writes a line of an error, with those causes that its text does not hold.
pub(crate) fn say_error(error: &dyn Error) {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let because = error.to_string();
        if !text.contains(&because) {
            text = format!("{text}; because: {because}");
        }
        cause = error.source();
    }
    // As above.
    let _ = line("ERROR", format_args!("{text}"));
}

pub(crate) fn line(level: &str, text: fmt::Arguments<'_>) -> io::Result<()> {
    let before = match level {
        "INFO" => "",
        "WARN" => "warning: ",
        _ => "error: ",
    };
    object(level, &json!({ "message": text.to_string() }), || format!("{before}{text}"))
}

/// Writes an object, or the text that stands for it.
pub(crate) fn object(
    level: &str,
    fields: &impl Serialize,
    text: impl FnOnce() -> String,
) -> io::Result<()> {
    if !JSON.load(Relaxed) {
        return writeln!(stderr().lock(), "{}", text());
    }
    let mut timestamp = String::new();
    // A string takes what is written.
    let _ = SystemTime.format_time(&mut Writer::new(&mut timestamp));
    let line = json!({
        "timestamp": timestamp, "level": level, "target": "mempool_ingest_cli", "fields": fields,
    });
    writeln!(stderr().lock(), "{line}")
}
