//! What the runs came to, as a table and as a file.

use std::{fmt, fmt::Write as _, fs, io, path::Path};

use serde::{Deserialize, Serialize};
use testkit::{
    contest::{Contender, Run},
    figures::{Rounds, Table, quantile_us},
};

/// All rounds of one contender, by its place in [`Contender::ALL`], at one rate.
pub(crate) type Row = Rounds<(usize, u32), Figures>;

/// One run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Figures {
    pub(crate) announced: usize,
    pub(crate) announced_per_s: f64,
    pub(crate) pooled: usize,
    pub(crate) pooled_per_s: f64,
    pub(crate) lagged: u64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) cpu_us: f64,
    pub(crate) node_cpu_us: f64,
    pub(crate) grown_bytes: usize,
}

impl Figures {
    pub(crate) fn new(run: &Run) -> Self {
        Self {
            announced: run.announced,
            announced_per_s: run.announced_per_s,
            pooled: run.pooled,
            pooled_per_s: run.pooled_per_s(),
            lagged: run.lagged,
            p50_us: quantile_us(&run.latency, 0.5),
            p99_us: quantile_us(&run.latency, 0.99),
            cpu_us: run.cpu_us(),
            node_cpu_us: run.node_cpu.as_secs_f64() * 1e6 / run.announced.max(1) as f64,
            grown_bytes: run.grown_bytes,
        }
    }

    fn lost(&self) -> usize {
        self.announced - self.pooled
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "announced {} at {:.0}/s, lost {}, lagged {}, p99 {:.0} us, {:.1} us of CPU each",
            self.announced,
            self.announced_per_s,
            self.lost(),
            self.lagged,
            self.p99_us,
            self.cpu_us
        )
    }
}

/// Whether everything arrived in every round, and node and contender kept the rate.
pub(crate) fn is_held(row: &Row) -> bool {
    let rate = f64::from(row.contender.1);
    let is_held =
        |run: &Figures| run.lost() == 0 && run.lagged == 0 && run.announced_per_s > 0.95 * rate;
    row.runs.iter().all(is_held)
}

/// Lost, of everything announced in all rounds.
fn lost_share(row: &Row) -> f64 {
    let sum = |value: fn(&Figures) -> usize| row.runs.iter().map(value).sum::<usize>() as f64;
    sum(Figures::lost) / sum(|run| run.announced).max(1.0)
}

pub(crate) fn print(rows: &[Row]) {
    println!(
        "\nannounced by the node -> visible to a subscriber; medians of the rounds, ratios to the"
    );
    println!(
        "plain concurrent rival at the same rate; memory is what a run added, for each transaction"
    );
    let mut table = Table::new([
        "rate",
        "contender",
        "announced/s",
        "pooled/s",
        "lost",
        "lagged",
        "held",
        "p50 us",
        "p99 us",
        "p99 ratio",
        "CPU us/tx",
        "CPU ratio",
        "node us/tx",
        "bytes/tx",
        "MB",
    ]);
    for row in rows {
        let (contender, rate) = row.contender;
        let rival = rows.iter().find(|other| {
            other.contender.1 == rate && Contender::ALL[other.contender.0] == Contender::Concurrent
        });
        let ratio = |value: fn(&Figures) -> f64| {
            rival.map_or("-".to_owned(), |rival| row.ratio(rival, value).to_string())
        };
        table.row([
            rate.to_string(),
            Contender::ALL[contender].name().to_owned(),
            format!("{:.0}", row.median(|run| run.announced_per_s)),
            format!("{:.0}", row.median(|run| run.pooled_per_s)),
            format!("{:.2}%", lost_share(row) * 100.0),
            row.runs.iter().map(|run| run.lagged).sum::<u64>().to_string(),
            if is_held(row) { "yes" } else { "no" }.to_owned(),
            format!("{:.0}", row.median(|run| run.p50_us)),
            format!("{:.0}", row.median(|run| run.p99_us)),
            ratio(|run| run.p99_us),
            format!("{:.1}", row.median(|run| run.cpu_us)),
            ratio(|run| run.cpu_us),
            format!("{:.1}", row.median(|run| run.node_cpu_us)),
            format!("{:.0}", row.median(|run| run.grown_bytes as f64 / run.pooled.max(1) as f64)),
            format!("{:.0}", row.median(|run| run.grown_bytes as f64 / 1e6)),
        ]);
    }
    print!("{table}");
    for (place, contender) in Contender::ALL.iter().enumerate() {
        let held = rows.iter().filter(|row| row.contender.0 == place && is_held(row));
        match held.map(|row| row.contender.1).max() {
            Some(rate) => println!("{} held {rate}/s", contender.name()),
            None => println!("{} held none of these rates", contender.name()),
        }
    }
}

/// Every round of every row.
pub(crate) fn write_csv(path: &Path, rows: &[Row]) -> io::Result<()> {
    let mut text = String::from(
        "tps,contender,round,announced,announced_per_s,pooled,pooled_per_s,lagged,p50_us,p99_us,cpu_us_per_tx,\
         node_cpu_us_per_tx,grown_bytes\n",
    );
    for row in rows {
        let (contender, rate) = row.contender;
        let name = Contender::ALL[contender].name().replace(',', "");
        for (round, run) in row.runs.iter().enumerate() {
            writeln!(
                text,
                "{rate},{name},{round},{},{:.1},{},{:.1},{},{:.1},{:.1},{:.3},{:.3},{}",
                run.announced,
                run.announced_per_s,
                run.pooled,
                run.pooled_per_s,
                run.lagged,
                run.p50_us,
                run.p99_us,
                run.cpu_us,
                run.node_cpu_us,
                run.grown_bytes,
            )
            .expect("a string takes everything");
        }
    }
    fs::write(path, text)
}
