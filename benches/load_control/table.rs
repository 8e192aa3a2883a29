//! What the runs came to, and the table of it.

use std::time::Duration;

use hdrhistogram::Histogram;
use testkit::figures::{Goal, Rounds, Spread, Table, quantile_us};

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
    pub(crate) resident_bytes: usize,
    /// Announcements that the node made more than 5 ms late.
    pub(crate) late: usize,
    /// Of the looks at the monitor, those that found pressure.
    pub(crate) pressed_share: f64,
}

/// All rounds of one contender.
pub(crate) type Row = Rounds<String, Figures>;

fn live_us(run: &Figures, quantile: f64) -> f64 {
    quantile_us(&run.live, quantile)
}

/// A quantile of one against that of another: the rounds' ratios, since both of a round met the same
/// machine.
pub(crate) fn ratio(of: &Row, to: &Row, quantile: f64) -> Spread {
    of.ratio(to, |run| live_us(run, quantile))
}

/// As [`ratio`], of the deferrable work done a second: 1 if there was none to do.
pub(crate) fn other_ratio(of: &Row, to: &Row) -> Spread {
    let pairs = of.runs.iter().zip(&to.runs).map(|(of, to)| (of.other_per_s, to.other_per_s));
    Spread::of(pairs.map(|(of, to)| if of == to { 1.0 } else { of / to }))
}

/// Prints a goal.
pub(crate) fn goal(what: &str, value: Spread, at_most: f64, unit: &'static str) {
    println!("  {}", Goal::at_most(what, value, at_most, unit));
}

/// Prints a table; `other` names what the deferrable work of it is.
pub(crate) fn print<'a>(title: &str, other: &str, rows: impl IntoIterator<Item = &'a Row>) {
    let mut table = Table::new([
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
    ]);
    for row in rows {
        let whole = |value: &dyn Fn(&Figures) -> f64| format!("{:.0}", row.median(value));
        table.row([
            row.contender.clone(),
            whole(&|run| live_us(run, 0.5)),
            whole(&|run| live_us(run, 0.95)),
            whole(&|run| live_us(run, 0.99)),
            whole(&|run| run.live_per_s),
            whole(&|run| run.other_per_s),
            whole(&|run| run.refused[0] as f64),
            whole(&|run| run.refused[1] as f64),
            whole(&|run| run.deferred as f64),
            whole(&|run| run.oldest.as_secs_f64() * 1e3),
            format!("{:.1}%", row.median(|run| run.pressed_share * 100.0)),
            whole(&|run| run.resident_bytes as f64 / 1e6),
            row.runs.iter().map(|run| run.late).sum::<usize>().to_string(),
        ]);
    }
    print!("\n{title}\n{table}");
}
