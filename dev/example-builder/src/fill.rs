//! Fills a block with the candidates: by effective tip, each sender's nonces in order, bundles whole.

use std::{
    collections::BinaryHeap,
    time::{Duration, Instant},
};

use alloy_primitives::{B256, map::AddressMap};
use blocklist::{AttemptInspector, BlockGuard, Blocked, ExecuteError, How};
use mempool_ingest::order_pool::Bundle;
use revm::{
    Database, DatabaseCommit, ExecuteCommitEvm, ExecuteEvm, InspectEvm,
    context::result::{EVMError, ExecutionResult, InvalidTransaction},
    database::CacheDB,
    handler::{MainnetContext, MainnetEvm},
};
use revm_inspectors::access_list::AccessListInspector;

use crate::{
    block::NextBlock,
    candidates::{Candidate, Candidates, Tx},
    state::{NodeState, ReadError},
};

/// The least gas of any transaction: with less left, none fits.
const MIN_TX_GAS: u64 = 21_000;

/// A way to fill a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub(crate) name: &'static str,
    /// Finds listed addresses by an inspector under every opcode, the classic way, instead of in
    /// the state after the execution.
    pub(crate) inspector: bool,
    /// Uses the state that was prefetched, instead of reading it when an execution needs it.
    pub(crate) prefetched: bool,
}

impl Way {
    /// From the classic way to ours, one step after the other.
    pub(crate) const STEPS: [Self; 3] = [
        Self { name: "opcode inspector", inspector: true, prefetched: false },
        Self { name: "+ prefetched state", inspector: true, prefetched: true },
        Self { name: "+ post-state check", inspector: false, prefetched: true },
    ];
    pub(crate) const OURS: Self = Self::STEPS[2];
}

/// A built block, and the results of the orders that are not in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Built {
    /// With the gas that each uses, and whether it succeeds.
    pub(crate) txs: Vec<(Tx, u64, bool)>,
    /// Orders in it: transactions and bundles.
    pub(crate) orders: usize,
    pub(crate) bundles: usize,
    pub(crate) gas_used: u64,
    pub(crate) blocked: Vec<(B256, Blocked)>,
    /// Invalid at their turn, bundles that fail, and what the node does not answer for.
    pub(crate) left_out: usize,
    /// Reads that an execution had to wait for.
    pub(crate) reads: u64,
    pub(crate) time: Duration,
    blobs: u64,
}

impl Built {
    /// Whether another way of filling had the same result.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let blocked =
            |built: &Self| built.blocked.iter().map(|(hash, _)| *hash).collect::<Vec<_>>();
        self.txs == other.txs && blocked(self) == blocked(other)
    }
}

/// Why a transaction is not in the block. Nothing was written.
#[derive(Debug)]
enum Refusal {
    /// It reaches a listed address.
    Blocked(Blocked),
    /// An earlier nonce of its sender is not in the block.
    NonceTooHigh,
    /// Another order with its nonce is.
    NonceTooLow,
    /// It does not fit, or reverts in a bundle that does not allow it.
    Unwanted,
    /// Invalid, or the node does not answer; the log says why.
    Other,
}

impl Refusal {
    fn other(error: &impl std::fmt::Display) -> Self {
        tracing::debug!(%error, "a transaction is left out");
        Self::Other
    }
}

impl From<EVMError<ReadError>> for Refusal {
    fn from(error: EVMError<ReadError>) -> Self {
        match error {
            EVMError::Transaction(InvalidTransaction::NonceTooHigh { .. }) => Self::NonceTooHigh,
            EVMError::Transaction(InvalidTransaction::NonceTooLow { .. }) => Self::NonceTooLow,
            other => Self::other(&other),
        }
    }
}

type Evm<DB> = MainnetEvm<MainnetContext<DB>, AccessListInspector>;

/// Fills a block in one of the ways.
///
/// # Errors
/// The node did not even answer for the state that every block needs.
pub(crate) fn fill(
    way: Way,
    block: &NextBlock,
    guard: &BlockGuard,
    candidates: &Candidates,
    state: &NodeState,
) -> Result<Built, ReadError> {
    let cold = (!way.prefetched).then(|| state.cold());
    let state = cold.as_ref().unwrap_or(state);
    let (start, before) = (Instant::now(), state.reads.get());
    let mut evm = block.evm(CacheDB::new(state), AccessListInspector::default());
    block.begin(&mut evm)?;
    let mut filling = Filling { way, block, guard, built: Built::default() };
    let turn = |candidate: &Candidate| candidate.turn(block.env.basefee);
    let mut turns: BinaryHeap<_> = candidates.all.values().filter_map(turn).collect();
    // Those that wait for an earlier nonce of their sender.
    let mut waiting: AddressMap<Vec<B256>> = AddressMap::default();
    while let Some((.., hash)) = turns.pop() {
        if block.env.gas_limit - filling.built.gas_used < MIN_TX_GAS {
            break;
        }
        let candidate = &candidates.all[&hash];
        match filling.add(&mut evm, candidate) {
            Ok(()) => {
                let senders = candidate.txs.iter().filter_map(|tx| waiting.remove(&tx.env.caller));
                turns.extend(senders.flatten().filter_map(|hash| turn(&candidates.all[&hash])));
            }
            Err(Refusal::NonceTooHigh) if candidate.bundle().is_none() => {
                waiting.entry(candidate.txs[0].env.caller).or_default().push(hash);
            }
            Err(Refusal::Blocked(blocked)) => filling.built.blocked.push((hash, blocked)),
            Err(_) => filling.built.left_out += 1,
        }
    }
    let (time, reads) = (start.elapsed(), state.reads.get() - before);
    Ok(Built { time, reads, ..filling.built })
}

struct Filling<'b> {
    way: Way,
    block: &'b NextBlock,
    guard: &'b BlockGuard,
    built: Built,
}

impl Filling<'_> {
    fn add(
        &mut self,
        evm: &mut Evm<CacheDB<&NodeState>>,
        candidate: &Candidate,
    ) -> Result<(), Refusal> {
        let txs: Vec<&Tx> = match candidate.bundle() {
            Some(bundle) => self.trial(&evm.ctx.journaled_state.database, candidate, bundle)?,
            None => candidate.txs.iter().collect(),
        };
        for tx in txs {
            self.fits(tx, 0, 0)?;
            let (result, _) = self.execute(evm, tx, |_| true)?;
            self.built.gas_used += result.tx_gas_used();
            self.built.blobs += tx.blobs;
            self.built.txs.push((tx.clone(), result.tx_gas_used(), result.is_success()));
        }
        self.built.orders += 1;
        self.built.bundles += usize::from(candidate.bundle().is_some());
        Ok(())
    }

    fn fits(&self, tx: &Tx, gas: u64, blobs: u64) -> Result<(), Refusal> {
        let gas_left = self.block.env.gas_limit - self.built.gas_used - gas;
        let blobs_left = self.block.max_blobs - self.built.blobs - blobs;
        let fits = tx.env.gas_limit <= gas_left && tx.blobs <= blobs_left;
        if fits { Ok(()) } else { Err(Refusal::Unwanted) }
    }

    /// Executes a bundle on a layer over the block that is then dropped, and returns which of its
    /// transactions go into the block.
    ///
    /// A transaction that reverts stays in the block if `revertingTxHashes` names it, is left out
    /// if only `droppingTxHashes` does, and otherwise ends the bundle. An invalid or blocked one
    /// can only be left out. A bundle that wants a refund is left out, because this builder pays
    /// none.
    fn trial<'c>(
        &self,
        under: &CacheDB<&NodeState>,
        candidate: &'c Candidate,
        bundle: &Bundle,
    ) -> Result<Vec<&'c Tx>, Refusal> {
        let (parts, timestamp) = (bundle.parts(), self.block.env.timestamp.saturating_to::<u64>());
        if bundle.block().is_some_and(|number| number != self.block.number())
            || parts.min_timestamp.is_some_and(|min| timestamp < min)
            || parts.max_timestamp.is_some_and(|max| max < timestamp)
            || parts.refund_percent.is_some_and(|percent| percent > 0)
        {
            return Err(Refusal::Unwanted);
        }
        let mut layer = self.block.evm(CacheDB::new(under), AccessListInspector::default());
        let (mut stay, mut gas, mut blobs) = (Vec::new(), 0, 0);
        for tx in &candidate.txs {
            self.fits(tx, gas, blobs)?;
            let may_revert = parts.reverting_tx_hashes.contains(&tx.hash);
            match self.execute(&mut layer, tx, |result| result.is_success() || may_revert) {
                Ok((result, true)) => {
                    stay.push(tx);
                    gas += result.tx_gas_used();
                    blobs += tx.blobs;
                }
                _ if parts.dropping_tx_hashes.contains(&tx.hash) => {}
                Ok(_) => return Err(Refusal::Unwanted),
                Err(refusal) => return Err(refusal),
            }
        }
        if stay.is_empty() { Err(Refusal::Unwanted) } else { Ok(stay) }
    }

    /// Executes, checks for listed addresses, and commits if `keep` agrees. Returns whether it did.
    fn execute<DB: Database<Error = ReadError> + DatabaseCommit>(
        &self,
        evm: &mut Evm<DB>,
        tx: &Tx,
        keep: impl Fn(&ExecutionResult) -> bool,
    ) -> Result<(ExecutionResult, bool), Refusal> {
        let env = tx.env.clone();
        if !self.way.inspector {
            let checked = self.guard.execute(evm, env).map_err(|error| match error {
                ExecuteError::Blocked(blocked) => Refusal::Blocked(blocked),
                ExecuteError::Evm(error) => error.into(),
                other => Refusal::other(&other),
            })?;
            let kept = keep(checked.output());
            return Ok((if kept { checked.commit() } else { checked.discard() }, kept));
        }
        self.guard.precheck(&env).map_err(Refusal::Blocked)?;
        let executed = evm.inspect(env, AccessListInspector::default()).map_err(|error| {
            drop(evm.finalize());
            Refusal::from(error)
        })?;
        let seen = std::mem::take(&mut evm.inspector);
        let is_listed = |address: &&_| self.guard.list().contains(address);
        if let Some(address) = seen.touched_slots().keys().filter(is_listed).min() {
            let how = How::TouchedByExecution;
            return Err(Refusal::Blocked(Blocked { address: *address, how }));
        }
        let kept = keep(&executed.result);
        if kept {
            evm.commit(executed.state);
        }
        Ok((executed.result, kept))
    }
}

/// Executes the finished block once more, from the beginning, under the strict check, which no way
/// of filling uses.
///
/// # Errors
/// A listed address, or a result that differs.
pub(crate) fn verify(
    block: &NextBlock,
    guard: &BlockGuard,
    state: &NodeState,
    built: &Built,
) -> Result<(), String> {
    let mut evm = block.evm(CacheDB::new(state), AttemptInspector::default());
    block.begin(&mut evm).map_err(|error| error.to_string())?;
    let txs = built.txs.iter().map(|(tx, ..)| tx.env.clone());
    let results = guard.verify_block(&mut evm, txs).map_err(|error| error.to_string())?;
    let again = results.iter().map(|result| (result.tx_gas_used(), result.is_success()));
    let is_same = again.eq(built.txs.iter().map(|(_, gas, success)| (*gas, *success)));
    if is_same { Ok(()) } else { Err("executed again, the block uses other gas".into()) }
}
