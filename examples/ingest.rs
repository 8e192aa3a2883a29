//! Ingests a mempool and shows it: that of a mock node, which runs in a process of its own, or with `--ipc PATH` or
//! `--ws URL` that of a real one. What ingests is the product, `bin/mempool-ingest`.

use std::{
    env,
    error::Error,
    fs,
    io::{self, Read as _},
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{self, Child, Command, ExitCode, Stdio},
};

use clap::Parser;
use mempool_ingest::txpool_fetcher::Endpoint;
use mock_node::{LoadStart, MockNode, NodeConfig, cli::LoadArgs};

/// As the product, for the same reason.
#[cfg(feature = "product")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The first argument of the process that is the mock node; the second is its configuration.
const ROLE: &str = "__mock-node";

#[derive(Debug, Parser)]
struct Flags {
    #[command(flatten)]
    ingest: mempool_ingest_cli::Args,
    #[command(flatten)]
    load: LoadArgs,
}

mod report;

fn main() -> report::Result<ExitCode> {
    if let [_, role, config] = env::args().collect::<Vec<_>>().as_slice()
        && role == ROLE
    {
        let _node = MockNode::start(serde_json::from_str(config)?)?;
        println!("it listens");
        // Until the parent ends it, or dies in any way.
        io::copy(&mut io::stdin(), &mut io::sink())?;
        return Ok(ExitCode::SUCCESS);
    }
    let Flags { mut ingest, load } = Flags::parse();
    // A fault may have struck just before the end.
    ingest.audit_first = load.faults.is_some();
    Ok(mempool_ingest_cli::run(&ingest, |sources| {
        if !sources.is_empty() {
            return Ok(None);
        }
        let path = env::temp_dir().join(format!("mempool-ingest-{}.ipc", process::id()));
        eprintln!("starting a mock node: {} transactions/s at {}", load.tps, path.display());
        let config = load.config(&path, ingest.duration);
        let config = NodeConfig { load_start: LoadStart::FirstSubscription, ..config };
        sources.push(Endpoint::Ipc(path.clone()));
        Ok(Some(Node { process: start(&config)?, path }))
    }))
}

/// The process of the mock node, which ends when this is dropped.
struct Node {
    process: Child,
    path: PathBuf,
}

impl Drop for Node {
    fn drop(&mut self) {
        // It may be frozen, or have ended.
        let _ = (self.process.kill(), self.process.wait(), fs::remove_file(&self.path));
    }
}

/// Returns when it listens.
fn start(config: &NodeConfig) -> Result<Child, Box<dyn Error>> {
    let mut node = Command::new(env::current_exe()?)
        .args([ROLE, &serde_json::to_string(config)?])
        // Ctrl-C is for the parent alone, which compares with the node's pool at its end.
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    match node.stdout.as_mut().expect("it is piped").read(&mut [0])? {
        0 => Err("the mock node has not started".into()),
        _ => Ok(node),
    }
}
