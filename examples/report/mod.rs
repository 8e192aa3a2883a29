//! The result type of `main`, which prints an error with its causes instead of its `Debug` form,
//! and the `--help` of examples without flags.

use std::{env, error::Error, fmt, iter, process};

pub(crate) type Result<T = ()> = std::result::Result<T, Report>;

/// Prints the module documentation of an example and exits, if `--help` was given.
#[allow(dead_code, reason = "an example with flags of its own has clap")]
pub(crate) fn help(source: &str) {
    if env::args().skip(1).any(|arg| ["-h", "--help"].contains(&arg.as_str())) {
        let lines = source.lines().map_while(|line| line.strip_prefix("//!"));
        lines.for_each(|line| println!("{}", line.strip_prefix(' ').unwrap_or(line)));
        process::exit(0);
    }
}

pub(crate) struct Report(Box<dyn Error>);

impl<E: Into<Box<dyn Error>>> From<E> for Report {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut written = self.0.to_string();
        // Most texts already contain that of their cause.
        for cause in iter::successors(self.0.source(), |error| (*error).source()) {
            let text = cause.to_string();
            if !written.contains(&text) {
                written = format!("{written}; because: {text}");
            }
        }
        f.write_str(&written)
    }
}
