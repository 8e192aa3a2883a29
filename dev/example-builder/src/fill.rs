//! Fills a block with the candidates by effective tip, with the nonces of each sender in order, and
//! with whole bundles.

use std::{
    collections::BinaryHeap,
    time::{Duration, Instant},
};

use alloy::primitives::{B256, map::AddressMap};
use blocklist::{BlockGuard, Blocked, ExecuteError, How};
use mempool_ingest::order_pool::Bundle;
use revm::{
    ExecuteCommitEvm, ExecuteEvm, InspectEvm,
    context::result::{EVMError, ExecutionResult, InvalidTransaction},
    database::CacheDB,
    handler::{MainnetContext, MainnetEvm},
};
use revm_inspectors::access_list::AccessListInspector;

use crate::{
    candidates::{Candidate, Candidates, Tx},
    state::{NextBlock, NodeState, ReadError},
};

/// A way to fill a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The usual way: an inspector looks for listed addresses at every opcode.
    Inspector,
    /// Our way: listed addresses are looked up in the state after each execution.
    PostState,
}

pub(crate) const BOTH_WAYS: [Way; 2] = [Way::Inspector, Way::PostState];

/// A built block, and the results of the orders that are not in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Built {
    /// The transactions, each with the gas that it uses and whether it succeeds.
    pub(crate) txs: Vec<(Tx, u64, bool)>,
    /// The number of included orders: transactions and bundles.
    pub(crate) orders: usize,
    pub(crate) bundles: usize,
    pub(crate) gas_used: u64,
    pub(crate) blocked: Vec<(B256, Blocked)>,
    /// Orders that are invalid at their turn, bundles that fail, and orders whose state the node
    /// does not return.
    pub(crate) left_out: usize,
    /// How many reads an execution had to wait for.
    pub(crate) reads: u64,
    pub(crate) time: Duration,
    blobs: u64,
}

impl Built {
    /// Whether another way of filling had the same result.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let blocked = self.blocked.iter().map(|(hash, _)| hash);
        self.txs == other.txs && blocked.eq(other.blocked.iter().map(|(hash, _)| hash))
    }
}

/// The reason why a transaction is not in the block. Nothing was written.
#[derive(Debug)]
enum Refusal {
    /// It reaches a listed address.
    Blocked(Blocked),
    /// An earlier nonce of its sender is not in the block.
    NonceTooHigh,
    /// It does not fit, it is invalid, it reverts in a bundle that does not allow it, or the node
    /// does not answer.
    Unwanted,
}

impl From<EVMError<ReadError>> for Refusal {
    fn from(error: EVMError<ReadError>) -> Self {
        if let EVMError::Transaction(InvalidTransaction::NonceTooHigh { .. }) = error {
            return Self::NonceTooHigh;
        }
        tracing::debug!(%error, "a transaction is left out");
        Self::Unwanted
    }
}

type Evm<'s> = MainnetEvm<MainnetContext<CacheDB<&'s NodeState>>, AccessListInspector>;

/// Fills a block in one of the two ways.
pub(crate) fn fill(
    way: Way,
    block: &NextBlock,
    guard: &BlockGuard,
    candidates: &Candidates,
    state: &NodeState,
) -> Built {
    let start = Instant::now();
    let reads_before = state.db.count.get();
    let evm = block.evm(CacheDB::new(state), AccessListInspector::default());
    let mut filling = Filling { way, block, guard, evm, built: Built::default() };
    let rank = |candidate: &Candidate| candidate.rank(block.env.basefee);
    let mut ranked: BinaryHeap<_> = candidates.all.values().filter_map(rank).collect();
    // Transactions that wait for an earlier nonce of their sender.
    let mut waiting: AddressMap<Vec<B256>> = AddressMap::default();
    while let Some((.., hash)) = ranked.pop() {
        let candidate = &candidates.all[&hash];
        match filling.add(candidate) {
            Ok(()) => {
                let senders = candidate.txs.iter().filter_map(|tx| waiting.remove(&tx.env.caller));
                ranked.extend(senders.flatten().filter_map(|hash| rank(&candidates.all[&hash])));
            }
            Err(Refusal::NonceTooHigh) if candidate.bundle().is_none() => {
                waiting.entry(candidate.txs[0].env.caller).or_default().push(hash);
            }
            Err(Refusal::Blocked(blocked)) => filling.built.blocked.push((hash, blocked)),
            Err(_) => filling.built.left_out += 1,
        }
    }
    let (time, reads) = (start.elapsed(), state.db.count.get() - reads_before);
    Built { time, reads, ..filling.built }
}

struct Filling<'b> {
    way: Way,
    block: &'b NextBlock,
    guard: &'b BlockGuard,
    evm: Evm<'b>,
    built: Built,
}

impl Filling<'_> {
    /// Adds an order completely or not at all. A bundle that wants a refund is left out, because
    /// this builder pays none.
    fn add(&mut self, candidate: &Candidate) -> Result<(), Refusal> {
        let Some(bundle) = candidate.bundle() else {
            self.add_tx(&candidate.txs[0], None)?;
            self.built.orders += 1;
            return Ok(());
        };
        let (parts, timestamp) = (bundle.parts(), self.block.env.timestamp.saturating_to::<u64>());
        if bundle.block().is_some_and(|number| number != self.block.number())
            || parts.min_timestamp.is_some_and(|min| timestamp < min)
            || parts.max_timestamp.is_some_and(|max| max < timestamp)
            || parts.refund_percent.is_some_and(|percent| percent > 0)
        {
            return Err(Refusal::Unwanted);
        }
        // The state is copied, because bundles are few.
        let before = (self.evm.ctx.journaled_state.database.cache.clone(), self.built.clone());
        let added = candidate.txs.iter().try_for_each(|tx| self.add_tx(tx, Some(bundle)));
        let is_empty = self.built.txs.len() == before.1.txs.len();
        if added.is_err() || is_empty {
            (self.evm.ctx.journaled_state.database.cache, self.built) = before;
            return added.and(Err(Refusal::Unwanted));
        }
        self.built.orders += 1;
        self.built.bundles += 1;
        Ok(())
    }

    /// Adds a transaction. If a transaction of a bundle reverts, it stays in the block if
    /// `revertingTxHashes` names it, it is left out if only `droppingTxHashes` names it, and
    /// otherwise the bundle fails. An invalid or blocked transaction can only be left out.
    fn add_tx(&mut self, tx: &Tx, bundle: Option<&Bundle>) -> Result<(), Refusal> {
        let may_drop =
            bundle.is_some_and(|bundle| bundle.parts().dropping_tx_hashes.contains(&tx.hash));
        let may_revert =
            bundle.is_none_or(|bundle| bundle.parts().reverting_tx_hashes.contains(&tx.hash));
        match self.execute(tx, |result| result.is_success() || may_revert) {
            Ok(result) => {
                self.built.gas_used += result.tx_gas_used();
                self.built.blobs += tx.blobs;
                self.built.txs.push((tx.clone(), result.tx_gas_used(), result.is_success()));
                Ok(())
            }
            Err(_) if may_drop => Ok(()),
            Err(refusal) => Err(refusal),
        }
    }

    /// Executes a transaction, checks it for listed addresses, and commits it if `keep` returns
    /// true.
    fn execute(
        &mut self,
        tx: &Tx,
        keep: impl Fn(&ExecutionResult) -> bool,
    ) -> Result<ExecutionResult, Refusal> {
        let (gas_left, env) = (self.block.env.gas_limit - self.built.gas_used, tx.env.clone());
        if env.gas_limit > gas_left || tx.blobs > self.block.max_blobs - self.built.blobs {
            return Err(Refusal::Unwanted);
        }
        let evm = &mut self.evm;
        if self.way == Way::PostState {
            let checked = self.guard.execute(evm, env).map_err(|error| match error {
                ExecuteError::Blocked(blocked) => Refusal::Blocked(blocked),
                ExecuteError::Evm(error) => error.into(),
                _ => Refusal::Unwanted,
            })?;
            if keep(checked.output()) {
                return Ok(checked.commit());
            }
            checked.discard();
            return Err(Refusal::Unwanted);
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
        if !keep(&executed.result) {
            return Err(Refusal::Unwanted);
        }
        evm.commit(executed.state);
        Ok(executed.result)
    }
}
