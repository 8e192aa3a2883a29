//! What the command does: the options of its parts, from the file of `--config` and from the flags.

#[cfg(feature = "telemetry")]
use std::net::SocketAddr;
#[cfg(feature = "config")]
use std::path::Path;
use std::time::Duration;

#[cfg(feature = "rpc")]
use mempool_ingest::OrderRpcConfig;
use mempool_ingest::{
    FetcherConfig, IngestConfig, PoolConfig,
    load_control::{GateConfig, MonitorConfig},
    txpool_fetcher::Announcements,
};
#[cfg(feature = "record")]
use mempool_recorder::RecorderConfig;
#[cfg(feature = "fleet")]
use order_stream::{PublisherConfig, StreamConfig};

use crate::say::Format;

/// Each option with its default, as a file of `--config` in which all is commented out.
#[cfg(feature = "config")]
pub const DEFAULT_CONFIG: &str = include_str!("options.toml");

#[derive(Clone, Debug)]
#[cfg_attr(feature = "config", derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub(crate) struct Options {
    pub(crate) fetcher: FetcherConfig,
    pub(crate) pool: PoolConfig,
    pub(crate) gate: GateConfig,
    pub(crate) monitor: MonitorConfig,
    /// Chain 0 is that of the sources; here and below.
    #[cfg(feature = "rpc")]
    pub(crate) rpc: Option<OrderRpcConfig>,
    #[cfg(feature = "record")]
    pub(crate) recorder: Option<RecorderConfig>,
    #[cfg(feature = "fleet")]
    pub(crate) publish: Vec<PublisherConfig>,
    #[cfg(feature = "fleet")]
    pub(crate) streams: Vec<StreamConfig>,
    #[cfg(feature = "telemetry")]
    pub(crate) metrics: Option<SocketAddr>,
    pub(crate) log_format: Format,
    #[cfg_attr(feature = "config", serde(with = "humantime_serde"))]
    pub(crate) status_interval: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        let fetcher = FetcherConfig::new([]);
        Self {
            fetcher: FetcherConfig { announcements: Announcements::Auto, ..fetcher },
            pool: PoolConfig::default(),
            gate: GateConfig::default(),
            monitor: MonitorConfig::default(),
            #[cfg(feature = "rpc")]
            rpc: None,
            #[cfg(feature = "record")]
            recorder: None,
            #[cfg(feature = "fleet")]
            publish: Vec::new(),
            #[cfg(feature = "fleet")]
            streams: Vec::new(),
            #[cfg(feature = "telemetry")]
            metrics: None,
            log_format: Format::default(),
            status_interval: None,
        }
    }
}

impl Options {
    /// Reads a file of `--config`.
    #[cfg(feature = "config")]
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| error.to_string());
        let read = text.and_then(|text| Self::parse(&text));
        read.map_err(|error| format!("{}: {error}", path.display()))
    }

    #[cfg(feature = "config")]
    fn parse(text: &str) -> Result<Self, String> {
        let mut options: Self = toml::from_str(text).map_err(|error| at(text, &error))?;
        let table: toml::Table = toml::from_str(text).map_err(|error| at(text, &error))?;
        if table.get("fetcher").is_none_or(|fetcher| fetcher.get("announcements").is_none()) {
            options.fetcher.announcements = Announcements::Auto;
        }
        // Those of callers depend on the cores, not on the default of the other option.
        let gate = table.get("gate").and_then(toml::Value::as_table);
        if gate.is_some_and(|gate| {
            gate.contains_key("work_permits") && !gate.contains_key("reserved_permits")
        }) {
            let GateConfig { work_permits, reserved_permits, .. } = GateConfig::default();
            let external = work_permits - reserved_permits;
            let permits = options.gate.work_permits;
            options.gate.reserved_permits = permits.saturating_sub(external).max(1);
        }
        // TOML has no value for none.
        options.fetcher.audit_interval =
            options.fetcher.audit_interval.filter(|interval| !interval.is_zero());
        if let Some(rpc) = &mut options.rpc {
            rpc.quota = rpc.quota.filter(|quota| quota.per_second > 0);
            rpc.caller_quota = rpc.caller_quota.filter(|quota| quota.per_second > 0);
        }
        Ok(options)
    }

    /// Checks the bounds of all options.
    #[cfg(feature = "config")]
    pub(crate) fn validate(&self) -> Result<(), crate::Failure> {
        self.fetcher.validate()?;
        self.pool.validate()?;
        self.gate.validate()?;
        self.monitor.validate()?;
        self.rpc.iter().try_for_each(OrderRpcConfig::validate)?;
        self.recorder.iter().try_for_each(RecorderConfig::validate)?;
        self.publish.iter().try_for_each(PublisherConfig::validate)?;
        for stream in &self.streams {
            stream.validate()?;
            self.publisher_of(stream)?;
        }
        Ok(())
    }

    /// Its server has the stream.
    #[cfg(feature = "fleet")]
    pub(crate) fn publisher_of(&self, stream: &StreamConfig) -> Result<&PublisherConfig, String> {
        let flow = stream.flow;
        self.publish.iter().find(|publisher| publisher.flow == flow).ok_or_else(|| {
            format!("[[streams]]: no [[publish]] has the flow {flow:?}, so no server is named")
        })
    }

    pub(crate) fn ingest(&self) -> IngestConfig {
        let config = IngestConfig::new(self.fetcher.clone(), self.pool.clone());
        IngestConfig { gate: self.gate, monitor: self.monitor, ..config }
    }

    /// The chain that an option names, or that of the connected node. `what` needs it.
    #[cfg(any(feature = "rpc", feature = "fleet"))]
    pub(crate) fn chain(&self, named: u64, node: Option<u64>, what: &str) -> Result<u64, String> {
        let missing =
            || format!("{what} needs --chain-id while no node has been reached to say its own");
        let named = Some(named).filter(|chain| *chain != 0);
        named.or(self.fetcher.chain_id).or(node).ok_or_else(missing)
    }
}

/// The place of an error and what it says, with the name that an unknown one is nearest to.
#[cfg(feature = "config")]
fn at(text: &str, error: &toml::de::Error) -> String {
    let before = &text[..error.span().map_or(0, |span| span.start.min(text.len()))];
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    let message = error.message();
    // As in "unknown field `slots`, expected one of `sources`, `fetch_slots`".
    let mut names = message.split('`').skip(1).step_by(2);
    let unknown = names.next().filter(|_| message.starts_with("unknown "));
    let near = unknown.and_then(|unknown| {
        let distance = |name: &&str| strsim::damerau_levenshtein(unknown, name);
        // A part of the name is nearer than another short name.
        names.min_by_key(|name| (!name.contains(unknown), distance(name)))
    });
    let what = match unknown.zip(near) {
        Some((unknown, near)) => format!("there is no `{unknown}`; the nearest is `{near}`"),
        None => message.trim_end().to_owned(),
    };
    format!("line {line}, column {column}: {what}")
}

#[cfg(all(test, feature = "config"))]
mod tests {
    use std::fmt::Debug;

    use order_stream::{Flow, ServerConfig};

    use super::*;

    /// The default file with all options.
    fn everything() -> String {
        let is_option = |line: &str| {
            let name = line.split([' ', '.']).next().unwrap_or("");
            line.starts_with('[')
                || (line.contains(" = ")
                    && !name.is_empty()
                    && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'))
        };
        let line = |line: &'static str| match line.strip_prefix('#') {
            Some(option) if is_option(option) => option,
            _ => line,
        };
        DEFAULT_CONFIG.lines().map(line).collect::<Vec<_>>().join("\n")
    }

    /// The names of the fields of a structure, and of those in it.
    fn fields(value: &impl Debug) -> Vec<String> {
        let text = format!("{value:#?}");
        let field = |line: &str| {
            line.strip_prefix("    ")?.split_once(": ").map(|(name, _)| name.to_owned())
        };
        text.lines().filter_map(field).filter(|name| !name.starts_with(' ')).collect()
    }

    #[test]
    fn the_default_file_is_the_default_and_names_each_option() {
        let default = Options::parse(DEFAULT_CONFIG).expect("it is valid");
        assert_eq!(format!("{default:?}"), format!("{:?}", Options::default()));
        let text = everything();
        let mut options = Options::parse(&text).unwrap_or_else(|error| panic!("{error} in {text}"));
        let publish = &options.publish[0];
        // The handles of a program that links the crate are no options.
        let of_fetcher = fields(&options.fetcher).into_iter();
        let of_fetcher = of_fetcher.filter(|it| !["monitor", "gate"].contains(&&**it));
        // Its `Debug` hides what may be secret.
        let of_server = ["servers", "auth", "root_certificates"].map(Into::into);
        let sections = [
            ("[fetcher]", "", of_fetcher.collect()),
            ("[pool]", "", fields(&options.pool)),
            ("[gate]", "", fields(&options.gate)),
            ("[monitor]", "", fields(&options.monitor)),
            ("[rpc]", "", fields(options.rpc.as_ref().expect("a section"))),
            ("[recorder]", "", fields(options.recorder.as_ref().expect("a section"))),
            ("[[publish]]", "", fields(publish).into_iter().filter(|it| it != "server").collect()),
            ("[[publish]]", "server.", of_server.into()),
            ("[[streams]]", "", fields(&options.streams[0])),
        ];
        for (section, before, fields) in sections {
            let body = text.split_once(section).expect(section).1.split("\n[").next();
            assert!(fields.len() >= 3, "{section} {fields:?}");
            for field in fields {
                let option = format!("\n{before}{field} = ");
                let is_there = body.is_some_and(|body| body.contains(&option));
                assert!(is_there, "{section} has no {before}{field}");
            }
        }
        // Without a value of their own by default, or one that depends on the cores.
        let fetcher = &mut options.fetcher;
        assert_eq!((fetcher.chain_id.take(), fetcher.reconnect_limit.take()), (Some(1), Some(100)));
        fetcher.trust_node_sender = None;
        fetcher.request_connections = FetcherConfig::new([]).request_connections;
        let GateConfig { work_permits, reserved_permits, .. } = GateConfig::default();
        let gate = GateConfig { work_permits, reserved_permits, ..options.gate };
        let rpc = options.rpc.take().expect("a section");
        let rpc = OrderRpcConfig { threads: OrderRpcConfig::new(0).threads, ..rpc };
        let server =
            ServerConfig { root_certificates: Some("ca.pem".into()), ..ServerConfig::default() };
        let expected = Options {
            rpc: Some(OrderRpcConfig::new(0)),
            recorder: Some(RecorderConfig::new("")),
            publish: vec![PublisherConfig::new(server, 0, "")],
            streams: vec![StreamConfig::new(Flow::Public, 0)],
            metrics: options.metrics,
            status_interval: options.status_interval,
            ..Options::default()
        };
        let read = Options { gate, rpc: Some(rpc), ..options };
        assert_eq!(format!("{read:?}"), format!("{expected:?}"));
    }

    #[test]
    fn an_option_that_is_left_out_is_the_default_for_those_that_are_there() {
        let read = |text: &str| Options::parse(text).expect("it is valid");
        let ages = read("[[streams]]\nflow = \"private\"\n[[streams]]\nflow = \"public\"\n");
        let ages: Vec<_> = ages.streams.iter().map(|stream| stream.max_age.as_secs()).collect();
        assert_eq!(ages, [900, 60]);
        let GateConfig { work_permits, reserved_permits, .. } = GateConfig::default();
        for permits in [2, 64] {
            let gate = read(&format!("[gate]\nwork_permits = {permits}\n")).gate;
            gate.validate().expect("it is valid");
            let external = (work_permits - reserved_permits).min(permits - 1);
            assert_eq!(gate.work_permits - gate.reserved_permits, external);
        }
    }

    /// The bounds that the default file writes in brackets behind the text of an option.
    #[test]
    fn the_bounds_in_the_default_file_are_those_of_the_code() {
        let accepts = |section: &str, name: &str, value: &str| {
            let mut text = format!("[{section}]\n{name} = {value}\n");
            if name == "reserved_permits" {
                text.push_str("work_permits = 65536\n");
            } else if name == "work_permits" {
                text.push_str("reserved_permits = 1\n");
            } else if name == "max_body_bytes" {
                text.push_str("max_buffered_bytes = 1099511627776\ncaller_quota = { per_second = 0, burst = 0 }\n");
            }
            let Ok(mut options) = Options::parse(&text) else { return false };
            options.fetcher.sources = vec!["/node.ipc".parse().expect("a path")];
            options.validate().is_ok()
        };
        let (mut section, mut text, mut checked) = ("", String::new(), 0);
        for line in DEFAULT_CONFIG.lines() {
            let line = line.strip_prefix('#').unwrap_or(line);
            if let Some(name) = line.strip_prefix('[') {
                section = name.trim_end_matches(']');
            } else if line.starts_with(' ') {
                text.push_str(line);
            } else {
                let name = line.split(' ').next().unwrap_or("");
                let bounds = text.split('(').skip(1).filter_map(|part| part.split(')').next());
                for (least, most) in bounds.filter_map(|bounds| bounds.split_once(" to ")) {
                    let (Ok(least), Ok(most)) = (least.parse::<u64>(), most.parse::<u64>()) else {
                        continue;
                    };
                    let ok = |value: u64| accepts(section, name, &value.to_string());
                    assert!(ok(least) && ok(most), "{section} {name} {least} {most}");
                    assert!(!ok(most + 1) && (least == 0 || !ok(least - 1)), "{section} {name}");
                    checked += 1;
                }
                text.clear();
            }
        }
        assert!(checked >= 15, "{checked}");
    }

    #[test]
    fn a_name_that_is_unknown_is_refused_with_its_place_and_the_nearest() {
        for (text, expected) in [
            (
                "metrics = \"127.0.0.1:1\"\n\n[fetcher]\n  slots = 5\n",
                "line 4, column 3: there is no `slots`; the nearest is `fetch_slots`",
            ),
            ("[pol]\n", "line 1, column 2: there is no `pol`; the nearest is `pool`"),
            (
                "[gate]\nrequests = \"atuo\"\n",
                "line 2, column 12: there is no `atuo`; the nearest is `auto`",
            ),
            (
                "[pool]\nmax_txs = \"many\"\n",
                "line 2, column 11: invalid type: string \"many\", expected usize",
            ),
            ("[pool]\ntx_retention = 60\n", "line 2, column 16: "),
            ("[fetcher]\nsources = [\"http://x\"]\n", "line 2, column "),
            ("[pool\n", "line 1, column "),
        ] {
            let error = Options::parse(text).expect_err(text);
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn what_is_none_is_written_as_nothing() {
        let text =
            "[fetcher]\naudit_interval = \"0s\"\n[rpc]\nquota = { per_second = 0, burst = 0 }\n";
        let options = Options::parse(text).expect("it is valid");
        assert_eq!(options.fetcher.audit_interval, None);
        assert_eq!(options.rpc.expect("a section").quota, None);
    }
}
