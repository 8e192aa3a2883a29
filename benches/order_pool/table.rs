//! Runs the loads and prints what came out.

use std::{
    collections::HashMap,
    thread,
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use hdrhistogram::Histogram;
use order_pool::{InsertOutcome, OrderPool, Transaction, Upkeep, UpkeepConfig};
use testkit::figures::{Goal, Rounds, Spread, median, quantile_us};

use crate::load::{
    Scale, beside, burn, filled, filled_rival, head, name, nth, of_bundles, paced, replay,
    replay_rival, sender,
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
        let body = || {
            assert!(replay() >= scale.replayed);
            thread::sleep(Duration::from_millis(2));
            1
        };
        let (times, joins) = beside(1, body, || paced(scale.window, 1 << 32, insert));
        assert!(joins > 0);
        times
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

/// Replay throughput by number of readers, a writer going on at 2,000/s, against as many threads
/// that burn CPU beside the same writer: what the machine gives right now.
pub(crate) fn scaling(scale: &Scale) -> [Goal; 2] {
    println!("\norders replayed per second while the writer goes on");
    let mut rates = [1, 2, 4, 8].map(Rounds::new);
    let mut burns = rates.clone();
    // Short slices, one after another, so that a busy neighbour meets all of them.
    let (slices, window) = (scale.rounds * 3, scale.window / 3);
    for _ in 0..slices {
        for (rates, burns) in rates.iter_mut().zip(&mut burns) {
            for (replays, into) in [(true, rates), (false, burns)] {
                let pool = filled(scale.replayed);
                let body = || if replays { replay(&pool) } else { burn() };
                let work = || paced(window, 1 << 32, into_pool(&pool));
                let began = Instant::now();
                let (_, done) = beside(into.contender, body, work);
                into.runs.push(done as f64 / began.elapsed().as_secs_f64());
            }
        }
    }
    // Ratios of neighbours in time, then their median.
    let to_one = |of: &[Rounds<usize, f64>; 4], n: usize| of[n].ratio(&of[0], |rate| *rate).median;
    for (n, many) in rates.iter().enumerate() {
        println!(
            "  {} readers {:>12.0} orders/s = {:.2} x of one (pure CPU work here: {:.2} x)",
            many.contender,
            many.median(|rate| *rate),
            to_one(&rates, n),
            to_one(&burns, n),
        );
    }
    let (two, control) = (to_one(&rates, 1), to_one(&burns, 1));
    let corrected = "the same, if two threads of pure CPU work did twice the work of one";
    [("replay work, two readers / one", two), (corrected, 2.0 * two / control)]
        .map(|(what, ratio)| Goal::at_least(what, Spread::of([ratio]), 1.7, " x"))
}

/// The same block at three sizes of pool.
pub(crate) fn heads(scale: &Scale) -> Goal {
    println!("\na head that mines 50 of the pooled and raises 100 senders");
    let mut ours = Vec::new();
    for count in scale.pools {
        let (mut times, mut rival_times) = (Vec::new(), Vec::new());
        let pool = filled(count);
        let rival = filled_rival(count);
        for round in 0..(scale.rounds as u64 * 5) {
            // Orders of this round alone, so that each head does the same work.
            let first = (round + 2) << 32;
            for n in first..first + 100 {
                pool.insert_transaction(nth(n));
                rival.insert(nth(n));
            }
            let mined: Vec<B256> = (first..first + 50).map(|n| *nth(n).hash()).collect();
            let nonces: HashMap<_, _> = (first..first + 100).map(|n| (sender(n), 1)).collect();
            let block = head(round + 1, mined.clone());
            let list: Vec<_> = nonces.iter().map(|(sender, next)| (*sender, *next)).collect();
            let before = pool.len();
            let began = Instant::now();
            pool.on_head(block);
            pool.on_nonces(name(round + 1), list);
            times.push(began.elapsed().as_nanos() as f64 / 1e3);
            let began = Instant::now();
            let removed = rival.on_head(&mined, &nonces);
            rival_times.push(began.elapsed().as_nanos() as f64 / 1e3);
            assert_eq!((before - pool.len(), removed), (100, 100), "equal work");
        }
        let (time, rival_time) = (median(times), median(rival_times));
        println!("  {count:>7} pooled: {time:>9.1} us, mutex rival {rival_time:>9.1} us");
        ours.push(time);
    }
    let ratio = Spread::of([ours[2] / ours[0]]);
    Goal::at_most("head update, largest pool / smallest", ratio, 2.0, " x")
}

/// The node's inserts while a head ends bundles around the same 16 transactions, at the caps: as many
/// as an attacker with 16 addresses and the host may have.
pub(crate) fn shared(scale: &Scale) -> Goal {
    let count = scale.replayed;
    println!(
        "\ninserts at 2,000/s while a head ends {count} bundles around the same 16 transactions"
    );
    let (mut calm, mut beside, mut heads, mut longest) = (vec![], vec![], vec![], vec![]);
    for _ in 0..scale.rounds {
        for (bundles, times) in [(0, &mut calm), (count, &mut beside)] {
            let pool = filled(1);
            pool.on_head(head(1, Vec::new()));
            let txs: Vec<_> = (1 << 48..(1 << 48) + 16).map(nth).collect();
            let pool = of_bundles(pool, bundles, |_| txs.clone());
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
