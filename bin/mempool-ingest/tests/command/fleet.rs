//! Runs this command and `block_builder` as the processes of a fleet, with and without a NATS
//! server.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    process::ExitCode,
    time::Duration,
};

use mock_node::{DEV_CHAIN_ID, workload::test_accounts};
use order_stream::State;
use serde_json::{Value, json};
use testkit::{
    command::{Ended, Running, command_line},
    devnet::{NatsCluster, NatsConfig, NatsServer},
    http,
    ingest::Node,
    sign::signed,
};

use crate::{finish, ipc, wait_for};

const BUILDER: &str = "fleet::a_builder_that_does_not_end";
const ANY_PORT: &str = "127.0.0.1:0";

/// The number of private transactions, from an account that the node's own load does not use.
const PRIVATE: usize = 3;

#[test]
#[ignore = "run by the tests below, in a process of its own"]
fn a_builder_that_does_not_end() {
    assert_eq!(example_builder::run_with(command_line()), ExitCode::SUCCESS);
}

fn node_on(chain_id: u64) -> Node {
    Node::start(0, |node| mock_node::NodeConfig {
        chain_id,
        state: true,
        tps: 50,
        block_time: Duration::from_millis(500),
        ..node
    })
}

fn ingest(node: &Node, args: &[&str]) -> Running {
    crate::start([&["--ipc", ipc(node), "--machine", "ingest-1"], args].concat())
}

/// Writes a blocklist for the builder next to the node's socket, and returns its path.
fn write_list(node: &Node) -> String {
    let path = node.node.ipc_path().with_file_name("list");
    std::fs::write(&path, "0x0000000000000000000000000000000000000001\n").expect("a file");
    path.to_str().expect("text").to_owned()
}

fn builder(node: &Node, args: &[&str]) -> Running {
    let list = write_list(node);
    let fixed = ["--ipc", ipc(node), "--blocklist", &list, "--json", "--slot", "500ms"];
    let args = [&fixed, ["--machine", "builder-1"].as_slice(), args].concat();
    Running::start(BUILDER, args.into_iter().map(str::to_owned)).expect("this binary runs")
}

/// Waits for the line with this prefix, and returns the address behind it.
fn address(running: &mut Running, prefix: &str) -> SocketAddr {
    let found =
        running.line(|line| line.strip_prefix(prefix)?.trim_end_matches("/metrics").parse().ok());
    found.expect(prefix)
}

fn request(server: SocketAddr, path: &str, body: Option<&str>) -> String {
    let mut stream = TcpStream::connect(server).expect("a connection");
    let request = http::request(path, "connection: close\r\n", body);
    stream.write_all(&request).expect("the request is sent");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("a response");
    response
}

/// Waits until the value of a metric is as expected.
fn until(metrics: SocketAddr, metric: &str, is_expected: impl Fn(usize) -> bool) {
    crate::until(|| {
        let text = request(metrics, "/metrics", None);
        let mut values = text.lines().filter_map(|line| line.strip_prefix(metric));
        let value = values.next().map(|value| value.trim().parse().expect("a whole number"));
        let is_expected = value.is_some_and(&is_expected);
        is_expected.then_some(()).ok_or_else(|| format!("{metric} is {value:?}:\n{text}"))
    });
}

fn number(value: &Value, field: &str) -> u64 {
    value[field].as_u64().unwrap_or_else(|| panic!("{field} in {value}"))
}

/// Returns the counts of both flows, and asserts that the parts add up to the totals.
fn flows<'a>(summary: &'a Value, list: &str, totals: &[&str], parts: &[&str]) -> [&'a Value; 2] {
    let [public, private] = summary[list].as_array().expect(list).as_slice() else {
        panic!("two flows in {summary}");
    };
    assert_eq!((&public["flow"], &private["flow"]), (&json!("public"), &json!("private")));
    for flow in [public, private] {
        let sum = |fields: &[&str]| -> u64 { fields.iter().map(|field| number(flow, field)).sum() };
        assert_eq!(sum(totals), sum(parts), "{flow}");
    }
    [public, private]
}

fn published(summary: &Value) -> [&Value; 2] {
    let parts = ["stored", "duplicate", "refused", "unfinished"];
    flows(summary, "published", &["published", "unpublished"], &parts)
}

fn received(summary: &Value) -> [&Value; 2] {
    let parts = ["pooled", "known", "superseded", "refused", "malformed"];
    flows(summary, "received", &["received"], &parts)
}

const GUIDE: &str = include_str!("../../../../docs/fleet.md");

/// Returns a text of the guide with the hosts, paths and passwords of a test.
fn adapted(text: &str, replaced: &[(&str, &str)]) -> String {
    replaced.iter().fold(text.to_owned(), |text, (documented, actual)| {
        assert!(text.contains(documented), "{documented} in {text}");
        text.replace(documented, actual)
    })
}

/// Returns the arguments of the command in the guide that begins with `prefix`.
fn documented(prefix: &str, replaced: &[(&str, &str)]) -> Vec<String> {
    let guide = GUIDE.replace("\\\n", " ");
    let line = guide.lines().find_map(|line| line.strip_prefix(prefix));
    let line = line.unwrap_or_else(|| panic!("{prefix} is not in the guide"));
    adapted(line, replaced).split_whitespace().map(Into::into).collect()
}

/// The users of the sample have rights for one chain. The test fails, never skips, when the server
/// is missing.
#[test]
#[ignore = "needs the nats-server that scripts/real-nodes.sh installs, and is run by it"]
fn the_documented_commands_feed_a_builder_on_a_real_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
    let [cert, key] = [("ca.pem", made.cert.pem()), ("key.pem", made.signing_key.serialize_pem())]
        .map(|(name, text)| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("a file");
            path.to_str().expect("text").to_owned()
        });
    let users = ["ADMIN", "INGEST_1", "BUILDER_1"];
    let users = users.map(|user| [user.to_owned(), format!("{user}_PRIVATE")]).concat();
    let password = |user: &String| (format!("{user}_PASSWORD"), "secret".to_owned());
    let mut envs: Vec<_> = users.iter().chain([&"SYS".to_owned()]).map(password).collect();
    envs.extend([("NATS_CERT".into(), cert.clone()), ("NATS_KEY".into(), key)]);
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../etc/nats/server.conf").into();
    let config = NatsConfig { file: Some(file), envs, ..NatsConfig::default() };
    let nats = NatsServer::start(folder.path(), &config).expect("a server");
    let host = nats.url().replace("nats://", "");
    let private = |user: &str| format!("tls://{user}-private:secret@{host}");

    let node = node_on(1);
    let node_and_ca = [("/data/reth.ipc", ipc(&node)), ("ca.pem", cert.as_str())];
    let servers = [("PASSWORD", "secret"), ("nats-1:4222", &host), ("nats-2:4222", &host)];
    let list = write_list(&node);
    let to_builder = [&node_and_ca[..], &servers, &[("list.txt", list.as_str())]].concat();
    let builder = "cargo run --release -p example-builder --example block_builder -- ";
    let from_private = private("builder-1");
    let more = ["--from-private", &from_private, "--slot", "500ms", "--metrics", ANY_PORT];
    let more = more.into_iter().chain(["--json"]).map(str::to_owned);
    let args = documented(builder, &to_builder).into_iter().chain(more);
    let mut builder = Running::start(BUILDER, args).expect("this binary runs");
    let metrics = address(&mut builder, "metrics at http://");
    wait_for(&mut builder, "", &["stream missing"]);

    // The file of the administrator creates the streams.
    let mut blocks = GUIDE.split("```");
    let file = blocks.find(|block| block.contains("machine = \"admin\""));
    let file = file.expect("a file in the guide");
    let one_server = [("toml\n", ""), ("replicas = 3", "replicas = 1")];
    let file = adapted(file, &[&node_and_ca[..], &servers[..2], &one_server].concat());
    let file = crate::config::written(folder.path(), &file);
    let made =
        crate::start(["--config", &file, "--duration", "2s"]).end(None).expect("the command ends");
    crate::ended_with(0, &made);

    let more = ["--rpc", ANY_PORT].map(str::to_owned);
    let args = [documented("mempool-ingest ", &node_and_ca), more.into()].concat();
    let mut ingest = crate::command(args.iter().map(String::as_str));
    let servers = documented("export MEMPOOL_INGEST_PUBLISH=", &servers);
    ingest.env("MEMPOOL_INGEST_PUBLISH", &servers[0]);
    ingest.env("MEMPOOL_INGEST_PUBLISH_PRIVATE", private("ingest-1"));
    let mut ingest = Running::spawn(ingest).expect("the binary runs");
    let rpc = address(&mut ingest, "orders by JSON-RPC at http://");
    let account = test_accounts(node.node.config().accounts + 1).pop().expect("the last");
    for nonce in 0..PRIVATE as u64 {
        let (hash, raw) = signed(&account, |tx| (tx.chain_id, tx.nonce) = (1, nonce));
        let method = "eth_sendRawTransaction";
        let call = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": [raw] });
        let response = request(rpc, "/", Some(&call.to_string()));
        assert!(response.contains(&hash.to_string()), "{response}");
    }
    for (flow, least) in [("private", PRIVATE), ("public", 50)] {
        let pooled = format!(r#"order_stream_delivered_total{{flow="{flow}",outcome="pooled"}}"#);
        until(metrics, &pooled, |count| count >= least);
        let state = format!(r#"order_stream_state{{flow="{flow}",side="source"}}"#);
        until(metrics, &state, |state| state == usize::from(State::Live.code()));
    }
    // The private ones stay pending, because no node has them.
    let block_of_both = builder.line(|line| {
        let (_, rest) = line.split_once(", included ")?;
        let count: usize = rest.split(' ').next()?.parse().ok()?;
        (count > PRIVATE).then_some(())
    });
    block_of_both.expect("a block with transactions of both flows");
    wait_for(&mut ingest, "", &[" public=(live", " private=(live"]);

    let built = finish(builder).1;
    for flow in received(&built) {
        assert_eq!(flow["state"], "live", "{built}");
        assert_eq!((number(flow, "malformed"), number(flow, "missed")), (0, 0), "{built}");
    }
    let ingested = finish(ingest).1;
    for flow in published(&ingested) {
        assert_eq!(flow["state"], "live", "{ingested}");
        assert_eq!((number(flow, "refused"), number(flow, "unfinished")), (0, 0), "{ingested}");
    }
    let ([public, private], [_, sent]) = (received(&built), published(&ingested));
    assert!(number(public, "pooled") >= 50, "{built}");
    assert_eq!(number(private, "pooled"), PRIVATE as u64, "{built}");
    assert_eq!(number(sent, "stored"), PRIVATE as u64, "{ingested}");
}

/// Without users, no administrator is needed.
#[test]
#[ignore = "needs the nats-server that scripts/real-nodes.sh installs, and is run by it"]
fn the_documented_replicas_create_streams_on_a_real_cluster() {
    let folder = tempfile::tempdir().expect("a folder");
    let cluster = NatsCluster::start(folder.path(), 3, &NatsConfig::default()).expect("a cluster");
    let urls = cluster.urls().join(",");
    let node = node_on(DEV_CHAIN_ID);
    let metrics_args = ["--metrics", ANY_PORT];
    let flows = ["--publish", &urls, "--publish-private", &urls, "--replicas", "3"];
    let mut ingest = ingest(&node, &[&metrics_args[..], &flows].concat());
    let metrics = address(&mut ingest, "metrics at http://");
    for flow in ["public", "private"] {
        let state = format!(r#"order_stream_state{{flow="{flow}",side="publisher"}}"#);
        until(metrics, &state, |state| state == usize::from(State::Live.code()));
    }
    for flow in ["PUBLIC", "PRIVATE"] {
        let stream = format!("MEMPOOL_{DEV_CHAIN_ID}_{flow}");
        let stored_by = cluster.servers().iter().filter(|server| server.stores_stream(&stream));
        assert_eq!(stored_by.count(), 3, "{stream}");
    }
    finish(ingest);
}

/// Waits for a command that ends by itself with a failure.
fn ended_with_failure(running: Running) -> Ended {
    let ended = running.end(None).expect("the command ends");
    assert_ne!(ended.status.code(), Some(0), "{ended:?}");
    ended
}

#[test]
fn a_wrong_url_or_a_missing_flow_is_an_error_at_the_start() {
    let node = node_on(DEV_CHAIN_ID);
    let wrong = "http://127.0.0.1:4222";
    for running in [
        ingest(&node, &["--publish", wrong]),
        ingest(&node, &["--publish-private", wrong, "--replicas", "1"]),
        builder(&node, &["--from", wrong]),
    ] {
        let ended = ended_with_failure(running);
        let mut lines = ended.stderr.lines();
        let is_named = lines.any(|line| line.starts_with("error: servers[0] is not a URL"));
        assert!(is_named, "{ended:?}");
    }
    for (running, missing) in [(ingest(&node, &[]), "--publish"), (builder(&node, &[]), "--from")] {
        let ended = ended_with_failure(running);
        for text in ["required arguments", missing] {
            assert!(ended.stderr.contains(text), "{text}: {ended:?}");
        }
    }
}

#[test]
fn a_silent_or_absent_server_is_a_state_and_delays_nothing() {
    let node = node_on(DEV_CHAIN_ID);
    // A listener that never accepts: connections wait in its backlog.
    let listener = TcpListener::bind(ANY_PORT).expect("a port");
    let taken = listener.local_addr().expect("an address").to_string();
    let silent = format!("nats://{taken}");
    // Nothing listens on this port.
    let absent = "nats://127.0.0.1:1";
    let urls = [&silent, absent];
    // Streams are created before the RPC server starts, so the taken RPC port is not the error.
    let makers =
        urls.map(|url| ingest(&node, &["--publish", url, "--replicas", "1", "--rpc", &taken]));
    let publishers = urls.map(|url| ingest(&node, &["--publish", url, "--publish-private", url]));
    let builders = urls.map(|url| builder(&node, &["--from", url, "--from-private", url]));
    for maker in makers {
        let ended = ended_with_failure(maker);
        let mut lines = ended.stderr.lines();
        assert!(lines.any(|line| line.starts_with("error: cannot connect: ")), "{ended:?}");
    }
    let state = "disconnected: no server can be reached";
    let assert_disconnected = |flow: &Value| {
        // The next attempt may be in progress.
        assert!([state, "connecting"].iter().any(|state| flow["state"] == *state), "{flow}");
    };
    for mut publisher in publishers {
        wait_for(&mut publisher, "", &["cannot connect"]);
        wait_for(&mut publisher, "", &[" public=(", " private=("]);
        for flow in published(&finish(publisher).1) {
            assert_eq!(number(flow, "published"), 0, "{flow}");
            assert_disconnected(flow);
        }
    }
    for mut builder in builders {
        wait_for(&mut builder, "", &[state]);
        for flow in received(&finish(builder).1) {
            assert_eq!(number(flow, "received"), 0, "{flow}");
            assert_disconnected(flow);
        }
    }
}
