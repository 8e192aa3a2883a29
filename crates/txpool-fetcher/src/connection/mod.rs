//! Connections to a node. Entry: [`dial`], for subscriptions and calls, and [`open()`], for fetches.
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
//! WebSocket is reached through a Unix socket too, behind which a task passes its messages on.
//!
//! # Locks
//! | lock | who takes it | for how long |
//! |---|---|---|
//! | requests, outbox (in `client`) | `mempool-announce` and `mempool-io` to submit and send; the connection's thread to remove the request of a response or one that is late, and to send | a few fields; the outbox during one non-blocking send |
//! | a time (in `Listings`) | a comparison when its list ends; the connection's thread when the node is silent | to copy it |

// Bytes from outside are read here: none of them may cause a panic.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::expect_used))]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::string_slice, clippy::unreachable))]

mod calls;
mod client;
mod frame;
mod open;
mod read;
mod response;
mod socket;
#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;

pub use self::open::NodeInfo;
pub(crate) use self::{
    calls::{Call, Listener},
    client::{Connection, Open},
    frame::{Frames, Scan},
    open::{ChainId, dial, not_ethereum, open},
    read::{Listings, Responses},
    response::{Incoming, read_error},
    socket::{BlockingSocket, open_socket},
};
use crate::error::LossReason;

/// A connection for subscriptions, and for all calls but the fetches.
pub(crate) type Calls = Open<Call>;

/// Whether a connection has ended, and why. The first reason stands.
#[derive(Default)]
pub(crate) struct End {
    reason: OnceLock<LossReason>,
    /// Cancelled when the reason is set.
    is_set: CancellationToken,
}

impl End {
    /// Sets the reason, unless there is one already.
    pub(crate) fn set(&self, reason: LossReason) {
        // The error is the reason that stands.
        let _ = self.reason.set(reason);
        self.is_set.cancel();
    }

    pub(crate) fn reason(&self) -> Option<LossReason> {
        self.reason.get().cloned()
    }

    /// Waits for the end, and returns the reason. Cancel safe.
    pub(crate) async fn wait(&self) -> LossReason {
        self.is_set.cancelled().await;
        self.reason().unwrap_or(LossReason::Closed)
    }
}

/// Where a source's announcements are read.
pub(crate) struct Subscription {
    pub(crate) node: NodeInfo,
    pub(crate) ended: Arc<End>,
    /// To a node: for hashes and heads, and that for objects, which ends with it.
    pub(crate) connections: Vec<Arc<Calls>>,
}

/// The first `max` characters.
fn clip(text: &str, max: usize) -> String {
    text.chars().take(max).collect()
}
