//! The options of the command's parts, read from the file of `--config` and overridden by flags.

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

use crate::print::Format;

/// A file for `--config` with every option and its default, all commented out.
#[cfg(feature = "config")]
pub const DEFAULT_CONFIG: &str = include_str!("options.toml");

#[derive(Clone, Debug)]
#[cfg_attr(feature = "config", derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub(crate) struct Options {
    pub(crate) fetcher: FetcherConfig,
    pub(crate) pool: PoolConfig,
    pub(crate) gate: GateConfig,
    pub(crate) monitor: MonitorConfig,
    /// In this and the following sections, `chain_id` 0 stands for the chain of the sources.
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
    /// The file that the options were read from.
    #[cfg(feature = "config")]
    #[serde(skip)]
    pub(crate) origin: Option<Origin>,
}

/// The path and the text of a file of `--config`.
#[cfg(feature = "config")]
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    path: PathBuf,
    text: String,
}

/// A section of the file: its header, such as `[[publish]]`, and its index among those with the
/// same header.
#[cfg(feature = "config")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Section {
    header: &'static str,
    index: usize,
}

impl Default for Options {
    fn default() -> Self {
        let mut fetcher = FetcherConfig::new([]);
        fetcher.announcements = Announcements::Auto;
        Self {
            fetcher,
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
    /// Reads a file of `--config`.
    ///
    /// # Errors
    /// The text lists every problem, each on a line of its own if there are several.
    #[cfg(feature = "config")]
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            format!("{}: {error}; `mempool-ingest config` prints a file", path.display())
        })?;
        match Self::parse(&text) {
            Ok(options) => {
                Ok(Self { origin: Some(Origin { path: path.to_owned(), text }), ..options })
            }
            Err(_) => Err(join_problems(&path.display().to_string(), &find_problems(&text))),
        }
    }

    #[cfg(feature = "config")]
    fn parse(text: &str) -> Result<Self, String> {
        let mut options: Self =
            toml::from_str(text).map_err(|error| describe_toml_error(text, &error))?;
        let table: toml::Table =
            toml::from_str(text).map_err(|error| describe_toml_error(text, &error))?;
        if table.get("fetcher").is_none_or(|fetcher| fetcher.get("announcements").is_none()) {
            options.fetcher.announcements = Announcements::Auto;
        }
        // If only `work_permits` is set, keep the default number of permits for external callers.
        // The default of `reserved_permits` would depend on the default of `work_permits`.
        let gate = table.get("gate").and_then(toml::Value::as_table);
        if gate.is_some_and(|gate| {
            gate.contains_key("work_permits") && !gate.contains_key("reserved_permits")
        }) {
            let GateConfig { work_permits, reserved_permits, .. } = GateConfig::default();
            let external = work_permits - reserved_permits;
            let permits = options.gate.work_permits;
            options.gate.reserved_permits = permits.saturating_sub(external).max(1);
        }
        // TOML has no value for `None`, so zero stands for it.
        options.fetcher.audit_interval =
            options.fetcher.audit_interval.filter(|interval| !interval.is_zero());
        if let Some(rpc) = &mut options.rpc {
            rpc.quota = rpc.quota.filter(|quota| quota.per_second > 0);
            rpc.caller_quota = rpc.caller_quota.filter(|quota| quota.per_second > 0);
        }
        Ok(options)
    }

    /// Checks the bounds of all options.
    ///
    /// # Errors
    /// The text lists every option that is out of bounds.
    #[cfg(feature = "config")]
    pub(crate) fn validate(&self) -> Result<(), String> {
        let mut problems = Vec::new();
        for (section, error) in self.errors() {
            let Some(origin) = &self.origin else {
                problems.push(error);
                continue;
            };
            // `validate` of a section returns only its first problem. Blank the line of that
            // problem and validate again, to find the next one.
            let mut text = origin.text.clone();
            let mut error = error;
            loop {
                let line = find_line(&text, &section, &error);
                problems.push(describe_problem(&text, line, &section, &error));
                let Some(line) = line else { break };
                text = blank_line(&text, line);
                let rest = Self::parse(&text).ok().map(|options| options.errors());
                let next = rest.into_iter().flatten().find(|(other, _)| *other == section);
                match next {
                    // A required option whose line was blanked is reported without a line. That is
                    // no problem of the file.
                    Some((_, next)) if find_line(&text, &section, &next).is_some() => error = next,
                    _ => break,
                }
            }
        }
        if problems.is_empty() {
            return Ok(());
        }
        match &self.origin {
            Some(origin) => Err(join_problems(&origin.path.display().to_string(), &problems)),
            // The options come from flags, which the errors name.
            None => Err(problems.join("; ")),
        }
    }

    /// Returns the first error of each section.
    #[cfg(feature = "config")]
    fn errors(&self) -> Vec<(Section, String)> {
        let mut errors = vec![
            ("[pool]", 0, error_text(self.pool.validate())),
            ("[gate]", 0, error_text(self.gate.validate())),
            ("[monitor]", 0, error_text(self.monitor.validate())),
        ];
        // An empty list of sources is reported elsewhere: a check of the other options allows it.
        if !self.fetcher.sources.is_empty() {
            errors.insert(0, ("[fetcher]", 0, error_text(self.fetcher.validate())));
        }
        if let Some(rpc) = &self.rpc {
            errors.push(("[rpc]", 0, error_text(rpc.validate())));
        }
        if let Some(recorder) = &self.recorder {
            errors.push(("[recorder]", 0, error_text(recorder.validate())));
        }
        for (index, publisher) in self.publish.iter().enumerate() {
            errors.push(("[[publish]]", index, error_text(publisher.validate())));
        }
        for (index, stream) in self.streams.iter().enumerate() {
            let missing_publisher = self.publisher_for(stream).err();
            let error = error_text(stream.validate()).or(missing_publisher);
            errors.push(("[[streams]]", index, error));
        }
        let found = errors.into_iter();
        found
            .filter_map(|(header, index, error)| Some((Section { header, index }, error?)))
            .collect()
    }

    /// Returns the publisher whose server has the stream.
    ///
    /// # Errors
    /// No `[[publish]]` has the flow of the stream.
    #[cfg(feature = "fleet")]
    pub(crate) fn publisher_for(&self, stream: &StreamConfig) -> Result<&PublisherConfig, String> {
        let flow = stream.flow;
        self.publish.iter().find(|publisher| publisher.flow == flow).ok_or_else(|| {
            format!("[[streams]]: no [[publish]] has the flow {flow:?}, so no server is named")
        })
    }

    pub(crate) fn ingest(&self) -> IngestConfig {
        let mut config = IngestConfig::new(self.fetcher.clone(), self.pool.clone());
        config.gate = self.gate;
        config.monitor = self.monitor;
        config
    }

    /// Returns the chain of the orders of a section: its own `chain_id` unless that is 0, or that
    /// of the node.
    ///
    /// # Errors
    /// The two chains differ, or both are unknown. The text names `section`.
    #[cfg(any(feature = "rpc", feature = "fleet"))]
    pub(crate) fn chain_of_orders(
        &self,
        chain_id: u64,
        node_chain_id: Option<u64>,
        section: &str,
    ) -> Result<u64, String> {
        let chain_id = Some(chain_id).filter(|chain_id| *chain_id != 0);
        let node_chain_id = node_chain_id.or(self.fetcher.chain_id);
        if let Some((chain_id, node_chain_id)) = chain_id.zip(node_chain_id)
            && chain_id != node_chain_id
        {
            return Err(format!(
                "{section}: chain_id is {chain_id}, and the node is on chain {node_chain_id}: leave \
                 chain_id out, or name another node"
            ));
        }
        chain_id.or(node_chain_id).ok_or_else(|| {
            format!("{section} needs --chain-id while no node has been reached to say its own")
        })
    }
}

#[cfg(feature = "config")]
fn error_text<E: std::error::Error>(result: Result<(), E>) -> Option<String> {
    result.err().map(|error| crate::print::with_causes(&error))
}

/// Returns one line for one problem, and a list for several.
#[cfg(feature = "config")]
fn join_problems(path: &str, problems: &[String]) -> String {
    match problems {
        [problem] => format!("{path}: {problem}"),
        problems => {
            let lines: String = problems.iter().map(|problem| format!("\n  {problem}")).collect();
            format!("{path} has {} errors:{lines}", problems.len())
        }
    }
}

#[cfg(feature = "config")]
fn is_toml(text: &str) -> bool {
    toml::from_str::<toml::Table>(text).is_ok()
}

/// Returns every error of the text. The parser stops at the first one, so its line is blanked and
/// the rest is parsed again.
#[cfg(feature = "config")]
fn find_problems(text: &str) -> Vec<String> {
    let mut rest = text.to_owned();
    let mut problems = Vec::new();
    while let Err(error) = toml::from_str::<Options>(&rest) {
        let start = error.span().map_or(0, |span| span.start.min(rest.len()));
        let line = rest[..start].matches('\n').count();
        problems.push((line, describe_toml_error(&rest, &error)));
        let next = blank_line(&rest, line);
        // Stop at a syntax error, and at a value of several lines, of which only the first was
        // blanked.
        if next == rest || !is_toml(&next) {
            break;
        }
        rest = next;
    }
    // The parser does not visit sections and keys in the order of the file.
    problems.sort();
    problems.into_iter().map(|(_, problem)| problem).collect()
}

/// Returns the text with this line empty, so that the other lines keep their numbers.
#[cfg(feature = "config")]
fn blank_line(text: &str, number: usize) -> String {
    let mut lines: Vec<_> = text.lines().collect();
    if let Some(line) = lines.get_mut(number) {
        *line = "";
    }
    lines.join("\n")
}

/// Returns the header of the section that contains a line, or an empty text before the first
/// section.
#[cfg(feature = "config")]
fn section_header(text: &str, number: usize) -> &str {
    let before = text.lines().take(number + 1).map(str::trim);
    before.filter(|line| line.starts_with('[')).last().unwrap_or("")
}

/// Returns the line of a section that sets the option that the error names first.
#[cfg(feature = "config")]
fn find_line(text: &str, section: &Section, error: &str) -> Option<usize> {
    let mut headers = 0;
    let mut is_in_section = false;
    let mut candidates = Vec::new();
    for (number, line) in text.lines().map(str::trim).enumerate() {
        if line.starts_with('[') {
            let is_same_header = line.split('#').next().unwrap_or(line).trim() == section.header;
            is_in_section = is_same_header && headers == section.index;
            headers += usize::from(is_same_header);
        } else if is_in_section
            && let Some((key, _)) = line.split_once('=').filter(|_| !line.starts_with('#'))
        {
            let key = key.trim().rsplit('.').next().unwrap_or(key);
            // The error may contain several names, and one may be the beginning of another, as in
            // `max_tx` and `max_txs`: prefer the first, then the longest.
            candidates.extend(error.find(key).map(|offset| (offset, Reverse(key.len()), number)));
        }
    }
    candidates.into_iter().min().map(|(.., number)| number)
}

/// Returns the error with its line, or with its section if the line is unknown.
#[cfg(feature = "config")]
fn describe_problem(text: &str, line: Option<usize>, section: &Section, error: &str) -> String {
    let Section { header, .. } = section;
    match line.and_then(|number| Some((number, text.lines().nth(number)?))) {
        Some((number, line)) => format!("line {}: {header} {}: {error}", number + 1, line.trim()),
        None => format!("{header}: {error}"),
    }
}

/// Returns a parser's error with its line, column and section. For an unknown name it suggests the
/// nearest known one.
#[cfg(feature = "config")]
fn describe_toml_error(text: &str, error: &toml::de::Error) -> String {
    let before = &text[..error.span().map_or(0, |span| span.start.min(text.len()))];
    let number = before.matches('\n').count();
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    let message = error.message();
    // The message is like "unknown field `slots`, expected one of `sources`, `fetch_slots`".
    let mut names = message.split('`').skip(1).step_by(2);
    let unknown = names.next().filter(|_| message.starts_with("unknown "));
    let nearest = unknown.and_then(|unknown| {
        // A name that contains the unknown one is nearer than any other: `slots` is `fetch_slots`.
        names.min_by_key(|name| {
            (!name.contains(unknown), strsim::damerau_levenshtein(unknown, name))
        })
    });
    let message = match unknown.zip(nearest) {
        Some((unknown, nearest)) => format!("there is no `{unknown}`; the nearest is `{nearest}`"),
        None => message.trim_end().to_owned(),
    };
    let line = text.lines().nth(number).unwrap_or("").trim();
    let section =
        Some(section_header(text, number)).filter(|header| !header.is_empty() && *header != line);
    let section = section.map(|header| format!("{header} ")).unwrap_or_default();
    format!("line {}, column {column}: {section}{line}: {message}", number + 1)
}

#[cfg(all(test, feature = "config"))]
mod tests {
    use std::fmt::Debug;

    use order_stream::{Flow, ServerConfig};

    use super::*;

    fn is_option_or_header(line: &str) -> bool {
        let name = line.split([' ', '.']).next().unwrap_or("");
        line.starts_with('[')
            || (line.contains(" = ")
                && !name.is_empty()
                && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'))
    }

    fn uncomment(line: &str) -> &str {
        match line.strip_prefix('#') {
            Some(option) if is_option_or_header(option) => option,
            _ => line,
        }
    }

    /// Returns the default file with every option and header uncommented.
    fn uncommented_config() -> String {
        DEFAULT_CONFIG.lines().map(uncomment).collect::<Vec<_>>().join("\n")
    }

    /// Returns the names of the fields of a struct, which `Debug` indents by four spaces.
    fn fields(value: &impl Debug) -> Vec<String> {
        let text = format!("{value:#?}");
        let lines = text.lines().filter_map(|line| line.strip_prefix("    "));
        let names = lines.filter_map(|line| Some(line.split_once(": ")?.0.to_owned()));
        names.filter(|name| !name.starts_with(' ')).collect()
    }

    #[test]
    fn the_default_file_has_every_option_with_its_default() {
        let default = Options::parse(DEFAULT_CONFIG).expect("it is valid");
        assert_eq!(format!("{default:?}"), format!("{:?}", Options::default()));
        let text = uncommented_config();
        let mut options = Options::parse(&text).unwrap_or_else(|error| panic!("{error} in {text}"));
        let publish = &options.publish[0];
        // `monitor` and `gate` are handles for programs that link the crate, and no options.
        let fetcher_fields = fields(&options.fetcher).into_iter();
        let fetcher_fields = fetcher_fields.filter(|name| name != "monitor" && name != "gate");
        let publish_fields = fields(publish).into_iter().filter(|name| name != "server");
        // The `Debug` of a server hides fields that may be secret.
        let server_fields = ["servers", "auth", "root_certificates"].map(Into::into);
        let sections = [
            ("[fetcher]", "", fetcher_fields.collect()),
            ("[pool]", "", fields(&options.pool)),
            ("[gate]", "", fields(&options.gate)),
            ("[monitor]", "", fields(&options.monitor)),
            ("[rpc]", "", fields(options.rpc.as_ref().expect("a section"))),
            ("[recorder]", "", fields(options.recorder.as_ref().expect("a section"))),
            ("[[publish]]", "", publish_fields.collect()),
            ("[[publish]]", "server.", server_fields.into()),
            ("[[streams]]", "", fields(&options.streams[0])),
        ];
        for (section, prefix, fields) in sections {
            let body = text.split_once(section).expect(section).1.split("\n[").next();
            assert!(fields.len() >= 3, "{section} {fields:?}");
            for field in fields {
                let option = format!("\n{prefix}{field} = ");
                let is_present = body.is_some_and(|body| body.contains(&option));
                assert!(is_present, "{section} has no {prefix}{field}");
            }
        }
        // Replace the options whose default is `None` or depends on the number of cores.
        let fetcher = &mut options.fetcher;
        assert_eq!((fetcher.chain_id.take(), fetcher.reconnect_limit.take()), (Some(1), Some(100)));
        fetcher.trust_node_sender = None;
        fetcher.sources.clear();
        let GateConfig { work_permits, reserved_permits, .. } = GateConfig::default();
        options.gate.work_permits = work_permits;
        options.gate.reserved_permits = reserved_permits;
        options.rpc.as_mut().expect("a section").threads = OrderRpcConfig::new(0).threads;
        let mut server = ServerConfig::default();
        server.root_certificates = Some("ca.pem".into());
        let expected = Options {
            rpc: Some(OrderRpcConfig::new(0)),
            recorder: Some(RecorderConfig::new("")),
            publish: vec![PublisherConfig::new(server, 0, "")],
            streams: vec![StreamConfig::new(Flow::Public, 0)],
            metrics: options.metrics,
            status_interval: options.status_interval,
            ..Options::default()
        };
        assert_eq!(format!("{options:?}"), format!("{expected:?}"));
    }

    #[test]
    fn defaults_depend_on_the_options_that_are_set() {
        let ages = valid("[[streams]]\nflow = \"private\"\n[[streams]]\nflow = \"public\"\n");
        let ages: Vec<_> = ages.streams.iter().map(|stream| stream.max_age.as_secs()).collect();
        assert_eq!(ages, [900, 60]);
        let GateConfig { work_permits, reserved_permits, .. } = GateConfig::default();
        for permits in [2, 64] {
            let gate = valid(&format!("[gate]\nwork_permits = {permits}\n")).gate;
            gate.validate().expect("it is valid");
            let external = (work_permits - reserved_permits).min(permits - 1);
            assert_eq!(gate.work_permits - gate.reserved_permits, external);
        }
    }

    fn valid(text: &str) -> Options {
        Options::parse(text).expect("the text is valid")
    }

    /// Returns whether the option may have this value. Options that bound it are set accordingly.
    fn is_accepted(section: &str, name: &str, value: u64) -> bool {
        let mut text = format!("[{section}]\n{name} = {value}\n");
        if name == "reserved_permits" {
            text.push_str("work_permits = 65536\n");
        } else if name == "work_permits" {
            text.push_str("reserved_permits = 1\n");
        } else if name == "max_body_bytes" {
            text.push_str("max_buffered_bytes = 1099511627776\n");
            text.push_str("caller_quota = { per_second = 0, burst = 0 }\n");
        }
        let Ok(mut options) = Options::parse(&text) else { return false };
        options.fetcher.sources = vec!["/node.ipc".parse().expect("a path")];
        options.validate().is_ok()
    }

    /// The default file has the bounds of an option in brackets, at the end of its comment.
    #[test]
    fn the_bounds_in_the_default_file_are_those_of_the_code() {
        let mut section = "";
        let mut text = String::new();
        let mut checked = 0;
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
                    for value in [least, most] {
                        assert!(is_accepted(section, name, value), "{section} {name} {value}");
                    }
                    for value in least.checked_sub(1).into_iter().chain([most + 1]) {
                        assert!(!is_accepted(section, name, value), "{section} {name} {value}");
                    }
                    checked += 1;
                }
                text.clear();
            }
        }
        assert!(checked >= 15, "{checked}");
    }

    #[test]
    fn an_unknown_name_is_refused_with_its_line_and_the_nearest_name() {
        for (text, expected) in [
            (
                "metrics = \"127.0.0.1:1\"\n\n[fetcher]\n  slots = 5\n",
                "line 4, column 3: [fetcher] slots = 5: there is no `slots`; the nearest is \
                 `fetch_slots`",
            ),
            ("[pol]\n", "line 1, column 2: [pol]: there is no `pol`; the nearest is `pool`"),
            (
                "[gate]\nrequests = \"atuo\"\n",
                "line 2, column 12: [gate] requests = \"atuo\": there is no `atuo`; the nearest is \
                 `auto`",
            ),
            (
                "[pool]\nmax_txs = \"many\"\n",
                "line 2, column 11: [pool] max_txs = \"many\": invalid type: string \"many\", \
                 expected usize",
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
    fn all_problems_of_a_file_are_reported_at_once() {
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

        let bounds = "[fetcher]\nsources = ['/a.ipc']\nfetch_slots = 0\nrequest_connections = 99\n\
                      [pool]\nmax_txs = 0\n[recorder]\nfolder = ''\n\
                      [[publish]]\nserver.servers = ['nats://n:1']\nmachine = 'm'\n\
                      [[publish]]\nflow = 'private'\nserver.servers = ['nats://n:1']\n\
                      machine = '!'\n";
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
    fn a_zero_turns_an_optional_limit_off() {
        let text =
            "[fetcher]\naudit_interval = \"0s\"\n[rpc]\nquota = { per_second = 0, burst = 0 }\n";
        let options = Options::parse(text).expect("it is valid");
        assert_eq!(options.fetcher.audit_interval, None);
        assert_eq!(options.rpc.expect("a section").quota, None);
    }
}
