//! Anvil and geth beside the mock nodes (`--real`). Each has a chain of its own, a load, and a
//! builder that reads it alone by IPC, which is judged by what the node lists and what its blocks
//! contain.
//!
//! A kill empties the pool of both. Anvil begins a new chain then, at block 0, and the builder must
//! follow it. After `anvil_reorg` anvil announces the new heads and has lost the transactions of
//! the old blocks: nothing is pending again.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    error::Error,
    io::{self, BufRead as _, BufReader, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use alloy_primitives::{B256, U64};
use mock_node::{
    DEV_CHAIN_ID,
    workload::{Workload, WorkloadConfig, test_accounts},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use testkit::{
    devnet::RealNode,
    member::{Config, Member},
    usage::now_ns,
};

use crate::{
    builder_view::BuilderView,
    lock,
    oracle::{
        self, Disturbance, Facts, ListedTx, MinedTx, REMEMBERED_BLOCKS, Verdict, Violation,
        deadline, is_disturbed,
    },
    story,
    world::{DIALLED, Part, REAL_NODES, RealFault, SLOT},
};

/// The time between blocks: most transactions are pending for longer than the grace.
const BLOCK_TIME: Duration = SLOT.saturating_mul(3);
/// The time between two transactions: 30 a second.
const INTERVAL: Duration = Duration::from_millis(33);
/// The accounts that send, each every ten seconds.
const ACCOUNTS: usize = 300;
/// A node that runs answers within this time.
const PATIENCE: Duration = Duration::from_secs(5);
/// The events of a transaction are forgotten after this long.
const FORGOTTEN_NS: u64 = 300_000_000_000;

/// A connection with one request at a time.
struct Connection(BufReader<UnixStream>);

impl Connection {
    fn open(path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Sends a request and waits for its result. An error response is [`io::ErrorKind::Other`].
    fn call<T: DeserializeOwned>(&mut self, method: &str, params: &Value) -> io::Result<T> {
        let request = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        self.0.get_mut().write_all(request.to_string().as_bytes())?;
        let mut line = String::new();
        // At the end of the connection this is empty, which is no JSON.
        self.0.read_line(&mut line)?;
        let mut response: Value = serde_json::from_str(&line)?;
        match response.get("error") {
            Some(error) => Err(io::Error::other(format!("{method}: {error}"))),
            None => Ok(serde_json::from_value(response["result"].take())?),
        }
    }

    fn pending(&mut self) -> io::Result<HashSet<B256>> {
        let content: Content = self.call("txpool_content", &json!([]))?;
        Ok(content.pending.values().flat_map(BTreeMap::values).map(|tx| tx.hash).collect())
    }
}

#[derive(Deserialize)]
struct Tx {
    hash: B256,
}

/// The answer of `txpool_content`, by sender and nonce.
#[derive(Deserialize)]
struct Content {
    pending: BTreeMap<String, BTreeMap<String, Tx>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Block {
    number: U64,
    hash: B256,
    parent_hash: B256,
    transactions: Vec<B256>,
    /// When the trial read it.
    #[serde(skip)]
    read_at: u64,
}

#[derive(Default)]
struct Load {
    /// The transactions that the node accepted, each with the time.
    accepted: Mutex<HashMap<B256, u64>>,
    refused: AtomicU64,
    must_end: AtomicBool,
}

impl Load {
    fn run(&self, path: &Path, seed: u64) {
        for round in 0.. {
            let sent = self.send_round(path, seed + round);
            if self.must_end.load(Relaxed) {
                break;
            }
            // Any other error means that the node is down.
            let is_refused = sent.is_err_and(|error| error.kind() == io::ErrorKind::Other);
            self.refused.fetch_add(u64::from(is_refused), Relaxed);
            thread::sleep(INTERVAL);
        }
    }

    /// Sends one transaction of each account, with the nonces that the node knows at the time: it
    /// may have lost its chain.
    fn send_round(&self, path: &Path, seed: u64) -> io::Result<()> {
        let mut node = Connection::open(path)?;
        let config = WorkloadConfig::new(seed, DEV_CHAIN_ID);
        let mut config = WorkloadConfig { accounts: ACCOUNTS, ..config };
        for account in test_accounts(ACCOUNTS) {
            let params = json!([account.address, "pending"]);
            let nonce: U64 = node.call("eth_getTransactionCount", &params)?;
            config.nonces.push(nonce.to());
        }
        for tx in Workload::new(config).prepare(ACCOUNTS) {
            node.call::<B256>("eth_sendRawTransaction", &json!([tx.raw]))?;
            self.accepted().insert(tx.hash, now_ns());
            thread::sleep(INTERVAL);
        }
        Ok(())
    }

    fn accepted(&self) -> MutexGuard<'_, HashMap<B256, u64>> {
        lock(&self.accepted)
    }
}

/// A node with its builder.
struct NodeWithBuilder {
    name: &'static str,
    node: RealNode,
    member: Member,
    view: BuilderView,
    started_at: u64,
    load: Arc<Load>,
    sender: Option<JoinHandle<()>>,
    /// The fault that lasts, and when it ends.
    fault: Option<(Instant, RealFault)>,
    /// The latest blocks of the node's chain, by number.
    chain: BTreeMap<u64, Block>,
    checks: u64,
    /// The transactions that it lists, each with the time since when.
    pending: HashMap<B256, u64>,
    listed_at: u64,
}

impl Drop for NodeWithBuilder {
    fn drop(&mut self) {
        self.load.must_end.store(true, Relaxed);
        // An error has no receiver any more. Requests fail from here on, and the sender ends.
        let _ = self.node.kill9();
        if self.sender.take().is_some_and(|sender| sender.join().is_err()) {
            eprintln!("warning: the load of {} panicked", self.name);
        }
    }
}

#[derive(Default)]
pub(crate) struct RealNodes(Vec<NodeWithBuilder>);

impl RealNodes {
    pub(crate) fn start(folder: &Path, seed: u64) -> Result<Self, Box<dyn Error>> {
        let nodes =
            (0..REAL_NODES.len()).map(|number| NodeWithBuilder::start(number, folder, seed));
        Ok(Self(nodes.collect::<Result<_, _>>()?))
    }

    /// Lets a fault happen. One during another has no effect.
    pub(crate) fn strike(&mut self, node: usize, fault: RealFault) -> io::Result<()> {
        let real = &mut self.0[node];
        if real.fault.is_some() {
            return Ok(());
        }
        let duration = match fault {
            RealFault::Stop(time) => real.node.sigstop().map(|()| time)?,
            RealFault::Kill(down) => real.node.kill9().map(|()| down)?,
            RealFault::Reorg(depth) => {
                // A node that was restarted may not answer yet, or have fewer blocks.
                let _ = Connection::open(real.node.ipc_path())
                    .and_then(|mut node| node.call::<()>("anvil_reorg", &json!([depth, []])));
                return Ok(());
            }
        };
        real.fault = Some((Instant::now() + duration, fault));
        Ok(())
    }

    /// Ends the faults whose time is over.
    pub(crate) fn end_faults(&mut self) -> io::Result<()> {
        for real in &mut self.0 {
            match real.fault.take_if(|(ends_at, _)| *ends_at <= Instant::now()) {
                Some((_, RealFault::Stop(_))) => real.node.sigcont()?,
                Some((_, RealFault::Kill(_))) => real.node.spawn()?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Asks each node and its builder, and the oracle. `members` is the number of the other
    /// members.
    pub(crate) fn check(
        &mut self,
        members: usize,
        disturbances: &mut Vec<Disturbance>,
    ) -> Result<RealCheck, Box<dyn Error>> {
        let (mut check, mut texts) = (RealCheck::default(), Vec::new());
        for (number, real) in self.0.iter_mut().enumerate() {
            let (part, name) = (Part::Real(number), real.name);
            if real.fault.is_some() {
                texts.push(format!("{name} is down"));
                continue;
            }
            match real.check(|since| deadline(since, &[part], disturbances)) {
                Ok(verdict) => {
                    check.checks += verdict.checks;
                    real.checks += verdict.checks;
                    let violations = verdict.breaches.into_iter().map(|(breach, hash)| {
                        let story = real.story(&hash, disturbances);
                        Violation { breach, member: members + number, hash, story }
                    });
                    check.violations.extend(violations);
                    let (listed, held) = (real.pending.len(), real.view.len());
                    texts.push(format!("{name} lists {listed}, its builder holds {held}"));
                }
                // It is starting, and its builder dials it when it answers.
                Err(error) if is_disturbed(now_ns(), &[part], disturbances) => {
                    Disturbance::new(part, now_ns(), SLOT + DIALLED).add_to(disturbances);
                    texts.push(format!("{name}: {error}"));
                }
                Err(error) => return Err(format!("{name}: {error}").into()),
            }
        }
        check.text = texts.join("; ");
        Ok(check)
    }

    /// Returns the end of the summary. With `must_run`, a node whose builder was never checked is
    /// an error.
    pub(crate) fn summary(&self, must_run: bool) -> Result<String, Box<dyn Error>> {
        let mut summary = String::new();
        for real in &self.0 {
            let (name, checks, accepted) = (real.name, real.checks, real.load.accepted().len());
            if must_run && checks == 0 {
                let text =
                    format!("{name} accepted {accepted} transactions, and nothing was checked");
                return Err(text.into());
            }
            let refused = real.load.refused.load(Relaxed);
            summary += &format!(
                "; {name} accepted {accepted} transactions and refused {refused}, {checks} checks"
            );
        }
        Ok(summary)
    }
}

/// The result of a check of all real nodes.
#[derive(Debug, Default)]
pub(crate) struct RealCheck {
    pub(crate) violations: Vec<Violation>,
    pub(crate) checks: u64,
    /// What each node and its builder hold.
    pub(crate) text: String,
}

impl NodeWithBuilder {
    fn start(number: usize, folder: &Path, seed: u64) -> Result<Self, Box<dyn Error>> {
        let (name, kind) = REAL_NODES[number];
        let node = RealNode::start(kind, folder, BLOCK_TIME)?;
        let (member, _) = Member::start(&Config {
            nodes: vec![node.ipc_path().to_owned()],
            name: name.to_owned(),
            takes_objects: (seed + number as u64).is_multiple_of(2),
            ..Config::default()
        })?;
        let load = Arc::new(Load::default());
        let (path, shared) = (node.ipc_path().to_owned(), Arc::clone(&load));
        // Each round adds one to the seed, so that no two seeds of the trial send the same.
        let sender = thread::spawn(move || shared.run(&path, seed << 20));
        Ok(Self {
            name,
            node,
            member,
            view: BuilderView::default(),
            started_at: now_ns(),
            load,
            sender: Some(sender),
            fault: None,
            chain: BTreeMap::new(),
            checks: 0,
            pending: HashMap::new(),
            listed_at: 0,
        })
    }

    /// Reads the node's blocks down to a known one.
    fn follow(&mut self, node: &mut Connection) -> io::Result<()> {
        let (mut wanted, mut top) = (json!("latest"), None);
        loop {
            let block = node.call("eth_getBlockByNumber", &json!([wanted, false]))?;
            let block = Block { read_at: now_ns(), ..block };
            let (number, parent) = (block.number.to::<u64>(), block.parent_hash);
            let top = *top.get_or_insert(number);
            self.chain.retain(|known, _| *known <= top && known + REMEMBERED_BLOCKS > top);
            let knows = |number, hash| {
                let known: Option<&Block> = self.chain.get(&number);
                known.is_some_and(|known| known.hash == hash)
            };
            let below = number.saturating_sub(1);
            let is_last = knows(below, parent) || number == 0 || below + REMEMBERED_BLOCKS <= top;
            if knows(number, block.hash) {
                return Ok(());
            }
            self.chain.insert(number, block);
            if is_last {
                return Ok(());
            }
            wanted = json!(U64::from(below));
        }
    }

    /// Asks the node and its builder, and the oracle. `deadline` returns that of a transaction
    /// which came at a time.
    fn check(&mut self, deadline: impl Fn(u64) -> u64) -> io::Result<Verdict> {
        let mut node = Connection::open(self.node.ipc_path())?;
        let listed = node.pending()?;
        let now = now_ns();
        self.follow(&mut node)?;
        let head = self.chain.last_key_value().map(|(number, block)| (*number, block.read_at));
        self.pending.retain(|hash, _| listed.contains(hash));
        for hash in listed {
            // A transaction that was accepted before the last list and is new in this one has
            // waited for a nonce.
            let accepted_at = self.load.accepted().get(&hash).copied();
            let since = accepted_at.filter(|time| *time > self.listed_at).unwrap_or(now);
            self.pending.entry(hash).or_insert(since);
        }
        self.listed_at = now;
        self.member.ask()?;
        let report = self.member.report()?;
        self.view.apply(&report, |_| true);
        let is_recent = |(time, _): &(u64, _)| time + FORGOTTEN_NS > now;
        self.view.events.retain(|_, events| events.iter().any(is_recent));
        if !report.is_current {
            return Ok(Verdict::default());
        }
        // A transaction that is mined or replaced meanwhile is not judged.
        let still_pending = node.pending()?;
        self.follow(&mut node)?;
        let mined: HashSet<_> = self.chain.values().flat_map(|block| &block.transactions).collect();
        let deadline = |since: u64| deadline(since.max(self.started_at));
        let mut facts = Facts { now, ..Facts::default() };
        for (hash, since) in &self.pending {
            if still_pending.contains(hash) && !mined.contains(hash) {
                facts.listed.push(ListedTx {
                    hash: *hash,
                    deadline: deadline(*since),
                    is_held: self.view.holds(hash),
                    is_mined: false,
                    has_old_sidecar: self.view.old_sidecars.contains(hash),
                });
            }
        }
        for (number, block) in &self.chain {
            let Some(reached_at) = self.view.reached_at(*number) else { continue };
            let deadline = deadline(reached_at.max(block.read_at));
            facts.mined.extend(block.transactions.iter().map(|hash| {
                let (hash, is_held) = (*hash, self.view.holds(hash));
                MinedTx { hash, deadline, is_held }
            }));
        }
        if let Some((number, read_at)) = head {
            // The builder knows this head, or one above it, of this chain.
            let is_known = self.view.head.is_some_and(|(known, hash)| {
                known >= number && self.chain.get(&known).is_some_and(|block| block.hash == hash)
            });
            facts.heads.push((deadline(read_at), is_known));
        }
        facts.added_twice.clone_from(&self.view.added_twice);
        facts.is_miscounted = report.is_miscounted();
        Ok(oracle::judge(&facts))
    }

    /// Returns the history of a transaction as each part knows it.
    fn story(&self, hash: &B256, disturbances: &[Disturbance]) -> String {
        let text = format!("this check; the builder's head is {:?}", self.view.head);
        let mut lines = vec![(self.listed_at, text)];
        let accepted_at = self.load.accepted().get(hash).copied();
        lines.extend(accepted_at.map(|time| (time, "accepted by the node".to_owned())));
        let listed_since = self.pending.get(hash);
        lines.extend(listed_since.map(|time| (*time, "pending at the node".to_owned())));
        for (number, block) in &self.chain {
            if hash.is_zero() || block.transactions.contains(hash) {
                lines.push((block.read_at, format!("block {number}, {}", block.hash)));
            }
        }
        lines.extend(self.view.story("the builder", hash));
        story::tell(lines, self.started_at, disturbances)
    }
}
