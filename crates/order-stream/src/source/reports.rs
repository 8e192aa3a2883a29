//! What the machines report by messages that are not stored.

use std::sync::Arc;

use futures::{StreamExt as _, stream::SelectAll};

use super::{Job, reader::Reader};
use crate::{
    config::Flow,
    subjects::seen,
    wire::MAX_REPORT_BYTES,
};

impl Reader<'_> {
    /// Passes on the reports of the machines. They are not stored: those that find no room are dropped.
    pub(super) async fn reports(&self) {
        let config = &self.run.config;
        let mut reports = SelectAll::new();
        if config.flow == Flow::Public {
            // Without a connection the session ends.
            reports.extend(self.link.client.subscribe(seen(config.chain_id, "*")).await);
        }
        while let Some(report) = reports.next().await {
            // Here already: what waits for the pool must be short.
            if report.headers.is_some() || report.payload.len() > MAX_REPORT_BYTES {
                continue;
            }
            let bytes = u32::try_from(report.length).unwrap_or(u32::MAX);
            let permit = Arc::clone(&self.run.bytes).try_acquire_many_owned(bytes);
            let sent = permit
                .is_ok_and(|permit| self.run.queue.try_send(Job::Report(report, permit)).is_ok());
            if !sent {
                tracing::debug!("a report was dropped");
            }
        }
        std::future::pending().await
    }
}
