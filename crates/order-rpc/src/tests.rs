//! Tests of the server through its sockets. Those that need a process of their own are in `tests/`.

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

/// The configuration of a test server.
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
    /// Starts a server with the limits of the configuration, and with timeouts that a busy machine
    /// does not reach. `change_limits` may lower them.
    fn start(
        self,
        change_limits: impl FnOnce(&mut Limits),
        host: impl FnOnce(Host) -> Host,
    ) -> Server {
        let mut limits = Limits::new(self.config);
        (limits.body_timeout, limits.max_deferral) = (PATIENCE, PATIENCE);
        (limits.header_timeout, limits.idle_timeout) = (2 * PATIENCE, 2 * PATIENCE);
        change_limits(&mut limits);
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

/// Starts a server with this burst for each signer, which hardly refills within a test.
fn with_quota(burst: u32) -> Server {
    start(OrderRpcConfig { quota: Some(Quota { per_second: 1, burst }), ..config() })
}

/// Starts a server with this burst for each address, which hardly refills within a test.
fn with_caller_quota(burst: u32) -> Server {
    start(OrderRpcConfig { caller_quota: Some(Quota { per_second: 1, burst }), ..config() })
}

/// Returns a monitor that reports a high load while its queue is full, as it is at first.
fn pressed_monitor() -> (Option<LoadMonitor>, QueueLoad) {
    let monitor = LoadMonitor::new(MonitorConfig::default()).unwrap();
    let queue = monitor.watch("announcements", 1).unwrap();
    queue.added(1);
    (Some(monitor), queue)
}

fn start_pressed(requests: usize, limit: impl FnOnce(&mut Limits)) -> (Server, QueueLoad) {
    let ((monitor, queue), gate) = (pressed_monitor(), gate_config(requests));
    (Setup { monitor, gate, ..Setup::default() }.limited(limit), queue)
}

/// Starts a server whose head is block 100.
fn start_at_head() -> Server {
    let server = start(config());
    server.pool.on_head(block(100, &[]));
    server
}

/// Returns the bundles that a subscription delivers now.
fn bundles(mut orders: Subscription) -> Vec<Bundle> {
    let bundle = |event| match event {
        Ok(Event::Added(order)) => order.as_bundle().cloned(),
        _ => None,
    };
    std::iter::from_fn(|| orders.try_next()).filter_map(bundle).collect()
}
