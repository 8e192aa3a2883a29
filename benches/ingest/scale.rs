//! How far each contender goes: what it holds without loss, its p99, its CPU time and its memory, against
//! the rate at which the node announces.
//!
//! Each run has a process of its own for the contender and one for the node, so that the memory is that of
//! this run alone. No transaction carries blobs, and nothing is mined or evicted: at the end the pool holds
//! all that the run brought in. A rate is *held* when every round pooled, in the end, everything that was
//! announced, no buffer of ours was overrun, and the node kept the rate.

use std::io;

use testkit::{
    contest::{Contender, Load, Run, Stage},
    figures::Table,
    process::{Process, serve},
};

use crate::{
    Plan, rows,
    table::{Row, lost_share},
};

pub(crate) const ROLE: &str = "__contender";
const RATES: &str = "500,1000,2000,5000,10000,20000,40000";

/// What to run, for the process of a contender: who, the rate, and how many.
type Request = (Contender, u32, usize);

fn load(rate: u32, count: usize) -> Load {
    Load { count, tps: Some(rate), ..Load::default() }
}

pub(crate) fn bench(is_test: bool) {
    let plan = Plan::new(is_test, &[500, 2000], RATES, "3");
    let count = |rate: u32| (f64::from(rate) * plan.seconds).round().max(1.0) as usize;
    let mut rows = rows(plan.rates.iter().map(|&rate| load(rate, count(rate))).collect());
    for round in 0..plan.rounds {
        for row in &mut rows {
            let (contender, rate) = (row.contender.0, rate(row));
            let request: Request = (contender, rate, row.contender.1.count);
            let mut process = Process::spawn(ROLE).expect("its process starts");
            let run: Run = process.request(&request).expect("a run comes to its end");
            eprintln!(
                "round {} of {}: {} at {rate}/s: lost {} of {}, lagged {}, p99 {:.0} us, {:.1} us of CPU each",
                round + 1,
                plan.rounds,
                contender.name(),
                run.lost(),
                run.announced,
                run.lagged,
                run.latency.p99,
                run.cpu_us(),
            );
            row.runs.push(run);
        }
    }
    print(&rows);
}

pub(crate) fn respond() -> io::Result<()> {
    serve(|(contender, rate, count): Request| {
        Ok(Stage::new(count, 0)?.run(contender, load(rate, count)))
    })
}

fn rate(row: &Row) -> u32 {
    row.contender.1.tps.expect("these loads are paced")
}

/// Whether everything arrived in every round, and node and contender kept the rate.
fn is_held(row: &Row) -> bool {
    let least = 0.95 * f64::from(rate(row));
    let is_held = |run: &Run| run.lost() == 0 && run.lagged == 0 && run.announced_per_s > least;
    row.runs.iter().all(is_held)
}

fn print(rows: &[Row]) {
    println!(
        "\nannounced by the node -> visible to a subscriber; medians of the rounds, ratios to the\n\
         plain concurrent rival at the same rate; live is of what was visible before the last announcement;\n\
         memory is what a run added, for each transaction"
    );
    let mut table = Table::new(
        "rate | contender | announced/s | pooled/s | live/s | live p50 us | lost | lagged | held | p50 us | p99 us | \
         p99 ratio | CPU us/tx | CPU ratio | node us/tx | bytes/tx | MB",
    );
    for row in rows {
        let is_rival =
            |other: &&Row| rate(other) == rate(row) && other.contender.0 == Contender::Concurrent;
        let rival = rows.iter().find(is_rival).expect("every rate has all contenders");
        table.row([
            rate(row).to_string(),
            row.contender.0.name().to_owned(),
            row.whole(|run| run.announced_per_s),
            row.whole(Run::pooled_per_s),
            row.whole(|run| run.live_per_s),
            row.whole(|run| run.live.p50),
            format!("{:.2}%", lost_share(row) * 100.0),
            row.runs.iter().map(|run| run.lagged).sum::<u64>().to_string(),
            if is_held(row) { "yes" } else { "no" }.to_owned(),
            row.whole(|run| run.latency.p50),
            row.whole(|run| run.latency.p99),
            row.ratio(rival, |run| run.latency.p99).to_string(),
            format!("{:.1}", row.median(Run::cpu_us)),
            row.ratio(rival, Run::cpu_us).to_string(),
            format!("{:.1}", row.median(Run::node_cpu_us)),
            row.whole(|run| run.grown_bytes as f64 / run.pooled.max(1) as f64),
            row.whole(|run| run.grown_bytes as f64 / 1e6),
        ]);
    }
    print!("{table}");
    for contender in Contender::ALL {
        let held = rows.iter().filter(|row| row.contender.0 == contender && is_held(row));
        match held.map(rate).max() {
            Some(rate) => println!("{} held {rate}/s", contender.name()),
            None => println!("{} held none of these rates", contender.name()),
        }
    }
}
