//! What the chain took out of the pool: heads in order, missed ones fetched, reorgs noticed.

use std::{sync::Arc, time::Duration};

use alloy_eips::{calc_next_block_base_fee, eip1559::BaseFeeParams};
use alloy_primitives::{Address, B256, U64, U128, map::AddressHashMap};
use serde::Deserialize;
use tokio::{sync::mpsc, time::sleep};

use crate::{
    error::CallError,
    fetch::FetchContext,
    machine::Event,
    mined::Link,
    sink::{HeadUpdate, TransactionSink},
    sync::lock,
    workers::Urgency,
};

/// Missed heads that are fetched one by one, newest to oldest, before they are given up: as many
/// as are remembered.
const MAX_ANCESTORS: usize = 64;

/// Times a block is asked for when the node does not have it yet, 20 ms apart. On real nodes it
/// was never missing right after its head.
const BLOCK_TRIES: u32 = 4;

/// Full blocks that may wait to be read for nonces. A dev chain that mines for every transaction
/// can be faster than we read: then nonces are skipped (counted), hashes never.
const FULL_BLOCKS_WAITING: usize = 64;

/// The header fields that all nodes send with `newHeads`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Header {
    pub(crate) number: U64,
    pub(crate) hash: B256,
    parent_hash: B256,
    timestamp: U64,
    gas_used: U64,
    gas_limit: U64,
    #[serde(default)]
    base_fee_per_gas: Option<U128>,
    #[serde(default)]
    miner: Address,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Block {
    number: U64,
    hash: B256,
    parent_hash: B256,
    timestamp: U64,
    gas_used: U64,
    gas_limit: U64,
    #[serde(default)]
    base_fee_per_gas: Option<U128>,
    #[serde(default)]
    miner: Address,
    transactions: Vec<B256>,
}

#[derive(Debug, Deserialize)]
struct FullBlock {
    transactions: Vec<Nonce>,
}

#[derive(Debug, Deserialize)]
struct Nonce {
    from: Address,
    nonce: U64,
}

/// A head as a source announced it.
#[derive(Debug)]
pub(crate) struct Announced {
    pub(crate) source: usize,
    pub(crate) header: Header,
    /// Where to tell of reorgs and missed heads.
    pub(crate) events: mpsc::Sender<Event>,
}

/// Follows the heads of all sources, one after another.
pub(crate) async fn follow<S: TransactionSink>(
    core: Arc<FetchContext<S>>,
    mut heads: mpsc::Receiver<Announced>,
) {
    let (full, waiting) = mpsc::channel(FULL_BLOCKS_WAITING);
    core.tasks.spawn(read_nonces(Arc::clone(&core), waiting));
    let mut leader = None;
    while let Some(head) = heads.recv().await {
        let follower = Follower { core: &core, full: &full };
        follower.on_head(head, &mut leader).await;
    }
}

struct Follower<'a, S> {
    core: &'a Arc<FetchContext<S>>,
    full: &'a mpsc::Sender<(usize, B256)>,
}

impl<S: TransactionSink> Follower<'_, S> {
    async fn on_head(&self, head: Announced, leader: &mut Option<usize>) {
        let Announced { source, header, events } = head;
        let number = header.number.to::<u64>();
        let (relation, latest) = {
            let mined = lock(&self.core.mined);
            (mined.relate(header.hash, header.parent_hash), mined.latest())
        };
        if relation == Link::Repeat {
            return;
        }
        // Two nodes may be on two branches for a while. The branch changes when the source that
        // gave the latest head says so, or when another one is further.
        let further = latest.is_none_or(|(latest, _)| number > latest);
        let leads =
            leader.is_none_or(|leader| leader == source || !self.core.requests.is_up(leader));
        if !further && !leads {
            return;
        }
        *leader = Some(source);
        let mut chain = Vec::new();
        if relation == Link::Gap {
            chain = self.ancestors(source, header.parent_hash).await;
        }
        let missed = relation == Link::Gap;
        match self.block(source, header.hash).await {
            Some(block) => chain.push(block),
            // The head counts, though what it mined is not known: an audit finds out.
            None => chain.push(header.into_empty_block()),
        }
        let mut undone = 0;
        for block in chain {
            undone += self.apply(block);
            // Recovered ancestors' nonces are worth as much as the head's.
        }
        let latest = lock(&self.core.mined).latest();
        if let Some((_, hash)) = latest
            && self.full.try_send((source, hash)).is_err()
        {
            skipped();
        }
        let event = if undone > 0 || matches!(relation, Link::Reorg(_)) {
            Event::Reorg
        } else if missed {
            Event::MissedHeads
        } else {
            return;
        };
        // The source may have ended; then nobody needs to know.
        let _ = events.send(event).await;
    }

    /// The blocks before a head whose parent is not known, oldest first.
    async fn ancestors(&self, source: usize, mut hash: B256) -> Vec<Block> {
        let mut chain = Vec::new();
        let oldest = lock(&self.core.mined).oldest();
        while chain.len() < MAX_ANCESTORS && !lock(&self.core.mined).knows(hash) {
            let Some(block) = self.block(source, hash).await else { break };
            if oldest.is_some_and(|oldest| block.number.to::<u64>() < oldest) {
                break;
            }
            hash = block.parent_hash;
            chain.push(block);
        }
        chain.reverse();
        chain
    }

    async fn block(&self, source: usize, hash: B256) -> Option<Block> {
        for attempt in 0..BLOCK_TRIES {
            if attempt > 0 {
                sleep(Duration::from_millis(20)).await;
            }
            if let Ok(answer) = block_json(self.core, source, hash, false).await
                && let Ok(Some(block)) = serde_json::from_str(answer.get())
            {
                return Some(block);
            }
        }
        tracing::warn!(%hash, "the node does not give the block of its own head");
        None
    }

    /// Tells of one block; returns how many transactions were un-mined.
    fn apply(&self, block: Block) -> usize {
        let number = block.number.to();
        let undone =
            lock(&self.core.mined).push(number, block.hash, block.parent_hash, &block.transactions);
        for hash in &block.transactions {
            self.core.seen.mined(*hash);
        }
        for hash in &undone {
            // Pending again, or gone: the comparison that follows tells which.
            self.core.seen.settle(*hash, None);
        }
        self.core.sink.head(&HeadUpdate {
            number,
            hash: block.hash,
            parent_hash: block.parent_hash,
            timestamp: block.timestamp.to(),
            next_base_fee_wei: next_base_fee(&block),
            gas_limit: block.gas_limit.to(),
            fee_recipient: block.miner,
            mined: block.transactions,
        });
        undone.len()
    }
}

impl Header {
    fn into_empty_block(self) -> Block {
        Block {
            number: self.number,
            hash: self.hash,
            parent_hash: self.parent_hash,
            timestamp: self.timestamp,
            gas_used: self.gas_used,
            gas_limit: self.gas_limit,
            base_fee_per_gas: self.base_fee_per_gas,
            miner: self.miner,
            transactions: Vec::new(),
        }
    }
}

/// EIP-1559, with mainnet's parameters.
fn next_base_fee(block: &Block) -> Option<u64> {
    let base_fee = u64::try_from(block.base_fee_per_gas?.to::<u128>()).unwrap_or(u64::MAX);
    let (used, limit) = (block.gas_used.to(), block.gas_limit.to());
    Some(calc_next_block_base_fee(used, limit, base_fee, BaseFeeParams::ethereum()))
}

async fn block_json<S>(
    core: &FetchContext<S>,
    source: usize,
    hash: B256,
    full: bool,
) -> Result<Box<serde_json::value::RawValue>, CallError> {
    let link = core.requests.pick(source).await;
    link.call("eth_getBlockByHash", (hash, full), core.config.call_timeout).await
}

fn skipped() {
    metrics::counter!("mempool_fetcher_skipped_full_blocks_total").increment(1);
}

/// Reads full blocks for the nonces of their senders. Slow on every node (170 to 660 ms for a
/// large block), so never in the way of the head itself.
async fn read_nonces<S: TransactionSink>(
    core: Arc<FetchContext<S>>,
    mut blocks: mpsc::Receiver<(usize, B256)>,
) {
    loop {
        let next = tokio::select! {
            () = core.stop.cancelled() => return,
            next = blocks.recv() => next,
        };
        let Some((source, hash)) = next else { return };
        let answer = tokio::select! {
            () = core.stop.cancelled() => return,
            answer = block_json(&core, source, hash, true) => answer,
        };
        let Ok(answer) = answer else { continue };
        let shared = Arc::clone(&core);
        // Parsing 2 MB takes some milliseconds: not on the thread of the sockets.
        let queued = core.workers.run(Urgency::Deferrable, core.tasks.token(), async move {
            let Ok(Some(block)) = serde_json::from_str::<Option<FullBlock>>(answer.get()) else {
                tracing::debug!(%hash, "full block without senders and nonces");
                return;
            };
            let mut next = AddressHashMap::<u64>::default();
            for Nonce { from, nonce } in block.transactions {
                let after = nonce.to::<u64>().saturating_add(1);
                let slot = next.entry(from).or_insert(after);
                *slot = (*slot).max(after);
            }
            let next: Vec<_> = next.into_iter().collect();
            lock(&shared.mined).nonces(hash, &next);
            shared.sink.nonces(hash, &next);
        });
        if !queued {
            skipped();
        }
    }
}
