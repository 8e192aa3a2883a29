//! What cannot be saved: reading a raw transaction and recovering its sender.

use std::{hint::black_box, thread, time::Duration};

use alloy::hex;
use criterion::{BenchmarkId, Criterion, Throughput};
use mempool_ingest::txpool_fetcher::{RawTransaction, read_response};
use mock_node::workload::{Mix, PreparedTx, TxKind, Workload, WorkloadConfig};
use testkit::usage::thread_cpu;

use crate::{BLOBS_PER_MILLE, rivals::decode};

/// The bare CPU time to decode and recover one transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Floor {
    /// On one thread, the other cores idle.
    pub(crate) alone_us: f64,
    /// On as many threads at once as there are cores: cores that share caches, or are two threads
    /// of one, are slower together. This is what a load that keeps every core busy can come to.
    pub(crate) all_cores_us: f64,
}

impl Floor {
    pub(crate) fn of(txs: &[PreparedTx]) -> Self {
        let on = |threads: usize| {
            let passes = thread::scope(|scope| {
                let passes: Vec<_> = (0..threads).map(|_| scope.spawn(|| pass(txs))).collect();
                passes.into_iter().map(|pass| pass.join().expect("signed by us")).sum::<Duration>()
            });
            passes.as_secs_f64() * 1e6 / (threads * txs.len()) as f64
        };
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Self { alone_us: on(1), all_cores_us: on(cores) }
    }
}

/// Thread CPU time of one pass of decode and recover over `txs`.
fn pass(txs: &[PreparedTx]) -> Duration {
    let before = thread_cpu();
    for tx in txs {
        black_box(decode(&tx.raw).expect("signed by us"));
    }
    thread_cpu() - before
}

/// Transactions of the mix of `drops`. Those of `scale` and `rates` carry no blobs: their floor is
/// a little lower.
pub(crate) fn samples() -> Vec<PreparedTx> {
    let mix = Mix { blobs_per_mille: BLOBS_PER_MILLE, ..Mix::default() };
    Workload::new(WorkloadConfig { mix, ..WorkloadConfig::new(7, 1337) }).prepare(2_000)
}

/// The floor, and the whole of what ours does with an answer, for each size of transaction.
pub(crate) fn bench(criterion: &mut Criterion) {
    let txs = samples();
    let mut group = criterion.benchmark_group("floor");
    // Tens of thousands of iterations each; the rest of the bench's minutes are for the runs.
    group.warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_millis(1500));
    let kinds =
        [("transfer", TxKind::Transfer), ("swap", TxKind::Swap), ("one blob", TxKind::Blob)];
    for (name, kind) in kinds {
        let tx = txs.iter().find(|tx| tx.kind == kind).expect("two thousand have all");
        let json = format!("\"{}\"", hex::encode_prefixed(&tx.raw));
        assert!(
            matches!(read_response(&json, tx.hash), RawTransaction::Decoded(read, _) if read.signer() == tx.sender),
            "equal work: the same sender both ways"
        );
        assert_eq!(decode(&tx.raw).expect("signed by us").signer(), tx.sender);
        group.throughput(Throughput::Elements(1));
        group.bench_function(BenchmarkId::new("decode and recover", name), |bencher| {
            bencher.iter(|| decode(black_box(&tx.raw)));
        });
        group.bench_function(BenchmarkId::new("read_response", name), |bencher| {
            bencher.iter(|| read_response(black_box(&json), tx.hash));
        });
    }
    group.finish();
}
