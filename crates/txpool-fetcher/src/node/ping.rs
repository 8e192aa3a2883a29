//! Pings a connection that is silent, and ends it if it stays silent.

use std::{
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::time::sleep;

use super::{Connection, Listings};
use crate::{error::LossReason, limits::Limits};

/// How often a connection without a response to its ping is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Pings the connection with `eth_blockNumber` after [`Limits::ping_interval`] of silence, and ends
/// it if no message comes for [`Limits::ping_timeout`] after that. Any message counts, because geth
/// may respond late while it announces. Returns when the connection has ended.
pub(crate) async fn keep_alive(
    connection: Arc<Connection>,
    limits: Limits,
    listings: Arc<Listings>,
) {
    let ended = connection.ended.wait();
    let keep_alive = async {
        loop {
            let ping_at = connection.last_message_at() + limits.ping_interval;
            let left = ping_at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                ping(&connection, &limits, &listings).await;
            } else {
                sleep(left).await;
            }
        }
    };
    tokio::select! {
        // The order is irrelevant: the other branch never ends.
        _ = ended => {}
        () = keep_alive => {}
    }
}

/// Pings, and waits until a message comes or the connection has ended.
async fn ping(connection: &Connection, limits: &Limits, listings: &Listings) {
    let pinged_at = Instant::now();
    // The loop below is the time-out. There is one call at a time, because alloy keeps each until
    // it has a response.
    let mut call = pin!(connection.call("eth_blockNumber", (), Duration::MAX));
    let mut is_answered = false;
    let mut patience = Duration::ZERO;
    loop {
        tokio::select! {
            // A message that has come counts before the time that has passed.
            biased;
            _ = &mut call, if !is_answered => is_answered = true,
            () = sleep(CHECK_INTERVAL) => {}
        }
        if connection.last_message_at() >= pinged_at {
            return;
        }
        // The maximum, because the list of the pool may have ended since.
        patience = listings.patience(limits).max(patience);
        if pinged_at.elapsed() >= limits.ping_timeout + patience {
            return connection.end(LossReason::Unresponsive(pinged_at.elapsed()));
        }
    }
}
