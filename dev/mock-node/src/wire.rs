//! A connection's bytes, without a socket: requests out of what is read, and what waits to be written.

mod framing;
mod outbox;

pub(crate) use framing::Splitter;
pub(crate) use outbox::{Freeze, Message, Next, Outbox};
