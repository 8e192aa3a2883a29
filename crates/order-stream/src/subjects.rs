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

/// The subjects of one machine, made once. A lane is the index of one of them.
#[derive(Debug)]
pub(crate) struct Subjects {
    flow: Flow,
    all: Vec<Subject>,
}

impl Subjects {
    pub(crate) fn new(flow: Flow, chain_id: u64, machine: &str, shards: u16) -> Self {
        let kinds: Vec<String> = match flow {
            Flow::Public => {
                (0..shards).map(|shard| format!("tx.{shard}")).chain(["head".into()]).collect()
            }
            Flow::Private => vec!["bundle".into(), "cancel".into()],
        };
        let subject = |kind| Subject::from(format!("mempool.{chain_id}.{kind}.{machine}"));
        Self { flow, all: kinds.into_iter().map(subject).collect() }
    }

    pub(crate) fn of(&self, lane: usize) -> &Subject {
        &self.all[lane]
    }

    pub(crate) const fn lanes(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn lane_with(&self, subject: &str) -> Option<usize> {
        self.all.iter().position(|this| this.as_str() == subject)
    }

    /// The lane of an item. Private transactions have that of bundles.
    pub(crate) fn lane_of(&self, item: &Item) -> usize {
        match (item, self.flow) {
            (Item::Order { order, .. }, Flow::Public) => {
                shard_of(order.id().hash(), self.all.len() - 1)
            }
            (Item::Order { .. }, Flow::Private) => 0,
            (Item::Cancellation(_) | Item::CancelPrivate { .. }, _) => 1,
            (Item::Head(_), _) => self.all.len() - 1,
        }
    }

    /// The index of the stream that stores a lane.
    pub(crate) fn stream_of(&self, lane: usize) -> usize {
        match self.flow {
            // Heads are in the stream of the first shard.
            Flow::Public if lane < self.all.len() - 1 => lane,
            _ => 0,
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
