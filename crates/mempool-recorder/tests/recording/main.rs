//! Recordings are read back as they were written, and the claims of a file are not trusted.

mod archive;
mod files;
mod hostile;
mod killed;
mod round_trip;
mod sources;
