//! The client for the one call of the hot path, `eth_getRawTransactionByHash`.
//!
//! ```text
//!  thread mempool-io                                      thread mempool-request
//!  submit: id from the slab, bytes into the outbox
//!  flush: one send for all that is at hand ---> node ---> read, split, parse, take out of the slab,
//!  sweep: what has no answer in time                      decode, recover, deliver
//! ```
//! No task, timer or channel belongs to a single request. All other calls, which are few, go over
//! alloy's service on a connection of their own.

mod connection;
mod frame;
mod greeting;
mod outbox;
mod pulse;
mod response;
mod slab;
mod ws;

#[cfg(test)]
mod tests;

pub(crate) use self::{
    connection::{Answer, Answers, RequestConnection},
    frame::{Frame, Frames},
    greeting::Greeting,
    response::{Payload, RpcError},
    slab::NotInserted,
    ws::{WsStream, open as open_ws},
};
