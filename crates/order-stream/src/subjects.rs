//! The names of subjects and streams.

use alloy_primitives::B256;
use async_nats::Subject;

use crate::{config::Flow, follow::Item};

/// The stream of a flow: `MEMPOOL_<chain>_TX_<shard>` of public ones, `MEMPOOL_<chain>_PRIVATE`.
#[must_use]
pub fn stream_name(flow: Flow, chain_id: u64, shard: u16) -> String {
    match flow {
        Flow::Public => format!("MEMPOOL_{chain_id}_TX_{shard}"),
        Flow::Private => format!("MEMPOOL_{chain_id}_PRIVATE"),
    }
}

/// The subjects that the stream stores, for any machine. Heads are in the stream of the first shard.
#[must_use]
pub fn stream_subjects(flow: Flow, chain_id: u64, shard: u16) -> Vec<String> {
    let kinds: &[&str] = match (flow, shard) {
        (Flow::Public, 0) => &["tx.0.*", "head.*"],
        (Flow::Public, shard) => return vec![format!("mempool.{chain_id}.tx.{shard}.*")],
        (Flow::Private, _) => &["bundle.*", "cancel.*"],
    };
    kinds.iter().map(|kind| format!("mempool.{chain_id}.{kind}")).collect()
}

/// The subject of the reports of one machine, or with `*` of all.
pub(crate) fn seen(chain_id: u64, machine: &str) -> String {
    format!("mempool.{chain_id}.seen.{machine}")
}

/// The subjects of one machine, made once.
#[derive(Debug)]
pub(crate) struct Subjects {
    txs: Vec<Subject>,
    bundle: Subject,
    cancel: Subject,
    head: Subject,
}

impl Subjects {
    pub(crate) fn new(chain_id: u64, machine: &str, shards: u16) -> Self {
        let of = |kind: &str| Subject::from(format!("mempool.{chain_id}.{kind}.{machine}"));
        let txs = (0..shards).map(|shard| of(&format!("tx.{shard}"))).collect();
        Self { txs, bundle: of("bundle"), cancel: of("cancel"), head: of("head") }
    }

    /// The subject of an item. Private transactions have that of bundles.
    pub(crate) fn of(&self, flow: Flow, item: &Item) -> &Subject {
        match (item, flow) {
            (Item::Order(order), Flow::Public) => {
                let shard = shard_of(order.id().hash(), self.txs.len());
                &self.txs[shard]
            }
            (Item::Order(_), Flow::Private) => &self.bundle,
            (Item::Cancellation(_) | Item::CancelPrivate { .. }, _) => &self.cancel,
            (Item::Head(_), _) => &self.head,
        }
    }
}

fn shard_of(hash: &B256, shards: usize) -> usize {
    usize::from(u16::from_be_bytes([hash[0], hash[1]])) % shards.max(1)
}

/// The machine that published on a subject: its last token.
pub(crate) fn machine_of(subject: &str) -> &str {
    subject.rsplit('.').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_stores_the_subjects_of_its_shard_and_the_first_one_heads() {
        let of = |flow, shard| stream_subjects(flow, 1, shard).join(" ");
        assert_eq!(of(Flow::Public, 0), "mempool.1.tx.0.* mempool.1.head.*");
        assert_eq!(of(Flow::Public, 3), "mempool.1.tx.3.*");
        assert_eq!(of(Flow::Private, 0), "mempool.1.bundle.* mempool.1.cancel.*");
        assert_eq!(stream_name(Flow::Public, 1, 3), "MEMPOOL_1_TX_3");
        assert_eq!(machine_of("mempool.1.tx.3.paris"), "paris");
    }

    #[test]
    fn hashes_reach_every_shard_evenly() {
        let mut counts = [0; 3];
        for n in 0..=u16::MAX {
            let mut hash = B256::ZERO;
            hash[..2].copy_from_slice(&n.to_be_bytes());
            counts[shard_of(&hash, 3)] += 1;
        }
        assert!(counts.iter().all(|count| (21_845..=21_846).contains(count)), "{counts:?}");
    }
}
