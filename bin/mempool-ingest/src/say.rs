//! What the command itself says on stderr: lines of text, or with `--log-format json` one JSON object a line.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    error::Error,
    fmt,
    panic::PanicHookInfo,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use serde::Serialize;
use serde_json::json;
use tracing_subscriber::fmt::{
    format::Writer,
    time::{FormatTime as _, SystemTime},
};

use crate::{args::as_typed, output};

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

/// Writes a line, as `eprintln!` does, and never waits for whoever reads stderr.
macro_rules! say {
    ($($text:tt)*) => { $crate::say::line("INFO", format_args!($($text)*)) };
}

/// Writes a line of a warning.
macro_rules! say_warning {
    ($($text:tt)*) => { $crate::say::line("WARN", format_args!($($text)*)) };
}

pub(crate) use {say, say_warning};

/// Writes a line of an error, with its causes.
pub(crate) fn say_error(error: &dyn Error) {
    line("ERROR", format_args!("{}", as_typed(with_causes(error))));
}

/// The text of an error, with those causes that it does not hold.
pub(crate) fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let because = error.to_string();
        if !text.contains(&because) {
            text = format!("{text}: {because}");
        }
        cause = error.source();
    }
    text
}

/// Writes panics as errors. The hook of the standard library writes to stderr itself, and would wait for its reader.
pub(crate) fn say_panics() {
    std::panic::set_hook(Box::new(|panic: &PanicHookInfo<'_>| {
        let backtrace = Backtrace::capture();
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("without a name");
        if backtrace.status() == BacktraceStatus::Captured {
            line("ERROR", format_args!("thread {name}: {panic}\n{backtrace}"));
        } else {
            line("ERROR", format_args!("thread {name}: {panic}"));
        }
    }));
}

pub(crate) fn line(level: &str, text: fmt::Arguments<'_>) {
    let before = match level {
        "INFO" => "",
        "WARN" => "warning: ",
        _ => "error: ",
    };
    object(level, &json!({ "message": text.to_string() }), || format!("{before}{text}"));
}

/// Writes an object, or the text that stands for it.
pub(crate) fn object(level: &str, fields: &impl Serialize, text: impl FnOnce() -> String) {
    if !JSON.load(Relaxed) {
        return output::line(format!("{}\n", text()).as_bytes());
    }
    let mut timestamp = String::new();
    // A string takes what is written.
    let _ = SystemTime.format_time(&mut Writer::new(&mut timestamp));
    let line = json!({
        "timestamp": timestamp, "level": level, "target": "mempool_ingest_cli", "fields": fields,
    });
    output::line(format!("{line}\n").as_bytes());
}
