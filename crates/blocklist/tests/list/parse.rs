//! The parser against outside bytes.

use std::collections::BTreeMap;

use alloy_primitives::{Address, hex};
use blocklist::{Blocklist, BlocklistConfig};
use proptest::prelude::*;
use testkit::corpus::{damaged_seeds, seeds};

/// How an address may be written.
#[derive(Debug, Clone, Copy)]
enum Spelling {
    Lower,
    Upper,
    Checksum,
}

fn spell(address: &Address, spelling: Spelling) -> String {
    match spelling {
        Spelling::Lower => format!("0x{}", hex::encode(address)),
        Spelling::Upper => format!("0x{}", hex::encode_upper(address)),
        Spelling::Checksum => address.to_checksum(None),
    }
}

fn spelling() -> impl Strategy<Value = Spelling> {
    prop_oneof![Just(Spelling::Lower), Just(Spelling::Upper), Just(Spelling::Checksum)]
}

/// Distinct addresses, each with a spelling and what may stand around it on its line.
fn entries() -> impl Strategy<Value = BTreeMap<[u8; 20], (Spelling, &'static str)>> {
    let around = prop_oneof![Just(""), Just("  "), Just("\t# who"), Just("\n\n# a comment\n")];
    prop::collection::btree_map(any::<[u8; 20]>(), (spelling(), around), 1..40)
}

fn text_of(entries: &BTreeMap<[u8; 20], (Spelling, &'static str)>) -> String {
    let line = |(address, (spelling, around)): (&[u8; 20], &(Spelling, &str))| {
        format!("{}{around}\n", spell(&address.into(), *spelling))
    };
    entries.iter().map(line).collect()
}

proptest! {
    #[test]
    fn any_bytes_are_a_list_or_an_error_and_never_a_panic(
        bytes in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..200),
            // Nearer to what is valid.
            "[\\[\\]\",#0x1-9a-fA-F \n]{0,200}".prop_map(String::into_bytes),
            "(0x[0-9a-fA-F]{40}[ ,\n]{0,2}){0,4}".prop_map(String::into_bytes),
        ],
    ) {
        if let Ok(list) = Blocklist::parse(&bytes, &BlocklistConfig::default()) {
            prop_assert!(!list.is_empty());
            // Each address takes 42 characters, so nothing was made up.
            prop_assert!(list.len() * 42 <= bytes.len());
        }
    }

    #[test]
    fn every_spelling_in_either_format_is_the_same_list(entries in entries()) {
        let config = BlocklistConfig::default();
        let addresses = entries.keys().map(Address::from);
        let expected = Blocklist::from_addresses(addresses, &config).expect("not empty");
        let text = text_of(&entries);
        prop_assert_eq!(&Blocklist::parse(text.as_bytes(), &config).expect("good"), &expected);
        let strings: Vec<String> = entries
            .iter()
            .map(|(address, (spelling, _))| format!("\"{}\"", spell(&address.into(), *spelling)))
            .collect();
        let json = format!("[{}]", strings.join(","));
        prop_assert_eq!(&Blocklist::parse(json.as_bytes(), &config).expect("good"), &expected);
    }

    #[test]
    fn an_address_that_is_named_twice_in_whatever_spelling_counts_once_with_a_warning(
        entries in entries(),
        again in any::<prop::sample::Index>(),
        spelling in spelling(),
    ) {
        let (address, _) = entries.iter().nth(again.index(entries.len())).expect("within");
        let text = format!("{}{}\n", text_of(&entries), spell(&address.into(), spelling));
        let list = Blocklist::parse(text.as_bytes(), &BlocklistConfig::default()).expect("good");
        prop_assert_eq!(list.len(), entries.len());
        let found = list.duplicates().expect("one");
        prop_assert_eq!((found.count, found.address), (1, Address::from(address)));
    }

    #[test]
    fn a_list_cut_anywhere_is_refused_when_its_length_is_known(
        entries in entries(),
        cut in any::<prop::sample::Index>(),
    ) {
        let config =
            BlocklistConfig { min_addresses: entries.len(), ..BlocklistConfig::default() };
        let text: String = entries
            .iter()
            .map(|(address, (spelling, _))| spell(&address.into(), *spelling) + "\n")
            .collect();
        // Up to its last digit.
        let cut = &text.as_bytes()[..cut.index(text.len() - 1)];
        prop_assert!(Blocklist::parse(cut, &config).is_err());
    }

    #[test]
    fn a_damaged_list_names_no_address_that_it_does_not_contain(bytes in damaged_seeds("blocklists")) {
        if let Ok(list) = Blocklist::parse(&bytes, &BlocklistConfig::default()) {
            let text = String::from_utf8(bytes).expect("it was parsed").to_ascii_lowercase();
            for address in list.iter() {
                prop_assert!(text.contains(&spell(address, Spelling::Lower)), "{address}");
            }
        }
    }
}

#[test]
fn the_kept_lists_are_parsed_or_refused() {
    for seed in seeds("blocklists") {
        let parsed = Blocklist::parse(&seed.bytes, &BlocklistConfig::default());
        assert_eq!(parsed.is_ok(), seed.is_good(), "{}: {parsed:?}", seed.name);
    }
}
