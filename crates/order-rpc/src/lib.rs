#![doc = include_str!("../README.md")]

mod config;
mod context;
mod error;
mod http;
mod jsonrpc;
mod limits;
mod methods;
mod metrics;
mod reply;
mod server;
mod standing;

pub use config::*;
pub use context::Host;
pub use error::{ShutdownError, StartError};
pub use methods::admission::{Admission, AdmissionFuture, Candidate, Verdict};
pub use metrics::METRICS;
pub use reply::Reason;
pub use server::{OrderRpc, OrderRpcHandle};
pub use standing::{SignerStanding, Standing};
