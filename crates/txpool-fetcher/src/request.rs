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
mod outbox;
mod pulse;
mod response;
mod slab;
mod ws;

#[cfg(test)]
mod tests;

pub(crate) use self::{
    connection::{Answer, Answers, RequestConnection},
    response::{Payload, RpcError},
    slab::NotInserted,
};

use std::{
    io,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio_tungstenite::tungstenite;

use crate::error::LossReason;

/// Plain data behind it, valid after each statement; never held across an await, a system call that
/// may wait, or a call of [`Answers`].
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn io_loss(error: &io::Error) -> LossReason {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => LossReason::Closed,
        kind => LossReason::Io(kind),
    }
}

fn ws_loss(error: &tungstenite::Error) -> LossReason {
    match error {
        tungstenite::Error::Io(error) => io_loss(error),
        tungstenite::Error::ConnectionClosed | tungstenite::Error::AlreadyClosed => {
            LossReason::Closed
        }
        tungstenite::Error::Capacity(_) => LossReason::Oversized(0),
        other => LossReason::Garbage(other.to_string().chars().take(120).collect()),
    }
}
