//! A pool in this process as a source.

mod streams;
mod threads;

pub(crate) use self::{
    streams::{PoolSubscription, run_in_process},
    threads::PoolReader,
};
