//! Decides whether a process has grown over a run.

/// The resources of a process at one check: resident memory besides its orders and remembered
/// hashes in bytes, open files, threads.
pub(crate) type Usage = [usize; 3];

/// Whether a process has grown. Between the first third of the checks and the last, memory must not
/// grow by more than a tenth and 16 MB, and files and threads by no more than two. The process has
/// filled its memory of hashes before the first check.
pub(crate) fn has_grown(checks: &[Usage]) -> bool {
    let third = checks.len() / 3;
    if third == 0 {
        return false;
    }
    let (early, late) = (&checks[..third], &checks[checks.len() - third..]);
    let is_larger = quiet_usage(late, 0) as f64 > 1.1 * quiet_usage(early, 0) as f64 + 16e6;
    let has_more = (1..3).any(|index| quiet_usage(late, index) > quiet_usage(early, index) + 2);
    is_larger || has_more
}

/// Returns the usage at the quiet checks, the lowest tenth: the memory of an attacker's requests
/// comes and goes.
fn quiet_usage(checks: &[Usage], index: usize) -> usize {
    let mut values: Vec<_> = checks.iter().map(|usage| usage[index]).collect();
    values.sort_unstable();
    values[values.len() / 10]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_grown_if_its_quiet_usage_has() {
        let usages = |late| [vec![[100 << 20, 9, 9]; 20], vec![late; 10]].concat();
        assert!(!has_grown(&usages([110 << 20, 11, 9])));
        for late in [[150 << 20, 9, 9], [100 << 20, 12, 9], [100 << 20, 9, 12]] {
            assert!(has_grown(&usages(late)));
        }
        assert!(!has_grown(&[]));
    }
}
