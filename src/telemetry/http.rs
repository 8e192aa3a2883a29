//! The listener: `GET /metrics`, and nothing else.
//!
//! The exporter's own listener is not used, because it accepts any number of connections, waits for
//! a request without a limit, and retries at once when accepting fails.

use std::{
    convert::Infallible,
    env::consts::ARCH,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{ALLOW, CONTENT_TYPE, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use load_control::{Backoff, cores, labels, metric_set};
use metrics::Label;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep, timeout},
};

use super::DRAIN_INTERVAL;

/// Most concurrent connections: two scrapers, a person and some to spare. Further ones wait in the
/// kernel's queue, which holds 128 and drops later ones, until a connection ends, at the latest
/// after [`CONNECTION_TIMEOUT`]. Anyone who can connect can delay scrapers in this way, but nothing
/// else, so choose an address that only scrapers reach.
pub const MAX_CONNECTIONS: usize = 8;

/// The longest that a connection may last, from its acceptance to the last byte of its one
/// response: half of Prometheus' default `scrape_timeout`, 10 s, so that a scraper that had to wait
/// for a connection slot is still served.
pub const CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);

/// The delay after an error of accepting, which most often means that no file descriptors are left.
const ACCEPT_BACKOFF: Backoff =
    Backoff { base: Duration::from_millis(10), cap: Duration::from_secs(1) };

/// Buffer for the head of a request; a longer head is refused by hyper. 8 KiB is its smallest.
const READ_BUFFER_BYTES: usize = 8 * 1_024;

/// The name and version of the text format, as the clients of Prometheus send it.
const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

labels! {
    /// How a connection ended.
    #[derive(Clone, Copy)]
    enum Outcome {
        Served = "served",
        WrongRequest = "wrong_request",
        TimedOut = "timed_out",
        Broken = "broken",
        AcceptFailed = "accept_failed",
    }
}

metric_set! {
    /// The name, the unit and the meaning of every metric of this module.
    pub const METRICS;

    #[derive(Clone)]
    pub(super) struct Outcomes {
        counter connections[Outcome::ALL.len()] = "mempool_telemetry_connections_total", Count,
            "connections to the metrics port, by `outcome`: served, wrong_request, timed_out, \
             broken, accept_failed",
            "outcome": Outcome::ALL.map(Outcome::as_str);
    }

    struct Build {
        gauge info = "mempool_build_info", Count,
            "1, for the build with this `version`, `profile` and `arch`, and the `cores` that it \
             may use";
    }
}

/// Accepts, serves, and drains the histograms' buffers until `stopping` resolves. When dropped, it
/// closes every connection.
pub(super) async fn run(
    listener: TcpListener,
    recorder: PrometheusHandle,
    stopping: oneshot::Receiver<()>,
) {
    let outcomes = Outcomes::new();
    let (profile, cores) =
        (if cfg!(debug_assertions) { "debug" } else { "release" }, cores().to_string());
    let version = env!("CARGO_PKG_VERSION");
    let labels = [("version", version), ("profile", profile), ("arch", ARCH), ("cores", &cores)];
    Build::labelled(&labels.map(|(name, value)| Label::new(name, value.to_owned()))).info.set(1.0);
    // The order is irrelevant: only the stop ends it, and no branch holds an item.
    tokio::select! {
        _ = stopping => {}
        () = drain(&recorder) => {}
        () = accept(listener, recorder.clone(), outcomes, CONNECTION_TIMEOUT) => {}
    }
}

async fn drain(recorder: &PrometheusHandle) {
    let mut tick = interval(DRAIN_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        recorder.run_upkeep();
    }
}

pub(super) async fn accept(
    listener: TcpListener,
    recorder: PrometheusHandle,
    outcomes: Outcomes,
    limit: Duration,
) {
    let mut connections = JoinSet::new();
    let mut failed = 0_u32;
    loop {
        // Removes finished tasks, so that the set holds those of open connections.
        while connections.try_join_next().is_some() {}
        if connections.len() >= MAX_CONNECTIONS {
            connections.join_next().await;
        }
        match listener.accept().await {
            Ok((stream, _)) => {
                failed = 0;
                connections.spawn(serve(stream, recorder.clone(), outcomes.clone(), limit));
            }
            Err(_) => {
                outcomes.connections[Outcome::AcceptFailed as usize].increment(1);
                sleep(ACCEPT_BACKOFF.random_delay(failed)).await;
                failed = failed.saturating_add(1);
            }
        }
    }
}

/// One request and its response. It counts as served only when the response has been sent.
async fn serve(stream: TcpStream, recorder: PrometheusHandle, outcomes: Outcomes, limit: Duration) {
    // Only this task writes and reads it.
    let wrong = AtomicBool::new(false);
    let service = service_fn(|request: Request<Incoming>| {
        let response = respond(&request, &recorder);
        if response.status() != StatusCode::OK {
            wrong.store(true, Relaxed);
        }
        async move { Ok::<_, Infallible>(response) }
    });
    let connection = http1::Builder::new()
        .max_buf_size(READ_BUFFER_BYTES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    let outcome = match timeout(limit, connection).await {
        Ok(Ok(())) if wrong.load(Relaxed) => Outcome::WrongRequest,
        Ok(Ok(())) => Outcome::Served,
        Ok(Err(error)) if error.is_parse() => Outcome::WrongRequest,
        Ok(Err(_)) => Outcome::Broken,
        Err(_) => Outcome::TimedOut,
    };
    outcomes.connections[outcome as usize].increment(1);
}

fn respond(request: &Request<Incoming>, recorder: &PrometheusHandle) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    if request.uri().path() != "/metrics" {
        *response.status_mut() = StatusCode::NOT_FOUND;
    } else if request.method() != Method::GET {
        *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
    } else {
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(TEXT_FORMAT));
        *response.body_mut() = Full::from(recorder.render());
    }
    response
}
