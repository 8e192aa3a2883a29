//! Keeps every event in its order: append-only segments, found by sequence number.

use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock},
};

use arc_swap::ArcSwap;

use super::garbage::Garbage;
use crate::event::Event;

/// The number of events per segment, which is the unit in which the log drops and frees events. To
/// free 256 orders takes about 20 us.
pub(crate) const SEGMENT_EVENTS: usize = 256;

/// A segment is closed early once the removed orders that it names have this many bytes, so that
/// the log can be shortened when many blobs pass through it.
const SEGMENT_BYTES: usize = 4 << 20;

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) event: Event,
    /// The only block that the event concerns.
    pub(super) block: Option<u64>,
}

/// The memory of one event in a segment.
pub(crate) const SLOT_BYTES: usize = size_of::<OnceLock<Slot>>();

#[derive(Debug)]
pub(super) struct Segment {
    base: u64,
    slots: Box<[OnceLock<Slot>]>,
}

/// The segments at one moment. Their sequence numbers ascend without a gap.
#[derive(Debug, Default)]
pub(crate) struct LogTable {
    segments: Vec<Arc<Segment>>,
}

impl LogTable {
    pub(super) fn tail(&self) -> u64 {
        self.segments.first().map_or(0, |segment| segment.base)
    }

    /// Returns the written slots from `seq` to the end of its segment. The caller has seen a head
    /// above `seq`, so the first one is written.
    pub(super) fn slots_from(&self, seq: u64) -> impl Iterator<Item = &Slot> {
        let index = self.segments.partition_point(|segment| segment.base <= seq);
        let segment = index.checked_sub(1).and_then(|index| self.segments.get(index));
        segment
            .map(|segment| &segment.slots[(seq - segment.base) as usize..])
            .unwrap_or_default()
            .iter()
            .map_while(OnceLock::get)
    }
}

/// The writer's state of a segment.
#[derive(Debug)]
struct SegmentState {
    segment: Arc<Segment>,
    /// The bytes of the orders that it names.
    order_bytes: usize,
}

/// The writer's side.
#[derive(Debug, Default)]
pub(super) struct LogWriter {
    segments: VecDeque<SegmentState>,
    pub(super) head: u64,
    /// The bytes of the removed orders in the open segment.
    open_bytes: usize,
    /// Whether a segment was opened or dropped since the last publication.
    pub(super) changed: bool,
}

impl LogWriter {
    pub(super) fn tail(&self) -> u64 {
        self.segments.front().map_or(0, |oldest| oldest.segment.base)
    }

    /// Writes the next event. Readers see it once the head is published.
    pub(super) fn push(&mut self, event: Event) {
        let is_full = self.segments.back().is_none_or(|open| {
            self.head - open.segment.base >= SEGMENT_EVENTS as u64
                || self.open_bytes >= SEGMENT_BYTES
        });
        if is_full {
            let slots = (0..SEGMENT_EVENTS).map(|_| OnceLock::new()).collect();
            let segment = Arc::new(Segment { base: self.head, slots });
            self.segments.push_back(SegmentState { segment, order_bytes: 0 });
            self.open_bytes = 0;
            self.changed = true;
        }
        if let Some(SegmentState { segment: open, order_bytes }) = self.segments.back_mut() {
            let mut block = None;
            if let Event::Added(order) | Event::Held { order, .. } | Event::Removed { order, .. } =
                &event
            {
                block = order.block();
                *order_bytes += order.size_bytes();
            }
            if let Event::Removed { order, .. } = &event {
                self.open_bytes += order.size_bytes();
            }
            let slot = Slot { event, block };
            let was_empty = open.slots[(self.head - open.base) as usize].set(slot).is_ok();
            debug_assert!(was_empty, "event {} was written twice", self.head);
        }
        self.head += 1;
    }

    /// Whether the log holds at least a whole segment more than `max_events`.
    pub(super) fn exceeds(&self, max_events: usize) -> bool {
        self.segments
            .get(1)
            .is_some_and(|second| self.head - second.segment.base >= max_events as u64)
    }

    /// Whether the oldest segment has no event from `seq` on, and is not the open segment.
    pub(super) fn ends_before(&self, seq: u64) -> bool {
        self.segments.get(1).is_some_and(|second| second.segment.base <= seq)
    }

    /// Drops the oldest segment, but never the open one. Returns whether there was one.
    pub(super) fn pop(&mut self, garbage: &mut Garbage) -> bool {
        if self.segments.len() < 2 {
            return false;
        }
        self.changed = true;
        if let Some(SegmentState { segment, order_bytes }) = self.segments.pop_front() {
            garbage.push(segment, order_bytes);
        }
        true
    }

    /// Makes the segments visible to readers. Returns the replaced table. The caller must drop it
    /// after it has released its lock.
    pub(super) fn publish(&mut self, table: &ArcSwap<LogTable>) -> Option<Arc<LogTable>> {
        std::mem::take(&mut self.changed).then(|| {
            table.swap(Arc::new(LogTable {
                segments: self.segments.iter().map(|state| Arc::clone(&state.segment)).collect(),
            }))
        })
    }
}
