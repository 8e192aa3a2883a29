//! A connection against nodes of a few lines.

use std::{
    io::Write,
    os::unix::net::UnixStream,
    sync::{
        Arc, LazyLock,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use serde_json::{Value, json};
use tokio::{
    runtime::Runtime,
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
};
use tokio_util::sync::CancellationToken;

use super::{
    BlockingSocket, Call, Connection, Incoming, Listener, Listings, Responses,
    calls::Subscriptions, client::PING_ID, read::Reader,
};
use crate::{
    error::{CallError, LossReason},
    limits::Limits,
    sync::Share,
    tasks::Tasks,
};

const PATIENCE: Duration = Duration::from_secs(60);

/// What became of request `n`.
type Seen = (u64, String);

/// Notes the answers; blocks at the first until the sender is dropped.
struct Notes {
    seen: Sender<Seen>,
    block: Option<Receiver<()>>,
}

impl Responses<u64> for Notes {
    fn on_response(&mut self, request: u64, _sent: Instant, response: &Incoming<'_>) {
        let text = match response.text() {
            Ok(Some(text)) => text.into_owned(),
            Ok(None) => "other".to_owned(),
            Err(error) => error.to_string(),
        };
        self.seen.send((request, text)).unwrap();
        self.block.take().map(|block| block.recv());
    }

    fn on_timeout(&mut self, request: u64) {
        self.seen.send((request, "timed out".to_owned())).unwrap();
    }

    fn on_late(&mut self) {
        self.seen.send((u64::MAX, "late".to_owned())).unwrap();
    }
}

struct Stage {
    connection: Arc<Connection<u64>>,
    seen: Receiver<Seen>,
    node: UnixStream,
}

/// No time-out and no ping comes in a test.
fn patient() -> Limits {
    Limits { fetch_timeout: PATIENCE, ping_interval: PATIENCE, ..Limits::default() }
}

fn open<R: Send + 'static, P: Responses<R>>(
    responses: P,
    limits: &Limits,
) -> (Arc<Connection<R>>, UnixStream) {
    let (ours, node) = UnixStream::pair().unwrap();
    let socket = BlockingSocket::new(ours, Arc::default()).unwrap();
    // Only its threads are used.
    static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());
    let tasks = Tasks::new(RUNTIME.handle().clone(), CancellationToken::new());
    let connection = Connection::new(socket);
    let reader = Reader::new(&connection, responses, limits, &Arc::default());
    Reader::spawn("test", vec![reader], &tasks).unwrap();
    (connection, node)
}

fn stage(block: Option<Receiver<()>>, limits: &Limits) -> Stage {
    let (seen_tx, seen) = channel();
    let (connection, node) = open(Notes { seen: seen_tx, block }, limits);
    Stage { connection, seen, node }
}

impl Stage {
    fn ask(&self, number: u64) {
        let hash = B256::left_padding_from(&number.to_be_bytes());
        self.connection.submit_fetch(&hash, number).expect("the connection is open");
        self.connection.flush();
    }

    fn next(&self) -> Seen {
        self.seen.recv_timeout(PATIENCE).expect("an answer")
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.connection.end(LossReason::Closed);
    }
}

/// The requests that come over a socket: id and hash.
fn requests(socket: &UnixStream) -> impl Iterator<Item = (u64, String)> + use<> {
    let socket = socket.try_clone().unwrap();
    let values = serde_json::Deserializer::from_reader(socket).into_iter::<Value>();
    values.map_while(Result::ok).map(|value| {
        (value["id"].as_u64().unwrap(), value["params"][0].as_str().unwrap_or("").to_owned())
    })
}

#[test]
fn answers_in_any_order_and_cut_anywhere_reach_their_requests() {
    let mut stage = stage(None, &patient());
    let mut asked: Vec<_> = {
        (0..50).for_each(|number| stage.ask(number));
        requests(&stage.node).take(50).collect()
    };
    asked.reverse();
    let mut bytes = Vec::new();
    for (id, hash) in &asked {
        writeln!(bytes, "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":\"{hash}\"}}").unwrap();
    }
    for piece in bytes.chunks(17) {
        stage.node.write_all(piece).unwrap();
    }
    for number in (0..50).rev() {
        let hash = B256::left_padding_from(&u64::to_be_bytes(number));
        assert_eq!(stage.next(), (number, hash.to_string()));
    }
    let start = Instant::now();
    while stage.connection.in_flight() > 0 {
        assert!(start.elapsed() < PATIENCE, "the last one is handled");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn swallowed_requests_free_their_ids_and_their_late_answers_are_dropped() {
    let limits = Limits { fetch_timeout: Duration::from_millis(1), ..patient() };
    let mut stage = stage(None, &limits);
    let node = stage.node.try_clone().unwrap();
    let reads = thread::spawn(move || requests(&node).last());
    for round in 0..100u64 {
        (0..100).for_each(|number| stage.ask(round * 100 + number));
        for number in 0..100 {
            assert_eq!(stage.next(), (round * 100 + number, "timed out".to_owned()));
        }
        assert_eq!(stage.connection.in_flight(), 0);
    }
    // An answer to the very first, long after.
    let id = 1;
    stage.node.write_all(format!(r#"{{"id":{id},"result":"0x01"}}"#).as_bytes()).unwrap();
    assert_eq!(stage.next().1, "late");
    stage.connection.end(LossReason::Closed);
    reads.join().unwrap();
}

#[test]
fn a_node_that_does_not_read_delays_no_writer_and_gets_all_when_it_reads() {
    let stage = stage(None, &patient());
    // More than the socket takes at once, and less than the outbox holds besides.
    let start = Instant::now();
    for number in 0..700 {
        stage.ask(number);
    }
    assert!(start.elapsed() < PATIENCE / 2, "no write waited");
    // The rest is sent without another request or a response.
    assert_eq!(requests(&stage.node).take(700).count(), 700);
    // And beyond all bounds.
    for number in 0..20_000 {
        stage.ask(number);
    }
    assert_eq!(stage.connection.in_flight(), 20_700);
    stage.connection.end(LossReason::Closed);
    assert_eq!(stage.connection.take_all().len(), 20_700);
}

#[test]
fn a_sink_that_blocks_times_out_nobody_and_what_came_meanwhile_is_read() {
    let timeout = Duration::from_millis(500);
    let (unblock, block) = channel();
    let mut stage = stage(Some(block), &Limits { fetch_timeout: timeout, ..patient() });
    stage.ask(0);
    stage.ask(1);
    let asked: Vec<_> = requests(&stage.node).take(2).collect();
    let answer = |id| format!(r#"{{"jsonrpc":"2.0","id":{id},"result":null}}"#);
    stage.node.write_all(answer(asked[0].0).as_bytes()).unwrap();
    assert_eq!(stage.next().0, 0);
    // The sink blocks, and the answer to the second comes only now: after its time-out, as it seems.
    thread::sleep(2 * timeout);
    stage.node.write_all(answer(asked[1].0).as_bytes()).unwrap();
    drop(unblock);
    assert_eq!(stage.next(), (1, "0x".to_owned()));
    // With the reader waiting, a request that is not answered does time out.
    stage.ask(2);
    assert_eq!(stage.next(), (2, "timed out".to_owned()));
}

/// A reader that is slower than its node finds each read full. It is not behind for ever with what had
/// arrived when it looked.
#[test]
fn a_node_that_fills_every_read_does_not_keep_its_requests_from_timing_out() {
    struct Slow(Sender<()>);
    impl Responses<u64> for Slow {
        fn on_response(&mut self, _: u64, _: Instant, _: &Incoming<'_>) {}
        fn on_timeout(&mut self, _: u64) {
            self.0.send(()).unwrap();
        }
        fn on_idle(&mut self) {
            // Time for the node to fill the socket.
            thread::sleep(Duration::from_millis(10));
        }
    }
    let (timed_out, times_out) = channel();
    let limits = Limits { fetch_timeout: Duration::from_millis(50), ..patient() };
    let (connection, mut node) = open(Slow(timed_out), &limits);
    // As much as the system grants: Linux wakes a writer when three quarters of it are free again.
    rustix::net::sockopt::set_socket_send_buffer_size(&node, 1 << 20).unwrap();
    // Small pieces, so that the socket is full again whenever some of them were read.
    let flood = format!(r#"{{"a":"{}"}}"#, "x".repeat(4000)).into_bytes();
    let flooding = thread::spawn(move || while node.write_all(&flood).is_ok() {});
    connection.submit_fetch(&B256::ZERO, 1).expect("the connection is open");
    times_out.recv_timeout(PATIENCE).expect("the request times out");
    connection.end(LossReason::Closed);
    flooding.join().unwrap();
}

#[tokio::test]
async fn garbage_and_the_end_of_file_end_the_connection_with_their_reason() {
    let mut first = stage(None, &patient());
    first.ask(7);
    first.node.write_all(b"Too many connections. Please try again later.").unwrap();
    assert!(
        matches!(first.connection.ended.wait().await, LossReason::Garbage(text) if text.starts_with("Too many"))
    );
    assert_eq!(first.connection.take_all(), [7]);
    assert!(first.connection.submit_fetch(&B256::ZERO, 8).is_err(), "nothing comes in behind it");
    let second = stage(None, &patient());
    second.node.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(second.connection.ended.wait().await, LossReason::Closed);
}

#[tokio::test]
async fn a_panic_while_an_answer_is_taken_ends_the_connection() {
    struct Panics;
    impl Responses<u64> for Panics {
        fn on_response(&mut self, _: u64, _: Instant, _: &Incoming<'_>) {
            panic!("a test panics here");
        }
    }
    let (connection, mut node) = open(Panics, &patient());
    connection.submit_fetch(&B256::ZERO, 1).unwrap();
    write!(node, r#"{{"id":1,"result":null}}"#).unwrap();
    assert_eq!(connection.ended.wait().await, LossReason::Closed);
}

#[tokio::test]
async fn only_the_answer_to_the_first_ping_shows_that_a_connection_is_up() {
    let id = PING_ID;
    let soon = Duration::from_millis(50);
    for (answer, limit, is_up) in [
        (r#"{"id":7,"result":"0x1"}"#.to_owned(), soon, Err(CallError::Timeout(soon))),
        (format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"0x1"}}"#), PATIENCE, Ok(())),
        (format!(r#"{{"id":{id},"error":{{"code":-32601}}}}"#), PATIENCE, Ok(())),
        ("Too many".to_owned(), PATIENCE, Err(CallError::ConnectionLost)),
    ] {
        let mut stage = stage(None, &patient());
        stage.node.write_all(answer.as_bytes()).unwrap();
        assert_eq!(stage.connection.greet(limit).await, is_up, "{answer}");
    }
}

#[tokio::test]
async fn a_silent_connection_is_pinged_and_given_up_only_when_it_stays_silent() {
    let limits = Limits {
        fetch_timeout: Duration::from_millis(16),
        ping_interval: Duration::from_millis(1),
        ping_timeout: Duration::from_secs(1),
        ..Limits::default()
    };
    let mut stage = stage(None, &limits);
    let mut asked = requests(&stage.node);
    // Answered, it lives on.
    for _ in 0..3 {
        let (id, _) = asked.next().unwrap();
        write!(stage.node, r#"{{"id":{id},"result":"0x1"}}"#).unwrap();
    }
    assert_eq!(asked.count(), 1, "after one more it is given up");
    assert!(matches!(stage.connection.ended.wait().await, LossReason::Unresponsive(_)));
    assert!(stage.seen.try_recv().is_err(), "a ping is no request");
}

#[test]
fn a_list_that_fails_shortens_no_patience_and_lengthens_it_only_by_its_time() {
    let (listings, limits) = (Listings::default(), Limits::default());
    let seconds = Duration::from_secs;
    assert_eq!(listings.patience(&limits), Duration::ZERO, "none is running");
    let _running = Share::of(&listings.running, 1);
    listings.took(Duration::ZERO, false);
    assert_eq!(listings.patience(&limits), limits.snapshot_timeout, "nothing is known");
    listings.took(seconds(5), true);
    listings.took(Duration::ZERO, false);
    assert_eq!(listings.patience(&limits), seconds(20));
    listings.took(seconds(10), false);
    assert_eq!(listings.patience(&limits), seconds(40));
}

/// Answers as a node does whose ids for the two subscriptions are `ids`, and then writes `notes`.
fn serve(mut node: UnixStream, ids: [&'static str; 2], notes: Vec<String>) {
    let requests = serde_json::Deserializer::from_reader(node.try_clone().unwrap());
    let serve = move || {
        for request in requests.into_iter::<Value>().map_while(Result::ok) {
            let first = &request["params"][0];
            let result = match first.as_str() {
                Some("newHeads") => json!(ids[1]),
                Some(_) => json!(ids[0]),
                None => Value::Null,
            };
            let answer = json!({ "jsonrpc": "2.0", "id": request["id"], "result": result });
            // The other side may have had enough.
            let _ = node.write_all(answer.to_string().as_bytes());
            if first == "newHeads" {
                let _ = notes.iter().try_for_each(|note| node.write_all(note.as_bytes()));
            }
        }
    };
    thread::spawn(serve);
}

fn note(id: &str, result: &Value) -> String {
    let params = json!({ "subscription": id, "result": result });
    json!({ "jsonrpc": "2.0", "method": "eth_subscription", "params": params }).to_string()
}

impl Listener for UnboundedSender<String> {
    fn on_notification(&mut self, json: &str, _: Instant) {
        self.send(json.to_owned()).expect("the test reads");
    }
}

async fn subscribe(
    connection: &Connection<Call>,
    kind: &str,
) -> Result<UnboundedReceiver<String>, CallError> {
    let (notes, received) = unbounded_channel();
    connection.subscribe((kind,), notes, PATIENCE).await.map(|()| received)
}

#[tokio::test]
async fn a_notification_goes_to_its_subscription_and_ends_with_the_connection() {
    let notes = vec![
        note("0x7", &json!("of no subscription")),
        note("0xa", &json!(1)),
        r#"{"jsonrpc":"2.0","method":"eth_subscription","params":["0xa"]}"#.to_owned(),
        note("0xb", &json!(2)),
        note("0xa", &json!({ "three": [3] })),
        r#"{"id":"0xa","result":null} []"#.to_owned(),
    ];
    let (connection, node) = open(Subscriptions::default(), &patient());
    serve(node, ["0xa", "0xb"], notes);
    let mut hashes = subscribe(&connection, "newPendingTransactions").await.expect("one");
    let mut heads = subscribe(&connection, "newHeads").await.expect("another");
    assert_eq!(heads.recv().await.as_deref(), Some("2"));
    assert_eq!(hashes.recv().await.as_deref(), Some("1"));
    assert_eq!(hashes.recv().await.as_deref(), Some(r#"{"three":[3]}"#));
    connection.call("eth_none", (), PATIENCE).await.expect("it is still up");
    connection.end(LossReason::Closed);
    assert_eq!((hashes.recv().await, heads.recv().await), (None, None));
}

#[tokio::test]
async fn a_subscription_with_the_id_of_another_one_is_refused() {
    let (connection, node) = open(Subscriptions::default(), &patient());
    serve(node, ["0xa", "0xa"], vec![]);
    let _hashes = subscribe(&connection, "newPendingTransactions").await.expect("one");
    let error = subscribe(&connection, "newHeads").await.unwrap_err();
    assert_eq!(error.to_string(), "error 0: one id for two subscriptions");
}
