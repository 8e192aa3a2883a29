//! The server from outside. Tests that need a process of their own are in `tests/`.

use load_control::{GateConfig, LoadMonitor, MonitorConfig, QueueLoad};
use order_pool::{Bundle, Event, OrderPool, PoolConfig, Subscription};

use self::common::{PATIENCE, Server, gate_config};
use crate::{Host, OrderRpc, OrderRpcConfig, Quota, limits::Limits};

mod admission;
mod attack;
mod bad_input;
pub(crate) mod blobs;
mod burst;
pub(crate) mod common;
mod front;
mod hostile;
mod limits;
mod orders;
mod private;
mod shares;

/// Starts a server with the limits of its configuration, but that nothing which a stall may hold up
/// ends by its time; `limit` changes them.
fn start_by(
    config: OrderRpcConfig,
    limit: impl FnOnce(&mut Limits),
) -> impl FnOnce(Host) -> OrderRpc {
    let mut limits = Limits::of(config);
    (limits.body_timeout, limits.max_deferral) = (PATIENCE, PATIENCE);
    limits.header_timeout = 2 * PATIENCE;
    limit(&mut limits);
    move |host| OrderRpc::start_limited(limits, host).unwrap()
}

fn start(config: OrderRpcConfig) -> Server {
    start_limited(config, gate_config(64), None, |_| {})
}

fn start_limited(
    config: OrderRpcConfig,
    gate: GateConfig,
    monitor: Option<LoadMonitor>,
    limit: impl FnOnce(&mut Limits),
) -> Server {
    let pool = OrderPool::new(PoolConfig::default()).unwrap();
    Server::start(pool, gate, monitor, start_by(config, limit))
}

fn limited(limit: impl FnOnce(&mut Limits)) -> Server {
    start_limited(common::config(), gate_config(64), None, limit)
}

/// With a quota of so much at once for each signer, of which next to nothing comes back within a test.
fn with_quota(burst: u32) -> Server {
    limited(|limits| limits.config.quota = Some(Quota { per_second: 1, burst }))
}

/// The same for each address.
fn with_caller_quota(burst: u32) -> Server {
    limited(|limits| limits.config.caller_quota = Some(Quota { per_second: 1, burst }))
}

/// Pressed while the queue is full, as it is at first.
fn pressed() -> (LoadMonitor, QueueLoad) {
    let monitor = LoadMonitor::new(MonitorConfig::default()).unwrap();
    let queue = monitor.watch("announcements", 1).unwrap();
    queue.added(1);
    (monitor, queue)
}

fn start_pressed(requests: usize, limit: impl FnOnce(&mut Limits)) -> (Server, QueueLoad) {
    let (monitor, queue) = pressed();
    (start_limited(common::config(), gate_config(requests), Some(monitor), limit), queue)
}

/// With the head 100.
fn start_at_head() -> Server {
    let server = start(common::config());
    server.pool.on_head(common::block(100, &[]));
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

/// With a pool of the test's own.
fn start_on(pool: OrderPool, config: OrderRpcConfig) -> Server {
    Server::start(pool, gate_config(64), None, start_by(config, |_| {}))
}
