//! What is recorded comes back; what a file claims is not believed.

mod archive;
mod files;
mod hostile;
mod killed;
mod round_trip;
mod sources;
