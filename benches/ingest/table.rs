//! Medians over the rounds, printed and written down.

use std::{fmt::Write as _, fs, io, path::Path, time::Duration};

use crate::{
    node::Load,
    run::{Contender, Run},
};

/// All rounds of one contender under one load.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) contender: Contender,
    pub(crate) load: Load,
    pub(crate) runs: Vec<Run>,
}

impl Row {
    fn median(&self, value: impl Fn(&Run) -> f64) -> f64 {
        median(self.runs.iter().map(value).collect())
    }

    /// A quantile of the latency in microseconds: the median of the rounds'.
    pub(crate) fn latency_us(&self, quantile: f64) -> f64 {
        self.median(|run| run.latency.value_at_quantile(quantile) as f64 / 1e3)
    }

    /// Of everything announced in all rounds.
    pub(crate) fn lost_share(&self) -> f64 {
        self.lost() as f64 / self.announced().max(1) as f64
    }

    fn lost(&self) -> usize {
        self.runs.iter().map(Run::lost).sum()
    }

    fn announced(&self) -> usize {
        self.runs.iter().map(|run| run.announced).sum()
    }

    /// CPU time of the bench's process for each pooled transaction, in microseconds.
    fn cpu_us(&self) -> f64 {
        self.median(|run| run.cpu.as_secs_f64() * 1e6 / run.pooled.max(1) as f64)
    }

    fn pooled_per_s(&self) -> f64 {
        self.median(|run| run.pooled as f64 / run.wall.as_secs_f64().max(1e-9))
    }

    /// Cores kept busy by this process and by the node, while it ran.
    fn cores(&self) -> (f64, f64) {
        let share = |time: fn(&Run) -> Duration| {
            self.median(|run| time(run).as_secs_f64() / run.wall.as_secs_f64().max(1e-9))
        };
        (share(|run| run.cpu), share(|run| run.node_cpu))
    }

    /// Which side a burst was limited by, from what was busy.
    fn limit(&self) -> String {
        let (ours, node) = self.cores();
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let in_flight = if self.contender == Contender::Sequential { 1.0 } else { 64.0 };
        let by_latency = in_flight / self.load.latency.as_secs_f64().max(1e-9);
        let verdict = if self.lost_share() > 0.01 {
            "its buffer: it lost announcements"
        } else if self.pooled_per_s() > 0.7 * by_latency {
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

    fn load(&self) -> String {
        match self.load.tps {
            Some(tps) => format!("{tps}/s"),
            None => format!("burst {}", self.load.count),
        }
    }
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => values[len / 2],
        len => f64::midpoint(values[len / 2 - 1], values[len / 2]),
    }
}

/// Prints the table; `floor` is the bare cost of decode and recover in this run.
pub(crate) fn print(rows: &[Row], floor: Duration) {
    let floor_us = floor.as_secs_f64() * 1e6;
    println!("\nannounced by the node -> visible to a subscriber; medians of the rounds");
    println!("floor: {floor_us:.1} us of CPU to decode and recover one transaction of this list");
    println!(
        "{:<7} {:<11} {:<17} {:>9} {:>7} {:>10} {:>10} {:>10} {:>9} {:>9} {:>8} {:>6}",
        "answer",
        "load",
        "contender",
        "announced",
        "lost",
        "p50 us",
        "p95 us",
        "p99 us",
        "pooled/s",
        "CPU us/tx",
        "x floor",
        "late",
    );
    for row in rows {
        println!(
            "{:<7} {:<11} {:<17} {:>9} {:>6.2}% {:>10.0} {:>10.0} {:>10.0} {:>9.0} {:>9.1} {:>8.2} {:>6}",
            row.load.answer(),
            row.load(),
            row.contender.name(),
            row.announced(),
            row.lost_share() * 100.0,
            row.latency_us(0.5),
            row.latency_us(0.95),
            row.latency_us(0.99),
            row.pooled_per_s(),
            row.cpu_us(),
            row.cpu_us() / floor_us,
            row.runs.iter().map(|run| run.late).sum::<usize>(),
        );
    }
    println!("late: announced by the node more than 5 ms after they were due; many mean that the");
    println!("machine was too busy for its figures to be compared with another run's.");
    println!("A latency is of what was pooled: what was lost has none.");
    for row in rows.iter().filter(|row| row.load.tps.is_none()) {
        println!(
            "limit of {} at {}, {}: {}",
            row.load(),
            row.load.answer(),
            row.contender.name(),
            row.limit()
        );
    }
    for row in rows.iter().filter(|row| row.contender == Contender::Ours) {
        let lagged: u64 = row.runs.iter().map(|run| run.lagged).sum();
        if lagged > 0 {
            println!(
                "ours at {}, {}: its buffer lost {lagged}, all recovered by reconciliation",
                row.load.answer(),
                row.load()
            );
        }
    }
    compare(rows);
}

/// Ours against each rival under the same load, as ratios of this run.
fn compare(rows: &[Row]) {
    println!("\np99 of ours as a share of the rival's, under the same load in this run:");
    for ours in rows.iter().filter(|row| row.contender == Contender::Ours) {
        let of = |contender| {
            let rival = rows.iter().find(|row| {
                row.contender == contender
                    && row.load.tps == ours.load.tps
                    && row.load.latency == ours.load.latency
            });
            rival.map_or(f64::NAN, |rival| ours.latency_us(0.99) / rival.latency_us(0.99))
        };
        println!(
            "{:<7} {:<11} plain concurrent {:>6.2}   sequential {:>6.2}",
            ours.load.answer(),
            ours.load(),
            of(Contender::Concurrent),
            of(Contender::Sequential),
        );
    }
}

/// Every round of every row, for whoever wants to look closer.
pub(crate) fn write_csv(path: &Path, rows: &[Row], floor: Duration) -> io::Result<()> {
    let mut text = String::from(
        "answer_us,tps,contender,round,announced,pooled,lost,lagged,late,p50_us,p95_us,p99_us,max_us,wall_s,\
         cpu_us_per_tx,floor_us_per_tx,node_cpu_s\n",
    );
    for row in rows {
        for (round, run) in row.runs.iter().enumerate() {
            let us = |quantile| run.latency.value_at_quantile(quantile) as f64 / 1e3;
            writeln!(
                text,
                "{},{},{},{round},{},{},{},{},{},{},{},{},{},{},{:.3},{:.3},{}",
                row.load.latency.as_micros(),
                row.load.tps.map_or("burst".to_owned(), |tps| tps.to_string()),
                row.contender.name(),
                run.announced,
                run.pooled,
                run.lost(),
                run.lagged,
                run.late,
                us(0.5),
                us(0.95),
                us(0.99),
                us(1.0),
                run.wall.as_secs_f64(),
                run.cpu.as_secs_f64() * 1e6 / run.pooled.max(1) as f64,
                floor.as_secs_f64() * 1e6,
                run.node_cpu.as_secs_f64(),
            )
            .expect("a string takes everything");
        }
    }
    fs::write(path, text)
}
