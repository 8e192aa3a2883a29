//! Tests of the listener for scrapes.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::mpsc,
    thread,
    time::Duration,
};

use metrics_exporter_prometheus::PrometheusHandle;
use tokio::{net::TcpListener, runtime::Runtime, task::JoinHandle};

use super::{LATENCY_BUCKETS_SECONDS, MISSING_BUCKETS_SECONDS, builder, http};

/// A server with its own recorder, which is not that of the process.
struct Server {
    address: SocketAddr,
    recorder: PrometheusHandle,
    /// The serving task, which runs until the runtime is dropped.
    serves: JoinHandle<()>,
    _runtime: Runtime,
}

impl Server {
    fn start(limit: Duration) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let address = listener.local_addr().expect("it listens");
        let recorder = builder().build_recorder();
        let outcomes = metrics::with_local_recorder(&recorder, http::Outcomes::new);
        let recorder = recorder.handle();
        let serves = runtime.spawn(http::accept(listener, recorder.clone(), outcomes, limit));
        Self { address, recorder, serves, _runtime: runtime }
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).expect("it listens")
    }

    fn counted(&self, outcome: &str) -> bool {
        let line = format!("mempool_telemetry_connections_total{{outcome=\"{outcome}\"}} 1");
        self.recorder.render().lines().any(|text| text == line)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The runtime would hide a panic of the task.
        assert!(thread::panicking() || !self.serves.is_finished(), "the server has ended");
    }
}

/// Sends a request, and reads until the server closes the connection.
fn exchange(mut stream: TcpStream, request: &str) -> String {
    stream.write_all(request.as_bytes()).expect("the server reads");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("the server closes");
    response
}

const SCRAPE: &str = "GET /metrics HTTP/1.1\r\nhost: metrics\r\n\r\n";

/// A limit that no test reaches.
const NEVER: Duration = Duration::from_secs(3_600);

#[test]
fn scrapes_are_answered_and_other_requests_are_refused() {
    for (request, status, outcome) in [
        (SCRAPE, "HTTP/1.1 200 OK\r\n", "served"),
        ("GET / HTTP/1.1\r\nhost: metrics\r\n\r\n", "HTTP/1.1 404 ", "wrong_request"),
        ("DELETE /metrics HTTP/1.1\r\nhost: metrics\r\n\r\n", "HTTP/1.1 405 ", "wrong_request"),
        ("\u{1} no HTTP at all\r\n\r\n", "HTTP/1.1 400 ", "wrong_request"),
    ] {
        let server = Server::start(NEVER);
        let response = exchange(server.connect(), request);
        assert!(response.starts_with(status), "{request:?}: {response}");
        if outcome == "served" {
            assert!(response.contains("text/plain; version=0.0.4"), "{response}");
            let metric = "# TYPE mempool_telemetry_connections_total counter";
            assert!(response.contains(metric), "{response}");
        }
        // The outcome is counted after the last byte was sent.
        while !server.counted(outcome) {
            thread::yield_now();
        }
    }
}

#[test]
fn a_silent_connection_is_closed_after_the_time_limit() {
    let server = Server::start(Duration::from_millis(20));
    let mut silent = server.connect();
    assert_eq!(silent.read(&mut [0]).expect("an end, no error"), 0);
    while !server.counted("timed_out") {
        thread::yield_now();
    }
}

#[test]
fn beyond_the_limit_a_connection_waits_until_another_ends() {
    let server = Server::start(NEVER);
    let mut silent: Vec<_> = (0..http::MAX_CONNECTIONS).map(|_| server.connect()).collect();
    let (answered, answer) = mpsc::channel();
    let waiting = server.connect();
    let scraper = thread::spawn(move || answered.send(exchange(waiting, SCRAPE)));
    // Connections are accepted in order, so the one of the scraper is the last.
    assert!(answer.recv_timeout(Duration::from_millis(50)).is_err(), "more than the limit");
    silent.pop();
    let response = answer.recv().expect("the scraper lives");
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
    scraper.join().expect("no panic").expect("the test waits for it");
}

#[test]
fn histograms_have_our_buckets_and_no_quantiles() {
    let recorder = builder().build_recorder();
    metrics::with_local_recorder(&recorder, || {
        metrics::histogram!("mempool_fetcher_deliver_seconds").record(0.000_12);
        metrics::histogram!("mempool_fetcher_missing_seconds").record(0.3);
    });
    let text = recorder.handle().render();
    let buckets = |name: &str| text.matches(&format!("{name}_bucket{{")).count();
    // One more bucket has no upper bound.
    assert_eq!(buckets("mempool_fetcher_deliver_seconds"), LATENCY_BUCKETS_SECONDS.len() + 1);
    assert_eq!(buckets("mempool_fetcher_missing_seconds"), MISSING_BUCKETS_SECONDS.len() + 1);
    assert!(text.contains("mempool_fetcher_deliver_seconds_bucket{le=\"0.00016\"} 1"), "{text}");
    assert!(text.contains("mempool_fetcher_deliver_seconds_bucket{le=\"0.0001\"} 0"), "{text}");
    assert!(!text.contains("quantile"), "{text}");
}

#[test]
fn each_bound_is_at_most_six_tenths_above_the_one_before() {
    for pair in LATENCY_BUCKETS_SECONDS.windows(2) {
        assert!(pair[1] > pair[0] && pair[1] <= pair[0] * 1.6001, "{pair:?}");
    }
}
