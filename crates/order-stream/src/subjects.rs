//! The names of subjects and streams.

use async_nats::Subject;

use crate::config::Flow;

/// The stream of a flow: `MEMPOOL_<chain>_PUBLIC` or `MEMPOOL_<chain>_PRIVATE`.
#[must_use]
pub fn stream_name(flow: Flow, chain_id: u64) -> String {
    format!("MEMPOOL_{chain_id}_{}", flow.as_str().to_uppercase())
}

/// The subjects that the stream stores, of any machine.
#[must_use]
pub fn stream_subjects(flow: Flow, chain_id: u64) -> Vec<String> {
    subjects(flow, chain_id, "*").map(|subject| subject.to_string()).into()
}

/// The two subjects on which one machine publishes a flow: that of orders, and that of heads or cancellations.
pub(crate) fn subjects(flow: Flow, chain_id: u64, machine: &str) -> [Subject; 2] {
    let kinds = match flow {
        Flow::Public => ["tx", "head"],
        Flow::Private => ["bundle", "cancel"],
    };
    kinds.map(|kind| format!("mempool.{chain_id}.{kind}.{machine}").into())
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
    }
}
