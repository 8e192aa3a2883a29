//! Runs the command `mempool-ingest` on a mock node in a process of its own, or with `--ipc PATH`
//! or `--ws URL` on a real node.

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

/// The allocator of the command, for the reason given there.
#[cfg(feature = "product")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The environment variable with the configuration of the mock node, set in the node's process.
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
        // Stdin is closed when the parent ends, in whatever way.
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

/// The process of the mock node, which is killed when this is dropped.
struct Node {
    process: Child,
    config: NodeConfig,
}

impl Node {
    /// Returns when the node listens.
    fn start(config: NodeConfig) -> Result<Self, Failure> {
        let mut command = Command::new(env::current_exe()?);
        // A process group of its own keeps Ctrl-C from the node: the parent compares its pool with
        // the node's before it ends.
        command.env(CONFIG, serde_json::to_string(&config)?).process_group(0);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        match process.stdout.as_mut().expect("it is piped").read(&mut [0])? {
            0 => Err("the mock node has not started".into()),
            _ => Ok(Self { process, config }),
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // These fail if the node has ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_file(&self.config.ipc_path);
    }
}
