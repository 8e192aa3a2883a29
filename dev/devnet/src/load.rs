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
    collections::{BTreeMap, BTreeSet},
    error::Error,
    io::{BufRead, BufReader, Write as _},
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use alloy_primitives::U64;
use clap::Parser;
use mock_node::workload::{
    Address, Mix, PreparedTx, TxKind, Workload, WorkloadConfig, test_accounts,
};
use serde_json::{Value, json};

/// The last answers have so long to arrive.
const SETTLE: Duration = Duration::from_secs(20);

/// Requests that may wait for their answer.
const MAX_IN_FLIGHT: usize = 256;

/// Drives a development node with signed transactions, and prints what came of it as one line of JSON
#[derive(Debug, Parser)]
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
    /// Accounts of the test mnemonic that send
    #[arg(long, default_value_t = 1000)]
    accounts: usize,
    /// From it come the transactions
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Runs the command with these flags.
///
/// # Errors
/// There is no Ethereum node at the socket, or its connection breaks.
pub fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let connected = UnixStream::connect(&args.ipc);
    let stream = connected.map_err(|error| format!("{}: {error}", args.ipc.display()))?;
    stream.set_read_timeout(Some(SETTLE))?;
    stream.set_write_timeout(Some(SETTLE))?;
    let reader = BufReader::with_capacity(1 << 20, stream.try_clone()?);
    let mut node = Node { stream, reader };
    let txs = prepare(args, &mut node)?;
    eprintln!("{} transactions are signed; sending {} per second", txs.len(), args.tps);
    println!("{}", send(args.tps, node, txs)?);
    Ok(())
}

/// Requests what the signatures need from the node, and signs.
fn prepare(args: &Args, node: &mut Node) -> Result<Vec<PreparedTx>, Box<dyn Error>> {
    let version = node.call("web3_clientVersion", json!([]))?;
    let chain_id = node.quantity("eth_chainId", json!([]))?;
    let gas_price = u128::from(node.quantity("eth_gasPrice", json!([]))?);
    eprintln!("{version} on chain {chain_id}, gas price {gas_price} wei");
    let accounts = test_accounts(args.accounts);
    let nonces = accounts.iter().map(|account| {
        node.quantity("eth_getTransactionCount", json!([account.address, "pending"]))
    });
    let nonces = nonces.collect::<Result<_, _>>()?;
    // Room for 39 full blocks, each of which raises the base fee by an eighth; no more than 1 ether for any
    // transaction of the mix, which is what geth lets pass over RPC.
    let max_fee_wei = (gas_price * 100).clamp(100_000_000_000, 1_000_000_000_000);
    let config = WorkloadConfig {
        accounts: args.accounts,
        nonces,
        max_fee_wei,
        max_blob_fee_wei: max_fee_wei,
        mix: Mix { blobs_per_mille: args.blobs_per_mille, ..Mix::default() },
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
    fn call(&mut self, method: &str, params: Value) -> Result<Value, Box<dyn Error>> {
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        self.stream.write_all(request.to_string().as_bytes())?;
        let mut line = String::new();
        self.reader.read_line(&mut line)?;
        let mut answer: Value = serde_json::from_str(&line)?;
        match answer.get_mut("result") {
            Some(result) => Ok(result.take()),
            None => Err(format!("{method} was answered with {line}").into()),
        }
    }

    fn quantity(&mut self, method: &str, params: Value) -> Result<u64, Box<dyn Error>> {
        let value = self.call(method, params)?;
        let number = serde_json::from_value::<U64>(value.clone());
        Ok(number.map_err(|_| format!("{method} was answered with {value}"))?.to())
    }
}

/// What the two directions of the connection share.
#[derive(Default)]
struct Flight {
    state: Mutex<InFlight>,
    changed: Condvar,
}

#[derive(Default)]
struct InFlight {
    ids: BTreeSet<u64>,
    /// Blob transactions in flight and their senders.
    blobs: BTreeMap<u64, Address>,
    /// The reader has ended: nothing will be answered any more.
    broken: bool,
}

fn send(tps: u32, node: Node, txs: Vec<PreparedTx>) -> Result<Value, Box<dyn Error>> {
    let flight = Arc::new(Flight::default());
    let total = txs.len();
    let reader = thread::spawn({
        let flight = flight.clone();
        move || read_answers(node.reader, &flight, total)
    });
    let mut stream = node.stream;
    let begin = Instant::now();
    let (mut sent, mut late) = (0_u64, 0_u64);
    for (id, tx) in (0..).zip(txs) {
        let due = begin + Duration::from_secs_f64(id as f64 / f64::from(tps));
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
                !state.broken && (overtakes || state.ids.len() >= MAX_IN_FLIGHT)
            };
            let mut state =
                flight.changed.wait_while(state, full).unwrap_or_else(PoisonError::into_inner);
            if state.broken {
                break;
            }
            state.ids.insert(id);
            if is_blob {
                state.blobs.insert(id, tx.sender);
            }
        }
        late += u64::from(due.elapsed() > Duration::from_millis(50));
        stream.write_all(text.as_bytes())?;
        sent += 1;
    }
    let seconds = begin.elapsed().as_secs_f64();
    let (accepted, refused) = reader.join().expect("the reader does not panic");
    Ok(json!({
        "sent": sent,
        "accepted": accepted,
        "refused_by_reason": refused,
        "unanswered": sent.saturating_sub(accepted + refused.values().sum::<u64>()),
        "late": late,
        "elapsed_s": seconds,
        "tps": sent as f64 / seconds,
    }))
}

/// Reads until all are answered, or nothing comes for [`SETTLE`]. Returns how many were accepted, and the others by
/// their reason.
fn read_answers(
    mut reader: BufReader<UnixStream>,
    flight: &Flight,
    total: usize,
) -> (u64, BTreeMap<String, u64>) {
    let (mut accepted, mut refused) = (0, BTreeMap::new());
    let mut line = Vec::new();
    for _ in 0..total {
        line.clear();
        // At the end of the stream, or of the patience: what is missing is reported as unanswered.
        if !matches!(reader.read_until(b'\n', &mut line), Ok(1..)) {
            break;
        }
        let Ok(answer) = serde_json::from_slice::<Value>(&line) else { continue };
        if let Some(id) = answer["id"].as_u64() {
            let mut state = flight.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.ids.remove(&id);
            state.blobs.remove(&id);
        }
        flight.changed.notify_one();
        match answer["error"]["message"].as_str() {
            None => accepted += 1,
            Some(message) => *refused.entry(reason(message)).or_default() += 1,
        }
    }
    flight.state.lock().unwrap_or_else(PoisonError::into_inner).broken = true;
    flight.changed.notify_one();
    (accepted, refused)
}

/// A message without what differs from one transaction to the next, so that equal reasons are counted together.
fn reason(message: &str) -> String {
    let words = message.split(' ').filter(|word| !word.contains(|c: char| c.is_ascii_digit()));
    words.collect::<Vec<_>>().join(" ")
}
