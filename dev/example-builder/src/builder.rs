//! The building thread: at each head it begins a new block, prefetches state while orders arrive,
//! and fills the block when it is due.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use alloy::{
    primitives::{Address, address},
    providers::DynProvider,
};
use blocklist::{BlockGuard, SharedBlocklist};
use mempool_ingest::{OrderPool, order_pool::Head};
use revm::ExecuteEvm as _;
use tokio::runtime::Handle;

use crate::{
    candidates::Candidates,
    fill::{Way, fill},
    report::Summary,
    state::{NextBlock, NodeState, Reads},
};

/// The recipient of the fees, an address without an owner.
const FEE_RECIPIENT: Address = address!("0x00000000000000000000000000000000000fee00");

/// When a block is filled, in percent of the time between two heads.
const FILL_PERCENT: u32 = 75;

/// The interval at which the thread reads the pool.
const POLL_INTERVAL: Duration = Duration::from_millis(25);

pub(crate) struct Builder {
    pub(crate) node: DynProvider,
    pub(crate) runtime: Handle,
    pub(crate) chain_id: u64,
    pub(crate) pool: OrderPool,
    pub(crate) list: SharedBlocklist,
    /// The file from which the list is reloaded before each block, if there is one.
    pub(crate) list_file: Option<PathBuf>,
    /// The time between two heads.
    pub(crate) slot: Duration,
    /// The ways of filling a block, which must agree. Ours is the last.
    pub(crate) ways: &'static [Way],
    pub(crate) stop: Arc<AtomicBool>,
}

impl Builder {
    /// Builds until it is stopped.
    pub(crate) fn run(self) -> Summary {
        let mut summary = Summary::default();
        let mut before = None;
        while let Some((head, seen_at)) = self.next_head(before) {
            before = Some(head);
            let slot_s = self.slot.as_secs_f64().round() as u64;
            let block = NextBlock::after(head, self.chain_id, FEE_RECIPIENT, slot_s);
            let now = SystemTime::now();
            let reloaded = self.list_file.as_ref().map(|path| self.list.reload_file(path, now));
            if let Some(Err(error)) = reloaded {
                eprintln!("warning: {error}; the list in force stays until its maximum age");
            }
            let is_built = match self.list.begin_block(FEE_RECIPIENT, None, now) {
                Ok(guard) => {
                    let reads = Reads::new(self.node.clone(), self.runtime.clone(), head.hash);
                    self.build(&mut summary, &block, &guard, NodeState::new(reads), seen_at)
                }
                Err(error) => {
                    eprintln!("no block: {error}");
                    false
                }
            };
            summary.missed_slots += u64::from(!is_built && !self.stop.load(Relaxed));
        }
        summary
    }

    /// Waits for a head other than `before`; `None` when the thread is stopped. If several heads
    /// arrive, the last one counts.
    fn next_head(&self, before: Option<Head>) -> Option<(Head, Instant)> {
        while !self.stop.load(Relaxed) {
            match self.pool.head() {
                Some(head) if Some(head) != before => return Some((head, Instant::now())),
                _ => thread::sleep(POLL_INTERVAL),
            }
        }
        None
    }

    /// Builds a block. Returns false if the next head arrives before the block is due, or if the
    /// thread is stopped.
    fn build(
        &self,
        summary: &mut Summary,
        block: &NextBlock,
        guard: &BlockGuard,
        mut state: NodeState,
        head_seen_at: Instant,
    ) -> bool {
        let mut pool = self.pool.subscribe(block.number());
        let mut candidates = Candidates::default();
        let due = head_seen_at + self.slot * FILL_PERCENT / 100;
        let mut prefetch_time = Duration::ZERO;
        loop {
            candidates.follow(&mut pool);
            let start = Instant::now();
            prefetch(block, &mut state, &mut candidates, due.min(start + POLL_INTERVAL));
            prefetch_time += start.elapsed();
            if self.stop.load(Relaxed) || self.pool.head() != Some(block.parent) {
                return false;
            }
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            thread::sleep(
                (start + POLL_INTERVAL).saturating_duration_since(Instant::now()).min(left),
            );
        }
        let fill = |way: &Way| fill(*way, block, guard, &candidates, &state);
        let built: Vec<_> = self.ways.iter().map(fill).collect();
        summary.add(block, candidates.all.len(), &built, prefetch_time);
        true
    }
}

/// Executes each new candidate on the parent's state, so that the state that it reads is cached
/// when the block is filled. Candidates that are not reached before the deadline are left for the
/// next call.
pub(crate) fn prefetch(
    block: &NextBlock,
    state: &mut NodeState,
    candidates: &mut Candidates,
    deadline: Instant,
) {
    let mut evm = block.evm(state, ());
    // The check is off because earlier nonces of the senders are missing.
    evm.ctx.cfg.disable_nonce_check = true;
    while Instant::now() < deadline
        && let Some(hash) = candidates.new.pop()
    {
        for tx in candidates.all.get(&hash).iter().flat_map(|candidate| &candidate.txs) {
            // The result is irrelevant, and so is a missing answer of the node: the block is filled
            // by another execution.
            let _ = evm.transact(tx.env.clone());
        }
    }
}
