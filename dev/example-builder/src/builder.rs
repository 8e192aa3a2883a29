//! The thread that builds: at each head it starts a new block, prefetches state while orders arrive, and fills the
//! block when it is due.

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

/// Gets the fees: an address without an owner.
const FEE_RECIPIENT: Address = address!("0x00000000000000000000000000000000000fee00");

/// When the block is filled, in percent of the time between two heads.
const FILL_AT_PERCENT: u32 = 75;

/// Time between two looks at the pool.
const LOOK: Duration = Duration::from_millis(25);

pub(crate) struct Builder {
    pub(crate) node: DynProvider,
    pub(crate) runtime: Handle,
    pub(crate) chain_id: u64,
    pub(crate) pool: OrderPool,
    pub(crate) list: SharedBlocklist,
    /// Where the list is read again before each block, if it is in a file.
    pub(crate) list_file: Option<PathBuf>,
    /// The time between two heads.
    pub(crate) slot: Duration,
    /// One way of filling, or both, which must agree; ours is the last.
    pub(crate) ways: &'static [Way],
    pub(crate) stop: Arc<AtomicBool>,
}

impl Builder {
    /// Builds until it is stopped.
    pub(crate) fn run(self) -> Summary {
        let mut summary = Summary::default();
        let mut before = None;
        while let Some((head, at)) = self.next_head(before) {
            before = Some(head);
            let slot_s = self.slot.as_secs_f64().round() as u64;
            let block = NextBlock::after(head, self.chain_id, FEE_RECIPIENT, slot_s);
            let now = SystemTime::now();
            let reloaded = self.list_file.as_ref().map(|it| self.list.reload_file(it, now));
            if let Some(Err(error)) = reloaded {
                eprintln!("warning: {error}; the list in force stays until its maximum age");
            }
            let is_built = match self.list.begin_block(FEE_RECIPIENT, None, now) {
                Ok(guard) => {
                    let reads = Reads::new(self.node.clone(), self.runtime.clone(), head.hash);
                    self.build(&mut summary, &block, &guard, NodeState::new(reads), at)
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

    /// Waits for another head than that; `None` when it is stopped. If several come, the last one counts.
    fn next_head(&self, before: Option<Head>) -> Option<(Head, Instant)> {
        while !self.stop.load(Relaxed) {
            match self.pool.head() {
                Some(head) if Some(head) != before => return Some((head, Instant::now())),
                _ => thread::sleep(LOOK),
            }
        }
        None
    }

    /// False when the next head comes before the block is due, or it is stopped.
    fn build(
        &self,
        summary: &mut Summary,
        block: &NextBlock,
        guard: &BlockGuard,
        mut state: NodeState,
        head_at: Instant,
    ) -> bool {
        let mut pool = self.pool.subscribe(block.number());
        let mut candidates = Candidates::default();
        let (mut spent, due) = (Duration::ZERO, head_at + self.slot * FILL_AT_PERCENT / 100);
        loop {
            candidates.follow(&mut pool);
            let start = Instant::now();
            prefetch(block, &mut state, &mut candidates, due.min(start + LOOK));
            spent += start.elapsed();
            if self.stop.load(Relaxed) || self.pool.head() != Some(block.parent) {
                return false;
            }
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            thread::sleep((start + LOOK).saturating_duration_since(Instant::now()).min(left));
        }
        let fill = |way: &Way| fill(*way, block, guard, &candidates, &state);
        let built: Vec<_> = self.ways.iter().map(fill).collect();
        summary.add(block, candidates.all.len(), &built, spent);
        true
    }
}

/// Executes the new candidates alone on the parent's state, so that what they read is cached when the block is filled.
/// Those that are not reached `until` then wait for the next time.
pub(crate) fn prefetch(
    block: &NextBlock,
    state: &mut NodeState,
    candidates: &mut Candidates,
    until: Instant,
) {
    let mut evm = block.evm(state, ());
    // Earlier nonces of the senders are missing.
    evm.ctx.cfg.disable_nonce_check = true;
    while Instant::now() < until
        && let Some(hash) = candidates.new.pop()
    {
        for tx in candidates.all.get(&hash).iter().flat_map(|candidate| &candidate.txs) {
            // What it comes to does not matter, nor whether the node answers: the block will tell.
            let _ = evm.transact(tx.env.clone());
        }
    }
}
