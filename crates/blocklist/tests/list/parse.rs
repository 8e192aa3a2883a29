//! Property tests of the parser on outside bytes.

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

/// Distinct addresses, each with a spelling and the text that follows it on its line.
fn entries() -> impl Strategy<Value = BTreeMap<[u8; 20], (Spelling, &'static str)>> {
    let around = prop_oneof![Just(""), Just("  "), Just("\t# owner"), Just("\r\n\n# a comment")];
    prop::collection::btree_map(any::<[u8; 20]>(), (spelling(), around), 1..40)
}

proptest! {
    #[test]
    fn any_bytes_are_a_list_or_an_error_and_never_a_panic(
        bytes in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..200),
            // Texts that are nearly valid.
            "[\\[\\]\",#0x1-9a-fA-F \n]{0,200}".prop_map(String::into_bytes),
            "(0x[0-9a-fA-F]{40}[ ,\n]{0,2}){0,4}".prop_map(String::into_bytes),
        ],
    ) {
        if let Ok(list) = Blocklist::parse(&bytes, &BlocklistConfig::default()) {
            prop_assert!(!list.is_empty());
            // Each address takes 42 characters, so none was invented.
            prop_assert!(list.len() * 42 <= bytes.len());
        }
    }

    #[test]
    fn every_spelling_in_either_format_is_the_same_list(entries in entries()) {
        let config = BlocklistConfig::default();
        let addresses = entries.keys().map(Address::from);
        let expected = Blocklist::from_addresses(addresses, &config).expect("not empty");
        let line = |(address, (spelling, around)): (&[u8; 20], &(Spelling, &str))| {
            format!("{}{around}\n", spell(&address.into(), *spelling))
        };
        let text: String = entries.iter().map(line).collect();
        prop_assert_eq!(&Blocklist::parse(text.as_bytes(), &config).expect("good"), &expected);
        let strings: Vec<String> = entries
            .iter()
            .map(|(address, (spelling, _))| format!("\"{}\"", spell(&address.into(), *spelling)))
            .collect();
        for mark in ["", "\u{feff}"] {
            let json = format!("{mark} [{}]", strings.join(",\n"));
            prop_assert_eq!(&Blocklist::parse(json.as_bytes(), &config).expect("good"), &expected);
        }
    }

    #[test]
    fn a_damaged_list_names_no_address_that_it_does_not_contain(
        bytes in damaged_seeds("blocklists"),
    ) {
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
