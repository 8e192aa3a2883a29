//! JSON-RPC: from a body to its calls, and their results.

pub(crate) mod dispatch;
pub(crate) mod envelope;
