//! The connections to a node, over alloy. Entry: [`dial`].
//!
//! ```text
//!  subscription connection   alloy-pubsub: one broadcast buffer for each subscription --> announce/
//!  request connections       alloy-rpc-client: calls, raw transactions              <--> fetch/, chain/, audit/
//! ```
//! alloy opens the sockets, finds the ends of messages, matches responses to requests, and runs on
//! the fetcher's runtime. This module adds three things that alloy does not do:
//!
//! - **A connection never reconnects by itself** ([`connector`]). alloy's own reconnect would
//!   repeat the requests in flight, also the one whose response ended the connection, and would
//!   drop every notification in between silently. Here a loss ends the subscriptions and fails the
//!   calls. The source notices it, dials again, and compares the pools.
//! - **Every call has a time-out, and every connection is pinged** ([`ping`]). alloy does neither
//!   over IPC.
//! - **The end of a connection has a reason** ([`End`]). alloy's transports only log why they ended
//!   a connection (targets `alloy_transport_ipc` and `alloy_transport_ws`).
//!
//! | file | job |
//! |---|---|
//! | `dial.rs` | opens and probes a connection |
//! | `connection.rs`, `connector.rs` | one connection: calls, subscriptions, no reconnect |
//! | `end.rs`, `last_message.rs`, `ping.rs` | the end of a connection, and how a silent one is found |
//! | `meter.rs` | counts the notifications of a subscription |
//! | `requests.rs` | the request connections of all sources: which one carries a request |
//! | `chain_id.rs`, `listings.rs` | facts about a node that outlive its connections |
//!
//! Without the features `ipc` and `ws` there is no transport and no client of alloy. Then a
//! [`Connection`] cannot exist, and to dial a node is an error.

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
mod last_message;
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
    genesis::genesis_of,
    last_message::LastMessage,
    listings::{Listing, Listings},
    meter::Meter,
    ping::keep_alive,
    requests::{NodeRequests, PoolQueues, RequestConnections, Requests},
};
pub use self::{client::NodeClient, dial::NodeInfo};

/// A notification of a subscription, or its loss.
pub(crate) enum Notification {
    /// The `result` of a notification, and the time at which it was read from the socket.
    Read(Box<RawValue>, Instant),
    /// The buffer overran, and notifications are lost. The [`Meter`] knows how many.
    Lagged,
}

/// Returns the first `max` characters of a text.
pub(crate) fn clip(text: &str, max: usize) -> String {
    text.chars().take(max).collect()
}
