//! The node over its socket, byte by byte as a client sees it.

mod client;
mod faults;
mod framing;
mod load;
mod quirks;
mod state;
