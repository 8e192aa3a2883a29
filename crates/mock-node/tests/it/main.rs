//! The node over its socket, byte by byte as a client sees it.

mod client;
mod framing;
mod load;
mod methods;
mod pool;
