//! Fields of parameters that other builders document and that have no effect here.

/// The fields that are accepted without effect, and [`OTHER`]. beaverbuild documents
/// `allowBuilderNetRefunds`, and Flashbots `privacy`.
pub(crate) const IGNORED_FIELDS: [&str; 3] = ["allowBuilderNetRefunds", "privacy", OTHER];

/// Stands for any other field of what a front forwards.
const OTHER: &str = "other";

/// Counts the fields that were ignored in the parameters of one request.
#[derive(Debug)]
pub(crate) struct IgnoredFields {
    /// Whether unknown fields are ignored too.
    is_lenient: bool,
    /// The count of each of [`IGNORED_FIELDS`].
    pub(crate) counts: [u64; IGNORED_FIELDS.len()],
}

impl IgnoredFields {
    pub(crate) const fn new(is_lenient: bool) -> Self {
        Self { is_lenient, counts: [0; IGNORED_FIELDS.len()] }
    }

    /// Counts a field that the parameters of the method do not have, and returns true, if it is
    /// ignored; otherwise it must be refused.
    pub(crate) fn try_ignore(&mut self, field: &str) -> bool {
        let mut label = OTHER;
        if field != OTHER && IGNORED_FIELDS.contains(&field) {
            label = field;
        } else if !self.is_lenient {
            return false;
        }
        for (name, count) in IGNORED_FIELDS.iter().zip(&mut self.counts) {
            if *name == label {
                *count = count.saturating_add(1);
            }
        }
        true
    }
}

/// Returns the known name that is nearest to an unknown one, if they differ in at most a quarter of
/// the letters, whatever their case.
pub(crate) fn nearest_name<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    // A much longer name is no misspelling of ours, and would take long to compare.
    if name.len() > 32 {
        return None;
    }
    let name = name.to_ascii_lowercase();
    let distances = known
        .iter()
        .map(|candidate| (strsim::levenshtein(&name, &candidate.to_ascii_lowercase()), *candidate));
    let (distance, nearest) = distances.min()?;
    (distance <= nearest.len().div_ceil(4)).then_some(nearest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_name_has_a_nearest_one_and_a_strange_one_none() {
        let known = ["txs", "blockNumber", "revertingTxHashes", "droppingTxHashes"];
        for (name, expected) in [
            ("blocknumber", Some("blockNumber")),
            ("revertingHashes", Some("revertingTxHashes")),
            ("droppingTxsHashes", Some("droppingTxHashes")),
            ("tx", Some("txs")),
            ("surprise", None),
            ("", None),
        ] {
            assert_eq!(nearest_name(name, &known), expected, "{name}");
        }
    }
}
