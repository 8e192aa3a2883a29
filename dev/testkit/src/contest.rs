//! Ours against the two ways in which builders fetch today, under the same load.
//!
//! - *sequential*: one connection, one fetch at a time in the notification loop, alloy's default
//!   buffer of 16;
//! - *plain concurrent*: a second connection, a task for each hash, 64 permits, a buffer of 16,384;
//! - *hashes* and *full objects*: [`mempool_ingest::Ingest`] in its two modes, else with its defaults.
//!
//! **The clock.** The node runs in a process of its own (the running program again) and notes, in
//! `CLOCK_MONOTONIC`, which all processes share, the moment before it hands each transaction to its
//! pool. A subscriber of the order pool, the same for all, notes when it sees each order. The
//! difference is the latency; what the contenders note themselves plays no part. So it contains the
//! node's own work, which is the same for all. The paced announcements are due at start + n/rate;
//! how many were late is counted, since it says how far the machine can be trusted.
//!
//! **Equal work.** Every run announces the first transactions of one list. Asserted in each run: the
//! node announced that list; what was pooled is part of it, nothing twice, each sender right and each
//! sidecar there. What a rival did not pool is its loss.
//!
//! **The cost.** CPU time of this process from the first announcement to the last order, subscriber
//! included, for each pooled transaction. All use libsecp256k1, and rivals have as many threads as
//! ours. The node never mines here.

mod load;
mod rivals;
mod run;

pub use self::{
    load::Load,
    rivals::decode,
    run::{Contender, Expected, Run, Stage},
};
