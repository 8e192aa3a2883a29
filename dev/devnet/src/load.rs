//! Drives a development node with signed transactions at an exact pace, and reports what the node accepted.
//!
//! The transactions are signed before the clock starts, with the accounts of the well-known test mnemonic, which
//! anvil (`--accounts 1000`), a geth genesis and this repository's mock node fund. Requests are pipelined on one
//! connection; answers are matched by id, since nodes answer out of order.
//!
//! With blobs, the last tenth of the accounts sends nothing else, since geth reserves an account for one kind; do not
//! mix runs with and without blobs on one chain before it has mined what is pending.
//!
//! A send that a node accepts is not yet a transaction that it announces: geth drops silently what does not fit its
//! limits. Count announcements for that.

use std::{
    collections::BTreeMap,
    io::{self, BufRead, BufReader, Write as _},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use clap::{Parser, ValueEnum};
use hdrhistogram::Histogram;
use mock_node::workload::{
    Address, Mix, PreparedTx, SidecarForm, TxKind, Workload, WorkloadConfig, test_accounts,
};
use serde_json::{Value, json};

/// The last answers have so long to arrive.
const SETTLE: Duration = Duration::from_secs(20);

/// Calls in one batch while the nonces are requested.
const BATCH: usize = 250;

/// Drives a development node with signed transactions
#[derive(Debug, Parser)]
#[command(name = "load")]
pub struct Args {
    /// The node's socket
    #[arg(long, value_name = "PATH")]
    ipc: PathBuf,
    /// Transactions per second
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    tps: u32,
    /// How long, e.g. 60s
    #[arg(long, default_value = "60s", value_parser = mock_node::cli::parse_duration)]
    duration: Duration,
    /// Of a thousand transactions, how many carry blobs; a tenth of the accounts then sends nothing else
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1000))]
    blobs_per_mille: u32,
    /// Of a thousand blob transactions, how many carry six blobs
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(0..=1000))]
    six_blobs_per_mille: u32,
    /// Proofs in the sidecars: of cells (since Osaka) or of blobs (before it)
    #[arg(long, value_enum, default_value_t = Sidecars::Cells)]
    sidecars: Sidecars,
    /// Accounts of the test mnemonic that send
    #[arg(long, default_value_t = 1000)]
    accounts: usize,
    /// Requests that may wait for their answer
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    in_flight: u64,
    /// From it come the transactions
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one line of JSON on stdout
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Sidecars {
    Cells,
    Blobs,
}

#[derive(Debug)]
enum LoadError {
    Connect { path: PathBuf, source: io::Error },
    Lost(io::Error),
    Closed,
    NoNode { method: &'static str, answer: String },
}

impl std::fmt::Display for LoadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Connect { path, source } => {
                write!(
                    f,
                    "cannot connect to {}: {source}; is the node running there?",
                    path.display()
                )
            }
            Self::Lost(source) => write!(f, "the connection broke: {source}"),
            Self::Closed => f.write_str("the node closed the connection"),
            Self::NoNode { method, answer } => {
                write!(f, "{method} was answered with {answer}; is this an Ethereum node?")
            }
        }
    }
}

impl From<io::Error> for LoadError {
    fn from(source: io::Error) -> Self {
        Self::Lost(source)
    }
}

/// Runs the command with these flags.
pub fn run(args: &Args) -> ExitCode {
    match drive(args) {
        Ok(report) => {
            report.print(args);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("load: {error}");
            ExitCode::from(2)
        }
    }
}

fn drive(args: &Args) -> Result<Report, LoadError> {
    let mut node = Node::connect(&args.ipc)?;
    let txs = prepare(args, &mut node)?;
    eprintln!("{} transactions are signed; sending {} per second", txs.len(), args.tps);
    send(args, node, txs)
}

/// Requests what the signatures need from the node, and signs.
fn prepare(args: &Args, node: &mut Node) -> Result<Vec<PreparedTx>, LoadError> {
    let version = node.call("web3_clientVersion", json!([]))?;
    let chain_id = node.quantity("eth_chainId")?;
    let gas_price = u128::from(node.quantity("eth_gasPrice")?);
    eprintln!("{version} on chain {chain_id}, gas price {gas_price} wei");
    let mut nonces = Vec::with_capacity(args.accounts);
    for accounts in test_accounts(args.accounts).chunks(BATCH) {
        let addresses: Vec<_> = accounts.iter().map(|account| account.address).collect();
        let calls = addresses.iter().map(|address| json!([address, "pending"]));
        nonces.extend(node.batch("eth_getTransactionCount", calls)?);
    }
    // Room for 39 full blocks, each of which raises the base fee by an eighth; no more than 1 ether for any
    // transaction of the mix, which is what geth lets pass over RPC.
    let max_fee_wei = (gas_price * 100).clamp(100_000_000_000, 1_000_000_000_000);
    let config = WorkloadConfig {
        accounts: args.accounts,
        nonces,
        max_fee_wei,
        max_tip_wei: 5_000_000_000,
        max_blob_fee_wei: max_fee_wei,
        mix: Mix {
            blobs_per_mille: args.blobs_per_mille,
            six_blobs_per_mille: args.six_blobs_per_mille,
            ..Mix::default()
        },
        sidecar_form: match args.sidecars {
            Sidecars::Cells => SidecarForm::CellProofs,
            Sidecars::Blobs => SidecarForm::BlobProofs,
        },
        ..WorkloadConfig::new(args.seed, chain_id)
    };
    let count = (args.duration.as_secs_f64() * f64::from(args.tps)).round() as usize;
    Ok(Workload::new(config).prepare(count))
}

/// A connection with one request in flight.
struct Node {
    stream: UnixStream,
    reader: BufReader<UnixStream>,
}

impl Node {
    fn connect(path: &Path) -> Result<Self, LoadError> {
        let failed = |source| LoadError::Connect { path: path.to_owned(), source };
        let stream = UnixStream::connect(path).map_err(failed)?;
        stream.set_read_timeout(Some(SETTLE)).map_err(failed)?;
        stream.set_write_timeout(Some(SETTLE)).map_err(failed)?;
        let reader = BufReader::with_capacity(1 << 20, stream.try_clone().map_err(failed)?);
        Ok(Self { stream, reader })
    }

    fn exchange(&mut self, method: &'static str, request: &Value) -> Result<Value, LoadError> {
        self.stream.write_all(request.to_string().as_bytes())?;
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            return Err(LoadError::Closed);
        }
        serde_json::from_str(&line).map_err(|_| LoadError::NoNode { method, answer: line })
    }

    fn call(&mut self, method: &'static str, params: Value) -> Result<Value, LoadError> {
        let answer = self.exchange(method, &request(1, method, &params))?;
        match answer.get("result") {
            Some(result) => Ok(result.clone()),
            None => Err(LoadError::NoNode { method, answer: answer.to_string() }),
        }
    }

    fn quantity(&mut self, method: &'static str) -> Result<u64, LoadError> {
        let result = self.call(method, json!([]))?;
        quantity(&result).ok_or_else(|| LoadError::NoNode { method, answer: result.to_string() })
    }

    fn batch(
        &mut self,
        method: &'static str,
        calls: impl Iterator<Item = Value>,
    ) -> Result<Vec<u64>, LoadError> {
        let calls: Vec<_> =
            calls.enumerate().map(|(id, params)| request(id as u64, method, &params)).collect();
        let answers = self.exchange(method, &Value::from(calls))?;
        let wrong = || LoadError::NoNode { method, answer: answers.to_string() };
        let mut answers: Vec<_> = answers.as_array().ok_or_else(wrong)?.iter().collect();
        answers.sort_by_key(|answer| answer["id"].as_u64());
        answers.into_iter().map(|answer| quantity(&answer["result"]).ok_or_else(wrong)).collect()
    }
}

fn request(id: u64, method: &str, params: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}

fn quantity(value: &Value) -> Option<u64> {
    u64::from_str_radix(value.as_str()?.strip_prefix("0x")?, 16).ok()
}

/// What the two directions of the connection share.
#[derive(Default)]
struct Flight {
    state: Mutex<InFlight>,
    changed: Condvar,
}

#[derive(Default)]
struct InFlight {
    /// When each request in flight was written.
    sent: BTreeMap<u64, Instant>,
    /// Blob transactions in flight and their senders.
    blobs: BTreeMap<u64, Address>,
    /// The reader has ended: nothing will be answered any more.
    broken: bool,
}

#[derive(Debug)]
struct Report {
    sent: u64,
    accepted: u64,
    refused: BTreeMap<String, u64>,
    unanswered: u64,
    late: u64,
    sending: Duration,
    latency_us: Histogram<u64>,
}

fn send(args: &Args, node: Node, txs: Vec<PreparedTx>) -> Result<Report, LoadError> {
    let flight = Arc::new(Flight::default());
    let total = txs.len() as u64;
    let reader = thread::spawn({
        let flight = flight.clone();
        move || read_answers(node.reader, &flight, total)
    });
    let mut stream = node.stream;
    let begin = Instant::now();
    let (mut sent, mut late) = (0, 0);
    for (id, tx) in (0..).zip(txs) {
        let due = begin + Duration::from_secs_f64(id as f64 / f64::from(args.tps));
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"eth_sendRawTransaction","params":["{}"]}}"#,
            tx.raw
        );
        {
            let state = flight.state.lock().unwrap_or_else(PoisonError::into_inner);
            // Nodes answer, and so take in, out of order. A plain transaction that overtakes another of
            // its sender waits in the queue; geth has no queue for blob transactions and refuses it.
            let is_blob = matches!(tx.kind, TxKind::Blob | TxKind::SixBlobs);
            let full = |state: &mut InFlight| {
                let overtakes = is_blob && state.blobs.values().any(|sender| *sender == tx.sender);
                !state.broken && (overtakes || state.sent.len() as u64 >= args.in_flight)
            };
            let mut state =
                flight.changed.wait_while(state, full).unwrap_or_else(PoisonError::into_inner);
            if state.broken {
                break;
            }
            state.sent.insert(id, Instant::now());
            if is_blob {
                state.blobs.insert(id, tx.sender);
            }
        }
        late += u64::from(due.elapsed() > Duration::from_millis(50));
        stream.write_all(text.as_bytes())?;
        sent += 1;
    }
    let sending = begin.elapsed();
    let answers = reader.join().expect("the reader does not panic")?;
    Ok(Report {
        sent,
        accepted: answers.accepted,
        unanswered: sent.saturating_sub(answers.accepted + answers.refused.values().sum::<u64>()),
        refused: answers.refused,
        late,
        sending,
        latency_us: answers.latency_us,
    })
}

struct Answers {
    accepted: u64,
    refused: BTreeMap<String, u64>,
    latency_us: Histogram<u64>,
}

/// Reads until all are answered, or nothing comes for [`SETTLE`].
fn read_answers(
    mut reader: BufReader<UnixStream>,
    flight: &Flight,
    total: u64,
) -> Result<Answers, LoadError> {
    let latency_us =
        Histogram::new_with_bounds(1, 60_000_000, 3).expect("a minute in microseconds");
    let mut answers = Answers { accepted: 0, refused: BTreeMap::new(), latency_us };
    let mut line = Vec::new();
    for _ in 0..total {
        line.clear();
        // At the end of the stream, or of the patience: what is missing is reported as unanswered.
        if !matches!(reader.read_until(b'\n', &mut line), Ok(1..)) {
            break;
        }
        let Ok(answer) = serde_json::from_slice::<Value>(&line) else { continue };
        let mut state = flight.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(id) = answer["id"].as_u64() {
            state.blobs.remove(&id);
            if let Some(sent) = state.sent.remove(&id) {
                answers.latency_us.saturating_record(sent.elapsed().as_micros() as u64);
            }
        }
        drop(state);
        flight.changed.notify_one();
        match answer["error"]["message"].as_str() {
            None => answers.accepted += 1,
            Some(message) => *answers.refused.entry(reason(message)).or_default() += 1,
        }
    }
    flight.state.lock().unwrap_or_else(PoisonError::into_inner).broken = true;
    flight.changed.notify_one();
    Ok(answers)
}

/// A message without what differs from one transaction to the next, so that equal reasons are counted together.
fn reason(message: &str) -> String {
    let words = message.split(' ').filter(|word| !word.contains(|c: char| c.is_ascii_digit()));
    words.collect::<Vec<_>>().join(" ")
}

impl Report {
    fn print(&self, args: &Args) {
        let seconds = self.sending.as_secs_f64();
        let tps = self.sent as f64 / seconds;
        let quantile = |q| self.latency_us.value_at_quantile(q);
        if args.json {
            let line = json!({
                "sent": self.sent,
                "accepted": self.accepted,
                "refused": self.refused.values().sum::<u64>(),
                "refused_by_reason": self.refused,
                "unanswered": self.unanswered,
                "late": self.late,
                "elapsed_s": seconds,
                "tps": tps,
                "answer_us": { "p50": quantile(0.5), "p99": quantile(0.99), "max": self.latency_us.max() },
            });
            println!("{line}");
            return;
        }
        println!("sent        {} in {seconds:.2} s, {tps:.0} per second", self.sent);
        println!("accepted    {}", self.accepted);
        for (reason, count) in &self.refused {
            println!("refused     {count}: {reason}");
        }
        println!("unanswered  {}", self.unanswered);
        println!("late        {} by more than 50 ms", self.late);
        println!("answered in {} us (p50), {} us (p99)", quantile(0.5), quantile(0.99));
    }
}
