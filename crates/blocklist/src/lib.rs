//! What may not be built: an address set and the check of post-execution state
