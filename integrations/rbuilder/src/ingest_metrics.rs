//! Our metrics in the registry that rbuilder serves.

use prometheus::Registry;

/// Passes every metric of these crates on to `registry`: rbuilder's is `telemetry::REGISTRY`.
///
/// Call it before anything of ours starts: handles are made once, at the start.
///
/// # Errors
/// The program has a recorder of the `metrics` facade already.
pub fn serve_in(registry: &Registry) -> Result<(), RecorderInstalled> {
    let recorder = metrics_prometheus::Recorder::builder().with_registry(registry);
    recorder.try_build_and_install().map(drop).map_err(|_| RecorderInstalled)
}

/// The program has a recorder of the `metrics` facade already.
#[derive(Debug)]
pub struct RecorderInstalled;

impl std::fmt::Display for RecorderInstalled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a recorder of the `metrics` facade is installed already")
    }
}

impl std::error::Error for RecorderInstalled {}
