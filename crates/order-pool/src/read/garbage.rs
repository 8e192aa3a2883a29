//! Keeps memory that the writer no longer uses, until it is freed without a lock.

use std::{any::Any, collections::VecDeque, sync::Arc};

/// The most pieces that wait for upkeep.
const MAX_GARBAGE: usize = 256;

/// The most bytes of orders that wait for upkeep.
pub(crate) const MAX_GARBAGE_BYTES: usize = 32 << 20;

/// A page or a segment. Dropping it frees it, unless a reader still holds it.
pub(crate) type Piece = Arc<dyn Any + Send + Sync>;

/// The pieces to free, the oldest first. To free blobs takes time, so it is done without a lock.
#[derive(Debug, Default)]
pub(super) struct Garbage {
    pieces: VecDeque<(Piece, usize)>,
    bytes: usize,
}

impl Garbage {
    /// Adds a piece that frees orders of at most `bytes`.
    pub(super) fn push(&mut self, piece: Piece, bytes: usize) {
        self.bytes += bytes;
        self.pieces.push_back((piece, bytes));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    fn pop(&mut self) -> Option<Piece> {
        let (piece, bytes) = self.pieces.pop_front()?;
        self.bytes -= bytes;
        Some(piece)
    }

    /// Removes and returns at most `limit` pieces.
    pub(super) fn take(&mut self, limit: usize) -> Vec<Piece> {
        std::iter::from_fn(|| self.pop()).take(limit).collect()
    }

    /// Removes and returns the pieces above the limits, so that the memory bound does not depend on
    /// upkeep.
    pub(super) fn take_excess(&mut self) -> Vec<Piece> {
        let mut excess = Vec::new();
        while self.pieces.len() > MAX_GARBAGE || self.bytes > MAX_GARBAGE_BYTES {
            excess.extend(self.pop());
        }
        excess
    }
}
