//! Transactions that several nodes announce, signed once.

use std::sync::Arc;

use super::{Workload, WorkloadConfig};
use crate::tx::SignedTx;

/// The first transactions of a workload, for nodes that announce the same ones: signing 20,000 costs more processor
/// time than announcing them. A clone shares them.
#[derive(Clone, Debug)]
pub struct SignedLoad {
    txs: Arc<[Arc<SignedTx>]>,
    /// Where the workload goes on.
    rest: Workload,
}

impl SignedLoad {
    /// Signs the first `count` transactions.
    ///
    /// # Panics
    /// As [`Workload::new`].
    pub fn new(config: WorkloadConfig, count: usize) -> Self {
        let mut rest = Workload::new(config);
        let txs = rest.sign(count).into_iter().map(|(_, tx)| tx).collect();
        Self { txs, rest }
    }

    /// What it was made from.
    pub const fn config(&self) -> &WorkloadConfig {
        &self.rest.config
    }

    pub(crate) fn into_parts(self) -> (Arc<[Arc<SignedTx>]>, Workload) {
        (self.txs, self.rest)
    }
}
