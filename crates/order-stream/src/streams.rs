//! The streams and their subjects, and the set-up, which an administrator does once.

use std::time::Duration;

use async_nats::{Subject, jetstream::stream::Config};

use crate::{
    config::{Flow, ServerConfig},
    error::StreamError,
    link::{Link, TIMEOUT},
};

/// Default of [`StreamConfig::max_age`] of public orders: as long as a pool keeps a transaction
/// (`PoolConfig::tx_retention`).
pub const DEFAULT_MAX_AGE: Duration = Duration::from_secs(60);

/// Default of [`StreamConfig::max_age`] of private orders: a bundle may be for a block 64 blocks ahead
/// (`order_pool::MAX_BLOCKS_AHEAD`), which is built 768 s later.
pub const DEFAULT_PRIVATE_MAX_AGE: Duration = Duration::from_secs(900);

/// Most time for which the ids of private messages are kept, in the server's memory, where `max_bytes` does not bound them. No
/// two messages have the same, so they are for a publisher that sends one again whose acknowledgement was lost. Pools know a
/// later copy, but for a private transaction that was cancelled at another machine before
/// (`order_pool::CANCELLATION_RETENTION`): that comes back from a machine which was cut off for so long in any case.
const MAX_PRIVATE_WINDOW: Duration = Duration::from_secs(60);

/// Default of [`StreamConfig::max_bytes`]: a minute of 2,000 small transactions/s and of ten with six
/// blobs a second.
pub const DEFAULT_MAX_BYTES: u64 = 1 << 30;

/// The configuration of the stream of a flow.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(from = "Written"))]
pub struct StreamConfig {
    /// Which orders it stores.
    pub flow: Flow,
    /// As of the publishers.
    pub chain_id: u64,
    /// Servers that store each message: 1, or 3 or 5 of a cluster, of which one or two may fail. Default 1. 2 and 4 survive
    /// no more failures than 1 and 3.
    pub replicas: usize,
    /// How long a message is kept, and its id, that of a private one for a minute at most. Set it to the retention of the
    /// pools: a source that starts reads what is kept, and a transaction that comes back to a pool within it is not stored
    /// again. Default [`DEFAULT_MAX_AGE`] or [`DEFAULT_PRIVATE_MAX_AGE`]; 1 s to 1 day.
    pub max_age: Duration,
    /// Most bytes; then the oldest messages leave, which a source that has not read them counts as missed, and one that starts
    /// later lacks: it counts that it is so ([`SourceStats::cut`](crate::SourceStats::cut)). Set it for the flow and the disk
    /// by the arithmetic of `docs/fleet.md`. Default [`DEFAULT_MAX_BYTES`], at least 1 KiB.
    pub max_bytes: u64,
}

impl StreamConfig {
    /// With the defaults.
    #[must_use]
    pub const fn new(flow: Flow, chain_id: u64) -> Self {
        let max_age = match flow {
            Flow::Public => DEFAULT_MAX_AGE,
            Flow::Private => DEFAULT_PRIVATE_MAX_AGE,
        };
        Self { flow, chain_id, replicas: 1, max_age, max_bytes: DEFAULT_MAX_BYTES }
    }

    /// Checks the bounds.
    ///
    /// # Errors
    /// Names the field.
    pub fn validate(&self) -> Result<(), StreamError> {
        let age = u64::try_from(self.max_age.as_millis()).unwrap_or(u64::MAX);
        for (field, value, min, max) in [
            ("replicas", self.replicas as u64, 1, 5),
            ("max_age", age, 1_000, 86_400_000),
            ("max_bytes", self.max_bytes, 1 << 10, i64::MAX as u64),
        ] {
            if !(min..=max).contains(&value) {
                return Err(StreamError::OutOfBounds { field, value, min, max });
            }
        }
        Ok(())
    }
}

/// As it is written: what is not there depends on the flow.
#[cfg(feature = "serde")]
#[derive(Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Written {
    flow: Flow,
    chain_id: u64,
    replicas: Option<usize>,
    #[serde(with = "humantime_serde")]
    max_age: Option<Duration>,
    max_bytes: Option<u64>,
}

#[cfg(feature = "serde")]
impl From<Written> for StreamConfig {
    fn from(written: Written) -> Self {
        let default = Self::new(written.flow, written.chain_id);
        Self {
            replicas: written.replicas.unwrap_or(default.replicas),
            max_age: written.max_age.unwrap_or(default.max_age),
            max_bytes: written.max_bytes.unwrap_or(default.max_bytes),
            ..default
        }
    }
}

/// Makes the stream of a flow, or changes it if it exists. Must run on a tokio runtime. The user needs
/// `$JS.API.STREAM.CREATE`, `UPDATE` and `INFO` for it, and the subscription `_INBOX_admin.>`.
///
/// # Errors
/// The configuration is out of bounds, the server cannot be reached, or it refuses the stream: too few
/// servers for the replicas, no storage left, subjects of another stream.
pub async fn ensure_stream(
    server: &ServerConfig,
    config: &StreamConfig,
) -> Result<(), StreamError> {
    config.validate()?;
    let mut link = Link::open_any(server, "admin").await?;
    // The servers agree on a leader first.
    link.context.set_timeout(TIMEOUT);
    let stream = stream_name(config.flow, config.chain_id);
    let stored = Config {
        name: stream.clone(),
        subjects: stream_subjects(config.flow, config.chain_id),
        max_age: config.max_age,
        max_bytes: i64::try_from(config.max_bytes).unwrap_or(i64::MAX),
        duplicate_window: match config.flow {
            // As long as the messages, or an order that is published again would be stored again.
            Flow::Public => config.max_age,
            Flow::Private => config.max_age.min(MAX_PRIVATE_WINDOW),
        },
        num_replicas: config.replicas,
        ..Config::default()
    };
    let made = link.context.create_or_update_stream(stored).await;
    made.map(drop).map_err(|error| StreamError::Stream { stream, source: Box::new(error) })
}

/// The stream of a flow: `MEMPOOL_<chain>_PUBLIC` or `MEMPOOL_<chain>_PRIVATE`.
#[must_use]
pub fn stream_name(flow: Flow, chain_id: u64) -> String {
    format!("MEMPOOL_{chain_id}_{}", flow.as_str().to_uppercase())
}

/// The subjects that the stream stores, of any machine.
#[must_use]
pub fn stream_subjects(flow: Flow, chain_id: u64) -> Vec<String> {
    subjects(flow, chain_id, "*").map(|subject| subject.to_string()).into()
}

/// The two subjects on which one machine publishes a flow: that of orders, and that of heads or cancellations.
pub(crate) fn subjects(flow: Flow, chain_id: u64, machine: &str) -> [Subject; 2] {
    let kinds = match flow {
        Flow::Public => ["tx", "head"],
        Flow::Private => ["bundle", "cancel"],
    };
    kinds.map(|kind| format!("mempool.{chain_id}.{kind}.{machine}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_stores_the_subjects_of_every_machine() {
        let of = |flow| stream_subjects(flow, 1).join(" ");
        assert_eq!(of(Flow::Public), "mempool.1.tx.* mempool.1.head.*");
        assert_eq!(of(Flow::Private), "mempool.1.bundle.* mempool.1.cancel.*");
        assert_eq!(stream_name(Flow::Public, 1), "MEMPOOL_1_PUBLIC");
    }
}
