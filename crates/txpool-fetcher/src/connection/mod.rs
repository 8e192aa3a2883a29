//! Connections to a node. Entry: [`dial`], for subscriptions and calls, and [`open`], for fetches.
//!
//! ```text
//!  who requests                                  the reader of the connection
//!  submit: an id, bytes into the outbox
//!  flush: one send for all at hand ---------> node ---> read, split, parse; time out, ping
//!         call <-- oneshot ----------------------------- a response: to its caller
//!                                                        or a fetch: to who decodes and delivers it
//!                                                        a notification: to the listener of its subscription
//! ```
//! A fetch in flight is an entry of a map: no task, timer or channel belongs to it.
//!
//! A connection never reconnects by itself: its source must see every loss. The reader is a thread; one reads
//! both sockets of a subscription. It waits for nothing but the node, and for fetches for the sink. So a [`Listener`] must
//! not wait, and neither does a write: a request for which the socket has no room times out like one without a response. A
//! WebSocket is reached through a Unix socket too, behind which a task passes its messages on (`ws`).
//!
//! # Locks
//! | lock | who takes it | for how long |
//! |---|---|---|
//! | requests, outbox (in `client`) | `mempool-announce` and `mempool-io` to submit and send; the connection's thread to remove the request of a response or one that is late, and to send | a few fields; the outbox during one non-blocking send |

// Bytes from outside are read here: none of them may cause a panic.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::expect_used))]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::string_slice, clippy::unreachable))]

mod calls;
mod chain_id;
mod client;
mod frame;
mod open;
mod read;
mod response;
mod socket;
#[cfg(test)]
mod tests;
mod ws;

use std::sync::Arc;

use tokio::sync::watch;

pub use self::open::NodeInfo;
pub(crate) use self::{
    calls::{Call, Listener},
    chain_id::ChainId,
    client::{Connection, Open},
    frame::Frames,
    open::{dial, open, open_socket},
    read::{Listings, Responses},
    response::{Incoming, read_error},
    socket::BlockingSocket,
};
use crate::error::LossReason;

/// A connection for subscriptions, and for all calls but the fetches.
pub(crate) type Calls = Open<Call>;

/// Whether a connection has ended, and why. The first reason stands.
pub(crate) struct End(watch::Sender<Option<LossReason>>);

impl End {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(None))
    }

    /// Sets the reason, unless there is one already.
    pub(crate) fn set(&self, reason: LossReason) {
        self.0.send_if_modified(|ended| {
            let is_first = ended.is_none();
            ended.get_or_insert(reason);
            is_first
        });
    }

    pub(crate) fn reason(&self) -> Option<LossReason> {
        self.0.borrow().clone()
    }

    /// Waits for the end, and returns the reason. Cancel safe.
    pub(crate) async fn wait(&self) -> LossReason {
        let mut ended = self.0.subscribe();
        let reason = ended.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
        reason.unwrap_or(LossReason::Closed)
    }
}

/// Where a source's announcements are read.
pub(crate) struct Subscription {
    pub(crate) node: NodeInfo,
    pub(crate) ended: Arc<End>,
    /// To a node: for hashes and heads, and that for objects, which ends with it.
    pub(crate) connections: Vec<Arc<Calls>>,
}

impl Subscription {
    pub(crate) fn kill(&self, reason: LossReason) {
        match self.connections.first() {
            Some(connection) => connection.end(reason),
            None => self.ended.set(reason),
        }
    }
}

/// The first `max` characters.
fn clip(text: &str, max: usize) -> String {
    text.chars().take(max).collect()
}
