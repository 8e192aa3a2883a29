//! Reads announced heads, and passes each to the source and to the follower of the chain.

use std::sync::Arc;

use super::Backlog;
use crate::{
    chain::read_head,
    context::Context,
    gap::Report,
    node::{LastMessage, Notification, Notifications},
};

/// Longest head in bytes: a longer one counts as malformed. anvil's heads contain the hashes of
/// their transactions: 200 kB for 3,000.
const MAX_HEAD_BYTES: usize = 1024 * 1024;

/// Reads the heads of a subscription to its end. A head that is lost in the buffer is read later,
/// as an ancestor of the next one.
pub(super) async fn read(
    mut heads: Notifications,
    context: Arc<Context>,
    last_message: Arc<LastMessage>,
    backlog: Arc<Backlog>,
) {
    let resets = backlog.resets();
    while let Some(next) = heads.next().await {
        let Notification::Read(json, _) = next else { continue };
        last_message.record();
        let json = Some(json.get()).filter(|json| json.len() <= MAX_HEAD_BYTES);
        let Some(Ok(head)) = json.map(read_head) else {
            context.metrics.malformed_notifications.increment(1);
            continue;
        };
        if backlog.resets() != resets {
            // A connection to the chain that was followed before. The source has another one.
            return;
        }
        // The error means that 256 reports wait. The source reads them soon, and this head adds
        // nothing.
        let _ = backlog.reports.try_send(Report::Head(head));
        backlog.heads.push(head.into());
    }
}
