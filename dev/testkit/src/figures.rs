//! The figures of benches: medians and spreads over rounds, tables, and goals.

use std::fmt;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Makes a histogram of times in nanoseconds, up to ten minutes.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 600_000_000_000, 3).expect("bounds in order")
}

/// A quantile of a histogram of nanoseconds, in microseconds.
pub fn quantile_us(times: &Histogram<u64>, quantile: f64) -> f64 {
    times.value_at_quantile(quantile) as f64 / 1e3
}

/// Quantiles of a histogram of nanoseconds, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Times {
    pub count: u64,
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
    pub max: f64,
}

impl From<&Histogram<u64>> for Times {
    fn from(times: &Histogram<u64>) -> Self {
        let [p50, p95, p99, max] =
            [0.5, 0.95, 0.99, 1.0].map(|quantile| quantile_us(times, quantile));
        Self { count: times.len(), p50, p95, p99, max }
    }
}

/// Returns the median. For an even number of values it is the mean of the two in the middle;
/// without values it is NaN.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => values[len / 2],
        len => f64::midpoint(values[len / 2 - 1], values[len / 2]),
    }
}

/// The median of the rounds, and their lowest and highest value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// Makes the spread of values, one for each round.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let values: Vec<_> = values.into_iter().collect();
        Self {
            median: median(values.iter().copied()),
            min: values.iter().copied().fold(f64::INFINITY, f64::min),
            max: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        }
    }
}

/// Writes the median, and the lowest and highest value if they differ.
impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { median, min, max } = self;
        write!(f, "{median:.2}")?;
        if min < max { write!(f, " ({min:.2} to {max:.2})") } else { Ok(()) }
    }
}

/// All rounds of one contender.
#[derive(Clone, Debug)]
pub struct Rounds<Contender, Run> {
    pub contender: Contender,
    pub runs: Vec<Run>,
}

impl<Contender, Run> Rounds<Contender, Run> {
    pub const fn new(contender: Contender) -> Self {
        Self { contender, runs: Vec::new() }
    }

    pub fn median(&self, value: impl Fn(&Run) -> f64) -> f64 {
        median(self.runs.iter().map(value))
    }

    /// Returns the median without decimals.
    pub fn whole(&self, value: impl Fn(&Run) -> f64) -> String {
        format!("{:.0}", self.median(value))
    }

    /// Divides the value of each round by that of another contender. The two runs of a round are
    /// compared because they met the same load of the machine.
    pub fn ratio<Other>(
        &self,
        baseline: &Rounds<Other, Run>,
        value: impl Fn(&Run) -> f64,
    ) -> Spread {
        let pairs = self.runs.iter().zip(&baseline.runs);
        Spread::of(pairs.map(|(run, baseline)| value(run) / value(baseline)))
    }
}

/// A table whose columns are as wide as their cells. Text is aligned on the left; columns of
/// figures are aligned on the right.
#[derive(Clone, Debug, Default)]
pub struct Table(Vec<Vec<String>>);

impl Table {
    /// Makes a table with a row of titles, which are separated by bars.
    pub fn new(titles: &str) -> Self {
        Self(vec![titles.split('|').map(|title| title.trim().to_owned()).collect()])
    }

    /// Adds a row with one cell for each title.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let row: Vec<_> = cells.into_iter().collect();
        assert_eq!(row.len(), self.0[0].len(), "a row has one cell for each title");
        self.0.push(row);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_figure =
            |cell: &String| cell.starts_with(|c: char| c.is_ascii_digit() || "+-N".contains(c));
        let columns: Vec<_> = (0..self.0[0].len())
            .map(|column| {
                let cells = self.0.iter().map(|row| &row[column]);
                let width = cells.clone().map(|cell| cell.chars().count()).max().unwrap_or(0);
                (width, self.0.len() > 1 && cells.skip(1).all(is_figure))
            })
            .collect();
        for row in &self.0 {
            let mut line = String::new();
            for (cell, (width, right)) in row.iter().zip(&columns) {
                let cell =
                    if *right { format!("{cell:>width$}  ") } else { format!("{cell:<width$}  ") };
                line.push_str(&cell);
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// A figure, and the goal for it. A missed goal fails no bench, because the load of the machine
/// influences the figure.
#[derive(Clone, Debug)]
pub struct Goal {
    name: String,
    value: Spread,
    /// The text after the figure, beginning with a blank if there must be one.
    unit: &'static str,
    limit: f64,
    is_minimum: bool,
}

impl Goal {
    pub fn at_most(name: impl Into<String>, value: Spread, limit: f64, unit: &'static str) -> Self {
        Self { name: name.into(), value, unit, limit, is_minimum: false }
    }

    pub fn at_least(
        name: impl Into<String>,
        value: Spread,
        limit: f64,
        unit: &'static str,
    ) -> Self {
        Self { is_minimum: true, ..Self::at_most(name, value, limit, unit) }
    }
}

/// Writes whether the median reached the goal, and "within noise" if the rounds differ in that.
impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, value, unit, limit, is_minimum } = self;
        let bound = if *is_minimum { "at least" } else { "at most" };
        let is_reached = |value: f64| if *is_minimum { value >= *limit } else { value <= *limit };
        let verdict = if is_reached(value.median) { "reached" } else { "MISSED" };
        let noise =
            if is_reached(value.min) == is_reached(value.max) { "" } else { ", within noise" };
        write!(f, "{name}: {value}{unit}, goal {bound} {limit:.2}{unit}: {verdict}{noise}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_shows_whether_all_rounds_reached_it() {
        let spread = Spread::of([0.5, 1.0, 2.0]);
        let text = |limit| Goal::at_most("p99", spread, limit, " ms").to_string();
        assert_eq!(text(3.0), "p99: 1.00 (0.50 to 2.00) ms, goal at most 3.00 ms: reached");
        assert!(text(1.5).ends_with("reached, within noise"));
        assert!(text(0.7).ends_with("MISSED, within noise"));
        assert!(Goal::at_least("rate", spread, 2.5, "").to_string().ends_with("MISSED"));
    }
}
