//! What all parts of one fetcher share. It has no behaviour of its own.

use std::sync::Arc;

use crate::{
    announce::AwaitingObjects,
    config::Settings,
    fetch::{Deferral, Hashes, PoolRequest},
    metrics::Metrics,
    node::{ChainId, Genesis, Listings, RequestConnections},
    sink::SinkCaller,
    tasks::Tasks,
};

/// What all parts of one fetcher share.
pub(crate) struct Context {
    pub(crate) settings: Arc<Settings>,
    /// Every hash that is known, and the recent blocks.
    pub(crate) hashes: Arc<Hashes>,
    /// Where the requests of each source go.
    pub(crate) connections: RequestConnections<PoolRequest>,
    /// The listings of each source's pool.
    pub(crate) listings: Box<[Arc<Listings>]>,
    pub(crate) deferral: Deferral,
    pub(crate) chain_id: ChainId,
    pub(crate) genesis: Genesis,
    pub(crate) sink: SinkCaller,
    /// With full announcements: hashes of all sources that wait for their objects.
    pub(crate) awaiting_objects: AwaitingObjects,
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) metrics: Arc<Metrics>,
}
