//! Medians over the rounds and how far the rounds lie apart, printed.

use std::{fmt, time::Duration};

use hdrhistogram::Histogram;

/// What one run of one contender came to.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    /// Of live announcements: from the socket to the pool, in nanoseconds.
    pub(crate) live: Histogram<u64>,
    pub(crate) live_per_s: f64,
    /// Deferrable work done a second: backfilled or accepted.
    pub(crate) other_per_s: f64,
    /// By the outer gate and by the inner one.
    pub(crate) refused: [u64; 2],
    pub(crate) deferred: u64,
    pub(crate) oldest: Duration,
    pub(crate) resident_bytes: u64,
    /// Announcements that the node made more than 5 ms late.
    pub(crate) late: usize,
    /// Of the looks at the monitor, those that found pressure.
    pub(crate) pressed_share: f64,
}

/// All rounds of one contender.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) runs: Vec<Figures>,
}

impl Row {
    pub(crate) fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), runs: Vec::new() }
    }

    pub(crate) fn median(&self, value: impl Fn(&Figures) -> f64) -> f64 {
        median(self.runs.iter().map(value))
    }

    /// A quantile of live latency in microseconds: the median of the rounds'.
    pub(crate) fn live_us(&self, quantile: f64) -> f64 {
        self.median(|run| live_us(run, quantile))
    }
}

fn live_us(run: &Figures, quantile: f64) -> f64 {
    run.live.value_at_quantile(quantile) as f64 / 1e3
}

/// What the rounds came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    pub(crate) fn of(values: impl Iterator<Item = f64> + Clone) -> Self {
        Self {
            median: median(values.clone()),
            min: values.clone().fold(f64::INFINITY, f64::min),
            max: values.fold(f64::NEG_INFINITY, f64::max),
        }
    }
}

/// The median, and how far the rounds lie apart if there are several.
impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { median, min, max } = self;
        write!(f, "{median:.2}")?;
        if min < max { write!(f, " ({min:.2} to {max:.2})") } else { Ok(()) }
    }
}

/// A quantile of one against that of another: the rounds' ratios, since both of a round met the same
/// machine.
pub(crate) fn ratio(of: &Row, to: &Row, quantile: f64) -> Spread {
    let pairs = of.runs.iter().zip(&to.runs);
    Spread::of(pairs.map(|(of, to)| live_us(of, quantile) / live_us(to, quantile)))
}

/// As [`ratio`], of the deferrable work done a second: 1 if there was none to do.
pub(crate) fn other_ratio(of: &Row, to: &Row) -> Spread {
    let pairs = of.runs.iter().zip(&to.runs).map(|(of, to)| (of.other_per_s, to.other_per_s));
    Spread::of(pairs.map(|(of, to)| if of == to { 1.0 } else { of / to }))
}

pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => values[len / 2],
        len => f64::midpoint(values[len / 2 - 1], values[len / 2]),
    }
}

/// Prints a table; `other` names what the deferrable work of it is.
pub(crate) fn print<'a>(title: &str, other: &str, rows: impl IntoIterator<Item = &'a Row>) {
    println!("\n{title}");
    println!(
        "{:<30} {:>9} {:>9} {:>9} {:>8} {:>13} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8} {:>5}",
        "",
        "p50 us",
        "p95 us",
        "p99 us",
        "live/s",
        other,
        "no: outer",
        "no: inner",
        "deferred",
        "oldest ms",
        "pressed",
        "res. MB",
        "late",
    );
    for row in rows {
        println!(
            "{:<30} {:>9.0} {:>9.0} {:>9.0} {:>8.0} {:>13.0} {:>9.0} {:>9.0} {:>9.0} {:>9.0} {:>7.1}% {:>8.0} {:>5}",
            row.name,
            row.live_us(0.5),
            row.live_us(0.95),
            row.live_us(0.99),
            row.median(|run| run.live_per_s),
            row.median(|run| run.other_per_s),
            row.median(|run| run.refused[0] as f64),
            row.median(|run| run.refused[1] as f64),
            row.median(|run| run.deferred as f64),
            row.median(|run| run.oldest.as_secs_f64() * 1e3),
            row.median(|run| run.pressed_share * 100.0),
            row.median(|run| run.resident_bytes as f64 / 1e6),
            row.runs.iter().map(|run| run.late).sum::<usize>(),
        );
    }
}

/// Prints a goal, and whether the median reached it; within noise if not all rounds say the same. A goal
/// never fails the bench.
pub(crate) fn goal(what: &str, value: Spread, at_most: f64, unit: &str) {
    let verdict = if value.median <= at_most { "reached" } else { "MISSED" };
    let spans = value.min <= at_most && at_most < value.max;
    let noise = if spans { ", within noise" } else { "" };
    println!("  {what}: {value}{unit}, goal at most {at_most:.2}{unit}: {verdict}{noise}");
}
