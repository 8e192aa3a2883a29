//! The thread that builds: at each head it starts a new block, prefetches state while orders
//! arrive, and fills the block when it is due.

use std::{
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::RecvTimeoutError,
    },
    time::{Duration, Instant, SystemTime},
};

use alloy_primitives::Address;
use blocklist::{AttemptInspector, BlockGuard, SharedBlocklist};
use mempool_ingest::{OrderPool, order_pool::Head};
use revm::{MainBuilder, database::CacheDB};

use crate::{
    candidates::Candidates,
    env::NextBlock,
    fill::{Built, Way, fill},
    heads::{Heads, Told},
    machine::{begin, context},
    rpc::{ReadError, Rpc},
    state::{Codes, NodeState, View},
    warm::warm,
};

/// Time between two reads of the pool: long enough that a batch is worth its round trip.
const LOOK: Duration = Duration::from_millis(25);

/// What to build, and how.
pub(crate) struct BuilderConfig {
    pub(crate) fee_recipient: Address,
    pub(crate) gas_limit: u64,
    pub(crate) fill_at_percent: u32,
    /// Time between two heads, until two have been seen.
    pub(crate) slot: Duration,
    /// One way of filling, or several that must agree.
    pub(crate) ways: Vec<Way>,
}

/// One slot: the blocks built in each way.
pub(crate) struct Slot {
    pub(crate) block: NextBlock,
    /// In the order of the configuration.
    pub(crate) built: Vec<Built>,
    /// State calls that were prefetched between the head and the block.
    pub(crate) warmed_calls: usize,
    /// Listed addresses that the strict check of the block has found: none, or a defect.
    pub(crate) found_listed: Option<String>,
}

/// A report of the building thread.
pub(crate) enum Report {
    Slot(Box<Slot>),
    /// The next head came before the block was due.
    Missed,
    /// No block: the blocklist or the node does not allow one.
    NoBlock(String),
}

pub(crate) struct Builder {
    pub(crate) config: BuilderConfig,
    pub(crate) rpc: Arc<Rpc>,
    pub(crate) pool: OrderPool,
    pub(crate) list: Arc<SharedBlocklist>,
    pub(crate) stop: Arc<AtomicBool>,
}

impl Builder {
    /// Builds until it is stopped or the node is lost.
    ///
    /// # Errors
    /// Why the node no longer answers.
    pub(crate) fn run(self, mut report: impl FnMut(Report)) -> Result<(), ReadError> {
        let chain_id = self.rpc.chain_id()?;
        let heads = Heads::follow(&self.pool)
            .map_err(|error| ReadError::Thread { kind: error.source.kind() })?;
        let codes = Codes::default();
        let mut candidates = Candidates::default();
        let mut pace = Pace { slot: self.config.slot, before: None };
        let mut next = None;
        let mut turn = 0;
        while !self.stop.load(Relaxed) {
            let head = match next.take() {
                Some(head) => head,
                None => match heads.next_timeout(LOOK) {
                    Ok(head) => head,
                    Err(RecvTimeoutError::Timeout) => continue,
                    Err(RecvTimeoutError::Disconnected) => return Err(ReadError::Closed),
                },
            };
            // If several heads wait, the last one counts.
            let (head, told) = heads.latest().unwrap_or(head);
            let slot = pace.on_head(&head, told);
            let block = NextBlock::after(
                head,
                chain_id,
                self.config.fee_recipient,
                self.config.gas_limit,
                slot.as_secs_f64().round() as u64,
            );
            let guard =
                match self.list.begin_block(self.config.fee_recipient, None, SystemTime::now()) {
                    Ok(guard) => guard,
                    Err(error) => {
                        report(Report::NoBlock(error.to_string()));
                        continue;
                    }
                };
            let due = told + slot * self.config.fill_at_percent / 100;
            let state = NodeState::new(Arc::clone(&self.rpc), block.parent.hash, Rc::clone(&codes));
            match self.build(&block, &guard, &state, &mut candidates, (&heads, due), turn) {
                Ok(Gathered::Built(slot)) => report(Report::Slot(slot)),
                Ok(Gathered::Head(head)) => {
                    report(Report::Missed);
                    next = Some(head);
                }
                Ok(Gathered::Stopped) => {}
                Err(ReadError::Closed) => return Err(ReadError::Closed),
                Err(error) => report(Report::NoBlock(error.to_string())),
            }
            turn += 1;
        }
        Ok(())
    }

    fn build(
        &self,
        block: &NextBlock,
        guard: &BlockGuard,
        state: &NodeState,
        candidates: &mut Candidates,
        (heads, due): (&Heads, Instant),
        turn: usize,
    ) -> Result<Gathered, ReadError> {
        let mut pool = self.pool.subscribe(block.number());
        candidates.renew();
        let reads_ahead = self.config.ways.iter().any(|way| !way.no_prefetch);
        let mut warmed_calls = 0;
        loop {
            candidates.follow(&mut pool);
            let new = candidates.take_new();
            if reads_ahead {
                warmed_calls += warm(state, block, new)?.calls;
            }
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            match heads.next_timeout(left.min(LOOK)) {
                Ok(head) => return Ok(Gathered::Head(head)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(ReadError::Closed),
            }
            if self.stop.load(Relaxed) {
                return Ok(Gathered::Stopped);
            }
        }
        // Includes the orders that arrived during the last prefetch.
        candidates.follow(&mut pool);
        let ways = &self.config.ways;
        let mut built: Vec<Option<Built>> = ways.iter().map(|_| None).collect();
        for step in 0..ways.len() {
            // The order rotates, so that the first way does not always fill the caches for the
            // others.
            let way = (step + turn) % ways.len();
            built[way] = Some(fill(ways[way], block, guard, candidates, state)?);
        }
        let built: Vec<Built> = built.into_iter().flatten().collect();
        let found_listed =
            built.last().and_then(|built| verify(block, guard, candidates, state, built).err());
        let block = block.clone();
        Ok(Gathered::Built(Box::new(Slot { block, built, warmed_calls, found_listed })))
    }
}

enum Gathered {
    Built(Box<Slot>),
    /// A later head came first.
    Head(Told),
    Stopped,
}

/// The recent mean time between heads.
struct Pace {
    slot: Duration,
    before: Option<(u64, Instant)>,
}

impl Pace {
    fn on_head(&mut self, head: &Head, told: Instant) -> Duration {
        let number = head.number;
        if let Some((before, at)) = self.before
            && number > before
        {
            // The mean over several blocks: heads may have come while a block was filled.
            let gap =
                told.saturating_duration_since(at) / u32::try_from(number - before).unwrap_or(1);
            self.slot = (self.slot * 3 + gap) / 4;
        }
        self.before = Some((number, told));
        self.slot
    }
}

/// Executes the finished block once more, from the beginning, under the strict check, which no way
/// of filling uses.
fn verify(
    block: &NextBlock,
    guard: &BlockGuard,
    candidates: &Candidates,
    state: &NodeState,
    built: &Built,
) -> Result<(), String> {
    let view = View { state, cached: true };
    let context = context(CacheDB::new(view), block);
    let mut evm = context.build_mainnet_with_inspector(AttemptInspector::default());
    begin(&mut evm, block).map_err(|error| error.to_string())?;
    let txs = built.txs.iter().filter_map(|(tx, _)| candidates.env_of(&tx.hash));
    let results = guard.verify_block(&mut evm, txs).map_err(|error| error.to_string())?;
    let again = results.iter().map(|result| (result.tx_gas_used(), result.is_success()));
    match again.eq(built.txs.iter().map(|(tx, _)| (tx.gas_used, tx.success))) {
        true => Ok(()),
        false => Err("executed again, the block uses other gas".into()),
    }
}
