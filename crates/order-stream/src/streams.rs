//! The set-up of the streams, which an administrator does once.

use std::time::Duration;

use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType};

use crate::{
    config::{Flow, MAX_SHARDS, ServerConfig, bounds, millis},
    error::StreamError,
    link::Link,
    subjects::{stream_name, stream_subjects},
};

/// Default of [`StreamsConfig::max_age`]: as long as a pool keeps a transaction
/// (`PoolConfig::tx_retention`).
pub const DEFAULT_MAX_AGE: Duration = Duration::from_secs(60);

/// Default of [`StreamsConfig::private_max_age`]: a bundle may be for a block 64 blocks ahead
/// (`order_pool::MAX_BLOCKS_AHEAD`), which is built 768 s later.
pub const DEFAULT_PRIVATE_MAX_AGE: Duration = Duration::from_secs(900);

/// Default of [`StreamsConfig::max_bytes`]: a minute of 2,000 small transactions/s and of ten with six
/// blobs.
pub const DEFAULT_MAX_BYTES: u64 = 1 << 30;

/// The configuration of the streams of one chain.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StreamsConfig {
    /// As of the publishers.
    pub chain_id: u64,
    /// As of the publishers. Default 1.
    pub shards: u16,
    /// Which flows. Default: both.
    pub flows: Vec<Flow>,
    /// Servers that store each message: 1, 3 or 5. Default 1.
    pub replicas: usize,
    /// How long a public message is kept, which is what a source that starts can still read. Default
    /// [`DEFAULT_MAX_AGE`].
    pub max_age: Duration,
    /// The same of private messages. Default [`DEFAULT_PRIVATE_MAX_AGE`].
    pub private_max_age: Duration,
    /// Most bytes of each stream. Default [`DEFAULT_MAX_BYTES`].
    pub max_bytes: u64,
    /// How long the public streams remember a message id, at most the age of the messages. A transaction
    /// that comes back to a pool within it, after it was evicted or un-mined, is not stored again. Default
    /// [`DEFAULT_MAX_AGE`]. The private stream remembers ids for [`Self::private_max_age`]: a source can
    /// make the server deliver its messages into the stream again, since the subject that a pull request
    /// names for them is not checked, and a cancelled order must not come back so.
    pub duplicate_window: Duration,
    /// At [`Self::max_bytes`]: whether new messages are refused, and the publishers told
    /// ([`State::Full`](crate::State::Full)), instead of removing the oldest. Default false: a source that
    /// has not read them counts them as missed.
    pub refuse_when_full: bool,
    /// Whether messages are kept in memory alone. A stream of one replica then loses them with its server.
    /// Default false.
    pub in_memory: bool,
}

impl StreamsConfig {
    /// Both flows of a chain, with the defaults.
    #[must_use]
    pub fn new(chain_id: u64) -> Self {
        Self {
            chain_id,
            shards: 1,
            flows: vec![Flow::Public, Flow::Private],
            replicas: 1,
            max_age: DEFAULT_MAX_AGE,
            private_max_age: DEFAULT_PRIVATE_MAX_AGE,
            max_bytes: DEFAULT_MAX_BYTES,
            duplicate_window: DEFAULT_MAX_AGE,
            refuse_when_full: false,
            in_memory: false,
        }
    }

    /// Sets [`Self::shards`].
    #[must_use]
    pub const fn with_shards(mut self, shards: u16) -> Self {
        self.shards = shards;
        self
    }

    /// Sets [`Self::flows`].
    #[must_use]
    pub fn with_flows(mut self, flows: impl Into<Vec<Flow>>) -> Self {
        self.flows = flows.into();
        self
    }

    /// Sets [`Self::replicas`].
    #[must_use]
    pub const fn with_replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// Sets [`Self::max_age`] and [`Self::private_max_age`].
    #[must_use]
    pub const fn with_max_ages(mut self, public: Duration, private: Duration) -> Self {
        self.max_age = public;
        self.private_max_age = private;
        self
    }

    /// Sets [`Self::max_bytes`].
    #[must_use]
    pub const fn with_max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Sets [`Self::duplicate_window`].
    #[must_use]
    pub const fn with_duplicate_window(mut self, window: Duration) -> Self {
        self.duplicate_window = window;
        self
    }

    /// Sets [`Self::refuse_when_full`].
    #[must_use]
    pub const fn with_refuse_when_full(mut self, refuse: bool) -> Self {
        self.refuse_when_full = refuse;
        self
    }

    /// Sets [`Self::in_memory`].
    #[must_use]
    pub const fn with_in_memory(mut self, in_memory: bool) -> Self {
        self.in_memory = in_memory;
        self
    }

    /// Checks the bounds.
    ///
    /// # Errors
    /// Names the field.
    pub fn validate(&self) -> Result<(), StreamError> {
        bounds("shards", self.shards.into(), 1, MAX_SHARDS.into())?;
        bounds("replicas", self.replicas as u64, 1, 5)?;
        millis("max_age", self.max_age, 1_000, 86_400_000)?;
        millis("private_max_age", self.private_max_age, 1_000, 86_400_000)?;
        bounds("max_bytes", self.max_bytes, 1 << 10, i64::MAX as u64)?;
        let age = u64::try_from(self.max_age.as_millis()).unwrap_or(u64::MAX);
        millis("duplicate_window", self.duplicate_window, 100, age)
    }

    fn stream(&self, flow: Flow, shard: u16) -> Config {
        let (max_age, duplicate_window) = match flow {
            Flow::Public => (self.max_age, self.duplicate_window),
            Flow::Private => (self.private_max_age, self.private_max_age),
        };
        Config {
            name: stream_name(flow, self.chain_id, shard),
            subjects: stream_subjects(flow, self.chain_id, shard),
            retention: RetentionPolicy::Limits,
            discard: if self.refuse_when_full { DiscardPolicy::New } else { DiscardPolicy::Old },
            max_age,
            max_bytes: i64::try_from(self.max_bytes).unwrap_or(i64::MAX),
            max_messages: -1,
            max_messages_per_subject: -1,
            duplicate_window,
            storage: if self.in_memory { StorageType::Memory } else { StorageType::File },
            num_replicas: self.replicas,
            ..Config::default()
        }
    }
}

/// Makes the streams of a chain, or changes those that exist. Must run on a tokio runtime. The user needs
/// `$JS.API.STREAM.CREATE`, `UPDATE` and `INFO` for each.
///
/// # Errors
/// The configuration is out of bounds, the server cannot be reached, or it refuses a stream: too few
/// servers for the replicas, no storage left, subjects of another stream.
pub async fn ensure_streams(
    server: &ServerConfig,
    config: &StreamsConfig,
) -> Result<(), StreamError> {
    config.validate()?;
    let mut link = Link::open(server, "order-stream").await?;
    // The servers agree on a leader first.
    link.context.set_timeout(server.timeout);
    for flow in &config.flows {
        let shards = if *flow == Flow::Public { config.shards } else { 1 };
        for shard in 0..shards {
            let stream = config.stream(*flow, shard);
            let name = stream.name.clone();
            link.context
                .create_or_update_stream(stream)
                .await
                .map_err(|error| StreamError::Stream { stream: name, source: Box::new(error) })?;
        }
    }
    Ok(())
}
