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
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use super::{
    BlockingSocket, Connection, Incoming, Listings, Responses, client::PING_ID, read::Reader,
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

fn open(responses: impl Responses<u64>, limits: &Limits) -> (Arc<Connection<u64>>, UnixStream) {
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

/// The ids of the requests that come over a socket.
fn requests(socket: &UnixStream) -> impl Iterator<Item = u64> + use<> {
    let socket = socket.try_clone().unwrap();
    let values = serde_json::Deserializer::from_reader(socket).into_iter::<Value>();
    values.map_while(Result::ok).map(|value| value["id"].as_u64().unwrap())
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
    stage.node.write_all(answer(asked[0]).as_bytes()).unwrap();
    assert_eq!(stage.next().0, 0);
    // The sink blocks, and the answer to the second comes only now: after its time-out, as it seems.
    thread::sleep(2 * timeout);
    stage.node.write_all(answer(asked[1]).as_bytes()).unwrap();
    drop(unblock);
    assert_eq!(stage.next(), (1, "0x".to_owned()));
    // With the reader waiting, a request that is not answered does time out.
    stage.ask(2);
    assert_eq!(stage.next(), (2, "timed out".to_owned()));
    let late = requests(&stage.node).next().unwrap();
    stage.node.write_all(answer(late).as_bytes()).unwrap();
    assert_eq!(stage.next().1, "late");
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
        let id = asked.next().unwrap();
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
