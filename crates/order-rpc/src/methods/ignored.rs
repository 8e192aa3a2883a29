//! Fields of parameters that other builders document, and that have no effect here.

/// The fields, and [`OTHER`]. BuilderNet documents the state and the targets, beaverbuild whether its
/// refunds are wanted, Flashbots the privacy.
pub(crate) const IGNORED_FIELDS: [&str; 6] =
    ["allowBuilderNetRefunds", "desiredState", "privacy", "targetAddresses", "targetSlots", OTHER];

/// Stands for any other field of what a front forwards.
const OTHER: &str = "other";

/// The fields that were passed over in the parameters of a request.
#[derive(Debug)]
pub(crate) struct Ignored {
    /// Whether fields that are not known are passed over too.
    is_lenient: bool,
    /// How many of each of [`IGNORED_FIELDS`].
    pub(crate) counts: [u64; IGNORED_FIELDS.len()],
}

impl Ignored {
    pub(crate) const fn new(is_lenient: bool) -> Self {
        Self { is_lenient, counts: [0; IGNORED_FIELDS.len()] }
    }

    /// Whether a field that the parameters of the method do not have is passed over. Counts it.
    pub(crate) fn passes(&mut self, field: &str) -> bool {
        let index_of = |field: &str| IGNORED_FIELDS.iter().position(|name| *name == field);
        let known = index_of(field).filter(|_| field != OTHER);
        let index = known.or_else(|| index_of(OTHER).filter(|_| self.is_lenient));
        let count = index.and_then(|index| self.counts.get_mut(index));
        let passes = count.is_some();
        if let Some(count) = count {
            *count = count.saturating_add(1);
        }
        passes
    }
}

/// The known name that a misspelt one is nearest to, if it differs in a quarter of its letters at most.
pub(crate) fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    // A longer name is none of ours, and would take long to compare.
    if name.len() > 32 {
        return None;
    }
    let distances = known.iter().map(|candidate| (distance(name, candidate), *candidate));
    let (distance, nearest) = distances.min()?;
    (distance <= nearest.len().div_ceil(4)).then_some(nearest)
}

/// The number of letters to insert, remove or replace, whatever their case (Levenshtein).
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (number, letter) in (1_usize..).zip(one.bytes()) {
        let mut next = vec![number];
        let pairs = row.windows(2).zip(other.bytes());
        for (pair, other_letter) in pairs {
            let [diagonal, above] = pair else { continue };
            let replaced = usize::from(!letter.eq_ignore_ascii_case(&other_letter));
            let left = next.last().copied().unwrap_or_default();
            let least = diagonal.saturating_add(replaced).min(above.min(&left).saturating_add(1));
            next.push(least);
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_name_has_the_nearest_one_and_a_strange_one_has_none() {
        let known = ["txs", "blockNumber", "revertingTxHashes", "droppingTxHashes"];
        for (name, expected) in [
            ("blocknumber", Some("blockNumber")),
            ("revertingHashes", Some("revertingTxHashes")),
            ("droppingTxsHashes", Some("droppingTxHashes")),
            ("tx", Some("txs")),
            ("surprise", None),
            ("", None),
        ] {
            assert_eq!(nearest(name, &known), expected, "{name}");
        }
        assert_eq!((distance("kitten", "sitting"), distance("", "abc")), (3, 3));
    }
}
