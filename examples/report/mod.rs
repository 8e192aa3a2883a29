//! What `main` prints of an error: its text and its causes. An error itself would be printed as `Debug` shows it.

use std::{error::Error, fmt};

pub(crate) type Result<T = ()> = std::result::Result<T, Report>;

pub(crate) struct Report(Box<dyn Error>);

impl<E: Into<Box<dyn Error>>> From<E> for Report {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut written = self.0.to_string();
        f.write_str(&written)?;
        // Most texts hold that of their cause.
        let mut cause = self.0.source();
        while let Some(error) = cause {
            let text = error.to_string();
            if !written.contains(&text) {
                write!(f, "; because: {text}")?;
                written.push_str(&text);
            }
            cause = error.source();
        }
        Ok(())
    }
}
