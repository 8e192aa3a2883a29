//! Ingests a mempool and shows it: that of a mock node, which runs in a process of its own, or with `--ipc PATH` or
//! `--ws URL` that of a real one. What ingests is the product, `bin/mempool-ingest`.

use std::{
    env, fs,
    io::{self, Read as _},
    os::unix::process::CommandExt as _,
    process::{self, Child, Command, ExitCode, Stdio},
};

use clap::Parser;
use mempool_ingest::txpool_fetcher::Endpoint;
use mempool_ingest_cli::{Args, Failure, run};
use mock_node::{LoadStart, MockNode, NodeConfig, cli::LoadArgs};

/// As the product, for the same reason.
#[cfg(feature = "product")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Holds the configuration of the mock node, in its process.
const CONFIG: &str = "MEMPOOL_INGEST_MOCK_NODE";

/// Ingests the mempool of a mock node, or with --ipc or --ws of a real one, and shows it
#[derive(Debug, Parser)]
struct Flags {
    #[command(flatten)]
    ingest: Args,
    #[command(flatten)]
    load: LoadArgs,
}

mod report;

fn main() -> report::Result<ExitCode> {
    if let Ok(config) = env::var(CONFIG) {
        let _node = MockNode::start(serde_json::from_str(&config)?)?;
        println!("it listens");
        // Until the parent ends it, or dies in any way.
        io::copy(&mut io::stdin(), &mut io::sink())?;
        return Ok(ExitCode::SUCCESS);
    }
    let Flags { mut ingest, load } = Flags::parse();
    // A fault may have struck just before the end.
    ingest.audit_first = load.faults.is_some();
    Ok(run(&ingest, |sources| {
        if !sources.is_empty() {
            return Ok(None);
        }
        let path = env::temp_dir().join(format!("mempool-ingest-{}.ipc", process::id()));
        eprintln!("starting a mock node: {} transactions/s at {}", load.tps, path.display());
        sources.push(Endpoint::Ipc(path.clone()));
        let config = load.config(path, ingest.duration);
        Node::start(NodeConfig { load_start: LoadStart::FirstSubscription, ..config }).map(Some)
    }))
}

/// The process of the mock node, which ends when this is dropped.
struct Node(Child, NodeConfig);

impl Node {
    /// Returns when it listens.
    fn start(config: NodeConfig) -> Result<Self, Failure> {
        let mut command = Command::new(env::current_exe()?);
        // Ctrl-C is for the parent alone, which compares with the node's pool at its end.
        command.env(CONFIG, serde_json::to_string(&config)?).process_group(0);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        match process.stdout.as_mut().expect("it is piped").read(&mut [0])? {
            0 => Err("the mock node has not started".into()),
            _ => Ok(Self(process, config)),
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // It may be frozen, or have ended.
        let _ = (self.0.kill(), self.0.wait(), fs::remove_file(&self.1.ipc_path));
    }
}
