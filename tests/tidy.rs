//! Compares the documents with the code, and checks rules that all code must follow.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use blocklist::BlocklistConfig;
use mempool_ingest::{load_control, order_pool, order_rpc, txpool_fetcher};

const DOCUMENTS: [&str; 13] = [
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "benches/README.md",
    "docs/configuration.md",
    "docs/fleet.md",
    "docs/linking.md",
    "docs/metrics.md",
    "docs/operations.md",
    "integrations/rbuilder/README.md",
    "integrations/reth/README.md",
];

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns every file of the repository except build output, relative to its root.
fn files() -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root().join(&folder)).expect("a readable folder") {
            let entry = entry.expect("a readable entry");
            let path = folder.join(entry.file_name());
            let kind = entry.file_type().expect("a file type");
            if kind.is_dir() && path != Path::new("target") && path != Path::new(".git") {
                folders.push(path);
            } else if kind.is_file() {
                found.push(path);
            }
        }
    }
    assert!(found.len() > 50, "the walk went wrong: {found:?}");
    found
}

/// Returns the files with this extension, and their texts.
fn texts(extension: &str) -> Vec<(PathBuf, String)> {
    let mut files = files();
    files.retain(|path| path.extension().is_some_and(|found| found == extension));
    files.into_iter().map(|path| (path.clone(), read(path))).collect()
}

/// Returns the code of the published crates, the facade and the command, without their tests.
fn sources() -> Vec<(PathBuf, String)> {
    let mut sources = texts("rs");
    sources.retain(|(path, _)| {
        let is_crate = path.starts_with("crates") || path.starts_with("bin");
        let is_source = is_crate && path.iter().nth(2) == Some("src".as_ref());
        (is_source || path.starts_with("src")) && path.iter().all(|part| part != "tests")
    });
    for (_, text) in &mut sources {
        text.truncate(text.find("#[cfg(test)]\nmod ").unwrap_or(text.len()));
    }
    sources
}

/// Returns every part of a text between `begin` and the next `end`.
fn all_between<'a>(text: &'a str, begin: &str, end: &str) -> Vec<&'a str> {
    let rests = text.split(begin).skip(1);
    rests.map(|rest| rest.split(end).next().unwrap_or(rest)).collect()
}

/// Returns the first part of a text between `begin` and the next `end`.
fn between<'a>(text: &'a str, begin: &str, end: &str) -> &'a str {
    all_between(text, begin, end).first().unwrap_or_else(|| panic!("no {begin:?}"))
}

/// Returns the rest of every line that begins with `prefix`, indented or not.
fn lines_after<'a>(text: &'a str, prefix: &str) -> Vec<&'a str> {
    text.lines().filter_map(|line| line.trim().strip_prefix(prefix)).collect()
}

/// Returns the text below a heading, up to the next heading of its level or above.
fn section<'a>(text: &'a str, heading: &str) -> &'a str {
    let level = heading.split(' ').next().expect("hashes").len();
    let start = text.find(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no {heading:?}"));
    let body = &text[start + heading.len() + 2..];
    let ends = (1..=level).filter_map(|level| body.find(&format!("\n{} ", "#".repeat(level))));
    &body[..ends.min().unwrap_or(body.len())]
}

/// Returns the cells of the first table, without its head.
fn rows(text: &str) -> Vec<Vec<&str>> {
    let lines = text.lines().skip_while(|line| !line.starts_with('|'));
    let table = lines.take_while(|line| line.starts_with('|'));
    table.skip(2).map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// Returns every text between backticks outside of code blocks.
fn quoted(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut in_block = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            found.extend(line.split('`').skip(1).step_by(2));
        }
    }
    found
}

/// Returns the value of a key in the manifest of the workspace.
fn workspace_value(key: &str) -> String {
    between(&read("Cargo.toml"), &format!("\n{key} = \""), "\"").to_owned()
}

#[test]
fn the_readme_names_the_rust_version_of_the_workspace() {
    let readme = read("README.md");
    let rests = readme.split("Rust ").skip(1);
    let mut versions: Vec<_> = rests
        .filter_map(|rest| rest.split(|c: char| !c.is_ascii_digit() && c != '.').next())
        .collect();
    versions.retain(|version| !version.is_empty());
    assert_eq!(versions, [workspace_value("rust-version")]);
}

#[test]
fn the_changelog_begins_with_the_version_of_the_workspace() {
    assert_eq!(between(&read("CHANGELOG.md"), "\n## [", "]"), workspace_value("version"));
}

#[test]
fn the_blocklists_options_are_those_of_the_code() {
    let configuration = read("docs/configuration.md");
    let table = rows(&configuration)
        .into_iter()
        .map(|row| format!("{} {}", row[0].trim_matches('`'), row[1].trim_matches('`')));
    let BlocklistConfig { min_addresses, max_age, policy, .. } = BlocklistConfig::default();
    let hours = max_age.map_or(0, |age| age.as_secs() / 3600);
    let expected = [
        format!("min_addresses {min_addresses}"),
        format!("max_age {hours} h"),
        format!("policy {policy:?}"),
    ];
    assert_eq!(table.collect::<Vec<_>>(), expected);
}

/// Parses a number with a unit, into bytes or nanoseconds.
fn number(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != ',').unwrap_or(text.len());
    let factor = match text[end..].trim() {
        "" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "h" => 3_600_000_000_000,
        "year" => 365 * 86_400 * 1_000_000_000,
        _ => return None,
    };
    text[..end].replace(',', "").parse::<u64>().ok().map(|number| number * factor)
}

fn is_metric(text: &str) -> bool {
    metrics().iter().any(|(prefix, _)| text.len() > prefix.len() && text.starts_with(prefix))
        && text.chars().all(|c| c.is_ascii_lowercase() || c == '_')
}

fn metric_names<U, T>(table: &[(&'static str, U, T)]) -> BTreeSet<&'static str> {
    table.iter().map(|(name, ..)| *name).collect()
}

/// Returns the prefix and the names of the metrics of each crate.
fn metrics() -> [(&'static str, BTreeSet<&'static str>); 10] {
    [
        ("mempool_fetcher_", metric_names(txpool_fetcher::METRICS)),
        // The feature `telemetry` would make the first build longer. The command's own test
        // `telemetry.rs` compares its tables.
        ("mempool_telemetry_", ["mempool_telemetry_connections_total"].into()),
        ("mempool_build_", ["mempool_build_info"].into()),
        ("mempool_log_", ["mempool_log_dropped_total"].into()),
        ("order_pool_", metric_names(order_pool::METRICS)),
        ("load_control_", metric_names(load_control::METRICS)),
        ("order_rpc_", metric_names(order_rpc::METRICS)),
        ("blocklist_", metric_names(blocklist::METRICS)),
        ("mempool_recorder_", metric_names(mempool_recorder::METRICS)),
        ("order_stream_", metric_names(order_stream::METRICS)),
    ]
}

fn all_metrics() -> BTreeSet<&'static str> {
    metrics().into_iter().flat_map(|(_, table)| table).collect()
}

#[test]
fn the_metric_table_lists_every_metric_of_the_crates_and_no_other() {
    let texts = sources();
    let in_code: BTreeSet<_> = texts
        .iter()
        .flat_map(|(_, text)| text.split('"').skip(1).filter(|text| is_metric(text)))
        .collect();
    for (prefix, table) in metrics() {
        assert!(!table.is_empty() && table.iter().all(|name| name.starts_with(prefix)), "{prefix}");
    }
    assert_eq!(all_metrics(), in_code, "the tables of the crates and what the code records");
    let document = read("docs/metrics.md");
    let table = section(&document, "## The metrics");
    let names = rows(table).into_iter().flat_map(|row| quoted(row[0])).collect::<Vec<_>>();
    let listed: BTreeSet<_> = names.iter().copied().collect();
    assert_eq!(listed.len(), names.len(), "a metric twice");
    assert_eq!(listed, all_metrics());
}

#[test]
fn every_metric_that_a_document_names_exists() {
    let known = all_metrics();
    let mut named = 0;
    for document in DOCUMENTS {
        for name in quoted(&read(document)).into_iter().filter(|text| is_metric(text)) {
            assert!(known.contains(name), "{document}: {name}");
            named += 1;
        }
    }
    assert!(named > 50);
}

/// Removes the suffix that Prometheus adds to the name of a histogram.
fn without_histogram_suffix(word: &str) -> &str {
    let suffixes = ["_bucket", "_sum", "_count"];
    suffixes.iter().find_map(|suffix| word.strip_suffix(suffix)).unwrap_or(word)
}

/// Returns the words of a text that begin with the prefix of a metric.
fn metric_words(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let known = metrics();
    words
        .map(without_histogram_suffix)
        .filter(|word| known.iter().any(|(prefix, _)| word.starts_with(prefix)))
        .collect()
}

#[test]
fn every_alert_has_existing_metrics_tests_and_a_runbook_section() {
    let rules = read("etc/prometheus/mempool-ingest.rules.yml");
    let tests = read("etc/prometheus/mempool-ingest.test.yml");
    let known = all_metrics();
    for text in [&rules, &tests, &read("etc/grafana/mempool-ingest.json")] {
        let named = metric_words(text);
        assert!(named.len() > 10, "{named:?}");
        assert_eq!(named.difference(&known).collect::<Vec<_>>(), Vec::<&&str>::new());
    }
    let alerts = BTreeSet::from_iter(lines_after(&rules, "- alert: "));
    assert!(alerts.len() > 10, "{alerts:?}");
    let operations = read("docs/operations.md");
    let explained = BTreeSet::from_iter(lines_after(section(&operations, "## Alerts"), "### "));
    assert_eq!(explained, alerts, "the sections below \"Alerts\" and the alerts");
    let runbooks = BTreeSet::from_iter(lines_after(&rules, "runbook_url: "));
    let anchored =
        alerts.iter().map(|alert| format!("docs/operations.md#{}", alert.to_lowercase()));
    let anchored: BTreeSet<_> = anchored.collect();
    assert_eq!(
        runbooks,
        anchored.iter().map(String::as_str).collect(),
        "the runbook_url of each alert"
    );
    for alert in alerts {
        let mut lines = tests.lines().filter(|line| line.contains(alert));
        let has_firing_test = lines.any(|line| line.trim().starts_with("- { labels: "));
        assert!(has_firing_test, "no test in which {alert} fires");
        let mut lines = tests.lines().filter(|line| line.contains(alert));
        let has_silent_test = lines.any(|line| line.ends_with("exp_samples: [] }"));
        assert!(has_silent_test, "no test in which {alert} does not fire");
    }
}

#[test]
fn the_operations_explain_every_state_and_reason_of_a_source() {
    use txpool_fetcher::{GapReason, Outcome, SourceState};
    let operations = read("docs/operations.md");
    let table = rows(section(&operations, "## States and reasons"));
    let explained: Vec<_> = table.iter().flat_map(|row| quoted(row[0])).collect();
    let mut words: Vec<_> = SourceState::ALL.map(SourceState::as_str).into();
    words.extend(GapReason::ALL.map(GapReason::as_str));
    words.extend(Outcome::ALL.map(Outcome::as_str));
    let words = BTreeSet::from_iter(words);
    assert_eq!(explained.len(), words.len(), "a word twice: {explained:?}");
    assert_eq!(BTreeSet::from_iter(explained), words);
}

#[test]
fn the_alerts_with_a_prefix_are_those_that_the_script_writes() {
    let mut script = std::process::Command::new(root().join("etc/prometheus/prefixed.sh"));
    let output = script.args(["reth_", "rules"]).output().expect("the script runs");
    let written = String::from_utf8(output.stdout).expect("text");
    assert_eq!(written, read("etc/prometheus/mempool-ingest.reth.rules.yml"));
    assert_eq!(metric_words(&written), BTreeSet::new(), "without the prefix");
}

/// A renderer shows a block as code only if its fence has a known language or nothing behind it.
#[test]
fn every_code_fence_is_rendered_as_code() {
    const LANGUAGES: [&str; 9] =
        ["", "console", "diff", "no_run", "rust", "rust,ignore", "rust,no_run", "text", "toml"];
    let mut fences = 0;
    for (path, text) in texts("md").into_iter().chain(texts("rs")) {
        let is_document = path.extension().is_some_and(|kind| kind == "md");
        let shown = text.lines().map(str::trim_start).filter_map(|line| {
            let comment = line.strip_prefix("//!").or_else(|| line.strip_prefix("///"));
            comment.or(is_document.then_some(line))
        });
        let mut found = shown.enumerate().filter_map(|(number, line)| {
            Some((number, line.trim().strip_prefix("```")?.to_owned()))
        });
        while let Some((opened, info)) = found.next() {
            assert!(LANGUAGES.contains(&&*info), "{}: ```{info}", path.display());
            let (closed, info) =
                found.next().unwrap_or_else(|| panic!("{}: no end", path.display()));
            assert!(info.is_empty() && closed > opened + 1, "{}: ```{info}", path.display());
            fences += 1;
        }
    }
    assert!(fences > 50, "{fences}");
}

/// Returns the anchor that repository hosts give to a heading.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
    text.chars().filter(|c| c.is_alphanumeric() || *c == '-' || *c == '_').collect()
}

fn anchors(text: &str) -> BTreeSet<String> {
    text.lines().filter(|line| line.starts_with('#')).map(anchor).collect()
}

/// Returns whether a text is a path below one of the folders of the repository.
fn is_path(text: &str) -> bool {
    const FOLDERS: [&str; 12] = [
        "bin",
        "crates",
        "dev",
        "src",
        "tests",
        "benches",
        "docs",
        "etc",
        "examples",
        "integrations",
        "scripts",
        ".ci",
    ];
    text.split_once('/').is_some_and(|(folder, _)| FOLDERS.contains(&folder))
}

#[test]
fn every_relative_link_and_every_path_exists() {
    let mut checked = 0;
    for document in DOCUMENTS {
        let text = read(document);
        let mut links = all_between(&text, "](", ")");
        links.retain(|link| !link.starts_with("https://"));
        for link in links {
            let folder = Path::new(document).parent().expect("a file");
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() {
                root().join(document)
            } else {
                root().join(folder).join(path)
            };
            assert!(target.exists(), "{document} links to {link}");
            let has_anchor = anchor.is_empty() || anchors(&read(target)).contains(anchor);
            assert!(has_anchor, "{document} links to {link}");
            checked += 1;
        }
        // A path starts at the root, or at the folder of a crate outside the workspace.
        let own_folder = root().join(document.strip_suffix("README.md").unwrap_or(""));
        for path in quoted(&text).into_iter().filter(|text| is_path(text)) {
            let exists = root().join(path).exists() || own_folder.join(path).exists();
            assert!(exists, "{document} names {path}");
            checked += 1;
        }
    }
    assert!(checked > 20, "{checked}");
}

/// Splits a command line into the name that it begins with and its flags.
fn name_and_flags(text: &str) -> (String, Vec<String>) {
    let line = text.split(['\n', '`']).next().unwrap_or("");
    let mut words = line.split_whitespace().map(str::to_owned);
    let name = words.next().expect("a name");
    (name, words.filter(|word| word.len() > 2 && word.starts_with("--")).collect())
}

/// Returns the names after `--example` or `--bench` in a text, each with its flags.
fn commands(text: &str, kind: &str) -> Vec<(String, Vec<String>)> {
    text.split(&format!("--{kind} ")).skip(1).map(name_and_flags).collect()
}

fn command_names(documents: &[&str], kind: &str) -> BTreeSet<String> {
    let texts = documents.iter().map(read);
    texts.flat_map(|text| commands(&text, kind)).map(|(name, _)| name).collect()
}

fn target_name(folder: &str, path: &Path) -> Option<String> {
    let name = path.strip_prefix(folder).ok()?.to_str()?.strip_suffix(".rs")?;
    let name = name.strip_suffix("/main").unwrap_or(name);
    (!name.contains('/')).then(|| name.to_owned())
}

/// Returns the targets of a folder: its files, and its folders with a `main.rs`.
fn targets(folder: &str) -> BTreeSet<String> {
    files().iter().filter_map(|path| target_name(folder, path)).collect()
}

#[test]
fn the_documents_name_every_example_and_every_bench() {
    let mut examples = targets("examples");
    examples.extend(targets("dev/example-builder/examples"));
    assert_eq!(command_names(&["README.md"], "example"), examples);
    assert_eq!(command_names(&["benches/README.md"], "bench"), targets("benches"));
    assert_eq!(command_names(&DOCUMENTS, "example"), examples);
    assert_eq!(command_names(&DOCUMENTS, "bench"), targets("benches"));
}

#[test]
fn the_readme_begins_with_the_commands_to_run_and_to_test_it() {
    let readme = read("README.md");
    let blocks = all_between(&readme, "```console\n", "\n```");
    let expected = [
        "cargo install --locked --path bin/mempool-ingest\nmempool-ingest --ipc /path/to/reth.ipc",
        "cargo run --release --example ingest\ncargo test --workspace",
    ];
    assert_eq!(blocks, expected);
}

/// `cargo test -p integration-tests --test tidy -- --nocapture words` prints the count of each
/// document.
#[test]
fn all_documents_together_have_a_bounded_number_of_words() {
    let mut documents = texts("md");
    documents.retain(|(path, _)| !path.iter().any(|part| part == "target"));
    let mut counts: Vec<_> =
        documents.into_iter().map(|(path, text)| (text.split_whitespace().count(), path)).collect();
    counts.sort();
    for (words, path) in &counts {
        println!("{words:>6} {}", path.display());
    }
    let total: usize = counts.iter().map(|(words, _)| words).sum();
    println!("{total:>6} in all, at most {MAX_WORDS}");
    let readme = counts.iter().find(|(_, path)| path == Path::new("README.md"));
    let (readme, _) = readme.expect("the README");
    assert!(*readme <= MAX_README_WORDS, "README.md has {readme} words");
    assert!(total <= MAX_WORDS, "{total} words in all documents, at most {MAX_WORDS}");
}

/// The number of words that all documents together may have.
const MAX_WORDS: usize = 20_000;
const MAX_README_WORDS: usize = 900;

#[test]
fn the_figures_script_runs_the_documented_commands_and_prints_their_rows() {
    let documents = ["README.md", "benches/README.md"].map(read);
    let measured = documents.each_ref().map(|text| section(text, "## Measured")).concat();
    let script = read("scripts/figures.sh");
    let commands: BTreeSet<_> =
        quoted(&measured).into_iter().filter(|text| text.starts_with("cargo ")).collect();
    assert!(commands.len() > 3, "{commands:?}");
    let taken = lines_after(&script, "take ").into_iter();
    let run = taken.filter_map(|take| Some(take.split_once(' ')?.1)).collect::<BTreeSet<_>>();
    assert_eq!(run, commands, "the commands of scripts/figures.sh and of the documents");
    let tables = measured.lines().filter(|line| line.starts_with("| ")).collect::<Vec<_>>();
    assert!(tables.len() > 8, "{tables:?}");
    for row in tables {
        let label = between(row, "|", "|").trim();
        let is_printed = script.contains(&format!("\"{label}\""));
        assert!(is_printed, "scripts/figures.sh has no row {label:?}");
    }
}

/// Applies to limits that SECURITY.md and docs/operations.md name with a value in brackets.
#[test]
fn every_documented_limit_has_the_default_of_its_option() {
    let configuration = read("bin/mempool-ingest/src/options.toml");
    let mut defaults: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
    let options = lines_after(&configuration, "#").into_iter();
    for (name, value) in options.filter_map(|line| line.split_once(" = ")) {
        if let Some(number) = number(value.trim_matches('"')) {
            defaults.entry(name).or_default().insert(number);
        }
    }
    defaults.entry("max_age").or_default().extend(number("24 h"));
    for document in ["SECURITY.md", "docs/operations.md"] {
        let text = read(document).split_whitespace().collect::<Vec<_>>().join(" ");
        let pieces: Vec<_> = text.split('`').collect();
        // Pairs of a word between backticks and the value in brackets behind it.
        let named = pieces.windows(2).skip(1).step_by(2).filter_map(|pair| {
            let (value, _) = pair[1].strip_prefix(" (")?.split_once(')')?;
            Some((pair[0], value))
        });
        let mut checked = 0;
        for (name, value) in named {
            if let Some(default) = defaults.get(name) {
                let is_default = number(value).is_some_and(|value| default.contains(&value));
                assert!(is_default, "{document}: {name} ({value}): {default:?}");
                checked += 1;
            } else {
                assert!(!name.starts_with("max_"), "{document}: no configuration has {name}");
            }
        }
        assert!(checked > 3, "{document}: {checked}");
    }
}

#[test]
fn the_documented_profile_is_that_of_the_workspace() {
    let manifest = read("Cargo.toml");
    let profile = between(&manifest, "[profile.production]", "\n\n").trim_end();
    let given = format!("```toml\n[profile.production]{profile}\n```");
    assert!(read("docs/operations.md").contains(&given), "not in docs/operations.md: {given}");
}

#[test]
fn every_flag_that_a_document_gives_to_a_command_exists() {
    let mut checked = 0;
    let all =
        DOCUMENTS.map(read).join("\n").replace("\nmempool-ingest ", "\n--example mempool-ingest ");
    for (name, flags) in commands(&all, "example") {
        let own = format!("examples/{name}.rs");
        let folders: &[&str] = match &*name {
            "block_builder" => &["dev/example-builder/src"],
            "ingest" => &["dev/mock-node/src/cli.rs", "bin/mempool-ingest/src"],
            "mempool-ingest" => &["bin/mempool-ingest/src"],
            _ => &[&own],
        };
        let mut files = files();
        files.retain(|path| folders.iter().any(|folder| path.starts_with(folder)));
        let code: String = files.into_iter().map(read).collect();
        for flag in flags {
            let field = flag.trim_start_matches('-').replace('-', "_");
            let prefixes = ["    ", "    pub(crate) ", "    pub "];
            let mut declarations = prefixes.iter().map(|prefix| format!("{prefix}{field}: "));
            assert!(declarations.any(|text| code.contains(&text)), "{name} {flag}");
            checked += 1;
        }
    }
    assert!(checked >= 8, "{checked}");
}

/// A command of the guide for fleets, and the test that runs it.
struct CommandTest {
    /// How the command begins.
    command: &'static str,
    file: &'static str,
    test: &'static str,
    /// The text of the test that takes the command from the guide or repeats it.
    run_by: &'static str,
}

const COMMAND_TESTS: &str = "bin/mempool-ingest/tests/command/fleet.rs";
const DOCUMENTED_COMMANDS: &str = "the_documented_commands_feed_a_builder_on_a_real_server";

const fn in_documented_commands(command: &'static str, run_by: &'static str) -> CommandTest {
    CommandTest { command, file: COMMAND_TESTS, test: DOCUMENTED_COMMANDS, run_by }
}

const FLEET_COMMANDS: [CommandTest; 7] = [
    CommandTest {
        command: "NATS_NAME=nats-1 nats-server -c etc/nats/cluster.conf",
        file: "dev/testkit/tests/real_nodes/nats_rights.rs",
        test: "nats_three_servers_of_the_sample_form_a_cluster_over_tls",
        run_by: r#"Sample::new("cluster.conf")"#,
    },
    in_documented_commands(
        "export MEMPOOL_INGEST_PUBLISH=",
        r#"documented("export MEMPOOL_INGEST_PUBLISH=""#,
    ),
    in_documented_commands("mempool-ingest --ipc ", r#"documented("mempool-ingest ""#),
    in_documented_commands(
        "cargo run --release -p example-builder --example block_builder -- ",
        r#""cargo run --release -p example-builder --example block_builder -- ""#,
    ),
    in_documented_commands(
        "mempool-ingest --config admin.toml --duration 2s",
        r#"["--config", &file, "--duration", "2s"]"#,
    ),
    CommandTest {
        command: "mempool-ingest --replicas 3",
        file: COMMAND_TESTS,
        test: "the_documented_replicas_create_streams_on_a_real_cluster",
        run_by: r#""--replicas", "3""#,
    },
    // The script is a test, and its faults are those of its option `--chaos`.
    CommandTest {
        command: "scripts/fleet.sh",
        file: "scripts/fleet.sh",
        test: "",
        run_by: "machines_an_hour_apart",
    },
];

/// Commands of other projects that no test runs. The exporter shows the page `/jsz` of a server,
/// and `a_leader_whose_disk_was_full_loses_no_order_after_its_restart` reads `disabled` there.
const FOREIGN_COMMANDS: [&str; 1] = ["prometheus-nats-exporter -jsz=all"];

/// Returns the commands in the code blocks of a document, and those in its text that have
/// arguments.
fn documented_commands(text: &str) -> Vec<String> {
    const PROGRAMS: [&str; 5] =
        ["mempool-ingest ", "nats-server ", "prometheus-nats-exporter ", "cargo ", "scripts/"];
    let mut found = Vec::new();
    for (index, block) in text.split("```").enumerate() {
        let (kind, body) = block.split_once('\n').unwrap_or_default();
        if index % 2 == 0 {
            let inline = quoted(block).into_iter();
            let is_command = |text: &&str| PROGRAMS.iter().any(|name| text.starts_with(name));
            found.extend(inline.filter(is_command).map(str::to_owned));
        } else if kind == "console" {
            let joined = body.replace("\\\n", " ");
            let lines = joined.lines().filter(|line| !line.trim().is_empty());
            found.extend(lines.map(str::to_owned));
        } else {
            // The file of the administrator, which the test of the commands reads, and a diagram.
            assert!(["toml", "text"].contains(&kind), "a block of an unknown kind: {kind}");
        }
    }
    found
}

/// Returns the body of a function of a file, or the whole file for an empty name.
fn body_of(file: &str, name: &str) -> String {
    let text = read(file);
    if name.is_empty() {
        return text;
    }
    between(&text, &format!("fn {name}() {{"), "\n}\n").to_owned()
}

#[test]
fn every_command_of_the_guide_for_fleets_is_run_by_a_test() {
    let guide = read("docs/fleet.md");
    let commands = documented_commands(&guide);
    let is_foreign = |command: &String| FOREIGN_COMMANDS.contains(&command.as_str());
    for command in commands.iter().filter(|command| !is_foreign(command)) {
        let covered = FLEET_COMMANDS.iter().any(|test| command.starts_with(test.command));
        assert!(covered, "no test runs this command: {command}");
    }
    for CommandTest { command, file, test, run_by } in FLEET_COMMANDS {
        assert!(
            commands.iter().any(|text| text.starts_with(command)),
            "not in the guide: {command}"
        );
        assert!(body_of(file, test).contains(run_by), "{test} does not run {command}");
    }
    for command in FOREIGN_COMMANDS {
        assert!(commands.iter().any(|text| text == command), "not in the guide: {command}");
    }
    let found =
        documented_commands("`mempool-ingest --a`\n\n```console\nnats-server \\\n-b\n```\n");
    assert_eq!(found, ["mempool-ingest --a", "nats-server  -b"]);
    // In total, with what a later command would add.
    assert!(guide.split_whitespace().count() <= 1_800, "the guide is too long");
}

/// Returns the manifest of each crate below `crates` and `dev`, by the name of its folder.
fn crates() -> BTreeMap<String, String> {
    let mut manifests = files();
    manifests.retain(|path| path.ends_with("Cargo.toml"));
    manifests.retain(|path| path.starts_with("crates") || path.starts_with("dev"));
    let crates: BTreeMap<_, _> = manifests
        .into_iter()
        .filter_map(|path| Some((path.iter().nth(1)?.to_str()?.to_owned(), read(&path))))
        .collect();
    assert!(crates.len() >= 6, "{crates:?}");
    crates
}

/// Returns the names below `[dependencies]` in a manifest.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let lines = all_between(manifest, "\n[dependencies]\n", "\n[").into_iter().flat_map(str::lines);
    let lines = lines.filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split(['.', ' ', '=']).next()).map(str::to_owned).collect()
}

#[test]
fn the_arrows_between_the_crates_are_the_dependencies() {
    let mut manifests = crates();
    manifests.insert("mempool-ingest".to_owned(), read("Cargo.toml"));
    manifests.insert("mempool-ingest-cli".to_owned(), read("bin/mempool-ingest/Cargo.toml"));
    let mut actual = BTreeMap::new();
    for (name, manifest) in &manifests {
        let mut dependencies = dependencies(manifest);
        dependencies.retain(|name| manifests.contains_key(name));
        actual.insert(name.clone(), dependencies);
    }
    let text = read("ARCHITECTURE.md");
    let mut drawn = BTreeMap::new();
    for line in section(&text, "## The crates").lines() {
        let Some((name, rest)) = line.split_once("-->") else { continue };
        let targets = rest.split(':').next().unwrap_or("").split(',').map(str::trim);
        let targets = targets.filter(|target| *target != "none").map(str::to_owned);
        drawn.insert(name.trim().to_owned(), BTreeSet::from_iter(targets));
    }
    assert!(drawn.len() >= 8, "{drawn:?}");
    assert_eq!(drawn, actual);
}

/// A script that was emptied by mistake once succeeded.
#[test]
fn every_script_has_lines_to_run() {
    for (path, text) in texts("sh") {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        assert!(lines.count() > 0 && text.starts_with("#!"), "{} runs nothing", path.display());
    }
}

#[test]
fn every_property_of_the_fuzzing_script_exists() {
    let script = read("scripts/fuzz.sh");
    let code = texts("rs").into_iter().map(|(_, text)| text).collect::<String>();
    let rows = between(&script, "properties=\"", "\"");
    for property in rows.lines().filter_map(|row| row.split(' ').nth(3)) {
        assert!(code.contains(&format!("fn {property}(")), "no property {property}");
    }
}

/// Removes the modules that replace real ones under loom, whose locks belong to the test.
fn without_loom(text: &str) -> String {
    let mut parts = text.split("#[cfg(all(test, loom))]\nmod ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |all, part| all + part.split_once("\n}\n").map_or("", |(_, rest)| rest))
}

fn has_lock(text: &str) -> bool {
    let mut code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.any(|line| {
        ["Mutex::new", "Mutex::default", "RwLock<"].iter().any(|text| line.contains(text))
            || (line.contains(": Mutex<") && !line.contains('&'))
    })
}

/// Returns whether the documentation of the module, or of its folder, mentions its locks.
fn documents_locks(path: &Path, text: &str) -> bool {
    let mut docs = text.lines().filter(|line| line.starts_with("//!"));
    let parent = path.with_file_name("mod.rs");
    docs.any(|line| line.to_lowercase().contains("lock"))
        || (root().join(&parent).exists() && read(&parent).contains("\n//! # Locks\n"))
}

#[test]
fn every_file_that_has_a_lock_documents_it() {
    let mut locked = sources();
    locked.retain(|(_, text)| has_lock(&without_loom(text)));
    assert!(locked.len() > 10, "{}", locked.len());
    locked.retain(|(path, text)| !documents_locks(path, text));
    let undocumented: Vec<_> = locked.iter().map(|(path, _)| path).collect();
    assert!(undocumented.is_empty(), "{undocumented:?}");
}

#[test]
fn the_architecture_names_every_thread() {
    let texts = sources();
    let mut named = BTreeSet::new();
    for (_, text) in &texts {
        named.extend(all_between(text, ".name(\"", "\""));
        named.extend(all_between(text, "spawn_thread(\"", "\""));
    }
    assert!(named.contains("mempool-io") && named.contains("order-pool-upkeep"), "{named:?}");
    let text = read("ARCHITECTURE.md");
    for name in named {
        assert!(text.contains(&format!("`{name}`")), "{name}");
    }
}

/// Splits a cell such as `Live (not audited)` or `Backfilling, Live` into its states.
fn states_of_cell(cell: &str) -> Vec<String> {
    let cell = cell.split(" (").next().unwrap_or("").replace("any but Ended", "any");
    cell.split(", ").map(str::to_owned).collect()
}

#[test]
fn the_source_states_in_the_architecture_are_those_of_the_code() {
    let code = read("crates/txpool-fetcher/src/source/machine.rs");
    let states = between(&code, "pub enum SourceState {", "}").lines().map(str::trim);
    let states =
        states.filter(|line| !line.starts_with('/')).filter_map(|line| line.split_once(" = "));
    let states: BTreeSet<_> = states.map(|(state, _)| state.to_owned()).collect();
    let text = read("ARCHITECTURE.md");
    let table = rows(section(&text, "## The source's state machine"));
    let named = table.iter().flat_map(|row| [row[0], row[2]]).flat_map(states_of_cell);
    let mut named: BTreeSet<_> = named.collect();
    named.retain(|name| !["any", "same"].contains(&name.as_str()));
    assert_eq!(named, states);
}

/// Names that say nothing about the value behind them. A point in time is `now`, `deadline`,
/// `received_at`; everything else has a noun of the field.
const VAGUE_NAMES: [&str; 11] =
    ["at", "by", "from", "is_it", "it", "of", "owe", "told", "what", "who", "whom"];

/// The folders whose parameters and fields have no vague name. Add a crate when it complies.
const WITHOUT_VAGUE_NAMES: [&str; 7] =
    ["benches", "bin", "crates", "dev", "examples", "src", "tests"];

#[test]
fn comments_wrap_at_100_columns() {
    // Tables and pictures cannot be wrapped, and a link or a line of code must not be.
    let may_be_long = |comment: &str| {
        comment.starts_with('|')
            || comment.contains("  ")
            || comment.contains("--")
            || comment.contains("https://")
            || comment.ends_with(';')
    };
    let mut long = Vec::new();
    for (path, text) in texts("rs") {
        for (number, line) in (1..).zip(text.lines()) {
            let comment = line.trim_start().strip_prefix("//");
            let Some(comment) = comment.map(|text| text.trim_start_matches(['/', '!'])) else {
                continue;
            };
            if line.chars().count() > 100 && !may_be_long(comment.trim()) {
                long.push(format!("{}:{number}: {line}", path.display()));
            }
        }
    }
    assert!(long.is_empty(), "comments longer than 100 columns:\n{}", long.join("\n"));
}

/// Whether a struct of options can get more fields without breaking its users.
fn can_grow(text: &str, name: &str) -> bool {
    let item = text.find(&format!("\npub struct {name} {{")).expect("the struct");
    let attributes = &text[..item];
    let begin = attributes.rfind("\n\n").unwrap_or(0);
    attributes[begin..].contains("\n#[non_exhaustive]")
}

#[test]
fn every_published_configuration_can_grow() {
    let example = "\n\n/// Options.\n#[derive(Debug)]\npub struct OneConfig {\n    a: u8,\n}";
    assert!(!can_grow(example, "OneConfig"));
    assert!(can_grow(&example.replace("\npub", "\n#[non_exhaustive]\npub"), "OneConfig"));
    let (mut found, mut fixed) = (0, Vec::new());
    for (path, text) in sources() {
        let is_published = !path.starts_with("bin");
        for name in all_between(&text, "\npub struct ", " {").into_iter().filter(|_| is_published) {
            if name.ends_with("Config") {
                found += 1;
                if !can_grow(&text, name) {
                    fixed.push(format!("{}: {name}", path.display()));
                }
            }
        }
    }
    assert!(found >= 14, "only {found} configurations were found");
    assert!(fixed.is_empty(), "not `#[non_exhaustive]`: {fixed:#?}");
}

#[test]
fn no_parameter_or_field_has_a_vague_name() {
    let example = r#"
        struct Span<'at> { by: u8, text: &'at str }
        fn late(of: u64) { let x = Self::from(1).at; let c = '"'; } // it: a comment
        counter from[2] = "name", "a text with what: 1";
        let first = |it| it.0; let second = move |(who, n): (u8, u8)| n;
    "#;
    assert_eq!(vague_names(example), ["by", "of", "from", "it", "who"]);
    let mut found = Vec::new();
    for folder in WITHOUT_VAGUE_NAMES {
        let files: Vec<_> =
            texts("rs").into_iter().filter(|(path, _)| path.starts_with(folder)).collect();
        assert!(!files.is_empty(), "{folder} has no code");
        for (path, text) in files {
            let names = vague_names(&text).into_iter();
            found.extend(names.map(|name| format!("{}: {name}", path.display())));
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// The vague names of parameters, of closures too, of fields, and of metrics in a Rust text.
fn vague_names(text: &str) -> Vec<String> {
    const METRIC_KINDS: [&str; 5] = ["count", "counter", "gauge", "histogram", "level"];
    let tokens = tokens(text);
    let token = |index: usize| tokens.get(index).map_or("", String::as_str);
    let mut found = Vec::new();
    // The index of the `|` that ends the parameters of the current closure.
    let mut closure_end = 0;
    for index in 0..tokens.len() {
        let before = if index == 0 { "" } else { token(index - 1) };
        let begins_closure = ["(", ",", "=", "=>", "{", "&", "move", "return"].contains(&before);
        if token(index) == "|" && index >= closure_end && begins_closure {
            let length = tokens[index + 1..].iter().position(|token| token == "|");
            closure_end = index + 1 + length.unwrap_or(0);
        }
        let is_declared = token(index + 1) == ":" && before != "."
            || METRIC_KINDS.contains(&before)
            || index < closure_end && before != ":";
        if is_declared && VAGUE_NAMES.contains(&token(index)) {
            found.push(token(index).to_owned());
        }
    }
    found
}

/// The identifiers, numbers and punctuation of a Rust text, without comments. Texts, characters and
/// lifetimes are `"`; `::` and `=>` are one token each.
fn tokens(text: &str) -> Vec<String> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(length) = raw_text_length(rest).or_else(|| quoted_length(rest)) {
            tokens.push("\"".to_owned());
            length
        } else {
            let length = match first {
                _ if is_word(first) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
                _ if rest.starts_with("::") || rest.starts_with("=>") => 2,
                _ => first.len_utf8(),
            };
            if !first.is_whitespace() {
                tokens.push(rest[..length].to_owned());
            }
            length
        };
        rest = &rest[length..];
    }
    tokens
}

/// The length of the raw text, such as `r#"..."#`, with which a text begins, if it does.
fn raw_text_length(text: &str) -> Option<usize> {
    let start = text.strip_prefix("br").or_else(|| text.strip_prefix('r'))?;
    let hashes = start.len() - start.trim_start_matches('#').len();
    start[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let content = text.len() - start.len() + hashes + 1;
    Some(content + text[content..].find(&end)? + end.len())
}

/// The length of the text in quotes, of the character, or of the lifetime with which a text begins,
/// if it does.
fn quoted_length(text: &str) -> Option<usize> {
    let quote = text.chars().next().filter(|quote| ['"', '\''].contains(quote))?;
    let mut is_escaped = true;
    for (index, character) in text.char_indices() {
        if character == quote && !is_escaped {
            return Some(index + 1);
        }
        let is_lifetime = quote == '\'' && index > 1 && !text[1..].starts_with('\\');
        if is_lifetime {
            return Some(index);
        }
        is_escaped = index > 0 && character == '\\' && !is_escaped;
    }
    Some(text.len())
}

/// Metaphors, riddles and abbreviations that were once used here for terms of the field, in lower
/// case.
const DIALECT: [&str; 23] = [
    "outsider",
    "asking side",
    "let go",
    "bell",
    "fate",
    "shelf",
    "standing",
    "owe",
    "told_as",
    "unsend",
    "kept_from",
    "ofsigner",
    "untaken",
    "one of which nothing is used",
    "of each shard",
    "longer than else it may take",
    "beside those of the system",
    "is not given as many",
    "must not take the room of this one",
    "so are other terms of the same one",
    "the chain is what it told",
    "or there although mined, replaced or cancelled",
    "each row is of a run of its own",
];

/// The files and folders without dialect. Add one when it complies.
const WITHOUT_DIALECT: [&str; 12] = [
    "ARCHITECTURE.md",
    "README.md",
    "SECURITY.md",
    "benches",
    "bin",
    "crates",
    "dev",
    "docs",
    "examples",
    "integrations",
    "src",
    "tests/it",
];

#[test]
fn no_text_is_in_dialect() {
    assert_eq!(dialect("Outstanding bells\n/// One of which\n/// nothing is used."), [DIALECT[13]]);
    let mut found = Vec::new();
    for folder in WITHOUT_DIALECT {
        let is_text = |path: &Path| {
            let kind = path.extension().and_then(|kind| kind.to_str()).unwrap_or_default();
            path.starts_with(folder) && ["md", "rs", "sh", "toml", "yml"].contains(&kind)
        };
        let paths: Vec<_> = files().into_iter().filter(|path| is_text(path)).collect();
        assert!(!paths.is_empty(), "{folder} has no text");
        for path in paths {
            let phrases = dialect(&read(&path)).into_iter();
            found.extend(phrases.map(|phrase| format!("{}: {phrase}", path.display())));
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// The phrases of the dialect in a text, also where a phrase is broken over two lines of a comment.
fn dialect(text: &str) -> Vec<&'static str> {
    let markers = ["///", "//!", "//", "#"];
    let lines = text.lines().map(|line| {
        let line = line.trim_start();
        markers.iter().find_map(|marker| line.strip_prefix(marker)).unwrap_or(line).trim()
    });
    let text = lines.collect::<Vec<_>>().join(" ").to_lowercase();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let is_phrase = |phrase: &&str| {
        text.match_indices(phrase).any(|(start, found)| {
            !text[..start].ends_with(is_word) && !text[start + found.len()..].starts_with(is_word)
        })
    };
    DIALECT.into_iter().filter(is_phrase).collect()
}
