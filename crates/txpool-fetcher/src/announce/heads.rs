//! Reads announced heads.

use std::sync::Arc;

use super::Backlog;
use crate::{
    chain::read_head,
    context::Context,
    gap::Report,
    node::{Connection, Notification, Notifications},
};

/// Longest head, else it is malformed. anvil's carry their transactions' hashes: 200 kB for 3,000.
const MAX_HEAD_BYTES: usize = 1024 * 1024;

/// Reads the heads of a subscription to its end. One that its buffer loses is read as an ancestor of the
/// next one.
pub(super) async fn read(
    mut heads: Notifications,
    context: Arc<Context>,
    connection: Arc<Connection>,
    backlog: Arc<Backlog>,
) {
    while let Some(next) = heads.next().await {
        let Notification::Read(json, _) = next else { continue };
        connection.heard();
        let json = Some(json.get()).filter(|json| json.len() <= MAX_HEAD_BYTES);
        let Some(Ok(head)) = json.map(read_head) else {
            context.metrics.malformed_notifications.increment(1);
            continue;
        };
        // The source reads its reports at once; of 256 that wait one more head is no news.
        let _ = backlog.reports.try_send(Report::Head(head));
        backlog.heads.push(head.into());
    }
}
