//! Pings, which show whether a connection is alive.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_primitives::U64;
use tokio::{sync::mpsc, time::sleep};

use super::{Message, send, status::SourceShared};
use crate::{
    connection::Connection,
    error::{CallError, LossReason},
    source::machine::{Event, Role},
};

/// Pings one connection by requesting the block number at regular intervals.
pub(super) struct Pinger {
    pub(super) every: Duration,
    pub(super) limit: Duration,
    /// How much longer the node may be silent while it lists its pool.
    pub(super) list_limit: Duration,
    pub(super) shared: Arc<SourceShared>,
    pub(super) messages: mpsc::Sender<Message>,
}

impl Pinger {
    /// Returns when the connection is lost, or after closing it because the node was silent too
    /// long.
    pub(super) async fn run(&self, role: Role, connection: &Connection) {
        // When the oldest ping without a response was sent.
        let mut silent_since = None;
        loop {
            sleep(self.every).await;
            let pinged_at = *silent_since.get_or_insert_with(Instant::now);
            let listing = self.shared.is_listing();
            let answer = connection.call("eth_blockNumber", (), self.limit).await;
            if !matches!(answer, Err(CallError::Timeout(_))) {
                silent_since = None;
            }
            match answer {
                Ok(answer) if role == Role::Request => {
                    if let Ok(number) = serde_json::from_str::<U64>(answer.get()) {
                        let event = Message::Event(Event::SawBlock(number.to()));
                        send(&self.messages, event).await;
                    }
                }
                // An error response also shows that the node is alive.
                Ok(_) | Err(CallError::Rpc { .. }) => {}
                Err(CallError::ConnectionLost) => return,
                // A node that is busy sending us other data is alive.
                Err(CallError::Timeout(_)) if connection.last_frame() >= pinged_at => {
                    silent_since = None
                }
                Err(CallError::Timeout(_)) => {
                    let mut limit = self.limit;
                    // While it lists its pool, a node may be slow with everything: anvil answers no
                    // request for 12 s with 60,000 transactions.
                    if listing || self.shared.is_listing() {
                        limit += self.list_limit;
                    }
                    let silent = pinged_at.elapsed();
                    if silent >= limit {
                        connection.kill(LossReason::Unresponsive(silent));
                        return;
                    }
                }
            }
        }
    }
}
