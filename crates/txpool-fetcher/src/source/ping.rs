//! Whether a connection lives.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_primitives::U64;
use tokio::{sync::mpsc, time::sleep};

use super::{Message, status::SourceShared, tell};
use crate::{
    connection::Connection,
    error::{CallError, LossReason},
    machine::{Event, Role},
};

/// Requests the block number on one connection, again and again.
pub(super) struct Pinger {
    pub(super) every: Duration,
    pub(super) limit: Duration,
    /// Longest time for which the node may list its pool.
    pub(super) list_limit: Duration,
    pub(super) shared: Arc<SourceShared>,
    pub(super) messages: mpsc::Sender<Message>,
}

impl Pinger {
    /// Returns when the connection was given up.
    pub(super) async fn run(&self, role: Role, connection: &Connection) {
        // When the first ping was sent that had no answer yet.
        let mut silent_since = None;
        loop {
            sleep(self.every).await;
            let asked = *silent_since.get_or_insert_with(Instant::now);
            let listing = self.shared.is_listing();
            let answer = connection.call("eth_blockNumber", (), self.limit).await;
            if !matches!(answer, Err(CallError::Timeout(_))) {
                silent_since = None;
            }
            match answer {
                Ok(answer) if role == Role::Request => {
                    if let Ok(number) = serde_json::from_str::<U64>(answer.get()) {
                        let event = Message::Event(Event::SawBlock(number.to()));
                        tell(&self.messages, event).await;
                    }
                }
                // An error is an answer too.
                Ok(_) | Err(CallError::Rpc { .. }) => {}
                Err(CallError::ConnectionLost) => return,
                // Busy sending us something else is alive.
                Err(CallError::Timeout(_)) if connection.last_frame() >= asked => {
                    silent_since = None
                }
                Err(CallError::Timeout(_)) => {
                    let mut limit = self.limit;
                    // While it lists its pool, a node may be slow with everything: anvil answers
                    // nothing for 12 s with 60,000 transactions.
                    if listing || self.shared.is_listing() {
                        limit += self.list_limit;
                    }
                    let silent = asked.elapsed();
                    if silent >= limit {
                        connection.kill(LossReason::Unresponsive(silent));
                        return;
                    }
                }
            }
        }
    }
}
