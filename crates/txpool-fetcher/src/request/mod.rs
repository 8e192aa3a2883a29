//! The client for `eth_getRawTransactionByHash`, the only call on the hot path.
//!
//! ```text
//!  thread mempool-io                                      thread mempool-request
//!  submit: id from the slab, bytes into the outbox
//!  flush: one send for all requests at hand --> node ---> read, split, parse, remove from the slab,
//!  sweep: requests without a timely answer                decode, recover, deliver
//! ```
//! No task, timer or channel belongs to a single request. All other calls, which are few, go over
//! alloy's service on a connection of their own.

mod client;
mod frame;
mod greeting;
mod open;
mod outbox;
mod pulse;
mod response;
mod set;
mod slab;
mod ws;

#[cfg(test)]
mod tests;

pub(crate) use self::{
    client::{Answer, Answers, RequestConnection},
    frame::{Frame, Frames},
    greeting::Greeting,
    open::{Opened, dial_requests, watch_requests},
    response::{Payload, RpcError},
    set::{RequestConnections, RequestSet, Requests},
    slab::NotInserted,
    ws::{WsStream, open as open_ws},
};
