//! Anvil and geth beside the mock nodes (`--real`). Each has a chain of its own, a load, and a builder that reads it alone
//! by IPC. What the node lists and what its blocks contain is what that builder is judged by.
//!
//! A kill empties the pool of both; anvil begins a new chain then, at block 0, and the builder must follow it. After
//! `anvil_reorg` anvil tells the new heads and has the transactions of the old blocks no longer: nothing is pending again.

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
    lock,
    mirror::Mirror,
    oracle::{self, Findings, REMEMBERED, Trouble, Violation, Wrong, due, is_touched},
    world::{DIALLED, Part, REAL_NODES, RealFault, SLOT},
};

/// So long that most transactions are pending for longer than the grace.
const BLOCK_TIME: Duration = SLOT.saturating_mul(3);
/// Between two transactions, so 30 a second.
const PACE: Duration = Duration::from_millis(33);
/// Each sends every ten seconds.
const ACCOUNTS: usize = 300;
/// For a response of a node that runs.
const ANSWERED: Duration = Duration::from_secs(5);
/// What is told of a transaction is forgotten after it.
const FORGOTTEN_NS: u64 = 300_000_000_000;

/// One request at a time.
struct Connection(BufReader<UnixStream>);

impl Connection {
    fn open(path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(ANSWERED))?;
        stream.set_write_timeout(Some(ANSWERED))?;
        Ok(Self(BufReader::new(stream)))
    }

    /// An error response is [`io::ErrorKind::Other`].
    fn call<T: DeserializeOwned>(&mut self, method: &str, params: &Value) -> io::Result<T> {
        let request = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        self.0.get_mut().write_all(request.to_string().as_bytes())?;
        let mut line = String::new();
        // Nothing at the end of the connection, which is no JSON.
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

/// By sender and nonce.
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
    /// When it was found.
    #[serde(skip)]
    at: u64,
}

#[derive(Default)]
struct Load {
    /// What the node took, and when.
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
            // Otherwise the node is down.
            let is_refused = sent.is_err_and(|error| error.kind() == io::ErrorKind::Other);
            self.refused.fetch_add(u64::from(is_refused), Relaxed);
            thread::sleep(PACE);
        }
    }

    /// One of each account, with the nonces that the node then knows: it may have lost what it knew.
    fn send_round(&self, path: &Path, seed: u64) -> io::Result<()> {
        let mut node = Connection::open(path)?;
        let config = WorkloadConfig::new(seed, DEV_CHAIN_ID);
        let mut config = WorkloadConfig { accounts: ACCOUNTS, ..config };
        for account in test_accounts(ACCOUNTS) {
            let of = json!([account.address, "pending"]);
            let nonce: U64 = node.call("eth_getTransactionCount", &of)?;
            config.nonces.push(nonce.to());
        }
        for tx in Workload::new(config).prepare(ACCOUNTS) {
            node.call::<B256>("eth_sendRawTransaction", &json!([tx.raw]))?;
            self.accepted().insert(tx.hash, now_ns());
            thread::sleep(PACE);
        }
        Ok(())
    }

    fn accepted(&self) -> MutexGuard<'_, HashMap<B256, u64>> {
        lock(&self.accepted)
    }
}

/// A node with its builder.
struct Seat {
    name: &'static str,
    node: RealNode,
    member: Member,
    mirror: Mirror,
    started: u64,
    load: Arc<Load>,
    sender: Option<JoinHandle<()>>,
    /// What has struck it and is not over, and when it ends.
    fault: Option<(Instant, RealFault)>,
    /// The end of the node's chain, by number.
    chain: BTreeMap<u64, Block>,
    checks: u64,
    /// Since when it has listed each.
    pending: HashMap<B256, u64>,
    listed_at: u64,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.load.must_end.store(true, Relaxed);
        // Nobody is left to be told. Requests fail from here on, and the sender ends.
        let _ = self.node.kill9();
        if self.sender.take().is_some_and(|sender| sender.join().is_err()) {
            eprintln!("warning: the load of {} panicked", self.name);
        }
    }
}

#[derive(Default)]
pub(crate) struct RealNodes(Vec<Seat>);

impl RealNodes {
    pub(crate) fn start(dir: &Path, seed: u64) -> Result<Self, Box<dyn Error>> {
        let seats = (0..REAL_NODES.len()).map(|at| Seat::start(at, dir, seed));
        Ok(Self(seats.collect::<Result<_, _>>()?))
    }

    /// One that strikes during another has no effect.
    pub(crate) fn strike(&mut self, node: usize, fault: RealFault) -> io::Result<()> {
        let seat = &mut self.0[node];
        if seat.fault.is_some() {
            return Ok(());
        }
        let lasts = match fault {
            RealFault::Stop(time) => seat.node.sigstop().map(|()| time)?,
            RealFault::Kill(down) => seat.node.kill9().map(|()| down)?,
            RealFault::Reorg(depth) => {
                // One that was restarted may not answer yet, or have fewer blocks.
                let _ = Connection::open(seat.node.ipc_path())
                    .and_then(|mut node| node.call::<()>("anvil_reorg", &json!([depth, []])));
                return Ok(());
            }
        };
        seat.fault = Some((Instant::now() + lasts, fault));
        Ok(())
    }

    /// Those that are over.
    pub(crate) fn end_faults(&mut self) -> io::Result<()> {
        for seat in &mut self.0 {
            match seat.fault.take_if(|(at, _)| *at <= Instant::now()) {
                Some((_, RealFault::Stop(_))) => seat.node.sigcont()?,
                Some((_, RealFault::Kill(_))) => seat.node.spawn()?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Asks each node and its builder: what is wrong, how much was asked, and what is there. `members` are the others.
    pub(crate) fn look(
        &mut self,
        members: usize,
        troubles: &mut Vec<Trouble>,
    ) -> Result<(Vec<Violation>, u64, String), Box<dyn Error>> {
        let (mut violations, mut checks, mut texts) = (Vec::new(), 0, Vec::new());
        for (at, seat) in self.0.iter_mut().enumerate() {
            let (part, name) = (Part::Real(at), seat.name);
            if seat.fault.is_some() {
                texts.push(format!("{name} is down"));
                continue;
            }
            match seat.look(|since| due(since, &[part], troubles)) {
                Ok(found) => {
                    checks += found.checks;
                    seat.checks += found.checks;
                    violations.extend(found.wrong.into_iter().map(|(wrong, hash)| {
                        let text = seat.life(&hash, troubles);
                        Violation { wrong, member: members + at, hash, text }
                    }));
                    let (listed, held) = (seat.pending.len(), seat.mirror.len());
                    texts.push(format!("{name} lists {listed}, its builder holds {held}"));
                }
                // It starts, and its builder dials it when it answers.
                Err(error) if is_touched(now_ns(), &[part], troubles) => {
                    Trouble::new(part, now_ns(), SLOT + DIALLED).add_to(troubles);
                    texts.push(format!("{name}: {error}"));
                }
                Err(error) => return Err(format!("{name}: {error}").into()),
            }
        }
        Ok((violations, checks, texts.join("; ")))
    }

    /// `must_run`: a node without a load would have been asked nothing.
    pub(crate) fn summary(&self, must_run: bool) -> Result<String, Box<dyn Error>> {
        let of = |seat: &Seat| {
            let (name, checks, taken) = (seat.name, seat.checks, seat.load.accepted().len());
            if must_run && checks == 0 {
                let text = format!("{name} took {taken} transactions, and nothing was checked");
                return Err(text.into());
            }
            let refused = seat.load.refused.load(Relaxed);
            Ok(format!("; {name} took {taken} transactions and refused {refused}, {checks} checks"))
        };
        self.0.iter().map(of).collect()
    }
}

impl Seat {
    fn start(at: usize, dir: &Path, seed: u64) -> Result<Self, Box<dyn Error>> {
        let (name, kind) = REAL_NODES[at];
        let node = RealNode::start(kind, dir, BLOCK_TIME)?;
        let (member, _) = Member::start(&Config {
            nodes: vec![node.ipc_path().to_owned()],
            name: name.to_owned(),
            takes_objects: (seed + at as u64).is_multiple_of(2),
            ..Config::default()
        })?;
        let load = Arc::new(Load::default());
        let (path, shared) = (node.ipc_path().to_owned(), Arc::clone(&load));
        // Room for its rounds, so that no two seeds send the same.
        let sender = thread::spawn(move || shared.run(&path, seed << 20));
        Ok(Self {
            name,
            node,
            member,
            mirror: Mirror::default(),
            started: now_ns(),
            load,
            sender: Some(sender),
            fault: None,
            chain: BTreeMap::new(),
            checks: 0,
            pending: HashMap::new(),
            listed_at: 0,
        })
    }

    /// Reads the node's blocks down to one that is known.
    fn follow(&mut self, node: &mut Connection) -> io::Result<()> {
        let (mut wanted, mut top) = (json!("latest"), None);
        loop {
            let block = node.call("eth_getBlockByNumber", &json!([wanted, false]))?;
            let block = Block { at: now_ns(), ..block };
            let (number, parent) = (block.number.to::<u64>(), block.parent_hash);
            let top = *top.get_or_insert(number);
            self.chain.retain(|known, _| *known <= top && known + REMEMBERED > top);
            let knows = |number, hash| {
                let known: Option<&Block> = self.chain.get(&number);
                known.is_some_and(|known| known.hash == hash)
            };
            let below = number.saturating_sub(1);
            let is_last = knows(below, parent) || number == 0 || below + REMEMBERED <= top;
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

    /// `due` is of what came at a time.
    fn look(&mut self, due: impl Fn(u64) -> u64) -> io::Result<Findings> {
        let mut node = Connection::open(self.node.ipc_path())?;
        let listed = node.pending()?;
        let now = now_ns();
        self.follow(&mut node)?;
        let told = self.chain.last_key_value().map(|(number, block)| (*number, block.at));
        self.pending.retain(|hash, _| listed.contains(hash));
        for hash in listed {
            // One that was accepted before the last list and was not in it has waited for a nonce.
            let accepted = self.load.accepted().get(&hash).copied();
            let since = accepted.filter(|at| *at > self.listed_at).unwrap_or(now);
            self.pending.entry(hash).or_insert(since);
        }
        self.listed_at = now;
        self.member.ask()?;
        let report = self.member.report()?;
        self.mirror.take(&report, |_| true);
        self.mirror.lives.retain(|_, seen| seen.iter().any(|(at, _)| at + FORGOTTEN_NS > now));
        // What is mined or replaced meanwhile is not judged.
        let still = node.pending()?;
        self.follow(&mut node)?;
        let mined: HashSet<_> = self.chain.values().flat_map(|block| &block.transactions).collect();
        let mut found = Findings::new(now);
        if !report.is_current {
            return Ok(found);
        }
        let due = |since: u64| due(since.max(self.started));
        for (hash, since) in &self.pending {
            if still.contains(hash) && !mined.contains(hash) {
                found.ask(due(*since), self.mirror.has(hash), Wrong::Missing, *hash);
            }
        }
        for (number, block) in &self.chain {
            let Some(reached) = self.mirror.reached(*number) else { continue };
            let due = due(reached.max(block.at));
            for hash in &block.transactions {
                found.ask(due, !self.mirror.has(hash), Wrong::Mined, *hash);
            }
        }
        if let Some((number, at)) = told {
            // Itself, or one above it, of this chain.
            let is_known = self.mirror.head.is_some_and(|(known, hash)| {
                known >= number && self.chain.get(&known).is_some_and(|block| block.hash == hash)
            });
            found.ask(due(at), is_known, Wrong::Behind, B256::ZERO);
        }
        found.wrong.extend(self.mirror.twice.iter().map(|hash| (Wrong::Twice, *hash)));
        found.wrong.extend(report.is_miscounted().then_some((Wrong::Counts, B256::ZERO)));
        Ok(found)
    }

    /// What each part knows of a transaction, in seconds from the start.
    fn life(&self, hash: &B256, troubles: &[Trouble]) -> String {
        let mut lines = vec![(
            self.listed_at,
            format!("this look; the builder's head is {:?}", self.mirror.head),
        )];
        let accepted = self.load.accepted().get(hash).copied();
        lines.extend(accepted.map(|at| (at, "accepted by the node".to_owned())));
        lines.extend(self.pending.get(hash).map(|at| (*at, "pending at the node".to_owned())));
        for (number, block) in &self.chain {
            if hash.is_zero() || block.transactions.contains(hash) {
                lines.push((block.at, format!("block {number}, {}", block.hash)));
            }
        }
        lines.extend(self.mirror.life("the builder", hash));
        oracle::life(lines, self.started, troubles)
    }
}
