//! Tests of the injected faults.

use std::{
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use mock_node::{BadAnswer, Fault, MockNode, NodeConfig, Target};
use serde_json::{Value, json};

use crate::client::{Client, connected, start, subscribed};

const TEXT: &str = "Too many connections. Please try again later.";

fn request_connection(node: &MockNode) -> Client {
    let mut client = Client::to(node);
    client.result("eth_chainId", json!([]));
    client
}

/// Requests a raw transaction, and returns the next line.
fn raw_line(client: &mut Client, node: &MockNode) -> String {
    client.request_raw(5, node.pending()[0]);
    client.line().expect("a line")
}

#[test]
fn a_close_affects_only_its_targets() {
    let (_dir, node) = start(|config| config);
    let (mut subscription, mut request) = (Client::subscribed(&node), request_connection(&node));
    node.inject(Fault::Close(Target::Request));
    assert!(request.rest().is_empty());
    node.burst(1);
    subscription.announced();
    let mut request = request_connection(&node);
    node.inject(Fault::Close(Target::Subscription));
    assert!(subscription.rest().is_empty());
    request.result("eth_chainId", json!([]));
}

#[test]
fn a_cut_connection_ends_in_the_middle_of_a_message() {
    let (_dir, node, mut client) = subscribed(|config| config);
    node.inject(Fault::CloseMidFrame(Target::Subscription));
    node.burst(3);
    let rest = client.rest();
    assert!(rest.starts_with(b"{\"jsonrpc\"") && !rest.contains(&b'\n'), "half of one message");
}

#[test]
fn connections_can_be_closed_at_once_or_after_the_subscription() {
    let (_dir, node) = start(|config| config);
    node.inject(Fault::CloseOnAccept { connections: 1 });
    assert!(Client::to(&node).rest().is_empty());
    node.inject(Fault::CloseAfterSubscribe { connections: 1 });
    let mut client = Client::subscribed(&node);
    node.burst(1);
    assert!(client.rest().is_empty(), "the answer arrives, and no notification");
    node.burst(1);
    Client::subscribed(&node);
}

#[test]
fn a_stalled_connection_catches_up_and_a_dead_one_never_does() {
    let (_dir, node) = start(|config| config);
    let (mut stalls, mut dies) = (Client::subscribed(&node), request_connection(&node));
    node.inject(Fault::GoDead(Target::Request));
    let time = Duration::from_millis(300);
    let begin = Instant::now();
    node.inject(Fault::Stall { target: Target::Subscription, time });
    let hashes = node.burst(10);
    for hash in hashes {
        assert_eq!(stalls.announced(), hash);
    }
    assert!(begin.elapsed() >= time);
    dies.write(br#"{"jsonrpc":"2.0","id":1,"method":"eth_chainId"}"#);
    assert!(
        dies.is_silent_for(Duration::from_millis(300)),
        "the connection is open and gets no answer"
    );
    // New connections are not affected.
    request_connection(&node);
}

#[test]
fn a_restart_brings_another_socket_and_another_pool() {
    for leaves_file in [false, true] {
        let (_dir, node) = start(|config| NodeConfig { preload: 5, ..config });
        let (old, mut client) = (node.pending(), Client::subscribed(&node));
        let head = node.head();
        node.inject(Fault::Restart { down: Duration::from_millis(200), leaves_file });
        assert!(client.rest().is_empty());
        assert_eq!(node.ipc_path().exists(), leaves_file);
        assert!(UnixStream::connect(node.ipc_path()).is_err(), "there is no listener");
        let fresh = node.burst(3);
        let begin = Instant::now();
        while node.stats().restarts == 0 || UnixStream::connect(node.ipc_path()).is_err() {
            assert!(begin.elapsed() < Duration::from_secs(20), "it does not come back");
            std::thread::yield_now();
        }
        let mut client = request_connection(&node);
        assert_eq!(client.result("txpool_status", json!([]))["pending"], "0x3");
        assert_eq!(node.pending(), fresh);
        assert_eq!(node.head().number, head.number + 1);
        assert_eq!(node.head().txs, old);
    }
}

#[test]
fn announcements_can_be_lost_or_repeated() {
    let (_dir, node, mut client) = subscribed(|config| config);
    node.inject(Fault::DropNotifications { count: 2 });
    node.inject(Fault::Duplicate { count: 1 });
    let hashes = node.burst(4);
    let announced = [(); 3].map(|()| client.announced());
    assert_eq!(announced, [hashes[2], hashes[2], hashes[3]]);
    assert_eq!(node.pending(), hashes);
    assert_eq!(node.stats().notifications_dropped, 2);
}

#[test]
fn each_bad_answer_is_wrong_and_the_next_one_is_correct() {
    let (_dir, node, mut client) = connected(|config| NodeConfig { preload: 2, ..config });
    let right = raw_line(&mut client, &node);
    for bad in BadAnswer::ALL {
        node.inject(Fault::Answers { bad, count: 1 });
        if bad == BadAnswer::Never {
            client.request_raw(6, node.pending()[0]);
            assert_eq!(raw_line(&mut client, &node), right, "only the second is answered");
            continue;
        }
        let line = raw_line(&mut client, &node);
        let value: Option<Value> = serde_json::from_str(&line).ok();
        let error = |code: i32| value.as_ref().unwrap()["error"]["code"] == code;
        match bad {
            BadAnswer::OutOfOrder | BadAnswer::ByteByByte => assert_eq!(line, right),
            BadAnswer::Null => assert_eq!(value.unwrap()["result"], Value::Null),
            BadAnswer::Error => assert!(error(-32603)),
            BadAnswer::Busy => assert!(error(-32000)),
            BadAnswer::Garbage => assert!(value.is_none()),
            BadAnswer::Truncated => assert!(right.starts_with(line.trim_end()) && value.is_none()),
            BadAnswer::PlainText => assert_eq!(line.trim_end(), TEXT),
            BadAnswer::Large => assert!(line.len() > mock_node::LARGE_ANSWER_BYTES),
            BadAnswer::WrongTransaction => {
                let wrong = json!(node.raw(node.pending()[1]).unwrap());
                assert_eq!(value.unwrap()["result"], wrong);
            }
            other => panic!("{other:?} is not tested here"),
        }
        assert_eq!(raw_line(&mut client, &node), right, "after {bad:?}");
    }
    assert_eq!(node.stats().bad_answers, BadAnswer::ALL.len() as u64);
}

#[test]
fn a_full_table_refuses_connections_for_its_time() {
    let (_dir, node) = start(|config| config);
    let mut connected = request_connection(&node);
    let time = Duration::from_millis(300);
    let begin = Instant::now();
    node.inject(Fault::TableFull { time });
    assert_eq!(Client::to(&node).rest(), TEXT.as_bytes());
    connected.result("eth_chainId", json!([]));
    while !Client::to(&node).line_or_answer().starts_with('{') {}
    assert!(begin.elapsed() >= time);
}
