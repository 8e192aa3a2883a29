//! Tests of the node over its socket, with the bytes that a client sees.

mod client;
mod faults;
mod framing;
mod load;
mod quirks;
mod state;
