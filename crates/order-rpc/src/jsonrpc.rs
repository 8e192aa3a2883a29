//! JSON-RPC: parses a body into calls, runs them, and writes their responses.

mod dispatch;
mod envelope;

pub(crate) use self::dispatch::Dispatcher;
