//! What readers see without a lock.

mod heads;
mod index;
mod live;
mod log;
mod seen;
mod subscription;
mod wake;

pub(crate) use heads::Heads;
pub(crate) use index::{Index, IndexTable};
pub(crate) use live::{Garbage, Item, LiveTable, LiveWriter, MAX_GARBAGE_BYTES, Piece};
pub(crate) use log::{LogTable, LogWriter, SEGMENT_EVENTS, SLOT_BYTES, Slot};
pub(crate) use seen::{Fate, SeenTable, SeenWindow};
pub use subscription::{Blocking, Ender, Subscription};
pub(crate) use wake::Bell;
