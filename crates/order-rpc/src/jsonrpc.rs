//! JSON-RPC: from a body to its calls, and their results.

mod dispatch;
mod envelope;

pub(crate) use self::dispatch::Dispatcher;
