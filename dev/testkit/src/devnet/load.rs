//! Sends signed transactions to a development node at an exact pace, and reports how many the node
//! accepted.
//!
//! The transactions are signed before the clock starts, by the accounts of the well-known test
//! mnemonic, which are funded in anvil (`--accounts 1000`), in our geth genesis and in the mock
//! node. Requests are pipelined on one connection.
//!
//! An accepted transaction is not always announced: geth silently drops transactions beyond its
//! limits. Count announcements to find those.

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

/// How long the last answers may take.
const SETTLE: Duration = Duration::from_secs(20);

/// How many requests may wait for their answer.
const MAX_IN_FLIGHT: usize = 256;

/// Sends signed transactions to a development node, and prints the result as one line of JSON
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
    // A runtime of one thread begins its tasks, and so writes their requests, in the order in which
    // they are spawned.
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

/// Requests the chain id and the nonces from the node, and signs the transactions.
async fn prepare(args: &Args, node: &DynProvider) -> Result<Vec<PreparedTx>, Box<dyn Error>> {
    let version = node.get_client_version().await?;
    let (chain_id, gas_price) = (node.get_chain_id().await?, node.get_gas_price().await?);
    eprintln!("{version} on chain {chain_id}, gas price {gas_price} wei");
    let mut nonces = Vec::new();
    for account in test_accounts(args.accounts) {
        nonces.push(node.get_transaction_count(account.address).pending().await?);
    }
    // The fee cap leaves room for 39 full blocks, each of which raises the base fee by an eighth.
    // No transaction of the mix may cost more than 1 ether, which is the limit of geth for RPC.
    let max_fee_wei = (gas_price * 100).clamp(100_000_000_000, 1_000_000_000_000);
    let config = WorkloadConfig::new(1, chain_id);
    let config = WorkloadConfig { accounts: args.accounts, nonces, max_fee_wei, ..config };
    let count = (args.duration.as_secs_f64() * f64::from(args.tps)).round() as usize;
    Ok(Workload::new(config).prepare(count))
}

/// The outcomes of a send, in addition to the reasons of refusals. A send is unanswered if its
/// connection broke, or if there was no answer within [`SETTLE`].
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

/// Removes the words with digits from a message, so that equal reasons are counted together.
fn reason(message: &str) -> String {
    let words = message.split(' ').filter(|word| !word.contains(|c: char| c.is_ascii_digit()));
    words.collect::<Vec<_>>().join(" ")
}
