//! The client for `eth_getRawTransactionByHash`, the only call on the hot path. Entry: [`open`], and
//! `submit` of one connection. It does not know what is kept with a request.
//!
//! ```text
//!  who has a hash                                         thread mempool-request
//!  submit: an id, bytes into the outbox
//!  flush: one send for all requests at hand --> node ---> read, split, parse,
//!                                                         decode, recover, deliver; time out, ping
//! ```
//! All other calls of a source, which are few, go over a [`Connection`](crate::connection::Connection).
//! These connections are opened together, and when one is lost all are replaced.
//!
//! A request is an entry of a map: no task, timer or channel belongs to it. When the node ends a connection, or sends
//! a value above 32 MiB, the response to one of the requests in flight on it may be the cause. Each of them is sent
//! again over a connection of its own, so the culprit is found and no other request is lost with it.
//!
//! # Locks
//! | lock | who takes it | for how long |
//! |---|---|---|
//! | requests, outbox (in `client`) | `mempool-announce` and `mempool-io` to submit and send; the connection's thread to remove the request of a response or one that is late, and to send | a few fields; the outbox during one non-blocking send |
//!
//! The connections in use are in a `watch` channel of tokio's, whose lock all its readers share and a
//! flush holds while it sends.

// Bytes from outside are read here: none of them may cause a panic.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::expect_used))]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::string_slice, clippy::unreachable))]

mod client;
mod reader;
mod set;

#[cfg(test)]
mod tests;

pub(crate) use self::{
    reader::Responses,
    set::{PoolQueues, RequestConnections, RequestSet, Requests, next_of, open},
};
