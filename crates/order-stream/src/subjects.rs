//! The names of subjects and streams.

use async_nats::Subject;

use crate::{config::Flow, follow::Item};

/// The stream of a flow: `MEMPOOL_<chain>_PUBLIC` or `MEMPOOL_<chain>_PRIVATE`.
#[must_use]
pub fn stream_name(flow: Flow, chain_id: u64) -> String {
    format!("MEMPOOL_{chain_id}_{}", flow.as_str().to_uppercase())
}

/// The subjects that the stream stores, of any machine.
#[must_use]
pub fn stream_subjects(flow: Flow, chain_id: u64) -> Vec<String> {
    Subjects::new(flow, chain_id, "*").both.map(|subject| subject.to_string()).into()
}

/// The two subjects on which one machine publishes a flow.
#[derive(Debug)]
pub(crate) struct Subjects {
    pub(crate) both: [Subject; 2],
}

impl Subjects {
    pub(crate) fn new(flow: Flow, chain_id: u64, machine: &str) -> Self {
        let kinds = match flow {
            Flow::Public => ["tx", "head"],
            Flow::Private => ["bundle", "cancel"],
        };
        Self { both: kinds.map(|kind| format!("mempool.{chain_id}.{kind}.{machine}").into()) }
    }

    /// The subject of an item. Private transactions have that of bundles.
    pub(crate) const fn of(&self, item: &Item) -> &Subject {
        let [orders, others] = &self.both;
        match item {
            Item::Order { .. } => orders,
            Item::Cancellation { .. } | Item::CancelPrivate { .. } | Item::Head(_) => others,
        }
    }
}

/// The machine that published on a subject: its last token.
pub(crate) fn machine_of(subject: &str) -> &str {
    subject.rsplit('.').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_stores_the_subjects_of_every_machine() {
        let of = |flow| stream_subjects(flow, 1).join(" ");
        assert_eq!(of(Flow::Public), "mempool.1.tx.* mempool.1.head.*");
        assert_eq!(of(Flow::Private), "mempool.1.bundle.* mempool.1.cancel.*");
        assert_eq!(stream_name(Flow::Public, 1), "MEMPOOL_1_PUBLIC");
        assert_eq!(machine_of("mempool.1.tx.paris"), "paris");
    }
}
