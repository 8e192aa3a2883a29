//! Tests of the quirks, which are switched on and off while the node runs.

use std::{
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use alloy_consensus::TxEnvelope;
use alloy_eips::{Decodable2718 as _, eip7594::EIP_7594_WRAPPER_VERSION};
use alloy_primitives::{B256, Bytes};
use alloy_rlp::{Decodable as _, EMPTY_LIST_CODE, Header};
use mock_node::{
    AnswerIds, Fault, IncompleteBlobs, IncompleteForm, MethodQuirk, MockNode, NodeConfig, OddLine,
    Quirks, Target, Topic, WebSocketBridge, WebSocketQuirks,
};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::{self, Message};

use crate::client::{Client, PATIENCE, connected, start, subscribed};

const RAW: &str = "eth_getRawTransactionByHash";
/// How long a temporary quirk lasts: long enough that a slow machine observes it.
const WHILE: Duration = Duration::from_millis(700);

fn raw(client: &mut Client, hash: B256) -> Value {
    client.result(RAW, json!([hash]))
}

/// Requests a transaction until the answer is correct; returns how long that took.
fn raw_until_correct(client: &mut Client, node: &MockNode, hash: B256) -> Duration {
    let (begin, correct) = (Instant::now(), json!(node.raw(hash).expect("it is pending")));
    while raw(client, hash) != correct {
        assert!(begin.elapsed() < Duration::from_secs(20), "it never becomes correct");
    }
    begin.elapsed()
}

fn blobs(config: NodeConfig) -> NodeConfig {
    NodeConfig { blobs_per_mille: 1_000, ..config }
}

#[test]
fn a_fresh_transaction_is_null_for_a_while() {
    let (_dir, node, mut client) = subscribed(|config| NodeConfig { preload: 1, ..config });
    let old = node.pending()[0];
    node.set_quirks(|quirks| quirks.null_after_announcement = WHILE);
    let begin = Instant::now();
    let hash = node.burst(1)[0];
    assert_eq!(client.announced(), hash);
    assert_eq!(raw(&mut client, hash), Value::Null);
    assert!(!raw(&mut client, old).is_null(), "it was announced before");
    raw_until_correct(&mut client, &node, hash);
    assert!(begin.elapsed() >= WHILE);
}

#[test]
fn a_blob_transaction_is_incomplete_for_a_while_in_either_form() {
    for form in [IncompleteForm::NoSidecar, IncompleteForm::ElidedBlobs] {
        let (_dir, node, mut client) = connected(blobs);
        let incomplete = IncompleteBlobs { form, time: WHILE };
        node.set_quirks(|quirks| quirks.incomplete_blobs = Some(incomplete));
        let begin = Instant::now();
        let hash = node.burst(1)[0];
        let short: Bytes = serde_json::from_value(raw(&mut client, hash)).expect("bytes");
        let complete = node.raw(hash).expect("it is pending");
        match form {
            IncompleteForm::NoSidecar => {
                let mined = TxEnvelope::decode_2718_exact(&short).expect("the form of a block");
                let TxEnvelope::Eip4844(signed) = mined else { panic!("a blob transaction") };
                assert!(signed.tx().sidecar().is_none());
            }
            IncompleteForm::ElidedBlobs => {
                // `type || rlp([tx, version, blobs, ..])`
                let mut fields = Header::decode_bytes(&mut &short[1..], true).expect("a list");
                let tx = Header::decode(&mut fields).expect("a list");
                fields = &fields[tx.payload_length..];
                assert_eq!(fields[..2], [EIP_7594_WRAPPER_VERSION, EMPTY_LIST_CODE]);
                assert!(fields.len() > 2 && complete.len() - short.len() >= 128 << 10);
            }
        }
        raw_until_correct(&mut client, &node, hash);
        assert!(begin.elapsed() >= WHILE);
    }
}

#[test]
fn answers_can_be_late_or_reversed_within_a_window() {
    let (_dir, node, mut client) = connected(|config| NodeConfig { preload: 3, ..config });
    node.set_quirks(|quirks| quirks.delay = WHILE);
    let begin = Instant::now();
    client.result("eth_chainId", json!([]));
    assert!(begin.elapsed() >= WHILE);
    // The window is long enough for all three requests, unless it ends between them.
    let window = Duration::from_millis(300);
    node.set_quirks(|quirks| {
        *quirks = Quirks { reverse_window: window, ..Quirks::default() };
    });
    let reversed = (0..20).any(|_| {
        node.pending().into_iter().enumerate().for_each(|(id, hash)| client.request_raw(id, hash));
        let ids = [(); 3].map(|()| client.value()["id"].as_u64());
        ids == [Some(2), Some(1), Some(0)]
    });
    assert!(reversed, "never in twenty windows");
}

#[test]
fn one_topic_is_silent_while_the_others_and_requests_continue() {
    for silent in [Topic::Hashes, Topic::Objects, Topic::Heads] {
        let (_dir, node) = start(|config| config);
        let subscriptions = [
            (Topic::Hashes, json!(["newPendingTransactions"])),
            (Topic::Objects, json!(["newPendingTransactions", true])),
            (Topic::Heads, json!(["newHeads"])),
        ];
        let mut clients = subscriptions.map(|(topic, params)| {
            let mut client = Client::to(&node);
            client.subscribe(params);
            (topic, client)
        });
        node.set_quirks(|quirks| quirks.silent = [silent].into());
        let missed = node.burst(1)[0];
        node.mine();
        for (topic, client) in &mut clients {
            if *topic != silent {
                assert_eq!(client.value()["method"], "eth_subscription", "{topic:?}");
            }
            // The silent connection answers requests, and no notification precedes the answer.
            assert!(!raw(client, missed).is_null());
        }
        node.set_quirks(|quirks| quirks.silent.clear());
        node.burst(1);
        node.mine();
        for (topic, client) in &mut clients {
            assert_eq!(client.value()["method"], "eth_subscription", "{topic:?} again");
        }
    }
}

#[test]
fn a_subscription_ends_with_or_without_a_notification() {
    for notifies in [false, true] {
        let (_dir, node, mut client) = subscribed(|config| config);
        client.subscribe(json!(["newHeads"]));
        node.inject(Fault::EndSubscriptions { topic: Topic::Hashes, notifies });
        if notifies {
            let note = client.value();
            assert_eq!(note["method"], "eth_subscription");
            assert!(
                note["params"]["error"].is_string() && note["params"]["subscription"].is_string()
            );
        }
        let hash = node.burst(1)[0];
        let head = node.mine().hash;
        assert_eq!(client.value()["params"]["result"]["hash"], json!(head), "no hash precedes it");
        assert!(!raw(&mut client, hash).is_null());
    }
}

#[test]
fn a_new_subscription_to_transactions_is_silent_for_ever() {
    let (_dir, node, mut client) = subscribed(|config| config);
    node.inject(Fault::SilenceSubscriptions { subscriptions: 1 });
    let mut silent = Client::to(&node);
    silent.subscribe(json!(["newPendingTransactions"]));
    silent.subscribe(json!(["newHeads"]));
    let mut later = Client::to(&node);
    later.subscribe(json!(["newPendingTransactions"]));
    let hash = node.burst(1)[0];
    let head = node.mine().hash;
    assert_eq!([client.announced(), later.announced()], [hash; 2]);
    assert_eq!(silent.value()["params"]["result"]["hash"], json!(head), "no hash precedes it");
}

#[test]
fn all_requests_or_those_of_one_method_get_no_answer() {
    let (_dir, node, mut client) = subscribed(|config| NodeConfig { preload: 1, ..config });
    let hash = node.pending()[0];
    node.set_quirks(|quirks| _ = quirks.methods.insert(RAW.into(), MethodQuirk::NoAnswer));
    client.request_raw(7, hash);
    client.result("eth_blockNumber", json!([]));
    node.set_quirks(|quirks| quirks.is_mute = true);
    client.request_raw(8, hash);
    let mut other = Client::to(&node);
    other.request_raw(9, hash);
    // Until the node has read all three requests.
    let deadline = Instant::now() + PATIENCE;
    while node.stats().methods[RAW] < 3 {
        assert!(Instant::now() < deadline, "{:?}", node.stats());
        thread::sleep(Duration::from_millis(1));
    }
    let announced = node.burst(1)[0];
    assert_eq!(client.announced(), announced, "no answer precedes it");
    node.set_quirks(|quirks| *quirks = Quirks::default());
    raw(&mut client, hash);
}

#[test]
fn methods_and_unknown_transactions_are_answered_with_errors() {
    let (_dir, node, mut client) = connected(|config| NodeConfig { preload: 1, ..config });
    for (method, code) in
        [(RAW, -32601), (RAW, -32602), ("web3_clientVersion", -32601), ("txpool_content", -32008)]
    {
        node.set_quirks(|quirks| {
            _ = quirks.methods.insert(method.to_owned(), MethodQuirk::Error(code));
        });
        let params = if method == RAW { json!([node.pending()[0]]) } else { json!([]) };
        assert_eq!(client.call(method, params)["error"]["code"], code, "{method}");
    }
    node.set_quirks(|quirks| quirks.methods.clear());
    for code in [4444, 1] {
        node.set_quirks(|quirks| quirks.unknown_error = Some(code));
        assert_eq!(client.call(RAW, json!([B256::ZERO]))["error"]["code"], code);
        assert!(!raw(&mut client, node.pending()[0]).is_null());
    }
}

#[test]
fn a_raw_transaction_is_wrapped_in_an_rlp_string() {
    let (_dir, node, mut client) = connected(|config| NodeConfig { preload: 20, ..config });
    node.set_quirks(|quirks| quirks.wraps_raw = true);
    let mut wrapped = 0;
    for hash in node.pending() {
        let right = node.raw(hash).expect("it is pending");
        let answered: Bytes = serde_json::from_value(raw(&mut client, hash)).expect("bytes");
        if right[0] < 0x80 {
            assert_eq!(Bytes::decode(&mut &answered[..]), Ok(right));
            wrapped += 1;
        } else {
            assert_eq!(answered, right, "an untyped transaction is not wrapped");
        }
    }
    assert!(wrapped > 0);
}

#[test]
fn a_reset_keeps_the_transactions_on_another_genesis() {
    let (_dir, node, mut client) = subscribed(|config| NodeConfig { preload: 6, ..config });
    let old = node.pending();
    let genesis = client.result("eth_getBlockByNumber", json!(["0x0", false]))["hash"].clone();
    node.mine_only(&old[..2]).expect("their nonces follow");
    node.inject(Fault::Reset { down: Duration::from_millis(100) });
    client.rest();
    let begin = Instant::now();
    while node.stats().restarts == 0 {
        assert!(begin.elapsed() < Duration::from_secs(20), "it does not come back");
        std::thread::yield_now();
    }
    // The socket listens shortly after.
    while std::os::unix::net::UnixStream::connect(node.ipc_path()).is_err() {
        assert!(begin.elapsed() < Duration::from_secs(20), "it does not listen");
        std::thread::yield_now();
    }
    let mut client = Client::to(&node);
    let block = client.result("eth_getBlockByNumber", json!(["0x0", false]));
    assert_ne!(block["hash"], genesis);
    assert_eq!(client.result("eth_blockNumber", json!([])), "0x0");
    assert_eq!(client.result("eth_chainId", json!([])), "0x539");
    let (mut now, mut before) = (node.pending(), old);
    now.sort_unstable();
    before.sort_unstable();
    assert_eq!(now, before);
    assert_eq!(node.mine().txs.len(), 6, "all can be mined");
}

#[test]
fn answers_have_ids_as_text_null_or_unknown() {
    let (_dir, node, mut client) = connected(|config| config);
    let mut id = |ids| {
        node.set_quirks(|quirks| quirks.ids = ids);
        client.write(br#"{"jsonrpc":"2.0","id":5,"method":"eth_chainId"}"#);
        client.value()["id"].clone()
    };
    assert_eq!(id(AnswerIds::Text), json!("5"));
    assert_eq!(id(AnswerIds::Null), Value::Null);
    assert_eq!(id(AnswerIds::Unknown), json!(u64::MAX));
    assert_eq!(id(AnswerIds::Same), json!(5));
}

#[test]
fn answers_are_repeated_replaced_by_html_or_followed_by_a_close() {
    let (_dir, node, mut client) = connected(|config| config);
    node.set_quirks(|quirks| quirks.answers_twice = true);
    client.result("eth_chainId", json!([]));
    assert_eq!(client.value()["result"], "0x539", "the same again");
    node.set_quirks(|quirks| {
        *quirks = Quirks { html_first: true, text_errors: true, ..Quirks::default() };
    });
    assert!(
        client.call("eth_nothing", json!([]))["error"].is_string(),
        "only the first answer is replaced"
    );
    let mut fresh = Client::to(&node);
    assert!(fresh.line_or_answer().starts_with("<html>"));
    fresh.result("eth_chainId", json!([]));
    node.set_quirks(|quirks| {
        *quirks = Quirks { closes_after_answer: true, ..Quirks::default() };
    });
    fresh.result("eth_chainId", json!([]));
    assert!(fresh.rest().is_empty());
}

#[test]
fn a_notification_can_precede_the_reply_that_names_its_id() {
    let (_dir, node, mut client) = connected(|config| NodeConfig { preload: 2, ..config });
    node.set_quirks(|quirks| quirks.notifies_before_reply = true);
    client.write(
        br#"{"jsonrpc":"2.0","id":1,"method":"eth_subscribe","params":["newPendingTransactions"]}"#,
    );
    let (early, reply) = (client.value(), client.value());
    assert_eq!(early["params"]["result"], json!(node.pending()[1]));
    assert_eq!(early["params"]["subscription"], reply["result"]);
}

#[test]
fn an_unsolicited_line_is_sent_to_its_targets() {
    let (_dir, node, mut client) = subscribed(|config| config);
    for line in OddLine::ALL {
        node.inject(Fault::SendLine { target: Target::Request, line });
        node.inject(Fault::SendLine { target: Target::Subscription, line });
        let text = client.line().expect("a line");
        let value = serde_json::from_str::<Value>(&text);
        match line {
            OddLine::PlainText => assert!(value.is_err()),
            OddLine::EmptyArray => assert_eq!(value.unwrap(), json!([])),
            OddLine::NotificationWithoutParams => assert!(value.unwrap().get("params").is_none()),
            OddLine::TextError => assert!(value.unwrap()["error"].is_string()),
            OddLine::NullId => assert!(value.unwrap()["id"].is_null()),
            OddLine::UnknownId => assert_eq!(value.unwrap()["id"], json!(u64::MAX)),
        }
    }
    // Each line came once, because a connection with a subscription is no request connection.
    client.result("eth_chainId", json!([]));
}

#[test]
fn the_node_can_be_syncing_and_its_clock_can_be_wrong() {
    let genesis_s = Some(1);
    let (_dir, node, mut client) = connected(|config| NodeConfig { genesis_s, ..config });
    node.set_quirks(|quirks| quirks.is_syncing = true);
    assert!(client.result("eth_syncing", json!([])).is_object());
    let now_s = || std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_secs() as i64;
    for offset in [-3_600, 90] {
        node.set_quirks(|quirks| quirks.clock_offset_s = offset);
        let before = now_s();
        let timestamp = node.mine().timestamp as i64;
        assert!((before + offset..=now_s() + offset).contains(&timestamp), "{offset}");
    }
}

#[test]
fn a_websocket_sends_text_or_binary_frames_or_a_page() {
    let (_dir, node) = start(|config| config);
    let bridge = WebSocketBridge::start(node.ipc_path()).expect("a port");
    let address = bridge.url().trim_start_matches("ws://").to_owned();
    let connect = || {
        let stream = TcpStream::connect(&address).expect("it listens");
        tungstenite::client(bridge.url(), stream).ok()
    };
    let (mut client, _) = connect().expect("a WebSocket");
    let mut request = || {
        let text = r#"{"jsonrpc":"2.0","id":1,"method":"eth_chainId"}"#;
        client.send(Message::text(text)).expect("it is open");
        client.read().expect("an answer")
    };
    let answer = r#"{"jsonrpc":"2.0","id":1,"result":"0x539"}"#;
    assert_eq!(request(), Message::text(answer));
    bridge.set_quirks(WebSocketQuirks { is_binary: true, is_html: true });
    assert_eq!(request(), Message::binary(answer));
    assert!(connect().is_none(), "a page is no handshake");
    bridge.set_quirks(WebSocketQuirks::default());
    connect().expect("a WebSocket again");
}
