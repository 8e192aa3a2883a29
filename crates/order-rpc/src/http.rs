//! Connections: requests in, responses out.

pub(crate) mod body;
pub(crate) mod connection;
pub(crate) mod timed;
