//! Connections: HTTP/1.1 with keep-alive and pipelining, requests in, responses out.

mod accept;
mod body;
mod connection;
mod open;
mod response;

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub(crate) use self::accept::{REJECT_TIMEOUT, listen};
use self::open::OpenConnections;
use crate::jsonrpc::Dispatcher;

/// How many refused bodies are read and discarded at the same time.
const MAX_LINGERING: usize = 64;
/// Connections beyond the limit that are sent a response at the same time; more are just closed.
const MAX_REJECT_RESPONSES: usize = 64;

/// What all connections share.
#[derive(Debug)]
pub(crate) struct HttpServer {
    pub(crate) dispatcher: Arc<Dispatcher>,
    /// Of all connections.
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
