//! Inputs that are kept as files, for the readers of outside bytes, and inputs that differ from them a little.
//!
//! Each folder of `corpus/` belongs to one reader. A file whose name begins with `good-` is accepted by it, one whose
//! name begins with `bad-` is refused: nodes' answers, orders and lists in the forms that occur, and damaged ones. An
//! input that was once read wrongly is kept here too.

use std::{fs, path::Path};

use proptest::{
    collection::vec,
    prelude::*,
    sample::{Index, select},
};

#[derive(Clone, Debug)]
pub struct Seed {
    pub name: String,
    pub bytes: Vec<u8>,
}

impl Seed {
    /// Whether its reader accepts it.
    pub fn is_good(&self) -> bool {
        self.name.starts_with("good-")
    }
}

/// The kept inputs of a reader, in the order of their names.
pub fn seeds(reader: &str) -> Vec<Seed> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(reader);
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

/// One change of a text: at this place so many bytes are removed, and others inserted.
#[derive(Clone, Debug)]
struct Edit(Index, usize, Inserted);

#[derive(Clone, Debug)]
enum Inserted {
    New(Vec<u8>),
    /// So many of the text's own bytes, from there.
    Copied(Index, usize),
}

impl Edit {
    fn any() -> impl Strategy<Value = Self> {
        // Half of the bytes are those that have a meaning in JSON, hex or text.
        let byte = prop_oneof![any::<u8>(), select(&b"{}[]\"\\:,0123456789abcdefx \n-.#"[..])];
        let length = prop_oneof![4 => 1..8_usize, 1 => 1..200_usize];
        let new = |bytes| vec(byte.clone(), bytes).prop_map(Inserted::New);
        let copied = (any::<Index>(), length.clone());
        let change = prop_oneof![
            4 => (Just(1), new(1..2)),
            2 => (length, new(0..1)),
            2 => (Just(0), new(1..9)),
            1 => (Just(0), copied.prop_map(|(from, length)| Inserted::Copied(from, length))),
            1 => (Just(usize::MAX), new(0..1)),
        ];
        (any::<Index>(), change).prop_map(|(at, (removed, inserted))| Self(at, removed, inserted))
    }

    fn apply(self, bytes: &mut Vec<u8>) {
        // An index of a byte, or of the end.
        let size = bytes.len();
        let range = |at: Index, length| {
            let at = at.index(size + 1);
            at..size.min(at.saturating_add(length))
        };
        let Self(at, removed, inserted) = self;
        let inserted = match inserted {
            Inserted::New(new) => new,
            Inserted::Copied(from, length) => bytes[range(from, length)].to_vec(),
        };
        bytes.splice(range(at, removed), inserted);
    }
}

/// One of these inputs with up to six changes: bytes that are replaced, removed, inserted, repeated or cut off.
pub fn damaged(inputs: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    (select(inputs), vec(Edit::any(), 0..7)).prop_map(|(mut bytes, edits)| {
        edits.into_iter().for_each(|edit| edit.apply(&mut bytes));
        bytes
    })
}

/// [`damaged`], of the kept inputs of a reader.
pub fn damaged_seeds(reader: &str) -> impl Strategy<Value = Vec<u8>> + use<> {
    damaged(seeds(reader).into_iter().map(|seed| seed.bytes).collect())
}
