//! Searchers' orders by JSON-RPC: transactions and bundles, behind an admission gate.
//!
//! It answers `eth_sendRawTransaction`, `eth_sendBundle` and `eth_cancelBundle` over HTTP and
//! WebSocket, and `/healthz` and `/readyz` over HTTP. It verifies what needs no state (signature,
//! chain, intrinsic gas, blobs) and puts what passes into the pool; it executes nothing and asks no
//! node. TLS, HTTP/2 and host names are a proxy's to deal with.
//!
//! ```text
//! connection ── cap ──> request ── outer gate ──> body, within bounds ──> signature ──> jsonrpsee
//!                          |            |              |          (slot)   |               |
//!                          └── 503 ─────┴─ 413, 408 ───┴── 401, 429 ───────┘               v
//!               order pool <── insert <── decode, recover, verify <── slot <── method, maybe later
//! ```
//!
//! # The life of a transaction
//! Its request is let in by the gate before its body is read. While the load is high it waits in a
//! queue. With a slot for CPU-heavy work it is decoded, its sender is recovered and its blobs are
//! proven, and it is inserted; then its hash is the answer. Success means it is in the pool.
//!
//! # Errors
//! | what | HTTP | code | `data` |
//! |---|---|---|---|
//! | overload, a cap, shutdown | 503, `Retry-After` | -32005 | `reason`, `retryAfterMs` |
//! | the caller's own quota or cap | 429, `Retry-After` | -32005 | `reason`, `retryAfterMs` |
//! | a malformed parameter | 200 | -32602 | `reason`, `field` |
//! | well formed, not accepted | 200 | -32000 | `reason` |
//! | no valid signature | 401 | -32600 | `reason` |
//! | too large; too slow | 413; 408 | -32600 | `reason` |
//! | too deep, a bad batch | 400 | -32600 | `reason` |
//! | no JSON | 400 | -32700 | `reason` |
//!
//! `reason` is one of [`Reason`]. A batch is answered with 200 and an answer for each element, each
//! of which counts for the gate and the quota. An answer on a WebSocket has no status but the same
//! body.
//!
//! # What can be lost
//! Nothing that was answered with success. What is refused is told so and counted by
//! `order_rpc_refused_total`; what is wrong by `order_rpc_failed_total`.
//!
//! # Shutdown
//! [`OrderRpcHandle::shutdown`] refuses later callers, answers those that are in, and then closes.
//!
//! ```
//! use load_control::{Gate, GateConfig};
//! use order_pool::{OrderPool, PoolConfig};
//! use order_rpc::{Host, OrderRpc, OrderRpcConfig};
//! use std::time::Duration;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let pool = OrderPool::new(PoolConfig::default())?;
//! let gate = Gate::new(GateConfig::default())?;
//! let host = Host::new(pool.clone(), gate).with_readiness(|| true);
//! let rpc = OrderRpc::start(OrderRpcConfig::new(1), host)?;
//! println!("listening on {}", rpc.local_addr());
//! rpc.shutdown(Duration::from_secs(1)).await?;
//! # Ok(())
//! # }
//! ```

mod active;
mod admission;
mod body;
mod config;
mod context;
mod deferral;
mod error;
mod methods;
mod metrics;
mod peers;
mod quota;
mod reply;
mod server;
mod signature;
mod verify;
mod ws;

pub use config::*;
pub use context::Host;
pub use error::{ShutdownError, StartError};
pub use metrics::METRICS;
pub use reply::Reason;
pub use server::{OrderRpc, OrderRpcHandle};
