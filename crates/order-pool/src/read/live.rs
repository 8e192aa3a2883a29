//! Keeps every order in the pool, in the order of acceptance, readable as of any moment that the
//! event log still covers. So a replay needs no copy, no lock and no reference count, and readers
//! share no memory that a reader writes.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::ControlFlow,
    sync::{
        Arc, OnceLock,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Release},
        },
    },
};

use arc_swap::ArcSwap;

use super::garbage::Garbage;
use crate::{event::Event, order::Order};

/// The number of entries per page, which is the unit of rewriting. To copy 256 entries takes about
/// 10 us.
pub(super) const PAGE_ENTRIES: usize = 256;

/// A page is closed early once its orders have this many bytes, so that removed blobs do not stay
/// in an open page.
const PAGE_BYTES: usize = 4 << 20;

/// The value of [`Entry::removed`] while the order is in the pool.
const LIVE: u64 = u64::MAX;

#[derive(Debug)]
struct Entry {
    added: u64,
    /// The sequence number of its removal, or [`LIVE`]. It is set once, with `Release`, before the
    /// head is published. To a reader with an older snapshot both values mean the same.
    removed: AtomicU64,
    /// The event that a replay shows: an order or a cancellation.
    event: Event,
}

impl Entry {
    fn size_bytes(&self) -> usize {
        match &self.event {
            Event::Added(order) => order.size_bytes(),
            _ => 0,
        }
    }
}

/// Entries with ascending `added`, filled from the front.
#[derive(Debug)]
pub(super) struct Page {
    first: u64,
    entries: Box<[OnceLock<Entry>]>,
}

impl Page {
    fn new(first: u64, capacity: usize) -> Self {
        Self { first, entries: (0..capacity).map(|_| OnceLock::new()).collect() }
    }

    /// Returns the index of the first entry from `seq` on.
    fn index_from(&self, seq: u64) -> usize {
        self.entries.partition_point(|entry| entry.get().is_some_and(|entry| entry.added < seq))
    }

    fn find(&self, added: u64) -> Option<&Entry> {
        self.entries.get(self.index_from(added))?.get().filter(|entry| entry.added == added)
    }
}

/// The pages at one moment, with ascending `first`.
#[derive(Debug, Default)]
pub(crate) struct LiveTable {
    pages: Vec<Arc<Page>>,
}

impl LiveTable {
    /// Visits the entries that were live at `snapshot`, from entry `first` on, until `visit`
    /// breaks.
    pub(super) fn visit(
        &self,
        snapshot: u64,
        first: u64,
        mut visit: impl FnMut(u64, &Event) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let page = self.pages.partition_point(|page| page.first <= first).saturating_sub(1);
        for page in &self.pages[page..] {
            for entry in page.entries[page.index_from(first)..].iter().map_while(OnceLock::get) {
                if entry.added >= snapshot {
                    return ControlFlow::Continue(());
                }
                if entry.removed.load(Acquire) >= snapshot {
                    visit(entry.added, &entry.event)?;
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// Returns the order added at `seq`, if it has not been removed.
    pub(super) fn get(&self, seq: u64) -> Option<&Arc<Order>> {
        let page = self.pages.partition_point(|page| page.first <= seq).checked_sub(1)?;
        let entry = self.pages[page].find(seq)?;
        match &entry.event {
            Event::Added(order) if entry.removed.load(Acquire) == LIVE => Some(order),
            _ => None,
        }
    }
}

/// The writer's state of a page.
#[derive(Debug)]
struct PageState {
    page: Arc<Page>,
    len: usize,
    bytes: usize,
    /// The number of entries whose removal the log has dropped.
    spent: usize,
    spent_bytes: usize,
}

impl PageState {
    const fn new(page: Arc<Page>) -> Self {
        Self { page, len: 0, bytes: 0, spent: 0, spent_bytes: 0 }
    }

    const fn live_count(&self) -> usize {
        self.len - self.spent
    }

    /// At most a quarter of a page may be spent entries, which bounds the unused memory. Each freed
    /// entry costs at most three moved ones.
    const fn wants_rewrite(&self) -> bool {
        self.spent * 4 >= self.len || self.spent_bytes * 4 > self.bytes
    }
}

#[derive(Debug)]
struct Removal {
    removed: u64,
    added: u64,
    size_bytes: usize,
}

/// The writer's side.
#[derive(Debug, Default)]
pub(super) struct LiveWriter {
    /// The pages by their first entry. The last one is open.
    pages: BTreeMap<u64, PageState>,
    /// Removed entries that readers within the log still need.
    removed: VecDeque<Removal>,
    pub(super) removed_bytes: usize,
    /// Pages to rewrite.
    rewrites: BTreeSet<u64>,
    changed: bool,
}

impl LiveWriter {
    pub(super) fn add(&mut self, seq: u64, event: Event) {
        let last = self
            .pages
            .last_key_value()
            .map(|(first, last)| (*first, last.len == PAGE_ENTRIES || last.bytes >= PAGE_BYTES));
        if last.is_none_or(|(_, is_full)| is_full) {
            let page = Arc::new(Page::new(seq, PAGE_ENTRIES));
            self.pages.insert(seq, PageState::new(page));
            self.changed = true;
            if let Some((closed, _)) = last {
                self.queue_if_spent(closed);
            }
        }
        if let Some(mut last) = self.pages.last_entry() {
            let last = last.get_mut();
            let entry = Entry { added: seq, removed: AtomicU64::new(LIVE), event };
            let size_bytes = entry.size_bytes();
            let was_empty = last.page.entries[last.len].set(entry).is_ok();
            debug_assert!(was_empty, "entry {seq} was written twice");
            last.len += 1;
            last.bytes += size_bytes;
        }
    }

    pub(super) fn remove(&mut self, added: u64, removed: u64, size_bytes: usize) {
        let page = self.pages.range(..=added).next_back();
        if let Some(entry) = page.and_then(|(_, state)| state.page.find(added)) {
            entry.removed.store(removed, Release);
            self.removed.push_back(Removal { removed, added, size_bytes });
            self.removed_bytes += size_bytes;
        } else {
            debug_assert!(false, "entry {added} is in no page");
        }
    }

    /// Frees the entries that no reader can need, now that the log begins at `tail`.
    pub(super) fn forget_before(&mut self, tail: u64, garbage: &mut Garbage) {
        while let Some(removal) = self.removed.pop_front_if(|removal| removal.removed < tail) {
            self.removed_bytes -= removal.size_bytes;
            let Some((&first, state)) = self.pages.range_mut(..=removal.added).next_back() else {
                continue;
            };
            state.spent += 1;
            state.spent_bytes += removal.size_bytes;
            if state.spent < state.len || self.is_open(first) {
                self.queue_if_spent(first);
            } else if let Some(state) = self.pages.remove(&first) {
                garbage.push(state.page, state.spent_bytes);
                self.changed = true;
            }
        }
    }

    fn is_open(&self, first: u64) -> bool {
        self.pages.last_key_value().is_some_and(|(last, _)| *last == first)
    }

    fn queue_if_spent(&mut self, first: u64) {
        if !self.is_open(first) && self.pages.get(&first).is_some_and(PageState::wants_rewrite) {
            self.rewrites.insert(first);
        }
    }

    /// Rewrites at most `limit` pages without their spent entries. Returns whether more wait.
    pub(super) fn compact(&mut self, limit: usize, tail: u64, garbage: &mut Garbage) -> bool {
        for _ in 0..limit {
            let Some(first) = self.rewrites.pop_first() else { return false };
            self.rewrite(first, tail, garbage);
        }
        !self.rewrites.is_empty()
    }

    fn rewrite(&mut self, first: u64, tail: u64, garbage: &mut Garbage) {
        // The page may have been freed or merged since it was queued.
        let Some(state) = self.pages.remove(&first) else { return };
        self.changed = true;
        let mut sources = vec![state];
        // Small neighbours are merged into one page, so that few long-lived orders do not keep many
        // pages.
        if let Some((&before, neighbour)) = self.pages.range(..first).next_back()
            && neighbour.live_count() + sources[0].live_count() <= PAGE_ENTRIES / 2
            && neighbour.bytes - neighbour.spent_bytes < PAGE_BYTES / 2
        {
            sources.extend(self.pages.remove(&before));
            sources.reverse();
        }
        let capacity: usize = sources.iter().map(PageState::live_count).sum();
        let needed = sources
            .iter()
            .flat_map(|state| state.page.entries[..state.len].iter().filter_map(OnceLock::get))
            .filter(|entry| entry.removed.load(Acquire) >= tail);
        let mut entries = Vec::with_capacity(capacity);
        let (mut len, mut bytes) = (0, 0);
        for entry in needed {
            len += 1;
            bytes += entry.size_bytes();
            entries.push(OnceLock::from(Entry {
                added: entry.added,
                removed: AtomicU64::new(entry.removed.load(Acquire)),
                event: entry.event.clone(),
            }));
        }
        if let Some(first) = entries.first().and_then(OnceLock::get).map(|entry| entry.added) {
            let page = Arc::new(Page { first, entries: entries.into_boxed_slice() });
            self.pages.insert(first, PageState { len, bytes, ..PageState::new(page) });
        }
        for state in sources {
            garbage.push(state.page, state.spent_bytes);
        }
    }

    /// Makes the pages visible to readers. Returns the replaced table. The caller must drop it
    /// after it has released its lock.
    pub(super) fn publish(&mut self, table: &ArcSwap<LiveTable>) -> Option<Arc<LiveTable>> {
        std::mem::take(&mut self.changed).then(|| {
            let pages = self.pages.values().map(|state| Arc::clone(&state.page)).collect();
            table.swap(Arc::new(LiveTable { pages }))
        })
    }
}
