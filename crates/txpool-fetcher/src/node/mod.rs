//! A node over alloy: its connections, and what they are used for. Entry: [`dial`].
//!
//! ```text
//!  subscription connection   alloy-pubsub: one broadcast buffer for each subscription --> announce/
//!  request connections       alloy-rpc-client: calls, raw transactions              <--> fetch/, chain/, audit/
//! ```
//! alloy opens the socket, frames and matches messages, and runs on the runtime of the fetcher. Three
//! things are ours, because alloy does not do them:
//!
//! - **A connection never reconnects by itself** ([`connector`]). alloy's own reconnect sends the requests
//!   in flight again, also the one whose response ended the connection, and drops every notification in
//!   between without a signal. Here a loss ends the subscriptions and fails the calls, and the source
//!   sees it, dials again and compares the pools.
//! - **Every call has a time-out, and every connection is pinged** ([`ping`]). alloy has neither on IPC.
//! - **A reason for the end** ([`End`]). alloy's transport logs why it ended a connection (`alloy_transport_ipc`,
//!   `alloy_transport_ws`) and tells its user only that it did.
//!
//! Without the features `ipc` and `ws` there is no transport and no alloy client; a [`Connection`] then
//! cannot exist, and dialling a node is an error.

mod chain_id;
mod client;
#[cfg(feature = "node")]
mod connection;
#[cfg(not(feature = "node"))]
#[path = "without_transport.rs"]
mod connection;
#[cfg(feature = "node")]
mod connector;
mod dial;
mod end;
mod genesis;
mod listings;
mod meter;
mod ping;
mod requests;

use std::time::Instant;

use serde_json::value::RawValue;

pub(crate) use self::{
    chain_id::ChainId,
    connection::{Connection, Notifications, RawTransactionCall},
    dial::{Dialed, dial, not_ethereum},
    end::End,
    genesis::{Genesis, genesis_of},
    listings::{Listing, Listings},
    meter::Meter,
    ping::keep_alive,
    requests::{NodeRequests, PoolQueues, RequestConnections, Requests},
};
pub use self::{client::NodeClient, dial::NodeInfo};

/// A notification, or the reason for none.
pub(crate) enum Notification {
    /// The `result` of a notification, and when it was read from the socket, or shortly before.
    Read(Box<RawValue>, Instant),
    /// The buffer overran, and notifications are lost. The meter knows how many.
    Lagged,
}

/// The first `max` characters.
pub(crate) fn clip(text: &str, max: usize) -> String {
    text.chars().take(max).collect()
}
