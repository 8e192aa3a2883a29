//! What the machines report by messages that are not stored.

use std::sync::Arc;

use futures::{StreamExt as _, stream::SelectAll};

use super::{Job, reader::Reader};
use crate::{
    config::{Flow, SourceConfig, Trust},
    subjects::{machine_of, seen},
    wire::MAX_REPORT_BYTES,
};

impl Reader<'_> {
    /// Passes on the reports of the machines. They are not stored: those that find no room are dropped.
    pub(super) async fn reports(&self) {
        let config = &self.run.config;
        let mut reports = SelectAll::new();
        for subject in report_subjects(config) {
            // Without a connection the session ends; a name that cannot be in a subject reports nothing.
            reports.extend(self.link.client.subscribe(subject).await);
        }
        while let Some(report) = reports.next().await {
            // Here already: what waits for the pool must be short.
            let is_report = report.headers.is_none()
                && report.payload.len() <= MAX_REPORT_BYTES
                && config.trust.covers(machine_of(&report.subject));
            if !is_report {
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

/// The subjects of the reports that a source uses. Only those: a message with malformed headers ends the
/// connection, whoever sent it.
fn report_subjects(config: &SourceConfig) -> Vec<String> {
    let of = |machine: &str| seen(config.chain_id, machine);
    match &config.trust {
        _ if config.flow != Flow::Public => Vec::new(),
        Trust::Nobody => Vec::new(),
        Trust::Everybody => vec![of("*")],
        Trust::Machines(machines) => machines.iter().map(|machine| of(machine)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ServerConfig;

    #[test]
    fn reports_are_taken_from_trusted_machines_only() {
        let config = SourceConfig::new(ServerConfig::new("nats://localhost"), 1, "one");
        let subjects = |trust| report_subjects(&config.clone().with_trust(trust));
        assert!(subjects(Trust::Nobody).is_empty());
        assert_eq!(subjects(Trust::Everybody), ["mempool.1.seen.*"]);
        let trust = Trust::Machines(["a".to_owned(), "b".to_owned()].into());
        assert_eq!(subjects(trust.clone()), ["mempool.1.seen.a", "mempool.1.seen.b"]);
        let private = config.clone().with_flow(Flow::Private).with_trust(trust);
        assert!(report_subjects(&private).is_empty());
    }
}
