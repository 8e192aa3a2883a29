//! Pings, which show whether a connection is alive.

use std::time::Instant;

use alloy_primitives::U64;
use tokio::time::sleep;

use super::{SourceShared, machine::Role};
use crate::{
    chain::says_syncing,
    connection::{Connection, Ends as _},
    error::{CallError, LossReason},
    gap::Report,
    limits::Limits,
};

/// Pings one connection by requesting the block number at regular intervals. Returns when the connection is
/// lost, or after closing it because the node was silent too long.
pub(super) async fn ping(
    role: Role,
    connection: &Connection,
    limits: &Limits,
    SourceShared { audits, backlog, .. }: &SourceShared,
) {
    // When the oldest ping without a response was sent.
    let mut silent_since = None;
    loop {
        sleep(limits.ping_interval).await;
        let pinged_at = *silent_since.get_or_insert_with(Instant::now);
        let patience = audits.listings.patience(limits);
        let response = connection.call("eth_blockNumber", (), limits.ping_timeout).await;
        // A node that is busy sending us other data is alive.
        if matches!(response, Err(CallError::Timeout(_))) && connection.last_frame() < pinged_at {
            let limit = limits.ping_timeout + patience.max(audits.listings.patience(limits));
            let silent = pinged_at.elapsed();
            if silent >= limit {
                return connection.end(LossReason::Unresponsive(silent));
            }
            continue;
        }
        silent_since = None;
        match response {
            Ok(number) if role == Role::Request => {
                let block = serde_json::from_str::<U64>(number.get()).ok().map(|block| block.to());
                let says_syncing = says_syncing(connection, limits.ping_timeout).await;
                backlog.report(Report::Pinged { block, says_syncing }).await;
            }
            Err(CallError::ConnectionLost | CallError::Suspect) => return,
            // An error response also shows that the node is alive.
            _ => {}
        }
    }
}
