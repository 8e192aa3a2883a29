//! Fills a block with the candidates: by effective tip, each sender's nonces in order.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use alloy_primitives::{B256, map::AddressMap};
use blocklist::{BlockGuard, Blocked};

use crate::{
    bundle::{self, BundleEnd},
    candidates::{Candidate, CandidateBundle, Candidates},
    env::NextBlock,
    machine::{ByInspector, ByState, Check, Forgotten, Machine, Reads, Refusal, Remembered},
    rpc::ReadError,
    state::{NodeState, View},
};

/// The least gas of any transaction: with less left, none fits.
const MIN_TX_GAS: u64 = 21_000;

/// A way to fill a block: which steps run in the classic way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Way {
    /// An inspector under every opcode finds listed addresses.
    pub(crate) inspector: bool,
    /// Every transaction gets an EVM of its own.
    pub(crate) fresh_evm: bool,
    /// State is read only when it is needed.
    pub(crate) no_prefetch: bool,
    /// State that one transaction read is requested again by the next. Nothing is prefetched
    /// either.
    pub(crate) no_read_cache: bool,
}

impl Way {
    pub(crate) const OURS: Self =
        Self { inspector: false, fresh_evm: false, no_prefetch: false, no_read_cache: false };
    pub(crate) const CLASSIC: Self =
        Self { inspector: true, fresh_evm: true, no_prefetch: true, no_read_cache: true };

    /// From the classic way to ours, one step after the other.
    pub(crate) const STEPS: [(&'static str, Self); 5] = [
        ("classic", Self::CLASSIC),
        ("+ read cache", Self { no_read_cache: false, ..Self::CLASSIC }),
        ("+ prefetch", Self { no_read_cache: false, no_prefetch: false, ..Self::CLASSIC }),
        ("+ one EVM", Self { inspector: true, ..Self::OURS }),
        ("+ post-state check", Self::OURS),
    ];
}

/// A transaction of a built block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BuiltTx {
    pub(crate) hash: B256,
    pub(crate) gas_used: u64,
    pub(crate) success: bool,
}

/// A built block, and the results of the orders that are not in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Built {
    pub(crate) txs: Vec<(BuiltTx, SystemTime)>,
    /// Orders in it: transactions and bundles.
    pub(crate) orders: usize,
    pub(crate) bundles: usize,
    pub(crate) considered: usize,
    pub(crate) gas_used: u64,
    pub(crate) blobs: u64,
    pub(crate) tips_wei: u128,
    pub(crate) blocked: Vec<(B256, Blocked)>,
    pub(crate) invalid: usize,
    pub(crate) failed_bundles: usize,
    /// Orders left out because the node did not answer.
    pub(crate) unread: usize,
    /// Reads that an execution had to wait for.
    pub(crate) waited_for: u64,
    pub(crate) time: Duration,
}

impl Built {
    /// The part of the result on which two ways of filling must agree.
    pub(crate) fn outcome(&self) -> (Vec<BuiltTx>, Vec<B256>, u64, usize) {
        let txs = self.txs.iter().map(|(tx, _)| *tx).collect();
        let blocked = self.blocked.iter().map(|(hash, _)| *hash).collect();
        (txs, blocked, self.gas_used, self.invalid)
    }
}

/// Fills a block in one of the ways.
///
/// # Errors
/// The node did not even answer requests for the state that every block needs.
pub(crate) fn fill(
    way: Way,
    block: &NextBlock,
    guard: &BlockGuard,
    candidates: &Candidates,
    state: &NodeState,
) -> Result<Built, ReadError> {
    let cold = (way.no_prefetch || way.no_read_cache).then(|| state.cold());
    let state = cold.as_ref().unwrap_or(state);
    let view = View { state, cached: !way.no_read_cache };
    let slot = Slot { way, block, guard };
    let before = state.waited_for();
    let start = Instant::now();
    let mut built = match (way.no_read_cache, way.inspector) {
        (false, false) => slot.fill::<Remembered, ByState>(candidates, view),
        (false, true) => slot.fill::<Remembered, ByInspector>(candidates, view),
        (true, false) => slot.fill::<Forgotten, ByState>(candidates, view),
        (true, true) => slot.fill::<Forgotten, ByInspector>(candidates, view),
    }?;
    built.time = start.elapsed();
    built.waited_for = state.waited_for() - before;
    Ok(built)
}

/// A waiting candidate: the best-paying first, among equals the one known longer, then by hash.
type Turn = (u128, Reverse<SystemTime>, Reverse<B256>, Place);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// A sender's queue, and the place in it.
    Queue(usize, usize),
    Bundle(usize),
}

/// A sender's transactions by nonce, the better paying first among equals.
type Queue = Vec<(Arc<Candidate>, u128)>;

struct Slot<'b> {
    way: Way,
    block: &'b NextBlock,
    guard: &'b BlockGuard,
}

impl Slot<'_> {
    fn fill<R: Reads, C: Check>(
        &self,
        candidates: &Candidates,
        view: View<'_>,
    ) -> Result<Built, ReadError> {
        let (block, guard) = (self.block, self.guard);
        let mut machine: Machine<'_, R::Store<View<'_>>, C> =
            Machine::new(R::over(view), block, guard, self.way.fresh_evm);
        machine.begin()?;
        let queues = queues(candidates, block.base_fee_wei());
        let bundles: Vec<&CandidateBundle> = candidates
            .bundles
            .values()
            .map(Arc::as_ref)
            .filter(|bundle| bundle::may_be_in(bundle.bundle(), block))
            .collect();
        let considered = candidates.txs.len() + candidates.bundles.len();
        let mut built = Built { considered, ..Built::default() };
        let mut turns: BinaryHeap<Turn> = (0..queues.len())
            .filter_map(|queue| turn(&queues, queue, 0))
            .chain(bundles.iter().enumerate().map(|(place, bundle)| {
                let tip = bundle.tip_wei(block.base_fee_wei());
                let seen = bundle.bundle().first_seen();
                (tip, Reverse(seen), Reverse(bundle.hash), Place::Bundle(place))
            }))
            .collect();
        while let Some((tip_wei, .., place)) = turns.pop() {
            let gas_left = block.gas_limit - built.gas_used;
            if gas_left < MIN_TX_GAS {
                break;
            }
            match place {
                Place::Queue(queue, index) => {
                    let (tx, _) = &queues[queue][index];
                    let stays =
                        tx.gas_limit <= gas_left && tx.blobs <= block.max_blobs - built.blobs;
                    let end = match stays {
                        true => take(&mut machine, tx, tip_wei, &mut built),
                        false => End::Out,
                    };
                    let next = following(&queues[queue], index, end);
                    turns.extend(next.and_then(|index| turn(&queues, queue, index)));
                }
                Place::Bundle(place) => {
                    let bundle = bundles[place];
                    let end = bundle::take::<R, C, View<'_>>(
                        &mut machine,
                        (block, guard, self.way.fresh_evm),
                        bundle,
                        (gas_left, block.max_blobs - built.blobs),
                    );
                    match end {
                        BundleEnd::In { txs, gas_used, blobs, tips_wei } => {
                            built.orders += 1;
                            built.bundles += 1;
                            built.gas_used += gas_used;
                            built.blobs += blobs;
                            built.tips_wei += tips_wei;
                            built.txs.extend(txs);
                        }
                        BundleEnd::Blocked(blocked) => built.blocked.push((bundle.hash, blocked)),
                        BundleEnd::Unread => built.unread += 1,
                        BundleEnd::Out => built.failed_bundles += 1,
                    }
                }
            }
        }
        Ok(built)
    }
}

/// The result of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It is in the block.
    In,
    /// Its nonce was used before: another block or a bundle has it.
    Stale,
    /// It is not in the block, so its sender's later ones cannot be.
    Out,
}

fn take<S, C: Check>(
    machine: &mut Machine<'_, S, C>,
    tx: &Candidate,
    tip_wei: u128,
    built: &mut Built,
) -> End
where
    S: revm::Database<Error = ReadError> + revm::DatabaseCommit,
{
    match machine.execute(tx.env.clone(), &|_| true) {
        Ok((result, _)) => {
            let gas_used = result.tx_gas_used();
            let success = result.is_success();
            built.txs.push((BuiltTx { hash: tx.hash, gas_used, success }, tx.first_seen));
            built.orders += 1;
            built.gas_used += gas_used;
            built.blobs += tx.blobs;
            built.tips_wei += tip_wei.saturating_mul(gas_used.into());
            return End::In;
        }
        Err(Refusal::NonceTooLow) => return End::Stale,
        Err(Refusal::Blocked(blocked)) => built.blocked.push((tx.hash, blocked)),
        Err(Refusal::Unread(error)) => {
            tracing::debug!(hash = %tx.hash, %error, "left out");
            built.unread += 1;
        }
        Err(Refusal::Invalid(error)) => {
            tracing::debug!(hash = %tx.hash, %error, "invalid");
            built.invalid += 1;
        }
        Err(Refusal::Other(error)) => {
            tracing::error!(hash = %tx.hash, %error, "the EVM failed");
            built.invalid += 1;
        }
    }
    End::Out
}

/// The next index of a queue: after an included transaction the next nonce, after another one the
/// next with the same nonce.
fn following(queue: &Queue, index: usize, end: End) -> Option<usize> {
    let nonce = queue[index].0.nonce;
    let nonce_at = |index: &usize| queue.get(*index).map(|(tx, _)| tx.nonce);
    match end {
        End::In => {
            let next = (index + 1..).find(|next| nonce_at(next) != Some(nonce))?;
            (nonce_at(&next) == Some(nonce + 1)).then_some(next)
        }
        End::Stale => Some(index + 1),
        End::Out => (nonce_at(&(index + 1)) == Some(nonce)).then_some(index + 1),
    }
}

fn turn(queues: &[Queue], queue: usize, index: usize) -> Option<Turn> {
    let (tx, tip_wei) = queues[queue].get(index)?;
    let place = Place::Queue(queue, index);
    Some((*tip_wei, Reverse(tx.first_seen), Reverse(tx.hash), place))
}

/// Each sender's transactions as far as they can pay the base fee.
fn queues(candidates: &Candidates, base_fee_wei: u64) -> Vec<Queue> {
    let mut by_sender: AddressMap<Vec<&Arc<Candidate>>> = AddressMap::default();
    for tx in candidates.txs.values() {
        by_sender.entry(tx.sender).or_default().push(tx);
    }
    let queue = |mut txs: Vec<&Arc<Candidate>>| -> Queue {
        let mut tips: Vec<_> = txs
            .drain(..)
            .filter_map(|tx| Some((Arc::clone(tx), tx.tip_wei(base_fee_wei)?)))
            .collect();
        tips.sort_unstable_by_key(|(tx, tip)| (tx.nonce, Reverse(*tip), tx.hash));
        tips
    };
    by_sender.into_values().map(queue).filter(|queue| !queue.is_empty()).collect()
}
