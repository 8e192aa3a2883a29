//! What cannot be saved: reading a raw transaction and recovering its sender.

use std::{hint::black_box, thread, time::Duration};

use mock_node::workload::PreparedTx;
use testkit::{contest::decode, usage::thread_cpu};

/// Thread CPU time of one pass of decode and recover over `txs`, per transaction.
pub(crate) fn pass(txs: &[PreparedTx]) -> Duration {
    let before = thread_cpu();
    for tx in txs {
        black_box(decode(&tx.raw).expect("signed by us"));
    }
    (thread_cpu() - before) / u32::try_from(txs.len()).expect("a few thousand")
}

/// The same on as many threads at once as there are cores: cores that share caches, or are two threads
/// of one, are slower together. This is what a load that keeps every core busy can come to.
pub(crate) fn pass_on_all_cores(txs: &[PreparedTx]) -> Duration {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let passes = thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(|| pass(txs))).collect();
        threads.into_iter().map(|thread| thread.join().expect("signed by us")).sum::<Duration>()
    });
    passes / u32::try_from(cores).expect("a few")
}
