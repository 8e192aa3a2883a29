//! Runs the loads and prints the figures.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use hdrhistogram::Histogram;
use order_pool::{InsertOutcome, OrderPool, Transaction, Upkeep, UpkeepConfig};
use testkit::figures::{Goal, Spread, median, quantile_us};

use crate::load::{
    Scale, filled, filled_rival, head, nth, paced, replay, replay_rival, with_bundles,
};

/// Prints a row; returns its p99 in microseconds.
fn row(name: &str, times: &[Histogram<u64>]) -> f64 {
    let micros = |q| median(times.iter().map(|times| quantile_us(times, q)));
    let (p50, p99, p999) = (micros(0.5), micros(0.99), micros(0.999));
    println!("  {name:<44} p50 {p50:>9.1}  p99 {p99:>9.1}  p99.9 {p999:>9.1} us");
    p99
}

fn into_pool(pool: &OrderPool) -> impl Fn(Transaction) + '_ {
    |tx| assert_eq!(pool.insert_transaction(tx), InsertOutcome::Added)
}

pub(crate) fn joining(scale: &Scale) -> Goal {
    println!("\ninserts at 2,000/s while subscribers join one after another and replay");
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let beside_joins = |replay: &(dyn Fn() -> u64 + Sync), insert: &dyn Fn(Transaction)| {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let joining = scope.spawn(|| {
                let mut joins = 0;
                while !stop.load(Relaxed) {
                    assert!(replay() >= scale.replayed);
                    thread::sleep(Duration::from_millis(2));
                    joins += 1;
                }
                joins
            });
            let times = paced(scale.window, 1 << 32, insert);
            stop.store(true, Relaxed);
            assert!(joining.join().expect("no panic") > 0);
            times
        })
    };
    for _ in 0..scale.rounds {
        let pool = filled(scale.replayed);
        ours.push(beside_joins(&|| replay(&pool), &into_pool(&pool)));
        let rival = filled_rival(scale.replayed);
        let replay = || replay_rival(&rival, scale.replayed);
        theirs.push(beside_joins(&replay, &|tx| assert!(rival.insert(tx))));
    }
    let (ours, theirs) = (row("order pool", &ours), row("mutex rival", &theirs));
    let ratio = Spread::of([theirs / ours]);
    Goal::at_least("insert p99, rival / ours, joining subscribers", ratio, 10.0, " x")
}

/// Measures the node's inserts while a head invalidates bundles around the same 16 transactions, at
/// the caps: as many as an attacker with 16 addresses and the host may have.
pub(crate) fn shared(scale: &Scale) -> Goal {
    let count = scale.replayed;
    println!(
        "\ninserts at 2,000/s while a head ends {count} bundles around the same 16 transactions"
    );
    let (mut calm, mut beside) = (vec![], vec![]);
    let (mut heads, mut longest) = (vec![], vec![]);
    for _ in 0..scale.rounds {
        for (bundles, times) in [(0, &mut calm), (count, &mut beside)] {
            let pool = filled(1);
            pool.on_head(head(1, Vec::new()));
            let txs: Vec<_> = (1 << 48..(1 << 48) + 16).map(nth).collect();
            let pool = with_bundles(pool, bundles, |_| txs.clone());
            let mined: Vec<B256> = txs.iter().map(|tx| *tx.hash()).collect();
            let upkeep = Upkeep::start(&pool, UpkeepConfig::default(), || false);
            let inserted = thread::scope(|scope| {
                let ending = scope.spawn(|| {
                    thread::sleep(scale.window / 4);
                    let began = Instant::now();
                    pool.on_head(head(2, mined));
                    began.elapsed()
                });
                let inserted = paced(scale.window, 1 << 32, into_pool(&pool));
                let took = ending.join().expect("no panic");
                if bundles > 0 {
                    heads.push(took.as_secs_f64() * 1e3);
                    longest.push(inserted.max() as f64 / 1e6);
                }
                inserted
            });
            while pool.stats().bundles > 0 {
                thread::sleep(Duration::from_millis(1));
            }
            drop(upkeep);
            assert_eq!(pool.stats().mined, bundles, "all have ended");
            times.push(inserted);
        }
    }
    row("without bundles", &calm);
    row("beside the head", &beside);
    println!("  the head {:.2} ms, the longest insert {:.2} ms", median(heads), median(longest));
    let p99 = |times: &Histogram<u64>| quantile_us(times, 0.99);
    let ratios = beside.iter().zip(&calm).map(|(beside, calm)| p99(beside) / p99(calm));
    Goal::at_most("insert p99 beside a head that ends bundles", Spread::of(ratios), 2.0, " x")
}
