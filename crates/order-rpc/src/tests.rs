//! The server from outside. Tests that need a process of their own are in `tests/`.

use load_control::{MonitorConfig, QueueLoad};
use order_pool::{Bundle, Event, Order, Subscription};

use self::common::*;
use crate::limits::Limits;

mod admission;
mod attack;
mod bad_input;
pub(crate) mod blobs;
pub(crate) mod common;
mod front;
mod limits;
mod orders;
mod private;
mod shares;

/// What a server is started with.
struct Setup {
    config: OrderRpcConfig,
    pool: PoolConfig,
    gate: GateConfig,
    monitor: Option<LoadMonitor>,
}

impl Default for Setup {
    fn default() -> Self {
        let (pool, gate) = (PoolConfig::default(), gate_config(64));
        Self { config: config(), pool, gate, monitor: None }
    }
}

impl Setup {
    /// With the limits of the configuration, but that nothing which a stall may hold up ends by its
    /// time; `limit` changes them.
    fn start(self, limit: impl FnOnce(&mut Limits), host: impl FnOnce(Host) -> Host) -> Server {
        let mut limits = Limits::new(self.config);
        (limits.body_timeout, limits.max_deferral) = (PATIENCE, PATIENCE);
        limits.header_timeout = 2 * PATIENCE;
        limit(&mut limits);
        let pool = OrderPool::new(self.pool).unwrap();
        Server::start(pool, self.gate, self.monitor, |given| {
            OrderRpc::start_limited(limits, host(given)).unwrap()
        })
    }

    fn limited(self, limit: impl FnOnce(&mut Limits)) -> Server {
        self.start(limit, |host| host)
    }
}

fn start(config: OrderRpcConfig) -> Server {
    Setup { config, ..Setup::default() }.limited(|_| {})
}

fn limited(limit: impl FnOnce(&mut Limits)) -> Server {
    Setup::default().limited(limit)
}

/// With a quota of so much at once for each signer, of which next to nothing comes back within a test.
fn with_quota(burst: u32) -> Server {
    start(OrderRpcConfig { quota: Some(Quota { per_second: 1, burst }), ..config() })
}

/// The same for each address.
fn with_caller_quota(burst: u32) -> Server {
    start(OrderRpcConfig { caller_quota: Some(Quota { per_second: 1, burst }), ..config() })
}

/// Pressed while the queue is full, as it is at first.
fn pressed() -> (Option<LoadMonitor>, QueueLoad) {
    let monitor = LoadMonitor::new(MonitorConfig::default()).unwrap();
    let queue = monitor.watch("announcements", 1).unwrap();
    queue.added(1);
    (Some(monitor), queue)
}

fn start_pressed(requests: usize, limit: impl FnOnce(&mut Limits)) -> (Server, QueueLoad) {
    let ((monitor, queue), gate) = (pressed(), gate_config(requests));
    (Setup { monitor, gate, ..Setup::default() }.limited(limit), queue)
}

/// With the head 100.
fn start_at_head() -> Server {
    let server = start(config());
    server.pool.on_head(block(100, &[]));
    server
}

/// The bundles that a subscription has now.
fn bundles(mut orders: Subscription) -> Vec<Bundle> {
    let bundle = |event| match event {
        Ok(Event::Added(order)) => order.as_bundle().cloned(),
        _ => None,
    };
    std::iter::from_fn(|| orders.try_next()).filter_map(bundle).collect()
}
