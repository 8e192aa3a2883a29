#![doc = include_str!("../README.md")]

mod active;
mod admission;
mod body;
mod budget;
mod config;
mod context;
mod deferral;
mod dispatch;
mod envelope;
mod error;
mod methods;
mod metrics;
mod params;
mod peers;
mod proofs;
mod quota;
mod reply;
mod route;
mod server;
mod signature;
mod standing;
mod timed;
mod verify;

pub use admission::{Admission, AdmissionFuture, Candidate, Verdict};
pub use config::*;
pub use context::Host;
pub use error::{ShutdownError, StartError};
pub use metrics::METRICS;
pub use reply::Reason;
pub use server::{OrderRpc, OrderRpcHandle};
pub use standing::{SignerStanding, Standing};
