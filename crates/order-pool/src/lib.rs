//! The orders a block builder knows: indexed, bounded, exact for every reader
