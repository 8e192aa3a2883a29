//! Formats the history of one order as all parts know it, for a violation.

use crate::oracle::Disturbance;

/// Returns the lines in the order of time, in seconds from `run_begins`, with the disturbances
/// between them.
pub(crate) fn tell(
    mut lines: Vec<(u64, String)>,
    run_begins: u64,
    disturbances: &[Disturbance],
) -> String {
    let seconds = |time: u64| (time as f64 - run_begins as f64) / 1e9;
    lines.extend(disturbances.iter().map(|Disturbance { part, begins, ends }| {
        (*begins, format!("{part:?} is disturbed until {:.1} s", seconds(*ends)))
    }));
    lines.sort();
    lines.iter().map(|(time, line)| format!("    {:8.3} s  {line}\n", seconds(*time))).collect()
}
