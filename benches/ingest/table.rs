//! Medians over the rounds, printed.

use std::collections::BTreeSet;

use testkit::{
    figures::{Rounds, Table},
    usage::ThreadUse,
};

use crate::{
    floor::Floor,
    run::{Contender, Load, Run},
};

/// All rounds of one contender under one load.
pub(crate) type Row = Rounds<(Contender, Load), Run>;

/// Whether everything arrived in every round, and node and contender kept the rate.
fn is_held(row: &Row) -> bool {
    let least = 0.95 * f64::from(row.contender.1.tps);
    let is_held = |run: &Run| run.lost() == 0 && run.lagged == 0 && run.announced_per_s > least;
    row.runs.iter().all(is_held)
}

pub(crate) fn print(rows: &[Row], floors: &Rounds<(), Floor>) {
    let floor_us = floors.median(|floor| floor.alone_us);
    println!(
        "\nannounced by the node -> visible to a subscriber; medians of {} rounds, ratios (least to \
         most) to the plain concurrent rival on one worker thread, under the same load and in the \
         same round;\n\
         live is of what was visible before the last announcement; late: announced by the node \
         more than 5 ms after they were due, many mean that the machine was too busy for its \
         figures to be compared with another run's;\n\
         a latency is of what was pooled: what was lost has none; memory is what a run added, for \
         each transaction, less in a warm process;\n\
         floor: {floor_us:.1} us of CPU to decode and recover one transaction; on all cores at \
         once {:.1} us",
        floors.runs.len(),
        floors.median(|floor| floor.all_cores_us),
    );
    let mut table = Table::new(
        "rate | contender | announced/s | pooled/s | pooled ratio | live/s | live p50 us | lost | \
         lagged | late | held | p50 us | p50 ratio | p99 us | p99 ratio | max us | CPU us/tx | \
         CPU ratio | x floor | node us/tx | bytes/tx | MB",
    );
    for row in rows {
        let (contender, load) = row.contender;
        let rival =
            rows.iter().find(|other| other.contender == (Contender::ConcurrentOneThread, load));
        let ratio = |value: fn(&Run) -> f64| {
            rival.map_or("none".to_owned(), |rival| row.ratio(rival, value).to_string())
        };
        let sum = |value: fn(&Run) -> usize| row.runs.iter().map(value).sum::<usize>();
        let lost_share = sum(Run::lost) as f64 / sum(|run| run.announced).max(1) as f64;
        table.row([
            load.name(),
            contender.name().to_owned(),
            row.whole(|run| run.announced_per_s),
            row.whole(Run::pooled_per_s),
            ratio(Run::pooled_per_s),
            row.whole(|run| run.live_per_s),
            row.whole(|run| run.live.p50),
            format!("{:.2}%", lost_share * 100.0),
            sum(|run| run.lagged as usize).to_string(),
            sum(|run| run.late).to_string(),
            if is_held(row) { "yes" } else { "no" }.to_owned(),
            row.whole(|run| run.latency.p50),
            ratio(|run| run.latency.p50),
            row.whole(|run| run.latency.p99),
            ratio(|run| run.latency.p99),
            row.whole(|run| run.latency.max),
            format!("{:.1}", row.median(Run::cpu_us)),
            ratio(Run::cpu_us),
            format!("{:.2}", row.median(Run::cpu_us) / floor_us),
            format!("{:.1}", row.median(Run::node_cpu_us)),
            row.whole(|run| run.grown_bytes as f64 / run.pooled.max(1) as f64),
            row.whole(|run| run.grown_bytes as f64 / 1e6),
        ]);
    }
    print!("{table}");
    stages(rows);
}

/// The highest rate that each contender has held.
pub(crate) fn print_held(rows: &[Row]) {
    for contender in Contender::OVER_A_SOCKET {
        let held = rows.iter().filter(|row| row.contender.0 == contender && is_held(row));
        match held.map(|row| row.contender.1.tps).max() {
            Some(rate) => println!("{} held {rate}/s", contender.name()),
            None => println!("{} held none of these rates", contender.name()),
        }
    }
}

/// Where the CPU time goes: each thread is a stage, and each wait costs a wake-up.
fn stages(rows: &[Row]) {
    println!("\nby thread, for each pooled transaction; medians of the rounds");
    let mut table = Table::new("rate | contender | thread | CPU us/tx | waits/tx");
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
                table.row([
                    row.contender.1.name(),
                    row.contender.0.name().to_owned(),
                    name.clone(),
                    format!("{cpu_us:.1}"),
                    format!("{:.2}", of(|used| used.waits as f64)),
                ]);
            }
        }
    }
    print!("{table}");
}
