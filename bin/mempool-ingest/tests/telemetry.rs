//! Scrapes the metrics of a process as Prometheus does. It is a test binary of its own, because a
//! process has one recorder.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use mempool_ingest::{
    Ingest, IngestConfig, OrderRpcConfig, PoolConfig, load_control, order_pool, order_rpc,
    telemetry::{self, StartError, Telemetry},
    txpool_fetcher,
};
use mock_node::{DEV_CHAIN_ID, Fault, Target};
use testkit::ingest::{Node, settled};

const DEADLINE: Duration = Duration::from_secs(5);

/// Blocks the calling thread, which serves none of the tested parts.
fn scrape(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: metrics\r\n\r\n").expect("it reads");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("it closes");
    let (head, body) = response.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    body.to_owned()
}

#[tokio::test]
async fn metrics_of_all_parts_are_served_while_the_node_is_dead() {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let telemetry = Telemetry::start(any).unwrap();
    let second = Telemetry::start(any).unwrap_err();
    assert!(matches!(second, StartError::RecorderInstalled), "{second}");
    let taken = Telemetry::start(telemetry.local_addr()).unwrap_err();
    let StartError::Listen { address, .. } = taken else { panic!("{taken}") };
    assert_eq!(address, telemetry.local_addr());

    let node = Node::start(100, |config| config);
    let mut rpc = OrderRpcConfig::new(DEV_CHAIN_ID);
    rpc.listen = any;
    let mut config = IngestConfig::new(node.fetcher(), PoolConfig::default());
    config.rpc = Some(rpc);
    let ingest = Ingest::start(config).await.unwrap();
    ingest.fetcher().wait_live().await.unwrap();
    node.submit_all();
    settled(ingest.fetcher(), "all are pooled", |counts| counts.pooled == 100).await;

    // From here on the node answers nothing and accepts nothing.
    node.node.inject(Fault::GoDead(Target::All));
    let text = scrape(telemetry.local_addr());
    for line in [
        "mempool_fetcher_outcomes_total{outcome=\"pooled\"} 100",
        "mempool_fetcher_deliver_seconds_count 100",
        "order_pool_txs 100",
        "order_pool_max_txs 200000",
        "order_rpc_connections 0",
        "load_control_state 0",
        "mempool_telemetry_connections_total{outcome=\"served\"} 0",
    ] {
        assert!(text.lines().any(|found| found == line), "no {line:?} in\n{text}");
    }
    let version = concat!("version=\"", env!("CARGO_PKG_VERSION"), "\"");
    let mut builds = text.lines().filter(|line| line.starts_with("mempool_build_info{"));
    let build = builds.next().expect("a line for the build");
    let cores = format!("cores=\"{}\"", load_control::cores());
    let labels = [version, &cores, "profile=\"", "arch=\""];
    assert!(labels.iter().all(|label| build.contains(label)), "{build}");
    assert!(build.ends_with("} 1") && builds.next().is_none(), "{build}");
    // These are registered when they are first counted.
    let later = ["mempool_fetcher_reconnects_total", "mempool_fetcher_unread_blocks_total"];
    let tables = [
        txpool_fetcher::METRICS,
        order_pool::METRICS,
        order_rpc::METRICS,
        load_control::METRICS,
        telemetry::METRICS,
    ];
    for (name, _, help) in tables.into_iter().flatten().filter(|(name, ..)| !later.contains(name)) {
        let is_helped = !help.is_empty() && text.contains(&format!("# HELP {name} "));
        assert!(is_helped, "{name} has no help");
        assert!(text.contains(&format!("# TYPE {name} ")), "{name} has no type");
    }
    // A metric without a description would be served without help.
    for name in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()) {
        assert!(text.contains(&format!("# HELP {name} ")), "{name} has no help");
    }

    ingest.shutdown(DEADLINE).await;
    let address = telemetry.local_addr();
    assert!(telemetry.shutdown(DEADLINE).ended);
    assert!(TcpStream::connect(address).is_err(), "the listener is closed");
}
