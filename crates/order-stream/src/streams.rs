//! The streams, their subjects, and their set-up, which an administrator does once.

use std::time::Duration;

use async_nats::{Subject, jetstream::stream::Config};

use crate::{
    config::{Flow, ServerConfig},
    connection::{Connection, TIMEOUT},
    error::StreamError,
};

/// The default of [`StreamConfig::max_age`] for public orders: as long as a pool keeps a
/// transaction (`PoolConfig::tx_retention`).
pub const DEFAULT_MAX_AGE: Duration = Duration::from_secs(60);

/// The default of [`StreamConfig::max_age`] for private orders. A bundle may target a block 64
/// blocks ahead (`order_pool::MAX_BLOCKS_AHEAD`), which is built 768 s later.
pub const DEFAULT_PRIVATE_MAX_AGE: Duration = Duration::from_secs(900);

/// How long the server keeps the ids of private messages at most. It keeps them in memory, where
/// `max_bytes` does not bound them. No two private messages have the same id, so the ids only
/// recognise a message that was sent again because its acknowledgement was lost. A later copy,
/// which a cut may have delayed for longer, is stored again, and builders recognise it: they
/// remember cancellations, and the newest bundle of each key and block, for 15 minutes.
const MAX_PRIVATE_DUPLICATE_WINDOW: Duration = Duration::from_secs(60);

/// The default of [`StreamConfig::max_bytes`]: a minute of 2,000 small transactions/s together with
/// ten six-blob transactions/s.
pub const DEFAULT_MAX_BYTES: u64 = 1 << 30;

/// The configuration of the stream of a flow.
///
/// Make one with [`Self::new`] and then set its fields: the struct gets more fields in
/// later versions.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(from = "OptionalFields"))]
pub struct StreamConfig {
    /// Which orders the stream stores.
    pub flow: Flow,
    /// The chain id that the publishers have.
    pub chain_id: u64,
    /// How many servers store each message: 1, or 3 or 5 of a cluster, of which one or two may
    /// fail. Default 1. 2 and 4 survive no more failures than 1 and 3.
    pub replicas: usize,
    /// How long the stream keeps a message and its id; the id of a private message for at most a
    /// minute. Set it to the retention of the pools: a source that starts reads what the stream
    /// keeps, and a transaction that comes back to a pool within this time is stored again only
    /// when its publisher repeats it, 30 s later.
    /// Default [`DEFAULT_MAX_AGE`] or [`DEFAULT_PRIVATE_MAX_AGE`]; 1 s to 1 day.
    pub max_age: Duration,
    /// The most bytes that the stream keeps. Above it the server deletes the oldest messages. A
    /// source that has not read them counts them as missed; a source that starts later cannot count
    /// them and reports it ([`SourceStats::cut`](crate::SourceStats::cut)). Set it for your flow
    /// and disk by the arithmetic of `docs/fleet.md`. Default [`DEFAULT_MAX_BYTES`], at least 1
    /// KiB.
    pub max_bytes: u64,
}

impl StreamConfig {
    /// Returns the configuration with all defaults.
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
    /// Names the first field that is out of its bounds.
    pub fn validate(&self) -> Result<(), StreamError> {
        let max_age_ms = u64::try_from(self.max_age.as_millis()).unwrap_or(u64::MAX);
        for (field, value, min, max) in [
            ("replicas", self.replicas as u64, 1, 5),
            ("max_age", max_age_ms, 1_000, 86_400_000),
            ("max_bytes", self.max_bytes, 1 << 10, i64::MAX as u64),
        ] {
            if !(min..=max).contains(&value) {
                return Err(StreamError::OutOfBounds { field, value, min, max });
            }
        }
        Ok(())
    }
}

/// [`StreamConfig`] as it is written in a file. The defaults of absent fields depend on the flow.
#[cfg(feature = "serde")]
#[derive(Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct OptionalFields {
    flow: Flow,
    chain_id: u64,
    replicas: Option<usize>,
    #[serde(with = "humantime_serde")]
    max_age: Option<Duration>,
    max_bytes: Option<u64>,
}

#[cfg(feature = "serde")]
impl From<OptionalFields> for StreamConfig {
    fn from(fields: OptionalFields) -> Self {
        let default = Self::new(fields.flow, fields.chain_id);
        Self {
            replicas: fields.replicas.unwrap_or(default.replicas),
            max_age: fields.max_age.unwrap_or(default.max_age),
            max_bytes: fields.max_bytes.unwrap_or(default.max_bytes),
            ..default
        }
    }
}

/// Creates the stream of a flow, or updates it if it exists. Must run on a tokio runtime. The user
/// needs the rights to publish to `$JS.API.STREAM.CREATE`, `UPDATE` and `INFO`, and to subscribe to
/// `_INBOX_admin.>`.
///
/// # Errors
/// The configuration is out of bounds, no server can be reached, or the server rejects the stream:
/// there are too few servers for the replicas, there is no storage left, another stream has the
/// subjects, or the server is older than 2.11.
pub async fn ensure_stream(
    server: &ServerConfig,
    config: &StreamConfig,
) -> Result<(), StreamError> {
    config.validate()?;
    let mut connection = Connection::open_any(server, "admin").await?;
    // The servers elect a leader before they respond.
    connection.context.set_timeout(TIMEOUT);
    let stream = stream_name(config.flow, config.chain_id);
    let stream_config = Config {
        name: stream.clone(),
        subjects: stream_subjects(config.flow, config.chain_id),
        max_age: config.max_age,
        max_bytes: i64::try_from(config.max_bytes).unwrap_or(i64::MAX),
        duplicate_window: match config.flow {
            // If it were shorter, an order that is published again would be stored again.
            Flow::Public => config.max_age,
            Flow::Private => config.max_age.min(MAX_PRIVATE_DUPLICATE_WINDOW),
        },
        num_replicas: config.replicas,
        allow_message_ttl: has_lifetimes(config.flow),
        ..Config::default()
    };
    let stored = match connection.context.create_or_update_stream(stream_config).await {
        Ok(info) => info.config,
        Err(error) => return Err(StreamError::Stream { stream, source: Box::new(error) }),
    };
    // Servers ignore options that they do not know.
    if has_lifetimes(config.flow) && !stored.allow_message_ttl {
        return Err(StreamError::ServerTooOld { stream });
    }
    Ok(())
}

/// Whether messages of a flow have lifetimes of their own, so that they do not leave the stream in
/// the order in which they were stored.
pub(crate) const fn has_lifetimes(flow: Flow) -> bool {
    matches!(flow, Flow::Private)
}

/// Returns the name of the stream of a flow: `MEMPOOL_<chain>_PUBLIC` or `MEMPOOL_<chain>_PRIVATE`.
#[must_use]
pub fn stream_name(flow: Flow, chain_id: u64) -> String {
    format!("MEMPOOL_{chain_id}_{}", flow.as_str().to_uppercase())
}

/// Returns the subjects that the stream of a flow stores, with a wildcard for the machine.
#[must_use]
pub fn stream_subjects(flow: Flow, chain_id: u64) -> Vec<String> {
    subjects(flow, chain_id, "*").map(|subject| subject.to_string()).into()
}

/// Returns the two subjects on which a machine publishes a flow: first the subject of orders, then
/// that of heads (public) or cancellations (private).
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
        assert_eq!(stream_subjects(Flow::Public, 1), ["mempool.1.tx.*", "mempool.1.head.*"]);
        assert_eq!(stream_subjects(Flow::Private, 1), ["mempool.1.bundle.*", "mempool.1.cancel.*"]);
        assert_eq!(stream_name(Flow::Public, 1), "MEMPOOL_1_PUBLIC");
    }
}
