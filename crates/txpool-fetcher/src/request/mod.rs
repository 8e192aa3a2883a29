//! The client for `eth_getRawTransactionByHash`, the only call on the hot path. Entry: [`open`], and
//! `submit` of one connection. It does not know what is kept with a request.
//!
//! ```text
//!  who has a hash                                         thread mempool-request
//!  submit: id from the slab, bytes into the outbox
//!  flush: one send for all requests at hand --> node ---> read, split, parse, remove from the slab,
//!  sweep: requests without a timely response              decode, recover, deliver
//! ```
//! All other calls of a source, which are few, go over a [`Connection`](crate::connection::Connection).
//! These connections are opened together, and when one is lost all are replaced.
//!
//! - A request is an entry of a slab. Its id holds the entry's index and how often that index was
//!   used, so a late response matches no entry. No task, timer, channel or allocation belongs to a
//!   request.
//! - All requests have the same time-out, so those in flight form a queue by age, and one task looks
//!   at its head. A request times out only after everything that had arrived was read, so neither a
//!   blocking sink nor a busy thread of ours makes a node look late.
//! - A response above 32 MiB ends its request and is skipped.
//! - When the node ends a connection, the response to one of the requests in flight on it may be the
//!   cause. Each of them is sent again over a connection of its own, so the culprit is found and no
//!   other request is lost with it.
//! - The socket is in blocking mode for its reader; requests are sent with `MSG_DONTWAIT`. Bytes that
//!   the socket does not take wait in a bounded outbox, and only then is the socket registered with
//!   the runtime.
//! - A response in the common form is parsed by hand and borrowed from the buffer. Anything else goes
//!   to `serde_json`, which alone decides what is valid JSON.
//!
//! # Locks
//! | lock | who takes it | for how long |
//! |---|---|---|
//! | slab, outbox, ping (in `client`) | `mempool-announce` and `mempool-io` to submit, send and time out; the connection's thread to remove the request of a response | a few fields; the outbox during one non-blocking send |
//!
//! The connections in use are in a `watch` channel of tokio's, whose lock all its readers share and a
//! flush holds while it sends.

// Bytes from outside are read here: none of them may cause a panic.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::expect_used))]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::string_slice, clippy::unreachable))]

mod client;
mod open;
mod outbox;
mod pool_queues;
mod pulse;
mod set;
mod slab;
mod ws;

#[cfg(test)]
mod tests;

pub(crate) use self::{
    client::Responses,
    open::{Opened, open},
    pool_queues::{PoolQueues, PoolRequests},
    set::{RequestConnections, Requests},
    slab::NotInserted,
};
