//! The state that all parts of one fetcher share.

use std::sync::Arc;

use crate::{
    announce::AwaitingObjects,
    config::Settings,
    fetch::{Deferral, Hashes, PoolRequest},
    metrics::Metrics,
    node::{ChainId, Listings, RequestConnections},
    sink::SinkCaller,
    tasks::Tasks,
};

/// The state that all parts of one fetcher share. It has no behaviour of its own.
pub(crate) struct Context {
    pub(crate) settings: Arc<Settings>,
    /// The hashes that were seen, and the recent blocks.
    pub(crate) hashes: Arc<Hashes>,
    /// The request connections of each source.
    pub(crate) connections: RequestConnections<PoolRequest>,
    /// For each source: how long its node takes to list its pool.
    pub(crate) listings: Box<[Arc<Listings>]>,
    /// Lets deferrable work wait while the load is high.
    pub(crate) deferral: Arc<Deferral>,
    pub(crate) chain_id: ChainId,
    pub(crate) sink: SinkCaller,
    /// With full announcements: the hashes of all sources that wait for their objects.
    pub(crate) awaiting_objects: AwaitingObjects,
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) metrics: Arc<Metrics>,
}
