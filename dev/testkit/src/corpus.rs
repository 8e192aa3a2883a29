//! Stored inputs for the decoders of outside bytes, and random variations of them.
//!
//! Each folder of `corpus/` belongs to one decoder, which accepts files whose names begin with
//! `good-` and refuses those that begin with `bad-`: answers of nodes, orders and lists in all
//! forms that occur, and damaged ones. Inputs that were once decoded wrongly are stored here too.

use std::{fs, path::Path};

use proptest::{
    collection::vec,
    prelude::*,
    sample::{Index, select},
};

/// A stored input.
#[derive(Clone, Debug)]
pub struct Seed {
    pub name: String,
    pub bytes: Vec<u8>,
}

impl Seed {
    /// Whether the decoder must accept it.
    pub fn is_good(&self) -> bool {
        self.name.starts_with("good-")
    }
}

/// Returns the stored inputs of a decoder, ordered by name.
pub fn seeds(decoder: &str) -> Vec<Seed> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(decoder);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut seeds: Vec<Seed> = entries
        .map(|entry| {
            let path = entry.expect("an entry of the corpus").path();
            let name = path.file_name().expect("a file").to_string_lossy().into_owned();
            assert!(name.starts_with("good-") || name.starts_with("bad-"), "{path:?}");
            Seed { name, bytes: fs::read(&path).expect("a readable file of the corpus") }
        })
        .collect();
    seeds.sort_by(|one, other| one.name.cmp(&other.name));
    for good in [true, false] {
        assert!(seeds.iter().any(|seed| seed.is_good() == good), "{folder:?}: {good}");
    }
    seeds
}

/// One change of a text.
#[derive(Clone, Debug)]
struct Edit {
    position: Index,
    /// How many bytes are removed at the position.
    removed: usize,
    inserted: Inserted,
}

/// The bytes that an edit inserts.
#[derive(Clone, Debug)]
enum Inserted {
    New(Vec<u8>),
    /// A copy of bytes of the text itself.
    Copied {
        start: Index,
        length: usize,
    },
}

impl Edit {
    fn any() -> impl Strategy<Value = Self> {
        // Half of the bytes have a meaning in JSON, hex or text.
        let byte = prop_oneof![any::<u8>(), select(&b"{}[]\"\\:,0123456789abcdefx \n-.#"[..])];
        let length = prop_oneof![4 => 1..8_usize, 1 => 1..200_usize];
        let new = |bytes| vec(byte.clone(), bytes).prop_map(Inserted::New);
        let copied = (any::<Index>(), length.clone());
        let change = prop_oneof![
            4 => (Just(1), new(1..2)),
            2 => (length, new(0..1)),
            2 => (Just(0), new(1..9)),
            1 => (
                Just(0),
                copied.prop_map(|(start, length)| Inserted::Copied { start, length }),
            ),
            1 => (Just(usize::MAX), new(0..1)),
        ];
        (any::<Index>(), change).prop_map(|(position, (removed, inserted))| Self {
            position,
            removed,
            inserted,
        })
    }

    fn apply(self, bytes: &mut Vec<u8>) {
        let size = bytes.len();
        let range = |position: Index, length| {
            // The position is that of a byte, or the end.
            let start = position.index(size + 1);
            start..size.min(start.saturating_add(length))
        };
        let Self { position, removed, inserted } = self;
        let inserted = match inserted {
            Inserted::New(new) => new,
            Inserted::Copied { start, length } => bytes[range(start, length)].to_vec(),
        };
        bytes.splice(range(position, removed), inserted);
    }
}

/// Generates one of these inputs with up to six changes: bytes are replaced, removed, inserted,
/// repeated or cut off.
pub fn damaged(inputs: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    (select(inputs), vec(Edit::any(), 0..7)).prop_map(|(mut bytes, edits)| {
        edits.into_iter().for_each(|edit| edit.apply(&mut bytes));
        bytes
    })
}

/// Like [`damaged`], for the stored inputs of a decoder.
pub fn damaged_seeds(decoder: &str) -> impl Strategy<Value = Vec<u8>> + use<> {
    damaged(seeds(decoder).into_iter().map(|seed| seed.bytes).collect())
}
