//! Pings a connection that is silent, and ends one that stays silent.

use std::{
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::time::sleep;

use super::{Connection, Listings};
use crate::{error::LossReason, limits::Limits};

/// How often a connection without an answer to its ping is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Pings the connection with `eth_blockNumber` after [`Limits::ping_interval`] of silence, and ends it when
/// nothing has come for [`Limits::ping_timeout`] after that. Any message counts: geth may answer late while
/// it announces. Returns when the connection has ended.
pub(crate) async fn keep_alive(
    connection: Arc<Connection>,
    limits: Limits,
    listings: Arc<Listings>,
) {
    let ended = connection.ended.wait();
    let keep_alive = async {
        loop {
            let silent_at = connection.heard_at() + limits.ping_interval;
            let left = silent_at.saturating_duration_since(Instant::now());
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
    let pinged = Instant::now();
    // Its time-out is below. One call waits at a time: alloy keeps each until it is answered.
    let mut call = pin!(connection.call("eth_blockNumber", (), Duration::MAX));
    let mut is_answered = false;
    let mut patience = Duration::ZERO;
    loop {
        tokio::select! {
            // A message that has come counts before the time that has passed.
            biased;
            _ = &mut call, if !is_answered => is_answered = true,
            () = sleep(LOOK_AGAIN) => {}
        }
        if connection.heard_at() >= pinged {
            return;
        }
        // The list of the pool may have ended since.
        patience = listings.patience(limits).max(patience);
        if pinged.elapsed() >= limits.ping_timeout + patience {
            return connection.end(LossReason::Unresponsive(pinged.elapsed()));
        }
    }
}
