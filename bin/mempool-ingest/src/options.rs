//! What the command does: the options of its parts, from the file of `--config` and from the flags.

#[cfg(feature = "telemetry")]
use std::net::SocketAddr;
use std::time::Duration;
#[cfg(feature = "config")]
use std::{
    cmp::Reverse,
    path::{Path, PathBuf},
};

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
    /// The file that the options come from, if there is one.
    #[cfg(feature = "config")]
    #[serde(skip)]
    pub(crate) origin: Option<Origin>,
}

/// A file of `--config`.
#[cfg(feature = "config")]
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    path: PathBuf,
    text: String,
}

/// A section of the file: its name as it is written, and the how-manieth of this name it is, from 0.
#[cfg(feature = "config")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Section {
    name: &'static str,
    index: usize,
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
            #[cfg(feature = "config")]
            origin: None,
        }
    }
}

impl Options {
    /// Reads a file of `--config`. The error names each problem, in a line of its own if there are several.
    #[cfg(feature = "config")]
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            format!("{}: {error}; `mempool-ingest config` prints a file", path.display())
        })?;
        match Self::parse(&text) {
            Ok(options) => {
                Ok(Self { origin: Some(Origin { path: path.to_owned(), text }), ..options })
            }
            Err(_) => Err(listed(&path.display().to_string(), &problems_of_text(&text))),
        }
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

    /// Checks the bounds of all options. The error names each that is out of bounds.
    #[cfg(feature = "config")]
    pub(crate) fn validate(&self) -> Result<(), String> {
        let mut problems = Vec::new();
        for (section, error) in self.errors() {
            let Some(origin) = &self.origin else {
                problems.push(error);
                continue;
            };
            // A section tells its first problem: without that line of the file it tells the next one.
            let (mut text, mut error) = (origin.text.clone(), error);
            loop {
                let line = line_of(&text, &section, &error);
                problems.push(placed(&text, line, &section, &error));
                let Some(line) = line else { break };
                text = without_line(&text, line);
                let rest = Self::parse(&text).ok().map(|options| options.errors());
                let next = rest.into_iter().flatten().find(|(other, _)| *other == section);
                match next {
                    // Without its line a required option is missing, which is no error of the file.
                    Some((_, next)) if line_of(&text, &section, &next).is_some() => error = next,
                    _ => break,
                }
            }
        }
        if problems.is_empty() {
            return Ok(());
        }
        match &self.origin {
            Some(origin) => Err(listed(&origin.path.display().to_string(), &problems)),
            // Of flags: each names itself.
            None => Err(problems.join("; ")),
        }
    }

    /// The first error of each section, with its section.
    #[cfg(feature = "config")]
    fn errors(&self) -> Vec<(Section, String)> {
        let mut errors = Vec::new();
        let mut add = |name: &'static str, index: usize, error: Option<String>| {
            errors.extend(error.map(|error| (Section { name, index }, error)));
        };
        // That no node is named is another error.
        if !self.fetcher.sources.is_empty() {
            add("[fetcher]", 0, text_of(self.fetcher.validate()));
        }
        add("[pool]", 0, text_of(self.pool.validate()));
        add("[gate]", 0, text_of(self.gate.validate()));
        add("[monitor]", 0, text_of(self.monitor.validate()));
        if let Some(rpc) = &self.rpc {
            add("[rpc]", 0, text_of(rpc.validate()));
        }
        if let Some(recorder) = &self.recorder {
            add("[recorder]", 0, text_of(recorder.validate()));
        }
        for (index, publisher) in self.publish.iter().enumerate() {
            add("[[publish]]", index, text_of(publisher.validate()));
        }
        for (index, stream) in self.streams.iter().enumerate() {
            let server = self.publisher_of(stream).err();
            add("[[streams]]", index, text_of(stream.validate()).or(server));
        }
        errors
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

    /// The chain of orders: the `chain_id` of their section, or that of the nodes. `section` is named in the error.
    #[cfg(any(feature = "rpc", feature = "fleet"))]
    pub(crate) fn chain(
        &self,
        chain_id: u64,
        node: Option<u64>,
        section: &str,
    ) -> Result<u64, String> {
        let chain_id = Some(chain_id).filter(|chain_id| *chain_id != 0);
        let node = node.or(self.fetcher.chain_id);
        if let Some((chain_id, node)) = chain_id.zip(node)
            && chain_id != node
        {
            return Err(format!(
                "{section}: chain_id is {chain_id}, and the node is on chain {node}: leave chain_id out, or name another \
                 node"
            ));
        }
        chain_id.or(node).ok_or_else(|| {
            format!("{section} needs --chain-id while no node has been reached to say its own")
        })
    }
}

#[cfg(feature = "config")]
fn text_of<E: std::error::Error>(result: Result<(), E>) -> Option<String> {
    result.err().map(|error| crate::say::with_causes(&error))
}

/// One line for one problem, a list for several.
#[cfg(feature = "config")]
fn listed(path: &str, problems: &[String]) -> String {
    match problems {
        [problem] => format!("{path}: {problem}"),
        problems => {
            let lines: String = problems.iter().map(|problem| format!("\n  {problem}")).collect();
            format!("{path} has {} errors:{lines}", problems.len())
        }
    }
}

/// Everything that is wrong in the text: each line with an error is left out, and the rest is read again.
#[cfg(feature = "config")]
fn problems_of_text(text: &str) -> Vec<String> {
    let is_toml = |text: &str| toml::from_str::<toml::Table>(text).is_ok();
    let (mut rest, mut problems) = (text.to_owned(), Vec::new());
    while let Err(error) = toml::from_str::<Options>(&rest) {
        let start = error.span().map_or(0, |span| span.start.min(rest.len()));
        let line = rest[..start].matches('\n').count();
        problems.push((line, at(&rest, &error)));
        let next = without_line(&rest, line);
        // What is no TOML has one error; a value of several lines cannot be left out by its first.
        if next == rest || !is_toml(&next) {
            break;
        }
        rest = next;
    }
    // The parser visits sections and keys in an order of its own.
    problems.sort();
    problems.into_iter().map(|(_, problem)| problem).collect()
}

/// The text with this line empty, so that the others keep their numbers.
#[cfg(feature = "config")]
fn without_line(text: &str, number: usize) -> String {
    let keep = |(index, line)| if index == number { "" } else { line };
    text.lines().enumerate().map(keep).collect::<Vec<_>>().join("\n")
}

/// The header of the section that a line is in; empty before the first.
#[cfg(feature = "config")]
fn section_of(text: &str, number: usize) -> &str {
    let before = text.lines().take(number + 1).map(str::trim);
    before.filter(|line| line.starts_with('[')).last().unwrap_or("")
}

/// The line of a section that sets the option that an error names first.
#[cfg(feature = "config")]
fn line_of(text: &str, section: &Section, error: &str) -> Option<usize> {
    let (mut headers, mut is_in) = (0, false);
    let mut candidates = Vec::new();
    for (number, line) in text.lines().map(str::trim).enumerate() {
        if line.starts_with('[') {
            let is_this = line.split('#').next().unwrap_or(line).trim() == section.name;
            is_in = is_this && headers == section.index;
            headers += usize::from(is_this);
        } else if is_in
            && let Some((key, _)) = line.split_once('=').filter(|_| !line.starts_with('#'))
        {
            let key = key.trim().rsplit('.').next().unwrap_or(key);
            // Of two names at one place, such as `max_tx` and `max_txs`, the longer one is meant.
            candidates.extend(error.find(key).map(|place| (place, Reverse(key.len()), number)));
        }
    }
    candidates.into_iter().min().map(|(.., number)| number)
}

/// An error with the line that it is about, or with its section.
#[cfg(feature = "config")]
fn placed(text: &str, line: Option<usize>, section: &Section, error: &str) -> String {
    let Section { name, .. } = section;
    match line.and_then(|number| Some((number, text.lines().nth(number)?))) {
        Some((number, line)) => format!("line {}: {name} {}: {error}", number + 1, line.trim()),
        None => format!("{name}: {error}"),
    }
}

/// The place of an error and what it says, with the name that an unknown one is nearest to.
#[cfg(feature = "config")]
fn at(text: &str, error: &toml::de::Error) -> String {
    let before = &text[..error.span().map_or(0, |span| span.start.min(text.len()))];
    let number = before.matches('\n').count();
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
    let message = match unknown.zip(near) {
        Some((unknown, near)) => format!("there is no `{unknown}`; the nearest is `{near}`"),
        None => message.trim_end().to_owned(),
    };
    let line = text.lines().nth(number).unwrap_or("").trim();
    let section =
        Some(section_of(text, number)).filter(|section| !section.is_empty() && *section != line);
    let place = section.map(|section| format!("{section} ")).unwrap_or_default();
    format!("line {}, column {column}: {place}{line}: {message}", number + 1)
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
        fetcher.sources.clear();
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
                "line 4, column 3: [fetcher] slots = 5: there is no `slots`; the nearest is `fetch_slots`",
            ),
            ("[pol]\n", "line 1, column 2: [pol]: there is no `pol`; the nearest is `pool`"),
            (
                "[gate]\nrequests = \"atuo\"\n",
                "line 2, column 12: [gate] requests = \"atuo\": there is no `atuo`; the nearest is `auto`",
            ),
            (
                "[pool]\nmax_txs = \"many\"\n",
                "line 2, column 11: [pool] max_txs = \"many\": invalid type: string \"many\", expected usize",
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
    fn all_that_is_wrong_in_a_file_is_said_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file.toml");
        let read = |text: &str| {
            std::fs::write(&path, text).expect("a file");
            Options::read(&path).and_then(|options| options.validate())
        };
        let unknown =
            "metrik = '127.0.0.1:1'\n[fetcher]\nslots = 5\nchain_id = 'one'\n[pool]\nmax_txs = 1\n";
        let error = read(unknown).expect_err("three errors");
        let lines: Vec<_> = error.lines().collect();
        assert_eq!(lines[0], format!("{} has 3 errors:", path.display()));
        assert!(lines[1].starts_with("  line 1, column 1: metrik = "), "{error}");
        assert!(
            lines[2].starts_with("  line 3, column 1: [fetcher] slots = 5: there is no"),
            "{error}"
        );
        assert!(
            lines[3].starts_with("  line 4, column 12: [fetcher] chain_id = 'one': "),
            "{error}"
        );
        assert_eq!(lines.len(), 4, "{error}");

        let bounds = "[fetcher]\nsources = ['/a.ipc']\nfetch_slots = 0\nrequest_connections = 99\n[pool]\nmax_txs = 0\n\
                      [recorder]\nfolder = ''\n[[publish]]\nserver.servers = ['nats://n:1']\nmachine = 'm'\n\
                      [[publish]]\nflow = 'private'\nserver.servers = ['nats://n:1']\nmachine = '!'\n";
        let error = read(bounds).expect_err("five errors");
        for line in [
            "has 5 errors:",
            "  line 3: [fetcher] fetch_slots = 0: ",
            "  line 4: [fetcher] request_connections = 99: ",
            "  line 6: [pool] max_txs = 0: ",
            "  line 8: [recorder] folder = '': ",
            "  line 15: [[publish]] machine = '!': ",
        ] {
            assert!(error.contains(line), "{line} in {error}");
        }
        let one = read("[pool]\nmax_txs = 0\n").expect_err("one error");
        assert!(
            one.starts_with(&format!("{}: line 2: [pool] max_txs = 0: ", path.display())),
            "{one}"
        );
        assert_eq!(one.lines().count(), 1, "{one}");
        read("[fetcher]\n[pool]\nmax_txs = 5\n").expect("it is valid");
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
