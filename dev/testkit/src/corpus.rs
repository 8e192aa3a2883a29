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
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.name.starts_with("good-")
    }
}

/// The kept inputs of a reader, in the order of their names.
#[must_use]
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

/// One change of a text.
#[derive(Clone, Debug)]
enum Edit {
    Replace(Index, u8),
    Remove(Index, usize),
    Insert(Index, Vec<u8>),
    /// Copies so many bytes to another place.
    Repeat(Index, usize, Index),
    Truncate(Index),
}

impl Edit {
    fn any() -> impl Strategy<Value = Self> {
        // Half of the bytes are those that have a meaning in JSON, hex or text.
        let byte = prop_oneof![any::<u8>(), select(&b"{}[]\"\\:,0123456789abcdefx \n-.#"[..])];
        let length = prop_oneof![4 => 1..8_usize, 1 => 1..200_usize];
        prop_oneof![
            4 => (any::<Index>(), byte.clone()).prop_map(|(at, byte)| Self::Replace(at, byte)),
            2 => (any::<Index>(), length.clone()).prop_map(|(at, length)| Self::Remove(at, length)),
            2 => (any::<Index>(), vec(byte, 1..9)).prop_map(|(at, bytes)| Self::Insert(at, bytes)),
            1 => (any::<Index>(), length, any::<Index>())
                .prop_map(|(from, length, to)| Self::Repeat(from, length, to)),
            1 => any::<Index>().prop_map(Self::Truncate),
        ]
    }

    fn apply(self, bytes: &mut Vec<u8>) {
        // An index of a byte, or of the end.
        let size = bytes.len();
        let place = |at: Index| at.index(size + 1);
        match self {
            Self::Replace(at, byte) => {
                if let Some(there) = bytes.get_mut(place(at)) {
                    *there = byte;
                }
            }
            Self::Remove(at, length) => {
                let start = place(at);
                bytes.drain(start..size.min(start + length));
            }
            Self::Insert(at, new) => {
                let at = place(at);
                bytes.splice(at..at, new);
            }
            Self::Repeat(from, length, to) => {
                let (from, to) = (place(from), place(to));
                let copied = bytes[from..size.min(from + length)].to_vec();
                bytes.splice(to..to, copied);
            }
            Self::Truncate(at) => bytes.truncate(place(at)),
        }
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
