//! HTTP/1.1 connections with keep-alive and pipelining: reads requests and sends responses.
//!
//! In reading order: `accept` accepts and closes connections, `open_connections` chooses which one
//! gives way to a new one, `request_socket` closes those that send nothing and `response_socket`
//! those that read slowly, `connection` admits and serves the requests of one connection, `body`
//! reads their bodies, `response` builds responses.

mod accept;
mod body;
mod connection;
mod open_connections;
mod request_socket;
mod response;
mod response_socket;

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub(crate) use self::accept::{REJECT_TIMEOUT, listen};
use self::open_connections::OpenConnections;
use crate::jsonrpc::Dispatcher;

/// Refused bodies that are read and discarded at the same time.
const MAX_LINGERING: usize = 64;
/// Connections beyond the limit that are sent a response at the same time. Further ones are closed
/// without one.
const MAX_REJECT_RESPONSES: usize = 64;

/// What all connections share.
#[derive(Debug)]
pub(crate) struct HttpServer {
    pub(crate) dispatcher: Arc<Dispatcher>,
    /// The tasks of all connections.
    pub(crate) tasks: TaskTracker,
    /// Ends all connections.
    pub(crate) end: CancellationToken,
    open: Arc<OpenConnections>,
    lingering: Arc<Semaphore>,
    reject_responses: Arc<Semaphore>,
}

impl HttpServer {
    pub(crate) fn new(dispatcher: Arc<Dispatcher>) -> Arc<Self> {
        Arc::new(Self {
            dispatcher,
            tasks: TaskTracker::new(),
            end: CancellationToken::new(),
            open: Arc::default(),
            lingering: Arc::new(Semaphore::new(MAX_LINGERING)),
            reject_responses: Arc::new(Semaphore::new(MAX_REJECT_RESPONSES)),
        })
    }
}
