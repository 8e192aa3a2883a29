//! Drives a development node with signed transactions at an exact pace, and reports what the node accepted.
//!
//! The transactions are signed before the clock starts, with the accounts of the well-known test mnemonic, which
//! anvil (`--accounts 1000`), a geth genesis and this repository's mock node fund. Requests are pipelined on one
//! connection.
//!
//! A send that a node accepts is not yet a transaction that it announces: geth drops silently what does not fit its
//! limits. Count announcements for that.

use std::{
    collections::BTreeMap,
    error::Error,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use alloy::providers::{DynProvider, IpcConnect, Provider as _, ProviderBuilder};
use clap::Parser;
use mock_node::workload::{PreparedTx, Workload, WorkloadConfig, test_accounts};
use serde_json::{Value, json};
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{sleep_until, timeout},
};

/// The last answers have so long to arrive.
const SETTLE: Duration = Duration::from_secs(20);

/// Requests that may wait for their answer.
const MAX_IN_FLIGHT: usize = 256;

/// Drives a development node with signed transactions, and prints what came of it as one line of JSON
#[derive(Debug, Parser)]
pub struct Args {
    #[arg(long, value_name = "PATH")]
    ipc: PathBuf,
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    tps: u32,
    /// How long, e.g. 60s
    #[arg(long, default_value = "60s", value_parser = mock_node::cli::parse_duration)]
    duration: Duration,
    /// Accounts of the test mnemonic that send
    #[arg(long, default_value_t = 1000)]
    accounts: usize,
}

pub fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    // Of one thread: its tasks begin, and so their requests are written, in the order in which they are spawned.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let report = runtime.block_on(async {
        let node = ProviderBuilder::new().connect_ipc(IpcConnect::new(args.ipc.clone())).await;
        let node = node.map_err(|error| format!("{}: {error}", args.ipc.display()))?.erased();
        let txs = prepare(args, &node).await?;
        eprintln!("{} transactions are signed; sending {} per second", txs.len(), args.tps);
        Ok::<_, Box<dyn Error>>(send(args.tps, &node, txs).await)
    });
    let report = report?;
    println!("{report}");
    if report["accepted"] == 0 && report["sent"] != 0 {
        let accounts = test_accounts(args.accounts);
        let [first, .., last] = accounts.as_slice() else {
            return Err("there are no accounts".into());
        };
        let (first, last, refused) = (first.address, last.address, &report["refused_by_reason"]);
        let fund = format!("Fund the accounts: {first} to {last}");
        return Err(format!("nothing was accepted: {refused}. {fund}").into());
    }
    Ok(())
}

/// Requests what the signatures need from the node, and signs.
async fn prepare(args: &Args, node: &DynProvider) -> Result<Vec<PreparedTx>, Box<dyn Error>> {
    let version = node.get_client_version().await?;
    let (chain_id, gas_price) = (node.get_chain_id().await?, node.get_gas_price().await?);
    eprintln!("{version} on chain {chain_id}, gas price {gas_price} wei");
    let mut nonces = Vec::new();
    for account in test_accounts(args.accounts) {
        nonces.push(node.get_transaction_count(account.address).pending().await?);
    }
    // Room for 39 full blocks, each of which raises the base fee by an eighth; no more than 1 ether for any
    // transaction of the mix, which is what geth lets pass over RPC.
    let max_fee_wei = (gas_price * 100).clamp(100_000_000_000, 1_000_000_000_000);
    let config = WorkloadConfig::new(1, chain_id);
    let config = WorkloadConfig { accounts: args.accounts, nonces, max_fee_wei, ..config };
    let count = (args.duration.as_secs_f64() * f64::from(args.tps)).round() as usize;
    Ok(Workload::new(config).prepare(count))
}

/// Outcomes of a send beside the reasons of refusals. Unanswered is one whose connection broke, or for which nothing came
/// for [`SETTLE`].
const ACCEPTED: &str = "accepted";
const UNANSWERED: &str = "unanswered";

async fn send(tps: u32, node: &DynProvider, txs: Vec<PreparedTx>) -> Value {
    let permits = Arc::new(Semaphore::new(MAX_IN_FLIGHT));
    let (mut sends, mut outcomes) = (JoinSet::new(), BTreeMap::<String, u64>::new());
    let (begin, mut sent, mut late) = (Instant::now(), 0_u64, 0_u64);
    for tx in txs {
        let due = begin + Duration::from_secs_f64(sent as f64 / f64::from(tps));
        sleep_until(due.into()).await;
        let permit = Arc::clone(&permits).acquire_owned().await.expect("never closed");
        late += u64::from(due.elapsed() > Duration::from_millis(50));
        let node = node.clone();
        sends.spawn(async move {
            let _until_answered = permit;
            let sending = timeout(SETTLE, node.send_raw_transaction(&tx.raw));
            match sending.await {
                Ok(Ok(_)) => ACCEPTED.to_owned(),
                Ok(Err(error)) => {
                    let refused = error.as_error_resp();
                    refused.map_or(UNANSWERED.to_owned(), |refused| reason(&refused.message))
                }
                Err(_) => UNANSWERED.to_owned(),
            }
        });
        sent += 1;
        while let Some(outcome) = sends.try_join_next() {
            *outcomes.entry(outcome.expect("sending does not panic")).or_default() += 1;
        }
        if outcomes.contains_key(UNANSWERED) {
            break;
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    while let Some(outcome) = sends.join_next().await {
        *outcomes.entry(outcome.expect("sending does not panic")).or_default() += 1;
    }
    let [accepted, unanswered] =
        [ACCEPTED, UNANSWERED].map(|outcome| outcomes.remove(outcome).unwrap_or_default());
    json!({
        "sent": sent,
        "accepted": accepted,
        "refused_by_reason": outcomes,
        "unanswered": unanswered,
        "late": late,
        "elapsed_s": seconds,
        "tps": sent as f64 / seconds,
    })
}

/// A message without what differs from one transaction to the next, so that equal reasons are counted together.
fn reason(message: &str) -> String {
    let words = message.split(' ').filter(|word| !word.contains(|c: char| c.is_ascii_digit()));
    words.collect::<Vec<_>>().join(" ")
}
