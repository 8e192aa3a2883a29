//! The metrics of all parts, served to Prometheus: feature `telemetry`.
//!
//! [`Telemetry::start`] installs the recorder of `metrics-exporter-prometheus` for the whole
//! process, and answers `GET /metrics` at an address. Call it before
//! [`Ingest::start`](crate::Ingest::start), because handles are made once.
//!
//! The feature is off by default: a process has one recorder, and most hosts have already installed
//! one. Such a host does not need this module, but it should give its histograms
//! [`LATENCY_BUCKETS_SECONDS`] and [`MISSING_BUCKETS_SECONDS`].
//!
//! A separate thread, `mempool-telemetry`, renders and sends. It takes no lock of the pool or of
//! the fetcher, and waits for neither, so metrics are served while a node hangs and while a sink
//! blocks. The cost of updating a metric is that of the recorder: an atomic addition, or for a
//! histogram an entry in a buffer, which this thread drains every [`DRAIN_INTERVAL`].

use std::{
    convert::Infallible,
    io,
    net::{SocketAddr, TcpListener},
    sync::mpsc,
    thread,
    time::Duration,
};

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::sync::oneshot;

mod http;

pub use http::{CONNECTION_TIMEOUT, MAX_CONNECTIONS, METRICS};

/// Upper bounds of the buckets of all latencies except `mempool_fetcher_missing_seconds`, in
/// seconds.
///
/// From 10 us, below what a request over a local socket takes, to 10 s, the longest time-out of a
/// call: six decades of five bounds each, rounded as the Renard series R5 (ISO 3) is, which makes
/// 31 bounds. Two neighbours differ by a factor of 1.6, so a quantile that is read from them is off
/// by at most 60 %, and by a fraction of that where samples are spread evenly over a bucket, as
/// Prometheus assumes.
pub const LATENCY_BUCKETS_SECONDS: [f64; 31] = [
    10e-6, 16e-6, 25e-6, 40e-6, 63e-6, 100e-6, 160e-6, 250e-6, 400e-6, 630e-6, 1e-3, 1.6e-3,
    2.5e-3, 4e-3, 6.3e-3, 10e-3, 16e-3, 25e-3, 40e-3, 63e-3, 0.1, 0.16, 0.25, 0.4, 0.63, 1.0, 1.6,
    2.5, 4.0, 6.3, 10.0,
];

/// Upper bounds of the buckets of `mempool_fetcher_missing_seconds`: from 0.1 s, half of the
/// time that an audit lets both sides settle, to an hour. A transaction that an
/// audit finds has been missing for up to [`audit_interval`](crate::FetcherConfig::audit_interval),
/// 60 s by default, and longer only if audits failed.
pub const MISSING_BUCKETS_SECONDS: [f64; 11] =
    [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 30.0, 60.0, 600.0, 3600.0];

/// How often the buffers of histograms are drained. A transaction makes two samples of 8 bytes, so
/// at 40,000 transactions/s the buffers hold at most 640 kB, with or without scrapes.
pub const DRAIN_INTERVAL: Duration = Duration::from_secs(1);

/// Why [`Telemetry::start`] failed. Nothing runs afterwards, and no recorder is installed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The address is in use, or not one of this machine.
    #[error("cannot listen for scrapes at {address}")]
    Listen {
        /// The requested address.
        address: SocketAddr,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// This process already has a recorder of the `metrics` facade.
    #[error("a recorder of the metrics facade is already installed")]
    RecorderInstalled,
    /// The thread that serves could not be started.
    #[error("cannot start the thread that serves metrics")]
    Thread(#[from] io::Error),
}

/// The running server. Dropping it ends the server without waiting. The recorder cannot be
/// uninstalled, and its histograms are no longer drained.
///
/// ```no_run
/// use mempool_ingest::{Ingest, IngestConfig, telemetry::Telemetry};
///
/// # async fn start(config: IngestConfig) -> Result<(), Box<dyn std::error::Error>> {
/// let telemetry = Telemetry::start("127.0.0.1:9464".parse()?)?;
/// println!("metrics at http://{}/metrics", telemetry.local_addr());
/// let ingest = Ingest::start(config).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropping it ends the server"]
pub struct Telemetry {
    local_addr: SocketAddr,
    recorder: PrometheusHandle,
    /// Ends the thread when dropped.
    stop: oneshot::Sender<()>,
    /// Disconnected when the thread has ended.
    ended: mpsc::Receiver<Infallible>,
}

/// How a [`Telemetry`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TelemetryEnd {
    /// Whether the thread has ended in time.
    pub ended: bool,
}

impl Telemetry {
    /// Installs the recorder and serves it at `address`; port 0 selects a free one. Anyone who can
    /// connect can read the metrics: choose a loopback address, or one that only the scraper
    /// reaches.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(address: SocketAddr) -> Result<Self, StartError> {
        let listener = |source| StartError::Listen { address, source };
        let listening = TcpListener::bind(address).map_err(listener)?;
        listening.set_nonblocking(true).map_err(listener)?;
        let local_addr = listening.local_addr().map_err(listener)?;
        let recorder = builder().build_recorder();
        let handle = recorder.handle();
        let (made, is_made) = mpsc::sync_channel(1);
        let (stop, stopping) = oneshot::channel();
        let (ends, ended) = mpsc::sync_channel(0);
        let served = handle.clone();
        // The runtime is created and dropped on this thread: one that is dropped on the caller's
        // thread panics if that belongs to another runtime.
        let listen = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let inside = runtime.enter();
            let listener = tokio::net::TcpListener::from_std(listening)?;
            drop(inside);
            // Last, because it cannot be undone.
            metrics::set_global_recorder(recorder).map_err(|_| StartError::RecorderInstalled)?;
            Ok::<_, StartError>((listener, runtime))
        };
        let run = move || {
            let _ends = ends;
            // The caller waits for this result.
            match listen().map_err(|error| made.send(Err(error))) {
                Ok((listener, runtime)) if made.send(Ok(())).is_ok() => {
                    runtime.block_on(http::run(listener, served, stopping));
                }
                _ => {}
            }
        };
        thread::Builder::new().name("mempool-telemetry".to_owned()).spawn(run)?;
        is_made.recv().expect("the thread sends one result before it ends")?;
        Ok(Self { local_addr, recorder: handle, stop, ended })
    }

    /// The address on which it listens, with the assigned port if 0 was requested.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// The response to a scrape: all metrics of the process, in Prometheus' text format.
    #[must_use]
    pub fn render(&self) -> String {
        self.recorder.render()
    }

    /// Ends the server and waits for its thread, which takes as long as one rendering, some
    /// milliseconds. Blocks for at most `deadline`.
    pub fn shutdown(self, deadline: Duration) -> TelemetryEnd {
        drop(self.stop);
        // A panic of the thread has been reported by the panic hook.
        let ended = self.ended.recv_timeout(deadline) == Err(mpsc::RecvTimeoutError::Disconnected);
        TelemetryEnd { ended }
    }
}

/// Histograms with our buckets instead of the quantiles that the exporter computes by default:
/// quantiles of several processes cannot be aggregated.
fn builder() -> PrometheusBuilder {
    let missing = Matcher::Full("mempool_fetcher_missing_seconds".to_owned());
    PrometheusBuilder::new()
        .set_buckets(&LATENCY_BUCKETS_SECONDS)
        .and_then(|builder| builder.set_buckets_for_metric(missing, &MISSING_BUCKETS_SECONDS))
        .expect("only empty lists are refused")
}

#[cfg(test)]
mod tests;
