//! Prints the command's own lines to stderr: text, or with `--log-format json` one JSON object per
//! line.

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

/// Whether lines are JSON objects. It is static because a process has one stderr.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// The format of the log and of the command's own lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
#[cfg_attr(feature = "config", derive(serde::Deserialize), serde(rename_all = "snake_case"))]
pub(crate) enum Format {
    #[default]
    Text,
    #[cfg(feature = "config")]
    Json,
}

impl Format {
    /// Uses this format for all lines from now on.
    pub(crate) fn set(self) {
        IS_JSON.store(self != Self::Text, Relaxed);
    }
}

/// Prints a line, as `eprintln!` does, but never waits for the reader of stderr.
macro_rules! print_line {
    ($($text:tt)*) => { $crate::print::print("INFO", format_args!($($text)*)) };
}

/// Prints a warning.
macro_rules! print_warning {
    ($($text:tt)*) => { $crate::print::print("WARN", format_args!($($text)*)) };
}

pub(crate) use {print_line, print_warning};

/// Prints an error with its causes.
pub(crate) fn print_error(error: &dyn Error) {
    print("ERROR", format_args!("{}", as_typed(with_causes(error))));
}

/// Returns the text of an error, followed by those causes that it does not contain already.
pub(crate) fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let cause_text = error.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        cause = error.source();
    }
    text
}

/// Prints panics as errors. The standard library's hook writes to stderr itself, and so would wait
/// for its reader.
pub(crate) fn print_panics() {
    std::panic::set_hook(Box::new(|panic: &PanicHookInfo<'_>| {
        let backtrace = Backtrace::capture();
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("without a name");
        if backtrace.status() == BacktraceStatus::Captured {
            print("ERROR", format_args!("thread {name}: {panic}\n{backtrace}"));
        } else {
            print("ERROR", format_args!("thread {name}: {panic}"));
        }
    }));
}

/// Prints a line of this level.
pub(crate) fn print(level: &str, text: fmt::Arguments<'_>) {
    let prefix = match level {
        "INFO" => "",
        "WARN" => "warning: ",
        _ => "error: ",
    };
    print_object(level, &json!({ "message": text.to_string() }), || format!("{prefix}{text}"));
}

/// Prints the fields as a JSON object, or the text in their place.
pub(crate) fn print_object(level: &str, fields: &impl Serialize, text: impl FnOnce() -> String) {
    if !IS_JSON.load(Relaxed) {
        return output::write_line(format!("{}\n", text()).as_bytes());
    }
    let mut timestamp = String::new();
    // Writing to a string cannot fail.
    let _ = SystemTime.format_time(&mut Writer::new(&mut timestamp));
    let line = json!({
        "timestamp": timestamp, "level": level, "target": "mempool_ingest_cli", "fields": fields,
    });
    output::write_line(format!("{line}\n").as_bytes());
}
