//! Publishes the head of the chain to readers.

use std::sync::Arc;

use arc_swap::ArcSwap;
use chain_view::Head;

/// A head and the sequence number of its event.
type Published = Option<(u64, Arc<Head>)>;

/// The last two published heads, the latest first. They are written under the pool's lock, before
/// the log's head is published, and read without a lock.
#[derive(Debug, Default)]
pub(crate) struct Heads(ArcSwap<[Published; 2]>);

impl Heads {
    pub(crate) fn latest(&self) -> Option<Head> {
        self.0.load()[0].as_ref().map(|(_, head)| **head)
    }

    pub(crate) fn publish(&self, seq: u64, head: Arc<Head>) {
        let before = self.0.load()[0].clone();
        self.0.store(Arc::new([Some((seq, head)), before]));
    }

    /// Reads a position in the log, and the head as of that position, which is the latest head that
    /// was published before it.
    ///
    /// The position is read first. So the latest head was published before that position, or its
    /// event is just being published, and the head before it applies. Only if two heads are
    /// published in between, the position is read again.
    pub(crate) fn as_of(&self, position: impl Fn() -> u64) -> (u64, Option<Arc<Head>>) {
        loop {
            let position = position();
            let heads = self.0.load();
            let is_before = |head: &Published| head.as_ref().is_none_or(|(seq, _)| *seq < position);
            let found = heads.iter().find(|head| is_before(head));
            if let Some(head) = found {
                return (position, head.as_ref().map(|(_, head)| Arc::clone(head)));
            }
        }
    }
}
