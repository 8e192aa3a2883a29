//! What cannot be saved: reading a raw transaction and recovering its sender.

use std::{hint::black_box, thread, time::Duration};

use alloy_primitives::hex;
use criterion::{BenchmarkId, Criterion, Throughput};
use mempool_ingest::txpool_fetcher::{RawTransaction, read_response};
use mock_node::workload::{Mix, PreparedTx, TxKind, Workload, WorkloadConfig};
use testkit::{contest::decode, usage::thread_cpu};

use crate::BLOBS_PER_MILLE;

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

/// The floor, and the whole of what ours does with an answer, for each size of transaction.
pub(crate) fn bench(criterion: &mut Criterion) {
    let mix = Mix { blobs_per_mille: BLOBS_PER_MILLE, ..Mix::default() };
    let txs = Workload::new(WorkloadConfig { mix, ..WorkloadConfig::new(7, 1337) }).prepare(2_000);
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
