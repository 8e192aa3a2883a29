//! Medians over the rounds, printed.

use std::{collections::BTreeSet, time::Duration};

use testkit::{
    contest::{Contender, Load, Run},
    figures::{Rounds, Table},
    usage::ThreadUse,
};

/// All rounds of one contender under one load.
pub(crate) type Row = Rounds<(Contender, Load), Run>;

/// Of everything announced in all rounds.
pub(crate) fn lost_share(row: &Row) -> f64 {
    let lost: usize = row.runs.iter().map(Run::lost).sum();
    lost as f64 / announced(row).max(1) as f64
}

fn announced(row: &Row) -> usize {
    row.runs.iter().map(|run| run.announced).sum()
}

/// Which side a burst was limited by, from the cores that each kept busy while it ran.
fn limit(row: &Row) -> String {
    let share = |time: fn(&Run) -> Duration| {
        row.median(|run| time(run).as_secs_f64() / run.wall.as_secs_f64().max(1e-9))
    };
    let (ours, node) = (share(|run| run.cpu), share(|run| run.node_cpu));
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    let (contender, load) = row.contender;
    let in_flight = if contender == Contender::Sequential { 1.0 } else { 64.0 };
    let by_latency = in_flight / load.latency.as_secs_f64().max(1e-9);
    let verdict = if lost_share(row) > 0.01 {
        "its buffer: it lost announcements"
    } else if row.median(Run::pooled_per_s) > 0.7 * by_latency {
        "fetches in flight / answer time"
    } else if node > 0.85 {
        "the node: its one server thread is busy"
    } else if ours + node > 0.85 * cores {
        "the machine: its cores are busy"
    } else {
        "the contender, or other load on the machine"
    };
    format!("{verdict} (cores: contender {ours:.2}, node {node:.2}, of {cores:.0})")
}

/// The first cells of a row: the answer time, the load and the contender.
fn names(row: &Row) -> [String; 3] {
    let (contender, load) = row.contender;
    let rate = match load.tps {
        Some(tps) => format!("{tps}/s"),
        None => format!("burst of {}", load.count),
    };
    [load.answer(), rate, contender.name().to_owned()]
}

/// The bare CPU time to decode and recover one transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Floor {
    /// On one thread, the other cores idle.
    pub(crate) alone_us: f64,
    /// On as many threads at once as there are cores.
    pub(crate) all_cores_us: f64,
}

pub(crate) fn print(rows: &[Row], floor: Floor) {
    let Floor { alone_us: floor_us, all_cores_us } = floor;
    println!("\nannounced by the node -> visible to a subscriber; medians of the rounds");
    println!(
        "floor: {floor_us:.1} us of CPU to decode and recover one transaction of this list; on all cores at \
         once {all_cores_us:.1} us"
    );
    let mut table = Table::new(
        "answer | load | contender | announced | lost | p50 us | p95 us | p99 us | pooled/s | \
         CPU us/tx | x floor | late",
    );
    for row in rows {
        table.row(names(row).into_iter().chain([
            announced(row).to_string(),
            format!("{:.2}%", lost_share(row) * 100.0),
            row.whole(|run| run.latency.p50),
            row.whole(|run| run.latency.p95),
            row.whole(|run| run.latency.p99),
            row.whole(Run::pooled_per_s),
            format!("{:.1}", row.median(Run::cpu_us)),
            format!("{:.2}", row.median(Run::cpu_us) / floor_us),
            row.runs.iter().map(|run| run.late).sum::<usize>().to_string(),
        ]));
    }
    print!("{table}");
    println!("late: announced by the node more than 5 ms after they were due; many mean that the");
    println!("machine was too busy for its figures to be compared with another run's.");
    println!("A latency is of what was pooled: what was lost has none.");
    for row in rows.iter().filter(|row| row.contender.1.tps.is_none()) {
        let [answer, load, contender] = names(row);
        println!("limit of {load} at {answer}, {contender}: {}", limit(row));
    }
    for row in rows.iter().filter(|row| row.contender.0.is_ours()) {
        let lagged: u64 = row.runs.iter().map(|run| run.lagged).sum();
        if lagged > 0 {
            let [answer, load, contender] = names(row);
            println!(
                "{contender} at {answer}, {load}: its buffer lost {lagged}, all recovered by \
                 reconciliation"
            );
        }
    }
    compare(rows, floor);
    stages(rows);
}

/// Where the CPU time goes: each thread is a stage, and each wait costs a wake-up.
fn stages(rows: &[Row]) {
    println!("\nby thread, for each pooled transaction; medians of the rounds");
    let mut table = Table::new("answer | load | contender | thread | CPU us/tx | waits/tx");
    for row in rows {
        let threads = row.runs.iter().flat_map(|run| run.threads.keys()).collect::<BTreeSet<_>>();
        for name in threads {
            let of = |value: fn(&ThreadUse) -> f64| {
                row.median(|run| {
                    run.threads.get(name).map_or(0.0, value) / run.pooled.max(1) as f64
                })
            };
            let cpu_us = of(|used| used.cpu.as_secs_f64() * 1e6);
            // The rest are threads that had nothing to do in a run.
            if cpu_us >= 0.05 {
                table.row(names(row).into_iter().chain([
                    name.clone(),
                    format!("{cpu_us:.1}"),
                    format!("{:.2}", of(|used| used.waits as f64)),
                ]));
            }
        }
    }
    print!("{table}");
}

/// Ours against the plain concurrent rival under the same load and in the same round.
fn compare(rows: &[Row], floor: Floor) {
    println!(
        "\nours as a share of the plain concurrent rival's, both of a round; median (least to most)"
    );
    let mut table = Table::new(
        "answer | load | mode | p50 | p50 beyond the answer | p99 | CPU | pooled/s | \
         CPU / floor | / all cores'",
    );
    // The contenders of a load stand beside each other.
    for of_load in rows.chunks(Contender::ALL.len()) {
        let find = |contender| of_load.iter().find(|row| row.contender.0 == contender);
        let Some(rival) = find(Contender::Concurrent) else { continue };
        for row in of_load.iter().filter(|row| row.contender.0.is_ours()) {
            let ratio = |value: &dyn Fn(&Run) -> f64| row.ratio(rival, value).to_string();
            let answer_us = row.contender.1.latency.as_secs_f64() * 1e6;
            table.row(names(row).into_iter().chain([
                ratio(&|run| run.latency.p50),
                // A mode that does not ask has no answer to wait for.
                ratio(&|run| (run.latency.p50 - answer_us).max(0.0)),
                ratio(&|run| run.latency.p99),
                ratio(&Run::cpu_us),
                ratio(&Run::pooled_per_s),
                format!("{:.2}", row.median(Run::cpu_us) / floor.alone_us),
                format!("{:.2}", row.median(Run::cpu_us) / floor.all_cores_us),
            ]));
        }
    }
    print!("{table}");
}
