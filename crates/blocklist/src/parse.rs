//! Parses text and JSON into a [`Blocklist`]. The text is outside input: every deviation is an
//! error that names its position.

// Bytes from outside are read here: none of them may cause a panic.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::expect_used))]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::string_slice, clippy::unreachable))]

use alloy_primitives::{Address, map::AddressMap};

use crate::{Blocklist, BlocklistConfig, Duplicates, Error, MAX_BYTES, Place};

impl Blocklist {
    /// Parses JSON if the first character that is not white space is `[`, which no text list can
    /// begin with, and text otherwise.
    ///
    /// # Errors
    /// See [`Self::from_text`] and [`Self::from_json`]; [`Error::NotUtf8`].
    pub fn parse(bytes: &[u8], config: &BlocklistConfig) -> Result<Self, Error> {
        check_length(bytes)?;
        let text = std::str::from_utf8(bytes)
            .map_err(|error| Error::NotUtf8 { valid_bytes: error.valid_up_to() })?;
        if without_bom(text).trim_start().starts_with('[') {
            Self::from_json(text, config)
        } else {
            Self::from_text(text, config)
        }
    }

    /// Parses one address per line. Everything after a `#` is a comment; blank lines are skipped.
    ///
    /// An address is `0x` and 40 hexadecimal digits. Digits in mixed case must have the EIP-55
    /// checksum; digits in one case have none. A repeated address counts once and is reported by
    /// [`Self::duplicates`].
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::BadAddress`], [`Error::BadChecksum`], [`Error::TooFew`].
    pub fn from_text(text: &str, config: &BlocklistConfig) -> Result<Self, Error> {
        check_length(text.as_bytes())?;
        let lines = without_bom(text).lines().enumerate().filter_map(|(index, line)| {
            let entry = line.split('#').next().unwrap_or_default().trim();
            (!entry.is_empty()).then_some((Place::Line(index.saturating_add(1)), entry))
        });
        collect(lines, config)
    }

    /// Parses a JSON array of address strings, written as in [`Self::from_text`].
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::Json`], [`Error::BadAddress`], [`Error::BadChecksum`],
    /// [`Error::TooFew`].
    pub fn from_json(text: &str, config: &BlocklistConfig) -> Result<Self, Error> {
        check_length(text.as_bytes())?;
        let entries: Vec<String> =
            serde_json::from_str(without_bom(text)).map_err(|source| Error::Json { source })?;
        let placed = (1..).map(Place::Entry).zip(entries.iter().map(String::as_str));
        collect(placed, config)
    }
}

/// Refuses a text that is too long before any of it is parsed.
pub(crate) const fn check_length(text: &[u8]) -> Result<(), Error> {
    if text.len() > MAX_BYTES {
        Err(Error::TooLarge { bytes: text.len(), max_bytes: MAX_BYTES })
    } else {
        Ok(())
    }
}

/// Collects entries into a list, and notes which of them repeat an address.
fn collect<'a>(
    entries: impl Iterator<Item = (Place, &'a str)>,
    config: &BlocklistConfig,
) -> Result<Blocklist, Error> {
    let mut seen: AddressMap<Place> = AddressMap::default();
    let mut duplicates: Option<Duplicates> = None;
    for (place, entry) in entries {
        let address = parse_address(place, entry)?;
        let first = *seen.entry(address).or_insert(place);
        if first != place {
            let found = Duplicates { count: 0, place, first, address };
            let all = duplicates.get_or_insert(found);
            all.count = all.count.saturating_add(1);
        }
    }
    let mut list = Blocklist::from_addresses(seen.into_keys(), config)?;
    list.duplicates = duplicates;
    Ok(list)
}

fn parse_address(place: Place, entry: &str) -> Result<Address, Error> {
    let bad = || Error::BadAddress { place, found: entry.chars().take(64).collect() };
    let digits = entry.strip_prefix("0x").ok_or_else(bad)?;
    // The length is checked first, because the decoder accepts a second prefix before the digits.
    if digits.len() != 40 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(bad());
    }
    let address: Address = entry.parse().map_err(|_| bad())?;
    let mixed = digits.bytes().any(|byte| byte.is_ascii_lowercase())
        && digits.bytes().any(|byte| byte.is_ascii_uppercase());
    if mixed {
        let expected = address.to_checksum(None);
        if expected != entry {
            let (found, expected) = (entry.into(), expected.into());
            return Err(Error::BadChecksum { place, found, expected });
        }
    }
    Ok(address)
}

/// Skips the byte order mark that editors on Windows put before UTF-8.
fn without_bom(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    // The examples of EIP-55.
    const NORMAL: [&str; 4] = [
        "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed",
        "0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359",
        "0xdbF03B407c01E7cD3CBea99509d93f8DDDC8C6FB",
        "0xD1220A0cf47c7B9Be7A2E6BA89F429762e7b9aDb",
    ];

    fn parse(text: &str) -> Result<Blocklist, Error> {
        Blocklist::parse(text.as_bytes(), &BlocklistConfig::default())
    }

    #[test]
    fn a_wrong_checksum_names_its_line_and_the_right_spelling() {
        for (index, good) in NORMAL.iter().enumerate() {
            // Flips the case of each letter in turn: each change must be detected.
            let letters = good.char_indices().filter(|(i, c)| *i > 1 && c.is_ascii_alphabetic());
            for (position, letter) in letters {
                let mut wrong = good.to_string();
                let flipped = if letter.is_ascii_lowercase() {
                    letter.to_ascii_uppercase()
                } else {
                    letter.to_ascii_lowercase()
                };
                wrong.replace_range(position..=position, &flipped.to_string());
                let text = format!("{}# comment\n{wrong}\n", "\n".repeat(index));
                match parse(&text) {
                    Err(Error::BadChecksum { place, found, expected }) => {
                        assert_eq!(place, Place::Line(index + 2));
                        assert_eq!((&*found, &*expected), (&*wrong, *good));
                    }
                    other => panic!("{wrong}: {other:?}"),
                }
            }
        }
    }

    #[test]
    fn an_entry_that_is_no_address_is_refused_with_its_place() {
        let digits = "5aaeb6053f3e94c9b9a09f33669435e7ef1beaed";
        for bad in [
            digits.to_string(),
            format!("0X{digits}"),
            format!("0x{}", &digits[1..]),
            format!("0x{digits}0"),
            format!("0x0x{}", &digits[2..]),
            format!("0x{}", digits.replace('b', "g")),
            format!("0x{digits} 0x{digits}"),
            format!("0x{digits},"),
            format!("\"0x{digits}\""),
            "{\"blocklist\":[]}".to_string(),
            "<html>502 Bad Gateway</html>".to_string(),
            format!("0x{}", "é".repeat(20)),
        ] {
            match parse(&format!("0x{digits}\n{bad}\n")) {
                Err(Error::BadAddress { place: Place::Line(2), found }) => {
                    assert_eq!(*found, *bad.chars().take(64).collect::<String>());
                }
                other => panic!("{bad}: {other:?}"),
            }
        }
        let json = format!("[\"0x{digits}\", \"\"]");
        let error = parse(&json).expect_err("an empty string");
        assert!(matches!(error, Error::BadAddress { place: Place::Entry(2), .. }), "{error}");
    }

    #[test]
    fn a_repeated_address_counts_once_and_is_named_with_both_places() {
        let again = NORMAL[0].to_lowercase();
        let text = format!("{}\n\n{again}\n{}\n{again}\n", NORMAL[0], NORMAL[1]);
        let list = parse(&text).expect("a list with a warning");
        assert_eq!(list, parse(&NORMAL[..2].join("\n")).expect("the same without"));
        let found = list.duplicates().expect("two");
        assert_eq!((found.count, found.first, found.place), (2, Place::Line(1), Place::Line(3)));
        assert_eq!(found.address.to_checksum(None), NORMAL[0]);
        let expected = format!("the first at line 3: {} is already at line 1", NORMAL[0]);
        assert!(found.to_string().contains(&expected), "{found}");

        let json = format!("[\"{}\",\"{}\"]", NORMAL[0], NORMAL[0]);
        let found = parse(&json).expect("a list with a warning").duplicates().expect("one");
        assert_eq!((found.count, found.place), (1, Place::Entry(2)));
        assert_eq!(parse(NORMAL[0]).expect("a good list").duplicates(), None);
        // Two lines, and one address: too few where two are needed.
        let config = BlocklistConfig { min_addresses: 2, ..BlocklistConfig::default() };
        let twice = format!("{}\n{again}", NORMAL[0]);
        let short = Blocklist::parse(twice.as_bytes(), &config);
        assert!(matches!(short, Err(Error::TooFew { found: 1, min: 2 })));
    }

    #[test]
    fn an_empty_list_is_refused_unless_it_is_allowed() {
        let allowed = BlocklistConfig { min_addresses: 0, ..BlocklistConfig::default() };
        for empty in ["", "\n \n", "# nothing\n", "[]", " [ ] "] {
            assert!(matches!(parse(empty), Err(Error::TooFew { found: 0, min: 1 })), "{empty:?}");
            let list = Blocklist::parse(empty.as_bytes(), &allowed).expect("allowed");
            assert!(list.is_empty());
        }
    }

    #[test]
    fn a_list_cut_between_lines_is_refused_when_its_length_is_known() {
        let config = BlocklistConfig { min_addresses: 4, ..BlocklistConfig::default() };
        let whole = NORMAL.join("\n");
        assert!(Blocklist::parse(whole.as_bytes(), &config).is_ok());
        for cut in 0..whole.len() {
            assert!(Blocklist::parse(&whole.as_bytes()[..cut], &config).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn broken_json_is_refused() {
        for bad in ["[", "[\"0x", "[1]", "[null]", "[[]]", "[{}]", "[\"a\"] x"] {
            assert!(matches!(parse(bad), Err(Error::Json { .. })), "{bad}");
        }
    }

    #[test]
    fn invalid_utf8_and_too_long_texts_are_refused() {
        let config = BlocklistConfig::default();
        let error = Blocklist::parse(b"# \xff", &config).expect_err("not UTF-8");
        assert!(matches!(error, Error::NotUtf8 { valid_bytes: 2 }), "{error}");
        let long = format!("{}{}", NORMAL[0], " ".repeat(MAX_BYTES));
        for result in [
            Blocklist::parse(long.as_bytes(), &config),
            Blocklist::from_text(&long, &config),
            Blocklist::from_json(&long, &config),
        ] {
            assert!(matches!(result, Err(Error::TooLarge { max_bytes: MAX_BYTES, .. })));
        }
    }
}
